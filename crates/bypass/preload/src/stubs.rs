//! Functions that cannot be written in Rust: variadic formatting functions, vfork, which returns twice, and dlopen(3), which finds its
//! caller by the return address.
//! Each calls a hook and then jumps to the C library's function, with all arguments in place.

use crate::table::stop_serving_for_ever;
use crate::{fork, real, report};
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::atomic::AtomicPtr;

macro_rules! stub {
    ($($name:ident, $hook:expr, $target:ident;)*) => {$(
        /// Returns the address to jump to, after running the hook.
        unsafe extern "C" fn $target(first: i64, second: i64, third: i64) -> *mut libc::c_void {
            static NEXT: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let errno = real::errno();
            hook($hook, (first, second, third));
            real::set_errno(errno);
            let next = real::next(NAME, &NEXT);
            if next.is_null() { missing($hook) } else { next }
        }

        /// See the module.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rbp", "mov rbp, rsp",
                "sub rsp, 192",
                "mov [rsp], rdi", "mov [rsp+8], rsi", "mov [rsp+16], rdx", "mov [rsp+24], rcx",
                "mov [rsp+32], r8", "mov [rsp+40], r9", "mov [rsp+48], rax",
                "movups [rsp+64], xmm0", "movups [rsp+80], xmm1", "movups [rsp+96], xmm2", "movups [rsp+112], xmm3",
                "movups [rsp+128], xmm4", "movups [rsp+144], xmm5", "movups [rsp+160], xmm6", "movups [rsp+176], xmm7",
                "call {target}",
                "mov r11, rax",
                "mov rdi, [rsp]", "mov rsi, [rsp+8]", "mov rdx, [rsp+16]", "mov rcx, [rsp+24]",
                "mov r8, [rsp+32]", "mov r9, [rsp+40]", "mov rax, [rsp+48]",
                "movups xmm0, [rsp+64]", "movups xmm1, [rsp+80]", "movups xmm2, [rsp+96]", "movups xmm3, [rsp+112]",
                "movups xmm4, [rsp+128]", "movups xmm5, [rsp+144]", "movups xmm6, [rsp+160]", "movups xmm7, [rsp+176]",
                "mov rsp, rbp", "pop rbp",
                "jmp r11",
                target = sym $target,
            )
        }

        /// See the module.
        ///
        /// # Safety
        /// As the C library's.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-224]!", "mov x29, sp",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "str x8, [sp, #80]",
                "stp q0, q1, [sp, #96]", "stp q2, q3, [sp, #128]", "stp q4, q5, [sp, #160]", "stp q6, q7, [sp, #192]",
                "bl {target}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                "ldr x8, [sp, #80]",
                "ldp q0, q1, [sp, #96]", "ldp q2, q3, [sp, #128]", "ldp q4, q5, [sp, #160]", "ldp q6, q7, [sp, #192]",
                "ldp x29, x30, [sp], #224",
                "br x16",
                target = sym $target,
            )
        }
    )*};
}

/// What to call instead of a function that the C library does not have.
fn missing(hook: Hook) -> *mut libc::c_void {
    extern "C" fn no_library() -> usize {
        real::set_errno(libc::ENOSYS);
        0
    }
    extern "C" fn no_number() -> i64 {
        real::set_errno(libc::ENOSYS);
        -1
    }
    match hook {
        Hook::Loads | Hook::LoadsInto => no_library as *mut libc::c_void,
        Hook::Plain(_) | Hook::Fd(_) => no_number as *mut libc::c_void,
    }
}

fn hook(hook: Hook, args: (i64, i64, i64)) {
    match hook {
        Hook::Plain(hook) => hook(),
        Hook::Fd(hook) => hook(args.0 as libc::c_int),
        Hook::Loads => before_loading(false, args.0, args.1 as libc::c_int),
        Hook::LoadsInto => before_loading(args.0 != libc::LM_ID_BASE, args.1, args.2 as libc::c_int),
    }
}

/// Called before a library is loaded. If it prefers the C library's functions to those of this one, its calls are not seen here.
fn before_loading(is_apart: bool, name: i64, flags: libc::c_int) {
    let prefers = is_apart || flags & libc::RTLD_DEEPBIND != 0;
    if !prefers || name == 0 || flags & libc::RTLD_NOLOAD != 0 {
        return;
    }
    // SAFETY: the caller's promise: a string.
    let name = unsafe { CStr::from_ptr(std::ptr::with_exposed_provenance(name as usize)) };
    // Of a plain name only the loader knows the place, and of one with `$ORIGIN` or the like.
    let is_path = name.to_bytes().contains(&b'/') && !name.to_bytes().contains(&b'$');
    let is_there = rustix::fs::access(name, rustix::fs::Access::EXISTS);
    if !is_path || !matches!(is_there, Err(Errno::NOENT | Errno::NOTDIR)) {
        report::has_library_apart();
        stop_serving_for_ever();
    }
}

#[derive(Clone, Copy)]
enum Hook {
    Plain(extern "C" fn()),
    Fd(extern "C" fn(libc::c_int)),
    Loads,
    LoadsInto,
}

const VFORK: Hook = Hook::Plain(fork::before_vfork);
const WRITES: Hook = Hook::Fd(fork::before_inner_write);

stub! {
    vfork, VFORK, to_vfork;
    dlopen, Hook::Loads, to_dlopen;
    dlmopen, Hook::LoadsInto, to_dlmopen;
    dprintf, WRITES, to_dprintf;
    vdprintf, WRITES, to_vdprintf;
    __dprintf_chk, WRITES, to_dprintf_chk;
    __vdprintf_chk, WRITES, to_vdprintf_chk;
}
