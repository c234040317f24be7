//! What an fsynced node says becomes the file's state, with its counts, and no more of it than that.

use super::*;
use crate::data::write::tests::{NODE, OWN, Scene};
use crate::inode::{ROOT, nid_of};
use heddle_vfs::short::Short;
use heddle_vfs::{FileSystem, Handle, Ino, RangeOp, SetXattr, XattrName};

const PAGE: u64 = BLOCK_BYTES as u64;

/// Takes in the form of an inode that differs from the present one by this change.
fn take_in_form(scene: &Scene, file: &Handle, change: impl FnOnce(&mut InodeBlock)) {
    let (now, said) = (scene.inode(file), scene.inode_as(file, change));
    scene.fs.media.alone().unwrap().take_in_form(&said, &now).unwrap();
}

fn holes(scene: &Scene, file: &Handle, pages: &[u64]) -> Vec<bool> {
    pages.iter().map(|page| scene.addr(file, *page) == BlockAddr::NULL).collect()
}

fn in_use(scene: &Scene) -> u64 {
    scene.fs.media.space().unwrap().counts().blocks
}

fn set_xattr(scene: &Scene, file: &Handle, len: usize) {
    let name = XattrName::new(b"user.a").unwrap();
    scene.fs.setxattr(&heddle_vfs::Cred::root(), file.ino, name, &vec![b'v'; len], SetXattr::Any).unwrap();
}

fn xattr_nid(scene: &Scene, file: &Handle) -> u32 {
    scene.inode(file).block().xattr_nid.get()
}

#[test]
fn pages_go_with_a_node_that_the_fsynced_inode_lost() {
    let scene = Scene::new();
    let pages = [0..1, OWN..OWN + 2, OWN + NODE..OWN + NODE + 1, OWN + 2 * NODE..OWN + 2 * NODE + 1];
    let file = scene.file("file", &pages);
    scene.fs.sync().unwrap();
    let (before, all) = (scene.blocks(&file), [0, OWN, OWN + 1, OWN + NODE, OWN + 2 * NODE]);
    take_in_form(&scene, &file, |_| ());
    assert_eq!((scene.blocks(&file), holes(&scene, &file, &all)), (before, vec![false; 5]));
    take_in_form(&scene, &file, |block| block.nid[0].set(0));
    assert_eq!(holes(&scene, &file, &all), [false, true, true, false, false]);
    assert_eq!(scene.blocks(&file), before - 2);
    take_in_form(&scene, &file, |block| block.nid[2].set(0));
    assert_eq!(holes(&scene, &file, &all), [false, true, true, false, true]);
}

#[test]
fn a_smaller_size_cuts_and_no_other_does() {
    let scene = Scene::new();
    let file = scene.whole("file", 10);
    scene.fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, 10 * PAGE, 2 * PAGE).unwrap();
    scene.fs.sync().unwrap();
    for (size, left) in [(10 * PAGE, 12), (20 * PAGE, 12), (9 * PAGE + 1, 10), (5 * PAGE, 5)] {
        take_in_form(&scene, &file, |block| block.size_bytes.set(size));
        let found = (0..12).filter(|page| scene.addr(&file, *page) != BlockAddr::NULL).count();
        assert_eq!((found, scene.blocks(&file)), (left, left as u64), "{size} bytes");
    }
}

#[test]
fn an_attribute_node_goes_and_comes_with_the_fsynced_inode() {
    let scene = Scene::new();
    let (file, other) = (scene.file("file", &[0..1, OWN..OWN + 1]), scene.whole("other", 1));
    [&file, &other].iter().for_each(|file| set_xattr(&scene, file, 1000));
    scene.fs.sync().unwrap();
    let (nid, before) = (xattr_nid(&scene, &file), scene.blocks(&file));
    take_in_form(&scene, &file, |_| ());
    assert_eq!((xattr_nid(&scene, &file), scene.blocks(&file)), (nid, before));
    take_in_form(&scene, &other, |block| block.xattr_nid.set(0));
    assert_eq!((xattr_nid(&scene, &other), scene.blocks(&other)), (0, 1));
    assert_eq!(scene.fs.media.nodes.nat.freed(), 1);
    // A damaged checkpoint has lost the way to the node, and the node is there.
    let ino = nid_of(file.ino).unwrap();
    scene.fs.media.change_inode(ino, |block| block.xattr_nid.set(0)).unwrap();
    let direct = scene.inode(&file).block().nid[0].get();
    let third = scene.whole("third", 1);
    set_xattr(&scene, &third, 1000);
    for others in [direct, xattr_nid(&scene, &third), ino.0, 0] {
        take_in_form(&scene, &file, |block| block.xattr_nid.set(others));
        assert_eq!(xattr_nid(&scene, &file), 0, "{others} is no node of its attributes");
    }
    take_in_form(&scene, &file, |block| block.xattr_nid.set(nid));
    assert_eq!((xattr_nid(&scene, &file), scene.blocks(&file)), (nid, before));
}

#[test]
fn content_becomes_inline_or_pages_as_the_fsynced_inode_has_it() {
    let scene = Scene::new();
    let (file, inline) = (scene.whole("file", 3), scene.inline("inline", 100));
    scene.fs.sync().unwrap();
    let (data, start) = (inline_flag::DATA | inline_flag::DATA_EXIST, scene.inode(&file).block().inline);
    let (nid, used) = (nid_of(file.ino).unwrap(), in_use(&scene));
    scene.fs.media.change_inode(nid, |block| block.inline |= 0x40).unwrap();
    take_in_form(&scene, &file, |block| {
        block.inline |= data | 0x10;
        block.addr[10..14].fill(U32::new(0x5a5a_5a5a));
    });
    let now = scene.inode(&file);
    assert_eq!(now.block().inline, start | data | 0x40, "no other flag is taken");
    assert_eq!((&now.inline_content()[..16], scene.blocks(&file)), (&[0x5a; 16][..], 0));
    assert_eq!(in_use(&scene), used - 3);
    // Its pages are found by those of its nodes alone.
    let before = scene.inode(&inline).block().inline;
    take_in_form(&scene, &inline, |block| block.inline &= !data);
    let now = scene.inode(&inline);
    assert_eq!(now.block().inline, before & !data);
    assert!((0..OWN).all(|page| scene.addr(&inline, page) == BlockAddr::NULL));
}

#[test]
fn pages_are_mapped_reserved_and_punched_as_the_pointers_say() {
    let scene = Scene::new();
    let file = scene.file("file", &[0..4, OWN..OWN + 2]);
    scene.fs.sync().unwrap();
    let (media, nid) = (&scene.fs.media, nid_of(file.ino).unwrap());
    let addr = |page| scene.addr(&file, page);
    // A block that no log will write to, and that no node of the checkpoint leads to.
    let fresh = media.geometry.main.plus((media.geometry.main_segments - 1) * 512 + 3);
    let (kept, used) = (addr(2), in_use(&scene));
    media.pages.put(nid, PageNo(3), Box::new([9; BLOCK_BYTES]));
    media.pages.put(nid, PageNo(2), Box::new([8; BLOCK_BYTES]));
    let take = |first: u64, said: &[BlockAddr]| {
        let pointers: Vec<U32> = said.iter().map(|addr| U32::new(addr.0)).collect();
        media.alone().unwrap().take_in_pages(nid, PageNo(first), &pointers)
    };
    let gone = addr(0);
    let end = take(0, &[BlockAddr::NULL, BlockAddr::NEW, kept, fresh, BlockAddr::NULL, BlockAddr::NEW]);
    assert_eq!(end, Ok(PageNo(4)), "no page behind it got a block");
    assert_eq!(
        [0, 1, 2, 3, 4, 5].map(addr),
        [BlockAddr::NULL, BlockAddr::NEW, kept, fresh, BlockAddr::NULL, BlockAddr::NEW]
    );
    let segments = &media.space().unwrap().segments;
    assert!(segments.is_live(fresh) && segments.is_live(kept) && !segments.is_live(gone));
    assert_eq!(media.pages.of(nid), [PageNo(2)], "what is in memory is older than the block");
    assert_eq!((in_use(&scene), scene.blocks(&file)), (used, 4 + 1 + 2), "less one page, and one more");
    let (one, two) = (addr(OWN), addr(OWN + 1));
    assert_eq!(take(OWN, &[one, BlockAddr::NEW, BlockAddr::NEW]), Ok(PageNo(0)));
    assert_eq!([OWN, OWN + 1, OWN + 2].map(addr), [one, BlockAddr::NEW, BlockAddr::NEW]);
    assert!(segments.is_live(one) && !segments.is_live(two));
    let outside =
        [BlockAddr(media.geometry.main.0 - 1), media.geometry.main.plus(media.geometry.main_segments * 512)];
    for (said, text) in outside
        .map(|addr| (addr, "outside the main area"))
        .into_iter()
        .chain([(BlockAddr::COMPRESSED, "is compressed")])
    {
        let error = take(7, &[said]);
        assert!(matches!(&error, Err(Error::Corrupt(why)) if why.contains(text)), "{said:?}: {error:?}");
        assert_eq!(addr(7), BlockAddr::NULL);
    }
}

#[test]
fn an_inode_gets_the_fields_and_pages_that_were_fsynced() {
    let scene = Scene::new();
    let file = scene.whole("file", 20);
    scene.fs.sync().unwrap();
    let (media, used, gone) = (&scene.fs.media, in_use(&scene), scene.addr(&file, 15));
    let said = scene.inode_as(&file, |block| {
        (block.mode, block.uid, block.gid) = ((libc::S_IFREG as u16 | 0o4711).into(), 7.into(), 8.into());
        (block.size_bytes, block.flags) = ((19 * PAGE).into(), 0x40.into());
        (block.atime, block.mtime, block.ctime) = (1.into(), 2.into(), 3.into());
        (block.atime_ns, block.mtime_ns, block.ctime_ns) = (4.into(), 5.into(), 6.into());
        (block.parent, block.name_bytes, block.name[0]) = (44.into(), 1.into(), b'z');
        block.inline |= inline_flag::PINNED;
        block.addr[9 + 15].set(0);
        (block.addr[922], block.addr[873]) = (U32::new(0xabcd), U32::new(0x1234));
        // What recovery counts and finds by itself.
        (block.links, block.blocks) = (9.into(), 99.into());
    });
    let node = Arc::new(said.node().clone());
    media.alone().unwrap().take_in_inode(&node, &scene.inode(&file)).unwrap();
    let now = scene.inode(&file);
    let (attr, block) = (now.attr(), now.block());
    assert_eq!((attr.perm, attr.uid, attr.gid, attr.size_bytes), (0o4711, 7, 8, 19 * PAGE));
    assert_eq!(
        [attr.atime, attr.mtime, attr.ctime].map(|time| (time.secs(), time.nanos())),
        [(1, 4), (2, 5), (3, 6)]
    );
    assert_eq!(
        (block.flags.get(), block.parent.get(), block.name_bytes.get(), block.name[0]),
        (0x40, 44, 1, b'z')
    );
    assert_eq!((block.addr[922].get(), block.addr[873].get()), (0xabcd, 0x1234), "attributes in the inode");
    assert_eq!((attr.nlink, attr.blocks_512, in_use(&scene)), (1, 19 * 8, used - 1));
    assert!(scene.addr(&file, 15) == BlockAddr::NULL && !media.space().unwrap().segments.is_live(gone));
    let take = |said: Inode| {
        let node = Arc::new(said.node().clone());
        media.alone().unwrap().take_in_inode(&node, &scene.inode(&file)).unwrap();
        scene.inode(&file).block().inline
    };
    let pinned = now.block().inline;
    assert!(now.has(inline_flag::PINNED));
    let unpinned = pinned & !inline_flag::PINNED;
    assert_eq!(take(scene.inode_as(&file, |block| block.inline = unpinned)), unpinned);
}

#[test]
fn an_fsynced_inode_of_another_file_is_refused() {
    let scene = Scene::new();
    let file = scene.whole("file", 1);
    let (media, now) = (&scene.fs.media, scene.inode(&file));
    let said_by = |change: &dyn Fn(&mut InodeBlock)| {
        let mut node = now.node().clone();
        change(inode_of_mut(&mut node));
        media.alone().unwrap().said_by(&Arc::new(node), &now).map(|said| said.nid)
    };
    assert_eq!(said_by(&|_| ()), Ok(now.nid));
    let refused = |change: &dyn Fn(&mut InodeBlock), text: &str| {
        let error = said_by(change);
        assert!(matches!(&error, Err(Error::Corrupt(why)) if why.contains(text)), "{error:?}");
    };
    refused(&|block| block.generation.set(block.generation.get() ^ 1), "another file");
    refused(&|block| block.mode.set(libc::S_IFIFO as u16), "another file");
    refused(&|block| block.inline &= !inline_flag::EXTRA_ATTR, "another size");
    refused(&|block| block.inline &= !inline_flag::XATTR, "another size");
    assert!(matches!(said_by(&|block| block.flags.set(4)), Err(Error::NotSupported(_))), "it is compressed");
}

#[test]
fn an_inode_that_the_checkpoint_lacks_begins_empty() {
    let scene = Scene::new();
    let file = scene.whole("file", 3);
    let media = &scene.fs.media;
    let (number, counts) = (Nid(5000), media.space().unwrap().counts());
    let begin = |number: Nid, change: &dyn Fn(&mut InodeBlock)| {
        let mut node = scene.inode(&file).node().clone();
        (node.footer.nid, node.footer.ino) = (number.0.into(), number.0.into());
        change(inode_of_mut(&mut node));
        media.alone().unwrap().begin_again(&node)
    };
    assert_eq!(begin(scene.inode(&file).nid, &|_| ()), Ok(false), "it is there");
    assert_eq!(begin(number, &|block| block.mode.set(libc::S_IFDIR as u16)), Ok(false));
    assert!(matches!(media.inode(number), Err(Error::Stale)));
    let fill = |block: &mut InodeBlock| {
        block.inline |= inline_flag::DATA | inline_flag::DATA_EXIST;
        (block.links, block.xattr_nid, block.nid[4]) = (7.into(), 9.into(), 9.into());
        block.extent.pages.set(3);
        (block.addr[872], block.addr[873]) = (5.into(), 6.into());
    };
    assert_eq!(begin(number, &fill), Ok(true));
    let (now, file) = (media.inode(number).unwrap(), scene.inode(&file));
    let block = now.block();
    assert_eq!((block.inline, now.size_bytes, block.links.get()), (file.block().inline, 0, 1));
    assert_eq!((block.blocks.get(), block.xattr_nid.get(), block.extent.pages.get()), (1, 0, 0));
    assert!(
        block.nid.iter().all(|nid| nid.get() == 0) && block.addr[9..873].iter().all(|addr| addr.get() == 0)
    );
    assert!(block.addr[..9] == file.block().addr[..9], "its extra attributes stay");
    assert_eq!((block.addr[873].get(), now.node().footer.flag.get()), (6, node_flag::COLD));
    let after = media.space().unwrap().counts();
    assert_eq!(
        (after.blocks, after.nodes, after.inodes),
        (counts.blocks + 1, counts.nodes + 1, counts.inodes + 1)
    );
}

#[test]
fn a_name_is_made_again_where_its_directory_is() {
    let scene = Scene::new();
    let fs = &scene.fs;
    let dir = fs.new_dir(Ino::ROOT, "dir");
    let inos = ["one", "two", "three"].map(|text| {
        let file = fs.new_file(Ino::ROOT, text);
        let ino = file.ino;
        fs.release(file);
        ino
    });
    fs.sync().unwrap();
    let name_again = |ino: Ino, parent: u32, name: &[u8]| {
        let nid = nid_of(ino).unwrap();
        let mut block = fs.media.inode(nid).unwrap().block().clone();
        crate::allocation::named(&mut block, Nid(parent), name);
        let change = fs.media.alone().unwrap();
        fs.name_again(&change, nid, &block)
    };
    let found = |dir: Ino, text: &str| fs.find(dir, text).map(|attr| attr.ino);
    let above = nid_of(dir).unwrap().0;
    let links = |ino: Ino| fs.getattr(ino).map(|attr| attr.nlink);
    assert_eq!(name_again(inos[0], ROOT.0, b"one"), Ok(()));
    assert_eq!((found(Ino::ROOT, "one"), links(inos[1])), (Ok(inos[0]), Ok(1)));
    assert_eq!(name_again(inos[0], above, b"new"), Ok(()));
    assert_eq!((found(dir, "new"), found(Ino::ROOT, "one")), (Ok(inos[0]), Ok(inos[0])));
    assert_eq!(name_again(inos[0], ROOT.0, b"two"), Ok(()), "another file had the name");
    assert_eq!((found(Ino::ROOT, "two"), links(inos[1])), (Ok(inos[0]), Err(Error::Stale)));
    let (error, text) = (name_again(inos[0], ROOT.0, b"a/b"), "a name that none can have");
    assert!(matches!(&error, Err(Error::Corrupt(why)) if why.contains(text)), "{error:?}");
    assert!(matches!(name_again(inos[0], ROOT.0, b"dir"), Err(Error::NotSupported(_))), "it has an entry");
    let empty = fs.new_dir(Ino::ROOT, "empty");
    assert_eq!((links(Ino::ROOT), name_again(inos[0], ROOT.0, b"empty")), (Ok(4), Ok(())));
    assert_eq!((found(Ino::ROOT, "empty"), links(empty)), (Ok(inos[0]), Err(Error::Stale)));
    assert_eq!(links(Ino::ROOT), Ok(3));
    // Its directory is none any more, or is a file: the file goes.
    for (ino, parent) in [(inos[0], 9000), (inos[2], nid_of(inos[2]).unwrap().0)] {
        assert_eq!((name_again(ino, parent, b"name"), links(ino)), (Ok(()), Err(Error::Stale)), "{parent}");
    }
}

#[test]
fn a_page_without_its_inode_extends_a_file_that_may_grow() {
    let scene = Scene::new();
    let (file, inline) = (scene.whole("file", 3), scene.inline("inline", 100));
    let grown = |file: &Handle, end: u64| {
        scene.fs.media.grow_to(nid_of(file.ino).unwrap(), PageNo(end)).unwrap();
        scene.inode(file).size_bytes
    };
    assert_eq!([0, 2, 3, 4, 3].map(|end| grown(&file, end)), [3, 3, 3, 4, 4].map(|pages| pages * PAGE));
    scene.fs.resize(&file, 4 * PAGE + 1).unwrap();
    assert_eq!(grown(&file, 5), 4 * PAGE + 1, "it ends in that page");
    scene.fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, 6 * PAGE, PAGE).unwrap();
    assert_eq!(grown(&file, 7), 4 * PAGE + 1, "it keeps its size");
    assert_eq!(grown(&inline, 7), 100);
}

#[test]
fn the_project_of_an_fsynced_inode_is_taken_where_there_are_projects() {
    for (features, wanted) in [(0, 0), (feature::PROJECT_QUOTA, 4242)] {
        let mut scene = Scene::new();
        scene.fs.media.features |= features;
        let file = scene.whole("file", 1);
        let said = scene.inode_as(&file, |block| block.addr[PROJECT_SLOT].set(4242));
        let node = Arc::new(said.node().clone());
        scene.fs.media.alone().unwrap().take_in_inode(&node, &scene.inode(&file)).unwrap();
        assert_eq!(scene.inode(&file).block().addr[1].get(), wanted, "{features:#x}");
    }
}

#[test]
fn a_slot_that_is_a_pointer_is_not_taken_for_a_project() {
    let mut scene = Scene::new();
    scene.fs.media.features |= feature::PROJECT_QUOTA;
    let file = scene.file("file", &[]);
    let (media, nid) = (&scene.fs.media, nid_of(file.ino).unwrap());
    media
        .change_inode(nid, |block| {
            block.inline &= !inline_flag::EXTRA_ATTR;
            block.addr.fill(U32::new(0));
        })
        .unwrap();
    let (now, fresh) =
        (media.inode(nid).unwrap(), media.geometry.main.plus((media.geometry.main_segments - 1) * 512));
    let mut node = now.node().clone();
    inode_of_mut(&mut node).addr[PROJECT_SLOT].set(fresh.0);
    media.alone().unwrap().take_in_inode(&Arc::new(node), &now).unwrap();
    assert_eq!(media.inode(nid).unwrap().block().addr[PROJECT_SLOT].get(), fresh.0);
    assert!(media.space().unwrap().segments.is_live(fresh), "its page was taken in");
}

#[test]
fn a_block_that_a_later_fsync_names_leaves_its_earlier_pointer() {
    let scene = Scene::new();
    let (file, other) = (scene.file("file", &[0..2, OWN..OWN + 2]), scene.whole("other", 2));
    scene.fs.sync().unwrap();
    let media = &scene.fs.media;
    let fresh = media.geometry.main.plus((media.geometry.main_segments - 1) * 512);
    let adopt = |file: &Handle, page: u64, n: u32| {
        media.alone().unwrap().adopt_page(nid_of(file.ino).unwrap(), PageNo(page), fresh.plus(n))
    };
    let addr = |file: &Handle, page: u64| scene.addr(file, page);
    // From a pointer of another inode, and of its direct node.
    for (page, n) in [(1, 0), (OWN + 1, 1)] {
        let blocks = [scene.blocks(&file), scene.blocks(&other)];
        assert_eq!((adopt(&file, page, n), addr(&file, page)), (Ok(()), fresh.plus(n)));
        assert_eq!((adopt(&other, 1, n), addr(&other, 1)), (Ok(()), fresh.plus(n)));
        assert_eq!(addr(&file, page), BlockAddr::NULL);
        assert_eq!([scene.blocks(&file), scene.blocks(&other)], [blocks[0] - 1, blocks[1]]);
    }
    // The file does not lead to that node any more: its page is another's.
    assert_eq!(adopt(&file, OWN + 1, 2), Ok(()));
    let inode = scene.inode(&file);
    let new = media.alone().unwrap().new_node(&inode, 1).unwrap();
    media.change_inode(inode.nid, |block| block.nid[0].set(new.0)).unwrap();
    assert_eq!(adopt(&file, OWN + 1, 3), Ok(()));
    assert!(matches!(adopt(&other, 1, 2), Err(Error::Corrupt(_))), "it is live");
    assert_eq!(addr(&file, OWN + 1), fresh.plus(3));
}
