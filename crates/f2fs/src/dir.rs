//! Directories: entries in blocks that a hash of the name leads to, or inline.
//!
//! A directory has levels, each with twice as many buckets as the one before, up to 2^30. A bucket is two blocks, from
//! level 31 on four. A name may be in any block of its bucket at any level. Blocks may be missing. An entry
//! keeps its place as long as it exists, so the place is the cookie of readdir: the slot's number, counted
//! over all blocks.
//!
//! Damage      an inconsistent entry, or a block that cannot be read, hides no other entry. Behind a damaged entry the start of the next
//!             one is unknown: there an entry counts only if its hash is that of its name. A listing returns all names that can be read,
//!             then the error. A look-up fails if the damaged entry may have that name; otherwise it succeeds. Slots that are marked as
//!             used, or that a name with a correct hash covers, are not handed out.
//!
//! Source      F2FS paper (FAST '15) section 2.2.3; Linux `Documentation/filesystems/f2fs.rst`, "Directory
//! Structure".

mod change;
mod check;
mod hash;

use crate::format::{
    BLOCK_BYTES, DENTRY_NAME_BYTES, DENTRY_SLOTS, Dentry, DentryBlock, bit_lsb, inline_flag,
};
use crate::ids::{Nid, PageNo};
use crate::image::Media;
use crate::inode::{Inode, ROOT};
use crate::node::block_map::pages_max;
use check::Damage;
use hash::hash;
use heddle_vfs::{Error, FileKind, NAME_MAX_BYTES, Name, Result};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Slots of the longest name.
const NAME_SLOTS_MAX: usize = NAME_MAX_BYTES.div_ceil(DENTRY_NAME_BYTES);
/// Most levels of a directory.
const LEVELS_MAX: u32 = 63;
/// Places of names that are newer than the checkpoint: beyond those of any block.
const NEWER_PLACE: u64 = 1 << 60;
/// Flag in the place where a listing continues: damage was found before it.
const DAMAGE_MET: u64 = 1 << 61;

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) nid: Nid,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
    /// Number of its first slot in the directory.
    pub(crate) place: u64,
    hash: u32,
    /// True: damage was found before it in the listing.
    behind_damage: bool,
}

impl Entry<'_> {
    /// Returns true for `.` and `..`.
    pub(crate) fn is_dots(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }

    /// Returns true if it is on the media, behind so many slots.
    pub(crate) fn is_behind(&self, slots: u64) -> bool {
        (slots..NEWER_PLACE).contains(&self.place)
    }

    /// The place at which a listing continues behind it.
    pub(crate) fn next(&self) -> u64 {
        (self.place + 1) | if self.behind_damage { DAMAGE_MET } else { 0 }
    }

    /// Returns true if its name is possible for an entry.
    fn has_name(&self) -> bool {
        self.is_dots() || Name::new(self.name).is_ok()
    }

    /// Returns true if its hash matches its name.
    fn is_sure(&self) -> bool {
        hash(self.name) == self.hash
    }
}

/// An entry found on the media.
struct Found {
    /// Its block; `None`: it is inline.
    page: Option<PageNo>,
    place: u64,
    nid: Nid,
    kind: FileKind,
}

/// Slots with their bitmap and names: of a block, or inline.
struct Slots<'a> {
    nid: Nid,
    /// Number of the first slot, in the directory.
    first: u64,
    bitmap: &'a [u8],
    entries: &'a [Dentry],
    names: &'a [u8],
}

impl<'a> Slots<'a> {
    fn of_block(nid: Nid, page: PageNo, block: &'a DentryBlock) -> Slots<'a> {
        let (bitmap, entries) = (&block.bitmap[..], &block.entries[..]);
        Slots { nid, first: page.0 * DENTRY_SLOTS as u64, bitmap, entries, names: block.names.as_flattened() }
    }

    /// Inline entries use the space in the inode: as many slots as fit with a bit each; the rest lies behind
    /// the bitmap.
    fn inline(inode: &'a Inode) -> Result<Slots<'a>> {
        let content = inode.inline_content();
        let (slots, bitmap) = inline_slots(content.len());
        let (head, rest) =
            content.split_at(content.len() - slots * (size_of::<Dentry>() + DENTRY_NAME_BYTES));
        let (entries, names) = <[Dentry]>::ref_from_prefix_with_elems(rest, slots)
            .map_err(|error| Error::Corrupt(format!("inode {}: inline entries: {error}", inode.nid.0)))?;
        Ok(Slots { nid: inode.nid, first: 0, bitmap: &head[..bitmap], entries, names })
    }

    /// Calls `emit` with the entry in each used slot, until it returns true. Returns true if it did. `None`:
    /// the entry is inconsistent.
    fn each(&self, emit: &mut dyn FnMut(usize, Option<Entry<'a>>) -> Result<bool>) -> Result<bool> {
        let (mut slot, mut lost) = (0, false);
        while slot < self.entries.len() {
            if !bit_lsb(self.bitmap, slot) {
                (slot, lost) = (slot + 1, false);
                continue;
            }
            let found = self.entry(slot).filter(|(entry, slots)| {
                !lost && !self.is_doubtful(slot + 1, slot + slots) || entry.is_sure()
            });
            lost = found.is_none();
            if emit(slot, found.map(|(entry, _)| entry))? {
                return Ok(true);
            }
            slot += found.map_or(1, |(_, slots)| slots);
        }
        Ok(false)
    }

    /// Calls `emit` with the entries from slot `from` on, until it returns true. Returns true if it did.
    /// Damage is noted.
    fn list(
        &self,
        from: usize,
        damage: &mut Damage,
        emit: &mut dyn FnMut(Entry<'a>) -> Result<bool>,
    ) -> Result<bool> {
        self.each(&mut |slot, entry| match entry.filter(Entry::has_name) {
            _ if slot < from => Ok(false),
            Some(entry) => emit(Entry { behind_damage: damage.is_met(), ..entry }),
            None => {
                damage.note(|| self.damage(slot));
                Ok(false)
            }
        })
    }

    /// The entry of a name with this hash. Usually it is in another block, so all hashes are compared first,
    /// including those of unused slots.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if an inconsistent entry may have this name.
    fn find(&self, name: &[u8], wanted: u32) -> Result<Option<Entry<'a>>> {
        let wanted = U32::new(wanted);
        if !self.entries.iter().fold(false, |any, entry| any | (entry.hash == wanted)) {
            return Ok(None);
        }
        let (mut found, mut damage) = (None, None);
        self.each(&mut |slot, entry| {
            match entry {
                _ if self.entries[slot].hash != wanted => {}
                Some(entry) if entry.name == name => found = Some(entry),
                Some(entry) if entry.is_sure() => {}
                _ => damage = Some(self.damage(slot)),
            }
            Ok(found.is_some())
        })?;
        match (found, damage) {
            (None, Some(damage)) => Err(damage),
            (found, _) => Ok(found),
        }
    }

    /// Returns true if one of these slots may hold something other than the rest of a name. Such slots are marked as used and
    /// otherwise empty; the slot behind them belongs to another entry, or is free.
    fn is_doubtful(&self, from: usize, end: usize) -> bool {
        let is_empty = |slot: usize| self.entries[slot].name_bytes.get() == 0;
        (from..end).any(|slot| !bit_lsb(self.bitmap, slot) || !is_empty(slot))
            || end < self.entries.len() && is_empty(end) && bit_lsb(self.bitmap, end)
    }

    /// The start of this many contiguous free slots.
    fn room(&self, wanted: usize) -> Option<usize> {
        let at = change::room(self.bitmap, self.entries.len(), wanted)?;
        // A name that lost its marks may cover this room. Then the block is treated as full.
        let reaches = |slot: usize| self.entry(slot).filter(|(_, slots)| slot + slots > at);
        let before = (at.saturating_sub(NAME_SLOTS_MAX)..at).filter(|slot| bit_lsb(self.bitmap, *slot));
        let is_taken = before.filter_map(reaches).any(|(entry, _)| entry.is_sure());
        (!is_taken).then_some(at)
    }

    /// The entry that begins in a slot, and its number of slots; `None` if that is impossible.
    fn entry(&self, slot: usize) -> Option<(Entry<'a>, usize)> {
        let dentry = &self.entries[slot];
        let len = usize::from(dentry.name_bytes.get());
        let slots = len.div_ceil(DENTRY_NAME_BYTES);
        if !(1..=NAME_MAX_BYTES).contains(&len) || slot + slots > self.entries.len() {
            return None;
        }
        let name = self.names.get(slot * DENTRY_NAME_BYTES..)?.get(..len)?;
        let (nid, hash, place) = (Nid(dentry.ino.get()), dentry.hash.get(), self.first + slot as u64);
        Some((Entry { nid, kind: kind_of(dentry.kind)?, name, place, hash, behind_damage: false }, slots))
    }

    /// The error for the entry in this slot.
    fn damage(&self, slot: usize) -> Error {
        let (dentry, place) = (&self.entries[slot], self.first + slot as u64);
        Error::Corrupt(format!(
            "directory {}: entry {place} has a name of {} bytes that cannot be, or is of kind {}",
            self.nid.0, dentry.name_bytes, dentry.kind
        ))
    }
}

/// Number of slots, and bytes of their bitmap, that fit inline.
fn inline_slots(content_bytes: usize) -> (usize, usize) {
    let slot_bits = (size_of::<Dentry>() + DENTRY_NAME_BYTES) * 8 + 1;
    let slots = content_bytes * 8 / slot_bits;
    (slots, slots.div_ceil(8))
}

fn kind_of(raw: u8) -> Option<FileKind> {
    use FileKind::*;
    let kinds = [Regular, Directory, CharDevice, BlockDevice, Fifo, Socket, Symlink];
    kinds.get(usize::from(raw).checked_sub(1)?).copied()
}

impl Media {
    /// The inode and kind of a name (including `..`).
    pub(crate) fn look_up(&self, dir: &Inode, name: &[u8]) -> Result<Option<(Nid, FileKind)>> {
        dir.check_readable()?;
        let found = match self.names.get(&dir.nid).and_then(|names| names.get(name)) {
            Some(newer) => Some(*newer),
            None => self.find(dir, name)?.map(|found| (found.nid, found.kind)),
        };
        match found {
            // The root has no name, and numbers before it are no files. A kernel that is given the root as a child calls that EIO.
            Some((nid, _)) if nid <= ROOT && !matches!(name, b"." | b"..") => {
                Err(Error::Corrupt(format!("directory {}: a name leads to inode {}", dir.nid.0, nid.0)))
            }
            found => Ok(found),
        }
    }

    /// Checks that the entry which changes when a directory moves can be read.
    pub(crate) fn check_move(&self, inode: &Inode) -> Result<()> {
        if inode.kind != FileKind::Directory {
            return Ok(());
        }
        let above = self.look_up(inode, b"..")?;
        above.map(drop).ok_or_else(|| Error::Corrupt(format!("directory {} has no entry '..'", inode.nid.0)))
    }

    /// The position of a name's entry on the media, and its meaning.
    fn find(&self, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        let wanted = hash(name);
        let found =
            |page, entry: Entry<'_>| Found { page, place: entry.place, nid: entry.nid, kind: entry.kind };
        if dir.has(inline_flag::DENTRY) {
            return Ok(Slots::inline(dir)?.find(name, wanted)?.map(|entry| found(None, entry)));
        }
        let (mut damage, pages) = (None, pages_max(dir.pointers()));
        for level in 0..levels(dir)? {
            let (start, blocks) = bucket(wanted, level, dir.block().dir_level);
            for page in (start..start + blocks).filter(|page| *page < pages).map(PageNo) {
                let seen = self.with_page(dir, page, |block| {
                    let slots = Slots::of_block(dir.nid, page, zerocopy::transmute_ref!(block));
                    Ok(slots.find(name, wanted)?.map(|entry| found(Some(page), entry)))
                });
                // The name may be in another block.
                match seen.and_then(Option::transpose) {
                    Ok(Some(Some(found))) => return Ok(Some(found)),
                    Ok(_) => {}
                    Err(error) => _ = damage.get_or_insert(error),
                }
            }
        }
        damage.map_or(Ok(None), Err)
    }

    /// Calls `emit` with the entries from a place on, including `.` and `..`, until it returns true.
    ///
    /// # Errors
    /// After all readable entries: an inconsistent or unreadable one.
    pub(crate) fn list(
        &self,
        dir: &Inode,
        from: u64,
        emit: &mut dyn FnMut(Entry<'_>) -> Result<bool>,
    ) -> Result<()> {
        let met = || Error::Corrupt(format!("directory {} has entries that cannot be read", dir.nid.0));
        let is_behind = from / DAMAGE_MET == 1;
        let mut damage = Damage::up_to(1);
        if is_behind {
            damage.note(met);
        }
        let from = if is_behind { from % DAMAGE_MET } else { from };
        if self.list_noting(dir, from, &mut damage, emit)? { Ok(()) } else { damage.end() }
    }

    /// As [`Media::list`], but damage is noted. Returns true if `emit` did.
    fn list_noting(
        &self,
        dir: &Inode,
        from: u64,
        damage: &mut Damage,
        emit: &mut dyn FnMut(Entry<'_>) -> Result<bool>,
    ) -> Result<bool> {
        dir.check_readable()?;
        let newer = self.names.get(&dir.nid);
        // A newer entry replaces the one on the media.
        let is_newer = |entry: &Entry<'_>| newer.is_some_and(|newer| newer.contains_key(entry.name));
        let mut others = |entry: Entry<'_>| if is_newer(&entry) { Ok(false) } else { emit(entry) };
        if self.list_media(dir, from, damage, &mut others)? {
            return Ok(true);
        }
        for (place, (name, (nid, kind))) in (NEWER_PLACE..).zip(newer.into_iter().flatten()) {
            let behind_damage = damage.is_met();
            let entry = Entry { nid: *nid, kind: *kind, name, place, hash: 0, behind_damage };
            if place >= from && emit(entry)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lists the entries on the media. Returns true if `emit` did. Damage is noted.
    fn list_media(
        &self,
        dir: &Inode,
        from: u64,
        damage: &mut Damage,
        emit: &mut dyn FnMut(Entry<'_>) -> Result<bool>,
    ) -> Result<bool> {
        if dir.has(inline_flag::DENTRY) {
            let from = from.min(usize::MAX as u64) as usize;
            return Slots::inline(dir)?.list(from, damage, &mut |entry| emit(entry));
        }
        let end = blocks_listed(dir);
        let (mut page, mut slot) = (from / DENTRY_SLOTS as u64, from as usize % DENTRY_SLOTS);
        // If nodes led to one another, the walk would never end; no directory has more blocks than the image.
        let mut blocks_left = self.geometry.blocks;
        while page < end {
            let hole = match self.hole_pages_from(dir, PageNo(page)) {
                Ok(hole) => hole,
                // The number of blocks that it would lead to is unknown.
                Err(error) => {
                    damage.note(|| error);
                    return Ok(false);
                }
            };
            if hole > 0 {
                (page, slot) = (page.saturating_add(hole), 0);
                continue;
            }
            blocks_left = blocks_left.checked_sub(1).ok_or_else(|| {
                Error::Corrupt(format!("directory {} has more blocks than the device", dir.nid.0))
            })?;
            match self.entries_of(dir, PageNo(page)) {
                Ok(Some(block)) => {
                    let slots = Slots::of_block(dir.nid, PageNo(page), &block);
                    if slots.list(slot, damage, &mut |entry| emit(entry))? {
                        return Ok(true);
                    }
                }
                Ok(None) => {}
                Err(error) => damage.note(|| error),
            }
            (page, slot) = (page + 1, 0);
        }
        Ok(false)
    }

    /// A block of entries, unless it is a hole.
    fn entries_of(&self, dir: &Inode, page: PageNo) -> Result<Option<Box<DentryBlock>>> {
        let Some(block) = self.page(dir, page)? else { return Ok(None) };
        let copy =
            DentryBlock::read_from_bytes(&block[..]).map_err(|error| Error::Corrupt(error.to_string()))?;
        Ok(Some(Box::new(copy)))
    }
}

/// Number of levels to search for names: according to the inode, or to its size. One of the two may be
/// damaged.
fn levels(dir: &Inode) -> Result<u32> {
    let (said, blocks) = (depth(dir)?, dir.size_bytes.div_ceil(BLOCK_BYTES as u64));
    Ok((said..LEVELS_MAX)
        .find(|level| blocks_before(*level, dir.block().dir_level) >= blocks)
        .unwrap_or(LEVELS_MAX))
}

fn depth(dir: &Inode) -> Result<u32> {
    match dir.block().depth.get() {
        depth @ 0..=LEVELS_MAX => Ok(depth),
        depth => Err(Error::Corrupt(format!("directory {}: {depth} levels", dir.nid.0))),
    }
}

/// Number of blocks to list: by its size or by its levels. If the levels have more, the others are holes.
fn blocks_listed(dir: &Inode) -> u64 {
    let of_levels = depth(dir).map_or(0, |depth| blocks_before(depth, dir.block().dir_level));
    dir.size_bytes.div_ceil(BLOCK_BYTES as u64).max(of_levels.min(pages_max(dir.pointers())))
}

fn buckets(level: u32, dir_level: u8) -> u64 {
    1 << (level + u32::from(dir_level)).min(30)
}

fn bucket_blocks(level: u32) -> u64 {
    if level < LEVELS_MAX / 2 { 2 } else { 4 }
}

/// Number of blocks of all levels before this one.
fn blocks_before(level: u32, dir_level: u8) -> u64 {
    (0..level).map(|level| buckets(level, dir_level) * bucket_blocks(level)).sum()
}

/// First block and number of blocks of a hash's bucket at a level.
fn bucket(hash: u32, level: u32, dir_level: u8) -> (u64, u64) {
    let (before, blocks) = (blocks_before(level, dir_level), bucket_blocks(level));
    (before + u64::from(hash) % buckets(level, dir_level) * blocks, blocks)
}

#[cfg(test)]
mod tests;
