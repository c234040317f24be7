//! The steps of an operation as types, so that a wrong order does not compile.
//!
//! | value | made by | permits |
//! |-------|---------|---------|
//! | [`Active`] | `begin` | to lock cells (`file::cells`) |
//! | [`Durable`] | the fence behind the operation's records | to commit, and to change the bucket of a name |
//! | `Committed` (`file::cells`) | locked cells and a `Durable` | to publish the cells |
//!
//! Invariants  I1  a value that is dropped undoes its step: locked cells are unlocked unchanged, then the lane is idle.
//!             I2  a thread that panics undoes nothing. Its lane stays as it was: how far the operation came is not known.

use crate::ids::PageNo;
use crate::planted::{Breach, breaks};
use crate::region::Region;
use crate::state::lane::Lane;
use heddle_vfs::{Error, Ino, Result};

/// The records of an operation are durable.
#[derive(Debug)]
pub struct Durable(());

impl Durable {
    /// Runs `fence`, which makes the records durable that the caller has stored. The type cannot check that it
    /// does: only models and planted faults pass another function.
    ///
    /// # Errors
    /// [`Error::Io`]: this fence or an earlier one has failed. So nothing is published that the media may lack. The media may have
    /// the records, but nothing that follows them.
    #[inline]
    pub fn fenced(region: &Region, fence: impl FnOnce()) -> Result<Durable> {
        fence();
        match region.failed_fence() {
            None => Ok(Durable(())),
            Some(_) if breaks(Breach::FailedFenceIgnored) => Ok(Durable(())),
            Some(error) => Err(Error::Io(error.to_string())),
        }
    }
}

/// An operation that has begun and has not happened. Its lane is ACTIVE.
pub struct Active<'c>(&'c Lane);

impl<'c> Active<'c> {
    /// Begins an operation that will lock cells of pages `[first, end)` of inode `ino`.
    #[inline]
    pub fn begin(lane: &'c Lane, ino: Ino, first: PageNo, end: PageNo) -> Active<'c> {
        lane.begin(ino, first, end);
        Active(lane)
    }

    /// The operation happens: its lane is COMMITTED. The cells that it holds can be published.
    #[inline]
    pub fn commit(&self, _: &Durable) {
        self.0.commit();
    }
}

impl Drop for Active<'_> {
    #[inline]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.end();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use heddle_arena::Zeroed;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn an_operation_that_is_dropped_ends_unless_its_thread_panics() {
        let lane = Box::new(Lane::zeroed());
        let begin = || Active::begin(&lane, Ino(7), PageNo(1), PageNo(3));
        drop(begin());
        assert!(lane.state().idle(), "it did not happen");
        let region = Region::anonymous(1 << 20).unwrap();
        let operation = begin();
        assert!(lane.state().active());
        let mut fenced = false;
        operation.commit(&Durable::fenced(&region, || fenced = true).unwrap());
        assert!(fenced && lane.state().committed());
        drop(operation);
        assert!(lane.state().idle());
        let panics = || {
            let _operation = begin();
            panic!("in the middle");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert!(lane.state().active(), "how far it came is not known");
    }
}
