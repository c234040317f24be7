//! What each change needs, to the block: with too little it fails half-way, with too much it is refused where there is room.

use super::*;
use crate::inode::nid_of;
use crate::mounted::F2fs;
use heddle_vfs::short::Short;
use heddle_vfs::{FileSystem, Handle, Ino};

/// Pointers of an inode.
const OWN: u64 = 864;
/// Pointers of a node.
const NODE: u64 = NODE_POINTERS as u64;
/// Bytes that stay inline.
const INLINE: u64 = 3452;

struct Scene {
    fs: F2fs,
    _place: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(96 << 20).unwrap();
        crate::make_image(&path, "", &|_, _| ()).unwrap();
        Scene { fs: F2fs::open_for_writing(&path).unwrap(), _place: place }
    }

    /// A file of these pages and a byte for each.
    fn file(&self, name: &str, pages: &[Range<u64>]) -> Handle {
        let file = self.fs.new_file(Ino::ROOT, name);
        for pages in pages {
            let bytes = vec![7; ((pages.end - pages.start) * PAGE) as usize];
            self.fs.write(&file, pages.start * PAGE, &bytes).unwrap();
        }
        file
    }

    /// A file of its first pages.
    fn whole(&self, name: &str, pages: u64) -> Handle {
        self.file(name, std::slice::from_ref(&(0..pages)))
    }

    /// A file of so many bytes in its inode.
    fn inline(&self, name: &str, bytes: usize) -> Handle {
        let file = self.fs.new_file(Ino::ROOT, name);
        // As Linux makes it.
        let change = self.fs.media.set_aside(Need::NONE).unwrap();
        let nid = nid_of(file.ino).unwrap();
        change.change_inode(nid, |block| block.inline |= inline_flag::DATA).unwrap();
        drop(change);
        self.fs.write(&file, 0, &vec![7; bytes]).unwrap();
        file
    }

    fn inode(&self, file: &Handle) -> Inode {
        let inode = self.fs.media.inode(nid_of(file.ino).unwrap()).unwrap();
        assert_eq!((inode.pointers() as u64, inode.inline_content().len() as u64), (OWN, INLINE));
        inode
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
