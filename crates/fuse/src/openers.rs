//! Whose the mount's descriptors of each file are: of a library that makes their calls past the kernel, or of a program whose calls
//! the kernel serves, some of them by the size that it has cached.
//!
//! A library that changes the size then has the kernel ask for it. So that this costs nothing while all programs with the file use the
//! library, or only one has it, the engine tells the library which of these holds.
//!
//! State       per file, in shards: its descriptors, and how many of them were announced ([`ioctl::PAST_KERNEL`]); per descriptor,
//!             whether it was ([`Calls`]).
//! Invariants  O1  a descriptor counts before the kernel has it, and until the kernel has released it.
//!             O2  a descriptor that a program without the library has or had ([`ioctl::THROUGH_KERNEL`]) is never counted as
//!                 announced again. A forked child may have said so, while its parent announces.
//!             O3  the engine is told under the shard's lock: of two changes at once it learns the later one last.
//!
//! [`ioctl::PAST_KERNEL`]: heddle_vfs::ioctl::PAST_KERNEL
//! [`ioctl::THROUGH_KERNEL`]: heddle_vfs::ioctl::THROUGH_KERNEL

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use heddle_vfs::{FileSystem, Handle, Ino, Openers as Counted};

const SHARDS: usize = 64;

/// Who makes the calls on a descriptor.
#[derive(Default)]
pub(crate) struct Calls(AtomicU8);

/// Not counted: a directory.
const UNCOUNTED: u8 = 0;
/// The kernel, as far as is known.
const UNKNOWN: u8 = 1;
/// A library, past the kernel.
const PAST: u8 = 2;
/// The kernel (O2).
const THROUGH: u8 = 3;

pub(crate) struct Openers {
    shards: [Mutex<HashMap<u64, Counted>>; SHARDS],
}

impl Default for Openers {
    fn default() -> Openers {
        Openers { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl Openers {
    fn shard(&self, ino: Ino) -> MutexGuard<'_, HashMap<u64, Counted>> {
        self.shards[ino.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the counts of a file, and tells the engine.
    fn change(&self, fs: &dyn FileSystem, handle: &Handle, change: impl FnOnce(&mut Counted)) {
        let mut shard = self.shard(handle.ino);
        let counted = shard.entry(handle.ino.0).or_default();
        let before = *counted;
        change(counted);
        let now = *counted;
        if now.open == 0 {
            shard.remove(&handle.ino.0);
        }
        let told = |counted: Counted| (counted.are_others(), counted.are_asked());
        if told(before) != told(now) {
            fs.note_openers(handle, now);
        }
    }

    /// Counts a descriptor of a regular file.
    pub(crate) fn opens(&self, fs: &dyn FileSystem, handle: &Handle) -> Calls {
        self.change(fs, handle, |counted| counted.open += 1);
        Calls(AtomicU8::new(UNKNOWN))
    }

    /// Handles the final close of a descriptor.
    pub(crate) fn closes(&self, fs: &dyn FileSystem, handle: &Handle, calls: &Calls) {
        let calls = calls.0.load(SeqCst);
        if calls != UNCOUNTED {
            self.change(fs, handle, |counted| {
                counted.open -= 1;
                counted.past_kernel -= u32::from(calls == PAST);
            });
        }
    }

    /// A library announces that it makes the calls on a descriptor.
    pub(crate) fn past_kernel(&self, fs: &dyn FileSystem, handle: &Handle, calls: &Calls) {
        self.change(fs, handle, |counted| {
            let announced = calls.0.compare_exchange(UNKNOWN, PAST, SeqCst, SeqCst).is_ok();
            counted.past_kernel += u32::from(announced);
        });
    }

    /// A program without the library gets a descriptor.
    pub(crate) fn through_kernel(&self, fs: &dyn FileSystem, handle: &Handle, calls: &Calls) {
        self.change(fs, handle, |counted| match calls.0.load(SeqCst) {
            UNCOUNTED => {}
            before => {
                calls.0.store(THROUGH, SeqCst);
                counted.past_kernel -= u32::from(before == PAST);
            }
        });
    }
}

#[cfg(test)]
mod tests;
