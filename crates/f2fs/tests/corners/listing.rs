//! Listings of a directory that stands inline, as Linux makes them, and goes into blocks meanwhile.

use super::{ROOT, create, mounted, name};
use crate::common::{Image, fsck_is_clean, listed, unpacked};
use crate::forge::Forge;
use heddle_f2fs::F2fs;
use heddle_f2fs::format::inline_flag;
use heddle_vfs::{Cookie, Cred, FileSystem, Handle, Ino, Name, OpenFlags};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd;

/// A directory of that image.
pub const DIR: &str = "/heirs";

/// At most so many names from a place on, and the place behind them.
fn some(fs: &F2fs, dir: &Handle, from: Cookie, count: usize) -> (Vec<Vec<u8>>, Cookie) {
    let (mut names, mut next) = (Vec::new(), from);
    fs.each_entry(dir, from, &mut |entry| {
        names.push(entry.name.bytes().to_vec());
        next = entry.next;
        names.len() < count
    })
    .unwrap();
    (names, next)
}

fn is_inline(image: &Image, dir: u32) -> bool {
    let inline = std::cell::Cell::new(false);
    Forge::of(&image.path).inode(dir, |inode| inline.set(inode.inline & inline_flag::DENTRY != 0));
    inline.get()
}

/// An image that Linux made, with an inline directory that has 90 names, and gaps between them.
pub fn half_full() -> (F2fs, Image, Ino) {
    let (image, packed) = (Image::made(64), unpacked("plain"));
    fs::copy(format!("/proc/self/fd/{}", packed.as_raw_fd()), &image.path).unwrap();
    let fs = mounted(&image);
    let (root, dir) = (Cred::root(), fs.lookup(&Cred::root(), ROOT, name(&DIR[1..])).unwrap().ino);
    let gone = |names: Vec<Vec<u8>>| {
        names.iter().for_each(|gone| fs.unlink(&root, dir, Name::new(gone).unwrap()).unwrap());
    };
    gone(listed(&fs, DIR.as_ref()).into_iter().filter(|name| !matches!(&name[..], b"." | b"..")).collect());
    (0..150).for_each(|n| fs.release(create(&fs, dir, &format!("f{n:05}"))));
    gone((0..120).step_by(2).map(|n| format!("f{n:05}").into_bytes()).collect());
    (fs, image, dir)
}

/// With more than one bucket at level 0 a name may be given twice, but none is left out.
#[test]
fn a_listing_goes_on_while_an_inline_directory_goes_into_blocks() {
    if !Image::has_tools() {
        return;
    }
    for (dir_level, seen) in [(0, 1), (0, 7), (0, 40), (0, 80), (1, 1), (1, 40), (3, 7), (3, 80)] {
        let (fs, image, dir) = half_full();
        fs.unmount().unwrap();
        drop(fs);
        assert!(is_inline(&image, dir.0 as u32));
        Forge::of(&image.path).inode(dir.0 as u32, |inode| inode.dir_level = dir_level);
        fsck_is_clean(&image.path);
        let fs = mounted(&image);
        let before = listed(&fs, DIR.as_ref());
        let handle = fs.open(&Cred::root(), dir, OpenFlags::READ).unwrap();
        let (first, place) = some(&fs, &handle, Cookie::default(), seen);
        fs.release(create(&fs, dir, &"n".repeat(255)));
        let (rest, _) = some(&fs, &handle, place, usize::MAX);
        fs.release(handle);
        let given: BTreeSet<Vec<u8>> = first.iter().chain(&rest).cloned().collect();
        let lost: Vec<_> = before.difference(&given).map(|name| String::from_utf8_lossy(name)).collect();
        assert!(lost.is_empty(), "level {dir_level}, after {seen}: {lost:?}");
        let twice = first.len() + rest.len() - given.len();
        assert!(dir_level > 0 || twice == 0, "after {seen}: {twice} twice");
        let after = listed(&fs, DIR.as_ref());
        assert_eq!(after.len(), before.len() + 1);
        for entry in &after {
            fs.lookup(&Cred::root(), dir, Name::new(entry).unwrap()).unwrap();
        }
        fs.unmount().unwrap();
        drop(fs);
        assert!(!is_inline(&image, dir.0 as u32));
        fsck_is_clean(&image.path);
        assert_eq!(listed(&mounted(&image), DIR.as_ref()), after);
    }
}
