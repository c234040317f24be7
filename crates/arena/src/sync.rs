//! The atomics this crate and its users are written against: std's, or loom's when built with `--cfg loom`.

#[cfg(loom)]
pub use loom::sync::atomic;
#[cfg(not(loom))]
pub use std::sync::atomic;

/// One turn of a spin loop. Under loom it hands the turn to another thread, without which a spin loop never ends.
#[inline]
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}
