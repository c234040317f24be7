//! Calls on a descriptor's attributes: sizes, times, offsets.

use super::cancel::point;
use super::copies::refresh_kernel_size;
use super::limits::may_grow_to;
use crate::counts::Count;
use crate::real;
use crate::table::{Used, is_ours, passing, passing_at, using};
use crate::undelayed::has_interrupted_a_call_on;
use heddle_bypass::{Errno, Passed, RangeOp, Served};
use libc::{c_int, stat};

/// Serves a call on a file of ours. Calls that cannot be served, or are on another file, go to `call`.
fn served<T>(
    fd: c_int,
    what: Count,
    serve: impl FnOnce(&Used) -> Served<T>,
    answer: impl FnOnce(Result<T, Errno>) -> c_int,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Some(used) = using(fd) else {
        if what == Count::Resize && has_interrupted_a_call_on(fd) {
            return answer(Err(Errno::DEADLK));
        }
        return passing_at(fd, || {
            if what == Count::Resize && is_ours(fd) {
                refresh_kernel_size(fd);
            }
            call()
        });
    };
    match serve(&used) {
        Ok(done) => {
            used.served(what, 0);
            drop(used);
            answer(done)
        }
        Err(why) => {
            used.passed(why);
            drop(used);
            if what == Count::Resize {
                // The kernel checks limits against the size that it has cached.
                refresh_kernel_size(fd);
            }
            call()
        }
    }
}

fn zero_or_errno<T>(done: Result<T, Errno>) -> c_int {
    match done {
        Ok(_) => 0,
        Err(errno) => {
            real::set_errno(errno.raw_os_error());
            -1
        }
    }
}

macro_rules! same {
    ([$($name:ident)+] $args:tt $body:tt) => {$(
        same! { one $name $args $body }
    )+};
    (one $name:ident ($($arg:ident: $type:ty),*) { $body:expr }) => {
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$name($($arg),*) };
            #[allow(clippy::redundant_closure_call)]
            ($body)(call)
        }
    };
}
pub(super) use same;

/// As lseek(2).
fn seek(fd: c_int, at: i64, whence: c_int, call: &dyn Fn() -> i64) -> i64 {
    let Some(used) = using(fd) else { return passing(fd, call) };
    match used.file().seek(&used, at, whence) {
        Ok(Ok(to)) => {
            used.served(Count::Seek, 0);
            to as i64
        }
        Ok(Err(errno)) => {
            drop(used);
            real::set_errno(errno.raw_os_error());
            -1
        }
        Err(why) => {
            used.passed(why);
            // If the engine cannot tell where data is, the kernel can, with our offset.
            let done = used.file().with_kernel_offset(&used, call);
            drop(used);
            done.unwrap_or_else(|| seek(fd, at, whence, call))
        }
    }
}

macro_rules! seeking {
    ($($name:ident),*) => {$(
        /// As lseek(2).
        ///
        /// # Safety
        /// As lseek(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, at: i64, whence: c_int) -> i64 {
            // SAFETY: the caller's promise.
            seek(fd, at, whence, &|| unsafe { real::$name(fd, at, whence) })
        }
    )*};
}
seeking!(lseek, lseek64);

// As fsync(2).
same! {
    [fsync] (fd: c_int) {
        |call: _| {
            point();
            served(fd, Count::Sync, |used| used.file().sync(false), zero_or_errno, call)
        }
    }
}
// As fdatasync(2).
same! {
    [fdatasync] (fd: c_int) {
        |call: _| {
            point();
            served(fd, Count::Sync, |used| used.file().sync(true), zero_or_errno, call)
        }
    }
}
/// All flags of sync_file_range(2).
const RANGE_FLAGS: u32 =
    libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;

/// Returns true if the range ends at an offset that a file may have.
fn is_range(at: i64, len: i64) -> bool {
    at >= 0 && len >= 0 && at.checked_add(len).is_some()
}

// As sync_file_range(2): every write is durable already.
same! {
    [sync_file_range] (fd: c_int, at: i64, len: i64, flags: u32) {
        |call: _| {
            let is_valid = is_range(at, len) && flags & !RANGE_FLAGS == 0;
            let sync = |used: &Used| if is_valid { used.file().sync(true) } else { Err(Passed::Unserved) };
            served(fd, Count::Sync, sync, zero_or_errno, call)
        }
    }
}
/// As readahead(2): we have no page cache to fill. The kernel would fill its own, and then its cached pages
/// would end our service of the file.
///
/// # Safety
/// As readahead(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readahead(fd: c_int, at: i64, len: usize) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::readahead(fd, at, len) as c_int };
    let advise = |used: &Used| match i64::try_from(len) {
        Ok(len) if used.file().may_read() && is_range(at, len) => used.file().unmapped(),
        _ => Err(Passed::Unserved),
    };
    served(fd, Count::Advise, advise, zero_or_errno, call) as isize
}

// As posix_fadvise(2), which returns the error and does not set errno; for the same reason.
same! {
    [posix_fadvise posix_fadvise64] (fd: c_int, at: i64, len: i64, advice: c_int) {
        |call: _| served(fd, Count::Advise, |used| advise(used, len, advice), |done| done.err().map_or(0, Errno::raw_os_error), call)
    }
}

fn advise(used: &Used, len: i64, advice: c_int) -> Served<()> {
    if len < 0 || !(libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice) {
        return Ok(Err(Errno::INVAL));
    }
    used.file().unmapped()
}

// As ftruncate(2).
same! {
    [ftruncate ftruncate64] (fd: c_int, len: i64) {
        |call: _| served(fd, Count::Resize, |used| may_grow_to(|| len).and_then(|()| used.file().truncate(used.fd(), len)),
            zero_or_errno, call)
    }
}
// As fallocate(2).
same! {
    [fallocate fallocate64] (fd: c_int, mode: c_int, at: i64, len: i64) {
        |call: _| served(fd, Count::Resize, |used| allocate(used, mode, at, len), zero_or_errno, call)
    }
}
// As posix_fallocate(3), which returns the error and does not set errno.
same! {
    [posix_fallocate posix_fallocate64] (fd: c_int, at: i64, len: i64) {
        |call: _| served(fd, Count::Resize, |used| allocate(used, 0, at, len),
            |done| done.err().map_or(0, Errno::raw_os_error), call)
    }
}

fn allocate(used: &Used, mode: c_int, at: i64, len: i64) -> Served<()> {
    const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: c_int = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    let op = match mode {
        0 => RangeOp::Allocate { keep_size: false },
        libc::FALLOC_FL_KEEP_SIZE => RangeOp::Allocate { keep_size: true },
        PUNCH => RangeOp::Punch,
        libc::FALLOC_FL_ZERO_RANGE => RangeOp::Zero { keep_size: false },
        ZERO_KEEP => RangeOp::Zero { keep_size: true },
        // Including collapse and insert: the kernel's FUSE refuses them, and must be asked while the file is
        // mapped.
        _ => return Err(Passed::Unserved),
    };
    may_grow_to(|| at.saturating_add(len))?;
    used.file().allocate(used.fd(), op, at, len)
}

// As fstat(2).
same! {
    [fstat fstat64] (fd: c_int, into: *mut stat) {
        |call: _| stat_into(fd, into, call)
    }
}
// As fstat(2), by its name in older C libraries.
same! {
    [__fxstat __fxstat64] (version: c_int, fd: c_int, into: *mut stat) {
        |call: _| stat_into(fd, into, call)
    }
}

fn stat_into(fd: c_int, into: *mut stat, call: impl FnOnce() -> c_int) -> c_int {
    let look = |used: &Used| used.file().stat(used.fd());
    let put = |told| if crate::fault::store(into, told) { Ok(()) } else { Err(Errno::FAULT) };
    let give = |done: Result<stat, Errno>| zero_or_errno(done.and_then(put));
    served(fd, Count::Stat, look, give, call)
}
