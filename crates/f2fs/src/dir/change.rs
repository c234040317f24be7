//! Adds and removes directory entries. Inline entries move to blocks when there is no more room for them.
//!
//! All functions here are called with the directory's lock held for writing.

use super::{DENTRY_NAME_BYTES, DENTRY_SLOTS, Damage, LEVELS_MAX, Slots, bucket, hash::hash, levels};
use crate::change::{Change, Lacking, Need};
use crate::format::{
    BLOCK_BYTES, Block, Dentry, DentryBlock, INODE_POINTERS, InodeBlock, bit_lsb, inline_flag, set_bit_lsb,
};
use crate::ids::{Nid, PageNo};
use crate::image::Media;
use crate::inode::Inode;
use heddle_vfs::{Error, FileKind, Result};
use std::collections::BTreeMap;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

const PAGE: u64 = BLOCK_BYTES as u64;

/// Slots to be changed.
struct SlotsMut<'a> {
    bitmap: &'a mut [u8],
    entries: &'a mut [Dentry],
    names: &'a mut [u8],
}

impl<'a> SlotsMut<'a> {
    fn of_block(block: &'a mut Block) -> SlotsMut<'a> {
        let block: &mut DentryBlock = zerocopy::transmute_mut!(block);
        SlotsMut {
            bitmap: &mut block.bitmap,
            entries: &mut block.entries,
            names: block.names.as_flattened_mut(),
        }
    }

    fn inline(inode: &Inode, block: &'a mut InodeBlock) -> Option<SlotsMut<'a>> {
        let content = inode.inline_content_mut(block);
        let (slots, bitmap) = super::inline_slots(content.len());
        let (head, rest) =
            content.split_at_mut(content.len() - slots * (size_of::<Dentry>() + DENTRY_NAME_BYTES));
        let (entries, names) = <[Dentry]>::mut_from_prefix_with_elems(rest, slots).ok()?;
        Some(SlotsMut { bitmap: &mut head[..bitmap], entries, names })
    }

    fn put(&mut self, at: usize, name: &[u8], nid: Nid, kind: FileKind) {
        let name_bytes = U16::new(name.len() as u16);
        self.entries[at] =
            Dentry { hash: U32::new(hash(name)), ino: U32::new(nid.0), name_bytes, kind: raw(kind) };
        self.names[at * DENTRY_NAME_BYTES..][..name.len()].copy_from_slice(name);
        let slots = at..at + slots_of(name);
        // Cleared, so that no reader takes an old entry in the middle of a name for a valid one.
        self.entries[slots.clone()].iter_mut().skip(1).for_each(|entry| entry.name_bytes.set(0));
        slots.for_each(|slot| set_bit_lsb(self.bitmap, slot, true));
    }

    /// Adds an entry where there is room. Returns false if there is none.
    fn add(&mut self, name: &[u8], nid: Nid, kind: FileKind) -> bool {
        let slots =
            Slots { nid: Nid::NONE, first: 0, bitmap: self.bitmap, entries: self.entries, names: self.names };
        let at = slots.room(slots_of(name));
        at.map(|at| self.put(at, name, nid, kind)).is_some()
    }
}

/// The first of `wanted` contiguous free slots among `slots`.
pub(super) fn room(bitmap: &[u8], slots: usize, wanted: usize) -> Option<usize> {
    let (mut slot, mut free) = (0, 0);
    while slot < slots {
        if slot % 8 == 0 && bitmap.get(slot / 8) == Some(&0xff) {
            (slot, free) = (slot + 8, 0);
            continue;
        }
        free = if bit_lsb(bitmap, slot) { 0 } else { free + 1 };
        slot += 1;
        if free == wanted {
            return Some(slot - wanted);
        }
    }
    None
}

fn slots_of(name: &[u8]) -> usize {
    name.len().div_ceil(DENTRY_NAME_BYTES)
}

fn raw(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    }
}

impl Change<'_> {
    /// Adds `.` and `..` to a new directory.
    pub(crate) fn fill_dir(&self, dir: Nid, above: Nid) -> Result<()> {
        self.reserve(dir, PageNo(0))?;
        self.change_page(dir, PageNo(0), |block| {
            let mut slots = SlotsMut::of_block(block);
            slots.put(0, b".", dir, FileKind::Directory);
            slots.put(1, b"..", above, FileKind::Directory);
        })?;
        self.change_inode(dir, |block| {
            block.depth.set(1);
            block.size_bytes.set(PAGE);
        })
    }

    /// Adds a name that does not exist.
    pub(crate) fn add_entry(&self, dir: Nid, name: &[u8], nid: Nid, kind: FileKind) -> Result<()> {
        let inode = self.inode(dir)?;
        inode.check_readable()?;
        if inode.has(inline_flag::DENTRY) {
            let added = self.change_inode(dir, |block| {
                SlotsMut::inline(&inode, block).is_some_and(|mut slots| slots.add(name, nid, kind))
            })?;
            if added {
                return Ok(());
            }
            self.spread(&inode)?;
        }
        self.add_to_blocks(dir, name, nid, kind)
    }

    fn add_to_blocks(&self, dir: Nid, name: &[u8], nid: Nid, kind: FileKind) -> Result<()> {
        let inode = self.inode(dir)?;
        let (level, page) = self.place_for(&inode, name)?;
        let (_, is_new) = self.reserve(dir, page)?;
        if is_new {
            self.pages.put(dir, page, Box::new([0; BLOCK_BYTES]));
        }
        let added = std::cell::Cell::new(false);
        self.change_page(dir, page, |block| added.set(SlotsMut::of_block(block).add(name, nid, kind)))?;
        if !added.get() {
            return Err(Error::Corrupt(format!("directory {}: page {} has no room left", dir.0, page.0)));
        }
        let (depth, size) = (levels(&inode)?.max(level + 1), (page.0 + 1) * PAGE);
        self.change_inode(dir, |block| {
            block.depth.set(depth);
            block.size_bytes.set(block.size_bytes.get().max(size));
        })
    }

    /// Moves inline entries to blocks, which were made before.
    fn spread(&self, inode: &Inode) -> Result<()> {
        let (dir, spread) = (inode.nid, Spread::of(inode)?);
        self.clear_inline(inode, inline_flag::DENTRY)?;
        if !inode.has(inline_flag::XATTR) {
            let from = INODE_POINTERS - inode.inline_xattr_slots();
            self.change_inode(dir, |block| block.addr[from..].fill(U32::new(0)))?;
        }
        let pages = spread.blocks.last_key_value().map_or(0, |(page, _)| page + 1);
        for (page, block) in spread.blocks {
            self.reserve(dir, PageNo(page))?;
            self.pages.put(dir, PageNo(page), block);
        }
        self.change_inode(dir, |block| {
            block.depth.set(spread.depth);
            block.size_bytes.set(pages * PAGE);
        })
    }

    /// Removes a name.
    pub(crate) fn remove_entry(&self, dir: Nid, name: &[u8]) -> Result<()> {
        self.change_entry(dir, name, |slots, at| {
            (at..at + slots_of(name)).for_each(|slot| set_bit_lsb(slots.bitmap, slot, false));
        })
    }

    /// Makes a name lead to another inode.
    pub(crate) fn point_entry(&self, dir: Nid, name: &[u8], nid: Nid, kind: FileKind) -> Result<()> {
        self.change_entry(dir, name, |slots, at| {
            (slots.entries[at].ino, slots.entries[at].kind) = (U32::new(nid.0), raw(kind));
        })
    }

    fn change_entry(&self, dir: Nid, name: &[u8], change: impl Fn(&mut SlotsMut<'_>, usize)) -> Result<()> {
        let inode = self.inode(dir)?;
        let found = self.find(&inode, name)?.ok_or(Error::NotFound)?;
        let slot = found.place as usize % DENTRY_SLOTS;
        match found.page {
            Some(page) => self.change_page(dir, page, |block| change(&mut SlotsMut::of_block(block), slot)),
            None => self.change_inode(dir, |block| {
                if let Some(mut slots) = SlotsMut::inline(&inode, block) {
                    change(&mut slots, slot);
                }
            }),
        }
    }
}

/// Inline entries, as blocks of a directory. If level 0 has one bucket, they keep their places, for listings
/// under way: that bucket is the first blocks for every hash. If level 0 has more buckets, entries go where
/// their hash leads, to places behind all inline places. A listing under way may then show an entry twice,
/// but misses none.
struct Spread {
    blocks: BTreeMap<u64, Box<Block>>,
    depth: u32,
}

impl Spread {
    fn of(inode: &Inode) -> Result<Spread> {
        let (mut above, mut all) = (inode.nid, Vec::new());
        let mut damage = Damage::up_to(1);
        Slots::inline(inode)?.list(0, &mut damage, &mut |entry| {
            match entry.name {
                b"." => {}
                b".." => above = entry.nid,
                _ => all.push(entry),
            }
            Ok(false)
        })?;
        damage.end()?;
        // The first two slots are those of `.` and `..`.
        let keeps_places = inode.block().dir_level == 0 && all.iter().all(|entry| entry.place >= 2);
        let mut spread = Spread { blocks: BTreeMap::new(), depth: 1 };
        let mut first = Box::new([0; BLOCK_BYTES]);
        let mut slots = SlotsMut::of_block(&mut first);
        slots.put(0, b".", inode.nid, FileKind::Directory);
        slots.put(1, b"..", above, FileKind::Directory);
        if keeps_places {
            for entry in &all {
                slots.put(entry.place as usize, entry.name, entry.nid, entry.kind);
            }
        }
        spread.blocks.insert(0, first);
        for entry in all.iter().filter(|_| !keeps_places) {
            spread.add(inode, PageNo(1), entry.name, (entry.nid, entry.kind))?;
        }
        Ok(spread)
    }

    /// Adds a name, but not to a block before `from`.
    fn add(&mut self, inode: &Inode, from: PageNo, name: &[u8], (nid, kind): (Nid, FileKind)) -> Result<()> {
        for (level, page) in places(inode, name).filter(|(_, page)| page.0 >= from.0) {
            let block = self.blocks.entry(page.0).or_insert_with(|| Box::new([0; BLOCK_BYTES]));
            if SlotsMut::of_block(block).add(name, nid, kind) {
                self.depth = self.depth.max(level + 1);
                return Ok(());
            }
        }
        Err(Error::NoSpace)
    }
}

/// The blocks that may hold a name, by level.
fn places(inode: &Inode, name: &[u8]) -> impl Iterator<Item = (u32, PageNo)> {
    let (hash, dir_level) = (hash(name), inode.block().dir_level);
    (0..LEVELS_MAX).flat_map(move |level| {
        let (start, blocks) = bucket(hash, level, dir_level);
        (start..start + blocks).map(move |page| (level, PageNo(page)))
    })
}

impl Media {
    /// The block for a new name: the first of its blocks that has room, or is a hole.
    fn place_for(&self, inode: &Inode, name: &[u8]) -> Result<(u32, PageNo)> {
        for (level, page) in places(inode, name) {
            inode.check_room_to(page.0 + 1).map_err(|_| Error::NoSpace)?;
            let has_room = self.with_page(inode, page, |block| {
                let slots = Slots::of_block(inode.nid, page, zerocopy::transmute_ref!(block));
                slots.room(slots_of(name)).is_some()
            })?;
            if has_room != Some(false) {
                return Ok((level, page));
            }
        }
        Err(Error::NoSpace)
    }

    /// What it takes to add a name. Inline entries move to blocks if there is no more room for them.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if all blocks of the name are full.
    pub(crate) fn need_to_add(&self, inode: &Inode, name: &[u8]) -> Result<Need> {
        inode.check_readable()?;
        if !inode.has(inline_flag::DENTRY) {
            let (_, page) = self.place_for(inode, name)?;
            return self.need_of_pages(inode, page.0..page.0 + 1);
        }
        let slots = Slots::inline(inode)?;
        if slots.room(slots_of(name)).is_some() {
            return Ok(Need::NONE);
        }
        let mut spread = Spread::of(inode)?;
        spread.add(inode, PageNo(0), name, (Nid::NONE, FileKind::Regular))?;
        let mut lacking = Lacking::default();
        for page in spread.blocks.keys() {
            self.add_lacking(inode, *page..page + 1, &mut lacking)?;
        }
        Ok(lacking.need() + Need { dirty: 2 * spread.blocks.len() as u64, ..Need::NONE })
    }

    /// Returns true if it has no names but `.` and `..`.
    pub(crate) fn is_empty_dir(&self, dir: &Inode) -> Result<bool> {
        let mut empty = true;
        self.list(dir, 0, &mut |entry| {
            empty &= entry.is_dots();
            Ok(!empty)
        })?;
        Ok(empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_the_first_run_of_free_slots_that_is_long_enough() {
        let mut x = 1u64;
        for _ in 0..2000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let slots = 1 + (x >> 40) as usize % 40;
            let ors = (x >> 60) as u32 % 4;
            let mut bitmap: Vec<u8> = (0..slots.div_ceil(8)).map(|i| (x >> (7 * i)) as u8).collect();
            bitmap.iter_mut().for_each(|byte| (0..ors).for_each(|n| *byte |= byte.rotate_left(n)));
            for wanted in 1..=5 {
                let free = |at: usize| (at..at + wanted).all(|slot| !bit_lsb(&bitmap, slot));
                let first = (0..(slots + 1).saturating_sub(wanted)).find(|at| free(*at));
                assert_eq!(room(&bitmap, slots, wanted), first, "{wanted} of {slots}: {bitmap:x?}");
            }
        }
    }
}
