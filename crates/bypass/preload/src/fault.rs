//! Memory that is not there: a program that gives the kernel a bad address gets EFAULT, so it gets it from us.
//!
//! Looking first is not sure: another thread may take a page away, or change what stands there, between the look and the use. So the copy
//! itself finds it out. Every copy from or to the program's memory is made by instructions whose addresses are known, and a fault of theirs
//! ends the copy ([`heddle_bypass::after_fault`]): the handler (`signals`) goes on behind it. A write has changed nothing then.
//!
//! Before a write begins, one byte of each page of its buffer is read besides ([`readable`]). That guards nothing. A buffer that is not
//! whole goes to the kernel early, before blocks are taken for it.

use heddle_bypass::copy_of_callers;
use std::ffi::c_void;
use std::mem::MaybeUninit;

const PAGE: usize = 4096;

/// Can `len` bytes be read there?
pub fn readable(at: *const c_void, len: usize) -> bool {
    let (first, last) = (at.addr(), at.addr().saturating_add(len.saturating_sub(1)));
    // SAFETY: it reads memory; where it may not, the handler answers.
    len == 0 || unsafe { heddle_touch_read(first, last) } == 0
}

/// A copy of what the program has there; `None`: it is not there.
///
/// # Safety
/// `T` is made of numbers and pointers.
pub unsafe fn load<T: Copy>(at: *const T) -> Option<T> {
    let mut copy = MaybeUninit::<T>::uninit();
    // SAFETY: room for it; a fault ends the copy.
    unsafe { copy_of_callers(copy.as_mut_ptr().cast(), at.cast(), size_of::<T>()) }.ok()?;
    // SAFETY: whole, and any bytes are numbers and pointers.
    Some(unsafe { copy.assume_init() })
}

/// Puts a value there; false: not all of it could be.
pub fn store<T: Copy>(at: *mut T, value: T) -> bool {
    // SAFETY: a live local; a fault ends the copy.
    unsafe { copy_of_callers(at.cast(), (&raw const value).cast(), size_of::<T>()) }.is_ok()
}

/// Is this an instruction of the touching, or of a copy? Then where to go on.
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

// Touches `first`, then every further page's first byte up to `last`: a byte of each page.
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
