//! Cache-line transfers between the workers of a program, counted while it runs under QEMU's user mode.
//!
//! A transfer: a worker touches a 64-byte line that another worker has written since its own last touch. The crate is both
//! sides of that: as a shared library a TCG plug-in that QEMU loads, as a Rust library what the watched program says to it.
//!
//! | module    | what it holds |
//! |-----------|---------------|
//! | [`guest`] | the watched program's side: whose turn begins, what lies where |
//! | `lines`   | the lines: which workers have an up-to-date copy |
//! | `uses`    | which addresses are what |
//! | `tally`   | transfers by structure and by code |
//! | `clock`   | the time that the program sees in a turn |
//! | `abi`     | the few functions of QEMU's plug-in interface that are used |
//! | `plugin`  | callbacks: from QEMU's events to the above |
//!
//! Invariants  I1  only what a worker does between `begin` and `end` counts, and turns do not overlap: the program takes care.
//!             I2  a line that nobody has written since the first turn is up to date in every cache: what the set-up
//!                 left behind is no transfer.
//! Limits      docs/coherence.md.

mod abi;
mod clock;
pub mod guest;
mod lines;
mod plugin;
mod tally;
mod uses;

/// Most workers a run can have: a bit of a word each.
pub const WORKERS_MAX: usize = 64;
/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;
