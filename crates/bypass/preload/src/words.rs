//! The address of the calling thread's words.
//!
//! A shared library reaches its thread-local memory by a call (`__tls_get_addr`), several times in each
//! served call, each some nanoseconds: more than a tenth of a small read. A library that is loaded at program
//! start, as a preloaded one always is, can use a fixed distance from the thread pointer instead ("initial
//! exec"): two instructions. Stable Rust cannot express that, hence the assembly. The memory itself, zeros
//! for each new thread, is provided by the loader as usual. (If the library is loaded later, by dlopen(3), it
//! takes these bytes from the C library's reserve for such cases, or is refused.) Such a call may also allocate, after the program has
//! loaded other libraries: so all that a signal handler needs lies here. On other processors the
//! language's own access is fast enough (aarch64 needs no such call if the loader knew the library at the
//! start).

#[cfg(not(target_arch = "x86_64"))]
use std::cell::Cell;

/// Bytes of a line: the words of `thread`, at the start.
pub const LINE: usize = 64;
/// Where those of `handlers` lie, and how many bytes they have.
pub const HANDLERS: (usize, usize) = (LINE, 128);
/// Those of `waiting_signals`.
pub const SIGNALS: (usize, usize) = (LINE + 128, 320);
/// Bytes of a thread's words.
const BYTES: usize = SIGNALS.0 + SIGNALS.1;

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss.heddle_here,\"awT\",@nobits",
    ".hidden heddle_here", ".globl heddle_here", ".type heddle_here,@object",
    ".balign {align}",
    "heddle_here: .zero {size}",
    ".size heddle_here, {size}",
    ".popsection",
    align = const LINE,
    size = const BYTES,
);

/// See the module.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn of_this_thread() -> *const u8 {
    let at: *const u8;
    // SAFETY: reads a value that the loader has fixed, and the thread pointer, which the System V ABI keeps
    // at the start of its segment; both stay the same as long as the thread lives.
    unsafe {
        std::arch::asm!(
            "mov {at}, qword ptr [rip + heddle_here@GOTTPOFF]",
            "add {at}, qword ptr fs:[0]",
            at = out(reg) at,
            options(pure, nomem, nostack),
        );
    }
    at
}

/// See the module.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn of_this_thread() -> *const u8 {
    #[repr(align(64))]
    struct Words([Cell<u64>; BYTES / 8]);
    thread_local! {
        static HERE: Words = const { Words([const { Cell::new(0) }; BYTES / 8]) };
    }
    // It has no destructor, so it lives as long as the thread.
    HERE.with(|words| words.0.as_ptr().cast())
}
