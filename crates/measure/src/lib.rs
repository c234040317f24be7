//! The commands of `heddle` that measure or crash-test, one file per command. `heddle-cli` parses their
//! arguments and runs them.
//!
//! Only `engines` knows how to make an engine's image for a run. Workloads, runner and reports are in
//! `heddle-fxmark`, power cuts in `heddle-crash`.
#![warn(missing_docs)]

pub mod bandwidth;
pub mod coherence;
pub mod crash;
pub mod engines;
pub mod fxmark;
pub mod locks;
pub mod mount_times;
