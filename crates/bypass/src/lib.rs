//! Open files of a heddle mount, served without the kernel.
//!
//! Each [`File`] has a real descriptor of the mount underneath, which the kernel keeps open. Names,
//! permissions, locks, mappings, duplicates and inheritance stay the kernel's. A call that is not served here
//! goes through that descriptor and sees the same data. Reads, writes and related calls go to the engine, to
//! which this process has attached ([`Attachments`]).
//!
//! **Coherence.** While a file is open for writing, the mount lets the kernel keep no attributes of it (time
//! to live 0), until the last such descriptor is closed. While any process has the file mapped through the
//! mount, the engine tells so ([`heddle_nvmfs::KernelPages`]) and every call goes through the mount. A write
//! that was under way when the first page was mapped is repeated through the mount. So no write is lost under
//! a dirty page, and no page stays old.
//!
//! **No panic reaches the program.** A panic of the engine is caught; from then on every call goes through
//! the mount.
//!
//! System calls here are made without the C library (`rustix`): the preloaded library exports the C library's
//! own names.

mod append;
mod args;
mod attach;
mod error;
mod file;
pub mod fork_gate;
mod kernel_stat;
mod known_once;
mod lock;
mod number;
mod patience;
mod process;
#[cfg(test)]
mod tests;
mod vector;
mod words;

pub use args::may_be_there;
pub use attach::{Attachment, Attachments, Hold, MountAnswer};
pub use error::{Errno, errno_of};
pub use file::{File, Passed, Served};
pub use heddle_nvmfs::clock::monotonic_ns;
pub use heddle_nvmfs::{BadBuffer, after_fault, copy_of_callers, this_thread_is_inside};
pub use heddle_vfs::{RangeOp, planted};
pub use kernel_stat::KernelStat;
pub use number::Number;
pub use patience::{Patience, Patient, handlers_are_known_by, pause};
pub use process::{a_fork_begins, a_fork_ended, this_is_a_child};
pub use vector::{VectorBuffer, read_vector, with_vector_buffer, write_vector};
pub use words::{StaysShared, Words};
