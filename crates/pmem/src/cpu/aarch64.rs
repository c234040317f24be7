//! aarch64: `stnp`, `dc cvap` (or `dc cvac` before Armv8.2), `dsb`. Where stores only have to reach memory
//! ([`Reach`]): pairs of words and `dmb ish`.
//!
//! `stnp` is a hint and may leave its line in the cache, so every non-temporal store here is followed by a
//! clean of its lines; the interface has the same guarantees as on x86. Without `cvap` a clean reaches the
//! point of coherency, which is persistence only on platforms that guarantee it.
//!
//! Not measured, and not yet run on any machine.

use super::{heddle_load, heddle_store, heddle_store_past_cache};
use crate::durability::Reach;
use std::arch::{asm, global_asm};

/// The features of this processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    reach: Reach,
    to_persistence: bool,
    line_bytes: usize,
}

impl Cpu {
    pub(crate) fn detect(reach: Reach) -> Cpu {
        /// Bit of `AT_HWCAP` for `dc cvap`.
        const DCPOP: usize = 1 << 16;
        let cache_type: u64;
        // SAFETY: Linux lets user space read this register, or emulates the read.
        unsafe { asm!("mrs {}, ctr_el0", out(reg) cache_type, options(nomem, nostack, preserves_flags)) };
        let (capabilities, _) = rustix::param::linux_hwcap();
        Cpu { reach, to_persistence: capabilities & DCPOP != 0, line_bytes: 4 << (cache_type >> 16 & 0xf) }
    }

    /// Stores whole words; the length of the store that they are part of makes no difference here. Returns
    /// the number of bytes that could not be loaded ([`super::after_fault`]), else 0. Durable after
    /// [`Cpu::fence`].
    ///
    /// # Safety
    /// `from` is readable, unless faults end here, and `to` writable for `len_bytes`; `to` and `len_bytes` are multiples of 8; no overlap.
    pub(crate) unsafe fn words(
        self,
        to: *mut u8,
        from: *const u8,
        len_bytes: usize,
        _whole_bytes: usize,
    ) -> usize {
        // SAFETY: the caller's promise; loads may be unaligned in normal memory.
        unsafe {
            let left_bytes = if self.reach == Reach::Controller {
                heddle_store_past_cache(to, from, len_bytes, 0)
            } else {
                heddle_store(to, from, len_bytes, 0)
            };
            self.flush(to, len_bytes);
            left_bytes
        }
    }

    /// Stores the words of one line. Durable after [`Cpu::fence`].
    ///
    /// # Safety
    /// `to` is writable for a line and aligned to one.
    pub(crate) unsafe fn line(self, to: *mut u8, words: &[u64; 8]) {
        // SAFETY: the caller's promise.
        unsafe {
            // Our own memory is always mapped.
            let _all = self.words(to, words.as_ptr().cast(), size_of_val(words), size_of_val(words));
        }
    }

    /// Stores zero words. Durable after [`Cpu::fence`].
    ///
    /// # Safety
    /// `to` is writable for `len_bytes`; both are multiples of 8.
    pub(crate) unsafe fn zero_words(self, to: *mut u8, len_bytes: usize) {
        for offset in (0..len_bytes).step_by(8) {
            // SAFETY: `offset + 8 <= len_bytes`.
            unsafe {
                asm!("str xzr, [{to}]", to = in(reg) to.add(offset), options(nostack, preserves_flags))
            };
        }
        // SAFETY: the same range.
        unsafe { self.flush(to, len_bytes) }
    }

    /// Starts the write-back of every line that `[at, at + len_bytes)` touches. Durable after [`Cpu::fence`].
    ///
    /// # Safety
    /// The lines are mapped.
    pub(crate) unsafe fn flush(self, at: *mut u8, len_bytes: usize) {
        if self.reach != Reach::Controller {
            return super::keep_order();
        }
        for line in super::lines(at as u64, len_bytes, self.line_bytes) {
            // SAFETY: the line is mapped; op1 3, c7, c12 or c10, op2 1 are `dc cvap` and `dc cvac` by number, so
            // that an assembler for the base architecture takes both.
            unsafe {
                if self.to_persistence {
                    asm!("sys #3, c7, c12, #1, {line}", line = in(reg) line, options(nostack, preserves_flags));
                } else {
                    asm!("sys #3, c7, c10, #1, {line}", line = in(reg) line, options(nostack, preserves_flags));
                }
            }
        }
    }

    /// Waits until earlier stores and cleans of this thread have reached the required point.
    pub(crate) fn fence(self) {
        if self.reach == Reach::Memory {
            // SAFETY: orders memory, touches none. Only for other processors: no device has to see it.
            unsafe { asm!("dmb ish", options(nostack, preserves_flags)) };
            return;
        }
        // SAFETY: orders memory, touches none. The full system, since persistent memory may sit beyond the inner
        // domain.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }

    /// The same as [`Cpu::fence`]: this barrier lets no instruction pass.
    pub(crate) fn fence_and_wait(self) {
        self.fence();
    }

    /// Copies out of memory that others may be writing. Returns the number of bytes that could not be stored
    /// ([`super::after_fault`]), else 0.
    ///
    /// # Safety
    /// `from` is readable for `len_bytes`; so is `to` writable, unless faults end here; no overlap.
    #[inline]
    pub(crate) unsafe fn load(self, to: *mut u8, from: *const u8, len_bytes: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { heddle_load(to, from, len_bytes) }
    }
}

// x2 is the number of bytes still to be copied, at every instruction.
global_asm!(
    ".pushsection .text.heddle_load,\"ax\",@progbits",
    ".hidden heddle_load",
    ".globl heddle_load",
    ".type heddle_load,@function",
    ".hidden heddle_load_end",
    ".globl heddle_load_end",
    ".p2align 4",
    "heddle_load:",
    "2: cmp x2, #16",
    "b.lo 3f",
    "ldp x3, x4, [x1]",
    "stp x3, x4, [x0]",
    "add x1, x1, #16",
    "add x0, x0, #16",
    "sub x2, x2, #16",
    "b 2b",
    "3: cbz x2, heddle_load_end",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "sub x2, x2, #1",
    "b 3b",
    "heddle_load_end:",
    "mov x0, x2",
    "ret",
    ".size heddle_load, . - heddle_load",
    ".popsection",
);

/// Copies x2 bytes, whole words, from x1 to x0, in pairs; x2 is the number of bytes still to be copied, at
/// every instruction.
macro_rules! copies {
    ($name:literal, $end:literal, $pair:literal) => {
        global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",@progbits"),
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            concat!(".hidden ", $end),
            concat!(".globl ", $end),
            ".p2align 4",
            concat!($name, ":"),
            "2: cmp x2, #16",
            "b.lo 3f",
            "ldp x3, x4, [x1]",
            concat!($pair, " x3, x4, [x0]"),
            "add x1, x1, #16",
            "add x0, x0, #16",
            "sub x2, x2, #16",
            "b 2b",
            concat!("3: cbz x2, ", $end),
            "ldr x3, [x1]",
            "str x3, [x0]",
            "sub x2, x2, #8",
            concat!($end, ":"),
            "mov x0, x2",
            "ret",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );
    };
}

copies!("heddle_store", "heddle_store_end", "stp");
copies!("heddle_store_past_cache", "heddle_store_past_cache_end", "stnp");
