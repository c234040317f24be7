//! Structures of an image, changed, with the checksums of its checkpoint made right again.
#![allow(dead_code, reason = "not every suite uses all of it")]

use heddle_f2fs::checksum::{SEED, checksum};
use heddle_f2fs::format::{
    CheckpointHead, InodeBlock, JOURNAL_BYTES, NatJournal, NodeBlock, OrphanBlock, SummaryBlock, Superblock,
    checkpoint_flag,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

const BLOCK: usize = 4096;

/// Nodes with a larger one are newer: a checkpoint inverts the highest bit.
pub fn version_of(node: &NodeBlock) -> u32 {
    node.footer.checkpoint_version.get() as u32 & 0x7fff_ffff
}

pub struct Forge {
    file: File,
}

impl Forge {
    pub fn of(path: &Path) -> Forge {
        Forge { file: File::options().read(true).write(true).open(path).unwrap() }
    }

    pub fn block(&self, addr: u32) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        self.file.read_exact_at(&mut block, u64::from(addr) * BLOCK as u64).unwrap();
        block
    }

    pub fn change(&self, addr: u32, change: impl FnOnce(&mut [u8])) {
        let mut block = self.block(addr);
        change(&mut block);
        self.file.write_all_at(&block, u64::from(addr) * BLOCK as u64).unwrap();
    }

    pub fn superblock(&self) -> Superblock {
        Superblock::read_from_prefix(&self.block(0)[1024..]).unwrap().0
    }

    /// The pack that counts.
    pub fn pack(&self) -> (u32, CheckpointHead) {
        let first = self.superblock().checkpoint.get();
        let packs = [first, first + 512]
            .map(|start| (start, CheckpointHead::read_from_prefix(&self.block(start)).unwrap().0));
        packs.into_iter().max_by_key(|(_, head)| head.version.get()).unwrap()
    }

    /// Head and tail.
    pub fn head(&self, change: impl Fn(&mut CheckpointHead)) {
        self.sealed(|block| change(CheckpointHead::mut_from_prefix(block).unwrap().0));
    }

    /// The same as bytes; the checksum is where it was.
    pub fn sealed(&self, change: impl Fn(&mut [u8])) {
        let (start, head) = self.pack();
        for half in [start, start + head.pack_blocks.get() - 1] {
            self.change(half, |block| {
                change(block);
                let at = head.checksum_offset.get() as usize;
                let crc = checksum(SEED, &block[..at]);
                let crc = if at + 4 < BLOCK { checksum(crc, &block[at + 4..]) } else { crc };
                block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            });
        }
    }

    pub fn nat_journal(&self, change: impl FnOnce(&mut NatJournal)) {
        let (start, head) = self.pack();
        let is_compact = head.flags.get() & checkpoint_flag::COMPACT_SUMMARIES != 0;
        let at = if is_compact { 0 } else { std::mem::offset_of!(SummaryBlock, journal) };
        self.change(start + head.summaries_start.get(), |block| {
            change(NatJournal::mut_from_bytes(&mut block[at..at + JOURNAL_BYTES]).unwrap());
        });
    }

    pub fn orphans(&self, change: impl FnOnce(&mut OrphanBlock)) {
        let (start, _) = self.pack();
        self.change(start + 1 + self.superblock().checkpoint_payload.get(), |block| {
            change(OrphanBlock::mut_from_bytes(block).unwrap());
        });
    }

    /// Blocks of the main area that say to be nodes of an inode.
    pub fn nodes_of(&self, ino: u32) -> Vec<(u32, NodeBlock)> {
        let superblock = self.superblock();
        let main = superblock.main.get()..superblock.main.get() + 512 * superblock.segments_main.get();
        let node = |addr: u32| (addr, NodeBlock::read_from_bytes(&self.block(addr)).unwrap());
        main.map(node).filter(|(_, node)| node.footer.ino.get() == ino).collect()
    }

    /// All copies of an inode that are there.
    pub fn inode(&self, ino: u32, change: impl Fn(&mut InodeBlock)) {
        let nodes = self.nodes_of(ino);
        let inodes: Vec<u32> = nodes
            .into_iter()
            .filter(|(_, node)| node.footer.nid.get() == ino)
            .map(|(addr, _)| addr)
            .collect();
        assert!(!inodes.is_empty());
        for addr in inodes {
            self.change(addr, |block| change(InodeBlock::mut_from_bytes(block).unwrap()));
        }
    }

    /// The newest node of an inode that is none itself.
    pub fn newest_node_of(&self, ino: u32, change: impl FnOnce(&mut NodeBlock)) {
        let nodes = self.nodes_of(ino).into_iter().filter(|(_, node)| node.footer.nid.get() != ino);
        let newest = nodes.max_by_key(|(addr, node)| (version_of(node), *addr));
        let (addr, mut node) = newest.unwrap();
        change(&mut node);
        self.change(addr, |block| block.copy_from_slice(node.as_bytes()));
    }
}
