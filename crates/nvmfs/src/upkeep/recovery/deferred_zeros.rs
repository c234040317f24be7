//! Ranges that recovery will zero, kept until the whole image is judged.
//!
//! A record that once did not count must never count (docs/protocol.md D4b), and slots are handed out blank.
//! But nothing is written before it is certain that the image will be mounted: a refused mount leaves every
//! byte unchanged.

use crate::format::inode::INODE_BYTES;
use crate::format::layout::inode_pos;
use crate::planted::{Breach, Met, breaks, met};
use crate::state::core::Core;
use heddle_pmem::{LINE_BYTES, Pos};
use heddle_vfs::Ino;
use std::sync::{Mutex, PoisonError};

/// Positions and lengths in bytes.
#[derive(Default)]
pub struct DeferredZeros {
    zero: Mutex<Vec<(Pos, u64)>>,
}

impl DeferredZeros {
    /// Adds a range.
    pub fn zero(&self, at: Pos, bytes: u64) {
        self.zero.lock().unwrap_or_else(PoisonError::into_inner).push((at, bytes));
    }

    /// Number of lines in all ranges.
    pub fn lines(&self) -> u64 {
        let zero = self.zero.lock().unwrap_or_else(PoisonError::into_inner);
        zero.iter().map(|(_, bytes)| bytes / LINE_BYTES as u64).sum()
    }

    /// Zeroes the ranges.
    pub fn write(self, core: &Core) {
        let zero = self.zero.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (at, bytes) in &zero {
            core.region.nt_zero(*at, *bytes);
        }
        if breaks(Breach::RecoveryInPieces) && !zero.is_empty() {
            let (root, bytes) = (inode_pos(core.chunk_block(Ino::ROOT), Ino::ROOT.0), INODE_BYTES);
            let mut kept = vec![0; bytes as usize];
            core.region.read(root, &mut kept);
            // PERSIST: part of a planted bug.
            core.region.nt_zero(root, bytes);
            // PERSIST: an image without its root is no image: part of a planted bug.
            core.region.fence();
            // PERSIST: part of a planted bug.
            core.region.nt_write(root, &kept);
        }
        if !zero.is_empty() {
            met(Met::Zeroed);
            // PERSIST: the ranges are zero before a record is appended behind them or a slot is handed out.
            core.region.fence();
        }
    }
}
