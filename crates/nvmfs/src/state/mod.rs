//! The state of a mount as all of its processes see it: the words in the arena, how a thread gets a lane, and how it waits for another
//! lane. It holds the words of files and directories. The layers above it change them.

pub mod bucket;
pub mod cell;
pub mod chain;
pub mod core;
pub mod free_map;
pub mod index;
pub mod inode;
pub mod lane;
pub mod latch;
mod latching;
pub mod lease;
pub mod living;
pub mod opens;
pub mod operation;
pub mod papers;
pub mod scratch;
pub mod wait;
