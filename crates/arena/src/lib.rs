//! Volatile memory that threads and processes share.
//!
//! All volatile state of an engine lives in one [`Arena`]: a mapping, private or backed by a memfd. Pointers
//! in it are offsets ([`Ptr`]), never addresses, so that every process may map it at any address.
//!
//! | module    | what it holds |
//! |-----------|---------------|
//! | [`Arena`] | the mapping, typed allocation, checked access |
//! | [`Heap`]  | a lane's own cache of free blocks: no atomic read-modify-write on the common path |
//! | [`park`]  | sleeping on any word of the arena, without a waiter bit in the word |
//! | `lanes`   | slots leased to threads of processes |
//! | [`process_slots`] | which processes are alive: locks that the kernel drops when an address space ends |
//! | [`watch`] | reports the use of each block to a tool that looks at memory from outside |
//! | [`sync`]  | std's atomics, or those of a model checker under `--cfg loom` and `--cfg shuttle` |
//!
//! ```
//! use heddle_arena::{Arena, sync::atomic::{AtomicU64, Ordering::Relaxed}};
//!
//! heddle_arena::shared! {
//!     /// A counter that any process may raise.
//!     struct Hits { total: AtomicU64 }
//! }
//!
//! let here = Arena::shared(1 << 20)?;
//! let there = here.map_again()?;
//! let hits = here.alloc_zeroed::<Hits>(1)?;
//! here.get(hits).total.fetch_add(1, Relaxed);
//! assert_eq!(there.get(hits).total.load(Relaxed), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arena;
mod class;
mod free_list;
mod heap;
pub mod lanes;
mod map;
pub mod park;
#[cfg(feature = "planted")]
pub mod planted;
pub mod process_slots;
mod ptr;
mod reserve;
mod shared;
pub mod sync;
pub mod watch;

pub use arena::{Arena, Full, MapError, prefetch, prefetch_to_write};
pub use heap::Heap;
pub use lanes::{Holder, LaneId, LaneTable, Lease, NoLane, NotHolder};
pub use park::{ParkingTable, Waited};
pub use process_slots::{ProcessSlot, ProcessTag};
pub use ptr::{AtomicPtr, Ptr};
pub use shared::{Shared, Zeroed};

#[cfg(all(test, not(loom)))]
mod tests;
