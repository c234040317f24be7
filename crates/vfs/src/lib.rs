//! The interface between file system engines and front ends.
//!
//! An engine implements [`FileSystem`]; a front end (the mount, the bypass, the benchmark's workers) calls it. Neither
//! knows the other. Everything is synchronous, by inode number and open [`Handle`], with the caller's credentials as an
//! argument and the caller's own buffers: no copy is made on the way.
#![warn(missing_docs)]

pub mod acl;
pub mod admin;
mod cred;
mod error;
mod fs;
pub mod ioctl;
pub mod known_number;
mod listing;
pub mod model;
mod name;
pub mod path;
pub mod planted;
pub mod procfs;
#[cfg(any(test, feature = "short"))]
pub mod short;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod tree;
mod types;
pub mod unmapped;
pub mod workers;
pub mod xattr;

pub use cred::{Cred, Permission};
pub use error::{Error, Result};
pub use fs::{FileSystem, Openers, RangeOp, RenameMode, SeekTarget};
pub use listing::{DirEntry, Listing, Mark};
pub use name::{NAME_MAX_BYTES, Name, ShortName, word_of};
pub use types::{
    Attr, Cookie, FileKind, Handle, Ino, NewNode, OFFSET_MAX_BYTES, OpenFlags, SetAttr, SetTime, StatFs,
    Time, room_for,
};
pub use xattr::{SetXattr, XattrName};
