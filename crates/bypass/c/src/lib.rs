//! libheddle: the functions that `include/heddle.h` declares, with its contract.
//!
//! Invariants  C1  no panic leaves a function: a panic is caught and becomes EIO.
//!             C2  every failure sets errno and the text of `heddle_error`; nothing else does.

use heddle_bypass::{
    Attachment, Attachments, Errno, File, KernelStat, MountAnswer, Passed, Served, this_is_a_child,
};
use libc::{c_char, c_int, c_void, mode_t, off_t};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

static MOUNTS: Attachments = Attachments::new();

thread_local! {
    /// The text of the thread's last failure (C2).
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// An open file: see `heddle.h`.
pub struct HeddleFile {
    file: File,
    fd: OwnedFd,
}

struct Failure {
    errno: Errno,
    text: String,
}

impl Failure {
    fn of(errno: Errno, doing: &str) -> Failure {
        Failure { errno, text: format!("{doing}: {}", std::io::Error::from(errno)) }
    }
}

fn answer<T>(bad: T, work: impl FnOnce() -> Result<T, Failure>) -> T {
    let done = catch_unwind(AssertUnwindSafe(work));
    let done = done.unwrap_or_else(|_| Err(Failure::of(Errno::IO, "heddle: a broken invariant")));
    done.unwrap_or_else(|failure| {
        // A thread that is ending has no text any more.
        let _ =
            LAST_ERROR.try_with(|last| *last.borrow_mut() = CString::new(failure.text).unwrap_or_default());
        // SAFETY: the thread's own word.
        unsafe { *libc::__errno_location() = failure.errno.raw_os_error() };
        bad
    })
}

unsafe fn path<'p>(path: *const c_char) -> Result<&'p CStr, Failure> {
    if path.is_null() {
        return Err(Failure::of(Errno::FAULT, "heddle: the path is NULL"));
    }
    // SAFETY: the caller's promise: the path ends in NUL.
    Ok(unsafe { CStr::from_ptr(path) })
}

unsafe fn open_file<'f>(file: *const HeddleFile) -> Result<&'f HeddleFile, Failure> {
    // SAFETY: the caller's promise: heddle_open returned it, and heddle_close did not get it yet.
    unsafe { file.as_ref() }.ok_or_else(|| Failure::of(Errno::BADF, "heddle: the file is NULL"))
}

fn attachment(fd: BorrowedFd<'_>, path: &CStr) -> Result<(&'static Attachment, KernelStat), Failure> {
    // Two threads may set it at once: a second one does no harm. A child that waited for a thread of its parent would wait for ever.
    static CHILDREN: AtomicBool = AtomicBool::new(false);
    if !CHILDREN.load(SeqCst) {
        // SAFETY: the function takes no arguments and only counts.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
        CHILDREN.store(true, SeqCst);
    }
    let name = path.to_string_lossy();
    let told = KernelStat::of(fd).map_err(|errno| Failure::of(errno, &name))?;
    match MOUNTS.find(&told, fd) {
        MountAnswer::Ours(at) => Ok((at, told)),
        MountAnswer::Foreign => Err(Failure {
            errno: Errno::NODEV,
            text: format!("{name} is not in a heddle mount. Mount one with: heddle mount IMAGE DIR"),
        }),
        MountAnswer::Refused(why) => Err(Failure { errno: Errno::ACCESS, text: format!("{name}: {why}") }),
    }
}

extern "C" fn child() {
    this_is_a_child();
}

/// The engine's answer, or the kernel's if the engine does not serve the call.
fn served<T>(
    done: Served<T>,
    doing: &str,
    kernel: impl FnOnce(Passed) -> Result<T, Errno>,
) -> Result<T, Failure> {
    done.unwrap_or_else(kernel).map_err(|errno| Failure::of(errno, doing))
}

/// See `heddle.h`.
///
/// # Safety
/// `at` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_attach(at: *const c_char) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's promise.
        let at = unsafe { path(at) }?;
        // Not O_PATH: the mount is asked through this descriptor.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(at, flags, Mode::empty())
            .map_err(|errno| Failure::of(errno, &at.to_string_lossy()))?;
        attachment(fd.as_fd(), at).map(|_| 0)
    })
}

/// See `heddle.h`.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_open(name: *const c_char, flags: c_int, mode: mode_t) -> *mut HeddleFile {
    answer(null_mut(), || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name) }?;
        let path = name.to_string_lossy();
        let how = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
        let fd = rustix::fs::open(name, how, Mode::from_raw_mode(mode))
            .map_err(|errno| Failure::of(errno, &path))?;
        let (at, told) = attachment(fd.as_fd(), name)?;
        if !told.is_regular() {
            return Err(Failure::of(Errno::INVAL, &format!("{path} is no regular file")));
        }
        Ok(Box::into_raw(Box::new(HeddleFile { file: File::new(at, told, flags), fd })))
    })
}

/// See `heddle.h`.
///
/// # Safety
/// `file` is NULL or came from `heddle_open`; it is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_close(file: *mut HeddleFile) -> c_int {
    answer(-1, || {
        if !file.is_null() {
            // SAFETY: the caller's promise.
            let file = unsafe { Box::from_raw(file) };
            file.file.close();
        }
        Ok(0)
    })
}

/// See `heddle.h`.
///
/// # Safety
/// `file` came from `heddle_open`, `buf` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pread(
    file: *mut HeddleFile,
    buf: *mut c_void,
    len: usize,
    offset: off_t,
) -> isize {
    answer(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { open_file(file) }?;
        if buf.is_null() && len > 0 {
            return Err(Failure::of(Errno::FAULT, "heddle_pread: the buffer is NULL"));
        }
        // SAFETY: the caller's promise.
        let done = unsafe { open.file.read_at(open.fd.as_fd(), buf.cast(), len, offset) };
        let n = served(done, "heddle_pread", |_| {
            // SAFETY: the caller's promise; the length does not exceed that of a slice.
            let buf =
                unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), len.min(isize::MAX as usize)) };
            rustix::io::pread(&open.fd, buf, offset as u64)
        })?;
        Ok(n as isize)
    })
}

/// See `heddle.h`.
///
/// # Safety
/// `file` came from `heddle_open`, `buf` holds `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pwrite(
    file: *mut HeddleFile,
    buf: *const c_void,
    len: usize,
    offset: off_t,
) -> isize {
    answer(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { open_file(file) }?;
        if buf.is_null() && len > 0 {
            return Err(Failure::of(Errno::FAULT, "heddle_pwrite: the buffer is NULL"));
        }
        // SAFETY: the caller's promise.
        let done = unsafe { open.file.write_at(open.fd.as_fd(), buf.cast(), len, offset, false) };
        let n = served(done.map(|done| done.map(|(n, _)| n)), "heddle_pwrite", |_| {
            // SAFETY: the caller's promise; the length does not exceed that of a slice.
            let buf = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len.min(isize::MAX as usize)) };
            rustix::io::pwrite(&open.fd, buf, offset as u64)
        })?;
        Ok(n as isize)
    })
}

/// See `heddle.h`.
///
/// # Safety
/// `file` came from `heddle_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_fsync(file: *mut HeddleFile) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { open_file(file) }?;
        served(open.file.sync(false), "heddle_fsync", |_| rustix::fs::fsync(&open.fd)).map(|()| 0)
    })
}

/// See `heddle.h`.
///
/// # Safety
/// `file` came from `heddle_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_truncate(file: *mut HeddleFile, len: off_t) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { open_file(file) }?;
        let done = open.file.truncate(open.fd.as_fd(), len);
        served(done, "heddle_truncate", |_| rustix::fs::ftruncate(&open.fd, len as u64)).map(|()| 0)
    })
}

/// See `heddle.h`.
///
/// # Safety
/// `file` came from `heddle_open`, `into` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_fstat(file: *mut HeddleFile, into: *mut libc::stat) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { open_file(file) }?;
        if into.is_null() {
            return Err(Failure::of(Errno::FAULT, "heddle_fstat: nowhere to write to"));
        }
        let told =
            served(open.file.stat(open.fd.as_fd()), "heddle_fstat", |_| kernels_stat(open.fd.as_fd()))?;
        // SAFETY: the caller's promise.
        unsafe { into.write(told) };
        Ok(0)
    })
}

fn kernels_stat(fd: BorrowedFd<'_>) -> Result<libc::stat, Errno> {
    // SAFETY: plain numbers, for which zero is valid.
    let mut told: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a live local.
    match unsafe { libc::fstat(fd.as_raw_fd(), &mut told) } {
        0 => Ok(told),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// See `heddle.h`.
///
/// # Safety
/// `name` is a string, `into` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_stat(name: *const c_char, into: *mut libc::stat) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's promise.
        let name = unsafe { path(name) }?;
        let path = name.to_string_lossy();
        if into.is_null() {
            return Err(Failure::of(Errno::FAULT, "heddle_stat: nowhere to write to"));
        }
        let fd = rustix::fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Failure::of(errno, &path))?;
        let told = kernels_stat(fd.as_fd()).map_err(|errno| Failure::of(errno, &path))?;
        // SAFETY: the caller's promise.
        unsafe { into.write(told) };
        Ok(0)
    })
}

/// See `heddle.h`.
///
/// # Safety
/// `file` came from `heddle_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_fd(file: *const HeddleFile) -> c_int {
    answer(-1, || {
        // SAFETY: the caller's promise.
        let open = unsafe { open_file(file) }?;
        open.file.is_told(open.fd.as_fd());
        Ok(open.fd.as_raw_fd())
    })
}

/// See `heddle.h`.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_error() -> *const c_char {
    // The text stays valid until the thread's next failure.
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
