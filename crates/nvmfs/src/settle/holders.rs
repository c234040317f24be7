//! Which processes sit on a seat, as far as `/proc` shows them to the caller.
//!
//! The kernel's list of a process's mappings names the seat's page: the arena's file, at the seat's offset. No number that stands in shared
//! memory is taken for a process.

use crate::core::Core;
use heddle_arena::Tag;
use heddle_arena::seats::PAGE_BYTES;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

/// A process.
pub struct Process {
    /// As the caller numbers it.
    pub pid: u32,
}

/// One of its threads.
pub struct Task {
    /// As the caller numbers it.
    pub outer: u32,
    /// As the thread itself does.
    pub inner: u32,
}

impl Process {
    /// Its threads.
    pub fn tasks(&self) -> Vec<Task> {
        let Ok(dir) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return Vec::new() };
        let numbers = dir.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
        let task = |outer: u32| {
            let status = fs::read_to_string(format!("/proc/{}/task/{outer}/status", self.pid)).ok()?;
            // From the outermost namespace that the caller sees to the thread's own.
            let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
            let inner = line.map_or(Some(outer), |line| line.split_whitespace().next_back()?.parse().ok())?;
            Some(Task { outer, inner })
        };
        numbers.filter_map(task).collect()
    }

    /// The caller's number of the thread that numbers itself so.
    pub fn task(&self, inner: u32) -> Option<u32> {
        self.tasks().into_iter().find(|task| task.inner == inner).map(|task| task.outer)
    }

    /// Does it sit there now?
    pub fn still_sits(&self, core: &Core, tag: Tag) -> bool {
        page(core, tag).is_some_and(|page| sits(self.pid, &page))
    }
}

/// What a line of `/proc/PID/maps` says of a seat's page, without its address: the rest of the line up to the file's name, and its length.
struct Page {
    offset: u64,
    inode: u64,
}

fn page(core: &Core, tag: Tag) -> Option<Page> {
    let file = File::from(core.arena.fd()?.try_clone_to_owned().ok()?);
    Some(Page { offset: u64::from(tag.seat()?) * PAGE_BYTES, inode: file.metadata().ok()?.ino() })
}

/// All processes that sit on this seat: one, or several that share their memory.
pub fn of(core: &Core, tag: Tag) -> Vec<Process> {
    let Some(page) = page(core, tag) else { return Vec::new() };
    let Ok(dir) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = dir.flatten().filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| sits(*pid, &page)).map(|pid| Process { pid }).collect()
}

fn sits(pid: u32, page: &Page) -> bool {
    let table = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&table).lines().any(|line| is_page(line, page))
}

/// `start-end perms offset device inode path`
fn is_page(line: &str, page: &Page) -> bool {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [range, "---s", offset, _, inode, name, ..] = fields[..] else { return false };
    let number = |hex: &str| u64::from_str_radix(hex, 16).ok();
    let len = range.split_once('-').and_then(|(from, to)| Some(number(to)? - number(from)?));
    name.starts_with("/memfd:heddle-arena")
        && len == Some(PAGE_BYTES)
        && number(offset) == Some(page.offset)
        && inode.parse() == Ok(page.inode)
}
