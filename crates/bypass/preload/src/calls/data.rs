//! Reading and writing.
//!
//! A vector is one call of the engine, through a buffer of our own, so that it is seen as a whole. A call
//! that the kernel makes without an offset argument gets our offset. Calls between two descriptors are in
//! `copies`.

use super::cancel::point;
use super::limits::may_grow_to;
use crate::counts::Count;
use crate::table::{Used, passing, passing_data_at, using};
use crate::{fault, real};
use heddle_bypass::planted::{Bug, planted};
use heddle_bypass::{BadBuffer, KernelStat, Number, Passed, Served, copy_of_callers, may_be_there};
use libc::{c_int, c_void, iovec};
use std::ptr::null_mut;

/// Most elements of a vector, as the kernel's.
const VECTOR_MAX: usize = 1024;
/// Most bytes of a vector that are moved at once, as the kernel's. They go through our own memory.
const VECTOR_BYTES_MAX: usize = 0x7fff_f000;

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
            let kernels = why == Passed::KernelOffset && !used.file().offset_may_come_back();
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
    unsafe { used.file().read_at(buf.cast(), len, at) }
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
    let Some(used) = using(fd) else { return passing_data_at(fd, call) };
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

/// If there is no memory for a buffer, the kernel makes the call.
fn room_for(whole: &mut Vec<u8>, sum: usize) -> Result<(), Passed> {
    whole.try_reserve_exact(sum.min(VECTOR_BYTES_MAX)).map_err(|_| Passed::Unserved)
}

/// A buffer of zeros. For a long one the kernel provides only the pages that are written: a vector may be far
/// longer than the file.
fn zeros(len: usize) -> Result<Vec<u8>, Passed> {
    let layout = std::alloc::Layout::array::<u8>(len.max(1)).map_err(|_| Passed::Unserved)?;
    // SAFETY: a layout of at least one byte.
    let first = unsafe { std::alloc::alloc_zeroed(layout) };
    if first.is_null() {
        return Err(Passed::Unserved);
    }
    // SAFETY: of the global allocator, of this layout, and all of it is written: zeros.
    Ok(unsafe { Vec::from_raw_parts(first, len, layout.size()) })
}

/// A vector with at most so many elements needs no memory from the heap, as in the kernel.
const FEW: usize = 8;

/// Serves a call with a copy of its vector, because another thread may change the vector meanwhile; also
/// passes the total length. An invalid vector is the kernel's to refuse.
fn with_elements(
    vector: *const iovec,
    n: c_int,
    serve: impl FnOnce(&[iovec], usize) -> Served<usize>,
) -> Served<usize> {
    let n = usize::try_from(n).ok().filter(|n| *n <= VECTOR_MAX).ok_or(Passed::Unserved)?;
    let none = iovec { iov_base: null_mut(), iov_len: 0 };
    let (mut few, mut many) = ([none; FEW], Vec::new());
    let parts = match few.get_mut(..n) {
        Some(few) => few,
        None => {
            many.try_reserve_exact(n).map_err(|_| Passed::Unserved)?;
            many.resize(n, none);
            &mut many[..]
        }
    };
    // SAFETY: the target has room; a vector that is not mapped ends the copy (`fault`).
    unsafe { copy_of_callers(parts.as_mut_ptr().cast(), vector.cast(), size_of_val(parts)) }.or_else(bad)?;
    if !parts.iter().all(|part| may_be_there(part.iov_base.addr(), part.iov_len)) {
        return Err(Passed::Unserved);
    }
    let sum = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len));
    let sum = sum.filter(|sum| isize::try_from(*sum).is_ok()).ok_or(Passed::Unserved)?;
    serve(parts, sum)
}

/// If a read meets a buffer that is not mapped, the offset has not moved: the kernel repeats the read.
fn read_vector(
    vector: *const iovec,
    n: c_int,
    read: impl FnOnce(*mut c_void, usize) -> Served<usize>,
) -> Served<usize> {
    with_elements(vector, n, |parts, sum| {
        if let [one] = parts {
            return read(one.iov_base, one.iov_len);
        }
        let mut whole = zeros(sum.min(VECTOR_BYTES_MAX))?;
        let done = read(whole.as_mut_ptr().cast(), whole.len())?;
        if let Ok(n) = done {
            let mut rest = &whole[..n];
            for part in parts {
                let (now, later) = rest.split_at(part.iov_len.min(rest.len()));
                // SAFETY: the caller's promise; a buffer that is not mapped ends the copy to it (`fault`).
                unsafe { copy_of_callers(part.iov_base.cast(), now.as_ptr(), now.len()) }.or_else(bad)?;
                rest = later;
            }
        }
        Ok(done)
    })
}

fn read_vector_here(used: &Used, vector: *const iovec, n: c_int) -> Served<usize> {
    used.file().read_with(used, |at| read_vector(vector, n, |buf, len| read_at(used, buf, len, at)))
}

fn write_vector(
    vector: *const iovec,
    n: c_int,
    write: impl FnOnce(*const c_void, usize) -> Served<usize>,
) -> Served<usize> {
    with_elements(vector, n, |parts, sum| {
        if let [one] = parts {
            return write(one.iov_base, one.iov_len);
        }
        if parts.iter().any(|part| !fault::readable(part.iov_base, part.iov_len)) {
            return bad(BadBuffer);
        }
        let mut whole: Vec<u8> = Vec::new();
        room_for(&mut whole, sum)?;
        for part in parts {
            let (len, room) = (whole.len(), whole.spare_capacity_mut());
            let now = part.iov_len.min(VECTOR_BYTES_MAX - len).min(room.len());
            // SAFETY: the target has room; a buffer that is not mapped ends the copy (`fault`).
            unsafe { copy_of_callers(room.as_mut_ptr().cast(), part.iov_base.cast(), now) }.or_else(bad)?;
            // SAFETY: they were just copied there.
            unsafe { whole.set_len(len + now) };
        }
        write(whole.as_ptr().cast(), whole.len())
    })
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
    let Some(used) = using(fd) else { return passing_data_at(fd, call) };
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
                return if at == -1 { passing(fd, call) } else { passing_data_at(fd, call) };
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
