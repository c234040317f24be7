//! The engine's lock-free parts under loom: every interleaving with a bounded number of preemptions, and every outcome that weak memory
//! allows, of small models. Each runs the engine's own functions (`file::heddle::write`, `file::read::read`, …) on a core in plain
//! memory; only the region is a model (see `region`), and some sizes are smaller.
//!
//! Bounds      Two or three threads. Preemptions, not switches, are bounded: a thread that waits always hands on. Each model says how
//!             many it explores; two are enough for every planted fault but those marked.
//! SeqCst      Loom gives SeqCst accesses the strength of AcqRel alone. Where the engine needs more, it has a fence, or a
//!             read-modify-write on one word that both sides use; where x86-64 needs no instruction for it the fence is
//!             `sync::fence_behind_locked`.
//! Plants      `plants.rs`: each ordering that an argument leans on is weakened, one at a time, and a model must fail.
//!
//! Run: `cargo xtask loom`

mod chains;
mod inside;
mod latch;
mod life;
mod names;
mod pages;
mod plants;
mod resize;
mod rig;
mod slots;
mod space;
mod succession;
mod tables;
