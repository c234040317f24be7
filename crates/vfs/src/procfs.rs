//! What `/proc` shows of another process.
//!
//! A process whose first thread has ended (`pthread_exit` in `main`) goes on with its other threads. The kernel then shows its mappings,
//! descriptors and directories only below these: `/proc/PID/maps` is empty, and `/proc/PID/fd` too.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// A list of threads that change all the time is read so often.
const LISTS_MAX: usize = 100;

/// The numbers of a process's threads, in the caller's namespace. One that has ended counts while the kernel shows it.
///
/// # Errors
/// The process has ended, or the list cannot be read, or it changes too fast.
pub fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let dir = format!("/proc/{pid}/task");
    for _ in 0..LISTS_MAX {
        let number = |entry: fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse().ok());
        let entries = fs::read_dir(&dir)?.collect::<io::Result<Vec<_>>>()?;
        let listed: Vec<u32> = entries.into_iter().filter_map(number).collect();
        // If a thread ends while the list is read, the list may lack another one. A directory has two links besides.
        if listed.len() as u64 + 2 >= fs::metadata(&dir)?.nlink() {
            return Ok(listed);
        }
    }
    Err(io::Error::other(format!("the threads of process {pid} change too fast")))
}

/// The table of a process's mappings. It is empty for a thread of the kernel, and for a process that has ended.
///
/// # Errors
/// The process is gone, or this user may not look, or the table cannot be read.
pub fn maps(pid: u32) -> io::Result<Vec<u8>> {
    find(pid).map(|(_, table)| table)
}

/// The directory that shows a process's descriptors, working directory, root and program; and the table of its mappings, which is empty
/// if it cannot be read.
pub fn directory_and_maps(pid: u32) -> (PathBuf, Vec<u8>) {
    find(pid).unwrap_or_else(|_| (of_process(pid), Vec::new()))
}

/// The directory of [`directory_and_maps`].
pub fn directory(pid: u32) -> PathBuf {
    directory_and_maps(pid).0
}

fn of_process(pid: u32) -> PathBuf {
    format!("/proc/{pid}").into()
}

fn find(pid: u32) -> io::Result<(PathBuf, Vec<u8>)> {
    let process = of_process(pid);
    let table = fs::read(process.join("maps"))?;
    let mut asked = BTreeSet::from([pid]);
    while table.is_empty() {
        let new: Vec<u32> = threads(pid)?.into_iter().filter(|thread| asked.insert(*thread)).collect();
        if new.is_empty() {
            break;
        }
        for thread in new {
            let dir = process.join(format!("task/{thread}"));
            match fs::read(dir.join("maps")) {
                Ok(table) if !table.is_empty() => return Ok((dir, table)),
                Ok(_) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok((process, table))
}

/// Returns true if the error says that a process or thread has ended.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `look` on a child whose first thread has ended, and another one lives.
    fn with_headless_child(look: impl FnOnce(u32)) {
        extern "C" fn wait(_: *mut libc::c_void) -> *mut libc::c_void {
            loop {
                // SAFETY: it only waits for a signal.
                unsafe { libc::pause() };
            }
        }
        // SAFETY: the child makes plain calls alone, and ends with its parent.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: as above; the thread lives until the process is killed.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let mut thread = 0;
                libc::pthread_create(&raw mut thread, std::ptr::null(), wait, std::ptr::null_mut());
                libc::syscall(libc::SYS_exit, 0);
            }
        }
        let began = std::time::Instant::now();
        let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        while !stat().contains(") Z ") {
            assert!(began.elapsed().as_secs() < 60, "its first thread does not end");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(pid as u32)));
        // SAFETY: a child of this test, which waits for it.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
        looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_seen_whole() {
        with_headless_child(|pid| {
            assert_eq!(fs::read(of_process(pid).join("maps")).unwrap(), b"", "the kernel shows it by itself");
            let threads = threads(pid).unwrap();
            assert_eq!((threads.len(), threads.contains(&pid)), (2, true));
            assert!(String::from_utf8_lossy(&maps(pid).unwrap()).contains("/libc"));
            let dir = directory(pid);
            assert_eq!(fs::read_link(dir.join("cwd")).unwrap(), std::env::current_dir().unwrap());
            assert!(fs::read_dir(dir.join("fd")).unwrap().count() > 0);
        });
    }

    #[test]
    fn a_process_with_its_first_thread_is_seen_in_its_own_directory() {
        let me = std::process::id();
        assert_eq!(directory(me), of_process(me));
        assert!(threads(me).unwrap().contains(&me));
    }

    #[test]
    fn a_process_that_is_gone_is_an_error_of_its_own() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        for error in [maps(pid).unwrap_err(), threads(pid).unwrap_err()] {
            assert!(is_gone(&error), "{error}");
        }
        assert!(!is_gone(&io::Error::from_raw_os_error(libc::EMFILE)));
    }
}
