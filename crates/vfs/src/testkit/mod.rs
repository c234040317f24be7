//! Checks over any [`crate::FileSystem`], for the tests of engines and front ends (feature `testkit`).
//!
//! - [`agrees_with_model`]: random calls, each result and the whole tree compared with [`crate::model::ModelFs`].
//! - [`torn`]: overlapping writes and reads of one file; no read may show parts of two writes, or an older write.
//! - [`Full`]: the same where the image is full: what is refused has changed nothing, a cut call has happened or has not.
//! - [`appenders`]: many threads append records; none is lost, mixed with another or reported at a wrong offset.
//! - [`crowd`]: threads in one file or directory, one promise a function.
//! - [`posix`]: what POSIX and Linux say, one rule a function.
//! - [`Headless`]: a process whose first thread has ended.
//! - [`LockedMemory`]: a process whose mappings keep each reader waiting for ever.
//! - [`Tree`]: all that a file system holds, to compare two of them, for instance before and after a crash.

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
pub use crate::tree::{Node, Tree, explicit};
pub use differential::{Differential, agrees_with_model};
pub use full::{Full, Random, needs_no_space};
pub use generate::steps;
pub use headless::Headless;
pub use io::{AppendIo, FsFile, PositionalIo};
pub use locked_memory::LockedMemory;
pub use steps::{Act, Calls, OpenFiles, Outcome, Stat, Step, Who, play};
