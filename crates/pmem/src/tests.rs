//! The promises of a region on real memory and real files. Those of the simulated one are tested beside it.

use crate::cpu::lines;
use crate::dirty::{DirtyPages, Failure};
use crate::failing_disk::WriteBackResult;
use crate::{Backend, Durability, Error, OpenOptions, Pos, Region};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

const MIB: u64 = 1 << 20;

/// A forked child keeps its parent's locks of files until it ends. So a test that forks takes this for writing, and one that asks whether a
/// file is locked takes it for reading.
pub(crate) static FORKS: RwLock<()> = RwLock::new(());

/// A directory that is removed again.
struct Scratch(PathBuf, #[expect(dead_code, reason = "it is held")] RwLockReadGuard<'static, ()>);

impl Scratch {
    fn on(parent: &Path, name: &str) -> Scratch {
        let path = parent.join(format!("heddle-pmem-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path, FORKS.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn on_tmpfs(name: &str) -> Scratch {
        Scratch::on(Path::new("/dev/shm"), name)
    }

    fn image(&self) -> PathBuf {
        self.0.join("region.img")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn create(path: &Path) -> Region {
    Region::create(path, MIB, &OpenOptions::default()).unwrap()
}

fn bytes_of(region: &Region, at: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len_bytes];
    region.read(Pos(at), &mut bytes);
    bytes
}

fn pattern(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at * 7 + at / 256 + 1) as u8).collect()
}

fn panics(action: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(action)).is_err()
}

#[test]
fn every_length_at_every_offset_stores_exactly_its_bytes() {
    Durability::ALL.into_iter().for_each(stores_exactly_its_bytes);
}

fn stores_exactly_its_bytes(durability: Durability) {
    let region = Region::anonymous_as(MIB, durability).unwrap();
    let (source, old) = (pattern(256), vec![0xcc; 512]);
    region.nt_write(Pos(4096), &source);
    for offset in 0..64 {
        for len in 0..=200 {
            let at = Pos(64 + offset);
            let within = 64 + offset as usize..64 + offset as usize + len;
            let mut expected = old.clone();

            region.nt_write(Pos(0), &old);
            region.nt_write(at, &source[..len]);
            region.fence();
            expected[within.clone()].copy_from_slice(&source[..len]);
            assert_eq!(bytes_of(&region, 0, 512), expected, "write of {len} bytes at {offset}");

            region.nt_zero(at, len as u64);
            region.fence();
            expected[within.clone()].fill(0);
            assert_eq!(bytes_of(&region, 0, 512), expected, "zeros, {len} bytes at {offset}");

            region.nt_copy(at, Pos(4096 + offset / 3), len as u64);
            region.fence();
            expected[within].copy_from_slice(&source[offset as usize / 3..][..len]);
            assert_eq!(bytes_of(&region, 0, 512), expected, "copy of {len} bytes to {offset}");
        }
    }
}

#[test]
fn long_stores_at_ragged_places_store_exactly_their_bytes() {
    let source = pattern(200_000);
    for durability in Durability::ALL {
        let region = Region::anonymous_as(MIB, durability).unwrap();
        for (at, len, whole) in [
            (1, 32_767, 32_767),
            (5, 32_768, 32_768),
            (4096, 131_072, 131_072),
            (77, 4097, 65_536),
            (31, 199_999, 0),
        ] {
            region.nt_zero(Pos(0), MIB);
            region.nt_write_user(Pos(at), &source[..len], whole).unwrap();
            region.fence();
            let mut expected = vec![0; 300_000];
            expected[at as usize..at as usize + len].copy_from_slice(&source[..len]);
            assert_eq!(
                bytes_of(&region, 0, 300_000),
                expected,
                "{durability}: {len} bytes at {at}, of {whole}"
            );
        }
    }
}

#[test]
fn a_loop_device_is_no_memory_though_its_node_lies_in_memory() {
    let scratch = Scratch::on_tmpfs("loop");
    fs::write(scratch.image(), vec![0; 4 * MIB as usize]).unwrap();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(scratch.image()).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        eprintln!("SKIPPED: no loop device can be had here (it takes root and losetup)");
        return;
    };
    let device = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
    let region = Region::open(&device, &OpenOptions::default());
    let found = region.map(|region| (region.backend(), region.durability()));
    assert!(Command::new("losetup").arg("--detach").arg(&device).status().unwrap().success());
    assert_eq!(found, Ok((Backend::File, Durability::Power)));
}

#[test]
fn words_and_lines_come_back_as_they_were_stored() {
    let region = Region::anonymous(MIB).unwrap();
    let words = [1, 2, 3, 4, 5, 6, 7, u64::MAX];
    region.nt_line(Pos(128), &words);
    region.store_u64(Pos(192), 0x0102_0304_0506_0708);
    region.fence();
    assert_eq!(region.line(Pos(128)), words);
    assert_eq!(region.load_u64(Pos(184)), u64::MAX);
    assert_eq!(bytes_of(&region, 192, 8), [8, 7, 6, 5, 4, 3, 2, 1], "words are little-endian on media");
}

#[test]
fn a_flush_covers_every_line_of_its_range_and_no_other() {
    for at in 0..200u64 {
        for len in 1..200usize {
            let flushed: Vec<u64> = lines(at, len, 64).collect();
            let mut touched: Vec<u64> = (at..at + len as u64).map(|byte| byte & !63).collect();
            touched.dedup();
            assert_eq!(flushed, touched, "{len} bytes at {at}");
        }
    }
}

#[test]
fn positions_outside_the_region_are_refused_before_anything_is_stored() {
    let region = Region::anonymous(MIB).unwrap();
    assert!(panics(|| region.nt_write(Pos(MIB - 4), &[1; 5])));
    assert!(panics(|| region.nt_write(Pos(u64::MAX - 2), &[1; 5])));
    assert!(panics(|| region.nt_zero(Pos(8), u64::MAX)));
    assert!(panics(|| region.nt_copy(Pos(0), Pos(MIB - 8), 16)));
    assert!(panics(|| region.read(Pos(MIB), &mut [0])));
    assert!(panics(|| assert_eq!(region.load_u64(Pos(MIB - 4)), 0)));
    assert!(panics(|| region.store_u64(Pos(12), 1)), "not aligned");
    assert!(panics(|| region.nt_line(Pos(32), &[1; 8])), "not aligned");
    assert!(panics(|| region.nt_copy(Pos(0), Pos(8), 16)), "overlapping");
    assert!(bytes_of(&region, 0, MIB as usize).iter().all(|byte| *byte == 0));
    region.nt_write(Pos(MIB), &[]);
}

#[test]
fn a_region_on_tmpfs_keeps_its_bytes_when_opened_again() {
    let scratch = Scratch::on_tmpfs("again");
    let told = Mutex::new(Vec::new());
    let tell = |done, total| told.lock().unwrap().push((done, total));
    let options = OpenOptions { progress: Some(&tell), ..Default::default() };
    let region = Region::create(scratch.image(), MIB + 5, &options).unwrap();
    assert_eq!((region.backend(), region.len_bytes()), (Backend::Memory, MIB));
    assert_eq!(told.lock().unwrap().last(), Some(&(MIB, MIB)));
    region.nt_write(Pos(77), b"still here");
    region.fence();
    drop(region);

    let region = Region::open(scratch.image(), &OpenOptions::default()).unwrap();
    assert_eq!((region.len_bytes(), bytes_of(&region, 77, 10)), (MIB, b"still here".to_vec()));
    assert_eq!(region.path(), Some(scratch.image().as_path()));
}

#[test]
fn opening_a_file_with_holes_keeps_its_bytes_and_fills_the_holes() {
    let scratch = Scratch::on_tmpfs("holes");
    let file = fs::File::create(scratch.image()).unwrap();
    file.set_len(MIB).unwrap();
    file.write_all_at(b"bytes", 300_000).unwrap();
    let region = Region::open(scratch.image(), &OpenOptions::default()).unwrap();
    assert_eq!(bytes_of(&region, 299_999, 7), b"\0bytes\0");
    assert_eq!(fs::metadata(scratch.image()).unwrap().blocks() * 512, MIB);
}

#[test]
fn what_lies_behind_a_files_used_part_keeps_its_holes() {
    let scratch = Scratch::on_tmpfs("behind");
    let file = fs::File::create(scratch.image()).unwrap();
    file.set_len(64 * MIB).unwrap();
    file.write_all_at(&MIB.to_le_bytes(), 4096).unwrap();
    let allocated = || fs::metadata(scratch.image()).unwrap().blocks() * 512;
    let told = |_: u64, read: &dyn Fn(Pos, &mut [u8])| {
        let mut bytes = [0; 8];
        read(Pos(4096), &mut bytes);
        Some(u64::from_le_bytes(bytes)).filter(|used| *used != 0)
    };
    for read_only in [true, false] {
        let how = OpenOptions { read_only, size_in_use: Some(&told), ..Default::default() };
        let region = Region::open(scratch.image(), &how).unwrap();
        assert_eq!((region.len_bytes(), allocated()), (64 * MIB, MIB), "read-only: {read_only}");
    }
    file.write_all_at(&[0; 8], 4096).unwrap();
    Region::open(scratch.image(), &OpenOptions { size_in_use: Some(&told), ..Default::default() }).unwrap();
    assert_eq!(allocated(), MIB, "nothing of it is used");
}

#[test]
fn create_replaces_a_file_only_when_told_to() {
    let scratch = Scratch::on_tmpfs("exists");
    create(&scratch.image()).nt_write(Pos(0), b"precious");
    let refused = Region::create(scratch.image(), MIB, &OpenOptions::default()).unwrap_err();
    assert_eq!(refused, Error::Exists { path: scratch.image() });
    assert_eq!(fs::read(scratch.image()).unwrap()[..8], *b"precious");

    let options = OpenOptions { overwrite: true, ..Default::default() };
    let region = Region::create(scratch.image(), 2 * MIB, &options).unwrap();
    assert!(bytes_of(&region, 0, region.len_bytes() as usize).iter().all(|byte| *byte == 0));
}

#[test]
fn less_than_a_block_is_refused_and_leaves_no_file() {
    let scratch = Scratch::on_tmpfs("small");
    let refused = Region::create(scratch.image(), 4095, &OpenOptions::default()).unwrap_err();
    assert!(matches!(refused, Error::TooSmall { len_bytes: 4095, .. }), "{refused}");
    assert!(!scratch.image().exists());
    fs::write(scratch.image(), [0; 100]).unwrap();
    let refused = Region::open(scratch.image(), &OpenOptions::default()).unwrap_err();
    assert!(matches!(refused, Error::TooSmall { len_bytes: 100, .. }), "{refused}");
}

#[test]
fn what_is_no_file_is_refused_with_its_name() {
    let null = Region::open("/dev/null", &OpenOptions::default()).unwrap_err();
    assert_eq!(null, Error::NotMappable { path: "/dev/null".into() });
    let directory =
        Region::open("/dev/shm", &OpenOptions { read_only: true, ..Default::default() }).unwrap_err();
    assert_eq!(directory, Error::NotMappable { path: "/dev/shm".into() });
    let absent = Region::open("/dev/shm/no-such-region", &OpenOptions::default()).unwrap_err();
    assert!(absent.to_string().contains("/dev/shm/no-such-region"), "{absent}");
}

#[test]
fn a_region_in_use_is_refused_naming_the_process_that_holds_it() {
    let scratch = Scratch::on_tmpfs("in-use");
    drop(create(&scratch.image()));
    let mut holder = Command::new("flock")
        .args(["--no-fork", scratch.image().to_str().unwrap(), "sh", "-c", "echo held; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut held = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut held).unwrap();

    for refused in [
        Region::open(scratch.image(), &OpenOptions::default()).unwrap_err(),
        Region::create(scratch.image(), MIB, &OpenOptions { overwrite: true, ..Default::default() })
            .unwrap_err(),
    ] {
        let Error::InUse { path, pid, since } = &refused else { panic!("{refused}") };
        assert_eq!((path, *pid), (&scratch.image(), Some(holder.id())));
        assert!(since.unwrap().elapsed().unwrap().as_secs() < 600);
        let text = refused.to_string();
        assert!(
            text.contains(&format!("process {} (since ", holder.id())) && text.contains("heddle umount"),
            "{text}"
        );
    }
    assert_eq!(fs::metadata(scratch.image()).unwrap().len(), MIB, "a refused create empties nothing");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    Region::open(scratch.image(), &OpenOptions::default()).unwrap();
}

#[test]
fn an_adopted_region_stays_locked_after_earlier_holders_exit() {
    let scratch = Scratch::on_tmpfs("taken-over");
    let first = create(&scratch.image());
    let file = fs::File::options().read(true).write(true).open(scratch.image()).unwrap();
    assert!(crate::join_holders(&file));
    let second = Region::attach(file.into(), None, first.len_bytes(), false, first.durability()).unwrap();
    drop(first);
    for read_only in [false, true] {
        let refused = Region::open(scratch.image(), &OpenOptions { read_only, ..OpenOptions::default() });
        assert!(matches!(refused, Err(Error::InUse { .. })), "read only: {read_only}");
    }
    drop(second);
    let readers = [(); 2].map(|()| {
        Region::open(scratch.image(), &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap()
    });
    assert!(matches!(Region::open(scratch.image(), &OpenOptions::default()), Err(Error::InUse { .. })));
    drop(readers);
    Region::open(scratch.image(), &OpenOptions::default()).unwrap();
}

#[test]
fn a_region_stays_locked_until_its_last_mapping_is_gone() {
    let scratch = Scratch::on_tmpfs("last");
    let first = create(&scratch.image());
    let second = first.map_again().unwrap();
    drop(first);
    let refused = Region::open(scratch.image(), &OpenOptions::default()).unwrap_err();
    assert!(matches!(refused, Error::InUse { pid: Some(pid), .. } if pid == std::process::id()), "{refused}");
    drop(second);
    Region::open(scratch.image(), &OpenOptions::default()).unwrap();
}

#[test]
fn readers_share_a_region_and_cannot_store() {
    let scratch = Scratch::on_tmpfs("readers");
    create(&scratch.image()).nt_write(Pos(0), b"text");
    let options = OpenOptions { read_only: true, ..Default::default() };
    let (one, two) =
        (Region::open(scratch.image(), &options).unwrap(), Region::open(scratch.image(), &options).unwrap());
    assert_eq!((bytes_of(&one, 0, 4), bytes_of(&two, 0, 4)), (b"text".to_vec(), b"text".to_vec()));
    assert!(panics(|| one.nt_write(Pos(0), b"x")));
    assert!(panics(|| one.store_u64(Pos(0), 1)));
    assert!(matches!(Region::open(scratch.image(), &OpenOptions::default()), Err(Error::InUse { .. })));
}

#[test]
fn stores_through_one_mapping_are_seen_through_another() {
    let scratch = Scratch::on(&std::env::temp_dir(), "mappings");
    for region in [Region::anonymous(MIB).unwrap(), create(&scratch.image()), Region::simulated(MIB).0] {
        let again = region.map_again().unwrap();
        assert_eq!((again.backend(), again.len_bytes()), (region.backend(), region.len_bytes()));
        region.nt_write(Pos(4000), &pattern(500));
        region.store_u64(Pos(8), 42);
        region.fence();
        assert_eq!(
            (bytes_of(&again, 4000, 500), again.load_u64(Pos(8))),
            (pattern(500), 42),
            "{:?}",
            region.backend()
        );
        again.store_u64(Pos(8), 43);
        assert_eq!(region.load_u64(Pos(8)), 43);
    }
}

/// Needs a private mount namespace for a tmpfs of its own; without the right to one it says so and ends.
#[test]
fn a_full_tmpfs_is_an_error_and_no_signal() {
    const INSIDE: &str = "HEDDLE_PMEM_TEST_TINY_TMPFS";
    if let Some(directory) = std::env::var_os(INSIDE) {
        let image = Path::new(&directory).join("region.img");
        let refused = Region::create(&image, 64 * MIB, &OpenOptions::default()).unwrap_err();
        assert_eq!(refused, Error::NoSpace { path: image.clone(), len_bytes: 64 * MIB, free_bytes: 4 * MIB });
        assert!(!image.exists());
        fs::File::create(&image).unwrap().set_len(64 * MIB).unwrap();
        let refused = Region::open(&image, &OpenOptions::default()).unwrap_err();
        assert!(matches!(refused, Error::NoSpace { .. }), "a file of holes: {refused}");
        let options = OpenOptions { overwrite: true, ..Default::default() };
        Region::create(&image, 4 * MIB, &options).unwrap();
        return;
    }
    let scratch = Scratch::on_tmpfs("full");
    let in_namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(&scratch.0);
        command
    };
    let mount = "mount -t tmpfs -o size=4M tmpfs \"$1\"";
    if !in_namespace(mount).status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no private mount namespace here, so a full tmpfs was not tried");
        return;
    }
    let test = "tests::a_full_tmpfs_is_an_error_and_no_signal";
    let script = format!("{mount} && {INSIDE}=\"$1\" exec \"$2\" --exact {test} --nocapture");
    let output = in_namespace(&script).arg(std::env::current_exe().unwrap()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Whether the kernel has yet to write back the page at `at`; none where it cannot be asked (before Linux 6.5).
fn is_dirty(region: &Region, at: u64) -> Option<bool> {
    counts(region, at).map(|counts| counts[1] + counts[2] > 0)
}

/// For the page at `at`: pages cached, dirty, under writeback, evicted, recently evicted.
fn counts(region: &Region, at: u64) -> Option<[u64; 5]> {
    const CACHESTAT: i64 = 451;
    let range = [at, 1];
    let mut counts = [0u64; 5];
    let file = region.source().file.as_ref().unwrap().as_raw_fd();
    // SAFETY: the call reads one range and writes one set of counts, both live.
    let done = unsafe { libc::syscall(CACHESTAT, file, range.as_ptr(), counts.as_mut_ptr(), 0) };
    (done == 0).then_some(counts)
}

#[test]
fn a_fence_of_a_file_returns_when_its_pages_are_written() {
    let scratch = Scratch::on(&std::env::temp_dir(), "file");
    let region = create(&scratch.image());
    if region.backend() != Backend::File || is_dirty(&region, 0).is_none() {
        eprintln!("SKIPPED: needs a disk below {:?} and Linux 6.5", scratch.0);
        return;
    }
    let pages = [0, 4096, 8192, 65536, 131072, 135168];
    let dirty = || pages.map(|page| is_dirty(&region, page).unwrap());
    assert_eq!(dirty(), [false; 6]);
    region.nt_write(Pos(4090), &pattern(100));
    region.store_u64(Pos(65536), 7);
    region.nt_write(Pos(131072), &pattern(8192));
    region.store_u64(Pos(8192), 7);
    assert_eq!(dirty(), [true; 6]);
    region.fence();
    assert_eq!(dirty(), [false; 6]);
    region.nt_line(Pos(4096), &[1; 8]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            region.nt_copy(Pos(65540), Pos(4090), 5);
            region.fence();
            assert_eq!(is_dirty(&region, 65536), Some(false));
        });
    });
    region.fence();
    assert_eq!((dirty(), region.failed()), ([false; 6], None));
    assert_eq!(fs::read(scratch.image()).unwrap()[4090..4096], pattern(6));
}

#[test]
fn a_failed_write_back_is_remembered() {
    let failure = Failure::default();
    let pages = DirtyPages::new(4096, "lost.img".into(), failure.clone(), None);
    pages.note(0, 8);
    // Nothing is mapped at this address, so the kernel refuses as it would on a device error.
    pages.write_back(std::ptr::without_provenance_mut(4096));
    let error = failure.get().expect("remembered");
    assert!(matches!(error, Error::NotDurable { path, .. } if path == Path::new("lost.img")), "{error}");
    pages.write_back(std::ptr::without_provenance_mut(4096));
    assert!(failure.get().is_some());
}

#[test]
fn the_cache_of_a_file_ends_with_its_failed_region() {
    let scratch = Scratch::on(&std::env::temp_dir(), "stale");
    let region = create(&scratch.image());
    if region.backend() != Backend::File || is_dirty(&region, 0).is_none() {
        eprintln!("SKIPPED: needs a disk below {:?} and Linux 6.5", scratch.0);
        return;
    }
    let cached = |region: &Region| counts(region, 0).unwrap()[0];
    region.store_u64(Pos(0), 7);
    region.fence();
    drop(region);
    let open = || Region::open(scratch.image(), &OpenOptions::default()).unwrap();
    let region = open();
    assert_eq!(cached(&region), 1);
    let errno = rustix::io::Errno::IO;
    region.source().failure.set(Error::NotDurable { path: scratch.image(), errno }).unwrap();
    drop(region);
    assert_eq!(cached(&open()), 0);
}

/// The fence before a record failed, the record's own fence did not, and the record named pages that were never written.
#[test]
fn after_a_failed_fence_no_store_reaches_the_media() {
    let (region, disk) = Region::on_failing_disk(1 << 20);
    let again = region.map_again().unwrap();
    let before = disk.media();
    disk.on_write_back(|n| if n == 1 { WriteBackResult::Failed } else { WriteBackResult::Done });
    region.nt_write(Pos(4096), &pattern(8192));
    region.fence();
    assert!(region.failed().is_some() && region.failed_fence() == again.failed());
    for region in [&region, &again] {
        region.nt_write(Pos(20477), &pattern(100));
        region.nt_line(Pos(24576), &[1; 8]);
        region.nt_copy(Pos(32768), Pos(4096), 4096);
        region.nt_zero(Pos(4096), 100);
        region.store_u64(Pos(28672), 7);
        region.store_line(Pos(28736), &[7; 8]);
        region.fence();
        region.fence_and_wait();
    }
    assert!(disk.media() == before && disk.media_at_last() == before, "stores that follow are dropped");
}

/// The kernel tells a failed write-back to one of its callers.
#[test]
fn a_fence_hears_of_a_failure_told_to_another_thread() {
    let (region, disk) = Region::on_failing_disk(1 << 20);
    let begun = std::sync::Arc::new(std::sync::Barrier::new(2));
    let both = begun.clone();
    disk.on_write_back(move |_| {
        both.wait();
        match std::thread::current().name() {
            Some("told") => {
                std::thread::sleep(std::time::Duration::from_millis(200));
                WriteBackResult::Failed
            }
            _ => WriteBackResult::LostUntold,
        }
    });
    let failed = |name: &str, at| {
        let (name, region) = (name.to_owned(), region.map_again().unwrap());
        std::thread::Builder::new().name(name).spawn(move || {
            region.store_u64(Pos(at), 1);
            region.fence();
            region.failed_fence().is_some()
        })
    };
    let threads = [failed("told", 0), failed("untold", 4096)];
    assert_eq!(threads.map(|thread| thread.unwrap().join().unwrap()), [true; 2]);
    // Calls that overlap and succeed wait for each other, and end.
    let (region, disk) = Region::on_failing_disk(1 << 20);
    disk.on_write_back(|_| WriteBackResult::Done);
    std::thread::scope(|scope| {
        for at in 0..4 {
            let region = &region;
            scope.spawn(move || {
                for value in 0..1000 {
                    region.store_u64(Pos(at * 4096), value);
                    region.fence();
                }
            });
        }
    });
    assert_eq!((region.failed(), disk.write_backs()), (None, 4000));
    assert!((0..4).all(|at| disk.media()[at * 4096..][..8] == 999u64.to_le_bytes()));
}
