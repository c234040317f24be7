//! Other names of the same bytes, through which another process could write: loop devices over a file,
//! partitions of a device.
//!
//! A lock on a path's own inode does not stop a process that uses another name. So a writer also takes and
//! keeps the lock of each file under its device, found through loop devices, partitions and the device
//! mapper. It takes each loop device over its file exclusively, which the kernel refuses while a file system
//! on that device is mounted.
//!
//! Limit  the kernel does not prevent a loop device that is set up later over a file in use, and this crate does not see it.
//!
//! Facts  `/sys/dev/block/MAJOR:MINOR` lists partitions, slaves, and for a loop device its file's path, offset and size;
//!        LOOP_GET_STATUS64 gives device and inode of that file, whatever file has its name now.

use crate::holder::holder;
use rustix::fs::{
    CWD, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, major, makedev, minor, openat, stat,
};
use rustix::io::Errno;
use std::fs::{read_dir, read_to_string};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// More layers of devices than occur in practice.
const DEPTH_MAX: u32 = 16;

/// The intended use of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimMode {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}

/// Other names of the bytes, held until this is dropped.
#[derive(Debug, Default)]
pub struct Claim {
    held: Vec<OwnedFd>,
}

impl Drop for Claim {
    /// Unlocks explicitly: a child that another thread is just starting has copies of the descriptors, which
    /// would keep the locks.
    fn drop(&mut self) {
        for file in &self.held {
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

/// A file below all devices, by device and inode, and the range of its bytes.
struct BackingFile {
    id: (u64, u64),
    range: std::ops::Range<u64>,
    /// The loop devices between.
    through: Vec<u64>,
}

impl BackingFile {
    fn overlaps(&self, id: (u64, u64), range: &std::ops::Range<u64>) -> bool {
        self.id == id && self.range.start < range.end && range.start < self.range.end
    }
}

/// The files below a file or device, with their paths: it itself, or the files that it lies over.
fn backing_files(own: &Stat) -> Vec<(BackingFile, Option<PathBuf>)> {
    match FileType::from_raw_mode(own.st_mode) {
        FileType::RegularFile => {
            let id = (own.st_dev, own.st_ino);
            vec![(BackingFile { id, range: 0..u64::MAX, through: Vec::new() }, None)]
        }
        FileType::BlockDevice => {
            let mut found = Vec::new();
            below(own.st_rdev, 0..u64::MAX, &mut Vec::new(), &mut found, 0);
            found.into_iter().map(|(backing, path)| (backing, Some(path))).collect()
        }
        _ => Vec::new(),
    }
}

/// Takes the other names of an open file or device. The error names the process that holds one of them.
///
/// # Errors
/// A sentence without its subject: "is in use by ..., through ...".
pub fn claim(file: impl AsFd, how: ClaimMode) -> Result<Claim, String> {
    let Ok(own) = fstat(&file) else { return Ok(Claim::default()) };
    let mut held = Vec::new();
    let backing_files = backing_files(&own);
    for (backing, path) in &backing_files {
        if let Some(path) = path {
            held.extend(lock_below(backing, path, how)?);
        }
    }
    for (backing, _) in &backing_files {
        for device in loops() {
            let is_other = !backing.through.contains(&device.number) && own.st_rdev != device.number;
            if is_other && device.is_over(backing) {
                held.extend(hold_above(&device, how)?);
            }
        }
    }
    Ok(Claim { held })
}

/// Returns true if the two have bytes in common under any names: the same file or device, or a device over a
/// file.
pub fn have_bytes_in_common(one: impl AsFd, other: impl AsFd) -> bool {
    let (Ok(one), Ok(other)) = (fstat(one), fstat(other)) else { return false };
    let is_device = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let one_device = is_device(&one) && is_device(&other) && one.st_rdev == other.st_rdev;
    let others = backing_files(&other);
    one_device
        || backing_files(&one).iter().any(|(a, _)| others.iter().any(|(b, _)| a.overlaps(b.id, &b.range)))
}

/// The user of a file or device, for an error text: a process that locked it, or a mount of it.
pub fn user_of(stat: &Stat) -> Option<String> {
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    if let Some(dir) = is_device.then(|| mounted_at(stat.st_rdev)).flatten() {
        return Some(format!(
            "the system, which has it mounted at {}",
            dir.display().to_string().escape_debug()
        ));
    }
    holder(stat).map(|(pid, _)| {
        let name = read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("process {pid} ({})", name.trim_end().escape_debug())
    })
}

fn used(stat: Option<&Stat>, through: &str) -> String {
    let by = stat.and_then(user_of).unwrap_or_else(|| "another program, or by the system".to_owned());
    format!("is in use by {by}, through {through}")
}

/// Locks a file below: the whole file exclusively, or a part, shared with holders of other parts.
fn lock_below(backing: &BackingFile, path: &Path, how: ClaimMode) -> Result<Option<OwnedFd>, String> {
    let shown = path.display();
    let opened = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    let file = opened.ok().filter(|file| fstat(file).is_ok_and(|s| (s.st_dev, s.st_ino) == backing.id));
    let Some(file) = file else {
        // The file has lost its name, or another file has it: there is no file to lock, but the kernel's list
        // of locks has its inode.
        return match crate::holder::holder_of(backing.id) {
            Some((pid, _)) => Err(format!("is in use by process {pid}, through {shown}")),
            None => Ok(None),
        };
    };
    let is_whole = backing.range == (0..u64::MAX);
    let lock = match how {
        ClaimMode::Write if is_whole => FlockOperation::NonBlockingLockExclusive,
        _ => FlockOperation::NonBlockingLockShared,
    };
    match flock(&file, lock) {
        Err(Errno::WOULDBLOCK) => Err(used(fstat(&file).ok().as_ref(), &shown.to_string())),
        _ => Ok(Some(file)),
    }
}

/// Takes a loop device over the same bytes exclusively.
fn hold_above(device: &Loop, how: ClaimMode) -> Result<Option<OwnedFd>, String> {
    let path = format!("/dev/loop{}", minor_index(device));
    let alone = if how == ClaimMode::Write { OFlags::EXCL } else { OFlags::empty() };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | alone;
    let lock = match how {
        ClaimMode::Write => FlockOperation::NonBlockingLockExclusive,
        ClaimMode::Read => FlockOperation::NonBlockingLockShared,
    };
    match openat(CWD, path.as_str(), flags, Mode::empty()) {
        Ok(file) => match flock(&file, lock) {
            Err(Errno::WOULDBLOCK) => Err(used(fstat(&file).ok().as_ref(), &path)),
            _ => Ok(Some(file)),
        },
        Err(Errno::BUSY) => Err(used(stat(path.as_str()).ok().as_ref(), &path)),
        // Without permission to open it, this process can still see that it is mounted.
        Err(_) if how == ClaimMode::Write => match mounted_at(device.number) {
            Some(dir) => Err(format!(
                "is in use by the system, which has mounted {path}, a device over it, at {}",
                dir.display()
            )),
            None => Ok(None),
        },
        Err(_) => Ok(None),
    }
}

/// A loop device that has a file.
struct Loop {
    number: u64,
    /// The file's identity as the kernel tells it, and that of the file which has its name now.
    ids: Vec<(u64, u64)>,
    range: std::ops::Range<u64>,
}

impl Loop {
    fn is_over(&self, backing: &BackingFile) -> bool {
        self.ids.iter().any(|id| backing.overlaps(*id, &self.range))
    }
}

fn minor_index(device: &Loop) -> String {
    // The name in sysfs is the name of the device node.
    let name = read_to_string(sys(device.number).join("uevent")).unwrap_or_default();
    let name = name.lines().find_map(|line| line.strip_prefix("DEVNAME=loop")).map(str::to_owned);
    name.unwrap_or_else(|| minor(device.number).to_string())
}

fn sys(device: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(device), minor(device)).into()
}

fn number_in(path: PathBuf) -> u64 {
    read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// `MAJOR:MINOR`
fn device_in(path: PathBuf) -> Option<u64> {
    let text = read_to_string(path).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn loops() -> Vec<Loop> {
    let blocks = read_dir("/sys/block").into_iter().flatten().flatten();
    let names = blocks.filter(|entry| entry.file_name().as_bytes().starts_with(b"loop"));
    names.filter_map(|entry| loop_at(&entry.path()).map(|(device, _)| device)).collect()
}

/// The loop device of this sysfs directory, and the path of its file.
fn loop_at(folder: &Path) -> Option<(Loop, PathBuf)> {
    let path = std::fs::read(folder.join("loop/backing_file")).ok()?;
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)));
    let number = device_in(folder.join("dev"))?;
    let (offset, limit) = (number_in(folder.join("loop/offset")), number_in(folder.join("loop/sizelimit")));
    let end = if limit == 0 { u64::MAX } else { offset.saturating_add(limit) };
    let by_name = stat(&path).ok().map(|s| (s.st_dev, s.st_ino));
    let name = folder.file_name()?.to_str()?;
    let ids = status(&format!("/dev/{name}")).into_iter().chain(by_name).collect();
    Some((Loop { number, ids, range: offset..end }, path))
}

/// Device and inode of a loop device's file, from the kernel.
fn status(node: &str) -> Option<(u64, u64)> {
    const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
    /// `struct loop_info64` has 232 bytes; only its first two words are used.
    #[repr(C, align(8))]
    struct Info([u64; 32]);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(CWD, node, flags, Mode::empty()).ok()?;
    let mut info = Info([0; 32]);
    // SAFETY: an open descriptor; the kernel writes 232 bytes into a live local of 256.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut info) };
    // The kernel's encoding: twelve bits of the major number lie between the low eight and the high bits of
    // the minor.
    let device = info.0[0];
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    (done == 0).then(|| (makedev(major as u32, minor as u32), info.0[1]))
}

/// Collects the files below a device, with their paths.
fn below(
    device: u64,
    range: std::ops::Range<u64>,
    through: &mut Vec<u64>,
    found: &mut Vec<(BackingFile, PathBuf)>,
    depth: u32,
) {
    let folder = sys(device);
    if depth > DEPTH_MAX {
        return;
    }
    through.push(device);
    if let Some((device, path)) = loop_named(&folder) {
        let start = device.range.start.saturating_add(range.start);
        let end = device.range.start.saturating_add(range.end).min(device.range.end);
        let range = if range.end == u64::MAX { start..device.range.end } else { start..end };
        found.extend(device.ids.iter().take(1).map(|id| {
            (BackingFile { id: *id, range: range.clone(), through: through.clone() }, path.clone())
        }));
    } else if folder.join("partition").exists() {
        // Sectors of 512 bytes, whatever the device's sector size.
        let (start, size) = (number_in(folder.join("start")) * 512, number_in(folder.join("size")) * 512);
        let above = folder.canonicalize().ok().and_then(|path| path.parent().map(Path::to_path_buf));
        if let Some(whole) = above.and_then(|path| device_in(path.join("dev"))) {
            below(whole, start..start.saturating_add(size), through, found, depth + 1);
        }
    }
    for slave in read_dir(folder.join("slaves")).into_iter().flatten().flatten() {
        if let Some(slave) = device_in(slave.path().join("dev")) {
            // The kernel does not tell which part of it is used: assume any part.
            below(slave, 0..u64::MAX - 1, through, found, depth + 1);
        }
    }
    through.pop();
}

fn loop_named(folder: &Path) -> Option<(Loop, PathBuf)> {
    loop_at(&folder.canonicalize().ok()?)
}

/// The mount point of a device, as far as this process can see.
fn mounted_at(device: u64) -> Option<PathBuf> {
    let magic_numbers = std::fs::read("/proc/self/mountinfo").ok()?;
    let id = format!("{}:{}", major(device), minor(device));
    magic_numbers.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let is_it = fields.nth(2)? == id.as_bytes();
        let dir = fields.nth(1)?;
        is_it.then(|| PathBuf::from(std::ffi::OsStr::from_bytes(dir)))
    })
}
