//! The memory of a lock after a working set has been written: the papers' model and the bytes really used.

use anyhow::{Result, anyhow};
use heddle_arena::Arena;
use heddle_nvmfs::LockMode;
use heddle_range_lock::memory::{array, model};
use heddle_range_lock::{Access, Geometry, LockHead, LockKind, RangeLock, make};
use serde::Serialize;

/// One lock and working set.
#[derive(Serialize)]
pub struct Row {
    pub lock: &'static str,
    pub working_set_bytes: u64,
    /// `None` if the papers have no model: a lock that does not grow with the working set.
    pub model_bytes: Option<u64>,
    /// Includes the head. The untouched part of the array is address space only.
    pub measured_bytes: u64,
}

/// Working sets as powers of two: 4 MiB to 16 GiB.
const WORKING_SET_BITS: [u32; 4] = [22, 26, 30, 34];

/// Measures every lock with every working set.
pub fn measure(mode: LockMode, geometry: &Geometry, file_bits: u32, segment_bits: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let sets = WORKING_SET_BITS.into_iter().filter(|bits| (segment_bits..=file_bits).contains(bits));
    for set_bits in sets {
        for kind in LockKind::ALL {
            let model_bytes = match kind {
                LockKind::Array => Some(array(1 << file_bits, segment_bits)),
                LockKind::Tree => Some(model(file_bits, segment_bits, geometry.depth as u32, set_bits)),
                LockKind::Inode | LockKind::Interval => None,
            };
            let measured_bytes = weigh(kind, mode, geometry, set_bits)?;
            rows.push(Row {
                lock: kind.name(),
                working_set_bytes: 1 << set_bits,
                model_bytes,
                measured_bytes,
            });
        }
    }
    Ok(rows)
}

/// Locks every segment of the working set once.
fn weigh(kind: LockKind, mode: LockMode, geometry: &Geometry, set_bits: u32) -> Result<u64> {
    let lock = make(kind, mode, geometry)?;
    let words_bytes = (geometry.file_bytes_max / geometry.segment_bytes) as usize * 4;
    let arena = Arena::private(words_bytes + (1 << 30)).map_err(|e| anyhow!("no memory for a lock: {e}"))?;
    let head = arena.get(arena.alloc_zeroed::<LockHead>(1)?);
    lock.init(&arena, head)?;
    for at in (0..1u64 << set_bits).step_by(geometry.segment_bytes as usize) {
        let held = lock.acquire(&arena, head, at..at + geometry.segment_bytes, Access::Exclusive)?;
        lock.release(&arena, head, held);
    }
    Ok(lock.memory_bytes(&arena, head) + size_of::<LockHead>() as u64)
}
