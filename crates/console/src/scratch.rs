//! A command's temporary directory. It is removed when the command ends, fails or is interrupted.

mod left;

use crate::output::talk;
use anyhow::{Context, Result};
use heddle_fuse::Unmounter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The magic number of tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Free space that makes /dev/shm large enough for the images of `heddle demo`.
const SHM_FREE_MIN: u64 = 400 << 20;
const SHM: &str = "/dev/shm";
/// How long the removal of the directory may meet files that are just made.
const REMOVE_MAX: Duration = Duration::from_secs(2);

/// Removes the directories of killed commands where [`Scratch::new`] makes its own.
pub fn remove_left() {
    left::remove_in(Path::new(SHM));
    left::remove_in(&std::env::temp_dir());
}

/// A temporary directory for one run.
pub struct Scratch {
    dir: PathBuf,
    on_tmpfs: bool,
    mounts: Arc<Mutex<Vec<Unmounter>>>,
    /// Locked while the run goes on.
    _lock: OwnedFd,
}

impl Scratch {
    /// Makes the directory, on tmpfs if that has enough space. Removes it on signals, and removes directories
    /// of killed commands.
    pub fn new() -> Result<Scratch> {
        remove_left();
        let (shm, elsewhere) = (PathBuf::from(SHM), std::env::temp_dir());
        let roomy = rustix::fs::statvfs(&shm).is_ok_and(|s| s.f_bavail * s.f_frsize >= SHM_FREE_MIN);
        let base = if roomy { shm } else { elsewhere };
        let remedy = "set TMPDIR to a directory with 400 MiB free";
        Scratch::make(&base)
            .with_context(|| format!("cannot make a directory in {}: {remedy}", base.display()))
    }

    /// As [`Scratch::new`], in a directory that the user named.
    pub fn within(base: &Path) -> Result<Scratch> {
        left::remove_in(base);
        Scratch::make(base).with_context(|| format!("cannot make a directory in {}", base.display()))
    }

    fn make(base: &Path) -> Result<Scratch> {
        // Before there is a directory: a signal from now on removes it.
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals")?;
        let (dir, lock) = left::make_in(base)?;
        let on_tmpfs = rustix::fs::statfs(&dir).is_ok_and(|s| s.f_type as u64 == TMPFS_MAGIC);
        let scratch = Scratch { dir, on_tmpfs, mounts: Arc::default(), _lock: lock };
        let (dir, mounts) = (scratch.dir.clone(), scratch.mounts.clone());
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                talk("heddle: interrupted; cleaning up");
                clean(&dir, &mounts);
                std::process::exit(130);
            }
        });
        Ok(scratch)
    }

    /// The path of the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns true if the directory lies in memory.
    pub fn is_on_tmpfs(&self) -> bool {
        self.on_tmpfs
    }

    /// Registers a mount below the directory: it is detached before the directory is removed, at the end or on a signal.
    pub fn detach_at_end(&self, mount: Unmounter) {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner).push(mount);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        clean(&self.dir, &self.mounts);
    }
}

fn clean(dir: &Path, mounts: &Mutex<Vec<Unmounter>>) {
    for mount in mounts.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // It is usually gone already.
        let _ = mount.detach();
    }
    if let Err((left, error)) = remove(dir) {
        talk(&format!(
            "heddle: {} is left behind: {error}. Remove it with: rm -r {}",
            left.display(),
            left.display()
        ));
    }
}

/// Removes the directory. Other threads and children may be making files in it: under another name they do not find it.
///
/// # Errors
/// With the name of what is left.
fn remove(dir: &Path) -> Result<(), (PathBuf, Error)> {
    let began = Instant::now();
    let gone = dir.with_extension("gone");
    let left = if fs::rename(dir, &gone).is_ok() { gone } else { dir.to_path_buf() };
    loop {
        match fs::remove_dir_all(&left) {
            Ok(()) => return Ok(()),
            // A file whose making had begun before.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && began.elapsed() < REMOVE_MAX => {}
            Err(error) => return Err((left, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_goes_while_threads_make_files_in_it() {
        let base = tempfile::tempdir().unwrap();
        for round in 0..2 {
            let dir = base.path().join(format!("heddle-{round}.0"));
            fs::create_dir(&dir).unwrap();
            // So many that the makers are at work while they go.
            (0..200).for_each(|n| fs::create_dir(dir.join(format!("below {n}"))).unwrap());
            let make = |who: u32| {
                (0..20_000).find(|n| fs::write(dir.join(format!("{who} {n}")), b"").is_err()).is_some()
            };
            std::thread::scope(|scope| {
                let makers = [0, 1].map(|who| scope.spawn(move || make(who)));
                while !dir.join("0 3").exists() {}
                clean(&dir, &Mutex::default());
                assert!(makers.map(|maker| maker.join().unwrap()) == [true; 2], "round {round}");
            });
            assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0, "round {round}");
        }
    }
}
