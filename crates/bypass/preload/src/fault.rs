//! Memory that is not mapped: for a bad address the kernel returns EFAULT, so this library must too.
//!
//! A check before the use is not reliable: another thread may unmap a page, or change its contents, in
//! between. So the copy itself detects it. Every copy from or to the program's memory uses instructions at
//! known addresses, and a fault at one of them ends the copy ([`heddle_bypass::after_fault`]): the handler
//! (`signals`) continues after it. A write has changed nothing then.
//!
//! Before a write begins, one byte of each page of its buffer is read as well ([`readable`]). That is no
//! protection. If a buffer is not fully mapped, the write goes to the kernel before the engine takes blocks.

use heddle_bypass::copy_of_callers;
use std::ffi::c_void;
use std::mem::MaybeUninit;

const PAGE: usize = 4096;

/// Returns true if `len` bytes can be read there.
pub fn readable(at: *const c_void, len: usize) -> bool {
    let (first, last) = (at.addr(), at.addr().saturating_add(len.saturating_sub(1)));
    // SAFETY: it reads memory; if that faults, the handler returns the answer.
    len == 0 || unsafe { heddle_touch_read(first, last) } == 0
}

/// A copy of a value in the program's memory; `None`: it is not mapped.
///
/// # Safety
/// `T` consists of numbers and pointers.
pub unsafe fn load<T: Copy>(at: *const T) -> Option<T> {
    let mut copy = MaybeUninit::<T>::uninit();
    // SAFETY: the target has room; a fault ends the copy.
    unsafe { copy_of_callers(copy.as_mut_ptr().cast(), at.cast(), size_of::<T>()) }.ok()?;
    // SAFETY: it is complete, and any bytes are valid numbers and pointers.
    Some(unsafe { copy.assume_init() })
}

/// Stores a value in the program's memory. Returns false if that was not completely possible.
pub fn store<T: Copy>(at: *mut T, value: T) -> bool {
    // SAFETY: a live local; a fault ends the copy.
    unsafe { copy_of_callers(at.cast(), (&raw const value).cast(), size_of::<T>()) }.is_ok()
}

/// The instruction at which to continue after a fault in [`readable`]'s reads or in a copy.
pub fn after_fault(instruction: usize, address: usize) -> Option<usize> {
    let touch = heddle_touch_read as *const () as usize..(&raw const heddle_touch_read_bad).addr();
    match touch.contains(&instruction) {
        true => Some(touch.end),
        false => heddle_bypass::after_fault(instruction, address),
    }
}

unsafe extern "C" {
    fn heddle_touch_read(first: usize, last: usize) -> usize;
    static heddle_touch_read_bad: u8;
}

// Reads `first`, then the first byte of every further page up to `last`: one byte of each page.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".hidden heddle_touch_read", ".hidden heddle_touch_read_bad",
    ".globl heddle_touch_read", ".globl heddle_touch_read_bad",
    "heddle_touch_read:",
    "2: movzx eax, byte ptr [rdi]",
    "and rdi, -{page}", "add rdi, {page}", "jc 3f",
    "cmp rdi, rsi", "jbe 2b",
    "3: xor eax, eax", "ret",
    "heddle_touch_read_bad:", "mov eax, 1", "ret",
    page = const PAGE,
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".hidden heddle_touch_read", ".hidden heddle_touch_read_bad",
    ".globl heddle_touch_read", ".globl heddle_touch_read_bad",
    "heddle_touch_read:",
    "2: ldrb w2, [x0]",
    "and x0, x0, #-{page}", "adds x0, x0, #{page}", "b.cs 3f",
    "cmp x0, x1", "b.ls 2b",
    "3: mov x0, #0", "ret",
    "heddle_touch_read_bad:", "mov x0, #1", "ret",
    page = const PAGE,
);
