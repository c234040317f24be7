//! The engines' variants as targets: a fresh image in memory for each run.
//!
//! Workers of `heddle` may be forked processes. They join the image as forked children
//! (`heddle_nvmfs::fork`), not through the attach socket: an image that lives for one run needs no socket
//! that must be removed. The papers' variants stay in one process: the readers' counts of their locks name no
//! owner, so a dead reader could not be found.

use anyhow::{Context, Result, bail, ensure};
use heddle_console::size::Size;
use heddle_f2fs::{F2fs, LogRegion, LogState};
use heddle_fxmark::{Attach, Attached, Need, Session, Target, WorkersAs, memory_available_bytes};
use heddle_nvmfs::fork::ForkHandle;
use heddle_nvmfs::{LockMode, MountOptions, Variant, Volume, format_region, mount};
use heddle_pmem::{BLOCK_BYTES, Durability, Pos, Region};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

/// How an engine is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What a write that returned survives.
    pub durability: Durability,
    /// How the papers' range locks wait.
    pub mode: LockMode,
    /// The segment size of those locks.
    pub segment_bytes: u64,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { durability: Durability::Process, mode: LockMode::Fair, segment_bytes: BLOCK_BYTES as u64 }
    }
}

/// A variant as a target called `name`.
pub fn target(name: String, variant: Variant, setup: Setup, workers_as: WorkersAs) -> Target {
    let open = Arc::new(move |need: &Need| session(variant, setup, need));
    Target::InProcess { name, workers_as, open }
}

/// Returns true if its workers can be processes.
pub fn takes_processes(variant: Variant) -> bool {
    variant.lock().is_none()
}

/// Returns true if the variant has a lock of segments.
pub fn has_segments(variant: Variant) -> bool {
    !matches!(variant, Variant::Nova | Variant::Heddle)
}

fn session(variant: Variant, setup: Setup, need: &Need) -> Result<Session> {
    Ok(session_of(fresh(variant, setup, image_bytes(need))?))
}

/// A mounted temporary image as a session of the workloads.
pub fn session_of(volume: Volume) -> Session {
    let fs = Arc::new(volume.fs());
    let fork = ForkHandle::of(&volume).ok().map(Arc::new);
    let attach = fork.clone().map(|fork| -> Attach { Box::new(move || joined(&fork)) });
    let close = Box::new(move || {
        let left = fork.map_or(Vec::new(), |fork| fork.others());
        // Settles dead workers.
        volume.unmount();
        ensure!(left.is_empty(), "workers that had not left were in the image: processes {left:?}");
        Ok(())
    });
    Session { fs, attach, close }
}

/// Joins the file system in a forked worker.
fn joined(fork: &ForkHandle) -> Result<Attached> {
    let fs = fork.join()?;
    let (mapped, leaving) = (fs.clone(), fs.clone());
    Ok(Attached {
        fs: Arc::new(fs),
        map: Box::new(move || mapped.map_all()),
        leave: Box::new(move || leaving.leave()),
    })
}

/// Twice the data, since every write goes to new blocks and old ones are freed late; per file its inode, a
/// log page and a page of names; and space for the logs.
pub fn image_bytes(need: &Need) -> u64 {
    let (data, files) = (need.bytes.saturating_mul(2), need.files.saturating_mul(16 << 10));
    data.saturating_add(files).saturating_add(256 << 20)
}

/// A fresh image in memory, all of its pages touched, mounted.
pub fn fresh(variant: Variant, setup: Setup, bytes: u64) -> Result<Volume> {
    let options =
        MountOptions { lock_mode: setup.mode, segment_bytes: setup.segment_bytes, ..MountOptions::default() };
    fresh_with(variant, &options, setup.durability, bytes)
}

/// The same with mount options.
pub fn fresh_with(
    variant: Variant,
    options: &MountOptions<'_>,
    durability: Durability,
    bytes: u64,
) -> Result<Volume> {
    let region = Region::anonymous_as(fits(bytes)?, durability)?;
    touch(&region);
    format_region(&region, variant)?;
    Ok(mount(region, options)?)
}

/// Returns `bytes` if there is memory for them.
fn fits(bytes: u64) -> Result<u64> {
    let free = memory_available_bytes();
    if bytes > free / 10 * 9 {
        bail!(
            "an image of {} is needed, {} of memory are free: fewer --cores, or a smaller --file-size",
            Size(bytes),
            Size(free)
        );
    }
    Ok(bytes)
}

/// Takes the page faults before anything is timed.
fn touch(region: &Region) {
    for at in (0..region.len_bytes()).step_by(BLOCK_BYTES) {
        region.store_u64(Pos(at), 0);
    }
}

/// NVM of a node log.
const NODE_LOG_BYTES: u64 = 128 << 20;

/// An F2FS variant as a target. Its image is a file in memory, like the RAM disks of kernel file systems.
pub fn f2fs_target(variant: heddle_f2fs::Variant, durability: Durability) -> Target {
    let open = Arc::new(move |need: &Need| f2fs_session(variant, durability, need));
    Target::InProcess { name: variant.name().to_owned(), workers_as: WorkersAs::Threads, open }
}

fn f2fs_session(variant: heddle_f2fs::Variant, durability: Durability, need: &Need) -> Result<Session> {
    let fs = fresh_f2fs(variant, durability, need)?;
    let image = Arc::clone(&fs);
    Ok(Session { fs, attach: None, close: Box::new(move || image.unmount().context("the last checkpoint")) })
}

/// A fresh F2FS image in memory, open.
pub fn fresh_f2fs(variant: heddle_f2fs::Variant, durability: Durability, need: &Need) -> Result<Arc<F2fs>> {
    let disk = heddle_fxmark::memory_file(f2fs_bytes(need)?).context("a file in memory for the image")?;
    // The image can be opened again by this name; it disappears with its last descriptor.
    let path = PathBuf::from(format!("/proc/self/fd/{}", disk.as_raw_fd()));
    heddle_f2fs::make_image(&path, "fxmark", &|_, _| ())?;
    if !variant.has_node_log() {
        return Ok(Arc::new(F2fs::open_as(&path, variant)?));
    }
    let region = Region::anonymous_as(NODE_LOG_BYTES, durability).context("memory for the node log")?;
    touch(&region);
    Ok(Arc::new(F2fs::open_with_log(
        &path,
        variant,
        LogRegion { region, state: LogState::Free, discard: false },
    )?))
}

/// Twice the data, since overwritten blocks are free only after a checkpoint; and the same reserve as the
/// kernel's RAM disks.
fn f2fs_bytes(need: &Need) -> Result<u64> {
    let bytes = fits(NODE_LOG_BYTES + (512 << 20) + 2 * need.bytes + (8 << 10) * need.files)?;
    Ok(bytes.next_multiple_of(2 << 20))
}
