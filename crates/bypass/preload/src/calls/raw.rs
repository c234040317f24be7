//! syscall(2): its effects on numbers, offsets and children are handled; the call itself goes to the kernel.
//!
//! Data calls made this way go through the mount. Those that use the offset give it to the kernel, for ever.

use super::children::{before_clone, before_copy, before_sending, before_sending_all, forking};
use super::copies::mapping;
use super::descriptor_numbers::{before_close_range, closing, control, give_away, locking};
use super::exec::executing;
use super::ioctls::with_our_offset_and_size;
use super::rights;
use crate::descriptor_numbers::{duplicating, replacing, share};
use crate::table::remove_number;
use crate::{fault, real, report};
use libc::c_int;
use std::ptr::with_exposed_provenance as pointer;

/// As syscall(2).
///
/// # Safety
/// As syscall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(n: i64, a: i64, b: i64, c: i64, d: i64, e: i64, f: i64) -> i64 {
    let fd = a as c_int;
    // SAFETY: the caller's promise.
    let call = || unsafe { real::syscall(n, a, b, c, d, e, f) };
    if n == libc::SYS_io_uring_setup || n == libc::SYS_io_setup {
        if super::aio::refused() {
            real::set_errno(libc::ENOSYS);
            return -1;
        }
        super::aio::offsets_are_the_kernels();
    }
    if n == libc::SYS_fcntl {
        return control(fd, b as c_int, c as usize, || call() as c_int).into();
    }
    if n == libc::SYS_flock {
        return locking(fd, || call() as c_int).into();
    }
    if n == libc::SYS_mmap && d as c_int & libc::MAP_ANONYMOUS == 0 {
        return mapping(e as c_int, d as c_int, -1, call);
    }
    if n == libc::SYS_ioctl {
        return with_our_offset_and_size(fd, b as u64, call);
    }
    match n {
        libc::SYS_execve | libc::SYS_execveat => return executing(call),
        libc::SYS_close => return closing(fd, call),
        libc::SYS_dup => return duplicating(fd, || call() as c_int).into(),
        libc::SYS_dup3 => return replacing(fd, b as c_int, || call() as c_int).into(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => return replacing(fd, b as c_int, || call() as c_int).into(),
        _ => {}
    }
    if let Some(flags) = copies_memory(n, a, b) {
        before_copy(flags);
        return forking(flags, call);
    }
    let call = match rights::by_number(n, [a, b], call) {
        Ok(done) => return done,
        Err(call) => call,
    };
    before(n, [a, b, c]);
    let done = call();
    if done >= 0 {
        after(n, done as c_int);
    }
    done
}

/// The clone flags of a child with memory of its own, on its parent's stack. A child on another stack does
/// not return here.
fn copies_memory(n: i64, a: i64, b: i64) -> Option<u64> {
    let (flags, stack) = match n {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => (0, 0),
        libc::SYS_clone => (a as u64, b as u64),
        libc::SYS_clone3 => clone3(a)?,
        _ => return None,
    };
    (flags & libc::CLONE_VM as u64 == 0 && stack == 0).then_some(flags)
}

/// Flags and stack.
fn clone3(at: i64) -> Option<(u64, u64)> {
    const STACK: usize = 5;
    // SAFETY: numbers.
    unsafe { fault::load(pointer::<[u64; STACK + 1]>(at as usize)) }.map(|words| (words[0], words[STACK]))
}

fn before(n: i64, [a, b, c]: [i64; 3]) {
    let fd = a as c_int;
    match n {
        libc::SYS_close_range => before_close_range(a as u32, b as u32, c as c_int),
        libc::SYS_read | libc::SYS_write | libc::SYS_readv | libc::SYS_writev | libc::SYS_lseek => {
            give_away(fd)
        }
        // The kernel checks limits against the size that it has cached.
        libc::SYS_ftruncate | libc::SYS_fallocate => super::copies::refresh_kernel_size(fd),
        libc::SYS_pwrite64 | libc::SYS_pwritev => super::data::before_kernel_write_at(fd),
        libc::SYS_preadv2 | libc::SYS_pwritev2 => {
            give_away(fd);
            super::copies::refresh_kernel_size(fd);
        }
        libc::SYS_pidfd_getfd => share(b as c_int),
        libc::SYS_sendfile | libc::SYS_copy_file_range | libc::SYS_splice => {
            let other = if n == libc::SYS_sendfile { b } else { c } as c_int;
            for fd in [fd, other] {
                give_away(fd);
                super::copies::refresh_kernel_size(fd);
            }
        }
        libc::SYS_sendmsg => before_sending(pointer(b as usize)),
        libc::SYS_sendmmsg => before_sending_all(pointer(b as usize), c as u32),
        libc::SYS_clone => before_clone(a as u64),
        libc::SYS_clone3 => before_clone(clone3(a).map_or(0, |(flags, _)| flags)),
        libc::SYS_exit_group => report::write(),
        libc::SYS_prlimit64 => super::limits::note(b as _, c != 0),
        libc::SYS_setrlimit => super::limits::note(a as _, true),
        _ => {}
    }
}

fn after(n: i64, done: c_int) {
    match n {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open
        | libc::SYS_creat
        | libc::SYS_epoll_create
        | libc::SYS_eventfd
        | libc::SYS_signalfd
        | libc::SYS_inotify_init => remove_number(done),
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_open_by_handle_at
        | libc::SYS_memfd_create
        | libc::SYS_pidfd_getfd
        | libc::SYS_pidfd_open
        | libc::SYS_socket
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_epoll_create1
        | libc::SYS_eventfd2
        | libc::SYS_signalfd4
        | libc::SYS_timerfd_create
        | libc::SYS_inotify_init1
        | libc::SYS_userfaultfd
        | libc::SYS_perf_event_open => remove_number(done),
        _ => {}
    }
}
