//! The flash engine: F2FS, compatible on disk with Linux, in user space.
//!
//! It reads any image that mkfs.f2fs made and Linux wrote, as its last checkpoint has it and what was fsynced since, with
//! inline data and entries, all levels of nodes, extended attributes and access lists; and it writes them: files and
//! directories, six logs, cleaning, checkpoints, fsynced nodes that the next mount takes in. It refuses, file by file, what it has no
//! key or method for (encryption, compression, directories that ignore case), and whole images with features that it does
//! not know.
//!
//! | module | holds |
//! |---|---|
//! | `format` | the layouts of the media, nothing else |
//! | `device` | the file or block device: whole blocks, flushes, discards |
//! | `superblock`, `checkpoint` | the superblock and the checkpoint that count; `checkpoint::commit` writes the next one |
//! | `nat`, `node` | the place of each node, and a cache of validated nodes; `node::block_map` leads from a page to its pointer |
//! | `segments` | live blocks, the six logs, free segments; `segments::gc` cleans one |
//! | `inode` | an inode's fields, checked; attributes, allocation, open files |
//! | `data` | bytes of files: read, written, cached; their pointers; direct I/O; range locks |
//! | `dir`, `xattr` | directories and names; extended attributes |
//! | `change` | a change and its reservation; `change::call_gate` lets calls in side by side, or a checkpoint alone |
//! | `fsync`, `recovery` | fsync without a checkpoint, and its roll-forward when an image is opened |
//! | `node_log` | both of these with a log in NVM |
//! | `volume` | opening, making and describing an image |
//! | `fs` | the interface |
//!
//! Crash order nothing that the last checkpoint names is written over; the next one counts when its tail is durable, and all that it
//!             names was before (`checkpoint/write.rs`, `segments.rs` G2, `nat.rs` T1).
//!
//! Fault model: every byte of the device may be anything. What contradicts itself is an error that names the
//! structure; nothing here panics, loops without end, or takes memory as a field says without a bound.
#![forbid(unsafe_code)]

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
mod ids;
mod inode;
mod nat;
mod node;
mod node_log;
mod planted;
mod recovery;
mod segments;
mod superblock;
mod times;
mod variant;
mod volume;
mod xattr;

#[cfg(feature = "testkit")]
pub use device::{Faults, Traffic};
pub use error::OpenError;
pub use heddle_media::is_write_protected;
#[cfg(feature = "testkit")]
pub use ids::{BlockAddr, Nid};
pub use superblock::Geometry;
pub use variant::Variant;
pub use volume::info::Info;
pub use volume::mkfs::{IMAGE_BYTES_MAX, IMAGE_BYTES_MIN, make_image, make_image_in};
pub use volume::survey::{Survey, Surveyed};
pub use volume::{F2fs, LogRegion, LogState, is_f2fs};
