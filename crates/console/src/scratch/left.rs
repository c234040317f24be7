//! Directories of killed commands. A lock tells them from those in use; the next command that makes a scratch
//! directory removes them.

use crate::output::talk;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

const PREFIX: &str = "heddle-";

/// Makes a directory for this process, and returns its lock.
pub fn make_in(base: &Path) -> io::Result<(PathBuf, OwnedFd)> {
    let mut nth = 0;
    loop {
        let dir = base.join(format!("{PREFIX}{}.{nth}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => nth += 1,
            Err(error) => return Err(error),
            Ok(()) => match lock(&dir) {
                Ok(lock) if fs::exists(&dir)? => return Ok((dir, lock)),
                // A command in another PID namespace took the new directory for a leftover and removed it.
                Ok(_) => nth += 1,
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::WouldBlock) => nth += 1,
                Err(error) => return Err(error),
            },
        }
    }
}

/// Removes this user's directories whose processes have ended.
pub fn remove_in(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let (name, dir) = (entry.file_name(), entry.path());
        let Some(pid) = name.to_str().and_then(maker) else { continue };
        let ours = rustix::process::geteuid().as_raw();
        if !entry.metadata().is_ok_and(|of| of.is_dir() && of.uid() == ours) || is_another_living_process(pid)
        {
            continue;
        }
        let Ok(_lock) = lock(&dir) else { continue };
        for below in fs::read_dir(&dir).into_iter().flatten().flatten() {
            // A mount made by fusermount3 outlives its process.
            let _none = heddle_fuse::umount(&below.path());
        }
        match fs::remove_dir_all(&dir) {
            Ok(()) => talk(&format!("heddle: removed {}: a killed command had left it", dir.display())),
            Err(error) => talk(&format!("heddle: {} is a killed command's: {error}", dir.display())),
        }
    }
}

/// The process that made the directory of this name. A name without a dot is another's: a user's notes of mounts lie in `heddle-UID`.
fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('.')?.0.parse().ok()
}

/// It may have made the directory, and not locked it yet.
fn is_another_living_process(pid: u32) -> bool {
    pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists()
}

/// Locks the directory. Fails if a living process holds the lock.
fn lock(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = rustix::fs::open(dir, flags, Mode::empty())?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_killed_commands_are_removed_unless_in_use() {
        let base = tempfile::tempdir().unwrap();
        let (mine, _lock) = make_in(base.path()).unwrap();
        let ended =
            std::process::Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id()));
        let ended = ended.unwrap();
        let killed = base.path().join(format!("{PREFIX}{ended}.0"));
        let notes = base.path().join(format!("{PREFIX}{ended}"));
        let namesake = base.path().join(format!("{PREFIX}{}.7", std::process::id()));
        let living = base.path().join(format!("{PREFIX}1.0"));
        let others = base.path().join(format!("{PREFIX}report"));
        for dir in [&killed, &notes, &namesake, &living, &others] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("image"), "x").unwrap();
        }
        remove_in(base.path());
        let stay = [&mine, &living, &others, &notes, &killed, &namesake].map(|dir| dir.exists());
        assert_eq!(stay, [true, true, true, true, false, false]);
        let (next, _lock) = make_in(base.path()).unwrap();
        assert_ne!(next, mine, "a process may have two");
    }
}
