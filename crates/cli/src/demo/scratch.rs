//! The demo's own directory, gone when the demo is: at its end, on an error, on Ctrl-C.

use crate::image::TMPFS_MAGIC;
use crate::output::talk;
use anyhow::{Context, Result};
use heddle_fuse::Unmounter;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Free space that makes /dev/shm large enough for the demo's images.
const SHM_FREE_MIN: u64 = 400 << 20;
const SHM: &str = "/dev/shm";

/// A directory for one run.
pub struct Scratch {
    dir: PathBuf,
    on_tmpfs: bool,
    mount: Arc<Mutex<Option<Unmounter>>>,
}

impl Scratch {
    /// Makes it, on tmpfs where there is enough of that, and sees to it that signals clean up.
    pub fn new() -> Result<Scratch> {
        let roomy =
            |path: &str| rustix::fs::statvfs(path).is_ok_and(|s| s.f_bavail * s.f_frsize >= SHM_FREE_MIN);
        let base = if roomy(SHM) { PathBuf::from(SHM) } else { std::env::temp_dir() };
        let dir = base.join(format!("heddle-demo-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&dir);
        made.with_context(|| {
            format!("cannot make {}: set TMPDIR to a directory with 400 MiB free", dir.display())
        })?;
        let on_tmpfs = rustix::fs::statfs(&dir).is_ok_and(|s| s.f_type as u64 == TMPFS_MAGIC);
        let scratch = Scratch { dir, on_tmpfs, mount: Arc::default() };
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot catch signals")?;
        let (dir, mount) = (scratch.dir.clone(), scratch.mount.clone());
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                talk("heddle: interrupted; cleaning up");
                clean(&dir, &mount);
                std::process::exit(130);
            }
        });
        Ok(scratch)
    }

    /// Where.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Does memory hold it?
    pub fn is_on_tmpfs(&self) -> bool {
        self.on_tmpfs
    }

    /// A mount below it, to be taken away should the demo be interrupted.
    pub fn has_mount(&self, mount: Option<Unmounter>) {
        *self.mount.lock().unwrap_or_else(PoisonError::into_inner) = mount;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        clean(&self.dir, &self.mount);
    }
}

fn clean(dir: &Path, mount: &Mutex<Option<Unmounter>>) {
    if let Some(mount) = mount.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // Gone already, in the best case.
        let _ = mount.detach();
    }
    if let Err(error) = fs::remove_dir_all(dir) {
        talk(&format!(
            "heddle: {} is left behind: {error}. Remove it with: rm -r {}",
            dir.display(),
            dir.display()
        ));
    }
}
