//! The flash engine: F2FS, compatible on disk with Linux, in user space.
//!
//! It reads any image that mkfs.f2fs made and Linux wrote, in the state of its last checkpoint and the fsyncs
//! since. It supports inline data and entries, all levels of nodes, extended attributes and access lists. It
//! also writes images: files and directories, six logs, cleaning, checkpoints, and fsynced nodes, which the
//! next mount recovers. It refuses single files for which it has no key or method (encryption, compression,
//! directories that ignore case), and whole images with unknown features.
//!
//! From the bottom up; a module uses only modules above it in this table (`xtask/src/tidy/modules/table.rs`
//! has the order):
//!
//! | module | holds |
//! |---|---|
//! | `format` | the layouts of the media, nothing else |
//! | `device`, `superblock` | the file or block device: whole blocks, flushes, discards; the valid superblock |
//! | `nat`, `node_log` | the position of each node on the device, and in the log in NVM |
//! | `node`, `pages` | caches of nodes and pages, including those to be written; `node::block_map` leads from a page to its pointer |
//! | `inode` | an inode's fields, checked |
//! | `segments`, `space` | live blocks, the six logs, free segments; counts of space in use, and the state that an fsync needs |
//! | `image` | the open image, which consists of these |
//! | `change` | a change and its reservation |
//! | `data`, `dir`, `xattr` | bytes of files and their pointers; directories; extended attributes |
//! | `allocation`, `gc` | allocates and frees inodes; cleans segments |
//! | `checkpoint` | reads the valid checkpoint; `checkpoint::commit` writes the next one, or a log checkpoint |
//! | `mounted` | a mounted image: its locks and open files; `mounted::call_gate` admits calls together, or a checkpoint alone |
//! | `fsync`, `fs` | fsync without a checkpoint; the `FileSystem` |
//! | `recovery` | applies fsynced or logged nodes when an image is opened |
//! | `volume` | opening, making and describing an image |
//!
//! Crash order nothing that the last checkpoint names is overwritten. The next one counts when its tail is durable; everything that it
//!             names is durable before (`checkpoint/write.rs`, `segments.rs` G2, `nat.rs` T1).
//!
//! Fault model: every byte of the device may be anything. An inconsistency is an error that names the
//! structure. No function here panics, loops without end, or allocates memory by an unchecked field.
#![forbid(unsafe_code)]

mod allocation;
mod change;
mod checkpoint;
pub mod checksum;
mod data;
mod device;
mod dir;
mod error;
pub mod format;
mod fs;
mod fsync;
mod gc;
mod ids;
mod image;
mod inode;
mod mounted;
mod nat;
mod node;
mod node_log;
mod pages;
mod planted;
mod recovery;
mod segments;
mod space;
mod steps;
mod superblock;
mod times;
mod variant;
mod volume;
mod xattr;

pub use device::Identity;
#[cfg(feature = "testkit")]
pub use device::{Faults, Traffic};
pub use error::OpenError;
pub use heddle_signatures::is_write_protected;
#[cfg(feature = "testkit")]
pub use ids::{BlockAddr, Nid};
pub use mounted::F2fs;
pub use node_log::{LOG_BYTES_MAX, LOG_BYTES_MIN, LogState};
pub use superblock::Geometry;
pub use superblock::repair_mark::RepairId;
pub use variant::Variant;
pub use volume::info::Info;
pub use volume::lost::{Lost, LostContent, LostForm, LostInode, LostKind};
pub use volume::mkfs::{IMAGE_BYTES_MAX, IMAGE_BYTES_MIN, LABEL_UNITS_MAX, make_image, make_image_in};
pub use volume::repair::{
    Earlier, ReadLock, Repair, Restored, end_repair, is_undo_file, is_unused, needs_log, undo,
};
pub use volume::survey::{Survey, Surveyed};
pub use volume::{LogRegion, is_f2fs};
