//! Linux reads what this engine wrote, and goes on writing: `cargo xtask linux-f2fs` runs the two halves, and a guest between them that
//! mounts the images, copies the tree `tree` to `copy` and unmounts. `HEDDLE_FOR_LINUX`: the directory of the images.

mod common;

use common::fsck_is_clean;
use heddle_f2fs::{F2fs, make_image};
use heddle_vfs::path::resolve;
use heddle_vfs::testkit::Tree;
use heddle_vfs::{
    Cred, FileKind, FileSystem, Ino, Name, NewNode, OpenFlags, RangeOp, SetAttr, SetTime, Time,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Those of the second name were not unmounted: Linux takes in what was fsynced.
fn images() -> Vec<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("HEDDLE_FOR_LINUX").unwrap());
    ["for-linux", "for-linux-phone", FSYNCED, FSYNCED_PHONE, OURS].map(|name| dir.join(name)).into()
}

const FSYNCED: &str = "for-linux-fsynced";
const FSYNCED_PHONE: &str = "for-linux-fsynced-phone";
/// This engine makes it, too.
const OURS: &str = "for-linux-fsynced-ours";

fn is_fsynced(image: &Path) -> bool {
    [FSYNCED, FSYNCED_PHONE, OURS].iter().any(|name| image.ends_with(name))
}

/// What the files have that were fsynced.
const LATE: [(&str, u64, &[u8]); 4] = [
    ("/tree/large", 871 * 4096 + 1000, &[201; 9000]),
    ("/tree/large", (14 << 20) + 5, &[202; 30_000]),
    ("/tree/many/late", 0, &[203; 5000]),
    ("/tree/late", 7 << 20, &[204; 100]),
];

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

#[test]
#[ignore = "a half of cargo xtask linux-f2fs"]
fn a_tree_is_written_for_linux() {
    let root = Cred::root();
    for image in images() {
        if image.ends_with(OURS) {
            make_image(&image, "ours", &|_, _| ()).unwrap();
        }
        let fs = F2fs::open_for_writing(&image).unwrap();
        let dir = NewNode { kind: FileKind::Directory, perm: 0o751, rdev: 0, target: &[] };
        let tree = fs.make(&root, Ino::ROOT, name("tree"), dir).unwrap().ino;
        let file =
            |dir: Ino, text: &str| fs.create(&root, dir, name(text), 0o640, OpenFlags::READ_WRITE).unwrap().1;
        // A directory of several levels; some of its names went again.
        let many = fs.make(&root, tree, name("many"), dir).unwrap().ino;
        for n in 0..1200_u32 {
            let text = format!("{n} {}", "n".repeat(n as usize % 200));
            let made = file(many, &text);
            fs.append(&made, text.as_bytes()).unwrap();
            fs.release(made);
            if n % 3 == 0 {
                fs.unlink(&root, many, name(&text)).unwrap();
            }
        }
        // Under the inode, direct and indirect nodes; holes between; written over.
        let large = file(tree, "large");
        for page in [0, 1, 872, 873, 1_900, 2_950, 3_000] {
            fs.write(&large, page * 4096 + 100, &(page as u32 | 1).to_le_bytes().repeat(2500)).unwrap();
            fs.sync().unwrap();
            fs.write(&large, page * 4096 + 5_000, b"over").unwrap();
        }
        fs.fallocate(&large, RangeOp::Punch, 873 * 4096, 4096).unwrap();
        fs.fallocate(&large, RangeOp::Allocate { keep_size: false }, 14 << 20, 1 << 20).unwrap();
        fs.release(large);
        for (text, kind, rdev) in [
            ("pipe", FileKind::Fifo, 0),
            ("null", FileKind::CharDevice, 0x103),
            ("disk", FileKind::BlockDevice, 0x1111_0370),
        ] {
            fs.make(&root, tree, name(text), NewNode { kind, perm: 0o600, rdev, target: &[] }).unwrap();
        }
        let link = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"many/../large" };
        fs.make(&root, tree, name("link"), link).unwrap();
        let when = Some(SetTime::At(Time::from_parts(80_000, 0)));
        let set = SetAttr { uid: Some(12), gid: Some(34), mtime: when, ..SetAttr::default() };
        let attr = resolve(&fs, &root, "/tree/large").unwrap();
        fs.setattr(&root, attr.ino, None, &set).unwrap();
        if is_fsynced(&image) {
            fsync_and_leave(fs);
        } else {
            fs.unmount().unwrap();
        }
        fsck_is_clean(&image);
    }
}

/// After a checkpoint; then something that nobody asked to be durable, and no unmount.
fn fsync_and_leave(fs: F2fs) {
    let root = Cred::root();
    fs.sync().unwrap();
    let version = fs.info().checkpoint_version;
    for (path, at, bytes) in LATE {
        let (dir, text) = path.rsplit_once('/').unwrap();
        let dir = resolve(&fs, &root, dir).unwrap().ino;
        let file = match resolve(&fs, &root, path) {
            Ok(attr) => fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap(),
            Err(_) => fs.create(&root, dir, name(text), 0o640, OpenFlags::READ_WRITE).unwrap().1,
        };
        fs.write(&file, at, bytes).unwrap();
        fs.fsync(&file, false).unwrap();
        fs.release(file);
    }
    for (path, at, _) in LATE {
        let ino = resolve(&fs, &root, path).unwrap().ino;
        let file = fs.open(&root, ino, OpenFlags::WRITE).unwrap();
        fs.write(&file, at, b"lost").unwrap();
        fs.release(file);
    }
    assert_eq!(fs.info().checkpoint_version, version, "no checkpoint since");
}

/// What stands below a directory, by its path from there.
fn below(tree: &Tree, dir: &str) -> BTreeMap<Vec<u8>, heddle_vfs::tree::Node> {
    let under = |path: &Vec<u8>| path.strip_prefix(dir.as_bytes()).map(<[u8]>::to_vec);
    let nodes = tree.nodes.iter().filter_map(|(path, node)| Some((under(path)?, node.clone())));
    // Each says its own name, which is not the other's.
    nodes.map(|(path, node)| (path, heddle_vfs::tree::Node { first_name: Vec::new(), ..node })).collect()
}

#[test]
#[ignore = "a half of cargo xtask linux-f2fs"]
fn what_linux_copied_is_what_was_written() {
    for image in images() {
        fsck_is_clean(&image);
        let fs = F2fs::open_for_writing(&image).unwrap();
        let tree = Tree::of(&fs).unwrap();
        let (ours, copied) = (below(&tree, "/tree"), below(&tree, "/copy"));
        assert!(ours.len() > 800, "{} names", ours.len());
        let differs: Vec<String> = ours
            .iter()
            .filter(|(path, node)| copied.get(*path) != Some(*node))
            .map(|(path, _)| String::from_utf8_lossy(path).into_owned())
            .collect();
        assert_eq!((copied.len(), &differs[..]), (ours.len(), &[][..]), "{}", image.display());
        if is_fsynced(&image) {
            for (path, at, bytes) in LATE {
                let content = common::read(&fs, path.as_ref());
                assert!(content[at as usize..][..bytes.len()] == *bytes, "{}: {path}", image.display());
            }
        }
        // And this engine goes on where Linux ended.
        let gone = resolve(&fs, &Cred::root(), "/copy/many").unwrap();
        let handle = fs.open(&Cred::root(), gone.ino, OpenFlags::READ).unwrap();
        let mut names = Vec::new();
        fs.each_entry(&handle, Default::default(), &mut |entry| {
            names.push(entry.name.bytes().to_vec());
            true
        })
        .unwrap();
        fs.release(handle);
        for text in names {
            fs.unlink(&Cred::root(), gone.ino, Name::new(&text).unwrap()).unwrap();
        }
        fs.unmount().unwrap();
        fsck_is_clean(&image);
    }
}
