//! A holder that sleeps in a page fault, in a buffer whose page comes late (userfaultfd), holds what it took.

use super::{Bench, PAGE, bench, ended, state, verify};
use heddle_vfs::FileSystem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// `UFFDIO_API`, `UFFDIO_REGISTER` and `UFFDIO_ZEROPAGE`, as `linux/userfaultfd.h` numbers them.
const API: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const ZEROPAGE: u64 = 0xc020_aa04;

/// Two pages of memory, of which none is there before it is [given](Self::give).
struct LatePages {
    fault: OwnedFd,
    address: u64,
}

impl LatePages {
    const BYTES: u64 = 2 * PAGE;

    /// Maps them; `None`: this machine or this user has no such memory.
    fn map() -> Option<LatePages> {
        // SAFETY: plain system calls; the mapping is nobody else's.
        unsafe {
            // 1: faults of programs alone, which needs no right.
            let fault = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) as i32;
            if fault < 0 {
                eprintln!("SKIPPED: late pages: userfaultfd(2): {}", std::io::Error::last_os_error());
                return None;
            }
            let fault = OwnedFd::from_raw_fd(fault);
            let address = libc::mmap(
                std::ptr::null_mut(),
                Self::BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(address, libc::MAP_FAILED);
            let pages = LatePages { fault, address: address as u64 };
            pages.tell(API, &mut [0xaa, 0, 0]);
            // 1: of pages that are missing.
            pages.tell(REGISTER, &mut [pages.address, Self::BYTES, 1, 0]);
            Some(pages)
        }
    }

    /// They come, as zeros.
    fn give(&self) {
        self.tell(ZEROPAGE, &mut [self.address, Self::BYTES, 0, 0]);
    }

    fn tell(&self, what: u64, words: &mut [u64]) {
        // SAFETY: the request has so many words, and the kernel writes to no more.
        let told = unsafe { libc::ioctl(self.fault.as_raw_fd(), what as libc::Ioctl, words.as_mut_ptr()) };
        assert_eq!(told, 0, "{what:x}: {}", std::io::Error::last_os_error());
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for the rest of the process's life.
        unsafe { &*(self.address as *const [u8; Self::BYTES as usize]) }
    }
}

/// A child that holds the EOF latch, in an append from memory that never comes; `None`: there is no such memory here.
pub fn child_in_a_slow_append(bench: &Bench) -> Option<i32> {
    drop(LatePages::map()?);
    let fs = bench.volume.fs();
    // SAFETY: the child appends, and its parent or a waiter kills it.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: a plain system call. A test that fails leaves no child that waits for ever.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let pages = LatePages::map().unwrap();
        let _appended = fs.append(&bench.file, pages.bytes());
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    let eof = &fs.core.inode(bench.file.ino).unwrap().volatile.eof;
    let began = Instant::now();
    while !eof.is_held() {
        assert!(began.elapsed() < Duration::from_secs(60), "the child does not append");
        std::thread::sleep(Duration::from_millis(1));
    }
    Some(pid)
}

#[test]
fn a_holder_in_a_slow_page_does_not_end_the_mount() {
    let bench = bench();
    let fs = bench.volume.fs();
    fs.core.root().patience_ms.store(200, Relaxed);
    let Some(pid) = child_in_a_slow_append(&bench) else { return };
    assert_eq!(fs.append(&bench.file, &[2; PAGE as usize]).unwrap(), 11 * PAGE + 100);
    let status = ended(pid, 0);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status:x}");
    assert_eq!(fs.core.damage_found(), None);
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "an append from a slow page");
}

#[test]
fn a_thread_in_a_slow_page_is_waited_for() {
    let bench = bench();
    let fs = bench.volume.fs();
    fs.core.root().patience_ms.store(100, Relaxed);
    let Some(pages) = LatePages::map() else {
        return;
    };
    let eof = &fs.core.inode(bench.file.ino).unwrap().volatile.eof;
    let at = std::thread::scope(|scope| {
        let slow = scope.spawn(|| fs.append(&bench.file, pages.bytes()));
        let began = Instant::now();
        while !eof.is_held() {
            assert!(began.elapsed() < Duration::from_secs(60), "the thread does not append");
            std::thread::sleep(Duration::from_millis(1));
        }
        let waits = scope.spawn(|| fs.append(&bench.file, &[2; PAGE as usize]));
        // Longer than one waits for a call that may be slow: twice the patience and ten seconds.
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(12) && !waits.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        pages.give();
        [slow.join().unwrap(), waits.join().unwrap()]
    });
    let end = 11 * PAGE + 100;
    assert_eq!(at.map(Result::unwrap), [end, end + LatePages::BYTES]);
    assert_eq!(fs.core.damage_found(), None);
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "an append from a page that came late");
}
