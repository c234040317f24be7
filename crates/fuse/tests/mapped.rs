//! Shared mappings beside calls on the same pages: neither takes away what the other wrote.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::Apart;
use heddle_vfs::Time;
use heddle_vfs::model::ModelFs;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

const PAGE: usize = 4096;

/// A file, mapped shared and writable.
struct Mapping {
    at: *const AtomicU8,
    len: usize,
}

// SAFETY: memory that all threads reach by atomic bytes alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &File, len: usize) -> Mapping {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, file, 0) }.unwrap();
        Mapping { at: at.cast(), len }
    }

    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: mapped for as long as this lives.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    fn sync(&self) {
        // SAFETY: the whole mapping.
        unsafe { rustix::mm::msync(self.at.cast_mut().cast(), self.len, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference any more.
        unsafe { rustix::mm::munmap(self.at.cast_mut().cast(), self.len) }.unwrap();
    }
}

fn opened(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Words that the daemon's process shares.
#[derive(Default)]
struct Words {
    armed: AtomicBool,
    reached: AtomicBool,
    goes: AtomicBool,
}

/// A mount whose engine, once armed, stops in the next call that changes something, until it goes or for a moment.
struct Halting {
    mount: Apart,
    words: &'static Words,
}

fn waits(for_what: &AtomicBool, at_most: Duration) -> bool {
    let began = Instant::now();
    while !for_what.swap(false, SeqCst) {
        if began.elapsed() > at_most {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn halting() -> Option<Halting> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping where the kernel likes.
    let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, prot, flags) }.unwrap();
    // SAFETY: a page of zeros, which are words; it is never unmapped.
    let words: &'static Words = unsafe { &*at.cast() };
    let clock = move || {
        if words.armed.swap(false, SeqCst) {
            words.reached.store(true, SeqCst);
            waits(&words.goes, Duration::from_millis(500));
        }
        Time(1)
    };
    let mount = common::apart(|| ModelFs::with_clock(clock))?;
    Some(Halting { mount, words })
}

/// While `call` is inside the engine, one byte of `page` is stored to through a mapping; it gets through with it, or waits.
fn store_during(halting: &Halting, mapping: &Mapping, at: usize, call: impl FnOnce()) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(waits(&halting.words.reached, Duration::from_secs(60)), "no call changed anything");
            mapping.bytes()[at].store(7, SeqCst);
            // The call may have gone on by itself.
            halting.words.goes.store(true, SeqCst);
        });
        halting.words.armed.store(true, SeqCst);
        call();
    });
    mapping.sync();
}

#[test]
fn a_write_is_kept_when_a_mapping_dirties_its_page_meanwhile() {
    for mapped_before in [false, true] {
        let Some(halting) = halting() else { return };
        let file = opened(&halting.mount.path("file"));
        file.write_all_at(&[3; 2 * PAGE], 0).unwrap();
        let mapping = Mapping::of(&file, 2 * PAGE);
        if mapped_before {
            assert_eq!(mapping.bytes()[PAGE].load(SeqCst), 3);
        }
        store_during(&halting, &mapping, 100, || file.write_all_at(&[1; 8], 0).unwrap());
        let mut bytes = [0; PAGE];
        opened(&halting.mount.path("file")).read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(
            bytes[..9],
            [1, 1, 1, 1, 1, 1, 1, 1, 3],
            "what was written; mapped before: {mapped_before}"
        );
        assert_eq!(bytes[100], 7, "what was stored");
    }
}

/// Threads write their own bytes of every page, some by stores, some by calls; what is there at the end is all of it.
#[test]
fn stores_and_writes_to_one_page_are_all_there() {
    const PAGES: usize = 64;
    const THREADS: usize = 4;
    let Some(mount) = common::apart(ModelFs::new) else { return };
    let seconds = std::env::var("HEDDLE_MAPPED_SECONDS").map_or(2, |seconds| seconds.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    for round in 0_u32.. {
        if Instant::now() > until {
            break;
        }
        let path = mount.path(&format!("file{round}"));
        let file = opened(&path);
        if round % 2 == 0 {
            file.set_len((PAGES * PAGE) as u64).unwrap();
        } else {
            file.write_all_at(&vec![0xee; PAGES * PAGE], 0).unwrap();
        }
        let mapping = Mapping::of(&file, PAGES * PAGE);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (file, mapping) = (&file, &mapping);
                scope.spawn(move || {
                    for page in 0..PAGES {
                        let at = page * PAGE + thread * 8;
                        if thread % 2 == 0 {
                            file.write_all_at(&[thread as u8 + 1; 8], at as u64).unwrap();
                        } else {
                            for byte in &mapping.bytes()[at..at + 8] {
                                byte.store(thread as u8 + 1, SeqCst);
                            }
                        }
                    }
                });
            }
            scope.spawn(|| mapping.sync());
        });
        drop(mapping);
        drop(file);
        let bytes = std::fs::read(&path).unwrap();
        for page in 0..PAGES {
            for thread in 0..THREADS {
                let at = page * PAGE + thread * 8;
                let wanted = [thread as u8 + 1; 8];
                assert_eq!(bytes[at..at + 8], wanted, "round {round}, page {page}, thread {thread}");
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}

/// `cp --sparse=auto` copied zeros.
#[test]
fn a_store_to_a_hole_is_data_before_it_is_written_back() {
    let Some(mount) = common::apart(ModelFs::new) else { return };
    const SIZE: usize = 64 << 20;
    const AT: usize = 20 << 20;
    let path = mount.path("file");
    let file = opened(&path);
    file.set_len(SIZE as u64).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Err(Errno::NXIO), "it has a hole alone");
    let mapping = Mapping::of(&file, SIZE);
    mapping.bytes()[AT].store(7, SeqCst);
    let data = seek(SeekFrom::Data(0)).unwrap();
    let hole = seek(SeekFrom::Hole(data)).unwrap();
    assert!((data..hole).contains(&(AT as u64)), "data from {data} to {hole}");
    let end = SIZE as u64;
    assert_eq!(seek(SeekFrom::Data(end - 1)), Ok(end - 1));
    assert_eq!(seek(SeekFrom::Data(end)), Err(Errno::NXIO));
    assert_eq!(seek(SeekFrom::Hole(end)), Err(Errno::NXIO));
    let copy = tempfile::NamedTempFile::new().unwrap();
    let copied = Command::new("cp").arg("--sparse=auto").args([&path, copy.path()]).status().unwrap();
    assert!(copied.success());
    let mut byte = [0];
    copy.as_file().read_exact_at(&mut byte, AT as u64).unwrap();
    assert_eq!(byte, [7], "what cp copied");
}
