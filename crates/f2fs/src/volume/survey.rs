//! What is in an image: every inode that a name leads to, and in how many pieces its bytes lie.
//!
//! Names may lead in circles, and pointers anywhere: each inode is looked at once, and no more blocks are counted than the main area has.

use crate::format::SEGMENT_BLOCKS;
use crate::ids::{BlockAddr, Nid, PageNo};
use crate::image::Media;
use crate::inode::{Inode, ROOT};
use crate::mounted::F2fs;
use heddle_vfs::{Error, FileKind, Result};
use std::collections::HashSet;

/// What a walk from the root finds.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// By number.
    pub inodes: Vec<Surveyed>,
    /// What could not be read, in words.
    pub problems: Vec<String>,
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
        let mut survey = Survey::default();
        let mut blocks_left = u64::from(self.media.geometry.main_segments) * u64::from(SEGMENT_BLOCKS);
        let mut seen = HashSet::from([ROOT]);
        let mut next = vec![ROOT];
        while let Some(nid) = next.pop() {
            let looked = self.media.inode(nid).and_then(|inode| {
                survey.inodes.push(self.media.surveyed(&inode, &mut blocks_left)?);
                self.media.add_names(&inode, &mut seen, &mut next)
            });
            if let Err(error) = looked {
                survey.problems.push(format!("inode {}: {error}", nid.0));
            }
        }
        survey.inodes.sort_unstable_by_key(|inode| inode.nid);
        survey
    }
}

impl Media {
    fn surveyed(&self, inode: &Inode, blocks_left: &mut u64) -> Result<Surveyed> {
        let (kind, links) = (inode.kind, inode.block().links.get());
        let mut found =
            Surveyed { nid: inode.nid, kind, links, size_bytes: inode.size_bytes, blocks: 0, extents: 0 };
        let too_many = || Error::Corrupt("files lead to more blocks than there are".into());
        let (mut page, mut behind) = (inode.has_pointers().then_some(0_u64), BlockAddr::NULL);
        while let Some(at) = page.filter(|_| inode.is_compressed()) {
            let (is_block, pages) = self.stretch(inode, PageNo(at))?;
            if is_block {
                *blocks_left = blocks_left.checked_sub(pages).ok_or_else(too_many)?;
                found.blocks += pages;
                found.extents += 1;
            }
            page = at.checked_add(pages);
        }
        while let Some(at) = page {
            let run = self.run(inode, PageNo(at))?;
            if run.addr.is_block() {
                *blocks_left = blocks_left.checked_sub(run.pages).ok_or_else(too_many)?;
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

    /// What the names in a directory lead to, and was not seen yet, comes next.
    fn add_names(&self, dir: &Inode, seen: &mut HashSet<Nid>, next: &mut Vec<Nid>) -> Result<()> {
        if dir.kind != FileKind::Directory {
            return Ok(());
        }
        self.list(dir, 0, &mut |entry| {
            if !entry.is_dots() && seen.insert(entry.nid) {
                next.push(entry.nid);
            }
            Ok(false)
        })
    }
}
