//! The process slot of a process at the mount: one for each process; a forked child takes a new one.

use super::Core;
use crate::process;
use heddle_arena::ProcessSlot;
use heddle_vfs::{Error, Result};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::SeqCst;

/// A process slot, and the generation of the process (in a line of forks) that took it.
struct TakenSlot {
    generation: u32,
    process_slot: ProcessSlot,
}

/// The process slot of this process. Null: no process in this line of forks has one yet.
#[derive(Default)]
pub struct OwnSlot(AtomicPtr<TakenSlot>);

impl Core {
    /// The process slot of this process, which tells others that it is alive. The first call of each process takes
    /// the process slot.
    ///
    /// # Errors
    /// [`Error::Io`]: no process slot can be had, and so no lane; the process works through the mount
    /// instead.
    pub fn process_slot(&self) -> Result<&ProcessSlot> {
        let own_slot = &self.own_slot.0;
        let mut old = own_slot.load(SeqCst);
        loop {
            // SAFETY: null, or made below; only `drop` frees it.
            if let Some(slot_taken) = unsafe { old.as_ref() }
                && slot_taken.generation == process::generation()
            {
                return Ok(&slot_taken.process_slot);
            }
            let no_seat = |e: std::io::Error| {
                Error::Io(format!(
                    "this process cannot be told alive from dead by others: {e}. Is /proc mounted?"
                ))
            };
            let process_slot = self.lane_table().take_process_slot(&self.arena).map_err(no_seat)?;
            let new = Box::into_raw(Box::new(TakenSlot { generation: process::generation(), process_slot }));
            // The old process slot is a parent's: its page is not mapped in this process, and its box is leaked.
            match own_slot.compare_exchange(old, new, SeqCst, SeqCst) {
                Ok(_) => old = new,
                Err(now) => {
                    // SAFETY: no other thread has seen it.
                    unsafe { Box::from_raw(new) }.process_slot.leave();
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
    /// # Safety
    /// No thread of this process uses or drops the mount any more. The caller calls
    /// [`process::begin_anew`] afterwards, so that ending threads leave their lanes alone.
    pub unsafe fn unmap_without_freeing(&self) {
        // SAFETY: null, or made by `process_slot`; only `drop` frees it.
        if let Some(slot_taken) = unsafe { self.own_slot.0.load(SeqCst).as_ref() }
            && slot_taken.generation == process::generation()
        {
            // SAFETY: the caller's promise.
            unsafe { slot_taken.process_slot.leave_unfreed() };
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.arena.unmap_without_freeing();
            self.region.unmap_without_freeing();
        }
    }
}

impl Drop for OwnSlot {
    fn drop(&mut self) {
        let slot_taken = *self.0.get_mut();
        if slot_taken.is_null() {
            return;
        }
        // SAFETY: made by `process_slot`, and no thread uses it any more.
        let slot_taken = unsafe { Box::from_raw(slot_taken) };
        if slot_taken.generation == process::generation() {
            slot_taken.process_slot.leave();
        }
    }
}
