//! Targets `NAME+mount`: an image in memory, served through FUSE, used by forked processes as any directory is.
//!
//! One image serves all runs of its target, sized for the largest of them; each run works in a directory of its own.

use crate::engines::{self, Locks};
use crate::namespace;
use crate::scratch::Scratch;
use anyhow::{Context, Result, anyhow};
use heddle_fuse::{MountOptions, Mounted};
use heddle_fxmark::{Need, Target};
use heddle_nvmfs::{Variant, Volume};
use std::fs;
use std::sync::Arc;

/// The variant behind `NAME+mount`.
pub fn variant_of(target: &str) -> Option<Variant> {
    Variant::from_name(target.strip_suffix("+mount")?)
}

/// Every mount of a benchmark; unmounted when dropped, the directory last.
pub struct Mounts {
    mounts: Vec<(Mounted, Volume)>,
    scratch: Scratch,
}

impl Mounts {
    /// Must be called by the thread that runs the benchmark: the mounts are that thread's alone.
    pub fn new() -> Result<Mounts> {
        namespace::enter().map_err(|why| anyhow!("targets NAME+mount cannot be mounted: {why}"))?;
        Ok(Mounts { mounts: Vec::new(), scratch: Scratch::new()? })
    }

    /// A fresh image, mounted.
    pub fn add(&mut self, variant: Variant, locks: Locks, need: &Need) -> Result<Target> {
        let label = format!("{}+mount", variant.name());
        let path = self.scratch.dir().join(&label);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let volume = engines::fresh(variant, locks, engines::image_bytes(need))?;
        let mounted = heddle_fuse::mount(Arc::new(volume.fs()), &path, &MountOptions::default())?;
        self.scratch.has_mount(mounted.unmounter());
        self.mounts.push((mounted, volume));
        Ok(Target::Directory { label, path })
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for (mounted, volume) in self.mounts.drain(..) {
            // Unmounts, and returns when the engine is not in use any more.
            drop(mounted);
            volume.unmount();
        }
    }
}
