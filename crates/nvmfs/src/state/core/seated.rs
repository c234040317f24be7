//! The seat of a process at the mount: one for each process; a forked child takes a new one.

use super::Core;
use crate::process;
use heddle_arena::Seat;
use heddle_vfs::{Error, Result};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;

/// A seat, and the generation of the process (in a line of forks) that took it.
struct Taken {
    generation: u32,
    seat: Seat,
}

/// The seat of this process. Null: no process in this line of forks has one yet.
#[derive(Default)]
pub struct Seated(AtomicPtr<Taken>);

impl Core {
    /// The seat of this process, which tells others that it is alive. The first call of each process takes
    /// the seat.
    ///
    /// # Errors [`Error::Io`]: no seat can be had, and so no lane; the process works through the mount
    /// instead.
    pub fn seat(&self) -> Result<&Seat> {
        let seated = &self.seated.0;
        let mut old = seated.load(SeqCst);
        loop {
            // SAFETY: null, or made below; only `drop` frees it.
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
            // The old seat is a parent's: its page is not mapped in this process, and its box is leaked.
            match seated.compare_exchange(old, new, SeqCst, SeqCst) {
                Ok(_) => old = new,
                Err(now) => {
                    // SAFETY: no other thread has seen it.
                    unsafe { Box::from_raw(new) }.seat.leave();
                    old = now;
                }
            }
        }
    }
}

impl Core {
    /// Unmaps all memory of this mount from the process by system calls alone. For a signal handler, where
    /// nothing may be freed. The lanes of the process's threads are settled as those of a dead process.
    ///
    /// # Safety No thread of this process uses or drops the mount any more. The caller calls
    /// [`process::begin_anew`] afterwards, so that ending threads leave their lanes alone.
    pub unsafe fn abandon(&self) {
        // SAFETY: null, or made by `seat`; only `drop` frees it.
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
        // SAFETY: made by `seat`, and no thread uses it any more.
        let taken = unsafe { Box::from_raw(taken) };
        if taken.generation == process::generation() {
            taken.seat.leave();
        }
    }
}
