//! Nodes and pages that cannot be read, met by calls that change: each costs that call, and no other file its changes.

use super::{ROOT, create, make_dir, mounted, name, size};
use crate::common::{Image, read};
use crate::forge::Forge;
use heddle_f2fs::F2fs;
use heddle_f2fs::format::{InodeBlock, NodeBlock, node_flag};
use heddle_vfs::{
    Cred, Error, FileKind, FileSystem, Ino, OpenFlags, RangeOp, RenameMode, SetXattr, XattrName,
};
use std::path::Path;
use zerocopy::FromBytes;

const PAGE: u64 = 4096;
/// Pages under the inode and its two direct nodes, and under the first ones of an indirect node.
const PAGES: u64 = 6000;

/// An image with `file`, which has all kinds of nodes but the last, and `other`.
fn image() -> (Image, u32) {
    let image = Image::made(96);
    let fs = mounted(&image);
    let file = create(&fs, ROOT, "file");
    for page in (0..PAGES).step_by(100) {
        fs.write(&file, page * PAGE, &[5; 2 * PAGE as usize]).unwrap();
    }
    // Of a size that is no whole page.
    fs.append(&file, &[5; 100]).unwrap();
    let value = vec![7; 3000];
    fs.setxattr(&Cred::root(), file.ino, XattrName::new(b"user.x").unwrap(), &value, SetXattr::Any).unwrap();
    let ino = file.ino.0 as u32;
    fs.release(file);
    fs.release(create(&fs, ROOT, "other"));
    fs.unmount().unwrap();
    (image, ino)
}

/// A file's node at a place, changed.
fn change_node(image: &Image, ino: u32, place: u32, change: impl Fn(&mut NodeBlock)) {
    let forge = Forge::of(&image.path);
    let mut nodes = forge.nodes_of(ino);
    nodes.retain(|(_, node)| node.footer.nid.get() != ino && node.footer.place() == place);
    assert!(!nodes.is_empty(), "no node at place {place}");
    for (addr, _) in nodes {
        forge.change(addr, |block| change(NodeBlock::mut_from_bytes(block).unwrap()));
    }
}

/// Calls that take the nodes or pages of `file` away.
const CALLS: [&str; 8] =
    ["unlink", "rename over it", "truncate", "open to cut", "punch", "zero", "collapse", "unlink while open"];

fn call(fs: &F2fs, how: &str, ino: Ino) -> Result<(), Error> {
    let root = Cred::root();
    let opened = || fs.open(&root, ino, OpenFlags::READ_WRITE);
    let range = |op| {
        let file = opened()?;
        let done = fs.fallocate(&file, op, 300 * PAGE, (PAGES - 400) * PAGE);
        fs.release(file);
        done
    };
    match how {
        "unlink" => fs.unlink(&root, ROOT, name("file")),
        "rename over it" => fs.rename(&root, ROOT, name("other"), ROOT, name("file"), RenameMode::Replace),
        "truncate" => fs.setattr(&root, ino, None, &size(10 * PAGE + 5)).map(drop),
        "open to cut" => {
            let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
            fs.open(&root, ino, flags).map(|file| fs.release(file))
        }
        "punch" => range(RangeOp::Punch),
        "zero" => range(RangeOp::Zero { keep_size: true }),
        "collapse" => range(RangeOp::Collapse),
        _ => {
            let file = opened()?;
            let done = fs.unlink(&root, ROOT, name("file"));
            fs.release(file);
            done
        }
    }
}

/// One call over a damaged file ended all changes to the image, and lost those that were not synced.
#[test]
fn crash_a_damaged_node_met_halfway_ended_all_changes() {
    let (whole, ino) = image();
    // Second direct, an inner direct, and the attributes'.
    for (place, what) in [(2, "nid"), (6, "nid"), (node_flag::XATTR_PLACE, "ino"), (1, "twice")] {
        for how in CALLS {
            let image = Image::copy_of(&whole);
            match what {
                "nid" => change_node(&image, ino, place, |node| node.footer.nid.set(77)),
                "ino" => change_node(&image, ino, place, |node| node.footer.ino.set(77)),
                _ => Forge::of(&image.path).inode(ino, |inode: &mut InodeBlock| {
                    inode.nid[1] = inode.nid[0];
                    crate::believed::seal(&image, inode);
                }),
            }
            let fs = mounted(&image);
            let fresh = create(&fs, ROOT, "fresh");
            fs.write(&fresh, 0, &[3; 5000]).unwrap();
            fs.release(fresh);
            let done = call(&fs, how, Ino(ino.into()));
            // Attributes are of no account where only pages go.
            let goes_whole = how.contains("unlink") || how.contains("rename");
            let is_met = goes_whole || place != node_flag::XATTR_PLACE;
            assert_eq!(matches!(done, Err(Error::Corrupt(_))), is_met, "{what} {place}, {how}: {done:?}");
            assert!(!fs.has_failed(), "{what} {place}, {how}: {done:?}");
            fs.unmount().unwrap();
            drop(fs);
            assert!(read(&F2fs::open(&image.path).unwrap(), Path::new("/fresh")) == [3; 5000]);
        }
    }
}

#[test]
fn a_damaged_node_before_a_collapsed_range_is_not_in_its_way() {
    let (image, ino) = image();
    // The first direct one.
    change_node(&image, ino, 1, |node| node.footer.nid.set(77));
    let fs = mounted(&image);
    let file = fs.open(&Cred::root(), Ino(ino.into()), OpenFlags::READ_WRITE).unwrap();
    let collapse = |from| fs.fallocate(&file, RangeOp::Collapse, from * PAGE, 100 * PAGE);
    assert!(matches!(collapse(800), Err(Error::Corrupt(_))), "its pages move");
    assert_eq!(collapse(3000), Ok(()));
    let mut bytes = [0; 2];
    fs.read(&file, 3000 * PAGE, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 2], "what lay behind");
    fs.release(file);
}

/// One inode without a name kept the whole image from being mounted for writing.
#[test]
fn crash_a_nameless_inode_that_cannot_be_read_refused_the_mount() {
    for place in [2, node_flag::XATTR_PLACE] {
        let (image, ino) = image();
        let fs = mounted(&image);
        let file = fs.open(&Cred::root(), Ino(ino.into()), OpenFlags::READ).unwrap();
        fs.unlink(&Cred::root(), ROOT, name("file")).unwrap();
        fs.sync().unwrap();
        drop((file, fs));
        change_node(&image, ino, place, |node| node.footer.nid.set(77));
        for text in ["one", "two"] {
            let fs = mounted(&image);
            assert_eq!(fs.orphans_left().iter().map(|left| left.0).collect::<Vec<_>>(), [ino]);
            fs.release(create(&fs, ROOT, text));
            fs.unmount().unwrap();
        }
        let fs = mounted(&image);
        assert!(fs.lookup(&Cred::root(), ROOT, name("one")).is_ok() && !fs.has_failed());
    }
}

/// The pages at the ends of a range are changed in part, so they are read.
#[test]
fn crash_a_page_that_could_not_be_read_ended_all_changes() {
    let (whole, ino) = image();
    for how in ["write", "short write", "punch", "zero", "truncate"] {
        for variant in [heddle_f2fs::Variant::F2fs, heddle_f2fs::Variant::RangeLock] {
            let image = Image::copy_of(&whole);
            // Pages 100 and 101 are there; the second one leads out of the image.
            Forge::of(&image.path).inode(ino, |inode: &mut InodeBlock| {
                inode.addr[9 + 101].set(u32::MAX - 9);
                crate::believed::seal(&image, inode);
            });
            let fs = F2fs::open_as(&image.path, variant).unwrap();
            let root = Cred::root();
            let file = fs.open(&root, Ino(ino.into()), OpenFlags::READ_WRITE).unwrap();
            let (from, len) =
                if how == "short write" { (101 * PAGE - 50, 100) } else { (99 * PAGE + 9, 2 * PAGE + 100) };
            let done = match how {
                "write" | "short write" => fs.write(&file, from, &vec![1; len as usize]).map(drop),
                "punch" => fs.fallocate(&file, RangeOp::Punch, from, len),
                "zero" => fs.fallocate(&file, RangeOp::Zero { keep_size: true }, from, len),
                _ => fs.setattr(&root, file.ino, None, &size(101 * PAGE + 7)).map(drop),
            };
            assert!(matches!(done, Err(Error::Corrupt(_))), "{how}: {done:?}");
            assert!(!fs.has_failed(), "{how}: {done:?}");
            let mut page = [0; 4096];
            fs.read(&file, 100 * PAGE, &mut page).unwrap();
            assert!(page == [5; 4096], "{how}");
            fs.release(file);
            fs.release(create(&fs, ROOT, "fresh"));
            fs.unmount().unwrap();
        }
    }
}

/// A directory that moves to another one says so in its own entries.
#[test]
fn a_directory_that_cannot_be_read_is_not_moved() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let (to, dir) = (make_dir(&fs, "to"), make_dir(&fs, "dir"));
    fs.unmount().unwrap();
    drop(fs);
    Forge::of(&image.path).inode(dir.0 as u32, |inode: &mut InodeBlock| {
        inode.addr[9].set(u32::MAX - 9);
        crate::believed::seal(&image, inode);
    });
    let (fs, root) = (mounted(&image), Cred::root());
    let done = fs.rename(&root, ROOT, name("dir"), to, name("moved"), RenameMode::Replace);
    assert!(matches!(done, Err(Error::Corrupt(_))), "{done:?}");
    assert!(!fs.has_failed() && fs.lookup(&root, ROOT, name("dir")).unwrap().kind == FileKind::Directory);
}

/// Cleaning met a node that is not what its table says, and ended all changes, at each mount.
#[test]
fn crash_a_damaged_node_was_cleaned_and_ended_all_changes() {
    let image = Image::made(128);
    let fs = mounted(&image);
    // Segments of inodes, among gaps.
    for n in 0..3000 {
        fs.release(create(&fs, ROOT, &format!("{n}")));
    }
    fs.sync().unwrap();
    for n in (0..3000).filter(|n| n % 4 > 0) {
        fs.unlink(&Cred::root(), ROOT, name(&format!("{n}"))).unwrap();
    }
    let damaged: Vec<u32> = [400, 800, 1200, 1600, 2000]
        .iter()
        .map(|n| fs.lookup(&Cred::root(), ROOT, name(&n.to_string())).unwrap().ino.0 as u32)
        .collect();
    fs.unmount().unwrap();
    drop(fs);
    let forge = Forge::of(&image.path);
    for ino in damaged {
        let nodes = forge.nodes_of(ino);
        nodes.iter().for_each(|(addr, _)| {
            forge.change(*addr, |block| {
                let node = NodeBlock::mut_from_bytes(block).unwrap();
                node.footer.nid.set(u32::MAX);
                node.footer.ino.set(ino);
            });
        });
    }
    drop(forge);
    let fs = mounted(&image);
    let more = create(&fs, ROOT, "more");
    while fs.append(&more, &[1; 1 << 20]).is_ok() {}
    for n in 0..60_u64 {
        for page in 0..512 {
            let _ = fs.write(&more, (page * 7 + n) % 1500 * PAGE, &[n as u8; PAGE as usize]);
        }
        fs.sync().unwrap();
    }
    assert!(!fs.has_failed() && !fs.left_uncleaned().is_empty(), "{:?}", fs.left_uncleaned());
    fs.release(more);
    fs.unmount().unwrap();
}

/// At each mount again: the pointer had been changed when the old block's summary was read.
#[test]
fn crash_an_unreadable_block_of_summaries_ended_all_changes() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let file = create(&fs, ROOT, "file");
    // The first segments are not open any more, so that their summaries are read.
    fs.write(&file, 0, &vec![5; 2000 * PAGE as usize]).unwrap();
    fs.release(file);
    fs.unmount().unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    drop(fs);
    let fs = mounted(&image);
    let geometry = fs.info().geometry;
    fs.set_faults(|faults| faults.unreadable = [geometry.ssa.0, geometry.main.0]);
    let root = Cred::root();
    let ino = fs.lookup(&root, ROOT, name("file")).unwrap().ino;
    let file = fs.open(&root, ino, OpenFlags::READ_WRITE).unwrap();
    fs.write(&file, 0, &[6; 3 * PAGE as usize]).unwrap();
    fs.fsync(&file, false).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().blocks_free, free, "the old blocks are free");
    fs.release(file);
    fs.unlink(&root, ROOT, name("file")).unwrap();
    assert!(!fs.has_failed());
    fs.unmount().unwrap();
    drop(fs);
    crate::common::fsck_is_clean(&image.path);
}
