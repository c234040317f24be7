//! Many threads on one image: every byte is somebody's, names are there or not, and what is left is in order.

mod common;

use common::{Image, fsck_is_clean, open_as};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::testkit::{FsFile, Tree, appenders};
use heddle_vfs::{Cred, Error, FileKind, FileSystem, Ino, Name, NewNode, OpenFlags, RenameMode, SetAttr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
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

/// Runs this in all threads at once; each is told its number.
fn together(work: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        for me in 0..WRITERS {
            let work = &work;
            scope.spawn(move || work(me));
        }
    });
}

/// One winner a name, whoever tries.
#[test]
fn of_many_that_create_or_remove_one_name_one_succeeds() {
    for variant in Variant::ALL {
        let image = Image::made(64);
        let fs = open_as(&image.path, variant).unwrap();
        let root = Cred::root();
        for round in 0..100 {
            let (made, gone) = (AtomicU64::new(0), AtomicU64::new(0));
            let text = format!("n{}", round % 3);
            together(|_| match fs.create(&root, Ino::ROOT, name(&text), 0o600, OpenFlags::WRITE) {
                Ok((_, file)) => {
                    made.fetch_add(1, SeqCst);
                    fs.release(file);
                }
                Err(error) => assert_eq!(error, Error::Exists, "{variant:?}"),
            });
            together(|_| match fs.unlink(&root, Ino::ROOT, name(&text)) {
                Ok(()) => {
                    gone.fetch_add(1, SeqCst);
                }
                Err(error) => assert_eq!(error, Error::NotFound, "{variant:?}"),
            });
            assert_eq!((made.load(SeqCst), gone.load(SeqCst)), (1, 1), "{variant:?}");
        }
    }
}

/// Records of 1,000 bytes, dealt out to the threads in turn: every write shares pages with its neighbours'.
#[test]
fn concurrent_extending_writes_all_stay() {
    const RECORD: u64 = 1000;
    const RECORDS: u64 = 8_000;
    let byte = |record: u64| (record % 251) as u8 + 1;
    for variant in Variant::ALL {
        let image = Image::made(64);
        let fs = open_as(&image.path, variant).unwrap();
        let (attr, file) =
            fs.create(&Cred::root(), Ino::ROOT, name("f"), 0o600, OpenFlags::READ_WRITE).unwrap();
        together(|me| {
            for record in (me..RECORDS).step_by(WRITERS as usize) {
                fs.write(&file, record * RECORD, &[byte(record); RECORD as usize]).unwrap();
                let size = fs.getattr(attr.ino).unwrap().size_bytes;
                assert!(size >= (record + 1) * RECORD, "{variant:?}: the size follows a write that returned");
            }
        });
        let mut bytes = vec![0; (RECORDS * RECORD) as usize + 9];
        assert_eq!(fs.read(&file, 0, &mut bytes), Ok((RECORDS * RECORD) as usize), "{variant:?}");
        let is_wrong = |record: &u64| {
            let at = (record * RECORD) as usize;
            bytes[at..at + RECORD as usize].iter().any(|found| *found != byte(*record))
        };
        assert_eq!((0..RECORDS).find(is_wrong), None, "{variant:?}: this record is not what was written");
        fs.release(file);
        fs.unmount().unwrap();
    }
}
