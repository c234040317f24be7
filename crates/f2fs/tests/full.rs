//! Images that are full: every call gives what the model gives, or `ENOSPC` and then has changed nothing.
//!
//! `HEDDLE_FULL_SECONDS`: how long random programs run; `HEDDLE_FULL_SEED`: the first one (`cargo xtask full`).

mod common;
#[path = "full/emptied.rs"]
mod emptied;
#[path = "full/margins.rs"]
mod margins;
#[path = "full/programs.rs"]
mod programs;
