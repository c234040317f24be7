//! What `/proc` shows of another process.
//!
//! A process whose first thread has ended (`pthread_exit` in `main`) goes on with its other threads. The kernel then shows its mappings,
//! descriptors and directories only below these: `/proc/PID/maps` is empty, and `/proc/PID/fd` too.
//!
//! Blocking    A process can keep a reader of some of its files waiting for ever. The kernel locks its mappings while it maps a file of a
//!             FUSE server that never answers (before Linux 6.17). While the process executes a program with such a file mapped, the kernel
//!             locks `maps`, too, and in newer versions `stat`, `cwd`, `ns` and the links of `fd`. It does not lock `status`, `comm` and
//!             the lists of threads and descriptors. A link may lead to a file whose file system never answers.
//!             So functions below say that they may wait. They are for processes whose users may hold up the caller, and for [`limited`].

pub mod limited;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
        // A directory has two links besides.
        let there = fs::metadata(&dir)?.nlink().saturating_sub(2);
        if has_all(&listed, there, |thread| fs::symlink_metadata(format!("{dir}/{thread}")).is_ok()) {
            return Ok(listed);
        }
    }
    Err(io::Error::other(format!("the threads of process {pid} change too fast")))
}

/// Returns true if a list has all threads of a process, of which so many were there after the list was read. If a thread ends while it is
/// read, the list may have that one and lack another one. So those count that `is_there` finds: it looks later, and they were there before.
fn has_all(listed: &[u32], there: u64, is_there: impl Fn(u32) -> bool) -> bool {
    listed.iter().filter(|thread| is_there(**thread)).count() as u64 >= there
}

/// The table of a process's mappings. It is empty for a thread of the kernel, and for a process that has ended. It may wait for ever.
///
/// # Errors
/// The process is gone, or this user may not look, or the table cannot be read.
pub fn maps(pid: u32) -> io::Result<Vec<u8>> {
    let process = of_process(pid);
    let table = fs::read(process.join("maps"))?;
    if !table.is_empty() {
        return Ok(table);
    }
    let of_thread = |dir: PathBuf| match fs::read(dir.join("maps")) {
        Ok(table) => Ok(Some(table).filter(|table| !table.is_empty())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    };
    Ok(find_thread(pid, of_thread)?.unwrap_or_default())
}

/// The directory that shows a process's descriptors, working directory, root and program. What is in it may wait.
pub fn directory(pid: u32) -> PathBuf {
    let process = of_process(pid);
    match has_ended(&process) {
        Ok(true) => {
            let lives = |dir: PathBuf| Ok(Some(dir).filter(|dir| has_ended(dir).is_ok_and(|ended| !ended)));
            find_thread(pid, lives).ok().flatten().unwrap_or(process)
        }
        Ok(false) | Err(_) => process,
    }
}

/// Returns true for a thread that the kernel shows though it has ended.
fn has_ended(dir: &Path) -> io::Result<bool> {
    // As bytes: a thread may have any name.
    let status = fs::read(dir.join("status"))?;
    let state = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"State:\t"));
    Ok(state.is_some_and(|state| state.starts_with(b"Z") || state.starts_with(b"X")))
}

fn of_process(pid: u32) -> PathBuf {
    format!("/proc/{pid}").into()
}

/// The first answer for the directory of one of the process's threads, until no thread is new.
fn find_thread<T>(pid: u32, mut ask: impl FnMut(PathBuf) -> io::Result<Option<T>>) -> io::Result<Option<T>> {
    let process = of_process(pid);
    let mut asked = BTreeSet::from([pid]);
    loop {
        let new: Vec<u32> = threads(pid)?.into_iter().filter(|thread| asked.insert(*thread)).collect();
        if new.is_empty() {
            return Ok(None);
        }
        for thread in new {
            if let Some(found) = ask(process.join(format!("task/{thread}")))? {
                return Ok(Some(found));
            }
        }
    }
}

/// What the kernel knows of a file without a question to its file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The device of its file system.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
    /// Its owner.
    pub uid: u32,
}

/// Looks at a file by the link that a process's directory has to it. The link may wait, the file's file system is not asked.
///
/// # Errors
/// The descriptor is closed, or this user may not look.
pub fn known(link: &Path) -> io::Result<Known> {
    let path = CString::new(link.as_os_str().as_bytes())?;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let (flags, wanted) = (libc::AT_STATX_DONT_SYNC, libc::STATX_BASIC_STATS);
    // SAFETY: the path ends with a zero, and the buffer is one `statx`.
    if unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, wanted, found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, and the kernel has filled it.
    let found = unsafe { found.assume_init() };
    let device = libc::makedev(found.stx_dev_major, found.stx_dev_minor);
    Ok(Known { device, inode: found.stx_ino, uid: found.stx_uid })
}

/// Returns true if a process has this file open. One whose descriptors may not be read, or not in time, counts as one that has.
pub fn has_open(pid: u32, file: &fs::Metadata) -> bool {
    let (device, inode) = (file.dev(), file.ino());
    let is_it = move |at: Known| (at.device, at.inode) == (device, inode);
    let asked = limited::of(pid, move |pid| match fs::read_dir(directory(pid).join("fd")) {
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        Ok(links) => links.flatten().any(|link| known(&link.path()).is_ok_and(is_it)),
    });
    asked.unwrap_or(true)
}

/// Returns true if the error says that a process or thread has ended.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{Headless, LockedMemory};

    #[test]
    fn a_process_whose_first_thread_has_ended_is_seen_whole() {
        let child = Headless::new();
        let pid = child.pid();
        assert_eq!(fs::read(of_process(pid).join("maps")).unwrap(), b"", "the kernel shows it by itself");
        let threads = threads(pid).unwrap();
        assert_eq!((threads.len(), threads.contains(&pid)), (2, true));
        assert!(String::from_utf8_lossy(&maps(pid).unwrap()).contains("/libc"));
        let dir = directory(pid);
        assert_eq!(fs::read_link(dir.join("cwd")).unwrap(), std::env::current_dir().unwrap());
        assert!(fs::read_dir(dir.join("fd")).unwrap().count() > 0);
        let open = fs::metadata(dir.join("fd/2")).unwrap();
        assert!(has_open(pid, &open));
    }

    #[test]
    fn a_process_that_keeps_readers_waiting_holds_nobody_up() {
        let Some(locked) = LockedMemory::new() else { return };
        let pid = locked.pid();
        let (tell, told) = std::sync::mpsc::channel();
        let reads = std::thread::spawn(move || tell.send(maps(pid).is_ok()));
        assert_eq!(directory(pid), of_process(pid));
        assert_eq!(threads(pid).unwrap(), [pid]);
        let _either = has_open(pid, &fs::metadata("/proc/self/ns/pid").unwrap());
        let waits = told.recv_timeout(std::time::Duration::from_millis(500));
        assert!(waits.is_err(), "its mappings can be read: this tests nothing");
        drop(locked);
        reads.join().unwrap().unwrap();
    }

    #[test]
    fn a_thread_that_ended_takes_no_others_place_in_a_list() {
        let living = |threads: &'static [u32]| move |thread: u32| threads.contains(&thread);
        assert!(!has_all(&[1, 2], 2, living(&[1, 3])), "the list lacks the third one");
        assert!(!has_all(&[1, 2], 3, living(&[1, 2, 3])));
        assert!(!has_all(&[], 1, living(&[1])));
        assert!(has_all(&[1, 2], 2, living(&[1, 2])) && has_all(&[1, 2, 3], 2, living(&[1, 3])));
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
