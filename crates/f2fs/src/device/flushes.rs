//! The flushes of a device: each of those that run at once has an open file description of its own.
//!
//! Linux reports a failed write-back once to each description. Two flushes at once through one would share that report: the second one
//! would return as if its blocks were durable.
//!
//! Invariants  A1  a description is used by one flush at a time, and is opened before the first write to the device.
//!             A2  a flush that fails marks the device ([`super::Device::not_lost`]) before it releases its description. So the next
//!                 flush through it fails too, although Linux does not report that error to it again.
//! Source      errseq_t (lib/errseq.c of Linux); fsync(2).

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of flushes that may run at once; further ones wait.
const AT_ONCE: usize = 16;

/// An open file description, for one flush at a time.
#[derive(Debug, Default)]
pub(super) struct Description {
    /// `None`: the device's own.
    pub(super) file: Option<File>,
    /// Number of failed flushes that it has reported.
    #[cfg(feature = "testkit")]
    pub(super) reported: u64,
}

impl Description {
    fn of(file: File) -> Description {
        Description {
            file: Some(file),
            #[cfg(feature = "testkit")]
            reported: 0,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flushes {
    descriptions: Vec<Mutex<Description>>,
    /// The one that the next flush tries first.
    next: AtomicUsize,
}

impl Flushes {
    /// Flushes one after the other, through the device's own description.
    pub(super) fn one_by_one() -> Flushes {
        Flushes { descriptions: vec![Mutex::default()], next: AtomicUsize::new(0) }
    }

    /// The same with further descriptions of the file under this path, as far as they can be opened.
    pub(super) fn side_by_side(path: &Path) -> Flushes {
        let mut flushes = Flushes::one_by_one();
        let open = || File::options().read(true).write(true).open(path).ok();
        let more = std::iter::repeat_with(open).take(AT_ONCE - 1).map_while(|file| file);
        flushes.descriptions.extend(more.map(|file| Description::of(file).into()));
        flushes
    }

    /// A description that no other flush uses until this is dropped.
    pub(super) fn begin(&self) -> MutexGuard<'_, Description> {
        // ORDERING: Relaxed, it only spreads flushes over descriptions.
        let first = self.next.fetch_add(1, Relaxed);
        let turn = |n| &self.descriptions[first.wrapping_add(n) % self.descriptions.len()];
        let free = (0..self.descriptions.len()).find_map(|n| turn(n).try_lock().ok());
        free.unwrap_or_else(|| turn(0).lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Closes the further descriptions.
    pub(super) fn close(&mut self) {
        *self = Flushes::one_by_one();
    }
}
