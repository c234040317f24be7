//! Reading and writing.
//!
//! A vector is one call of the engine, through a buffer of ours, so that it is seen whole. What goes to the kernel without an
//! offset of its own goes with ours. Between two descriptors: `copies`.

use super::limits::may_grow_to;
use crate::report::Count;
use crate::table::{Used, using};
use crate::{fault, real};
use heddle_bypass::{Errno, Passed, Served};
use libc::{c_int, c_void, iovec};

/// Most elements of a vector, as the kernel's.
const VECTOR_MAX: usize = 1024;

#[inline]
fn answer(used: Used, what: Count, done: Served<usize>, call: impl FnOnce() -> isize) -> isize {
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
            if why == Passed::KernelOffset {
                // It may wait (a pipe's other end, a lock): not inside.
                drop(used);
                return call();
            }
            used.file().with_kernel_offset(used.fd(), call)
        }
    }
}

#[cold]
fn bad() -> Served<usize> {
    Ok(Err(Errno::FAULT))
}

fn read_here(used: &Used, buf: *mut c_void, len: usize) -> Served<usize> {
    // SAFETY: the caller's promise; a buffer that is not there ends the copy to it (`fault`).
    unsafe { used.file().read(buf.cast(), len) }
}

fn write_here(used: &Used, buf: *const c_void, len: usize) -> Served<usize> {
    if !fault::readable(buf, len) {
        return bad();
    }
    may_grow_to(i64::MAX)?;
    // SAFETY: it was looked at, and is the caller's promise.
    unsafe { used.file().write(used.fd(), buf.cast(), len) }
}

/// Reads into a buffer of a caller.
#[inline]
pub fn read_at(used: &Used, buf: *mut c_void, len: usize, at: i64) -> Served<usize> {
    // SAFETY: the caller's promise; a buffer that is not there ends the copy to it (`fault`).
    unsafe { used.file().read_at(buf.cast(), len, at) }
}

/// Writes from a buffer of a caller.
#[inline]
pub fn write_at(used: &Used, buf: *const c_void, len: usize, at: i64, at_end: bool) -> Served<usize> {
    if !fault::readable(buf, len) {
        return bad();
    }
    may_grow_to(at.saturating_add(len as i64))?;
    // SAFETY: it was looked at, and is the caller's promise.
    unsafe { used.file().write_at(used.fd(), buf.cast(), len, at, at_end) }.map(|done| done.map(|(n, _)| n))
}

/// As read(2).
///
/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::read(fd, buf, len) };
    let Some(used) = using(fd) else { return call() };
    let done = read_here(&used, buf, len);
    answer(used, Count::Read, done, call)
}

/// As write(2).
///
/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::write(fd, buf, len) };
    let Some(used) = using(fd) else { return call() };
    let done = write_here(&used, buf, len);
    answer(used, Count::Write, done, call)
}

macro_rules! positional {
    ($($read:ident, $write:ident;)*) => {$(
        /// As pread(2).
        ///
        /// # Safety
        /// As pread(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $read(fd: c_int, buf: *mut c_void, len: usize, at: i64) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$read(fd, buf, len, at) };
            let Some(used) = using(fd) else { return call() };
            let done = read_at(&used, buf, len, at);
            answer_at(used, Count::Read, done, call)
        }

        /// As pwrite(2).
        ///
        /// # Safety
        /// As pwrite(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $write(fd: c_int, buf: *const c_void, len: usize, at: i64) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$write(fd, buf, len, at) };
            let Some(used) = using(fd) else { return call() };
            let done = write_at(&used, buf, len, at, false);
            answer_at(used, Count::Write, done, call)
        }
    )*};
}

positional! {
    pread, pwrite;
    pread64, pwrite64;
}

/// Calls with an offset of their own go on as they are.
#[inline]
fn answer_at(used: Used, what: Count, done: Served<usize>, call: impl FnOnce() -> isize) -> isize {
    match done {
        Err(why) => {
            used.passed(why);
            drop(used);
            call()
        }
        done => answer(used, what, done, call),
    }
}

/// As read(2) where the compiler knows how large the buffer is.
///
/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, len: usize, room: usize) -> isize {
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
        /// As pread(2) where the compiler knows how large the buffer is.
        ///
        /// # Safety
        /// As pread(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, buf: *mut c_void, len: usize, at: i64, room: usize) -> isize {
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

/// The elements of a vector, and their length in all.
fn elements<'v>(vector: *const iovec, n: c_int) -> Result<(&'v [iovec], usize), Errno> {
    let n = usize::try_from(n).ok().filter(|n| *n <= VECTOR_MAX).ok_or(Errno::INVAL)?;
    if n == 0 {
        return Ok((&[], 0));
    }
    if !fault::readable(vector.cast(), n * size_of::<iovec>()) {
        return Err(Errno::FAULT);
    }
    // SAFETY: it was looked at.
    let parts = unsafe { std::slice::from_raw_parts(vector, n) };
    let sum = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len));
    let sum = sum.filter(|sum| isize::try_from(*sum).is_ok()).ok_or(Errno::INVAL)?;
    Ok((parts, sum))
}

fn read_vector(
    vector: *const iovec,
    n: c_int,
    read: impl FnOnce(*mut c_void, usize) -> Served<usize>,
) -> Served<usize> {
    let (parts, sum) = match elements(vector, n) {
        Ok(found) => found,
        Err(errno) => return Ok(Err(errno)),
    };
    if let [one] = parts {
        return read(one.iov_base, one.iov_len);
    }
    if parts.iter().any(|part| !fault::writable(part.iov_base, part.iov_len)) {
        return bad();
    }
    let mut whole = vec![0_u8; sum.min(1 << 30)];
    let done = read(whole.as_mut_ptr().cast(), whole.len())?;
    if let Ok(n) = done {
        let mut rest = &whole[..n];
        for part in parts {
            let (now, later) = rest.split_at(part.iov_len.min(rest.len()));
            // SAFETY: it was looked at, and has room for this.
            unsafe { std::ptr::copy(now.as_ptr(), part.iov_base.cast(), now.len()) };
            rest = later;
        }
    }
    Ok(done)
}

fn write_vector(
    vector: *const iovec,
    n: c_int,
    write: impl FnOnce(*const c_void, usize) -> Served<usize>,
) -> Served<usize> {
    let (parts, sum) = match elements(vector, n) {
        Ok(found) => found,
        Err(errno) => return Ok(Err(errno)),
    };
    if let [one] = parts {
        return write(one.iov_base, one.iov_len);
    }
    if parts.iter().any(|part| !fault::readable(part.iov_base, part.iov_len)) {
        return bad();
    }
    let mut whole: Vec<u8> = Vec::with_capacity(sum.min(1 << 30));
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        let room = (1 << 30) - whole.len();
        // SAFETY: it was looked at.
        whole.extend_from_slice(unsafe {
            std::slice::from_raw_parts(part.iov_base.cast(), part.iov_len.min(room))
        });
    }
    write(whole.as_ptr().cast(), whole.len())
}

/// As readv(2).
///
/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, n: c_int) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::readv(fd, vector, n) };
    let Some(used) = using(fd) else { return call() };
    let done = read_vector(vector, n, |buf, len| read_here(&used, buf, len));
    answer(used, Count::Read, done, call)
}

/// As writev(2).
///
/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, vector: *const iovec, n: c_int) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::writev(fd, vector, n) };
    let Some(used) = using(fd) else { return call() };
    let done = write_vector(vector, n, |buf, len| write_here(&used, buf, len));
    answer(used, Count::Write, done, call)
}

macro_rules! vectors_at {
    ($($read:ident, $write:ident;)*) => {$(
        /// As preadv(2).
        ///
        /// # Safety
        /// As preadv(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $read(fd: c_int, vector: *const iovec, n: c_int, at: i64) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$read(fd, vector, n, at) };
            let Some(used) = using(fd) else { return call() };
            let done = read_vector(vector, n, |buf, len| read_at(&used, buf, len, at));
            answer_at(used, Count::Read, done, call)
        }

        /// As pwritev(2).
        ///
        /// # Safety
        /// As pwritev(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $write(fd: c_int, vector: *const iovec, n: c_int, at: i64) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$write(fd, vector, n, at) };
            let Some(used) = using(fd) else { return call() };
            let done = write_vector(vector, n, |buf, len| write_at(&used, buf, len, at, false));
            answer_at(used, Count::Write, done, call)
        }
    )*};
}
vectors_at! {
    preadv, pwritev;
    preadv64, pwritev64;
}

/// Flags of pwritev2 that change nothing here: everything is durable when it returns, and nothing is polled for.
const FREE_FLAGS: c_int = libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_HIPRI;

macro_rules! vectors_with_flags {
    ($($read:ident, $write:ident;)*) => {$(
        /// As preadv2(2); offset -1 means the present one.
        ///
        /// # Safety
        /// As preadv2(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $read(fd: c_int, vector: *const iovec, n: c_int, at: i64, flags: c_int) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$read(fd, vector, n, at, flags) };
            let Some(used) = using(fd) else { return call() };
            let done = match flags & !FREE_FLAGS {
                0 if at == -1 => read_vector(vector, n, |buf, len| read_here(&used, buf, len)),
                0 => read_vector(vector, n, |buf, len| read_at(&used, buf, len, at)),
                _ => Err(Passed::Unserved),
            };
            if at == -1 { answer(used, Count::Read, done, call) } else { answer_at(used, Count::Read, done, call) }
        }

        /// As pwritev2(2); offset -1 means the present one, `RWF_APPEND` the end.
        ///
        /// # Safety
        /// As pwritev2(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $write(fd: c_int, vector: *const iovec, n: c_int, at: i64, flags: c_int) -> isize {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$write(fd, vector, n, at, flags) };
            let Some(used) = using(fd) else { return call() };
            let done = match flags & !FREE_FLAGS {
                0 if at == -1 => write_vector(vector, n, |buf, len| write_here(&used, buf, len)),
                0 => write_vector(vector, n, |buf, len| write_at(&used, buf, len, at, false)),
                libc::RWF_APPEND if at >= 0 => write_vector(vector, n, |buf, len| write_at(&used, buf, len, at, true)),
                _ => Err(Passed::Unserved),
            };
            if at == -1 { answer(used, Count::Write, done, call) } else { answer_at(used, Count::Write, done, call) }
        }
    )*};
}
vectors_with_flags! {
    preadv2, pwritev2;
    preadv64v2, pwritev64v2;
}
