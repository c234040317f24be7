//! The processes that hold a process slot, as far as `/proc` shows them to the caller.
//!
//! The kernel's list of a process's mappings names the process slot's page: the arena's file, at the process slot's offset.
//! No number in shared memory is taken for a process. If something cannot be read, for lack of descriptors or
//! memory, the answer is unknown, and no thread is taken for dead.

use crate::state::core::Core;
use heddle_arena::ProcessTag;
use heddle_arena::process_slots::page_bytes;
use heddle_vfs::procfs;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

/// A process.
pub struct Process {
    /// Its number in the caller's namespace.
    pub pid: u32,
}

/// One of its threads.
pub struct Task {
    /// Its number in the caller's namespace.
    pub outer: u32,
    /// Its number in its own namespace.
    pub inner: u32,
}

impl Process {
    /// Its living threads; `None`: not all could be examined.
    pub fn tasks(&self) -> Option<Vec<Task>> {
        let mut tasks = Vec::new();
        for outer in unless_gone(procfs::threads(self.pid))?.unwrap_or_default() {
            let file = format!("/proc/{}/task/{outer}/status", self.pid);
            let Some(status) = unless_gone(fs::read_to_string(file))? else { continue };
            // The first thread of a process is shown until the process ends.
            if status.lines().any(|line| line.starts_with("State:\tZ") || line.starts_with("State:\tX")) {
                continue;
            }
            // From the outermost namespace that the caller sees to the thread's own.
            let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let inner = line.map_or(Some(outer), |line| line.split_whitespace().next_back()?.parse().ok())?;
            tasks.push(Task { outer, inner });
        }
        Some(tasks)
    }

    /// The caller's number of the thread with this number of its own.
    pub fn task(&self, inner: u32) -> Option<u32> {
        self.tasks()?.into_iter().find(|task| task.inner == inner).map(|task| task.outer)
    }

    /// Returns true if the process still holds the process slot.
    pub fn still_holds_slot(&self, core: &Core, tag: ProcessTag) -> bool {
        page(core, tag).is_some_and(|page| holds_slot(self.pid, &page) == Some(true))
    }
}

/// The contents of a process's file. `Some(None)`: the process is gone, or another user's. `None`: unknown.
fn unless_gone<T>(read: std::io::Result<T>) -> Option<Option<T>> {
    match read {
        Ok(value) => Some(Some(value)),
        Err(error) if procfs::is_gone(&error) => Some(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Some(None),
        Err(_) => None,
    }
}

/// Numbers of the living threads, in their own numbering, of all processes on this process slot; `None`: unknown for
/// at least one of them.
pub fn threads_of(core: &Core, tag: ProcessTag) -> Option<Vec<u32>> {
    let mut threads = Vec::new();
    for process in of(core, tag)? {
        threads.extend(process.tasks()?.into_iter().map(|task| task.inner));
    }
    // Without any thread there is no process on the process slot: it is not visible here, or has just ended.
    Some(threads).filter(|threads| !threads.is_empty())
}

/// The line of a process slot's page in `/proc/PID/maps`, without the address: the rest of the line up to the file's
/// name, and the mapping's length.
struct Page {
    offset: u64,
    inode: u64,
}

fn page(core: &Core, tag: ProcessTag) -> Option<Page> {
    let file = File::from(core.arena.fd()?.try_clone_to_owned().ok()?);
    Some(Page { offset: u64::from(tag.process_slot()?) * page_bytes(), inode: file.metadata().ok()?.ino() })
}

/// All processes on this process slot: one, or several that share their memory; `None`: not all could be examined.
pub fn of(core: &Core, tag: ProcessTag) -> Option<Vec<Process>> {
    let page = page(core, tag)?;
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").ok()? {
        let Some(pid) = process.ok()?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if holds_slot(pid, &page)? {
            found.push(Process { pid });
        }
    }
    Some(found)
}

fn holds_slot(pid: u32, page: &Page) -> Option<bool> {
    let table = unless_gone(procfs::maps(pid))?.unwrap_or_default();
    Some(String::from_utf8_lossy(&table).lines().any(|line| is_page(line, page)))
}

/// `start-end perms offset device inode path`
fn is_page(line: &str, page: &Page) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [range, "---s", offset, _, inode, name, ..] = fields[..] else { return false };
    let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
    let len = range.split_once('-').and_then(|(from, to)| Some(number(to)? - number(from)?));
    name.starts_with("/memfd:heddle-arena")
        && len == Some(page_bytes())
        && number(offset) == Some(page.offset)
        && inode.parse() == Ok(page.inode)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::state::core::tests::bare;
    use std::io::Error;

    #[test]
    fn a_file_that_cannot_be_read_is_no_sign_of_death() {
        assert_eq!(unless_gone(Ok(5)), Some(Some(5)));
        for (errno, gone) in [
            (libc::ESRCH, true),
            (libc::ENOENT, true),
            (libc::EACCES, true),
            (libc::EPERM, true),
            (libc::EMFILE, false),
            (libc::ENOMEM, false),
            (libc::EIO, false),
        ] {
            let found = unless_gone::<()>(Err(Error::from_raw_os_error(errno)));
            assert_eq!(found, gone.then_some(None), "errno {errno}");
        }
    }

    #[test]
    fn a_process_slots_page_is_of_that_arena_at_its_offset() {
        let (page, bytes) = (Page { offset: 0x5000, inode: 77 }, page_bytes());
        let line = |len: u64, perms: &str, offset: &str, inode: &str, name: &str| {
            format!("7f0000001000-{:x} {perms} {offset} 00:01 {inode}    {name}", 0x7f00_0000_1000 + len)
        };
        let name = "/memfd:heddle-arena (deleted)";
        assert!(is_page(&line(bytes, "---s", "00005000", "77", name), &page));
        for other in [
            line(bytes, "rw-s", "00005000", "77", name),
            line(2 * bytes, "---s", "00005000", "77", name),
            line(bytes, "---s", "00006000", "77", name),
            line(bytes, "---s", "00005000", "78", name),
            line(bytes, "---s", "00005000", "77", "/memfd:heddle-region (deleted)"),
            line(bytes, "---s", "00005000", "77", ""),
            String::new(),
        ] {
            assert!(!is_page(&other, &page), "{other}");
        }
    }

    #[test]
    fn a_process_finds_its_own_threads_by_its_slot() {
        let core = bare(1024);
        let tag = core.process_slot().unwrap().tag();
        let (pid, me) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let threads = threads_of(&core, tag).unwrap();
        assert!(threads.contains(&me) && threads.contains(&pid), "{threads:?}");
        let found = of(&core, tag).unwrap();
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [pid]);
        assert_eq!((found[0].task(me), found[0].task(0)), (Some(me), None));
        assert!(found[0].still_holds_slot(&core, tag));
        // A slot that nobody has.
        let next = u64::from(tag.process_slot().unwrap()) + 1;
        let lonely = Page { offset: next * page_bytes(), inode: page(&core, tag).unwrap().inode };
        assert_eq!(holds_slot(pid, &lonely), Some(false));
        assert_eq!(page(&core, tag).unwrap().offset + page_bytes(), lonely.offset);
    }

    /// Regression: the daemon had no descriptor left to read about a living thread, and took it for dead.
    #[test]
    fn crash_an_unreadable_thread_was_taken_for_dead() {
        // SAFETY: the child looks at itself and leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let own = Process { pid: std::process::id() };
            let all = own.tasks().is_some_and(|tasks| tasks.len() == 1);
            // SAFETY: plain system calls; no descriptor is left.
            unsafe {
                let next = libc::dup(0);
                libc::close(next);
                let most = next as libc::rlim_t;
                libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: most, rlim_max: most });
            }
            let unknown = own.tasks().is_none();
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(!(all && unknown))) };
        }
        let mut status = 0;
        // SAFETY: room for the answer.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
    }
}
