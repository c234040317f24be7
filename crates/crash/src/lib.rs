//! The crash rig: simulates power cuts at every fence of a workload's watched operations, and checks images that could be left.
//!
//! - [`text`]: the workload language (docs/crash.md); [`op`], [`play`]: the operations of its lines.
//! - [`rig`]: runs a workload on a simulated region and on the model, makes the cuts, and has the images checked.
//! - [`cut`]: the choice of images of a cut; [`judge`]: checks whether an image keeps the promises.
//! - [`ace`]: all short sequences of operations; [`corpus`]: workloads for corner cases, by name.
//! - [`mix`]: everything at random; [`mixed`]: long lists of mixed operations; [`shrink`]: the shortest list
//!   that still fails.
//! - [`reformat`]: a file system made over another one.
//! - [`coverage`]: counts of records, transitions and cleaning steps; `fences`: each fence and each write-back left out, one at a time.
//! - `faults`: requests that fail, lines that cannot be loaded.
//! - [`scenes`]: cases that need several threads at certain places at once.
//! - [`threads`]: power cuts while several threads are in calls.
//! - [`emit`]: crash images with a manifest, for other checkers.
#![warn(missing_docs)]

pub mod ace;
pub mod corpus;
pub mod coverage;
pub mod cut;
pub mod emit;
#[cfg(feature = "planted")]
pub mod faults;
#[cfg(feature = "planted")]
pub mod fences;
pub mod judge;
pub mod mix;
pub mod mixed;
pub mod op;
#[cfg(feature = "planted")]
pub mod planted;
pub mod play;
pub mod reformat;
pub mod rig;
pub mod scenes;
pub mod shrink;
pub mod tasks;
pub mod text;
pub mod threads;
