//! A mounted image: the open image, and the state that its calls share.

pub(crate) mod call_gate;
pub(crate) mod guards;
pub(crate) mod open_files;
pub(crate) mod range_lock;

use crate::checkpoint::commit::CheckpointState;
use crate::format::Superblock;
use crate::image::Media;
use crate::times::StatTicks;
use guards::Guards;
use open_files::OpenFiles;
use range_lock::Ranges;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An open F2FS image.
pub struct F2fs {
    pub(crate) media: Media,
    pub(crate) guards: Guards,
    /// Present if a file may have several writers at a time.
    pub(crate) ranges: Option<Ranges>,
    pub(crate) opened: OpenFiles,
    pub(crate) stat_ticks: StatTicks,
    /// The valid checkpoint, and the orphans for the next one.
    pub(crate) checkpoint_state: Mutex<CheckpointState>,
    /// Value of [`F2fs::has_failed`].
    pub(crate) failed: AtomicBool,
    /// Held while an fsync writes its nodes to the device: to F2FS's fsync chain (see `fsync`).
    pub(crate) fsync_chain: Mutex<()>,
    /// With the mount options `sync`, and `dirsync`: changes are durable when a call returns ([`F2fs::set_sync`]).
    pub(crate) sync_content: AtomicBool,
    pub(crate) sync_names: AtomicBool,
    /// For the next new inode.
    pub(crate) next_generation: AtomicU32,
    pub(crate) superblock: Superblock,
    /// How many inodes this mount recovered from fsyncs.
    pub(crate) recovered_inodes: u64,
    /// Inodes without a name that cannot be read and so were not freed, with the reason.
    pub(crate) orphans_left: Vec<(u32, String)>,
}

impl F2fs {
    pub(crate) fn checkpoint_state(&self) -> MutexGuard<'_, CheckpointState> {
        self.checkpoint_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Generation of a new inode.
    pub(crate) fn next_generation(&self) -> u32 {
        self.next_generation.fetch_add(1, Relaxed) // ORDERING: Relaxed, it only has to be unique.
    }
}
