//! The processes that hold a process slot, as far as `/proc` shows them to the caller.
//!
//! The kernel's list of a process's mappings names the process slot's page: the arena's file, at the process slot's offset.
//! No number in shared memory is taken for a process. If something cannot be read, for lack of descriptors or
//! memory, the answer is unknown, and no thread is taken for dead.
//!
//! A process can keep a reader of its mappings waiting for ever ([`procfs`]). So they are read only if its users or groups may attach
//! ([`Attachers`]): those users can hold up others anyway, and no other user can. A process that gives up its rights after it has attached
//! is not found, as another user's is not found by a client.

use crate::state::core::Core;
use heddle_arena::ProcessTag;
use heddle_arena::process_slots::page_bytes;
use heddle_vfs::procfs;
use heddle_vfs::unmapped::{is_one_group, is_one_user, is_own_user};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;

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
        slot(core, tag).is_some_and(|slot| holds_slot(self.pid, &slot) == Some(true))
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

/// Users whose processes may attach.
struct Attachers {
    /// The user of the daemon, who owns the arena.
    daemon: u32,
    group: u32,
}

impl Attachers {
    /// `status`: a process's file of that name.
    fn may_include(&self, status: &str) -> bool {
        let numbers = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().filter_map(|number| number.parse::<u32>().ok()).collect::<Vec<_>>()
        };
        let is_user = |uid: &u32| *uid == 0 || is_own_user(*uid) || *uid == self.daemon && is_one_user(*uid);
        let is_member = |gid: &u32| *gid == self.group && is_one_group(*gid);
        // Real, effective, saved, and that of the file system.
        numbers("Uid:").iter().any(is_user)
            || numbers("Gid:").iter().any(is_member)
            || numbers("Groups:").iter().any(is_member)
    }
}

/// What is looked for, and where.
struct Slot {
    page: Page,
    attachers: Attachers,
}

fn slot(core: &Core, tag: ProcessTag) -> Option<Slot> {
    let arena = File::from(core.arena.fd()?.try_clone_to_owned().ok()?).metadata().ok()?;
    let page = Page { offset: u64::from(tag.process_slot()?) * page_bytes(), inode: arena.ino() };
    // ORDERING: Relaxed, a setting.
    let group = core.root().attach_group.load(Relaxed);
    Some(Slot { page, attachers: Attachers { daemon: arena.uid(), group } })
}

/// All processes on this process slot: one, or several that share their memory; `None`: not all could be examined.
pub fn of(core: &Core, tag: ProcessTag) -> Option<Vec<Process>> {
    let slot = slot(core, tag)?;
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").ok()? {
        let Some(pid) = process.ok()?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if holds_slot(pid, &slot)? {
            found.push(Process { pid });
        }
    }
    Some(found)
}

fn holds_slot(pid: u32, slot: &Slot) -> Option<bool> {
    // As bytes: a process may have any name.
    let status = unless_gone(fs::read(format!("/proc/{pid}/status")))?.unwrap_or_default();
    if !slot.attachers.may_include(&String::from_utf8_lossy(&status)) {
        return Some(false);
    }
    let table = unless_gone(procfs::maps(pid))?.unwrap_or_default();
    Some(String::from_utf8_lossy(&table).lines().any(|line| is_page(line, &slot.page)))
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
    use crate::state::core::NO_GROUP;
    use crate::state::core::tests::bare;
    use heddle_vfs::testkit::LockedMemory;
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
        let mut lonely = slot(&core, tag).unwrap();
        assert_eq!(lonely.page.offset, u64::from(tag.process_slot().unwrap()) * page_bytes());
        assert_eq!(holds_slot(pid, &lonely), Some(true));
        lonely.page.offset += page_bytes();
        assert_eq!(holds_slot(pid, &lonely), Some(false));
    }

    #[test]
    fn mappings_are_read_of_users_who_may_attach_alone() {
        let attachers = |daemon, group| Attachers { daemon, group };
        let status = |uids: &str, gids: &str, groups: &str| {
            format!("Name:\tx\\nUid:\t0\nUid:\t{uids}\nGid:\t{gids}\nGroups:\t{groups} \nNSpid:\t77\n")
        };
        let others = "5 5 5 5";
        for (daemon, group, status, may) in [
            (7, NO_GROUP, status(others, others, "5 6"), false),
            (5, NO_GROUP, status(others, "1 1 1 1", ""), true),
            (7, NO_GROUP, status("5 5 7 5", others, ""), true),
            (7, NO_GROUP, status("5 0 5 5", others, ""), true),
            (7, 5, status("1 1 1 1", "1 5 1 1", ""), true),
            (7, 6, status(others, others, "4 6 8"), true),
            (7, 7, status(others, others, "77 8"), false),
            (7, 77, String::new(), false),
        ] {
            assert_eq!(attachers(daemon, group).may_include(&status), may, "{daemon} {group} {status}");
        }
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(attachers(7, NO_GROUP).may_include(&own));
    }

    #[test]
    fn a_stranger_who_locks_his_mappings_delays_no_search() {
        let Some(_locked) = LockedMemory::new() else { return };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let core = bare(1024);
            let tag = core.process_slot().unwrap().tag();
            tell.send(of(&core, tag).map(|found| found.len())).unwrap();
        });
        assert_eq!(told.recv_timeout(std::time::Duration::from_secs(30)), Ok(Some(1)));
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
