//! What each change needs, to the block: with too little it fails half-way, with too much it is refused where there is room.

use super::*;
use crate::format::InodeBlock;
use crate::inode::nid_of;
use crate::mounted::F2fs;
use crate::node::inode_of_mut;
use heddle_vfs::short::Short;
use heddle_vfs::{FileSystem, Handle, Ino};
use std::sync::Arc;

/// Pointers of an inode.
pub(crate) const OWN: u64 = 864;
/// Pointers of a node.
pub(crate) const NODE: u64 = NODE_POINTERS as u64;
/// Bytes that stay inline.
pub(crate) const INLINE: u64 = 3452;

/// An image that is open for writing.
pub(crate) struct Scene {
    pub(crate) fs: F2fs,
    pub(crate) place: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(96 << 20).unwrap();
        crate::make_image(&path, "", &|_, _| ()).unwrap();
        Scene { fs: F2fs::open_for_writing(&path).unwrap(), place }
    }

    /// A file of these pages and a byte for each.
    pub(crate) fn file(&self, name: &str, pages: &[Range<u64>]) -> Handle {
        let file = self.fs.new_file(Ino::ROOT, name);
        for pages in pages {
            let bytes = vec![7; ((pages.end - pages.start) * PAGE) as usize];
            self.fs.write(&file, pages.start * PAGE, &bytes).unwrap();
        }
        file
    }

    /// A file of its first pages.
    pub(crate) fn whole(&self, name: &str, pages: u64) -> Handle {
        self.file(name, std::slice::from_ref(&(0..pages)))
    }

    /// A file of so many bytes in its inode.
    pub(crate) fn inline(&self, name: &str, bytes: usize) -> Handle {
        let file = self.fs.new_file(Ino::ROOT, name);
        // As Linux makes it.
        let change = self.fs.media.set_aside(Need::NONE).unwrap();
        let nid = nid_of(file.ino).unwrap();
        change.change_inode(nid, |block| block.inline |= inline_flag::DATA).unwrap();
        drop(change);
        self.fs.write(&file, 0, &vec![7; bytes]).unwrap();
        file
    }

    pub(crate) fn inode(&self, file: &Handle) -> Inode {
        let inode = self.fs.media.inode(nid_of(file.ino).unwrap()).unwrap();
        assert_eq!((inode.pointers() as u64, inode.inline_content().len() as u64), (OWN, INLINE));
        inode
    }

    /// The inode as it would be with this change, which is not made.
    pub(crate) fn inode_as(&self, file: &Handle, change: impl FnOnce(&mut InodeBlock)) -> Inode {
        let mut node = self.inode(file).node().clone();
        change(inode_of_mut(&mut node));
        Inode::of(Arc::new(node), self.fs.media.features).unwrap()
    }

    /// The block of a page.
    pub(crate) fn addr(&self, file: &Handle, page: u64) -> BlockAddr {
        self.fs.media.run_of_blocks(&self.inode(file), PageNo(page)).unwrap().addr
    }

    /// Blocks of a file, beside its inode.
    pub(crate) fn blocks(&self, file: &Handle) -> u64 {
        self.inode(file).attr().blocks_512 / 8
    }
}

fn need(pages: u64, nodes: u64, dirty: u64) -> Result<Need> {
    Ok(Need { pages, nodes, dirty })
}

#[test]
fn a_write_needs_its_missing_pages_and_nodes() {
    let scene = Scene::new();
    let write = |file: &Handle, pages: Range<u64>| {
        scene.fs.media.need_to_write(&scene.inode(file), pages.start * PAGE, pages.end * PAGE)
    };
    let ten = scene.whole("ten", 10);
    let double = OWN + 2 * NODE + 2 * NODE * NODE;
    for (pages, needs) in [
        (0..10, need(0, 0, 0)),
        (5..12, need(2, 0, 0)),
        (OWN - 1..OWN, need(1, 0, 0)),
        (OWN - 1..OWN + 1, need(2, 1, 0)),
        (OWN + NODE - 1..OWN + NODE, need(1, 1, 0)),
        (OWN + NODE - 1..OWN + NODE + 1, need(2, 2, 0)),
        (OWN + 2 * NODE - 1..OWN + 2 * NODE + 1, need(2, 3, 0)),
        (OWN + 2 * NODE..OWN + 3 * NODE, need(NODE, 2, 0)),
        (OWN + 2 * NODE..OWN + 3 * NODE + 1, need(NODE + 1, 3, 0)),
        (double - 1..double + 1, need(2, 5, 0)),
    ] {
        assert_eq!(write(&ten, pages.clone()), needs, "{pages:?}");
    }
    let far = scene.file("far", &[0..1, OWN + 2 * NODE + 3..OWN + 2 * NODE + 4]);
    assert_eq!(write(&far, OWN + 2 * NODE..OWN + 2 * NODE + 5), need(4, 0, 0));
    assert_eq!(write(&far, OWN + 3 * NODE..OWN + 3 * NODE + 1), need(1, 1, 0), "its indirect node is there");
    let (full, empty) = (scene.inline("inline", 100), scene.inline("empty", 0));
    let bytes =
        |file: &Handle, from: u64, end: u64| scene.fs.media.need_to_write(&scene.inode(file), from, end);
    assert_eq!([0, 99].map(|from| bytes(&full, from, INLINE)), [need(0, 0, 0), need(0, 0, 0)]);
    assert_eq!(bytes(&full, 0, INLINE + 1), need(1, 0, 0));
    assert_eq!(bytes(&full, PAGE, 2 * PAGE), need(2, 0, 0), "what is inline takes one more");
    assert_eq!(bytes(&empty, PAGE, 2 * PAGE), need(1, 0, 0));
    assert_eq!(bytes(&empty, PAGE - 1, PAGE + 1), need(2, 0, 0));
}

#[test]
fn a_new_size_needs_a_page_for_what_was_inline() {
    let scene = Scene::new();
    let resize = |file: &Handle, bytes: u64| scene.fs.media.need_to_resize(&scene.inode(file), bytes);
    let (full, empty, ten) = (scene.inline("inline", 100), scene.inline("empty", 0), scene.whole("ten", 10));
    assert_eq!(
        [0, 100, INLINE].map(|bytes| resize(&full, bytes)),
        [need(0, 0, 0), need(0, 0, 0), need(0, 0, 0)]
    );
    assert_eq!(resize(&full, INLINE + 1), need(1, 0, 0));
    assert_eq!(resize(&empty, INLINE + 1), need(0, 0, 0));
    assert!([0, 5, 10 * PAGE, 11 * PAGE].into_iter().all(|bytes| resize(&ten, bytes) == need(0, 0, 0)));
    let most = scene.inode(&ten).size_max_bytes();
    assert_eq!((resize(&ten, most), resize(&ten, most + 1)), (need(0, 0, 0), Err(Error::FileTooBig)));
    let write = |end: u64| scene.fs.media.need_to_write(&scene.inode(&ten), end - 1, end);
    assert!(write(most).is_ok());
    assert_eq!(write(most + 1), Err(Error::FileTooBig));
}

#[test]
fn a_range_needs_the_nodes_whose_pointers_change() {
    let scene = Scene::new();
    let range = |file: &Handle, op: RangeOp, from: u64, end: u64| {
        scene.fs.media.need_of_range(&scene.inode(file), op, from * PAGE, end * PAGE)
    };
    let allocate = RangeOp::Allocate { keep_size: false };
    let zero = RangeOp::Zero { keep_size: true };
    let ten = scene.whole("ten", 10);
    for op in [allocate, zero] {
        assert_eq!(range(&ten, op, 0, 10), need(0, 0, 2));
        assert_eq!(range(&ten, op, 5, 12), need(2, 0, 2));
        assert_eq!(range(&ten, op, 0, NODE), need(NODE - 10, 1, 2));
        assert_eq!(range(&ten, op, 0, NODE + 1), need(NODE - 9, 1, 4));
        assert_eq!(range(&ten, op, OWN, OWN + NODE + 1), need(NODE + 1, 2, 4));
    }
    // The hole behind its first page ends with its own pointers.
    let sparse = scene.file("sparse", &[0..1, 1500..1501]);
    for (from, end, dirty) in [
        (0, 1, 2),
        (0, NODE, 2),
        (0, NODE + 1, 4),
        (1, OWN, 0),
        (1, OWN + 1, 2),
        (1, OWN + NODE, 2),
        (1, OWN + NODE + 1, 4),
    ] {
        assert_eq!(range(&sparse, RangeOp::Punch, from, end), need(0, 0, dirty), "{from} to {end}");
    }
    let inline = scene.inline("inline", 100);
    assert_eq!(range(&inline, RangeOp::Punch, 0, 3), need(0, 0, 2), "it stays inline");
    assert_eq!(range(&inline, allocate, 0, 1), need(1, 0, 2));
    assert_eq!(range(&inline, allocate, 1, 3), need(3, 0, 2));
}

#[test]
fn a_shift_needs_one_page_and_the_nodes_on_its_way() {
    let scene = Scene::new();
    let range = |file: &Handle, op: RangeOp, from: u64, end: u64| {
        scene.fs.media.need_of_range(&scene.inode(file), op, from * PAGE, end * PAGE)
    };
    let (ten, odd) = (scene.whole("ten", 10), scene.whole("odd", 10));
    scene.fs.write(&odd, 10 * PAGE, b"x").unwrap();
    use RangeOp::{Collapse, Insert};
    assert_eq!(range(&ten, Collapse, 2, 4), need(1, 0, 6 + 4));
    assert_eq!(range(&ten, Collapse, 8, 9), need(1, 0, 1 + 2), "two nodes for a page");
    assert_eq!(range(&ten, Insert, 2, 5), need(1, 0, 8 + 4));
    assert_eq!(range(&ten, Insert, 9, 10), need(1, 0, 1 + 2));
    assert!(matches!(range(&ten, Collapse, 8, 10), Err(Error::InvalidArgument(_))));
    assert!(matches!(range(&ten, Insert, 10, 11), Err(Error::InvalidArgument(_))));
    assert_eq!(range(&odd, Collapse, 8, 10), need(1, 0, 1 + 2));
    assert_eq!(range(&odd, Insert, 10, 11), need(1, 0, 1 + 2));
    for op in [Collapse, Insert] {
        let of = |from, end| scene.fs.media.need_of_range(&scene.inode(&ten), op, from, end);
        assert!(matches!(of(PAGE, 2 * PAGE + 1), Err(Error::InvalidArgument(_))));
        assert!(matches!(of(PAGE - 1, 2 * PAGE - 1), Err(Error::InvalidArgument(_))));
    }
    // The last of its own pointers moves to a node that is not there yet.
    let own = scene.whole("own", OWN);
    assert_eq!(range(&own, Insert, 0, 1), need(1, 1, OWN + 4 + 1));
    assert_eq!(range(&own, Insert, OWN - 1, OWN), need(1, 1, 1 + 2 + 1));
    assert_eq!(range(&own, Insert, 0, NODE + 1), need(1, 2, OWN + 4 + 2));
    let two = scene.whole("two", OWN + NODE);
    assert_eq!(range(&two, Collapse, 0, 1), need(1, 0, OWN + NODE - 1 + 2 * (1 + 2)));
    // Holes are no way to go.
    let sparse = scene.file("sparse", &[0..1, 5..7, 20..21]);
    assert_eq!(range(&sparse, Insert, 0, 1), need(1, 0, 4 + 4));
    assert_eq!(range(&sparse, Collapse, 0, 5), need(1, 0, 3 + 4));
    assert_eq!(range(&sparse, Insert, 7, 8), need(1, 0, 1 + 2));
    let inline = scene.inline("inline", 100);
    assert_eq!(range(&inline, Insert, 0, 1), need(2, 0, 1 + 2));
    assert_eq!(range(&inline, Insert, 0, OWN), need(2, 1, 1 + 2 + 1));
    let most = scene.inode(&ten).size_max_bytes() / PAGE;
    assert!(range(&ten, Insert, 0, most - 10).is_ok());
    assert_eq!(range(&ten, Insert, 0, most - 9), Err(Error::FileTooBig));
}

#[test]
fn a_large_range_is_changed_in_pieces_that_holes_make_longer() {
    let scene = Scene::new();
    let file = scene.whole("file", 1);
    let mib = |n: u64| n << 20;
    let end = |op: RangeOp, from: u64, end: u64| {
        scene.fs.media.piece_end(&scene.inode(&file), op, from, end).unwrap()
    };
    for op in [RangeOp::Allocate { keep_size: true }, RangeOp::Zero { keep_size: false }] {
        assert_eq!(end(op, 0, mib(1000)), mib(256));
        assert_eq!(end(op, mib(100), mib(1000)), mib(256));
        assert_eq!(end(op, mib(256) - 1, mib(1000)), mib(256));
        assert_eq!(end(op, mib(256), mib(1000)), mib(512));
        assert_eq!(end(op, mib(256), mib(300)), mib(300));
    }
    assert_eq!(end(RangeOp::Collapse, 0, mib(1000)), mib(1000));
    assert_eq!(end(RangeOp::Insert, 0, mib(1000)), mib(1000));
    assert_eq!(end(RangeOp::Punch, 0, mib(1000)), mib(256), "its first page is no hole");
    assert_eq!(end(RangeOp::Punch, 1, mib(1000)), mib(256), "a hole of 863 pages");
    // A node is missing that would lead to 1,018 others: a hole of 4,048 MiB from 11 MiB on.
    let behind = (OWN + 2 * NODE) * PAGE;
    assert_eq!(end(RangeOp::Punch, behind, mib(8000)), mib(4096));
    assert_eq!(end(RangeOp::Punch, behind - 1, mib(8000)), mib(4096));
    assert_eq!(end(RangeOp::Punch, behind, mib(400)), mib(400));
    assert_eq!(end_of(OFFSET_MAX_BYTES - 5, 5), Ok(OFFSET_MAX_BYTES));
    assert_eq!(end_of(OFFSET_MAX_BYTES - 5, 6), Err(Error::FileTooBig));
    assert_eq!(end_of(5, u64::MAX), Err(Error::FileTooBig));
}

#[test]
fn pages_that_are_no_holes_are_found_in_runs() {
    let scene = Scene::new();
    let file = scene.file("file", &[0..3, 7..8, 9..11, OWN - 1..OWN + 1, OWN + 2 * NODE..OWN + 2 * NODE + 2]);
    scene.fs.write(&file, (OWN + 2 * NODE + 5) * PAGE, b"x").unwrap();
    let nid = nid_of(file.ino).unwrap();
    let change = scene.fs.media.set_aside(Need::NONE).unwrap();
    let far = OWN + 2 * NODE;
    let all = [0..3, 7..8, 9..11, OWN - 1..OWN + 1, far..far + 2, far + 5..far + 6];
    assert_eq!(change.mapped(nid, 0).unwrap(), all);
    assert_eq!(change.mapped(nid, 2).unwrap()[..2], [2..3, 7..8]);
    assert_eq!(change.mapped(nid, 10).unwrap()[0], 10..11);
    let last = change.mapped(nid, far + 5).unwrap();
    assert_eq!((last.len(), &last[0]), (1, &(far + 5..far + 6)));
    assert_eq!(change.mapped(nid, far + 6).unwrap(), []);
    let has = |from: u64, end: u64| scene.fs.media.has_pages(&scene.inode(&file), from, end).unwrap();
    assert!(has(0, 3 * PAGE) && has(3 * PAGE - 1, 3 * PAGE) && has(9 * PAGE, 11 * PAGE));
    assert!(!has(0, 3 * PAGE + 1) && !has(3 * PAGE, 3 * PAGE + 1) && !has(7 * PAGE, 9 * PAGE + 1));
    assert!(!scene.fs.media.has_pages(&scene.inode(&scene.inline("inline", 9)), 0, 1).unwrap());
}

#[test]
fn inline_bytes_are_changed_in_the_inode_while_they_fit() {
    let scene = Scene::new();
    let file = scene.inline("inline", 100);
    let nid = nid_of(file.ino).unwrap();
    let range = |op: RangeOp, from: u64, len: u64| scene.fs.fallocate(&file, op, from, len).unwrap();
    let (all, has) = (|| scene.fs.read_vec(&file, 0, 5000), |flag| scene.inode(&file).has(flag));
    let mut wanted = vec![7; 100];
    range(RangeOp::Allocate { keep_size: true }, 0, 3000);
    assert_eq!(all(), wanted);
    range(RangeOp::Allocate { keep_size: false }, 50, 150);
    wanted.resize(200, 0);
    assert_eq!(all(), wanted, "what is there stays");
    range(RangeOp::Zero { keep_size: true }, 10, 10);
    range(RangeOp::Punch, 30, 5);
    wanted[10..20].fill(0);
    wanted[30..35].fill(0);
    assert_eq!(all(), wanted);
    range(RangeOp::Zero { keep_size: false }, 190, 60);
    wanted.resize(250, 0);
    assert_eq!(all(), wanted);
    // A hole behind its end may be of any length.
    range(RangeOp::Punch, 90, 10 * PAGE);
    wanted[90..].fill(0);
    assert_eq!(all(), wanted);
    scene.fs.write(&file, 300, b"behind a gap").unwrap();
    wanted.resize(300, 0);
    wanted.extend_from_slice(b"behind a gap");
    assert_eq!(all(), wanted);
    scene.fs.resize(&file, 5).unwrap();
    scene.fs.resize(&file, 40).unwrap();
    wanted.truncate(5);
    wanted.resize(40, 0);
    assert_eq!(all(), wanted, "what was cut off does not come back");
    assert!(has(inline_flag::DATA) && scene.blocks(&file) == 0 && scene.fs.media.pages.of(nid).is_empty());
    // In pages from here on.
    scene.fs.write(&file, PAGE, b"x").unwrap();
    wanted.resize(PAGE as usize, 0);
    wanted.push(b'x');
    assert_eq!(all(), wanted);
    assert!(!has(inline_flag::DATA | inline_flag::DATA_EXIST) && scene.blocks(&file) == 2);
    let empty = scene.inline("empty", 0);
    scene.fs.write(&empty, PAGE, b"x").unwrap();
    assert_eq!((scene.blocks(&empty), scene.fs.read_vec(&empty, 0, 4)), (1, vec![0; 4]));
}

#[test]
fn pages_that_are_cleared_whole_or_only_reserved_are_not_written() {
    let scene = Scene::new();
    let file = scene.whole("file", 10);
    scene.fs.fallocate(&file, RangeOp::Allocate { keep_size: false }, 10 * PAGE, 4 * PAGE).unwrap();
    scene.fs.sync().unwrap();
    let nid = nid_of(file.ino).unwrap();
    let dirty = |op: RangeOp, from: u64, end: u64| {
        scene.fs.fallocate(&file, op, from, end - from).unwrap();
        scene.fs.media.pages.of(nid).into_iter().map(|page| page.0).collect::<Vec<_>>()
    };
    let zero = RangeOp::Zero { keep_size: true };
    assert_eq!(dirty(zero, PAGE, 3 * PAGE), []);
    assert_eq!(dirty(RangeOp::Punch, 4 * PAGE, 5 * PAGE), []);
    assert_eq!(dirty(zero, 11 * PAGE + 5, 12 * PAGE + 5), [], "they read as zeros already");
    assert_eq!(dirty(RangeOp::Punch, PAGE + 5, PAGE + 9), []);
    assert_eq!(dirty(RangeOp::Punch, 4 * PAGE + 5, 4 * PAGE + 9), [], "it is a hole");
    assert_eq!(dirty(zero, 6 * PAGE + 5, 7 * PAGE), [6]);
    assert_eq!(dirty(RangeOp::Punch, 8 * PAGE, 9 * PAGE + 5), [6, 9]);
    let bytes = scene.fs.read_vec(&file, 0, 14 * PAGE as usize);
    let is_zero = |at: usize| {
        let (page, rest) = (at / PAGE as usize, at % PAGE as usize);
        matches!(page, 1 | 2 | 4 | 8 | 10..) || page == 6 && rest >= 5 || page == 9 && rest < 5
    };
    let wrong = bytes.iter().enumerate().position(|(at, byte)| *byte != if is_zero(at) { 0 } else { 7 });
    assert_eq!((bytes.len(), wrong), (14 * PAGE as usize, None));
    // A size within a page clears the rest of it; one at its end clears nothing.
    scene.fs.sync().unwrap();
    scene.fs.resize(&file, 8 * PAGE).unwrap();
    assert_eq!(scene.fs.media.pages.of(nid), []);
    scene.fs.resize(&file, 7 * PAGE + 5).unwrap();
    assert_eq!(scene.fs.media.pages.of(nid), [PageNo(7)]);
}

#[test]
fn a_cut_frees_pages_and_the_nodes_of_them_alone() {
    let (indirect, deep) =
        (OWN + 2 * NODE, OWN + 2 * NODE + 2 * NODE * NODE + 3 * NODE * NODE + 2 * NODE + 1);
    let pages = [
        0,
        OWN - 1,
        OWN,
        OWN + NODE - 1,
        OWN + NODE,
        indirect,
        indirect + 5 * NODE,
        indirect + NODE * NODE,
        deep,
    ];
    let scene = Scene::new();
    let file = scene.file("file", &pages.map(|page| page..page + 1));
    scene.fs.sync().unwrap();
    let (media, nid) = (&scene.fs.media, nid_of(file.ino).unwrap());
    let numbers = |at: usize| scene.inode(&file).block().nid[at].get();
    let (roots, counts) = ([0, 1, 2].map(numbers), || media.space().unwrap().counts());
    let others = counts().blocks - scene.blocks(&file);
    // Direct nodes, two below the first indirect one and itself, one below the second one, and three.
    for (first, left, nodes) in [
        (deep + 1, 9, 1 + 1 + 3 + 2 + 3),
        (deep, 8, 1 + 1 + 3 + 2 + 3),
        (deep - 1, 8, 1 + 1 + 3 + 2 + 2),
        (OWN + 2 * NODE + 2 * NODE * NODE, 8, 1 + 1 + 3 + 2),
        (indirect + NODE * NODE, 7, 1 + 1 + 3),
        (indirect + 5 * NODE + 1, 7, 1 + 1 + 3),
        (indirect + 5 * NODE, 6, 1 + 1 + 2),
        (indirect + 1, 6, 1 + 1 + 2),
        (indirect, 5, 1 + 1),
        (OWN + NODE + 1, 5, 1 + 1),
        (OWN + NODE, 4, 1),
        (OWN + NODE - 1, 3, 1),
        (OWN + 1, 3, 1),
        (OWN, 2, 0),
        (OWN - 1, 1, 0),
        (1, 1, 0),
        (0, 0, 0),
    ] {
        scene.fs.sync().unwrap();
        media.alone().unwrap().cut_pages(nid, PageNo(first)).unwrap();
        let there = pages.iter().filter(|page| scene.addr(&file, **page).is_block()).count();
        assert_eq!((there, scene.blocks(&file)), (left, left as u64 + nodes), "from {first} on");
        assert_eq!(counts().blocks, others + left as u64 + nodes, "from {first} on");
        assert!(pages.iter().take(left).all(|page| scene.addr(&file, *page).is_block()), "{first}");
        // Nodes whose pages all stay are not touched.
        let ends = [OWN + NODE, OWN + 2 * NODE, indirect + NODE * NODE];
        let touched = roots
            .iter()
            .zip(ends)
            .filter(|(root, end)| first >= *end && media.nodes.changed_node(Nid(**root)).is_some());
        assert_eq!(touched.count(), 0, "from {first} on");
    }
}

#[test]
fn a_file_that_keeps_its_size_over_new_pages_is_marked() {
    let scene = Scene::new();
    let range = |op: RangeOp, from: u64, pages: u64| {
        let file = scene.whole("file", 3);
        scene.fs.fallocate(&file, op, from, pages * PAGE).unwrap();
        let advise = scene.inode(&file).block().advise;
        scene
            .fs
            .unlink(&heddle_vfs::Cred::root(), Ino::ROOT, heddle_vfs::Name::new(b"file").unwrap())
            .unwrap();
        scene.fs.release(file);
        advise & 0x10
    };
    for kind in [|keep_size| RangeOp::Allocate { keep_size }, |keep_size| RangeOp::Zero { keep_size }] {
        assert_eq!(range(kind(true), 0, 3), 0, "it ends where the file does");
        assert_eq!(range(kind(true), PAGE, 3), 0x10);
        assert_eq!(range(kind(false), PAGE, 3), 0);
    }
    assert_eq!(range(RangeOp::Allocate { keep_size: false }, PIECE_BYTES - PAGE, 2), 0x10, "in two pieces");
    assert_eq!(range(RangeOp::Allocate { keep_size: true }, PIECE_BYTES - PAGE, 2), 0x10);
    assert_eq!(range(RangeOp::Punch, PAGE, 30), 0);
    let inline = scene.inline("inline", 100);
    scene.fs.fallocate(&inline, RangeOp::Allocate { keep_size: true }, 0, 3000).unwrap();
    assert_eq!(scene.inode(&inline).block().advise, 0, "no page was allocated");
}
