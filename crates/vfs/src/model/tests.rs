use super::linux::LinuxFs;
use super::*;
use crate::testkit::{Calls, Differential, agrees_with_model};
use crate::{FileKind, SetTime};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn root() -> Cred {
    Cred::root()
}

fn create(fs: &ModelFs, text: &str) -> Handle {
    fs.create(&root(), Ino::ROOT, name(text), 0o644, OpenFlags::READ_WRITE).unwrap().1
}

fn mkdir(fs: &ModelFs, parent: Ino, text: &str) -> Ino {
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    fs.make(&root(), parent, name(text), node).unwrap().ino
}

/// The oracle has an oracle: the kernel's file system below the temporary directory, errno by errno.
#[test]
fn the_model_does_what_linux_does() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED, NOT TESTED: comparing the model with the kernel needs root");
        return;
    }
    // Linux' hardening (fs.protected_hardlinks) forbids users links that POSIX allows; ext4 moves mtime even when a range
    // cannot be cut out.
    let lacking = LinuxFs::new().lacks();
    let calls = Calls::ALL.without(Calls::SHIFT).without(Calls::LARGE_XATTR);
    let times_aside = Calls::ALL.without(Calls::USERS).without(Calls::ATTRIBUTES).without(Calls::LARGE_XATTR);
    for calls in [calls.without(Calls::USERS), calls.without(Calls::LINK), times_aside] {
        agrees_with_model(
            Differential { calls: calls.without(lacking), cases: 150, steps_max: 80 },
            LinuxFs::new,
            None,
        );
    }
}

#[test]
fn growing_shows_zeros_and_never_what_was_cut_off() {
    let fs = ModelFs::new();
    let file = create(&fs, "f");
    fs.write(&file, 0, &[7; 10_000]).unwrap();
    let resize = |size| {
        fs.setattr(&root(), file.ino, Some(&file), &SetAttr { size_bytes: Some(size), ..SetAttr::default() })
            .unwrap()
    };
    resize(5000);
    resize(10_000);
    let mut content = vec![1; 10_000];
    assert_eq!(fs.read(&file, 0, &mut content), Ok(10_000));
    assert!(content[..5000].iter().all(|b| *b == 7) && content[5000..].iter().all(|b| *b == 0));
    fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, 0, 100_000).unwrap();
    assert_eq!(resize(10_000).blocks_512, 24, "what was preallocated beyond the end is given back");
}

#[test]
fn nothing_is_written_beyond_the_largest_offset() {
    let fs = ModelFs::new();
    let file = create(&fs, "f");
    assert_eq!(fs.write(&file, crate::OFFSET_MAX_BYTES - 1, b"x"), Ok(1));
    assert_eq!(fs.write(&file, crate::OFFSET_MAX_BYTES - 1, b"xy"), Ok(1));
    assert_eq!(fs.write(&file, crate::OFFSET_MAX_BYTES, b"x"), Err(Error::FileTooBig));
    assert_eq!(fs.append(&file, b"x"), Err(Error::FileTooBig));
    assert_eq!(fs.write(&file, u64::MAX, b"x"), Err(Error::FileTooBig));
    assert_eq!(fs.fallocate(&file, RangeOp::Punch, u64::MAX, u64::MAX), Err(Error::FileTooBig));
}

#[test]
fn handles_are_given_back_once_and_keep_their_file() {
    let fs = ModelFs::new();
    let file = create(&fs, "f");
    let copy = Handle { ino: file.ino, flags: file.flags, token: file.token };
    let other = Handle { ino: Ino::ROOT, flags: file.flags, token: file.token };
    fs.write(&file, 0, b"data").unwrap();
    fs.unlink(&root(), Ino::ROOT, name("f")).unwrap();
    assert_eq!(fs.getattr(file.ino).unwrap().nlink, 0);
    assert_eq!(fs.read(&other, 0, &mut [0; 4]), Err(Error::BadHandle));
    let ino = file.ino;
    fs.release(file);
    assert_eq!(fs.read(&copy, 0, &mut [0; 4]), Err(Error::BadHandle));
    assert_eq!(fs.getattr(ino), Err(Error::Stale));
}

#[test]
fn places_in_a_directory_survive_changes() {
    let fs = ModelFs::new();
    for number in 0..10 {
        mkdir(&fs, Ino::ROOT, &format!("d{number}"));
    }
    let dir = fs.open(&root(), Ino::ROOT, OpenFlags::READ).unwrap();
    let list = |from: Cookie, count: usize| {
        let mut seen = Vec::new();
        fs.each_entry(&dir, from, &mut |entry| {
            seen.push((String::from_utf8_lossy(entry.name.bytes()).into_owned(), entry.next));
            seen.len() < count
        })
        .unwrap();
        seen
    };
    let first = list(Cookie::default(), 4);
    let place = first[3].1;
    fs.rmdir(&root(), Ino::ROOT, name(&first[3].0)).unwrap();
    fs.rmdir(&root(), Ino::ROOT, name("d7")).unwrap();
    mkdir(&fs, Ino::ROOT, "new");
    let rest: Vec<String> = list(place, 100).into_iter().map(|(name, _)| name).collect();
    assert_eq!(rest, ["d4", "d5", "d6", "d8", "d9", "new"]);
}

#[test]
fn the_clock_is_the_callers() {
    let fs = ModelFs::with_clock(|| Time(42));
    let file = create(&fs, "f");
    let set = SetAttr { mtime: Some(SetTime::At(Time(7))), ..SetAttr::default() };
    let attr = fs.setattr(&root(), file.ino, None, &set).unwrap();
    assert_eq!((attr.mtime, attr.ctime, attr.crtime), (Time(7), Time(42), Time(42)));
}

#[test]
fn a_removed_directory_takes_nothing_in() {
    let fs = ModelFs::new();
    let dir = mkdir(&fs, Ino::ROOT, "d");
    let open = fs.open(&root(), dir, OpenFlags::READ).unwrap();
    fs.rmdir(&root(), Ino::ROOT, name("d")).unwrap();
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    assert_eq!(fs.make(&root(), dir, name("x"), node), Err(Error::NotFound));
    assert_eq!(fs.getattr(dir).unwrap().nlink, 0);
    fs.release(open);
    assert_eq!(fs.getattr(dir), Err(Error::Stale));
}
