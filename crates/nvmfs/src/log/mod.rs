//! The log of an inode: how records are appended, read back, and cleaned away.

pub mod chain;
pub mod clean;
pub mod commit;
pub mod relog;
pub mod scan;
