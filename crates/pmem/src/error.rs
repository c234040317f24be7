//! One variant for each cause. The text names the object, the cause and the way out.

use rustix::io::Errno;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Result of making or opening a region.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a region could not be made, opened or made durable.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// `create` found a file of that name.
    #[error("cannot create {}: it exists already. Choose another name, or ask to overwrite it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The path is a symbolic link, and the file would be overwritten.
    #[error("{} is a symbolic link to {}: name that file itself", path.display(), to.display())]
    IsLink {
        /// The link.
        path: PathBuf,
        /// Its target.
        to: PathBuf,
    },
    /// Another process (or another open of this one) holds the region.
    #[error("cannot open {}: it is in use by {}. Unmount it with: heddle umount, or wait until that process has ended",
            path.display(), holder_text(*pid, *since))]
    InUse {
        /// The file or device.
        path: PathBuf,
        /// The holder, if the kernel tells it.
        pid: Option<u32>,
        /// Start time of the holder.
        since: Option<SystemTime>,
    },
    /// The same bytes are in use under another name.
    #[error("cannot open {}: it {what}. Unmount it there, or wait until nobody uses it", path.display())]
    InUseThrough {
        /// The file or device.
        path: PathBuf,
        /// "is in use by ..."
        what: String,
    },
    /// Less than one block, or less than one mapping unit of a device.
    #[error("{} is too small for a region: {len_bytes} bytes, at least {least_bytes} are needed", path.display())]
    TooSmall {
        /// The file or device.
        path: PathBuf,
        /// The size that it has, or was to have.
        len_bytes: u64,
        /// The smallest possible size.
        least_bytes: u64,
    },
    /// A device has fewer bytes than asked for.
    #[error("cannot make a region of {len_bytes} bytes on {}: the device has {device_bytes}. Ask for less",
            path.display())]
    TooLarge {
        /// The device.
        path: PathBuf,
        /// The requested size.
        len_bytes: u64,
        /// The device's size.
        device_bytes: u64,
    },
    /// The file system below is full.
    #[error("{} does not fit: it needs {len_bytes} bytes and could have {free_bytes}. Free some, ask for less, or \
             raise the limit (of tmpfs: mount -o remount,size=SIZE; of a control group; memory itself)", path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// The size that it needs.
        len_bytes: u64,
        /// The size that is available.
        free_bytes: u64,
    },
    /// This process's limit for files is too low.
    #[error("{} cannot have {len_bytes} bytes: this process may write files of {max_bytes} at most. Raise that (ulimit -f)",
            path.display())]
    Limited {
        /// The file.
        path: PathBuf,
        /// The size that it needs.
        len_bytes: u64,
        /// The limit of the process.
        max_bytes: u64,
    },
    /// A device that takes no writes, or a file of a file system that is mounted read-only.
    #[error("{} is write-protected: it can only be read (mount -o ro, fsck -n)", path.display())]
    WriteProtected {
        /// The file or device.
        path: PathBuf,
    },
    /// A directory, pipe or socket.
    #[error("{} is neither a file nor a device; a region needs one of them", path.display())]
    NotMappable {
        /// The path.
        path: PathBuf,
    },
    /// A durability below the media's own was requested.
    #[error("cannot open {} with durability=process: what is stored there outlives the machine's restart, and would be found half \
             written after a power cut. Leave the option out, or use an image in memory (tmpfs)", path.display())]
    Lasting {
        /// The file or device.
        path: PathBuf,
    },
    /// `msync` failed: stores since the last successful fence may be lost, and no later fence can make them
    /// durable.
    #[error("{} could not be made durable ({errno}): what was stored since the last good fence may be lost. \
             Unmount, look at the device below, then run: heddle fsck", path.display())]
    NotDurable {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// A part of the file is gone, or its media cannot be read.
    #[error("a part of {} cannot be read any more: it was cut short, or its media is damaged. Nothing is changed from here on. \
             Unmount, look at the file and the device below, then run: heddle fsck", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
    },
    /// Any other refusal of the kernel.
    #[error("cannot {action} {}: {errno}", path.display())]
    System {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
}

fn holder_text(pid: Option<u32>, since: Option<SystemTime>) -> String {
    let Some(pid) = pid else { return "another process".into() };
    let mut text = format!("process {pid}");
    if let Some(clock) = since.and_then(local_clock) {
        let _ = write!(text, " (since {clock})");
    }
    text
}

/// Hours and minutes in local time; with the date if it was not today.
fn local_clock(at: SystemTime) -> Option<String> {
    let then = local(at)?;
    let now = local(SystemTime::now())?;
    let mut text = format!("{:02}:{:02}", then.tm_hour, then.tm_min);
    if (then.tm_year, then.tm_yday) != (now.tm_year, now.tm_yday) {
        text = format!("{:04}-{:02}-{:02} {text}", then.tm_year + 1900, then.tm_mon + 1, then.tm_mday);
    }
    Some(text)
}

fn local(at: SystemTime) -> Option<libc::tm> {
    let seconds = i64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()?;
    // SAFETY: `tm` is plain integers and a pointer, for which zero is valid.
    let mut broken_down: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals; the call writes one `tm` or fails.
    let done = unsafe { libc::localtime_r(&seconds, &mut broken_down) };
    (!done.is_null()).then_some(broken_down)
}
