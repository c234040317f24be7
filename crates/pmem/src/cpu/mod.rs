//! The instructions that a region needs, one file for each processor.
//!
//! State       [`Cpu`]: the features of this processor, found once for each region.
//! Invariants  I1  memory that other threads may write is accessed only by assembly, volatile or atomic accesses.
//!             I2  every function here is a compiler barrier for memory, so nothing moves across a flush or a fence.
//!             I3  between `heddle_load` and `heddle_load_end` nothing is on the stack, and a register holds the number of bytes left to
//!                 copy. So code that continues at `heddle_load_end` after a fault returns that number. The same holds for
//!                 `heddle_store` and `heddle_store_past_cache`.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::Cpu;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::Cpu;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("heddle-pmem knows the cache instructions of x86_64 and aarch64 only");

unsafe extern "C" {
    /// Copies. Returns the number of bytes left.
    fn heddle_load(to: *mut u8, from: *const u8, len_bytes: usize) -> usize;
    static heddle_load_end: u8;
    /// Copies whole words to a region, the first `wide_bytes` of them by the widest stores. Returns the
    /// number of bytes left. `wide_bytes` is a multiple of 32, and 0 if the processor has no such stores.
    fn heddle_store(to: *mut u8, from: *const u8, len_bytes: usize, wide_bytes: usize) -> usize;
    static heddle_store_end: u8;
    /// The same, past the cache. If `wide_bytes` is not 0, `to` is a multiple of 32.
    fn heddle_store_past_cache(to: *mut u8, from: *const u8, len_bytes: usize, wide_bytes: usize) -> usize;
    static heddle_store_past_cache_end: u8;
}

/// Copies. Returns the number of bytes left after a fault ([`after_fault`]), else 0.
///
/// # Safety
/// `from` is readable and `to` writable for `len_bytes`, unless faults end here; no overlap.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len_bytes: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { heddle_load(to, from, len_bytes) }
}

/// The address at which to continue after a fault at `instruction`, if that belongs to the copies (I3).
pub(crate) fn after_fault(instruction: usize) -> Option<usize> {
    let copies = [
        (heddle_load as *const () as usize, (&raw const heddle_load_end).addr()),
        (heddle_store as *const () as usize, (&raw const heddle_store_end).addr()),
        (heddle_store_past_cache as *const () as usize, (&raw const heddle_store_past_cache_end).addr()),
    ];
    copies.into_iter().find(|(start, end)| (*start..*end).contains(&instruction)).map(|(_, end)| end)
}

/// A compiler barrier (I2): no memory access moves across it. The processor needs no instruction: when a
/// thread dies, its earlier instructions have taken effect.
#[inline(always)]
pub(crate) fn keep_order() {
    // SAFETY: no instruction; the compiler must assume that it touches all memory.
    unsafe { std::arch::asm!("", options(nostack, preserves_flags)) };
}

/// Cuts `len_bytes` at `at` into naturally aligned pieces of 1, 2, 4 or 8 bytes: stores that cover exactly
/// these bytes and do not cross a word.
pub(crate) fn pieces(at: u64, len_bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let left = len_bytes - done;
        let align = 1 << (at + done as u64).trailing_zeros().min(3);
        let fits = 1 << left.checked_ilog2()?;
        let piece = (done, align.min(fits));
        done += piece.1;
        Some(piece)
    })
}

/// Starts of the lines that `[at, at + len_bytes)` touches.
#[inline]
pub(crate) fn lines(at: u64, len_bytes: usize, line_bytes: usize) -> impl Iterator<Item = u64> {
    let first = at & !(line_bytes as u64 - 1);
    (first..at + len_bytes as u64).step_by(line_bytes)
}

/// Plain stores of the pieces of fewer than eight bytes: the ragged edges of a write.
///
/// # Safety
/// `to` is writable for `len_bytes`, at most 8, in a mapping that starts on a page.
pub(crate) unsafe fn store_pieces(to: *mut u8, bytes: [u8; 8], len_bytes: usize) {
    keep_order();
    for (offset, piece) in pieces(to as u64, len_bytes) {
        let mut word = [0u8; 8];
        word[..piece].copy_from_slice(&bytes[offset..offset + piece]);
        // SAFETY: `offset + piece <= len_bytes`, and a piece is aligned at its target.
        unsafe {
            let target = to.add(offset);
            let value = u64::from_le_bytes(word);
            match piece {
                1 => target.write_volatile(value as u8),
                2 => target.cast::<u16>().write_volatile(value as u16),
                4 => target.cast::<u32>().write_volatile(value as u32),
                _ => target.cast::<u64>().write_volatile(value),
            }
        }
    }
    keep_order();
}
