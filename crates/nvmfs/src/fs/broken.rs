//! Calls that break a promise on purpose, for those breaches of `planted` that are a call of their own.

use super::NvmFs;
use crate::file::write_heddle::At;
use heddle_arena::sync::yield_now;
use heddle_vfs::{Handle, Result};
use std::time::{Duration, Instant};

/// Longest time for which a reader waits until writers pause: by then a test has seen enough.
const ANEW_MAX: Duration = Duration::from_secs(12);
/// In this time every writer of a test writes.
const PAUSE: Duration = Duration::from_millis(50);

impl NvmFs {
    /// `ReadsInTwo`.
    pub(super) fn read_in_two(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (first, second) = buf.split_at_mut(buf.len() / 4);
        let read = self.read_part(handle, offset, first)?;
        yield_now();
        if read < first.len() {
            return Ok(read);
        }
        self.read_part(handle, offset + read as u64, second).map(|more| read + more)
    }

    /// `ReadsAnew`.
    pub(super) fn read_anew(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (began, mut before) = (Instant::now(), vec![0; buf.len()]);
        loop {
            let first = self.read_part(handle, offset, &mut before)?;
            std::thread::sleep(PAUSE);
            let read = self.read_part(handle, offset, buf)?;
            if before[..first] == buf[..read] || began.elapsed() > ANEW_MAX {
                return Ok(read);
            }
        }
    }

    /// `WritesInTwo`. Returns the number of bytes written.
    pub(super) fn write_half(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        let half = buf.len() / 2;
        if half > 0 {
            self.put(handle, At::Offset(offset), &buf[..half])?;
        }
        Ok(half)
    }
}
