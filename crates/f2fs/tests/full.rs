//! Images that are full: every call gives what the model gives, or `ENOSPC` and then has changed nothing.
//!
//! `HEDDLE_F2FS_FULL_SECONDS`: how long random programs run (`cargo xtask f2fs-full`).

mod common;
#[path = "full/margins.rs"]
mod margins;
#[path = "full/programs.rs"]
mod programs;
