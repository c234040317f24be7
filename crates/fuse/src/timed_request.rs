//! Questions to a file system that may never answer.
//!
//! A system call cannot be interrupted, not even by SIGKILL, once the process behind a mount has read its
//! request and does not answer. And no process ends before its last thread does. So a child process makes the
//! call: the child may hang, and this process goes on.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The answer of `ask`, run in a child that has none of this process's descriptors. Returns `None` if no
/// answer came in time.
///
/// # Errors
/// Those of pipe(2) and fork(2): then nothing was asked.
pub fn ask_with_timeout(limit: Duration, ask: impl FnOnce() -> Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + limit;
    let (told, tell) = pipe()?;
    // SAFETY: the child runs the lines below and ends without returning. It may allocate: the C library keeps
    // its heap consistent across a fork, and the callers have no other thread at work.
    let child = match unsafe { libc::fork() } {
        0 => {
            let answered = catch_unwind(AssertUnwindSafe(|| answer(tell, ask)));
            // SAFETY: takes no pointers. Exit handlers of this process are its own to run, not the child's.
            unsafe { libc::_exit(i32::from(answered.is_err())) }
        }
        child => Pid::from_raw(child).filter(|_| child > 0).ok_or_else(io::Error::last_os_error)?,
    };
    drop(tell);
    let answer = read_until(told, until);
    if answer.is_none() {
        // A child that hangs in such a call stays until the call is answered.
        let _ = kill_process(child, Signal::KILL);
    }
    let how = if answer.is_some() { WaitOptions::empty() } else { WaitOptions::NOHANG };
    let ended = waitpid(Some(child), how).ok().flatten();
    Ok(answer.filter(|_| ended.is_some_and(|(_, status)| status.exit_status() == Some(0))))
}

fn answer(mut tell: PipeWriter, ask: impl FnOnce() -> Vec<u8>) {
    close_all_but(tell.as_raw_fd());
    // The parent knows by the exit code whether the answer is complete.
    tell.write_all(&ask()).expect("who asked has gone");
}

/// In a child that may hang: it must keep no pipe and no lock of its parent.
pub(crate) fn close_all_but(mine: RawFd) {
    let mine = mine as u32;
    let others = [mine.checked_sub(1).map(|last| (0, last)), Some((mine + 1, u32::MAX))];
    for (first, last) in others.into_iter().flatten() {
        // SAFETY: no memory is involved.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Reads until the other end is closed.
fn read_until(mut from: PipeReader, until: Instant) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    let mut some = [0; 4096];
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return None,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        match from.read(&mut some).ok()? {
            0 => return Some(all),
            n => all.extend_from_slice(&some[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_whole_or_not_at_all() {
        let long = vec![7; 1 << 20];
        let soon = Duration::from_secs(20);
        assert_eq!(ask_with_timeout(soon, || long.clone()).unwrap(), Some(long.clone()));
        assert_eq!(ask_with_timeout(soon, Vec::new).unwrap(), Some(Vec::new()));
        assert_eq!(ask_with_timeout(soon, || std::process::abort()).unwrap(), None);
        let never = || std::thread::sleep(Duration::from_secs(60));
        let began = Instant::now();
        let late = ask_with_timeout(Duration::from_millis(50), || {
            never();
            long
        });
        assert!(late.unwrap().is_none() && began.elapsed() < Duration::from_secs(20));
    }
}
