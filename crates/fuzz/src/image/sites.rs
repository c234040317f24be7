//! Where an image has something that can be forged or damaged: read with the engine's own formats.

use heddle_nvmfs::format::blob::{self, Kind};
use heddle_nvmfs::format::extent_list;
use heddle_nvmfs::format::inode::{
    CHUNK_INODES, FoundInode, HEAD_BLOCK_WORD, HEADS_INLINE, InodeBase, TAIL_WORD,
};
use heddle_nvmfs::format::layout::{Layout, inode_pos};
use heddle_nvmfs::format::page::{PageHeader, SLOTS, next_pos, slot_pos};
use heddle_nvmfs::format::pointer::{self, PointerLocation, Target};
use heddle_nvmfs::format::record::{Blocks, FoundRecord, Record, parse};
use heddle_nvmfs::format::superblock::{FoundSuperblock, SUPERBLOCK_BYTES, Superblock};
use heddle_nvmfs::ids::{BlockNo, InodeId};
use heddle_pmem::{BLOCK_BYTES, Pos, Region};
use heddle_vfs::Ino;
use std::collections::HashSet;

/// The owner of the inode directory's pointers.
const DIRECTORY: InodeId = InodeId { ino: Ino(0), generation: 0 };

/// A structure.
#[derive(Clone, Copy, Debug)]
pub enum Site {
    /// A superblock.
    Superblock(BlockNo),
    /// First line of an inode's slot.
    Inode(Pos, Ino),
    /// A pointer, set or not.
    Pointer(Pos, InodeId, PointerLocation),
    /// A tail.
    Tail(Pos, InodeId),
    /// Header of a log page.
    Page(BlockNo),
    /// A record: page, slot, whose.
    Record(BlockNo, u32, InodeId),
    /// First slot of a page that was never written.
    Blank(BlockNo, u32, InodeId),
    /// A block of a blob.
    Blob(BlockNo, InodeId, Kind),
    /// A block of an extent list.
    List(BlockNo, InodeId),
    /// A block of a file.
    Data(BlockNo),
}

/// All of them.
pub struct Sites {
    /// Of all checksums.
    pub seed: u32,
    /// Where things are.
    pub layout: Layout,
    /// The structures.
    pub all: Vec<Site>,
    pages: HashSet<BlockNo>,
}

impl Sites {
    /// Of a sound image.
    pub fn of(region: &Region) -> Option<Sites> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        region.read(Pos(0), &mut bytes);
        let FoundSuperblock::Whole(superblock) = Superblock::decode(&bytes) else { return None };
        let layout = Layout::new(superblock.blocks_total.get());
        let mut sites = Sites { seed: superblock.seed(), layout, all: Vec::new(), pages: HashSet::new() };
        sites.all.extend([Site::Superblock(BlockNo(0)), Site::Superblock(layout.last())]);
        for n in 0..layout.chunks_max {
            let (pos, place) = (layout.chunk_pointer(n), PointerLocation::InodeChunk(n));
            sites.all.push(Site::Pointer(pos, DIRECTORY, place));
            let Target::At(block) = pointer::decode(sites.seed, DIRECTORY, place, region.load_u64(pos))
            else {
                // One unused pointer is as good as all.
                break;
            };
            for index in 0..CHUNK_INODES {
                sites.add_inode(region, inode_pos(block, index), Ino(n * CHUNK_INODES + index));
            }
        }
        Some(sites)
    }

    fn add_inode(&mut self, region: &Region, pos: Pos, ino: Ino) {
        let FoundInode::Whole(base) = InodeBase::decode(self.seed, ino, &region.line(pos)) else { return };
        self.all.push(Site::Inode(pos, ino));
        let word = |n: u64| pos.plus(64 + 8 * n);
        for n in 0..HEADS_INLINE {
            let (at, place) = (word(u64::from(n)), PointerLocation::Head(n));
            self.all.push(Site::Pointer(at, base.id, place));
            match pointer::decode(self.seed, base.id, place, region.load_u64(at)) {
                Target::At(block) => self.add_chain(region, base.id, block),
                _ => break,
            }
        }
        self.all.push(Site::Pointer(word(HEAD_BLOCK_WORD), base.id, PointerLocation::HeadBlock));
        self.all.push(Site::Tail(word(TAIL_WORD), base.id));
    }

    fn add_chain(&mut self, region: &Region, owner: InodeId, first: BlockNo) {
        let mut next = Some(first);
        while let Some(block) = next.filter(|block| self.pages.insert(*block)) {
            self.all.push(Site::Page(block));
            self.all.push(Site::Pointer(next_pos(block), owner, PointerLocation::Next(block)));
            let Some(header) = PageHeader::decode(self.seed, &region.line(block.pos())) else { return };
            let seed = header.record_seed(self.seed);
            let mut slot = 1;
            while slot <= SLOTS {
                let line_at =
                    |slot: u32| if slot <= SLOTS { region.line(slot_pos(block, slot)) } else { [0; 8] };
                match parse(seed, owner, slot, line_at) {
                    FoundRecord::Whole { record, slots, .. } => {
                        self.all.push(Site::Record(block, slot, owner));
                        self.add_named(region, owner, &record);
                        slot += slots;
                    }
                    FoundRecord::Blank => {
                        self.all.push(Site::Blank(block, slot, owner));
                        break;
                    }
                    FoundRecord::Torn | FoundRecord::Damaged => slot += 1,
                }
            }
            next = match pointer::decode(
                self.seed,
                owner,
                PointerLocation::Next(block),
                region.load_u64(next_pos(block)),
            ) {
                Target::At(block) => Some(block),
                _ => None,
            };
        }
    }

    /// What a record names.
    fn add_named(&mut self, region: &Region, owner: InodeId, record: &Record) {
        match record {
            Record::Write { blocks: Blocks::At(block) | Blocks::Unwritten(block), .. } => {
                self.all.push(Site::Data(*block));
            }
            Record::Write { blocks: Blocks::List(block), .. } => {
                let mut next = Some(*block);
                while let Some(at) = next.filter(|at| self.pages.insert(*at)) {
                    self.all.push(Site::List(at, owner));
                    let word = |i: usize| region.load_u64(at.pos().plus(8 * i as u64));
                    next = extent_list::decode(self.seed, owner, at, word).and_then(|read| read.1);
                }
            }
            Record::Xattrs { blob: Some(blob), .. } => self.add_blob(region, owner, Kind::Xattrs, *blob),
            Record::Remap { blob: Some(blob), .. } => self.add_blob(region, owner, Kind::Map, *blob),
            _ => {}
        }
    }

    fn add_blob(&mut self, region: &Region, owner: InodeId, kind: Kind, first: BlockNo) {
        let mut next = Some(first);
        while let Some(at) = next.filter(|at| self.pages.insert(*at)) {
            self.all.push(Site::Blob(at, owner, kind));
            let word = |i: usize| region.load_u64(at.pos().plus(8 * i as u64));
            next = blob::decode(self.seed, owner, kind, at, word).and_then(|read| read.1);
        }
    }

    /// Position and length of what a site takes.
    pub fn span(&self, site: Site) -> (Pos, u64) {
        let block = BLOCK_BYTES as u64;
        match site {
            Site::Superblock(at) => (at.pos(), SUPERBLOCK_BYTES as u64),
            Site::Inode(pos, _) => (pos, 64),
            Site::Pointer(pos, ..) | Site::Tail(pos, _) => (pos, 8),
            Site::Page(at) => (at.pos(), 56),
            Site::Record(at, slot, _) | Site::Blank(at, slot, _) => (slot_pos(at, slot), 64),
            Site::Blob(at, ..) | Site::List(at, _) | Site::Data(at) => (at.pos(), block),
        }
    }
}
