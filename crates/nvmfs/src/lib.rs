//! The NVM engine: NOVA, its range-locked variants from the papers, and `heddle`, as switches of one engine.
//!
//! Rooms, from the media up: `format` (layouts alone), `log` (chains of records, how they become valid, how they are cleaned),
//! `cell` and `index` (page -> block), `alloc` and `itable` (free blocks and inodes), `file` (reading and writing), `names`
//! (directories), `recovery` (all of it from the media again), `volume` (images), `fs` (the engine as a `FileSystem`).
#![warn(missing_docs)]

mod alloc;
mod blob;
mod cell;
mod clock;
mod core;
pub mod counters;
mod counts;
mod damage;
#[cfg(shuttle)]
pub mod deaths;
mod file;
pub mod format;
mod fs;
pub mod fsck;
pub mod ids;
mod index;
mod inode;
mod itable;
mod lane;
mod latch;
mod lease;
mod log;
#[cfg(all(test, loom))]
mod models;
mod names;
mod opens;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod process;
mod recovery;
mod region;
mod settle;
#[cfg(not(loom))]
mod shared;
mod variant;
mod volume;
mod xattr;

pub use fs::NvmFs;
pub use heddle_arena::lanes::look_first_at;
pub use heddle_pmem::after_fault;
pub use heddle_range_lock::Mode as LockMode;
pub use inode::KernelPages;
pub use recovery::{Progress, Report};
#[cfg(not(loom))]
pub use shared::notes::runtime_directory;
#[cfg(not(loom))]
pub use shared::{adopt, client, heir, place, server, wire};
pub use variant::{LogKind, Variant};
pub use volume::{
    ImageInfo, MountOptions, Volume, VolumeError, extent, format as format_region, inspect, mount, new_uuid,
    set_uuid,
};
