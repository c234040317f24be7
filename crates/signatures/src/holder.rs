//! The holder of a file's lock, from the kernel's list of locks.

use rustix::fs::{Stat, major, minor, stat};
use rustix::param::clock_ticks_per_second;
use std::fs::read_to_string;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The number of the process that locked this file. It may have ended since: the lock lives while any process
/// has the locked descriptor open, or the file mapped through it. Returns `None` if there is no lock or the
/// kernel does not tell.
pub fn lock_holder(path: &Path) -> Option<u32> {
    holder(&stat(path).ok()?).map(|(pid, _)| pid)
}

/// The process that holds a `flock` on this file, and its start time. Returns `None` if the kernel does not
/// tell it, as for a holder in another PID namespace.
pub fn holder(file: &Stat) -> Option<(u32, Option<SystemTime>)> {
    holder_of((file.st_dev, file.st_ino))
}

/// The same by device and inode.
pub(crate) fn holder_of(id: (u64, u64)) -> Option<(u32, Option<SystemTime>)> {
    let locks = read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| holds(line, id))?;
    Some((pid, started(pid)))
}

/// Parses a line such as `7: FLOCK  ADVISORY  WRITE 4711 00:1c:23 0 EOF`, with the device in hexadecimal.
/// Lines of waiting processes have an arrow as their second word and so do not match.
fn holds(line: &str, (of_device, of_inode): (u64, u64)) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let pid = words.nth(2)?.parse().ok()?;
    let mut id = words.next()?.split(':');
    let device = (u32::from_str_radix(id.next()?, 16).ok()?, u32::from_str_radix(id.next()?, 16).ok()?);
    let inode: u64 = id.next()?.parse().ok()?;
    (inode == of_inode && device == (major(of_device), minor(of_device))).then_some(pid)
}

/// Field 22 of `/proc/PID/stat` counts clock ticks since boot; the name in field 2 may hold blanks and
/// brackets.
fn started(pid: u32) -> Option<SystemTime> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let machine = read_to_string("/proc/stat").ok()?;
    let boot: u64 = machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(UNIX_EPOCH + Duration::from_secs(boot + ticks / clock_ticks_per_second()))
}
