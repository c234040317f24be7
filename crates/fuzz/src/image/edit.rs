//! One change to an image: a field forged, its checksum right again; or bytes damaged as media damages them.
//!
//! | byte | meaning |
//! |------|---------|
//! | 0 | how: forged, or which kind of damage |
//! | 1 | which field |
//! | 2, 3 | which site |
//! | 4 to 7 | a number: another site, a length, flags |
//! | 8 to 15 | the new value, see [`value`] |

use super::records::{forged_record, invented};
use super::sites::{Site, Sites};
use heddle_nvmfs::format::blob::{self, Kind};
use heddle_nvmfs::format::extent_list;
use heddle_nvmfs::format::inode::{FoundInode, InodeBase};
use heddle_nvmfs::format::page::{PageHeader, SLOTS, slot_pos};
use heddle_nvmfs::format::pointer;
use heddle_nvmfs::format::record::{FoundRecord, Record, Txn, parse};
use heddle_nvmfs::format::superblock::{FoundSuperblock, SUPERBLOCK_BYTES, Superblock};
use heddle_nvmfs::ids::{BlockNo, InodeId};
use heddle_pmem::{Pos, Region};
use heddle_vfs::{FileKind, Ino, Time};
use zerocopy::IntoBytes;

/// Bytes of a change in an input.
pub const EDIT_BYTES: usize = 16;

/// What a change was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edited {
    /// What is there is a lie, told with a right checksum.
    Forged,
    /// A few bits of these bytes are wrong, as of failing media.
    Damaged(Pos, u64),
    /// As above, and it may look like something that was never written.
    Erased,
    /// It was not possible.
    Not,
}

/// A change, read from an input.
pub struct Wish {
    /// Forged, or which kind of damage.
    pub how: u8,
    /// Which field.
    pub field: u8,
    site: usize,
    /// A number of any meaning.
    pub number: u32,
    /// The new value, or bits to flip.
    pub value: u64,
}

/// Makes the change that the 16 bytes mean. `forge`: it may be a lie.
pub fn edit(region: &Region, sites: &Sites, bytes: &[u8], forge: bool) -> Edited {
    let mut all = [0; EDIT_BYTES];
    let len = bytes.len().min(EDIT_BYTES);
    all[..len].copy_from_slice(&bytes[..len]);
    let number =
        |range: std::ops::Range<usize>| all[range].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let wish = Wish {
        how: all[0],
        field: all[1],
        site: number(2..4) as usize,
        number: number(4..8) as u32,
        value: number(8..16),
    };
    let site = sites.all[wish.site % sites.all.len()];
    let edited = match wish.how % 8 {
        0..5 if forge => match forged(region, sites, site, &wish) {
            Some(()) => Edited::Forged,
            None => Edited::Not,
        },
        0..7 => damage(region, sites, site, &wish),
        _ => erase(region, sites, site, &wish),
    };
    // PERSIST: nothing depends on it; stores past the cache come before the loads that follow.
    region.fence();
    edited
}

/// Flips one to three bits.
fn damage(region: &Region, sites: &Sites, site: Site, wish: &Wish) -> Edited {
    let (pos, len) = sites.span(site);
    for n in 0..=u64::from(wish.field % 3) {
        let bit = (wish.value >> (16 * n)) % (len * 8);
        let at = Pos(pos.0 + bit / 64 * 8);
        region.store_u64(at, region.load_u64(at) ^ 1 << (bit % 64));
    }
    Edited::Damaged(pos, len)
}

/// Puts zeros, a value, or another site's bytes in its place.
fn erase(region: &Region, sites: &Sites, site: Site, wish: &Wish) -> Edited {
    let (pos, len) = sites.span(site);
    let (from, other_len) = sites.span(sites.all[wish.number as usize % sites.all.len()]);
    match wish.field % 4 {
        0 => region.nt_zero(pos, len),
        1 => {
            let at = Pos(pos.0 + wish.value % len / 8 * 8);
            region.store_u64(at, 0);
        }
        2 => {
            let mut bytes = vec![0; len.min(other_len) as usize];
            region.read(from, &mut bytes);
            region.nt_write(pos, &bytes);
        }
        _ => {
            let bytes: Vec<u8> = (0..len).map(|i| (wish.value >> (i % 8 * 8)) as u8 ^ i as u8).collect();
            region.nt_write(pos, &bytes);
        }
    }
    Edited::Erased
}

/// Numbers that are often at an edge of something.
pub fn value(sites: &Sites, wish: &Wish, bits: u32) -> u64 {
    let raw = wish.value >> 3;
    let value = match wish.value & 7 {
        0 => raw & 0xff,
        1 => raw,
        2 => sites.span(sites.all[raw as usize % sites.all.len()]).0.0 / 4096,
        3 => (sites.layout.last().0 + (raw & 7)).wrapping_sub(3),
        4 => 1 << (raw & 63),
        5 => (1 << (raw & 63)) - 1,
        6 => (sites.layout.data.0 + (raw & 0xff)).wrapping_sub(2),
        _ => u64::MAX - (raw & 3),
    };
    value & (u64::MAX >> (64 - bits))
}

/// The same as a block.
pub fn block_of(sites: &Sites, wish: &Wish) -> BlockNo {
    BlockNo(value(sites, wish, BlockNo::BITS))
}

fn forged(region: &Region, sites: &Sites, site: Site, wish: &Wish) -> Option<()> {
    let seed = sites.seed;
    match site {
        Site::Superblock(at) => {
            let mut bytes = [0; SUPERBLOCK_BYTES];
            region.read(at.pos(), &mut bytes);
            let FoundSuperblock::Whole(superblock) = Superblock::decode(&bytes) else { return None };
            let changed = forged_superblock(superblock, wish.field, value(sites, wish, 64));
            region.nt_write(at.pos(), changed.sealed().as_bytes());
        }
        Site::Inode(pos, ino) => {
            let FoundInode::Whole(mut base) = InodeBase::decode(seed, ino, &region.line(pos)) else {
                return None;
            };
            match wish.field % 6 {
                0 => base.kind = FileKind::from_raw(value(sites, wish, 4) as u8)?,
                1 => base.id.generation = value(sites, wish, 62),
                2 => base.perm = value(sites, wish, 12) as u16,
                3 => base.id.ino = Ino(value(sites, wish, 62)),
                4 => base.rdev = value(sites, wish, 32) as u32,
                _ => base.crtime = Time(value(sites, wish, 64) as i64),
            }
            region.nt_line(pos, &base.encode(seed));
        }
        Site::Pointer(pos, owner, place) => {
            region.store_u64(pos, pointer::encode(seed, owner, place, block_of(sites, wish)));
        }
        Site::Tail(pos, owner) => {
            let slot = 1 + u32::from(wish.field) % 64;
            region.store_u64(pos, pointer::encode_tail(seed, owner, block_of(sites, wish), slot));
        }
        Site::Page(at) => forge_page(region, sites, at, wish)?,
        Site::Record(at, slot, home) => forge_record(region, sites, (at, slot, home), wish)?,
        Site::Blank(at, slot, home) => {
            let header = PageHeader::decode(seed, &region.line(at.pos()))?;
            let record = invented(sites, home, wish);
            let txn = Txn { first: slot, slots: record.slots_in(home) };
            put_record(region, header.record_seed(seed), (at, slot, home), &record, txn, wish);
        }
        Site::Blob(at, owner, kind) => forge_blob(region, sites, (at, owner, kind), wish)?,
        Site::List(at, owner) => forge_list(region, sites, (at, owner), wish)?,
        Site::Data(_) => return None,
    }
    Some(())
}

fn words_in(region: &Region, at: BlockNo) -> impl Fn(usize) -> u64 {
    move |i| region.load_u64(at.pos().plus(8 * i as u64))
}

fn forge_blob(
    region: &Region,
    sites: &Sites,
    (at, owner, kind): (BlockNo, InodeId, Kind),
    wish: &Wish,
) -> Option<()> {
    let (mut body, mut next) = blob::decode(sites.seed, owner, kind, at, words_in(region, at))?;
    match (wish.field % 4, body.len()) {
        (0, _) => next = Some(block_of(sites, wish)).filter(|block| block.0 != 0),
        (1, 1..) => body.truncate(wish.number as usize % body.len()),
        (field, 1..) => {
            let at = wish.number as usize % body.len();
            body[at] = if field == 2 { value(sites, wish, 64) } else { body[at] ^ wish.value };
        }
        _ => return None,
    }
    put_words(region, at, &blob::encode(sites.seed, owner, kind, at, &body, next));
    Some(())
}

fn forge_list(region: &Region, sites: &Sites, (at, owner): (BlockNo, InodeId), wish: &Wish) -> Option<()> {
    let (mut extents, mut next) = extent_list::decode(sites.seed, owner, at, words_in(region, at))?;
    match (wish.field % 4, extents.len()) {
        (0, _) => next = Some(block_of(sites, wish)).filter(|block| block.0 != 0),
        (1, 1..) => extents.truncate(wish.number as usize % extents.len()),
        (field, 1..) => {
            let at = wish.number as usize % extents.len();
            match field {
                2 => extents[at].block = block_of(sites, wish),
                _ => extents[at].count = value(sites, wish, 22),
            }
        }
        _ => return None,
    }
    put_words(region, at, &extent_list::encode(sites.seed, owner, at, &extents, next));
    Some(())
}

fn put_words(region: &Region, at: BlockNo, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    region.nt_write(at.pos(), &bytes);
}

fn forged_superblock(mut superblock: Superblock, field: u8, value: u64) -> Superblock {
    match field % 9 {
        0 => superblock.sequence = value.into(),
        1 => superblock.blocks_total = value.into(),
        2 => superblock.epoch = value.into(),
        3 => superblock.inode_dir_block = value.into(),
        4 => superblock.inode_dir_pointers = value.into(),
        5 => superblock.data_block = value.into(),
        6 => superblock.variant = (value as u32).into(),
        7 => superblock.clean = (value as u32).into(),
        _ => superblock.version = (value as u32).into(),
    }
    superblock
}

/// Changes a header; with a number that is odd its records are sealed anew, so that they still belong to it.
fn forge_page(region: &Region, sites: &Sites, at: BlockNo, wish: &Wish) -> Option<()> {
    let old = PageHeader::decode(sites.seed, &region.line(at.pos()))?;
    let mut new = old;
    match wish.field % 6 {
        0 => new.owner.ino = Ino(value(sites, wish, 40)),
        1 => new.owner.generation = value(sites, wish, 62),
        2 => new.epoch = value(sites, wish, 30),
        3 => new.serial = value(sites, wish, 62),
        4 => new.chain = value(sites, wish, 32) as u32,
        _ => new.era = value(sites, wish, 62),
    }
    let mut line = new.encode(sites.seed);
    line[7] = region.load_u64(at.pos().plus(56));
    region.nt_line(at.pos(), &line);
    let seeds = [old, new].map(|header| header.record_seed(sites.seed));
    let mut slot = 1;
    while slot <= SLOTS && wish.number & 1 == 1 {
        let line_at = |slot: u32| if slot <= SLOTS { region.line(slot_pos(at, slot)) } else { [0; 8] };
        let FoundRecord::Whole { record, slots, txn, mark } = parse(seeds[0], old.owner, slot, line_at)
        else {
            break;
        };
        let mut draft = record.draft(new.owner, 1);
        for (i, line) in
            draft.seal(seeds[1], slot, txn, mark.is_some()).iter().take(slots as usize).enumerate()
        {
            region.nt_line(slot_pos(at, slot + i as u32), line);
        }
        slot += slots;
    }
    Some(())
}

fn forge_record(
    region: &Region,
    sites: &Sites,
    (at, slot, home): (BlockNo, u32, InodeId),
    wish: &Wish,
) -> Option<()> {
    let seed = PageHeader::decode(sites.seed, &region.line(at.pos()))?.record_seed(sites.seed);
    let line_at = |slot: u32| if slot <= SLOTS { region.line(slot_pos(at, slot)) } else { [0; 8] };
    let FoundRecord::Whole { record, txn, .. } = parse(seed, home, slot, line_at) else { return None };
    let record = forged_record(sites, record, wish);
    let txn = match wish.field % 16 {
        14 => Txn { first: wish.number % 64, ..txn },
        15 => Txn { slots: wish.number % 64, ..txn },
        _ => txn,
    };
    put_record(region, seed, (at, slot, home), &record, txn, wish);
    Some(())
}

fn put_record(
    region: &Region,
    seed: u32,
    (at, slot, home): (BlockNo, u32, InodeId),
    record: &Record,
    txn: Txn,
    wish: &Wish,
) {
    let mut draft = record.draft(home, 1);
    let lines = draft.seal(seed, slot, txn, wish.how & 0x80 == 0);
    for (slot, line) in (slot..=SLOTS).zip(lines) {
        region.nt_line(slot_pos(at, slot), line);
    }
}
