//! Images that this engine has made are what mkfs.f2fs would make: clean, whole, and empty.

mod common;

use common::{Image, fsck_is_clean};
use heddle_f2fs::{F2fs, IMAGE_BYTES_MIN, OpenError, make_image};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Cred, Error, FileKind, FileSystem, Ino, Name, OpenFlags};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

fn checked(image: &Image) {
    if Image::has_tools() {
        fsck_is_clean(&image.path);
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// Small and large, and of a size that is no number of segments.
#[test]
fn an_image_is_clean_and_empty_and_works() {
    for (bytes, percent) in [(IMAGE_BYTES_MIN, 20), ((65 << 20) + 12_345, 20), (1 << 30, 80), (70 << 30, 95)]
    {
        let image = Image::made_of_bytes(bytes);
        checked(&image);
        let fs = F2fs::open_for_writing(&image.path).unwrap();
        let info = fs.info();
        assert_eq!(
            (info.label.as_str(), info.inodes, info.nodes, info.clean),
            ("ours ☃", 1, 1, true),
            "{bytes}"
        );
        assert_eq!(info.geometry.blocks, bytes / 4096);
        let root = fs.getattr(Ino::ROOT).unwrap();
        assert_eq!((root.kind, root.perm, root.nlink), (FileKind::Directory, 0o755, 2));
        assert_eq!(root.uid, rustix::process::geteuid().as_raw());
        assert_eq!(Tree::of(&fs).unwrap().nodes.len(), 1);
        let space = fs.statfs().unwrap();
        assert!(space.blocks_total * 4096 > bytes / 100 * percent, "{bytes}: {space:?}");
        assert!(space.inodes_free > bytes >> 15, "{bytes}: {space:?}");
        let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name("f"), 0o644, OpenFlags::READ_WRITE).unwrap();
        fs.write(&file, 5000, b"here").unwrap();
        fs.release(file);
        let tree = Tree::of(&fs).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        checked(&image);
        assert_eq!(Tree::of(&F2fs::open(&image.path).unwrap()).unwrap().difference(&tree), None);
    }
}

#[test]
fn no_two_images_have_the_same_uuid() {
    let uuids = [(); 2].map(|()| F2fs::open(&Image::made(64).path).unwrap().info().uuid);
    assert!(uuids[0] != uuids[1] && !uuids.contains(&[0; 16]), "{uuids:?}");
}

/// Nothing of what was there before comes up, however often.
#[test]
fn an_image_is_made_over_another_one() {
    let image = Image::made(64);
    for round in 0..3 {
        let fs = F2fs::open_for_writing(&image.path).unwrap();
        for n in 0..300 {
            let made =
                fs.create(&Cred::root(), Ino::ROOT, name(&format!("{n}")), 0o600, OpenFlags::READ_WRITE);
            let file = made.unwrap().1;
            fs.write(&file, 0, &[n as u8; 9000]).unwrap();
            // What was fsynced is found again by the nodes' marks.
            fs.fsync(&file, false).unwrap();
            fs.release(file);
        }
        if round == 1 {
            fs.unmount().unwrap();
        }
        drop(fs);
        make_image(&image.path, "", &|_, _| ()).unwrap();
        checked(&image);
        assert_eq!(Tree::of(&F2fs::open_for_writing(&image.path).unwrap()).unwrap().nodes.len(), 1);
    }
}

#[test]
fn a_small_image_can_be_filled_and_emptied() {
    let image = Image::made(64);
    for _ in 0..2 {
        let fs = F2fs::open_for_writing(&image.path).unwrap();
        let mut files = 0;
        let full = loop {
            let made =
                fs.create(&Cred::root(), Ino::ROOT, name(&format!("{files}")), 0o600, OpenFlags::READ_WRITE);
            let file = match made {
                Ok((_, file)) => file,
                Err(error) => break error,
            };
            files += 1;
            let wrote = fs.write(&file, 0, &[files as u8; 100_000]);
            fs.release(file);
            if let Err(error) = wrote {
                break error;
            }
        };
        assert_eq!(full, Error::NoSpace);
        assert!(files > 100, "{files}");
        fs.sync().unwrap();
        for n in 0..files {
            fs.unlink(&Cred::root(), Ino::ROOT, name(&format!("{n}"))).unwrap();
        }
        fs.unmount().unwrap();
        drop(fs);
        checked(&image);
    }
}

#[test]
fn what_is_too_small_or_in_use_is_left_alone() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(IMAGE_BYTES_MIN - 4096).unwrap();
    file.write_all_at(b"mine", 0).unwrap();
    let refused = make_image(&path, "", &|_, _| ()).unwrap_err();
    assert!(matches!(refused, OpenError::Size { .. }), "{refused}");
    assert!(refused.to_string().contains("63 MiB"), "{refused}");
    let mut word = [0; 4];
    File::open(&path).unwrap().read_exact_at(&mut word, 0).unwrap();
    assert_eq!(&word, b"mine");

    let image = Image::made(64);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    assert!(matches!(make_image(&image.path, "", &|_, _| ()), Err(OpenError::InUse { .. })));
    fs.sync().unwrap();
}

/// Copies of this process's descriptors of a file, as a child has that another thread is just starting.
fn copies_of_descriptors(path: &Path) -> Vec<File> {
    let leads_here = |fd: &std::fs::DirEntry| std::fs::read_link(fd.path()).is_ok_and(|to| to == path);
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(leads_here);
    fds.map(|fd| {
        let fd: i32 = fd.file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: the image is open for as long as this function runs, and so is its descriptor.
        let copy = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        copy.unwrap().into()
    })
    .collect()
}

#[test]
fn a_closed_image_is_free_although_a_starting_child_has_its_descriptors() {
    let image = Image::made(64);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let copies = copies_of_descriptors(&image.path);
    assert!(!copies.is_empty());
    fs.unmount().unwrap();
    drop(fs);
    F2fs::open_for_writing(&image.path).unwrap();
}

/// A loop device over an image, gone with this.
struct Loop(String);

impl Loop {
    /// `None`, said loudly, without the rights to have one.
    fn over(image: &Image) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image.path).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            eprintln!("SKIPPED, NOT TESTED: no loop device can be made here, which takes root");
            return None;
        };
        Some(Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A mounted device is opened in the same way, exclusively.
#[test]
fn a_device_that_somebody_has_alone_is_left_alone() {
    let image = Image::made(64);
    let Some(device) = Loop::over(&image) else { return };
    let path = Path::new(&device.0);
    let alone = File::options().read(true).custom_flags(libc::O_EXCL).open(path).unwrap();
    assert!(matches!(make_image(path, "", &|_, _| ()), Err(OpenError::InUse { .. })));
    assert!(matches!(F2fs::open_for_writing(path), Err(OpenError::InUse { .. })));
    assert_eq!(F2fs::open(path).unwrap().info().label, "ours ☃");
    drop(alone);
    make_image(path, "anew", &|_, _| ()).unwrap();
    let fs = F2fs::open_for_writing(path).unwrap();
    assert_eq!((fs.info().label.as_str(), fs.info().geometry.blocks), ("anew", (64 << 20) / 4096));
    fs.sync().unwrap();
}
