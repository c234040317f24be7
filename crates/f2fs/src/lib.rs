//! The flash engine: F2FS, compatible on disk with Linux, in user space.
//!
//! It reads any image that mkfs.f2fs made and Linux wrote, as its last checkpoint has it and what was fsynced since, with
//! inline data and entries, all levels of nodes, extended attributes and access lists; and it writes them: files and
//! directories, six logs, cleaning, checkpoints, fsynced nodes that the next mount takes in. It refuses, file by file, what it has no
//! key or method for (encryption, compression, directories that ignore case), and whole images with features that it does
//! not know.
//!
//! From the media up: `format` (layouts alone) → `device` → `superblock`, `checkpoint` (what counts) → `nat`,
//! `node`, `fsynced` (where nodes are) → `inode`, `map` (what they say) → `file`, `dir`, `xattr` → `fs`, the interface.
//! To write: `segments` (where blocks go), `space` (how many there are) → `change` (what is set aside) → `reserve`, `pages`, `content`,
//! `make` (what changes) → `names`, `attrs`, `opened` (calls) under `guard` (who may be inside); `commit` and `clean` have the image to
//! themselves. `since` says what `fsync` can do without a checkpoint, `roll_forward` takes that in when an image is opened;
//! with a log in NVM both are `node_log`'s. `survey` counts what is in an image, `told` says what it is.
//!
//! Crash order nothing that the last checkpoint names is written over; the next one counts when its tail is durable, and all that it
//!             names was before (`checkpoint/write.rs`, `segments.rs` G2, `nat.rs` T1).
//!
//! Fault model: every byte of the device may be anything. What contradicts itself is an error that names the
//! structure; nothing here panics, loops without end, or takes memory as a field says without a bound.
#![forbid(unsafe_code)]

mod attrs;
mod change;
mod checkpoint;
pub mod checksum;
mod clean;
mod commit;
mod content;
mod device;
mod dir;
mod error;
mod file;
mod foresight;
pub mod format;
mod fs;
mod fsync;
mod fsynced;
mod guard;
mod ids;
mod inode;
mod kept;
mod make;
mod map;
mod media;
mod mkfs;
mod names;
mod nat;
mod node;
mod node_log;
mod opened;
mod owner;
mod pages;
mod part;
mod ranges;
mod reserve;
mod roll_forward;
mod segments;
mod since;
mod space;
mod steps;
mod superblock;
mod survey;
mod times;
mod told;
mod variant;
mod volume;
mod way;
mod xattr;

pub use device::is_write_protected;
#[cfg(feature = "testkit")]
pub use device::{Faults, Traffic};
pub use error::OpenError;
pub use ids::{BlockAddr, Nid};
pub use mkfs::{IMAGE_BYTES_MAX, IMAGE_BYTES_MIN, make_image, make_image_in};
pub use superblock::Geometry;
pub use survey::{Survey, Surveyed};
pub use told::Info;
pub use variant::Variant;
pub use volume::{F2fs, LogRegion, LogState, is_f2fs};
