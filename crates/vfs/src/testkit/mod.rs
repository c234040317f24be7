//! Checks over any [`crate::FileSystem`], for the tests of engines and front ends (feature `testkit`).
//!
//! - [`agrees_with_model`]: random calls, each result and the whole tree compared with [`crate::model::ModelFs`].
//! - [`torn`]: overlapping writes and reads of one file; no read shows parts of two writes, or an older write than an earlier read.
//! - [`Full`]: random calls on a full image, compared with the model. A refused call changes nothing. A call cut off by a crash has
//!   happened as a whole or not at all.
//! - [`appenders`]: many threads append records; none is lost, mixed with another or reported at a wrong offset.
//! - [`crowd`]: threads in one file or directory, one promise a function.
//! - [`posix`]: rules of POSIX and Linux, one a function.
//! - [`Headless`]: a process whose first thread has ended.
//! - [`LockedMemory`]: a process whose mappings keep each reader waiting for ever.
//! - [`Tree`]: all names and contents of a file system, to compare two of them, for instance before and after a crash.

pub mod appenders;
pub mod crowd;
mod differential;
mod full;
mod generate;
mod headless;
mod io;
mod locked_memory;
pub mod posix;
mod steps;
#[cfg(test)]
mod tests;
pub mod torn;
mod xattrs;

pub use crate::short::{Short, name, root};
pub use crate::tree::{Node, Tree, time_if_set_by_test};
pub use differential::{Differential, agrees_with_model};
pub use full::{Full, Random, needs_no_space};
pub use generate::random_steps;
pub use headless::Headless;
pub use io::{AppendIo, FsFile, PositionalIo};
pub use locked_memory::LockedMemory;
pub use steps::{Act, Calls, OpenFiles, Outcome, Stat, Step, Who, play};
