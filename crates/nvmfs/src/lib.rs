//! The NVM engine: NOVA, its range-locked variants from the papers, and `heddle`, as switches of one engine.
//!
//! Modules stand in layers. From the media up they are: `format` (layouts alone), `state` (the words in the
//! arena, lanes, locks), `alloc` (free blocks and inode slots), `log` (chains of records and their commit),
//! `xattr`, `file` (reading and writing), `names` (directories), `upkeep` (cleaning, recovery, the lanes of
//! dead clients), `fs` (the engine as a `FileSystem`), `volume` and `shared` (images, processes). `cargo
//! xtask tidy` checks the order.
#![warn(missing_docs)]

mod alloc;
pub mod clock;
pub mod counters;
mod damage;
#[cfg(shuttle)]
pub mod deaths;
mod file;
pub mod format;
mod fs;
pub mod fsck;
pub mod ids;
mod lane_counters;
mod log;
#[cfg(all(test, loom))]
mod models;
mod names;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod process;
mod region;
#[cfg(not(loom))]
mod shared;
mod state;
mod steps;
mod upkeep;
mod variant;
mod volume;
mod xattr;

pub use fs::NvmFs;
pub use heddle_arena::lanes::look_first_at;
pub use heddle_pmem::{BadBuffer, after_fault, copy_of_callers};
pub use heddle_range_lock::Mode as LockMode;
#[cfg(not(loom))]
pub use shared::notes::runtime_directory;
#[cfg(not(loom))]
pub use shared::{adopt, attach_address, client, fork, server, wire};
pub use state::inode::KernelPages;
pub use state::lease::is_inside as this_thread_is_inside;
pub use upkeep::recovery::{Progress, Report};
pub use variant::{LogKind, Variant};
pub use volume::{
    ImageInfo, MountOptions, Volume, VolumeError, format as format_region, inspect, mount, new_uuid,
    set_uuid, size_in_use,
};
