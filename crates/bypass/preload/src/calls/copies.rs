//! Mappings, and calls that move data between two descriptors.
//!
//! copy_file_range(2) between two heddle files goes to the engine, piece by piece through a buffer. Between a
//! heddle file and a file of another file system it goes to the kernel, which has our offset for the length
//! of the call. The kernel mostly refuses; the program then falls back to reads and writes, and those are
//! served.

use super::data;
use super::descriptor_numbers::holding_on;
use super::limits::may_grow_to;
use crate::counts::Count;
use crate::table::{Used, holding, is_of_an_engine, is_ours, using};
use crate::thread::this_thread;
use crate::undelayed::{failing, refused};
use crate::{fault, real};
use heddle_bypass::{Errno, File, KernelStat, Served};
use libc::{c_int, c_void};
use rustix::fd::BorrowedFd;

/// Refreshes the file size that the kernel knows, before a call that needs it.
pub fn refresh_kernel_size(fd: c_int) {
    let errno = real::errno();
    if let Some(used) = holding(fd) {
        KernelStat::refresh(used.fd());
    } else if let Some(unknown) = of_an_engine(fd) {
        KernelStat::refresh(unknown);
    }
    real::set_errno(errno);
}

/// A descriptor of a mount whose number the table does not have.
fn of_an_engine(fd: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY: open, if the program's own calls are in order; otherwise the kernel returns EBADF.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) }).filter(|fd| is_of_an_engine(*fd))
}

/// Makes a call that maps a file. On a descriptor of a dead mount, in whose place another daemon serves, nobody else would see stores to a
/// shared mapping: it fails.
pub fn mapping<T: Copy + PartialEq>(fd: c_int, flags: c_int, failed: T, call: impl FnOnce() -> T) -> T {
    let call = || {
        before_mapping(fd);
        call()
    };
    if flags & libc::MAP_TYPE == libc::MAP_PRIVATE { call() } else { holding_on(fd, failed, call) }
}

/// Refreshes the file size that the kernel knows, before it maps the file. The kernel keeps that size.
fn before_mapping(fd: c_int) {
    let errno = real::errno();
    let maps = |fd| {
        KernelStat::maps(fd);
        KernelStat::refresh_for_mapping(fd);
    };
    if let Some(used) = holding(fd) {
        maps(used.fd());
    } else if let Some(unknown) = of_an_engine(fd) {
        maps(unknown);
    }
    real::set_errno(errno);
}

macro_rules! mappings {
    ($($name:ident),*) => {$(
        /// As mmap(2). The file's pages are the kernel's from then on, and so are all calls on it (`heddle_bypass`).
        ///
        /// # Safety
        /// As mmap(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            at: *mut c_void,
            len: usize,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            from: i64,
        ) -> *mut c_void {
            // SAFETY: the caller's promise.
            let call = || unsafe { real::$name(at, len, protection, flags, fd, from) };
            if flags & libc::MAP_ANONYMOUS != 0 { call() } else { mapping(fd, flags, libc::MAP_FAILED, call) }
        }
    )*};
}
mappings!(mmap, mmap64);

/// A call of the kernel between two descriptors, which may block. A descriptor whose position is null gets
/// the kernel's offset.
fn between(files: [(c_int, *mut i64); 2], call: impl FnOnce() -> isize) -> isize {
    if let Some(refused) = files.iter().find_map(|(fd, _)| refused(*fd)) {
        return refused;
    }
    for (fd, at) in files {
        if at.is_null() {
            super::descriptor_numbers::give_away(fd);
        }
        refresh_kernel_size(fd);
    }
    call()
}

macro_rules! sending {
    ($($name:ident),*) => {$(
        /// As sendfile(2).
        ///
        /// # Safety
        /// As sendfile(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(to: c_int, from: c_int, at: *mut i64, len: usize) -> isize {
            // SAFETY: the caller's promise.
            between([(to, std::ptr::null_mut()), (from, at)], || unsafe { real::$name(to, from, at, len) })
        }
    )*};
}
sending!(sendfile, sendfile64);

/// As splice(2).
///
/// # Safety
/// As splice(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    len: usize,
    flags: u32,
) -> isize {
    // SAFETY: the caller's promise.
    between([(from, at), (to, to_at)], || unsafe { real::splice(from, at, to, to_at, len, flags) })
}

/// As copy_file_range(2).
///
/// # Safety
/// As copy_file_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    len: usize,
    flags: u32,
) -> isize {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::copy_file_range(from, at, to, to_at, len, flags) };
    if let Some(refused) = refused(from).or_else(|| refused(to)) {
        return refused;
    }
    match (is_ours(from), is_ours(to)) {
        (true, true) if flags == 0 => match copied((from, at), (to, to_at), len) {
            Some(Ok(done)) => done as isize,
            Some(Err(errno)) => {
                real::set_errno(errno.raw_os_error());
                -1
            }
            None => between([(from, at), (to, to_at)], call),
        },
        (true, false) => {
            refresh_kernel_size(from);
            if at.is_null() { with_our_offset(from, call) } else { call() }
        }
        (false, true) if to_at.is_null() => {
            refresh_kernel_size(from);
            with_our_offset(to, call)
        }
        (false, false) => {
            refresh_kernel_size(from);
            call()
        }
        _ => between([(from, at), (to, to_at)], call),
    }
}

/// Makes a call of the kernel that uses the file offset: the kernel has ours for the length of the call.
pub fn with_our_offset<T: From<i8>>(fd: c_int, call: impl Fn() -> T) -> T {
    while let Some(used) = holding(fd) {
        let done = match this_thread().is_in_handler() {
            true => used.file().with_kernel_offset_in_handler(&used, &call),
            false => used.file().with_kernel_offset(&used, &call).map(Ok),
        };
        drop(used);
        if let Some(done) = done {
            return done.unwrap_or_else(failing);
        }
    }
    call()
}

/// Bytes that one piece moves through memory.
const PIECE_BYTES: usize = 64 << 10;
/// The longest copy of one call, as in the kernel.
const COPY_BYTES_MAX: usize = 0x7fff_f000;

/// Copies between two heddle files. Returns `None` if the kernel must make the call.
fn copied(from: (c_int, *mut i64), to: (c_int, *mut i64), len: usize) -> Option<Result<usize, Errno>> {
    let (source, first) = start_of(from, File::may_read)?;
    let (target, to_first) = start_of(to, File::may_write)?;
    if source == target {
        // The ranges may overlap, which depends on the size.
        return None;
    }
    // The kernel refuses a copy to a place beyond the limit even if there is nothing to copy.
    may_grow_to(|| to_first.saturating_add(1)).ok()?;
    let mut piece = vec![0_u8; PIECE_BYTES.min(len)];
    let len = len.min(COPY_BYTES_MAX);
    let (mut done, mut failed) = (0, None);
    while done < len {
        let want = piece.len().min(len - done);
        let read = one(from.0, Count::Read, |used| {
            data::read_at(used, piece.as_mut_ptr().cast(), want, first.saturating_add(done as i64))
        });
        let moved = match read {
            Some(Ok(0)) => break,
            Some(Ok(n)) => one(to.0, Count::Write, |used| {
                data::write_at(used, piece.as_ptr().cast(), n, to_first.saturating_add(done as i64), false)
            }),
            other => other,
        };
        match moved {
            Some(Ok(n)) => done += n,
            stopped => {
                failed = Some(stopped);
                break;
            }
        }
    }
    match failed {
        // An error after the first piece is not reported: the call returns the bytes copied before.
        Some(stopped) if done == 0 => return stopped,
        _ => {}
    }
    for ((fd, at), first) in [(from, first), (to, to_first)] {
        let now = first + done as i64;
        if at.is_null() {
            let _moved = using(fd).map(|used| used.file().seek(&used, now, libc::SEEK_SET).is_ok());
        } else if !fault::store(at, now) {
            return Some(Err(Errno::FAULT));
        }
    }
    Some(Ok(done))
}

/// The file and the start of the copy in it. Returns `None` if the kernel has the offset or refuses the call.
fn start_of((fd, at): (c_int, *mut i64), may: fn(&File) -> bool) -> Option<([u64; 2], i64)> {
    let used = using(fd)?;
    let (told, file) = (used.file().kernel_stat(), used.file());
    if !may(file) || file.appends(&used) {
        return None;
    }
    let first = match at.is_null() {
        // SAFETY: an integer is loaded, at an address that may be bad: `fault` handles that.
        false => unsafe { fault::load(at) }?,
        true => file.seek(&used, 0, libc::SEEK_CUR).ok()?.ok()? as i64,
    };
    // A file may be reached through several places of its mount.
    Some(([told.dev, told.ino], first))
}

/// Makes one call on a file. Returns `None` if the call is not served.
fn one(fd: c_int, what: Count, call: impl FnOnce(&Used) -> Served<usize>) -> Option<Result<usize, Errno>> {
    let used = using(fd)?;
    match call(&used) {
        Ok(Ok(n)) => {
            used.served(what, n);
            Some(Ok(n))
        }
        Ok(Err(errno)) => Some(Err(errno)),
        Err(why) => {
            used.passed(why);
            None
        }
    }
}
