//! A child that ends the connection to the kernel when this process is killed.
//!
//! Why         A thread that makes the kernel drop pages waits until the kernel has read them or written them back. No signal ends that,
//!             and other threads of this process answer. SIGKILL ends those. The one that waits stays, and by it the connection is open:
//!             process, image and mount would hang for ever.
//! State       a thread that does nothing, and its child, which the kernel tells of that thread's end (prctl(2), PR_SET_PDEATHSIG).
//! Invariants  G1  the child ends the connection that it was made for. It has the means open: a number may be another mount's by then.
//!             G2  the child keeps nothing else of this process: no descriptor, no directory, no image, no heap.

use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::timed_request::close_all_but;

/// What tells the child. It has all signals blocked.
const PARENT_ENDED: libc::c_int = libc::SIGUSR1;
/// Smaller mappings of memory are not worth a call.
const LARGE_BYTES: usize = 1 << 20;

/// Opens what ends a connection to the kernel.
///
/// # Errors
/// Those of the system: this user may not, or there is no such connection any more.
pub(crate) fn ender(connection: u32) -> io::Result<File> {
    let name = format!("{connection}/abort");
    let usual = Path::new("/sys/fs/fuse/connections").join(&name);
    File::options().write(true).open(usual).or_else(|_| {
        // It is not mounted everywhere: a container has its own /sys.
        let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&control)?;
        let control = fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        Ok(openat(control, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
    })
}

/// Ends a connection to the kernel: calls that run are finished, later ones fail with ENOTCONN.
///
/// # Errors
/// As [`ender`].
pub(crate) fn end(connection: u32) -> io::Result<()> {
    ender(connection)?.write_all(b"1")
}

/// While it lives, the end of this process ends the connection.
#[derive(Debug)]
pub(crate) struct Guard {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Returns when the child watches; `None`: there is none to be had.
    pub(crate) fn start(connection: u32) -> Option<Guard> {
        let ender = ender(connection).ok()?;
        let (stop, stopped) = channel();
        let (tell, told) = channel();
        let named = std::thread::Builder::new().name("heddle-guard".into());
        let thread = named.spawn(move || {
            let child = watcher(ender.into());
            let _ = tell.send(child.is_some());
            let Some(child) = child else { return };
            // To the end of this process, unless the guard is dropped.
            let _ = stopped.recv();
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::empty());
        });
        let guard = Guard { stop: Some(stop), thread: Some(thread.ok()?) };
        told.recv().is_ok_and(|watches| watches).then_some(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A child that watches the calling thread.
fn watcher(ender: OwnedFd) -> Option<Pid> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a live local, written by the first call. This thread handles no signal of the process any more, and its child none at all.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    // SAFETY: the child does what `watch` does and ends there. What it allocates is in order: the C library sees to its heap in a fork.
    match unsafe { libc::fork() } {
        0 => watch(ender.as_raw_fd(), process, thread),
        child => Pid::from_raw(child).filter(|_| child > 0),
    }
}

/// The child: waits for the end of its parent's thread.
fn watch(ender: RawFd, process: libc::pid_t, thread: libc::pid_t) -> ! {
    close_all_but(ender);
    // SAFETY: the pointers are to constants that end in NUL, or to live locals.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, PARENT_ENDED);
        libc::prctl(libc::PR_SET_NAME, c"heddle-guard".as_ptr());
        libc::chdir(c"/".as_ptr());
        let mut told = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(told.as_mut_ptr());
        libc::sigaddset(told.as_mut_ptr(), PARENT_ENDED);
        unmap_the_rest();
        // It may have ended before the kernel knew that somebody wants to be told.
        while libc::syscall(libc::SYS_tgkill, process, thread, 0) == 0
            && libc::sigwaitinfo(told.as_ptr(), std::ptr::null_mut()) != PARENT_ENDED
        {}
        libc::write(ender, b"1".as_ptr().cast(), 1);
        libc::_exit(0)
    }
}

/// G2. Images, and memory that the parent may have much of; the parent need not copy what it writes to then. What this function itself
/// needs stays: code, and the stack.
///
/// # Safety
/// Nobody else runs in this memory, and nothing of the heap is used any more.
unsafe fn unmap_the_rest() {
    let here = 0_u8;
    let stack = (&raw const here).addr();
    let Ok(table) = openat(CWD, c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    // A line at a time, as far as its inode: the path behind that may be of any length.
    let (mut line, mut len, mut some) = ([0_u8; 128], 0, [0_u8; 1024]);
    while let Ok(n @ 1..) = rustix::io::read(&table, &mut some) {
        for byte in &some[..n] {
            if *byte != b'\n' {
                if let Some(place) = line.get_mut(len) {
                    (*place, len) = (*byte, len + 1);
                }
                continue;
            }
            if let Some((start, end)) =
                dispensable(&line[..len]).filter(|(start, end)| !(*start..*end).contains(&stack))
            {
                // SAFETY: the caller's promise; neither code nor this stack.
                let _ = unsafe { rustix::mm::munmap(std::ptr::without_provenance_mut(start), end - start) };
            }
            len = 0;
        }
    }
}

/// `start-end rwxp offset major:minor inode path`: the mapping, if it is shared, or large and of no file.
fn dispensable(line: &[u8]) -> Option<(usize, usize)> {
    let mut words = line.split(|byte| *byte == b' ');
    let mut ends = words.next()?.split(|byte| *byte == b'-');
    let number = |word: &[u8]| usize::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok();
    let (start, end) = (number(ends.next()?)?, number(ends.next()?)?);
    let is_shared = words.next()?.get(3) == Some(&b's');
    let is_of_no_file = words.nth(2)? == b"0";
    (is_shared || is_of_no_file && end - start >= LARGE_BYTES).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::dispensable;

    #[test]
    fn code_and_small_memory_stay_when_a_child_unmaps_the_rest() {
        let image = b"7f0000000000-7f0000001000 rw-s 00000000 00:1a 77 /dev/shm/an image";
        assert_eq!(dispensable(image), Some((0x7f00_0000_0000, 0x7f00_0000_1000)));
        assert!(dispensable(b"7f0000000000-7f0004000000 rw-p 00000000 00:00 0 ").is_some());
        for kept in [
            &b"7f0000000000-7f0000001000 rw-p 00000000 00:00 0 "[..],
            b"560000000000-560010000000 r-xp 00001000 fe:00 4711 /usr/bin/heddle",
            b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]",
            b"7f00-",
            b"",
        ] {
            assert_eq!(dispensable(kept), None, "{}", String::from_utf8_lossy(kept));
        }
    }
}
