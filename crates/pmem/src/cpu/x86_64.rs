//! x86-64: `movnti`, `vmovntdq`, `clwb` and its predecessors, `sfence`.
//!
//! Non-temporal stores bypass the cache and are durable after `sfence` wherever the memory controller is
//! inside the power-fail domain (ADR). `clwb` keeps the line cached, `clflushopt` drops it, `clflush` is also
//! ordered with other flushes.
//!
//! Where stores need not leave the cache ([`Reach`]) they are plain: a line by whole words, data by 32 bytes.
//! Only long ones still go past the cache ([`PAST_CACHE_FROM_BYTES`]), and then end with an `sfence` of their
//! own: x86 orders plain stores, but not those.

use crate::LINE_BYTES;
use std::arch::{asm, global_asm, x86_64::__cpuid_count};

use super::{heddle_load, heddle_store, heddle_store_past_cache};
use crate::durability::Reach;

/// A store of this length or more goes past the cache, whatever the region's durability. Measured on an AMD
/// EPYC (family 25, model 17), in ns, past the cache against plain: 16 KiB 680 : 190 to cached targets and
/// 730 : 1,650 to others, 32 KiB 1,270 : 600 and 1,400 : 2,700, 64 KiB 2,600 : 1,200 and 2,700 : 4,900. From
/// this length on the gain for uncached targets exceeds the loss for cached ones.
const PAST_CACHE_FROM_BYTES: usize = 32 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    Clwb,
    Clflushopt,
    Clflush,
}

/// The features of this processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    reach: Reach,
    flush: Flush,
    avx: bool,
    /// True on Intel: waits after large copies.
    waits: bool,
}

impl Cpu {
    pub(crate) fn detect(reach: Reach) -> Cpu {
        // Leaf 7 exists wherever AVX2 does; on older processors the highest leaf is smaller.
        let features = if __cpuid_count(0, 0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let flush = match (features & 1 << 24 != 0, features & 1 << 23 != 0) {
            (true, _) => Flush::Clwb,
            (false, true) => Flush::Clflushopt,
            (false, false) => Flush::Clflush,
        };
        let intel = __cpuid_count(0, 0).ebx == u32::from_le_bytes(*b"Genu");
        Cpu { reach, flush, avx: is_x86_feature_detected!("avx"), waits: intel }
    }

    /// Stores whole words; `whole_bytes` is the length of the store that they are part of. Returns the number
    /// of bytes that could not be loaded ([`super::after_fault`]), else 0. Durable after [`Cpu::fence`].
    ///
    /// # Safety
    /// `from` is readable, unless faults end here, and `to` writable for `len_bytes`; `to` and `len_bytes` are multiples of 8; no overlap.
    #[inline]
    pub(crate) unsafe fn words(
        self,
        to: *mut u8,
        from: *const u8,
        len_bytes: usize,
        whole_bytes: usize,
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            if self.reach == Reach::Controller {
                return self.nt_words(to, from, len_bytes);
            }
            if whole_bytes < PAST_CACHE_FROM_BYTES {
                let wide_bytes = if self.avx { len_bytes & !31 } else { 0 };
                return heddle_store(to, from, len_bytes, wide_bytes);
            }
            let left_bytes = self.nt_words(to, from, len_bytes);
            store_fence();
            left_bytes
        }
    }

    /// # Safety
    /// As [`Cpu::words`].
    #[inline]
    unsafe fn nt_words(self, to: *mut u8, from: *const u8, len_bytes: usize) -> usize {
        // Wide stores past the cache must be aligned.
        let body_at = if self.avx { to.align_offset(32).min(len_bytes) } else { len_bytes };
        let body_bytes = len_bytes - body_at;
        // SAFETY: the two parts lie one after the other in the caller's range; the second starts on 32 bytes, and AVX was detected where it
        // is not empty.
        unsafe {
            let mut left_bytes = 0;
            if body_at > 0 {
                left_bytes = heddle_store_past_cache(to, from, body_at, 0);
            }
            if left_bytes == 0 && body_bytes > 0 {
                return heddle_store_past_cache(
                    to.add(body_at),
                    from.add(body_at),
                    body_bytes,
                    body_bytes & !31,
                );
            }
            left_bytes
        }
    }

    /// Stores the words of one line. Durable after [`Cpu::fence`].
    ///
    /// # Safety
    /// `to` is writable for a line and aligned to one.
    #[inline]
    pub(crate) unsafe fn line(self, to: *mut u8, words: &[u64; 8]) {
        let past = self.reach == Reach::Controller;
        for (slot, word) in words.iter().enumerate() {
            // SAFETY: eight words are within the line.
            unsafe {
                if past { nt_word(to.add(slot * 8), *word) } else { plain_word(to.add(slot * 8), *word) }
            }
        }
    }

    /// Stores zero words. Durable after [`Cpu::fence`].
    ///
    /// # Safety
    /// `to` is writable for `len_bytes`; both are multiples of 8.
    #[inline]
    pub(crate) unsafe fn zero_words(self, to: *mut u8, len_bytes: usize) {
        let past = self.reach == Reach::Controller || len_bytes >= PAST_CACHE_FROM_BYTES;
        for offset in (0..len_bytes).step_by(8) {
            // SAFETY: `offset + 8 <= len_bytes`.
            unsafe { if past { nt_word(to.add(offset), 0) } else { plain_word(to.add(offset), 0) } }
        }
        if past && self.reach != Reach::Controller {
            store_fence();
        }
    }

    /// Starts the write-back of every line that `[at, at + len_bytes)` touches. Durable after [`Cpu::fence`].
    ///
    /// # Safety
    /// The lines are mapped.
    #[inline]
    pub(crate) unsafe fn flush(self, at: *mut u8, len_bytes: usize) {
        if self.reach != Reach::Controller {
            return super::keep_order();
        }
        for line in super::lines(at as u64, len_bytes, LINE_BYTES) {
            // SAFETY: the line is mapped, and the instruction was detected.
            unsafe {
                match self.flush {
                    Flush::Clwb => {
                        asm!("clwb [{line}]", line = in(reg) line, options(nostack, preserves_flags))
                    }
                    Flush::Clflushopt => {
                        asm!("clflushopt [{line}]", line = in(reg) line, options(nostack, preserves_flags))
                    }
                    Flush::Clflush => {
                        asm!("clflush [{line}]", line = in(reg) line, options(nostack, preserves_flags))
                    }
                }
            }
        }
    }

    /// Waits until earlier stores and flushes of this thread have reached the required point. If that is
    /// memory, x86's own order of stores is enough, and only the compiler is restrained.
    #[inline]
    pub(crate) fn fence(self) {
        match self.reach {
            Reach::Memory => super::keep_order(),
            Reach::Cache | Reach::Controller => store_fence(),
        }
    }

    /// As [`Cpu::fence`]; on Intel this thread also stalls until earlier stores are done, because that is
    /// faster. A locked instruction waits for every earlier store, including those past the cache. On AMD's
    /// processors (of 2024) it is slower, since later instructions could run meanwhile.
    #[inline]
    pub(crate) fn fence_and_wait(self) {
        self.fence();
        if self.waits && self.reach == Reach::Controller {
            // SAFETY: changes no bit of the stack; without `nostack` there is no red zone below it.
            unsafe { asm!("lock or dword ptr [rsp], 0") };
        }
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

/// Orders every earlier store, including those past the cache, before every later store.
#[inline]
fn store_fence() {
    // SAFETY: orders memory, touches none.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

/// # Safety
/// `to` is writable for a word and aligned to one.
#[inline]
unsafe fn nt_word(to: *mut u8, word: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("movnti [{to}], {word}", to = in(reg) to, word = in(reg) word, options(nostack, preserves_flags))
    };
}

/// # Safety
/// As [`nt_word`].
#[inline]
unsafe fn plain_word(to: *mut u8, word: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("mov [{to}], {word}", to = in(reg) to, word = in(reg) word, options(nostack, preserves_flags))
    };
}

// The direction flag is clear, as the ABI requires. After a fault rcx is the number of bytes still to be
// copied.
global_asm!(
    ".pushsection .text.heddle_load,\"ax\",@progbits",
    ".hidden heddle_load",
    ".globl heddle_load",
    ".type heddle_load,@function",
    ".hidden heddle_load_end",
    ".globl heddle_load_end",
    ".p2align 4",
    "heddle_load:",
    "mov rcx, rdx",
    "rep movsb",
    "heddle_load_end:",
    "mov rax, rcx",
    "ret",
    ".size heddle_load, . - heddle_load",
    ".popsection",
);

/// Copies `rdx` bytes, whole words, from `rsi` to `rdi`, the first `rcx` of them by 32 bytes. Returns the
/// number of bytes left (I3 of [`super`]). At every instruction that loads, `rax` is the number of bytes
/// copied.
macro_rules! copies {
    ($name:literal, $end:literal, $wide:literal, $word:literal) => {
        global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",@progbits"),
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ",@function"),
            concat!(".hidden ", $end),
            concat!(".globl ", $end),
            ".p2align 5",
            concat!($name, ":"),
            "xor eax, eax",
            "mov r8, rcx",
            "and r8, -128",
            "jz 3f",
            "2: vmovdqu ymm0, [rsi + rax]",
            "vmovdqu ymm1, [rsi + rax + 32]",
            "vmovdqu ymm2, [rsi + rax + 64]",
            "vmovdqu ymm3, [rsi + rax + 96]",
            concat!($wide, " [rdi + rax], ymm0"),
            concat!($wide, " [rdi + rax + 32], ymm1"),
            concat!($wide, " [rdi + rax + 64], ymm2"),
            concat!($wide, " [rdi + rax + 96], ymm3"),
            "add rax, 128",
            "cmp rax, r8",
            "jb 2b",
            "3: cmp rax, rcx",
            "jae 4f",
            "vmovdqu ymm0, [rsi + rax]",
            concat!($wide, " [rdi + rax], ymm0"),
            "add rax, 32",
            "jmp 3b",
            "4: cmp rax, rdx",
            concat!("jae ", $end),
            "mov r9, [rsi + rax]",
            concat!($word, " [rdi + rax], r9"),
            "add rax, 8",
            "jmp 4b",
            concat!($end, ":"),
            "test rcx, rcx",
            "jz 5f",
            "vzeroupper",
            "5: sub rdx, rax",
            "mov rax, rdx",
            "ret",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
        );
    };
}

copies!("heddle_store", "heddle_store_end", "vmovdqu", "mov");
copies!("heddle_store_past_cache", "heddle_store_past_cache_end", "vmovntdq", "movnti");
