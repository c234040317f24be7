//! The log of an inode: how records are appended, committed and read back.

pub mod chain;
pub mod commit;
mod papers;
pub mod scan;
