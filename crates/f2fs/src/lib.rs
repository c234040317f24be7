//! The flash engine: F2FS, compatible on disk with Linux, in user space.
//!
//! So far it reads: any image that mkfs.f2fs made and Linux wrote, as its last checkpoint has it and what was fsynced
//! since, with inline data and entries, all levels of nodes, extended attributes and access lists. It refuses, file by
//! file, what it has no key or method for (encryption, compression, directories that ignore case), and whole images
//! with features that it does not know.
//!
//! From the media up: `format` (layouts alone) → `device` → `superblock`, `checkpoint` (what counts) → `nat`,
//! `node`, `fsynced` (where nodes are) → `inode`, `map` (what they say) → `file`, `dir`, `xattr` → `fs`, the interface.
//!
//! Fault model: every byte of the device may be anything. What contradicts itself is an error that names the
//! structure; nothing here panics, loops without end, or takes memory as a field says without a bound.
#![forbid(unsafe_code)]

mod checkpoint;
pub mod checksum;
mod device;
mod dir;
mod error;
mod file;
pub mod format;
mod fs;
mod fsynced;
mod ids;
mod inode;
mod map;
mod media;
mod nat;
mod node;
mod superblock;
mod volume;
mod xattr;

pub use error::OpenError;
pub use ids::{BlockAddr, Nid};
pub use superblock::Geometry;
pub use volume::{F2fs, Info, is_f2fs};
