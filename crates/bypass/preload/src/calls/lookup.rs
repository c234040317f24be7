//! dlsym(3) and dlvsym(3): a program that asks the C library for a function that is defined here gets ours.
//!
//! By default, and with a handle of the program, it gets ours anyway, because this library comes first. With
//! a handle of the C library, or of a library that needs it, it would get the C library's function, which
//! does not know our offset. RTLD_NEXT means the libraries after the one that asks. If that library itself
//! defines the function, ours calls it, so it must not get ours.
//!
//! The loader identifies the asking library by the return address. So a question for the loader is answered
//! by a jump to it.

use crate::loader::{SharedObject, c_library, next_definition, object_of, ours};
use libc::{c_char, c_void};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

/// The address found; or, if `jumps`, the function to jump to.
#[repr(C)]
struct Answer {
    address: *mut c_void,
    jumps: usize,
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

unsafe extern "C" fn answer_dlsym(handle: *mut c_void, name: *const c_char, _: usize, from: usize) -> Answer {
    static KEPT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    // SAFETY: the caller's promise.
    unsafe { answer(next_definition(c"dlsym", &KEPT), handle, name, null_mut(), from) }
}

unsafe extern "C" fn answer_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    from: usize,
) -> Answer {
    static KEPT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    // SAFETY: the caller's promise.
    unsafe { answer(next_definition(c"dlvsym", &KEPT), handle, name, version, from) }
}

unsafe fn answer(
    loaders: *mut c_void,
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    from: usize,
) -> Answer {
    let jump = Answer { address: loaders, jumps: 1 };
    // SAFETY: null, or a string.
    let Some(known) = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }) else { return jump };
    let here = ours().and_then(|object| object.function(known));
    let (Some(here), Some(library)) = (here, c_library()) else { return jump };
    let here = Answer { address: std::ptr::with_exposed_provenance_mut(here), jumps: 0 };
    match handle {
        libc::RTLD_DEFAULT => jump,
        libc::RTLD_NEXT => match is_next_of(library, known, from) {
            true => here,
            false => jump,
        },
        _ => {
            // SAFETY: the loader's function has this form, or one argument less.
            let ask: Dlsym = unsafe { std::mem::transmute(loaders) };
            // SAFETY: the caller's promise.
            let address = unsafe { ask(handle, name, version) };
            match object_of(address.addr()).is_some_and(|object| std::ptr::eq(object, library)) {
                true => here,
                false => Answer { address, jumps: 0 },
            }
        }
    }
}

/// Returns true if a library at that address, which does not define this name, would find the C library's
/// function.
fn is_next_of(library: &SharedObject, name: &CStr, from: usize) -> bool {
    let Some(asks) = object_of(from).filter(|object| object.function(name).is_none()) else { return false };
    asks.later()
        .find(|object| object.function(name).is_some())
        .is_some_and(|next| std::ptr::eq(next, library))
}

macro_rules! lookup {
    ($($name:ident, $answer:ident;)*) => {$(
        /// See the module.
        ///
        /// # Safety
        /// As dlsym(3).
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx",
                "mov rcx, [rsp+24]",
                "call {answer}",
                "mov r11, rdx",
                "pop rdx", "pop rsi", "pop rdi",
                "test r11, r11", "jne 2f",
                "ret",
                "2: jmp rax",
                answer = sym $answer,
            )
        }

        /// See the module.
        ///
        /// # Safety
        /// As dlsym(3).
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!", "mov x29, sp",
                "stp x0, x1, [sp, #16]", "str x2, [sp, #32]",
                "mov x3, x30",
                "bl {answer}",
                "mov x16, x0", "mov x17, x1",
                "ldp x0, x1, [sp, #16]", "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                "cbnz x17, 2f",
                "mov x0, x16", "ret",
                "2: br x16",
                answer = sym $answer,
            )
        }
    )*};
}
lookup! {
    dlsym, answer_dlsym;
    dlvsym, answer_dlvsym;
}
