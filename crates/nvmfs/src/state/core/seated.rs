//! The seat of the process that looks at the mount: one a process, taken anew by a forked child.

use super::Core;
use crate::process;
use heddle_arena::Seat;
use heddle_vfs::{Error, Result};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;

/// A seat, and which process of this line took it.
struct Taken {
    generation: u32,
    seat: Seat,
}

/// See the module. Null: no process of this line has one yet.
#[derive(Default)]
pub struct Seated(AtomicPtr<Taken>);

impl Core {
    /// Where this process sits, which says that it lives. The first call of each process takes the seat.
    ///
    /// # Errors
    /// [`Error::Io`]: the seat cannot be had, and so no lane; the process works through the mount.
    pub fn seat(&self) -> Result<&Seat> {
        let seated = &self.seated.0;
        let mut old = seated.load(SeqCst);
        loop {
            // SAFETY: null, or made below, and freed by `drop` alone.
            if let Some(taken) = unsafe { old.as_ref() }
                && taken.generation == process::generation()
            {
                return Ok(&taken.seat);
            }
            let no_seat = |e: std::io::Error| {
                Error::Io(format!(
                    "this process cannot be told alive from dead by others: {e}. Is /proc mounted?"
                ))
            };
            let seat = self.lane_table().sit(&self.arena).map_err(no_seat)?;
            let new = Box::into_raw(Box::new(Taken { generation: process::generation(), seat }));
            // What is replaced is a parent's: its page is not in this process, and its box is left alone.
            match seated.compare_exchange(old, new, SeqCst, SeqCst) {
                Ok(_) => old = new,
                Err(now) => {
                    // SAFETY: nobody has seen it.
                    unsafe { Box::from_raw(new) }.seat.leave();
                    old = now;
                }
            }
        }
    }
}

impl Core {
    /// Takes all memory of this mount out of the process by system calls alone, where nothing may be freed: in a handler of a signal. What
    /// the process's threads have of it is settled as a dead process's.
    ///
    /// # Safety
    /// Nobody uses the mount in this process any more, nor drops it. [`process::begin_anew`] comes behind it: threads that end leave their
    /// lanes alone then.
    pub unsafe fn abandon(&self) {
        // SAFETY: null, or made by `seat`, and freed by `drop` alone.
        if let Some(taken) = unsafe { self.seated.0.load(SeqCst).as_ref() }
            && taken.generation == process::generation()
        {
            // SAFETY: the caller's promise.
            unsafe { taken.seat.abandon() };
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.arena.abandon();
            self.region.abandon();
        }
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let taken = *self.0.get_mut();
        if taken.is_null() {
            return;
        }
        // SAFETY: made by `seat`, and nobody looks at it any more.
        let taken = unsafe { Box::from_raw(taken) };
        if taken.generation == process::generation() {
            taken.seat.leave();
        }
    }
}
