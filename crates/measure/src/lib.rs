//! The commands of `heddle` that measure or crash-test, one file a command. `heddle-cli` parses their arguments and runs them.
//!
//! `engines` is the only place here that knows how an engine's image is made for a run; workloads, runner and reports are
//! `heddle-fxmark`'s, power cuts `heddle-crash`'s.
#![warn(missing_docs)]

pub mod bandwidth;
pub mod coherence;
pub mod crash;
pub mod engines;
pub mod fxmark;
pub mod locks;
pub mod mount_times;
