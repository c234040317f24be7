//! The content of an image: every inode that a name leads to, its number of extents, and all damage for which calls would fail.
//!
//! The functions that calls use find this damage: the survey reads inodes, nodes and attributes through them, and looks up each name of a
//! directory that it lists. It finds further damage by counting: two pointers to one block, blocks in use that are free in the SIT, and
//! wrong link counts.
//!
//! Names may form cycles, and pointers may have any value. So each inode is read once, and no more blocks are counted than the main area
//! has. The survey takes memory for a bit a block, some 20 bytes an inode, and the names of directories.

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

/// The findings of a walk from the root.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// By number.
    pub inodes: Vec<Surveyed>,
    /// Damage for which a mount or its calls would fail: a line each, with the path if it is known.
    pub problems: Vec<String>,
    /// Number of inodes that are not damaged, and whose content is not read: encrypted and compressed ones, directories that ignore case.
    pub unread: u64,
}

/// An inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Surveyed {
    /// Its number on the media: the root's is 3.
    pub nid: Nid,
    /// Its type.
    pub kind: FileKind,
    /// The link count in the inode.
    pub links: u32,
    /// As in stat(2).
    pub size_bytes: u64,
    /// Blocks of its content, without nodes and reserved blocks. In a compressed file the blocks that exist; those that compression saved
    /// do not count.
    pub blocks: u64,
    /// Number of extents that these blocks form on the device.
    pub extents: u64,
}

impl F2fs {
    /// Reads every inode to which a name leads, and every node of it. During a change by another thread it may find the old or the new
    /// state.
    pub fn survey(&self) -> Survey {
        let _inside = self.inside();
        let mut inodes = Vec::new();
        let found = Walk::of(self).run(&mut |inode| inodes.push(inode));
        inodes.sort_unstable_by_key(|inode| inode.nid);
        Survey { inodes, ..found }
    }

    /// As [`F2fs::survey`], without a list of inodes. `progress` gets the number of inodes read, and the number in the checkpoint.
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
    /// Counts the blocks of an inode, and notes references to them. Blocks of compressed files are only counted: which of their pointers
    /// are blocks depends on the cluster.
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
