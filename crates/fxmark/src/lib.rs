//! FxMark, the many-core file system benchmark, and three applications as they call a file system, for engines opened in this process and
//! for whatever the kernel mounts.
//!
//! [`Config`] says what to run, [`run`] runs it, [`Report`] says what came out. One loop a workload serves both worlds:
//! threads or forked processes that call a [`heddle_vfs::FileSystem`], and forked processes that call the C library.
//!
//! Invariants  I1  what is timed is the same for every target: same loop, same data, same paths relative to its root.
//!             I2  a result is counted only if what the file system holds afterwards is what the operations imply; a
//!                 worker's error or a wrong byte is a failed run, never a faster one.
//!             I3  every run starts with a fresh set of files, on a fresh file system where the target is one of ours.
//! Source      Min et al., "Understanding Manycore Scalability of File Systems" (USENIX ATC'16); mixes, random access
//!             and file sizes as in the evaluation of SRL. HACC, OLTP and VARMAIL: `bench/hacc.rs` and its neighbours.
#![warn(missing_docs)]

mod bench;
mod config;
mod environment;
mod line_latency;
mod machine;
mod ops;
mod page_pattern;
mod path;
mod random;
mod recorder;
mod report;
mod result_board;
mod runner;
mod string_pattern;
mod target;
#[cfg(test)]
mod tests;
mod turn_runner;
mod worker;
mod worker_pool;
mod workload;

pub use config::{Access, Config, ConfigError, Stride};
pub use environment::memory_file;
pub use machine::{Machine, memory_available_bytes};
pub use report::{Cell, Options, Report, Run};
pub use runner::{Lines, Progress, run};
pub use target::{Attach, Attached, Elsewhere, Kernel, Need, Opener, Session, Target, WorkersAs};
pub use turn_runner::{Rounds, Watch, run_in_turns};
pub use workload::{Workload, list};
