//! Changes of descriptor numbers: closed, duplicated, reused.

use super::cancel::point;
use super::meta::same;
use crate::descriptor_numbers::{duplicating, replacing, share};
use crate::fork::behind_the_gate;
use crate::real;
use crate::table::{Used, holding, is_ours, remove_number, remove_numbers, stop_serving_for_ever};
use crate::thread::{Busy, this_thread};
use heddle_bypass::Number;
use libc::{c_char, c_int, c_void};

/// As close(2).
///
/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if !is_ours(fd) || this_thread().is_vfork_child() {
        // SAFETY: the caller's promise.
        return unsafe { real::close(fd) };
    }
    // A thread that is cancelled here has closed nothing. After that nothing ends the call before the number is closed: neither a
    // cancellation, for which syscall(2) is no point, nor a signal handler that never returns.
    point();
    // SAFETY: the caller's promise.
    closing(fd, || unsafe { real::syscall(libc::SYS_close, fd.into(), 0, 0, 0, 0, 0) }) as c_int
}

/// Closes a number by this call. No handler runs between the change of the table and the call.
pub fn closing(fd: c_int, call: impl FnOnce() -> i64) -> i64 {
    let _busy = Busy::enter();
    // As soon as the number is closed, another thread may get it.
    remove_number(fd);
    call()
}

/// As close_range(2).
///
/// # Safety
/// As close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    // A thread that parts its numbers from the others' leaves nothing in the table.
    let parts = flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0;
    let _busy = if parts { None } else { Busy::enter() };
    before_close_range(first, last, flags);
    // SAFETY: the caller's promise.
    unsafe { real::close_range(first, last, flags) }
}

/// Removes the numbers that close_range(2) is about to close; none if the kernel will refuse the call.
pub fn before_close_range(first: u32, last: u32, flags: c_int) {
    const UNSHARE: c_int = libc::CLOSE_RANGE_UNSHARE as c_int;
    const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    if flags & !(UNSHARE | CLOEXEC) != 0 || first > last {
        return;
    }
    if flags & UNSHARE != 0 {
        stop_serving_for_ever();
    }
    if flags & CLOEXEC == 0 && ranges_are_closed() {
        remove_numbers(first, last);
    }
}

/// Returns false if the kernel refuses each close_range(2): it is too old, or a filter of system calls does that. Numbers that stay open
/// stay in the table.
fn ranges_are_closed() -> bool {
    let errno = real::errno();
    let none = i64::from(u32::MAX);
    // SAFETY: no descriptor has this number.
    let done = unsafe { real::syscall(libc::SYS_close_range, none, none, 0, 0, 0, 0) };
    real::set_errno(errno);
    done == 0
}

/// As closefrom(3).
///
/// # Safety
/// As closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let _busy = Busy::enter();
    remove_numbers(first.max(0) as u32, u32::MAX);
    // SAFETY: the caller's promise.
    unsafe { real::closefrom(first) }
}

/// As dup(2).
///
/// # Safety
/// As dup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's promise.
    duplicating(fd, || unsafe { real::dup(fd) })
}

/// As dup2(2).
///
/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller's promise.
    replacing(fd, to, || unsafe { real::dup2(fd, to) })
}

/// As dup3(2).
///
/// # Safety
/// As dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    replacing(fd, to, || unsafe { real::dup3(fd, to, flags) })
}

/// As fcntl(2).
///
/// # Safety
/// As fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: the caller's promise.
    control(fd, command, arg, || unsafe { real::fcntl(fd, command, arg) })
}

/// As fcntl(2).
///
/// # Safety
/// As fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, arg: usize) -> c_int {
    // SAFETY: the caller's promise.
    control(fd, command, arg, || unsafe { real::fcntl64(fd, command, arg) })
}

/// As fcntl(2); `call` makes the kernel's part.
pub fn control(fd: c_int, command: c_int, arg: usize, call: impl Fn() -> c_int) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicating(fd, call),
        libc::F_SETFL => {
            let set = |used: &Used| {
                let done = call();
                if done == 0 {
                    used.file().set_append(arg as c_int & libc::O_APPEND != 0);
                }
                done
            };
            holding(fd).and_then(|used| (&used).while_ours(|_| set(&used))).unwrap_or_else(call)
        }
        // These may count from the present offset or from the end, so the kernel needs both.
        libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_OFD_GETLK => {
            let call = || {
                match counts_from(arg) {
                    Some(libc::SEEK_CUR) => give_away(fd),
                    Some(libc::SEEK_END) => super::copies::refresh_kernel_size(fd),
                    _ => {}
                }
                call()
            };
            if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) { call() } else { locking(fd, call) }
        }
        _ => call(),
    }
}

/// The position from which a lock is counted.
fn counts_from(arg: usize) -> Option<c_int> {
    let lock = std::ptr::with_exposed_provenance::<libc::flock>(arg);
    // SAFETY: the type consists of numbers.
    unsafe { crate::fault::load(lock) }.map(|lock| lock.l_whence.into())
}

/// As lockf(3), which counts from the present offset.
///
/// # Safety
/// As lockf(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lockf(fd: c_int, command: c_int, len: i64) -> c_int {
    // SAFETY: the caller's promise.
    locking_from_offset(fd, || unsafe { real::lockf(fd, command, len) })
}

/// As lockf(3).
///
/// # Safety
/// As lockf(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lockf64(fd: c_int, command: c_int, len: i64) -> c_int {
    // SAFETY: the caller's promise.
    locking_from_offset(fd, || unsafe { real::lockf64(fd, command, len) })
}

// As flock(2).
same! { [flock] (fd: c_int, operation: c_int) { |call| locking(fd, call) } }

/// Makes a call that locks a file. On a descriptor of a dead mount, in whose place another daemon serves, the kernel would lock what nobody
/// else can see: the call fails.
pub fn locking(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    holding_on(fd, -1, call)
}

/// As [`locking`], counted from the present offset. A refused call takes no offset away.
fn locking_from_offset(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let call = || {
        give_away(fd);
        call()
    };
    locking(fd, call)
}

/// Makes a call that locks a file or maps it shared, and returns `failed` if it gets nothing.
pub fn holding_on<T: Copy + PartialEq>(fd: c_int, failed: T, call: impl FnOnce() -> T) -> T {
    let Some(used) = holding(fd) else { return call() };
    let Some(hold) = used.file().begin_hold() else {
        real::set_errno(libc::ENOTCONN);
        return failed;
    };
    drop(used);
    let done = call();
    if done != failed {
        hold.granted();
    }
    done
}

/// From now on the offset is the kernel's.
pub fn give_away(fd: c_int) {
    if let Some(used) = holding(fd) {
        used.file().give_offset_away(&used);
    }
}

/// As pidfd_getfd(2): the number may belong to this very process.
///
/// # Safety
/// As pidfd_getfd(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: u32) -> c_int {
    share(fd);
    // SAFETY: the caller's promise.
    let new = unsafe { real::pidfd_getfd(pidfd, fd, flags) };
    if new >= 0 {
        remove_number(new);
    }
    new
}

/// As login_tty(3): if it succeeds, the terminal has numbers 0 to 2.
///
/// # Safety
/// As login_tty(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn login_tty(fd: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { real::login_tty(fd) };
    if done == 0 {
        (0..3).for_each(remove_number);
    }
    done
}

/// As daemon(3), which forks. A number that stays open stays in the table: without it another process that shares the offset would take
/// itself to be alone.
///
/// # Safety
/// As daemon(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let done = behind_the_gate(|| unsafe { real::daemon(nochdir, noclose) });
    if done == 0 && noclose == 0 {
        (0..3).for_each(remove_number);
    }
    done
}

/// As forkpty(3): in the child the terminal gets numbers 0 to 2.
///
/// # Safety
/// As forkpty(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forkpty(
    master: *mut c_int,
    name: *mut c_char,
    term: *const c_void,
    size: *const c_void,
) -> libc::pid_t {
    // SAFETY: the caller's promise.
    let child = behind_the_gate(|| unsafe { real::forkpty(master, name, term, size) });
    match child {
        0 => (0..3).for_each(remove_number),
        // SAFETY: the C library has just written it.
        1.. => remove_number(unsafe { *master }),
        _ => {}
    }
    child
}

/// As openpty(3).
///
/// # Safety
/// As openpty(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn openpty(
    master: *mut c_int,
    slave: *mut c_int,
    name: *mut c_char,
    term: *const c_void,
    size: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { real::openpty(master, slave, name, term, size) };
    if done == 0 {
        // SAFETY: the C library has just written both.
        unsafe {
            remove_number(*master);
            remove_number(*slave);
        }
    }
    done
}

/// Other functions that return new numbers: if one of ours was closed without our knowledge, its number has
/// this new meaning.
macro_rules! fresh {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            let fd = unsafe { real::$name($($arg),*) };
            if fd >= 0 {
                remove_number(fd);
            }
            fd
        }
    )*};
}

fresh! {
    socket(domain: c_int, kind: c_int, protocol: c_int);
    accept(fd: c_int, address: *mut c_void, len: *mut c_void);
    accept4(fd: c_int, address: *mut c_void, len: *mut c_void, flags: c_int);
    epoll_create(size: c_int);
    epoll_create1(flags: c_int);
    eventfd(start: u32, flags: c_int);
    memfd_create(name: *const c_char, flags: u32);
    timerfd_create(clock: c_int, flags: c_int);
    inotify_init();
    inotify_init1(flags: c_int);
    shm_open(path: *const c_char, flags: c_int, mode: libc::mode_t);
}

macro_rules! fresh_pair {
    ($($name:ident($($arg:ident: $type:ty),*), $into:ident;)*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            let done = unsafe { real::$name($($arg),*) };
            if done == 0 {
                // SAFETY: the kernel has just written both.
                unsafe {
                    remove_number(*$into);
                    remove_number(*$into.add(1));
                }
            }
            done
        }
    )*};
}

fresh_pair! {
    pipe(into: *mut c_int), into;
    pipe2(into: *mut c_int, flags: c_int), into;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, into: *mut c_int), into;
}
