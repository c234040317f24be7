//! Persistent regions: mapped memory whose stores survive once a fence has passed.
//!
//! State       A [`Region`] is one mapping. Its [`Durability`] tells what a store survives: the death of processes, or a power cut too. Its
//!             [`Backend`] is the mechanism: fences (`Memory`, `Dax`), `msync` (`File`), or a simulated machine that can lose
//!             power ([`Simulator`]).
//! Invariants  I1  every store to a region goes through [`Region`]. No address of region memory leaves this crate, so
//!                 that the simulator sees all stores and no reference to racing memory ever exists.
//!             I2  a store covers only the bytes it was given: neighbours in the same word or line may belong to
//!                 another thread and are never read and written back.
//!             I3  an aligned 8-byte word never tears; anything larger may, in any order, until the fence.
//!             I4  a position outside the region panics before any access; callers check positions from media.
//! Crash order A store is durable when the thread that made it has returned from [`Region::fence`]. Before that any
//!             subset of its 8-byte words may be. A fence covers only stores of its own thread.
//! Orderings   [`Region::store_u64`] (Release) pairs with [`Region::load_u64`] (Acquire). Non-temporal stores take
//!             part in no such pair: other threads see them in order only after [`Region::fence`].
//! Source      Non-temporal stores for data are NOVA's. Using them for 64-byte records too is our own measurement: with
//!             every size tried they beat a store followed by a cache-line write-back.

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("heddle-pmem needs 64-bit little-endian Linux");

mod backing_file;
pub mod bandwidth;
mod caller;
mod cpu;
mod dirty;
mod domain;
mod durability;
mod error;
mod failing_disk;
mod fault_handler;
mod free_space;
mod huge;
mod locked_file;
mod lost;
mod mapping;
mod noted;
mod open;
#[cfg(feature = "planted")]
pub mod planted;
mod presence;
mod probe;
pub mod process;
mod region;
mod set_once;
mod simulator;
mod stale_cache;
#[cfg(shuttle)]
mod steps;
mod untouched;
mod watched;
mod write_backs;

pub use backing_file::{OpenOptions, SizeInUse};
pub use caller::{BadBuffer, after_fault, copy_of_callers};
pub use domain::Backend;
pub use durability::Durability;
pub use error::{Error, Result};
pub use failing_disk::{FailingDisk, WriteBackResult};
pub use fault_handler::install_fault_handler;
pub use heddle_signatures::lock_holder;
pub use huge::HUGE_FROM_BYTES;
pub use locked_file::LockedFile;
pub use lost::LOST_WORD;
pub use presence::{has_holders, join_holders};
pub use probe::Probe;
pub use region::Region;
pub use simulator::{CrashPoint, Model, Pending, Simulator};
#[cfg(shuttle)]
pub use steps::BEFORE_STORE;

/// Bytes of a block: the unit of a region's length, and of what the media formats address.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a cache line: the unit of a flush, and of a log record.
pub const LINE_BYTES: usize = 64;

/// A byte offset in a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pos(pub u64);

impl Pos {
    /// The position `bytes` further on. Panics on overflow, in release builds too, because a wrapped position
    /// is wrong.
    #[inline]
    pub const fn plus(self, bytes: u64) -> Pos {
        match self.0.checked_add(bytes) {
            Some(at) => Pos(at),
            None => panic!("a position in a region overflowed 64 bits"),
        }
    }

    /// Returns true if this position is a multiple of `align_bytes`, a power of two.
    #[inline]
    pub const fn is_aligned(self, align_bytes: u64) -> bool {
        self.0 & (align_bytes - 1) == 0
    }
}

#[cfg(test)]
mod tests;
