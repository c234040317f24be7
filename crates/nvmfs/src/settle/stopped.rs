//! A holder that is stopped (SIGSTOP, a debugger) while others wait: killed after the mount's patience, then settled as dead. Taking
//! its lane while it lives is no choice: its late stores would land in the midst of others' work (protocol review D13).

use crate::core::Core;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Kills the holder if it has been waited for too long, is stopped, and has this arena mapped. True: it was killed.
pub fn kill(core: &Core, lane: u16, waited: Duration) -> bool {
    // ORDERING: Relaxed, a setting.
    let patience = core.root().patience_ms.load(Relaxed);
    if patience == 0 || waited < Duration::from_millis(patience.into()) {
        return false;
    }
    // ORDERING: Relaxed, what it leads to is looked at.
    let holder = core.lane(lane).intent.holder.load(Relaxed);
    let (process, thread) = ((holder >> 32) as i32, holder as u32);
    let Some(pid) = Pid::from_raw(process).filter(|_| process as u32 != crate::process::id()) else {
        return false;
    };
    // From here on the number cannot come to mean another process.
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    is_stopped(process, thread)
        && maps(core, process)
        && core.lane(lane).intent.holder.load(Relaxed) == holder // ORDERING: Relaxed, as above.
        && pidfd_send_signal(pidfd, Signal::KILL).is_ok()
}

/// The third field of `stat`, behind a name that may hold blanks and brackets.
fn is_stopped(process: i32, thread: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Does the process have this arena mapped? The number stands in memory that every client can write.
fn maps(core: &Core, process: i32) -> bool {
    let Some(fd) = core.arena.fd() else { return false };
    let Ok(file) = fd.try_clone_to_owned().map(std::fs::File::from) else { return false };
    let Ok(inode) = file.metadata().map(|meta| meta.ino()) else { return false };
    let table = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    // `start-end perms offset device inode path`
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(4).is_some_and(|field| *field == inode.to_string())
            && fields.get(5).is_some_and(|path| path.starts_with("/memfd:heddle-arena"))
    })
}
