//! What a watched program says to the plug-in: calls to the system that no kernel knows.
//!
//! A system call is the one thing that QEMU shows its plug-ins with arguments; on a real machine it does nothing but fail. What is
//! larger than an argument is passed by address: a 64-bit program lies in QEMU's memory at its own addresses, which [`hello`] checks.

use std::ffi::c_long;

/// The system call: "HDL".
pub(crate) const CALL: i64 = 0x48_44_4C;
/// What [`hello`] finds in its word, and leaves in it for the plug-in to find.
pub(crate) const QUESTION: u64 = 0x6865_6464_6c65_0d0a;
pub(crate) const ANSWER: u64 = 0x6865_6464_6c65_0d0b;

pub(crate) const HELLO: u64 = 1;
pub(crate) const BEGIN: u64 = 2;
pub(crate) const END: u64 = 3;
pub(crate) const SAY: u64 = 4;

/// A use of memory, by address.
#[repr(C)]
pub(crate) struct Said {
    pub address: u64,
    pub bytes: u64,
    pub element_bytes: u64,
    pub what: *const u8,
    pub what_len: u64,
    pub file: *const u8,
    pub file_len: u64,
    pub line: u64,
    pub background: u64,
}

/// What is said of memory with [`say`].
#[derive(Clone, Copy, Debug)]
pub struct Use<'a> {
    /// Address of the first byte.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Bytes of one of the equal things in it.
    pub element_bytes: usize,
    /// The type of such a thing, or what it is in words; empty: nothing in particular any more.
    pub what: &'a str,
    /// Source file and line of the code that says so.
    pub site: (&'a str, u32),
    /// It lies under other things, which are said of single parts.
    pub background: bool,
}

fn call(what: u64, one: u64, two: u64) {
    // SAFETY: a number that no kernel has; arguments are read by the plug-in alone, as `hello` and `say` mean them.
    unsafe { libc::syscall(CALL as c_long, what, one, two) };
}

/// Is the plug-in there? To be asked first; `base` is where the program lies in memory ([`program_base`]).
pub fn hello(base: usize) -> bool {
    let mut word = QUESTION;
    call(HELLO, &raw mut word as u64, base as u64);
    // SAFETY: a live local; volatile because the plug-in answers behind the compiler's back.
    unsafe { (&raw const word).read_volatile() == ANSWER }
}

/// Where the linker's address 0 is in memory.
pub fn program_base() -> usize {
    unsafe extern "C" {
        static __ehdr_start: u8;
    }
    &raw const __ehdr_start as usize
}

/// The calling thread works as this worker from here on; `counted`: the warm-up is over.
#[inline]
pub fn begin(worker: usize, counted: bool) {
    call(BEGIN, worker as u64, u64::from(counted));
}

/// Its turn ends.
#[inline]
pub fn end() {
    call(END, 0, 0);
}

/// Memory is put to a use.
pub fn say(told: &Use<'_>) {
    let said = Said {
        address: told.address as u64,
        bytes: told.bytes as u64,
        element_bytes: told.element_bytes as u64,
        what: told.what.as_ptr(),
        what_len: told.what.len() as u64,
        file: told.site.0.as_ptr(),
        file_len: told.site.0.len() as u64,
        line: u64::from(told.site.1),
        background: u64::from(told.background),
    };
    call(SAY, &raw const said as u64, 0);
}
