//! What recovery is to zero, kept until all of the image is judged.
//!
//! What once did not count must never count (protocol review D4b), and slots are handed out blank. But nothing is written before it is
//! certain that the image will be mounted: a mount that is refused leaves every byte as it was.

use crate::format::inode::INODE_BYTES;
use crate::format::layout::inode_pos;
use crate::planted::{Breach, Met, breaks, met};
use crate::state::core::Core;
use heddle_pmem::{LINE_BYTES, Pos};
use heddle_vfs::Ino;
use std::sync::{Mutex, PoisonError};

/// Places and their lengths in bytes.
#[derive(Default)]
pub struct DeferredZeros {
    zero: Mutex<Vec<(Pos, u64)>>,
}

impl DeferredZeros {
    /// These bytes are to be zero.
    pub fn zero(&self, at: Pos, bytes: u64) {
        self.zero.lock().unwrap_or_else(PoisonError::into_inner).push((at, bytes));
    }

    /// How many lines that comes to.
    pub fn lines(&self) -> u64 {
        let zero = self.zero.lock().unwrap_or_else(PoisonError::into_inner);
        zero.iter().map(|(_, bytes)| bytes / LINE_BYTES as u64).sum()
    }

    /// Zeroes them.
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
            // PERSIST: without its root the image is none: part of a planted bug.
            core.region.fence();
            // PERSIST: part of a planted bug.
            core.region.nt_write(root, &kept);
        }
        if !zero.is_empty() {
            met(Met::Zeroed);
            // PERSIST: gone before anything new is appended behind it, or a slot handed out.
            core.region.fence();
        }
    }
}
