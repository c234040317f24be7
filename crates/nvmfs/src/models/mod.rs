//! The engine's lock-free parts under loom: all interleavings of small models with a bounded number of
//! preemptions, and all outcomes that weak memory allows. Each model runs the engine's own functions
//! (`file::write_heddle::write`, `file::read::read`, …) on a core in plain memory. Only the region is a model (see
//! `region`), and some sizes are smaller.
//!
//! Bounds      Two or three threads. Preemptions are bounded, not switches: a waiting thread always yields. Each model sets its
//!             bound; two are enough for every planted fault except the marked ones.
//! SeqCst      Loom gives SeqCst accesses only the strength of AcqRel. Where the engine needs more, it has a fence, or a
//!             read-modify-write on one word that both sides use. Where x86-64 needs no instruction for it, the fence is
//!             `sync::fence_after_locked`.
//! Plants      `plants.rs` weakens each ordering that an argument relies on, one at a time, and a model must fail.
//!
//! Run: `cargo xtask loom`

mod chains;
mod fixture;
mod inside;
mod latch;
mod life;
mod names;
mod pages;
mod plants;
mod resize;
mod slots;
mod space;
mod succession;
mod tables;
