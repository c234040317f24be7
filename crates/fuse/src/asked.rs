//! Asking something that may never answer.
//!
//! A call that the process behind a mount has read, and does not answer, cannot be taken back, not even by SIGKILL; and no process ends
//! before its last thread does. So a child asks: it stays behind with such a call, and this process goes on.

use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// What `ask` gives, from a child of this process that has none of its descriptors; `None`: nothing came in time.
///
/// # Errors
/// Those of pipe(2) and fork(2): it was not asked.
pub fn ask_in_time(limit: Duration, ask: impl FnOnce() -> Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let until = Instant::now() + limit;
    let (told, tell) = pipe()?;
    // SAFETY: the child does what follows here and ends without returning. What it allocates is in order: the C library sees to its heap in
    // a fork, and no other thread of the callers' is at work.
    let child = match unsafe { libc::fork() } {
        0 => {
            let answered = catch_unwind(AssertUnwindSafe(|| answer(tell, ask)));
            // SAFETY: takes no pointers; what this process wants done at its end is its parent's to do.
            unsafe { libc::_exit(i32::from(answered.is_err())) }
        }
        child => Pid::from_raw(child).filter(|_| child > 0).ok_or_else(io::Error::last_os_error)?,
    };
    drop(tell);
    let answer = read_until(told, until);
    if answer.is_none() {
        // Where it is in such a call it stays until that is answered.
        let _ = kill_process(child, Signal::KILL);
    }
    let how = if answer.is_some() { WaitOptions::empty() } else { WaitOptions::NOHANG };
    let ended = waitpid(Some(child), how).ok().flatten();
    Ok(answer.filter(|_| ended.is_some_and(|(_, status)| status.exit_status() == Some(0))))
}

fn answer(mut tell: PipeWriter, ask: impl FnOnce() -> Vec<u8>) {
    let mine = tell.as_raw_fd() as u32;
    let others = [mine.checked_sub(1).map(|last| (0, last)), Some((mine + 1, u32::MAX))];
    for (first, last) in others.into_iter().flatten() {
        // SAFETY: no memory is involved. A pipe or a lock of the caller's must not be kept by a child that stays behind.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
    // The waiting process sees a cut answer by how this process ends.
    tell.write_all(&ask()).expect("who asked has gone");
}

/// All that comes until the other end is closed.
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
        assert_eq!(ask_in_time(soon, || long.clone()).unwrap(), Some(long.clone()));
        assert_eq!(ask_in_time(soon, Vec::new).unwrap(), Some(Vec::new()));
        assert_eq!(ask_in_time(soon, || std::process::abort()).unwrap(), None);
        let never = || std::thread::sleep(Duration::from_secs(60));
        let began = Instant::now();
        let late = ask_in_time(Duration::from_millis(50), || {
            never();
            long
        });
        assert!(late.unwrap().is_none() && began.elapsed() < Duration::from_secs(20));
    }
}
