//! System calls on a mount, from this process.

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{model, mount, uncached};
use heddle_vfs::Time;
use heddle_vfs::model::ModelFs;
use heddle_vfs::testkit::torn::{self, SHAPES, Shape, TornConfig};
use heddle_vfs::testkit::{AppendIo, FsFile, PositionalIo, appenders};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, SeekFrom as RawSeek, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT,
};

fn open_rw(path: &std::path::Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

#[test]
fn a_directory_of_5000_entries_is_listed_renamed_and_emptied() {
    let Some(mount) = model() else { return };
    let dir = mount.path("many");
    fs::create_dir(&dir).unwrap();
    for number in 0..5000 {
        File::create(dir.join(format!("file-{number:04}"))).unwrap();
    }
    let names = || {
        fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let listed = names();
    assert_eq!(listed.len(), 5000);
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), 5000, "no name comes twice");
    for number in (0..5000).step_by(2) {
        fs::rename(dir.join(format!("file-{number:04}")), dir.join(format!("renamed-{number:04}"))).unwrap();
    }
    assert_eq!(names().iter().filter(|name| name.starts_with("renamed-")).count(), 2500);
    // Entries that leave while a reader walks do not make it miss or repeat others.
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        assert!(seen.insert(entry.file_name()), "{:?} came twice", entry.file_name());
        fs::remove_file(entry.path()).unwrap();
    }
    assert_eq!(seen.len(), 5000);
    fs::remove_dir(&dir).unwrap();
}

#[test]
fn holes_are_found_made_and_read_as_zeros() {
    let Some(mount) = model() else { return };
    let file = open_rw(&mount.path("sparse")).unwrap();
    file.write_all_at(b"end", 1 << 30).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 30) + 3);
    assert_eq!(file.metadata().unwrap().blocks(), 8);
    assert_eq!(rustix::fs::seek(&file, RawSeek::Data(0)), Ok(1 << 30));
    assert_eq!(rustix::fs::seek(&file, RawSeek::Hole(1 << 30)), Ok((1 << 30) + 3));
    assert_eq!(rustix::fs::seek(&file, RawSeek::Data((1 << 30) + 3)), Err(rustix::io::Errno::NXIO));
    file.write_all_at(&[7; 20_000], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 1000, 10_000).unwrap();
    let mut content = vec![1; 20_000];
    file.read_exact_at(&mut content, 0).unwrap();
    assert!(content.iter().enumerate().all(|(at, b)| *b == if (1000..11_000).contains(&at) { 0 } else { 7 }));
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 500).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 1 << 30, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 30) + (1 << 20));
    let collapsed = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(
        collapsed,
        Err(rustix::io::Errno::OPNOTSUPP),
        "this kernel's FUSE has no collapse; if it has now, test it"
    );
}

#[test]
fn links_times_and_modes_are_kept() {
    let Some(mount) = mount(Arc::new(ModelFs::new()), &uncached()) else {
        return;
    };
    let (one, two) = (mount.path("one"), mount.path("two"));
    fs::write(&one, "text").unwrap();
    fs::hard_link(&one, &two).unwrap();
    symlink("one", mount.path("link")).unwrap();
    assert_eq!(fs::read(mount.path("link")).unwrap(), b"text");
    assert_eq!(fs::read_link(mount.path("link")).unwrap().as_os_str(), "one");
    let (a, b) = (fs::metadata(&one).unwrap(), fs::metadata(&two).unwrap());
    assert_eq!((a.ino(), a.nlink(), b.nlink()), (b.ino(), 2, 2));
    common::chmod(&one, 0o4751);
    assert_eq!(fs::metadata(&two).unwrap().mode() & 0o7777, 0o4751);

    let set = |atime: (i64, i64), mtime: (i64, i64)| {
        let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        rustix::fs::utimensat(CWD, &one, &times, AtFlags::empty()).unwrap();
        let meta = fs::metadata(&one).unwrap();
        ((meta.atime(), meta.atime_nsec()), (meta.mtime(), meta.mtime_nsec()))
    };
    assert_eq!(set((5, 999_999_999), (1 << 32, 7)), ((5, 999_999_999), (1 << 32, 7)));
    assert_eq!(set((-2, 250_000_000), (-1_000_000, 1)), ((-2, 250_000_000), (-1_000_000, 1)));
    assert_eq!(set((77, 0), (0, UTIME_OMIT)), ((77, 0), (-1_000_000, 1)));
    let ((_, _), (now, _)) = set((0, UTIME_OMIT), (0, UTIME_NOW));
    assert!(now > 1_600_000_000, "{now}");
    // No time that the kernel lets through may stop the server.
    // (In builds with overflow checks fuser 0.18 itself panics at i64::MIN, so that one is left out.)
    set((i64::MAX, 0), (i64::MAX - 1, 999_999_999));
    set((i64::MIN + 1, 999_999_999), (i64::MIN + 1, 0));
    // A time beyond the engine's range is set as its end, as Linux does at the ends of a file system's.
    assert_eq!(set((32_503_680_000, 7), (77, 0)), ((9_223_372_036, 854_775_807), (77, 0)));
    assert!(fs::metadata(&one).is_ok());
}

#[test]
fn rename_replaces_exchanges_and_refuses() {
    let Some(mount) = model() else { return };
    let (a, b) = (mount.path("a"), mount.path("b"));
    let rename = |from: &std::path::Path, to: &std::path::Path, flags| {
        rustix::fs::renameat_with(CWD, from, CWD, to, flags)
    };
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(&a, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    rename(&a, &b, RenameFlags::empty()).unwrap();
    assert!(!a.exists());
    assert_eq!(rename(&b, &a, RenameFlags::WHITEOUT), Err(rustix::io::Errno::INVAL));
    fs::create_dir_all(mount.path("d/e")).unwrap();
    assert_eq!(
        rename(&mount.path("d"), &mount.path("d/e/f"), RenameFlags::empty()),
        Err(rustix::io::Errno::INVAL)
    );
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let Some(mount) = model() else { return };
    let mut file = open_rw(&mount.path("gone")).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(mount.path("gone")).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), file.metadata().unwrap().nlink()), ("still here", 0));
    file.set_len(5).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
}

#[test]
fn a_read_only_descriptor_and_a_read_only_mount_do_not_write() {
    let options = heddle_fuse::MountOptions { read_only: true, ..Default::default() };
    let Some(mount) = mount(Arc::new(ModelFs::new()), &options) else { return };
    assert_eq!(File::create(mount.path("f")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    drop(mount);
    let Some(mount) = model() else { return };
    fs::write(mount.path("f"), "x").unwrap();
    let file = File::open(mount.path("f")).unwrap();
    assert_eq!((&file).write(b"y").unwrap_err().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn reads_through_the_mount_are_never_torn() {
    let Some(mount) = model() else { return };
    let longest = Shape { offset: 1000, len_bytes: (1 << 20) - 4096 };
    for (shape, reads) in SHAPES.into_iter().chain([longest]).zip([3000, 1500, 300, 200]) {
        let path = mount.path("torn");
        let config = TornConfig { reads, limit: Duration::from_secs(30), ..TornConfig::new(shape) };
        let report =
            torn::check(&config, &|| Ok(Box::new(open_rw(&path)?) as Box<dyn PositionalIo>)).unwrap();
        assert!(report.is_clean() && report.reads > 0, "{shape:?} {report:?}");
    }
}

#[test]
fn appends_through_the_mount_lose_nothing_and_tell_where_they_went() {
    let Some(mount) = model() else { return };
    let path = mount.path("log");
    open_rw(&path).unwrap();
    let open = || Ok(Box::new(Mutex::new(File::options().append(true).open(&path)?)) as Box<dyn AppendIo>);
    let report = appenders::check(4, 200, &open, &File::open(&path).unwrap()).unwrap();
    assert!(report.is_clean() && report.records == 800, "{report:?}");
}

#[test]
fn two_writers_of_one_file_are_in_the_engine_at_once() {
    // The model asks its clock before it takes its lock: a call waits there for another one.
    let meeting = Arc::new((Mutex::new(0), Condvar::new()));
    let armed = Arc::new(AtomicBool::new(false));
    let clock = {
        let (meeting, armed) = (meeting.clone(), armed.clone());
        move || {
            if armed.load(SeqCst) {
                let mut inside = meeting.0.lock().unwrap();
                *inside += 1;
                meeting.1.notify_all();
                let _ = meeting
                    .1
                    .wait_timeout_while(inside, Duration::from_secs(10), |inside| *inside < 2)
                    .unwrap();
            }
            Time(1)
        }
    };
    let Some(mount) = mount(Arc::new(ModelFs::with_clock(clock)), &Default::default()) else { return };
    let path = mount.path("shared");
    fs::write(&path, [0; 8192]).unwrap();
    let files = [open_rw(&path).unwrap(), open_rw(&path).unwrap()];
    armed.store(true, SeqCst);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for (at, file) in files.iter().enumerate() {
            scope.spawn(move || file.write_all_at(&[1; 4096], at as u64 * 4096).unwrap());
        }
    });
    armed.store(false, SeqCst);
    assert_eq!(*meeting.0.lock().unwrap(), 2);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "the kernel let the second writer in only after the first"
    );
}

/// How long a write may be that stays whole: the kernel counts the pages of its buffer.
#[test]
fn a_write_of_256_pages_of_its_buffer_is_one_call() {
    let asked = Arc::new(AtomicU64::new(0));
    let clock = {
        let asked = Arc::clone(&asked);
        move || {
            asked.fetch_add(1, SeqCst);
            Time(1)
        }
    };
    let Some(mount) = mount(Arc::new(ModelFs::with_clock(clock)), &Default::default()) else { return };
    let file = open_rw(&mount.path("f")).unwrap();
    let buffer = vec![7; (1 << 20) + 2 * 4096];
    let border = buffer.as_ptr().align_offset(4096);
    // The model asks its clock as often for each call.
    let times = |from: usize, len: usize| {
        let before = asked.load(SeqCst);
        assert_eq!(FileExt::write_at(&file, &buffer[from..from + len], 0).unwrap(), len);
        asked.load(SeqCst) - before
    };
    times(border, 4096);
    let one = times(border, 4096);
    assert!(one > 0);
    let (whole, cut) = (times(border, 1 << 20), times(border + 8, 1 << 20));
    assert_eq!((whole, times(border + 8, (1 << 20) - 4096), cut), (one, one, 2 * one));
}

#[test]
fn an_append_goes_to_the_engines_end_not_to_the_kernels() {
    let engine = Arc::new(ModelFs::new());
    let Some(mount) = mount(engine.clone(), &Default::default()) else { return };
    let path = mount.path("log");
    fs::write(&path, "kernel ").unwrap();
    let mut log = File::options().append(true).open(&path).unwrap();
    assert_eq!(log.metadata().unwrap().len(), 7);
    let direct = FsFile::open(&*engine, "log", libc::O_WRONLY).unwrap();
    AppendIo::append(&direct, b"engine ").unwrap();
    log.write_all(b"kernel again").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"kernel engine kernel again");
}

/// Random operations on a file of the mount and on a plain file, as fsx does, mappings included.
#[test]
fn random_operations_give_what_a_plain_file_gives() {
    let Some(mount) = model() else { return };
    let plain_dir = tempfile::tempdir().unwrap();
    let ours = open_rw(&mount.path("fsx")).unwrap();
    let plain = open_rw(&plain_dir.path().join("fsx")).unwrap();
    let mut random = Random(0x5eed_1234_5678_9abc);
    for step in 0..3000 {
        let (offset, len) = (random.below(260_000), 1 + random.below(30_000));
        let what = random.below(10);
        let fill = random.below(255) as u8 + 1;
        for file in [&ours, &plain] {
            match what {
                0..=3 => file.write_all_at(&vec![fill; len as usize], offset).unwrap(),
                4 => file.set_len(offset).unwrap(),
                5 => punch(file, offset, len),
                6 => rustix::fs::fallocate(file, FallocateFlags::empty(), offset, len).unwrap(),
                7 => write_mapped(file, offset, fill),
                _ => {}
            }
        }
        let read = |file: &File| {
            let mut buf = vec![0xaa; len as usize];
            let read = FileExt::read_at(file, &mut buf, offset).unwrap();
            buf.truncate(read);
            (file.metadata().unwrap().len(), buf)
        };
        assert!(read(&ours) == read(&plain), "step {step}: operation {what} at {offset} for {len} bytes");
    }
    let whole = |file: &File| {
        let mut content = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        content
    };
    assert!(whole(&ours) == whole(&plain));
}

fn punch(file: &File, offset: u64, len: u64) {
    rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len).unwrap();
}

/// Fills up to a page at `offset` through a shared mapping.
fn write_mapped(file: &File, offset: u64, fill: u8) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let size = file.metadata().unwrap().len();
    let page = offset / 4096 * 4096;
    if page >= size {
        return;
    }
    let len = (size - page).min(4096) as usize;
    // SAFETY: a fresh mapping of one page, used and unmapped here alone; only bytes before the end of the file are
    // touched.
    unsafe {
        let map = mmap(
            std::ptr::null_mut(),
            4096,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            page,
        );
        let map = map.unwrap();
        std::ptr::write_bytes(map.cast::<u8>(), fill, len);
        msync(map, 4096, MsyncFlags::SYNC).unwrap();
        munmap(map, 4096).unwrap();
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[test]
fn stat_sees_at_once_what_a_program_changes_past_the_mount() {
    let engine = std::sync::Arc::new(heddle_vfs::model::ModelFs::new());
    let Some(mount) = common::mount(engine.clone(), &heddle_fuse::MountOptions::default()) else { return };
    fs::write(mount.path("file"), "before").unwrap();
    let path = mount.path("file");
    let size = || fs::metadata(&path).unwrap().len();
    assert_eq!(size(), 6);
    // A program that works past the mount has a descriptor of it nevertheless.
    let _open = fs::File::options().write(true).open(&path).unwrap();
    use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags};
    let ino = engine.lookup(&Cred::root(), Ino::ROOT, Name::new(b"file").unwrap()).unwrap().ino;
    let past = engine.open(&Cred::root(), ino, OpenFlags::WRITE).unwrap();
    for len in 7..200 {
        engine.append(&past, b"x").unwrap();
        assert_eq!(size(), len);
    }
    engine.release(past);
}
