//! Threads side by side in one file or one directory: each check is a promise, for any file system.

use super::{Short, name, root};
use crate::{Error, FileSystem, Handle, Ino, OpenFlags, RangeOp, SetXattr, XattrName};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How many threads [`together`] runs.
pub const THREADS: u64 = 4;
const PAGE: usize = 4096;

/// Runs [`THREADS`] times `work(number)` at once.
pub fn together(work: impl Fn(u64) + Sync) {
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(number);
            });
        }
    });
}

/// Raised when it is dropped: after a panic, too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Runs `disturb` in a thread of its own until `work` has returned.
pub fn beside(disturb: impl Fn(u64) + Sync, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..).take_while(|_| !stop.load(SeqCst)).for_each(&disturb));
        let _stops_also_after_a_panic = Stop(&stop);
        work();
    });
}

/// Bytes of a record of [`write_records`], which shares pages with its neighbours.
const RECORD: u64 = 1000;
const RECORDS: u64 = 20_000;

/// Makes `/f`: records, dealt out to the threads in turn, each written at its place, most of them beyond the end. Each thread reads
/// the record behind its own, which another one writes.
///
/// # Panics
/// If the size does not follow a write that has returned, or that a read has seen.
pub fn write_records(fs: &dyn FileSystem) {
    fs.release(fs.new_file(Ino::ROOT, "f"));
    together(|number| {
        let handle = fs.open_file(Ino::ROOT, "f");
        for record in (number..RECORDS).step_by(THREADS as usize) {
            fs.write(&handle, record * RECORD, &[(record % 251) as u8 + 1; RECORD as usize]).unwrap();
            assert!(fs.size(&handle) >= (record + 1) * RECORD, "the size follows a write that returned");
            let next = fs.read_vec(&handle, (record + 1) * RECORD, RECORD as usize);
            let is_written = next.iter().any(|byte| *byte != 0);
            assert!(!is_written || next.len() as u64 == RECORD, "the size follows a write that is seen");
            assert!(!is_written || fs.size(&handle) >= (record + 2) * RECORD, "the size stays behind");
        }
        fs.release(handle);
    });
}

/// Holds `/f` to what [`write_records`] has written.
///
/// # Panics
/// If a record is not there.
pub fn records_are_there(fs: &dyn FileSystem, when: &str) {
    let handle = fs.open_file(Ino::ROOT, "f");
    let bytes = fs.read_vec(&handle, 0, (RECORDS * RECORD) as usize + 9);
    assert_eq!(bytes.len() as u64, RECORDS * RECORD, "{when}");
    let wrong = (0..RECORDS).find(|r| {
        bytes[(r * RECORD) as usize..][..RECORD as usize].iter().any(|b| *b != (r % 251) as u8 + 1)
    });
    assert_eq!(wrong, None, "{when}: this record is not what was written");
    fs.release(handle);
}

/// One page a thread; each reads all others' pages and holds them to what had been announced before.
///
/// # Panics
/// If a read is older than a write that had returned, or shows half of one.
pub fn writes_are_seen(fs: &dyn FileSystem) {
    fs.release(fs.new_file(Ino::ROOT, "f"));
    let announced: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    together(|me| {
        let handle = fs.open_file(Ino::ROOT, "f");
        for number in 1..=3000_u64 {
            fs.write(&handle, me * PAGE as u64, &number.to_le_bytes().repeat(512)).unwrap();
            announced[me as usize].store(number, SeqCst);
            let other = (me + number) % THREADS;
            let floor = announced[other as usize].load(SeqCst);
            let bytes = fs.read_vec(&handle, other * PAGE as u64, PAGE);
            let seen = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            assert!(seen >= floor, "read {seen} after the write of {floor} had returned");
            assert!(bytes.chunks_exact(8).all(|w| w == &bytes[..8]), "half a write");
        }
        fs.release(handle);
    });
}

/// One winner a name, whoever makes or removes it.
///
/// # Panics
/// If there are two, or none.
pub fn one_wins_each_name(fs: &dyn FileSystem) {
    for round in 0..100 {
        let (made, gone) = (AtomicU64::new(0), AtomicU64::new(0));
        let text = format!("n{}", round % 3);
        together(|_| match fs.try_file(Ino::ROOT, &text) {
            Ok(handle) => {
                made.fetch_add(1, SeqCst);
                fs.release(handle);
            }
            Err(error) => assert_eq!(error, Error::Exists),
        });
        together(|_| match fs.remove(Ino::ROOT, &text) {
            Ok(()) => {
                gone.fetch_add(1, SeqCst);
            }
            Err(error) => assert_eq!(error, Error::NotFound),
        });
        let won = (made.load(SeqCst), gone.load(SeqCst));
        assert_eq!(won, (1, 1), "so many have made, and so many removed one name");
    }
}

/// An attribute of up to so many bytes is replaced; a reader finds one value.
///
/// # Panics
/// If it finds parts of two.
pub fn attributes_are_read_whole(fs: &dyn FileSystem, most_bytes: usize) {
    let file = fs.new_file(Ino::ROOT, "f");
    let attribute = XattrName::new(b"user.a").unwrap();
    let set = |round: u64| {
        let len = 1 + (round as usize * 3001) % most_bytes;
        fs.setxattr(&root(), file.ino, attribute, &vec![round as u8; len], SetXattr::Any).unwrap();
    };
    set(0);
    let mut seen = 0;
    beside(set, || {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(400) {
            let value = fs.getxattr(&root(), file.ino, attribute).unwrap();
            assert!(value.iter().all(|byte| *byte == value[0]), "parts of two values");
            seen += 1;
        }
    });
    assert!(seen > 100, "{seen}");
    fs.release(file);
}

/// Pages carry their number; a page is inserted in front and cut out again. A read of the whole finds it done or not.
///
/// # Panics
/// If it finds half of it.
pub fn shifts_are_read_whole(fs: &dyn FileSystem) {
    let file = fs.new_file(Ino::ROOT, "f");
    for page in 0..20 {
        fs.write(&file, page * PAGE as u64, &[page as u8 + 1; PAGE]).unwrap();
    }
    let (first, at) = (PAGE as u64, 7 * PAGE as u64);
    let shift = |round: u64| {
        let op = if round.is_multiple_of(2) { RangeOp::Insert } else { RangeOp::Collapse };
        fs.fallocate(&file, op, if round % 4 < 2 { first } else { at }, PAGE as u64).unwrap();
    };
    let mut seen = [0; 2];
    beside(shift, || {
        // Longer where the one who shifts hardly gets in between.
        let (start, least, most) = (Instant::now(), Duration::from_millis(400), Duration::from_secs(20));
        while start.elapsed() < least || (seen.contains(&0) && start.elapsed() < most) {
            let bytes = fs.read_vec(&file, 0, 40 * PAGE);
            let pages: Vec<u8> = bytes.chunks(PAGE).map(|page| page[0]).collect();
            assert!(bytes.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == page[0])), "{pages:?}");
            let numbers: Vec<u8> = pages.iter().copied().filter(|page| *page != 0).collect();
            assert_eq!(numbers, (1..=20).collect::<Vec<u8>>(), "half a shift: {pages:?}");
            seen[pages.len() - 20] += 1;
        }
    });
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    fs.release(file);
}

/// A file is overwritten whole by one thread and copied by another; whatever is copied is one content of it, and is seen whole.
///
/// # Panics
/// If a copy has parts of two contents, or a read parts of two copies; if a call copies more than a mebibyte.
pub fn copies_are_one_read_and_one_write(fs: &dyn FileSystem) {
    const LEN: usize = 20 * PAGE + 100;
    const MOST: usize = 1 << 20;
    let [source, target] = ["source", "target"].map(|text| fs.new_file(Ino::ROOT, text));
    let content = |round: u64| vec![(round % 250) as u8 + 1; LEN];
    fs.write(&source, 0, &content(0)).unwrap();
    let copy = || fs.copy_range(&source, 0, &target, 0, LEN as u64).unwrap();
    assert_eq!(copy(), LEN as u64);
    let done = AtomicBool::new(false);
    together(|me| match me {
        0 => (0..400).for_each(|_| assert_eq!(copy(), LEN as u64)),
        1 => (0..).take_while(|_| !done.load(SeqCst)).for_each(|round| {
            fs.write(&source, 0, &content(round)).unwrap();
        }),
        _ => {
            let _stops_also_after_a_panic = Stop(&done);
            (0..400).for_each(|_| {
                let bytes = fs.read_vec(&target, 0, 2 * LEN);
                assert!(bytes.len() == LEN && bytes.iter().all(|byte| *byte == bytes[0]), "parts of two");
            });
        }
    });
    let long: Vec<u8> = (0..MOST + 5000).map(|at| (at % 251) as u8).collect();
    fs.write(&source, 0, &long).unwrap();
    for (from, copied) in [(0, MOST), (MOST, 5000), (MOST + 5000, 0)] {
        assert_eq!(fs.copy_range(&source, from as u64, &target, from as u64, 1 << 30), Ok(copied as u64));
    }
    assert!(fs.read_vec(&target, 0, 2 * MOST) == long);
    fs.release(source);
    fs.release(target);
}

/// A new file without a name.
///
/// # Panics
/// If there can be none.
pub fn unnamed(fs: &dyn FileSystem, linkable: bool) -> Handle {
    fs.tmpfile(&root(), Ino::ROOT, 0o600, OpenFlags::READ_WRITE, linkable).unwrap().1
}

/// A file without a name is gone with its last handle, or gets one name.
///
/// # Panics
/// If it keeps its blocks, or gets another name.
pub fn nameless_files_end_or_are_named_once(fs: &dyn FileSystem) {
    let free = || fs.statfs().unwrap().blocks_free;
    let link = |file: &Handle, text: &str| fs.link(&root(), file.ino, Ino::ROOT, name(text));
    let warm = unnamed(fs, true);
    fs.write(&warm, 0, &[1; PAGE]).unwrap();
    fs.release(warm);
    let before = free();
    for _ in 0..50 {
        let gone = unnamed(fs, true);
        fs.write(&gone, 0, &[1; 9 * PAGE]).unwrap();
        assert_eq!(fs.getattr(gone.ino).unwrap().nlink, 0);
        fs.release(gone);
    }
    assert!(free() + 8 > before, "{before} blocks were free, then {}", free());
    let exclusive = unnamed(fs, false);
    assert_eq!(link(&exclusive, "never"), Err(Error::NotFound));
    fs.release(exclusive);
    let named = unnamed(fs, true);
    fs.write(&named, 0, b"content").unwrap();
    assert_eq!(link(&named, "named").unwrap().nlink, 1);
    fs.remove(Ino::ROOT, "named").unwrap();
    assert_eq!(link(&named, "again"), Err(Error::NotFound), "it had its name");
    fs.release(named);
}

/// Of naming a file and closing it last one comes first; either way it is whole or gone.
///
/// # Panics
/// If it is neither.
pub fn naming_against_the_last_close_leaves_files_whole(fs: &dyn FileSystem) {
    for round in 0..500 {
        let file = unnamed(fs, true);
        let (ino, text) = (file.ino, format!("n{round}"));
        fs.write(&file, 0, b"content").unwrap();
        let linked = std::thread::scope(|scope| {
            let close = scope.spawn(|| fs.release(file));
            let linked = fs.link(&root(), ino, Ino::ROOT, name(&text));
            close.join().unwrap();
            linked
        });
        match linked {
            Ok(_) => {
                let again = fs.open_file(Ino::ROOT, &text);
                assert_eq!(fs.read_vec(&again, 0, 99), b"content");
                fs.release(again);
            }
            Err(Error::NotFound | Error::Stale) => {
                assert_eq!(fs.find(Ino::ROOT, &text).map(|attr| attr.ino), Err(Error::NotFound));
            }
            Err(error) => panic!("{error}"),
        }
    }
}
