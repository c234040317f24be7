//! Shared mappings beside calls, of two processes, through the mount and past it: bytes of one page that one stores and the other writes
//! are all there, also after a remount; and no mapping ends early because an old size is taken for the file's.
//!
//! `HEDDLE_MAPPED_ROUNDS`: so many files a mixture. `cargo xtask mapped`.

mod common;

use common::roles::{Role, role};
use common::{Mounted, Place, own_namespace};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const PAGE: usize = 4096;
const PAGES: usize = 48;
/// Both processes of a round start together.
const PROCESSES: u32 = 2;

#[test]
#[ignore = "run by the tests below"]
fn the_process_that_plays_a_role() {
    let Some((name, numbers, path)) = role() else { return };
    match (name.as_str(), numbers.as_slice()) {
        ("stores", [rounds]) => each_round(&path, *rounds, stores),
        ("writes", [rounds]) => each_round(&path, *rounds, writes),
        ("grows", [rounds]) => grows(&path, *rounds),
        ("chowns", []) => chowns(&path),
        other => panic!("no such role: {other:?}"),
    }
}

/// A shared mapping of words.
struct Words {
    at: *mut AtomicU64,
    len_bytes: usize,
}

// SAFETY: memory that all threads reach by atomic words alone.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    fn of(file: &File, len_bytes: usize) -> Words {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // The C library's, which the bypass sees. SAFETY: a new mapping where the kernel likes.
        let at = unsafe {
            use std::os::fd::AsRawFd;
            let (prot, flags) = (prot.bits() as i32, flags.bits() as i32);
            libc::mmap(std::ptr::null_mut(), len_bytes, prot, flags, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Words { at: at.cast(), len_bytes }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.len_bytes);
        // SAFETY: within the mapping, which lives as long as this.
        unsafe { &*self.at.add(offset / 8) }
    }

    fn sync(&self) {
        // SAFETY: the whole mapping.
        unsafe { rustix::mm::msync(self.at.cast(), self.len_bytes, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference any more.
        unsafe { rustix::mm::munmap(self.at.cast(), self.len_bytes) }.unwrap();
    }
}

fn opened(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// `base0`, `base1` and so on, with the other process; a file beside the image says who has come how far.
fn each_round(base: &Path, rounds: u64, work: fn(&File)) {
    let turns = Words::of(&opened(&base.with_file_name("../turns")), PAGE);
    // SAFETY: a word of the mapping, used as a narrower one by all.
    let arrived: &AtomicU32 = unsafe { &*turns.at.cast::<AtomicU32>() };
    for round in 0..rounds {
        let file = opened(&base.with_file_name(format!("file{round}")));
        arrived.fetch_add(1, SeqCst);
        while arrived.load(SeqCst) < (round as u32 + 1) * PROCESSES {
            std::thread::yield_now();
        }
        work(&file);
    }
}

/// A word of a page, and what it becomes.
fn slot(page: usize, slot: usize) -> (usize, u64) {
    (page * PAGE + slot * 8, (page * 8 + slot + 1) as u64)
}

const STORED: [usize; 2] = [0, 1];
const WRITTEN_BESIDE: usize = 2;
const WRITTEN: [usize; 2] = [3, 4];

fn write_slots(file: &File, number: usize) {
    for page in 0..PAGES {
        let (at, value) = slot(page, number);
        file.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    }
}

/// Stores of two threads, writes and msync of two more.
fn stores(file: &File) {
    let words = Words::of(file, PAGES * PAGE);
    std::thread::scope(|scope| {
        for number in STORED {
            let words = &words;
            scope.spawn(move || {
                for page in 0..PAGES {
                    let (at, value) = slot(page, number);
                    words.word(at).store(value, SeqCst);
                }
            });
        }
        scope.spawn(|| write_slots(file, WRITTEN_BESIDE));
        scope.spawn(|| words.sync());
    });
}

/// Writes of two threads.
fn writes(file: &File) {
    std::thread::scope(|scope| {
        for number in WRITTEN {
            scope.spawn(move || write_slots(file, number));
        }
    });
}

/// All words of all files.
fn all_there(place: &Place, rounds: u64, when: &str) {
    for round in 0..rounds {
        let bytes = fs::read(place.path(&format!("mnt/file{round}"))).unwrap();
        assert_eq!(bytes.len(), PAGES * PAGE);
        for page in 0..PAGES {
            for number in [STORED[0], STORED[1], WRITTEN_BESIDE, WRITTEN[0], WRITTEN[1]] {
                let (at, value) = slot(page, number);
                let found = u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
                assert_eq!(found, value, "{when}: file {round}, page {page}, word {number}");
            }
        }
    }
}

/// One at a time: what another one forks holds this one's open files until it executes.
fn alone() -> Option<impl Drop> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    own_namespace().then(|| {
        common::build_preload();
        guard
    })
}

fn rounds() -> u64 {
    std::env::var("HEDDLE_MAPPED_ROUNDS").map_or(12, |rounds| rounds.parse().unwrap())
}

#[test]
fn stores_and_writes_of_two_processes_to_one_page_are_all_there() {
    let Some(_alone) = alone() else { return };
    for (variant, bypass) in [("heddle", false), ("heddle", true), ("f2fs", false)] {
        let place = Place::with_image_of(variant, "128M");
        let options = ["-o", "log=/dev/null", "--variant", variant];
        let mounted = Mounted::new(&place, &options[..if variant == "heddle" { 2 } else { 4 }]);
        let mut left = rounds();
        while left > 0 {
            // So many fit into the image.
            let rounds = left.min(100);
            left -= rounds;
            for round in 0..rounds {
                let path = mounted.path(&format!("file{round}"));
                let _from_before = fs::remove_file(&path);
                let file = opened(&path);
                match round % 2 {
                    0 => file.set_len((PAGES * PAGE) as u64).unwrap(),
                    _ => file.write_all_at(&vec![0xee; PAGES * PAGE], 0).unwrap(),
                }
            }
            fs::write(place.path("turns"), [0; PAGE]).unwrap();
            let base = mounted.path("file");
            let roles = [
                Role::start(&format!("stores {rounds}"), &base, false),
                Role::start(&format!("writes {rounds}"), &base, bypass),
            ];
            roles.into_iter().for_each(Role::succeeds);
            all_there(&place, rounds, &format!("{variant}, bypass: {bypass}"));
        }
        drop(mounted);
        let _again = Mounted::new(&place, &options[..if variant == "heddle" { 2 } else { 4 }]);
        all_there(&place, rounds().min(100), &format!("{variant}, bypass: {bypass}, mounted again"));
    }
}

/// New files that grow past the kernel and are mapped at once.
fn grows(path: &Path, rounds: u64) {
    const LEN: usize = 8 * PAGE;
    for _ in 0..rounds {
        let _ = fs::remove_file(path);
        let file = opened(path);
        // Another process opens it and asks for an attribute while it is empty.
        std::thread::sleep(Duration::from_micros(300));
        file.write_all_at(&[1], LEN as u64 - 1).unwrap();
        let words = Words::of(&file, LEN);
        (0..LEN).step_by(PAGE).for_each(|at| words.word(at).store(7, SeqCst));
        std::thread::sleep(Duration::from_micros(200));
        (0..LEN).step_by(PAGE).for_each(|at| assert_eq!(words.word(at).load(SeqCst), 7));
    }
}

/// Sets the owner of whatever is there, until it is killed: the answers say sizes too.
fn chowns(path: &Path) {
    loop {
        if let Ok(file) = File::open(path) {
            for _ in 0..20 {
                std::os::unix::fs::fchown(&file, Some(0), Some(0)).unwrap();
            }
        }
    }
}

#[test]
fn a_file_grown_under_the_bypass_is_mapped_whole_despite_late_answers() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("heddle", "64M");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let path = mounted.path("file");
    let mut owner = Role::start("chowns", &path, false);
    Role::start(&format!("grows {}", 30 * rounds()), &path, true).succeeds();
    // An open file that has lost its name is there, too.
    assert!(owner.ends_within(Duration::ZERO).is_none(), "a file that it had open was gone");
}
