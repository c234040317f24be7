//! The parts of an open image, and its two basic queries: an inode by number, and the position of a page.

use crate::device::Device;
use crate::format::{BLOCK_BYTES, Block, NodeBlock};
use crate::ids::{BlockAddr, Nid, PageNo};
use crate::inode::Inode;
use crate::node::block_map::route;
use crate::node::{Nodes, pointers_of};
use crate::pages::dirty_pages::Pages;
use crate::space::Space;
use crate::superblock::Geometry;
use heddle_vfs::{Error, FileKind, Result};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use zerocopy::little_endian::U32;

/// An open image.
pub(crate) struct Media {
    pub(crate) device: Device,
    pub(crate) geometry: Geometry,
    pub(crate) features: u32,
    pub(crate) nodes: Nodes,
    /// Pages that are newer than the blocks of their pointers.
    pub(crate) pages: Pages,
    /// Present if it is open for writing.
    pub(crate) space: Option<Space>,
    /// Names that are newer than the checkpoint, by directory.
    pub(crate) names: HashMap<Nid, BTreeMap<Vec<u8>, (Nid, FileKind)>>,
}

/// Consecutive pages of a file in consecutive blocks, or all of them without a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// Block of the first page.
    pub(crate) addr: BlockAddr,
    pub(crate) pages: u64,
}

/// The node that holds a pointer.
enum Holder {
    Inode,
    Node(Arc<NodeBlock>),
}

impl Holder {
    fn pointers<'a>(&'a self, inode: &'a Inode) -> &'a [U32] {
        match self {
            Holder::Inode => &inode.block().addr[inode.first_pointer()..][..inode.pointers()],
            Holder::Node(node) => &pointers_of(node).pointers,
        }
    }
}

/// The position of a page's pointer.
enum Pointer {
    /// The page has none, and neither have this many pages from it on.
    Hole(u64),
    /// In this slot.
    At(Holder, usize),
}

impl Media {
    /// The inode of this number.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is none, [`Error::Corrupt`] if it is inconsistent.
    pub(crate) fn inode(&self, nid: Nid) -> Result<Inode> {
        let node = self.nodes.inode(&self.device, &self.geometry, nid)?.ok_or(Error::Stale)?;
        Inode::of(node, self.features)
    }

    /// The block of a page, and the number of pages from it on that are in consecutive blocks; at least 1. A hole
    /// is a run, too.
    pub(crate) fn run_of_blocks(&self, inode: &Inode, page: PageNo) -> Result<Run> {
        match self.pointer(inode, page)? {
            Pointer::Hole(pages) => Ok(Run { addr: BlockAddr::NULL, pages }),
            Pointer::At(node, slot) => self.run_of(inode.nid, &node.pointers(inode)[slot..]),
        }
    }

    /// Whether the page has a block, and the number of pages from it on with the same answer that one look-up
    /// shows; at least 1.
    pub(crate) fn run_of_data_or_hole(&self, inode: &Inode, page: PageNo) -> Result<(bool, u64)> {
        Ok(match self.pointer(inode, page)? {
            Pointer::Hole(pages) => (false, pages),
            Pointer::At(node, slot) => {
                let mut blocks = node.pointers(inode)[slot..].iter().map(|p| BlockAddr(p.get()).is_block());
                let first = blocks.next().unwrap_or(false);
                (first, 1 + blocks.take_while(|is_block| *is_block == first).count() as u64)
            }
        })
    }

    /// Number of pages from this one on that have neither a block nor a reserved one; 0 if the first has.
    pub(crate) fn hole_pages_from(&self, inode: &Inode, page: PageNo) -> Result<u64> {
        Ok(match self.pointer(inode, page)? {
            Pointer::Hole(pages) => pages,
            Pointer::At(node, slot) => {
                node.pointers(inode)[slot..].iter().take_while(|pointer| pointer.get() == 0).count() as u64
            }
        })
    }

    /// Calls `look` with a page's bytes; `None`: a hole. The caller holds the lock of the inode, or of the
    /// page.
    pub(crate) fn with_page<R>(
        &self,
        inode: &Inode,
        page: PageNo,
        mut look: impl FnMut(&Block) -> R,
    ) -> Result<Option<R>> {
        if let Some(seen) = self.pages.with_page_in_memory(inode.nid, page, &mut look) {
            return Ok(Some(seen));
        }
        match self.run_of_blocks(inode, page)?.addr {
            BlockAddr::NULL => Ok(None),
            BlockAddr::NEW => Ok(Some(look(&[0; BLOCK_BYTES]))),
            addr => {
                let block = self.device.block(addr)?;
                let seen = look(&block);
                self.pages.cache(inode.nid, page, block);
                Ok(Some(seen))
            }
        }
    }

    /// A copy of a page, otherwise as [`Media::with_page`].
    pub(crate) fn page(&self, inode: &Inode, page: PageNo) -> Result<Option<Box<Block>>> {
        self.with_page(inode, page, |block| Box::new(*block))
    }

    /// State that only a writer has.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub(crate) fn space(&self) -> Result<&Space> {
        self.space.as_ref().ok_or(Error::ReadOnly)
    }

    /// The pointer of a page.
    fn pointer(&self, inode: &Inode, page: PageNo) -> Result<Pointer> {
        let Some(route) = route(page, inode.pointers()) else { return Ok(Pointer::Hole(u64::MAX)) };
        let Some(root) = route.root else { return Ok(Pointer::At(Holder::Inode, route.slot)) };
        let mut nid = Nid(inode.block().nid[root].get());
        for (level, index) in route.steps().iter().enumerate() {
            if nid == Nid::NONE {
                return Ok(Pointer::Hole(route.pages_left_under(level)));
            }
            let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
            nid = Nid(pointers_of(&node).pointers[*index].get());
        }
        if nid == Nid::NONE {
            return Ok(Pointer::Hole(route.pages_left_under(route.steps().len())));
        }
        let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
        Ok(Pointer::At(Holder::Node(node), route.slot))
    }

    /// The run that the first of these pointers begins.
    fn run_of(&self, nid: Nid, pointers: &[U32]) -> Result<Run> {
        let addr = BlockAddr(pointers.first().map_or(0, |pointer| pointer.get()));
        let wrong = |what: &str| Err(Error::Corrupt(format!("inode {}: a page {what}", nid.0)));
        if addr == BlockAddr::COMPRESSED {
            return wrong("is of a compressed cluster, and the file is not compressed");
        }
        if addr.is_block() && !self.geometry.in_main(addr) {
            return wrong(&format!("is at block {}, outside the main area", addr.0));
        }
        let follows = |(n, pointer): (usize, &U32)| {
            let expected = if addr.is_block() { addr.plus(n as u32) } else { addr };
            BlockAddr(pointer.get()) == expected && (!addr.is_block() || self.geometry.in_main(expected))
        };
        let pages = pointers.iter().enumerate().take_while(|next| follows(*next)).count() as u64;
        Ok(Run { addr, pages: pages.max(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounted::F2fs;

    #[test]
    fn a_run_ends_with_its_blocks_its_hole_or_the_main_area() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = place.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
        crate::make_image(&path, "", &|_, _| ()).unwrap();
        let media = F2fs::open(&path).unwrap().media;
        let main = media.geometry.main.0;
        let last = main + media.geometry.main_segments * 512 - 1;
        let (hole, new, mark) = (0, u32::MAX, u32::MAX - 1);
        let run = |pointers: &[u32]| {
            let pointers: Vec<U32> = pointers.iter().map(|pointer| U32::new(*pointer)).collect();
            media.run_of(Nid(9), &pointers).map(|run| (run.addr.0, run.pages))
        };
        let cases: [(&[u32], u32, u64); 11] = [
            (&[main, main + 1, main + 2], main, 3),
            (&[main, main + 1, main + 3], main, 2),
            (&[main, hole], main, 1),
            (&[main + 1, main], main + 1, 1),
            (&[hole, hole, hole, main], hole, 3),
            (&[hole, new], hole, 1),
            (&[new, new, hole], new, 2),
            (&[last - 1, last, last + 1], last - 1, 2),
            (&[last, last + 1], last, 1),
            (&[last, mark], last, 1),
            (&[], hole, 1),
        ];
        for (pointers, addr, pages) in cases {
            assert_eq!(run(pointers), Ok((addr, pages)), "{pointers:?}");
        }
        for wrong in [main - 1, last + 1, 1, mark - 1] {
            let Err(Error::Corrupt(why)) = run(&[wrong]) else { panic!("{wrong}") };
            assert_eq!(why, format!("inode 9: a page is at block {wrong}, outside the main area"));
        }
        let Err(Error::Corrupt(why)) = run(&[mark]) else { panic!("a mark is no block") };
        assert!(why.contains("compressed cluster"), "{why}");
    }
}
