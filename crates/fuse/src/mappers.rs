//! Processes that have a file mapped, or a descriptor of a dead mount: they work on an image past its mount.
//!
//! A process under the bypass has image and arena mapped, and the descriptors of its files open. When the mount's process is killed and
//! another one takes over, the kernel does not count these descriptors at the new mount.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use heddle_vfs::procfs;
use heddle_vfs::procfs::limited::of_each;

use crate::Holder;
use crate::mounts::{Life, life_of};
use crate::umount::processes;

/// How the kernel names the memory that a mount's process shares.
const ARENA: &[u8] = b"/memfd:heddle-arena";

/// The processes that have this file mapped, as far as this user may look.
pub fn mappers(file: &Path) -> Vec<Holder> {
    fs::metadata(file).map(|file| mapping(&file).into_iter().map(Holder::of).collect()).unwrap_or_default()
}

fn mapping(file: &fs::Metadata) -> Vec<u32> {
    let device = file.dev();
    let id = format!("{:02x}:{:02x} {} ", rustix::fs::major(device), rustix::fs::minor(device), file.ino());
    // `ADDRESSES PERMISSIONS OFFSET DEVICE INODE PATH`; a path is not searched.
    let is_of_it = move |line: &[u8]| {
        let rest = line.splitn(4, |b| *b == b' ').nth(3);
        rest.is_some_and(|rest| rest.starts_with(id.as_bytes()))
    };
    let has_it = move |pid| {
        let table = procfs::maps(pid).unwrap_or_default();
        table.split(|b| *b == b'\n').any(&is_of_it)
    };
    of_each(processes(), has_it).into_iter().filter_map(|(pid, has_it)| has_it.then_some(pid)).collect()
}

/// The processes that may write to an image through descriptors of a dead mount of it, in whose place the process `server` serves.
pub(crate) fn earlier_writers(server: u32) -> Vec<Holder> {
    let arena = descriptors(server)
        .find(|at| fs::read_link(at).is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(ARENA)));
    let Some(arena) = arena.and_then(|at| fs::metadata(at).ok()) else { return Vec::new() };
    // Most have it open, too: those count though the mappings of all cannot be read in time.
    let mut others: BTreeSet<u32> = openers(&arena).collect();
    others.extend(mapping(&arena));
    others.remove(&server);
    others.into_iter().filter(|pid| may_write_to_a_dead_mount(*pid)).map(Holder::of).collect()
}

/// The processes that have a file open, as far as this user may look.
fn openers(file: &fs::Metadata) -> impl Iterator<Item = u32> + use<> {
    let (device, inode) = (file.dev(), file.ino());
    let is_it = move |at: PathBuf| {
        procfs::known(&at).is_ok_and(|known| (known.device, known.inode) == (device, inode))
    };
    let asked = of_each(processes(), move |pid| descriptors(pid).any(is_it));
    asked.into_iter().filter_map(|(pid, has_it)| has_it.then_some(pid))
}

fn may_write_to_a_dead_mount(pid: u32) -> bool {
    descriptors(pid).filter(|at| may_write(at)).any(|at| life_of(&at) == Life::Dead)
}

/// Returns true if a descriptor is open for writing.
fn may_write(at: &Path) -> bool {
    let number = at.file_name().unwrap_or_default();
    let of_process = at.ancestors().nth(2).unwrap_or(at);
    let info = fs::read_to_string(of_process.join("fdinfo").join(number)).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY)
}

fn descriptors(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(procfs::directory(pid).join("fd")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}
