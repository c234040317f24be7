//! The crash rig: cuts the power of any workload at every fence, and judges what is left.
//!
//! - [`text`]: the workload language (docs/crash.md); [`op`], [`play`]: what its lines mean.
//! - [`rig`]: runs a workload on a simulated region and on the model, cuts, has every image judged.
//! - [`cut`]: which images of a cut are looked at; [`judge`]: whether one is what was promised.
//! - [`ace`]: all short sequences of operations; [`corpus`]: workloads at the edges, by name.
//! - [`mix`]: all of it at random; [`mixed`]: long lists of mixed operations; [`shrink`]: of a list that fails, what it takes to fail.
//! - [`reformat`]: a file system that is made where another one was.
//! - [`coverage`]: what ran, counted; `fences`: each fence and each write-back left out, one at a time.
//! - `faults`: requests that find nothing, lines that cannot be loaded.
//! - [`scenes`]: what needs several threads in certain places at once.
//! - [`threads`]: power cuts while several threads are inside.
//! - [`emit`]: crash images with a manifest, for a judge of one's own.
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
