//! Many threads on one image: every byte is somebody's, names are there or not, and what is left is in order.

mod common;

use common::{Image, fsck_is_clean, open_as};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::testkit::{FsFile, Tree, appenders, crowd};
use heddle_vfs::{Cred, Error, FileKind, FileSystem, Ino, Name, NewNode, OpenFlags, RenameMode, SetAttr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const WRITERS: u64 = 4;
const ROUNDS: u64 = 400;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

#[test]
fn writers_readers_and_checkpoints_go_side_by_side() {
    Variant::ALL.into_iter().for_each(side_by_side);
}

fn side_by_side(variant: Variant) {
    let Some(image) = Image::empty(128, &[]) else { return };
    let fs = open_as(&image.path, variant).unwrap();
    let root = Cred::root();
    let (shared, file) = fs.create(&root, Ino::ROOT, name("shared"), 0o644, OpenFlags::READ_WRITE).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|me| {
                let (fs, file, root) = (&fs, &file, &root);
                scope.spawn(move || {
                    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
                    let dir = fs.make(root, Ino::ROOT, name(&format!("dir {me}")), node).unwrap().ino;
                    for round in 0..ROUNDS {
                        let bytes = [me as u8 + 1; 10_000];
                        // Whole records that overlap others', and pages of its own.
                        fs.write(file, round % 40 * 5_000, &bytes).unwrap();
                        let (_, own) = fs
                            .create(root, dir, name(&format!("file {round}")), 0o600, OpenFlags::WRITE)
                            .unwrap();
                        fs.append(&own, &bytes[..(round * 37 % 9_000) as usize + 1]).unwrap();
                        fs.release(own);
                        if round % 3 == 0 {
                            let to = format!("{me} {round}");
                            fs.rename(
                                root,
                                dir,
                                name(&format!("file {round}")),
                                Ino::ROOT,
                                name(&to),
                                RenameMode::NoReplace,
                            )
                            .unwrap();
                        } else if round % 3 == 1 {
                            fs.unlink(root, dir, name(&format!("file {round}"))).unwrap();
                        }
                        // A name that all of them make and take away.
                        match fs.create(root, Ino::ROOT, name("contended"), 0o600, OpenFlags::WRITE) {
                            Ok((_, one)) => fs.release(one),
                            Err(error) => assert_eq!(error, Error::Exists),
                        }
                        if let Err(error) = fs.unlink(root, Ino::ROOT, name("contended")) {
                            assert_eq!(error, Error::NotFound);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Relaxed) {
                fs.sync().unwrap();
            }
        });
        scope.spawn(|| {
            let mut back = vec![0; 5_000];
            while !done.load(Relaxed) {
                // Records begin and end at multiples of this: each piece is of one writer.
                for at in 0..40 {
                    let read = fs.read(&file, at * 5_000, &mut back).unwrap();
                    assert!(back[..read].iter().all(|b| *b == back[0]), "piece {at} is of two writers");
                }
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Relaxed);
    });
    fs.release(file);
    assert_eq!(fs.getattr(shared.ino).unwrap().size_bytes, 39 * 5_000 + 10_000);
    let tree = Tree::of(&fs).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    fsck_is_clean(&image.path);
    let again = Tree::of(&F2fs::open(&image.path).unwrap()).unwrap();
    assert_eq!(again.difference(&tree), None);
    let kept = (0..ROUNDS).filter(|round| round % 3 == 2).count() as u64;
    let moved = (0..ROUNDS).filter(|round| round % 3 == 0).count() as u64;
    assert_eq!(again.nodes.len() as u64, 2 + WRITERS * (1 + kept + moved));
}

#[test]
fn appends_never_overlap_nor_get_lost() {
    for variant in Variant::ALL {
        let image = Image::made(64);
        let fs = open_as(&image.path, variant).unwrap();
        let open = || FsFile::open(&fs, "/log", libc::O_RDWR | libc::O_CREAT);
        let reader = open().unwrap();
        let report = appenders::check(4, 200, &|| Ok(Box::new(open()?)), &reader).unwrap();
        assert!(report.is_clean() && report.records == 800, "{variant:?}: {report:?}");
    }
}

/// As each system, on an image of its own.
fn each_system(work: impl Fn(&F2fs)) {
    for variant in Variant::ALL {
        println!("{}", variant.name());
        let image = Image::made(64);
        let fs = open_as(&image.path, variant).unwrap();
        work(&fs);
        fs.unmount().unwrap();
    }
}

#[test]
fn a_write_that_returned_is_seen_by_every_later_read() {
    each_system(|fs| crowd::writes_are_seen(fs));
}

#[test]
fn concurrent_extending_writes_all_stay() {
    for variant in Variant::ALL {
        println!("{}", variant.name());
        let image = Image::made(128);
        let fs = open_as(&image.path, variant).unwrap();
        crowd::write_records(&fs);
        crowd::records_are_there(&fs, "before the remount");
        fs.sync().unwrap();
        drop(fs);
        crowd::records_are_there(&open_as(&image.path, variant).unwrap(), "after the remount");
    }
}

#[test]
fn of_many_that_create_or_remove_one_name_one_succeeds() {
    each_system(|fs| crowd::one_wins_each_name(fs));
}

#[test]
fn an_attribute_that_is_replaced_is_read_whole() {
    each_system(|fs| crowd::attributes_are_read_whole(fs, 3000));
}

#[test]
fn readers_see_a_shift_whole_or_not_at_all() {
    each_system(|fs| crowd::shifts_are_read_whole(fs));
}

#[test]
fn a_copy_is_one_read_and_one_write() {
    each_system(|fs| crowd::copies_are_one_read_and_one_write(fs));
}

#[test]
fn a_tmpfile_ends_with_its_handle_or_is_linked_once() {
    each_system(|fs| crowd::nameless_files_end_or_are_named_once(fs));
}

#[test]
fn naming_a_file_against_its_last_close_leaves_it_whole() {
    each_system(|fs| crowd::naming_against_the_last_close_leaves_files_whole(fs));
}

#[test]
fn times_never_go_back_whatever_writes_and_changes_at_once() {
    for variant in Variant::ALL {
        let Some(image) = Image::empty(64, &[]) else { return };
        let fs = open_as(&image.path, variant).unwrap();
        let root = Cred::root();
        let (_, file) = fs.create(&root, Ino::ROOT, name("f"), 0o644, OpenFlags::READ_WRITE).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (fs, file, root, done) = (&fs, &file, &root, &done);
            for me in 0..3_u64 {
                scope.spawn(move || {
                    for round in (0_u64..).take_while(|_| !done.load(Relaxed)) {
                        if me == 2 && round % 8 == 0 {
                            let set =
                                SetAttr { perm: Some(0o600 | (round as u16 & 0o77)), ..SetAttr::default() };
                            fs.setattr(root, file.ino, Some(file), &set).unwrap();
                        }
                        fs.write(file, me * 100, &[round as u8; 100]).unwrap();
                    }
                });
            }
            let until = Instant::now() + Duration::from_millis(400);
            let mut before = None;
            while Instant::now() < until {
                let attr = fs.getattr(file.ino).unwrap();
                let now = Some((attr.mtime, attr.ctime));
                if now.map(|now| now.0) < before.map(|before: (_, _)| before.0)
                    || now.map(|now| now.1) < before.map(|before| before.1)
                {
                    done.store(true, Relaxed);
                    panic!("{variant:?}: {now:?} after {before:?}");
                }
                before = now;
            }
            done.store(true, Relaxed);
        });
        fs.release(file);
        fs.unmount().unwrap();
    }
}
