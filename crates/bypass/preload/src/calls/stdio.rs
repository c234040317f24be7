//! stdio, traces and started programs: the C library uses descriptors internally there, with the kernel's
//! offset.

use super::copies::with_our_offset;
use super::descriptor_numbers::give_away;
use crate::descriptor_numbers::share;
use crate::signals::handing_on;
use crate::table::{holding, remove_number};
use crate::{fault, fork, real, streams};
use heddle_bypass::StaysShared;
use libc::{DIR, FILE, c_char, c_int, c_void};

unsafe extern "C" {
    fn fileno(stream: *mut FILE) -> c_int;
    fn dirfd(dir: *mut DIR) -> c_int;
}

/// As fdopen(3).
///
/// # Safety
/// As fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // With "a" the C library sets O_APPEND itself.
    // SAFETY: a character, at an address that may be bad.
    match unsafe { fault::load(mode) } {
        Some(first) if first as u8 == b'a' => share(fd),
        _ => give_away(fd),
    }
    // SAFETY: the caller's promise.
    let stream = unsafe { real::fdopen(fd, mode) };
    if !stream.is_null() {
        streams::add(fd);
    }
    stream
}

/// As fclose(3), which closes the number inside the C library.
///
/// # Safety
/// As fclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let _until_written = ends(stream);
        real::fclose(stream)
    }
}

/// As pclose(3), which does the same.
///
/// # Safety
/// As pclose(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let _until_written = ends(stream);
        real::pclose(stream)
    }
}

/// The number of this stream, or null, is about to be closed. The C library first writes what is in the stream's buffer: until the result
/// is dropped, no other process that shares the offset takes it back.
unsafe fn ends(stream: *mut FILE) -> Option<StaysShared> {
    if stream.is_null() {
        return None;
    }
    let errno = real::errno();
    // SAFETY: the caller's promise.
    let fd = unsafe { fileno(stream) };
    let until_written = holding(fd).and_then(|used| used.file().stays_shared());
    remove_number(fd);
    streams::remove(fd);
    real::set_errno(errno);
    until_written
}

/// The number now belongs to this new stream.
fn fresh(stream: *mut FILE) -> *mut FILE {
    if !stream.is_null() {
        // SAFETY: a stream that the C library has just made.
        let fd = unsafe { fileno(stream) };
        remove_number(fd);
        streams::add(fd);
    }
    stream
}

/// As fopen(3).
///
/// # Safety
/// As fopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise.
    fresh(unsafe { real::fopen(path, mode) })
}

/// As fopen(3).
///
/// # Safety
/// As fopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise.
    fresh(unsafe { real::fopen64(path, mode) })
}

/// As freopen(3).
///
/// # Safety
/// As freopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller's promise.
    let _until_written = unsafe { ends(stream) };
    // SAFETY: the caller's promise.
    fresh(unsafe { real::freopen(path, mode, stream) })
}

/// As freopen(3).
///
/// # Safety
/// As freopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller's promise.
    let _until_written = unsafe { ends(stream) };
    // SAFETY: the caller's promise.
    fresh(unsafe { real::freopen64(path, mode, stream) })
}

/// As opendir(3).
///
/// # Safety
/// As opendir(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: the caller's promise.
    let dir = unsafe { real::opendir(path) };
    if !dir.is_null() {
        // SAFETY: a directory that the C library has just opened.
        remove_number(unsafe { dirfd(dir) });
    }
    dir
}

macro_rules! tracing {
    ($($name:ident),*) => {$(
        /// As backtrace_symbols_fd(3), which writes inside the C library.
        ///
        /// # Safety
        /// As backtrace_symbols_fd(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(frames: *const *mut c_void, n: c_int, fd: c_int) {
            with_our_offset(fd, || {
                // SAFETY: the caller's promise.
                unsafe { real::$name(frames, n, fd) };
                0
            });
        }
    )*};
}
tracing!(backtrace_symbols_fd, __backtrace_symbols_fd);

/// As popen(3).
///
/// # Safety
/// As popen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    fork::offsets_to_kernel(false);
    // SAFETY: the caller's promise.
    fresh(handing_on(|| unsafe { real::popen(command, mode) }))
}

/// As system(3).
///
/// # Safety
/// As system(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    fork::offsets_to_kernel(false);
    // SAFETY: the caller's promise.
    handing_on(|| unsafe { real::system(command) })
}

/// As posix_spawn(3): its file actions may pass on any descriptor.
///
/// # Safety
/// As posix_spawn(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut i32,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: *mut c_void,
    env: *mut c_void,
) -> c_int {
    fork::offsets_to_kernel(!actions.is_null());
    // SAFETY: the caller's promise.
    handing_on(|| unsafe { real::posix_spawn(pid, path, actions, attributes, argv, env) })
}

/// As posix_spawnp(3).
///
/// # Safety
/// As posix_spawnp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut i32,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: *mut c_void,
    env: *mut c_void,
) -> c_int {
    fork::offsets_to_kernel(!actions.is_null());
    // SAFETY: the caller's promise.
    handing_on(|| unsafe { real::posix_spawnp(pid, path, actions, attributes, argv, env) })
}

macro_rules! spawning_with_pidfd {
    ($($name:ident, $plain:ident;)*) => {$(
        /// As posix_spawn(3), with a descriptor for the child in place of its number.
        ///
        /// # Safety
        /// As posix_spawn(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            pidfd: *mut c_int,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            argv: *mut c_void,
            env: *mut c_void,
        ) -> c_int {
            fork::offsets_to_kernel(!actions.is_null());
            handing_on(|| {
                // SAFETY: the caller's promise.
                let done = unsafe { real::$name(pidfd, path, actions, attributes, argv, env) };
                if done == real::NO_FUNCTION {
                    // SAFETY: the caller's promise.
                    let plain = |pid| unsafe { real::$plain(pid, path, actions, attributes, argv, env) };
                    // SAFETY: the caller's promise.
                    return unsafe { with_pidfd(pidfd, plain) };
                }
                if done == 0 && !pidfd.is_null() {
                    // SAFETY: the C library has just written it.
                    remove_number(unsafe { *pidfd });
                }
                done
            })
        }
    )*};
}
spawning_with_pidfd! {
    pidfd_spawn, posix_spawn;
    pidfd_spawnp, posix_spawnp;
}

/// Starts a child by `spawn`, and opens a descriptor for it: a C library before 2.39 has no function for both, and a program that looks
/// for one finds ours. A descriptor of this process holds the place: if there is none, no child is started. Another thread may take the
/// place when it is given up. Then the child is ended, as if it had not been started.
unsafe fn with_pidfd(pidfd: *mut c_int, spawn: impl FnOnce(*mut i32) -> c_int) -> c_int {
    let errno = real::errno();
    let answer = || -> Result<c_int, c_int> {
        let place = Place(pidfd_of(rustix::process::getpid().as_raw_nonzero().get())?);
        let mut pid = 0;
        let failed = spawn(&raw mut pid);
        if failed != 0 {
            return Err(failed);
        }
        let mut opened = pidfd_of(pid);
        if matches!(opened, Err(libc::EMFILE | libc::ENFILE)) {
            drop(place);
            opened = pidfd_of(pid);
        }
        // ESRCH: the kernel has waited for the child, because the program ignores SIGCHLD.
        opened.inspect_err(|why| {
            if *why != libc::ESRCH {
                end(pid);
            }
        })
    };
    let done = answer();
    real::set_errno(errno);
    match done {
        Ok(opened) => {
            if !pidfd.is_null() {
                // SAFETY: the caller's promise.
                unsafe { pidfd.write(opened) };
            }
            0
        }
        Err(why) => why,
    }
}

/// A descriptor that no other code knows.
struct Place(c_int);

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: opened for this.
        unsafe { real::syscall(libc::SYS_close, self.0.into(), 0, 0, 0, 0, 0) };
    }
}

/// Ends a child that the program does not know.
fn end(pid: i32) {
    // SAFETY: neither is given a pointer but null. Nobody has waited for the child, so the number is its own.
    unsafe {
        real::syscall(libc::SYS_kill, pid.into(), libc::SIGKILL.into(), 0, 0, 0, 0);
        while real::syscall(libc::SYS_wait4, pid.into(), 0, 0, 0, 0, 0) < 0 && real::errno() == libc::EINTR {}
    }
}

/// A new descriptor for this process, or the number of the error.
fn pidfd_of(pid: i32) -> Result<c_int, c_int> {
    // SAFETY: it takes no pointer.
    let opened = unsafe { real::syscall(libc::SYS_pidfd_open, pid.into(), 0, 0, 0, 0, 0) } as c_int;
    if opened < 0 {
        return Err(real::errno());
    }
    remove_number(opened);
    Ok(opened)
}

/// As wordexp(3), which starts a shell for commands among the words.
///
/// # Safety
/// As wordexp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn wordexp(text: *const c_char, into: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::wordexp(text, into, flags) };
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes();
    if !bytes.contains(&b'`') && !bytes.windows(2).any(|two| two == b"$(") {
        return call();
    }
    fork::offsets_to_kernel(false);
    handing_on(call)
}
