//! Reading and writing.
//!
//! A vector is one call of the engine, through a buffer of our own, so that it is seen as a whole. A call
//! that the kernel makes without an offset argument gets our offset. Calls between two descriptors are in
//! `copies`.

use super::cancel::point;
use super::limits::may_grow_to;
use crate::counts::Count;
use crate::table::{Used, holding, passing, passing_data_at, using};
use crate::{fault, real};
use heddle_bypass::planted::{Bug, planted};
use heddle_bypass::{BadBuffer, KernelStat, Number, Passed, Served, read_vector, with_vector_buffer};
use libc::{c_int, c_void, iovec};

/// `again` repeats the whole call, for a number that means another file by now.
#[inline]
fn answer(
    used: Used,
    what: Count,
    done: Served<usize>,
    call: impl Fn() -> isize,
    again: impl FnOnce() -> isize,
) -> isize {
    match done {
        Ok(Ok(n)) => {
            used.served(what, n);
            n as isize
        }
        Ok(Err(errno)) => {
            drop(used);
            real::set_errno(errno.raw_os_error());
            -1
        }
        Err(why) => {
            used.passed(why);
            let kernels = why == Passed::KernelOffset && used.file().offset_is_the_kernels();
            // No thread closes the number meanwhile: otherwise the call would use the kernel's offset of the
            // next file with that number.
            let done = match kernels {
                true => (&used).while_ours(|_| call()),
                false => used.file().with_kernel_offset(&used, call),
            };
            drop(used);
            done.unwrap_or_else(again)
        }
    }
}

/// The buffer is not mapped, or only in part: the kernel decides how much of it counts.
#[cold]
fn bad<T>(BadBuffer: BadBuffer) -> Result<T, Passed> {
    Err(Passed::Unserved)
}

fn read_here(used: &Used, buf: *mut c_void, len: usize) -> Served<usize> {
    // SAFETY: the caller's promise; a buffer that is not mapped ends the copy to it (`fault`).
    unsafe { used.file().read(used, buf.cast(), len) }
}

fn write_here(used: &Used, buf: *const c_void, len: usize, at_end: bool) -> Served<usize> {
    if !fault::readable(buf, len) {
        return bad(BadBuffer);
    }
    may_grow_to(|| i64::MAX)?;
    // SAFETY: the caller's promise; a buffer that is not mapped ends the copy from it (`fault`).
    unsafe { used.file().write(used, buf.cast(), len, at_end) }
}

/// Reads into a caller's buffer.
#[inline]
pub fn read_at(used: &Used, buf: *mut c_void, len: usize, at: i64) -> Served<usize> {
    // SAFETY: the caller's promise; a buffer that is not mapped ends the copy to it (`fault`).
    unsafe { used.file().read_at(used, buf.cast(), len, at) }
}

/// Writes from a caller's buffer.
#[inline]
pub fn write_at(used: &Used, buf: *const c_void, len: usize, at: i64, at_end: bool) -> Served<usize> {
    if !fault::readable(buf, len) {
        return bad(BadBuffer);
    }
    may_grow_to(|| match at_end || used.file().appends(used) {
        true => i64::MAX,
        false => i64::try_from(len).map_or(i64::MAX, |len| at.saturating_add(len)),
    })?;
    // SAFETY: the caller's promise; a buffer that is not mapped ends the copy from it (`fault`).
    unsafe { used.file().write_at(used, buf.cast(), len, at, at_end) }.map(|done| done.map(|(n, _)| n))
}

/// As read(2).
///
/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::read(fd, buf, len) };
    point();
    let Some(used) = using(fd) else { return passing(fd, call) };
    let done = read_here(&used, buf, len);
    // SAFETY: the caller's promise.
    answer(used, Count::Read, done, call, || unsafe { read(fd, buf, len) })
}

/// As write(2).
///
/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::write(fd, buf, len) };
    point();
    let Some(used) = using(fd) else { return passing(fd, call) };
    let done = write_here(&used, buf, len, false);
    // SAFETY: the caller's promise.
    answer(used, Count::Write, done, call, || unsafe { write(fd, buf, len) })
}

/// Passes on a write with an offset argument.
#[inline]
fn passing_write_at(fd: c_int, call: impl FnOnce() -> isize) -> isize {
    passing_data_at(fd, || {
        before_kernel_write_at(fd);
        call()
    })
}

/// If the file appends, the kernel checks limits against the size that it has cached.
pub fn before_kernel_write_at(fd: c_int) {
    if let Some(used) = holding(fd)
        && used.file().appends(&used)
    {
        KernelStat::refresh(used.fd());
    }
}

macro_rules! positional {
    ($($read:ident, $write:ident;)*) => {$(
        /// As pread(2).
        ///
        /// # Safety
        /// As pread(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $read(fd: c_int, buf: *mut c_void, len: usize, at: i64) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$read(fd, buf, len, at) };
            point();
    let Some(used) = using(fd) else { return passing_data_at(fd, call) };
            let done = read_at(&used, buf, len, at);
            answer_at(used, Count::Read, done, call)
        }

        /// As pwrite(2).
        ///
        /// # Safety
        /// As pwrite(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $write(fd: c_int, buf: *const c_void, len: usize, at: i64) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$write(fd, buf, len, at) };
            point();
    let Some(used) = using(fd) else { return passing_write_at(fd, call) };
            let done = write_at(&used, buf, len, at, false);
            answer_at(used, Count::Write, done, call)
        }
    )*};
}

positional! {
    pread, pwrite;
    pread64, pwrite64;
}

/// Calls with an offset argument are passed on unchanged.
#[inline]
fn answer_at(used: Used, what: Count, done: Served<usize>, call: impl Fn() -> isize) -> isize {
    match done {
        Err(why) => {
            used.passed(why);
            if what == Count::Write && used.file().appends(&used) {
                // The kernel checks limits against the size that it has cached.
                KernelStat::refresh(used.fd());
            }
            drop(used);
            call()
        }
        done => answer(used, what, done, &call, &call),
    }
}

/// As read(2), for calls where the compiler knows the buffer's size.
///
/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(fd: c_int, buf: *mut c_void, len: usize, room: usize) -> isize {
    if len > room {
        // It ends the program, with a message.
        // SAFETY: the caller's promise.
        return unsafe { real::__read_chk(fd, buf, len, room) };
    }
    // SAFETY: the caller's promise.
    unsafe { read(fd, buf, len) }
}

macro_rules! checked {
    ($($name:ident, $plain:ident;)*) => {$(
        /// As pread(2), for calls where the compiler knows the buffer's size.
        ///
        /// # Safety
        /// As pread(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, buf: *mut c_void, len: usize, at: i64, room: usize) -> isize {
            if len > room {
                // SAFETY: the caller's promise.
                return unsafe { real::$name(fd, buf, len, at, room) };
            }
            // SAFETY: the caller's promise.
            unsafe { $plain(fd, buf, len, at) }
        }
    )*};
}
checked! {
    __pread_chk, pread;
    __pread64_chk, pread64;
}

fn read_vector_here(used: &Used, vector: *const iovec, n: c_int) -> Served<usize> {
    with_vector_buffer(vector, n, |buffer| {
        used.file().read_with(used, |at| buffer.fill(|buf, len| read_at(used, buf, len, at)))
    })
}

fn write_vector(
    vector: *const iovec,
    n: c_int,
    write: impl FnOnce(*const c_void, usize) -> Served<usize>,
) -> Served<usize> {
    heddle_bypass::write_vector(vector, n, |part| fault::readable(part.iov_base, part.iov_len), write)
}

/// As readv(2).
///
/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, vector: *const iovec, n: c_int) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::readv(fd, vector, n) };
    point();
    let Some(used) = using(fd) else { return passing(fd, call) };
    let done = read_vector_here(&used, vector, n);
    // SAFETY: the caller's promise.
    answer(used, Count::Read, done, call, || unsafe { readv(fd, vector, n) })
}

/// As writev(2).
///
/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, vector: *const iovec, n: c_int) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::writev(fd, vector, n) };
    point();
    let Some(used) = using(fd) else { return passing(fd, call) };
    let done = write_vector(vector, n, |buf, len| write_here(&used, buf, len, false));
    // SAFETY: the caller's promise.
    answer(used, Count::Write, done, call, || unsafe { writev(fd, vector, n) })
}

macro_rules! vectors_at {
    ($($read:ident, $write:ident;)*) => {$(
        /// As preadv(2).
        ///
        /// # Safety
        /// As preadv(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $read(fd: c_int, vector: *const iovec, n: c_int, at: i64) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$read(fd, vector, n, at) };
            point();
    let Some(used) = using(fd) else { return passing_data_at(fd, call) };
            let done = read_vector(vector, n, |buf, len| read_at(&used, buf, len, at));
            answer_at(used, Count::Read, done, call)
        }

        /// As pwritev(2).
        ///
        /// # Safety
        /// As pwritev(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $write(fd: c_int, vector: *const iovec, n: c_int, at: i64) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$write(fd, vector, n, at) };
            point();
    let Some(used) = using(fd) else { return passing_write_at(fd, call) };
            let done = write_vector(vector, n, |buf, len| write_at(&used, buf, len, at, false));
            answer_at(used, Count::Write, done, call)
        }
    )*};
}
vectors_at! {
    preadv, pwritev;
    preadv64, pwritev64;
}

/// Flags of pwritev2 without effect here: every write is durable when it returns, and there is no polling.
const FREE_FLAGS: c_int = libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_HIPRI;

/// `RWF_NOAPPEND` (Linux 6.9) on an appending descriptor. The kernel's FUSE does not pass the flag on, so the
/// mount would append. So it is refused, as by an older kernel, even while the file is not mapped and the
/// engine could do it.
const NO_APPEND: c_int = 0x20;

fn is_refused(used: &Used, flags: c_int) -> bool {
    flags & (NO_APPEND | libc::RWF_APPEND) == NO_APPEND && used.file().appends(used)
}

macro_rules! vectors_with_flags {
    ($($read:ident, $write:ident;)*) => {$(
        /// As preadv2(2); offset -1 means the present one.
        ///
        /// # Safety
        /// As preadv2(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $read(fd: c_int, vector: *const iovec, n: c_int, at: i64, flags: c_int) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$read(fd, vector, n, at, flags) };
            point();
            let Some(used) = using(fd) else {
                if flags & libc::RWF_APPEND != 0 {
                    // As below.
                    super::copies::refresh_kernel_size(fd);
                }
                return if at == -1 { passing(fd, call) } else { passing_data_at(fd, call) };
            };
            let done = match flags & !FREE_FLAGS {
                0 if at == -1 => read_vector_here(&used, vector, n),
                0 => read_vector(vector, n, |buf, len| read_at(&used, buf, len, at)),
                _ => Err(Passed::Unserved),
            };
            if at != -1 {
                return answer_at(used, Count::Read, done, call);
            }
            // SAFETY: the caller's promise.
            answer(used, Count::Read, done, call, || unsafe { $read(fd, vector, n, at, flags) })
        }

        /// As pwritev2(2); offset -1 means the present one, `RWF_APPEND` the end.
        ///
        /// # Safety
        /// As pwritev2(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $write(fd: c_int, vector: *const iovec, n: c_int, at: i64, flags: c_int) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$write(fd, vector, n, at, flags) };
            if at == -1 && flags & libc::RWF_APPEND != 0 && planted(Bug::AppendsAtOldEnd) {
                return call();
            }
            point();
            let Some(used) = using(fd) else {
                if flags & libc::RWF_APPEND != 0 {
                    // As below.
                    super::copies::refresh_kernel_size(fd);
                }
                return if at == -1 { passing(fd, call) } else { passing_write_at(fd, call) };
            };
            if is_refused(&used, flags) {
                drop(used);
                real::set_errno(libc::EOPNOTSUPP);
                return -1;
            }
            let done = match flags & !FREE_FLAGS {
                0 if at == -1 => write_vector(vector, n, |buf, len| write_here(&used, buf, len, false)),
                0 => write_vector(vector, n, |buf, len| write_at(&used, buf, len, at, false)),
                libc::RWF_APPEND if at == -1 => write_vector(vector, n, |buf, len| write_here(&used, buf, len, true)),
                libc::RWF_APPEND if at >= 0 => write_vector(vector, n, |buf, len| write_at(&used, buf, len, at, true)),
                _ => Err(Passed::Unserved),
            };
            if done.is_err() && flags & libc::RWF_APPEND != 0 {
                // The kernel appends at the end that it has cached.
                KernelStat::refresh(used.fd());
            }
            if at != -1 {
                return answer_at(used, Count::Write, done, call);
            }
            // SAFETY: the caller's promise.
            answer(used, Count::Write, done, call, || unsafe { $write(fd, vector, n, at, flags) })
        }
    )*};
}
vectors_with_flags! {
    preadv2, pwritev2;
    preadv64v2, pwritev64v2;
}
