//! The content of an image: every inode that a name leads to, its number of extents, and all damage for which calls would fail.
//!
//! The functions that calls use find this damage: the survey reads inodes, nodes and attributes through them, and looks up each name of a
//! directory that it lists. It finds further damage by counting: two pointers to one block, blocks in use that are free in the SIT, and wrong
//! link counts.
//!
//! Names may form cycles, and pointers may have any value. So each inode is read once, and no more blocks are counted than the main area has.
//! The survey takes memory for a bit a block, some 20 bytes an inode, and the names of directories.

mod blocks;
pub(crate) mod paths;
mod walk;

use crate::ids::{BlockAddr, Nid, PageNo};
use crate::image::Media;
use crate::inode::Inode;
use crate::mounted::F2fs;
use blocks::{BadReferences, ReferencedBlocks};
use heddle_vfs::{Error, FileKind, Result};
use walk::Walk;

/// What a walk from the root finds.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// By number.
    pub inodes: Vec<Surveyed>,
    /// What a mount would refuse, or could not serve: a line each, with the path where that is known.
    pub problems: Vec<String>,
    /// Inodes that are not read, and not wrong: encrypted and compressed ones, directories that ignore case.
    pub unread: u64,
}

/// An inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Surveyed {
    /// Its number on the media: the root's is 3.
    pub nid: Nid,
    /// What it is.
    pub kind: FileKind,
    /// Names that it says to have.
    pub links: u32,
    /// As stat(2) tells.
    pub size_bytes: u64,
    /// Blocks of its content: neither nodes nor what is reserved only. Of a compressed file those that it has, not what compression saved.
    pub blocks: u64,
    /// Pieces of the device that these are.
    pub extents: u64,
}

impl F2fs {
    /// Looks at all that names lead to: every inode and every node of them is read. Of what is being changed it finds this or that.
    pub fn survey(&self) -> Survey {
        let _inside = self.inside();
        let mut inodes = Vec::new();
        let found = Walk::of(self).run(&mut |inode| inodes.push(inode));
        inodes.sort_unstable_by_key(|inode| inode.nid);
        Survey { inodes, ..found }
    }

    /// The same, keeping no inodes. `progress` is told how many it has seen, and how many there should be.
    pub fn examine(&self, progress: &mut dyn FnMut(u64, u64)) -> Survey {
        let _inside = self.inside();
        let (all, mut seen) = (u64::from(self.info().inodes), 0);
        Walk::of(self).run(&mut |_| {
            seen += 1;
            progress(seen, all.max(seen));
        })
    }
}

impl Media {
    /// Counts what an inode leads to. Blocks of compressed files are counted only: which pointers are blocks their clusters say.
    fn surveyed(
        &self,
        inode: &Inode,
        referenced: &mut ReferencedBlocks<'_>,
        bad: &mut BadReferences,
    ) -> Result<Surveyed> {
        let (kind, links) = (inode.kind, inode.block().links.get());
        let mut found =
            Surveyed { nid: inode.nid, kind, links, size_bytes: inode.size_bytes, blocks: 0, extents: 0 };
        let too_many = || Error::Corrupt("files lead to more blocks than there are".into());
        let (mut page, mut behind) = (inode.has_pointers().then_some(0_u64), BlockAddr::NULL);
        while let Some(at) = page.filter(|_| inode.is_compressed()) {
            let (is_block, pages) = self.run_of_data_or_hole(inode, PageNo(at))?;
            if is_block {
                referenced.count(pages).ok_or_else(too_many)?;
                found.blocks += pages;
                found.extents += 1;
            }
            page = at.checked_add(pages);
        }
        while let Some(at) = page {
            let run = self.run_of_blocks(inode, PageNo(at))?;
            if run.addr.is_block() {
                referenced.count(run.pages).ok_or_else(too_many)?;
                referenced.refer(run.addr, run.pages, bad);
                found.blocks += run.pages;
                found.extents += u64::from(run.addr != behind);
                behind = run.addr.plus(run.pages as u32);
            } else {
                behind = BlockAddr::NULL;
            }
            page = at.checked_add(run.pages);
        }
        Ok(found)
    }
}
