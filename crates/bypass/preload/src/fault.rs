//! Buffers that are not there: a program that gives one gets EFAULT from the kernel, so it gets it from us.
//!
//! What a read is copied to is found out by the copying itself: the engine's instructions that store there have a known address, and a
//! fault of theirs ends the copy ([`heddle_bypass::after_fault`]). Before a write, and a call with a vector, is served, one byte of
//! each page of its buffers is touched by code of a known address; a fault there is not the program's but an answer: the handler
//! (`signals`) goes on at `*_bad`. What is unmapped between this and the copy ends the program.

use std::ffi::c_void;

const PAGE: usize = 4096;

/// Can `len` bytes be read there?
pub fn readable(at: *const c_void, len: usize) -> bool {
    let (first, last) = pages(at, len);
    // SAFETY: it reads memory; where it may not, the handler answers.
    len == 0 || unsafe { heddle_touch_read(first, last) } == 0
}

/// Can `len` bytes be written there?
pub fn writable(at: *mut c_void, len: usize) -> bool {
    let (first, last) = pages(at, len);
    // SAFETY: it adds nothing to bytes, atomically; where it may not, the handler answers.
    len == 0 || unsafe { heddle_touch_write(first, last) } == 0
}

/// Is this an instruction of the touching, or of a copy to a buffer? Then where to go on.
pub fn after_fault(instruction: usize, address: usize) -> Option<usize> {
    let within = |start: usize, end: usize| (start..end).contains(&instruction).then_some(end);
    let read = heddle_touch_read as *const () as usize;
    let write = heddle_touch_write as *const () as usize;
    within(read, (&raw const heddle_touch_read_bad).addr())
        .or_else(|| within(write, (&raw const heddle_touch_write_bad).addr()))
        .or_else(|| heddle_bypass::after_fault(instruction, address))
}

fn pages(at: *const c_void, len: usize) -> (usize, usize) {
    (at.addr(), at.addr().saturating_add(len.saturating_sub(1)))
}

unsafe extern "C" {
    fn heddle_touch_read(first: usize, last: usize) -> usize;
    fn heddle_touch_write(first: usize, last: usize) -> usize;
    static heddle_touch_read_bad: u8;
    static heddle_touch_write_bad: u8;
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
    ".hidden heddle_touch_write", ".hidden heddle_touch_write_bad",
    ".globl heddle_touch_write", ".globl heddle_touch_write_bad",
    "heddle_touch_write:",
    "2: lock add byte ptr [rdi], 0",
    "and rdi, -{page}", "add rdi, {page}", "jc 3f",
    "cmp rdi, rsi", "jbe 2b",
    "3: xor eax, eax", "ret",
    "heddle_touch_write_bad:", "mov eax, 1", "ret",
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
    ".hidden heddle_touch_write", ".hidden heddle_touch_write_bad",
    ".globl heddle_touch_write", ".globl heddle_touch_write_bad",
    "heddle_touch_write:",
    "2: ldxrb w2, [x0]", "stxrb w3, w2, [x0]", "cbnz w3, 2b",
    "and x0, x0, #-{page}", "adds x0, x0, #{page}", "b.cs 3f",
    "cmp x0, x1", "b.ls 2b",
    "3: mov x0, #0", "ret",
    "heddle_touch_write_bad:", "mov x0, #1", "ret",
    page = const PAGE,
);
