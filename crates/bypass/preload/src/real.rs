//! The C library's own functions, to which calls are passed on.

use libc::{c_char, c_int};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The next definition of a symbol after this library's, in the loader's search order. `kept` caches it.
pub fn next(name: &CStr, kept: &AtomicPtr<libc::c_void>) -> *mut libc::c_void {
    // ORDERING: Relaxed: a thread that finds null searches again, with the same result.
    let mut found = kept.load(Relaxed);
    if found.is_null() {
        static DLSYM: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
        let dlsym = crate::loader::next_definition(c"dlsym", &DLSYM);
        if dlsym.is_null() {
            return dlsym;
        }
        type Dlsym = unsafe extern "C" fn(*mut libc::c_void, *const c_char) -> *mut libc::c_void;
        // SAFETY: the loader's function has this form.
        let dlsym: Dlsym = unsafe { std::mem::transmute(dlsym) };
        // SAFETY: the name ends in NUL. The call is made from this library, so the next definition is the one
        // after it.
        found = unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        kept.store(found, Relaxed); // ORDERING: Relaxed, all threads find the same function.
    }
    found
}

/// Declares functions of the C library: `real::read(…)` calls the next definition after ours; a function that
/// does not exist fails with ENOSYS. "C-unwind": a thread that is cancelled in one of them leaves it by
/// unwinding.
macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $ret:ty = $missing:expr;)*) => {$(
        #[allow(clippy::too_many_arguments, clippy::unused_unit, non_snake_case)]
        pub unsafe fn $name($($arg: $type),*) -> $ret {
            static NEXT: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let next = next(NAME, &NEXT);
            if next.is_null() {
                set_errno(libc::ENOSYS);
                return $missing;
            }
            // SAFETY: the C library's function of this name has this form (its own headers).
            let next: unsafe extern "C-unwind" fn($($type),*) -> $ret = unsafe { std::mem::transmute(next) };
            // SAFETY: the caller's promise.
            unsafe { next($($arg),*) }
        }
    )*};
}

/// What `pidfd_spawn` returns if the C library does not have it: no error of its own is negative.
pub const NO_FUNCTION: c_int = -1;

type Fd = c_int;
type Path = *const c_char;
type Texts = *const Path;
/// As in wordexp.h.
const WRDE_NOSPACE: c_int = 1;
type Stream = *mut libc::FILE;
type Buf = *mut libc::c_void;
type Bytes = *const libc::c_void;
type Iov = *const libc::iovec;

real! {
    open(path: Path, flags: c_int, mode: libc::mode_t) -> Fd = -1;
    open64(path: Path, flags: c_int, mode: libc::mode_t) -> Fd = -1;
    openat(dir: Fd, path: Path, flags: c_int, mode: libc::mode_t) -> Fd = -1;
    openat64(dir: Fd, path: Path, flags: c_int, mode: libc::mode_t) -> Fd = -1;
    creat(path: Path, mode: libc::mode_t) -> Fd = -1;
    creat64(path: Path, mode: libc::mode_t) -> Fd = -1;
    __open_2(path: Path, flags: c_int) -> Fd = -1;
    __open64_2(path: Path, flags: c_int) -> Fd = -1;
    __openat_2(dir: Fd, path: Path, flags: c_int) -> Fd = -1;
    __openat64_2(dir: Fd, path: Path, flags: c_int) -> Fd = -1;
    mkstemp(path: *mut c_char) -> Fd = -1;
    mkstemp64(path: *mut c_char) -> Fd = -1;
    mkostemp(path: *mut c_char, flags: c_int) -> Fd = -1;
    mkostemp64(path: *mut c_char, flags: c_int) -> Fd = -1;
    mkstemps(path: *mut c_char, suffix: c_int) -> Fd = -1;
    mkstemps64(path: *mut c_char, suffix: c_int) -> Fd = -1;
    mkostemps(path: *mut c_char, suffix: c_int, flags: c_int) -> Fd = -1;
    mkostemps64(path: *mut c_char, suffix: c_int, flags: c_int) -> Fd = -1;
    close(fd: Fd) -> c_int = -1;
    close_range(first: u32, last: u32, flags: c_int) -> c_int = -1;
    closefrom(first: Fd) -> () = ();
    dup(fd: Fd) -> Fd = -1;
    dup2(fd: Fd, to: Fd) -> Fd = -1;
    dup3(fd: Fd, to: Fd, flags: c_int) -> Fd = -1;
    fcntl(fd: Fd, command: c_int, arg: usize) -> c_int = -1;
    setuid(id: u32) -> c_int = -1;
    setgid(id: u32) -> c_int = -1;
    seteuid(id: u32) -> c_int = -1;
    setegid(id: u32) -> c_int = -1;
    setfsuid(id: u32) -> c_int = -1;
    setfsgid(id: u32) -> c_int = -1;
    setreuid(real: u32, effective: u32) -> c_int = -1;
    setregid(real: u32, effective: u32) -> c_int = -1;
    setresuid(real: u32, effective: u32, saved: u32) -> c_int = -1;
    setresgid(real: u32, effective: u32, saved: u32) -> c_int = -1;
    setgroups(n: usize, groups: *const libc::gid_t) -> c_int = -1;
    initgroups(user: Path, group: libc::gid_t) -> c_int = -1;
    capset(header: Buf, data: Bytes) -> c_int = -1;
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int = -1;
    mlockall(flags: c_int) -> c_int = -1;
    unshare(flags: c_int) -> c_int = -1;
    setns(fd: Fd, kind: c_int) -> c_int = -1;
    chroot(path: Path) -> c_int = -1;
    pivot_root(new: Path, old: Path) -> c_int = -1;
    fcntl64(fd: Fd, command: c_int, arg: usize) -> c_int = -1;
    ioctl(fd: Fd, request: libc::c_ulong, arg: Buf) -> c_int = -1;
    flock(fd: Fd, operation: c_int) -> c_int = -1;
    lockf(fd: Fd, command: c_int, len: i64) -> c_int = -1;
    lockf64(fd: Fd, command: c_int, len: i64) -> c_int = -1;

    read(fd: Fd, buf: Buf, len: usize) -> isize = -1;
    write(fd: Fd, buf: Bytes, len: usize) -> isize = -1;
    pread(fd: Fd, buf: Buf, len: usize, at: i64) -> isize = -1;
    pread64(fd: Fd, buf: Buf, len: usize, at: i64) -> isize = -1;
    pwrite(fd: Fd, buf: Bytes, len: usize, at: i64) -> isize = -1;
    pwrite64(fd: Fd, buf: Bytes, len: usize, at: i64) -> isize = -1;
    readv(fd: Fd, iov: Iov, n: c_int) -> isize = -1;
    writev(fd: Fd, iov: Iov, n: c_int) -> isize = -1;
    preadv(fd: Fd, iov: Iov, n: c_int, at: i64) -> isize = -1;
    preadv64(fd: Fd, iov: Iov, n: c_int, at: i64) -> isize = -1;
    pwritev(fd: Fd, iov: Iov, n: c_int, at: i64) -> isize = -1;
    pwritev64(fd: Fd, iov: Iov, n: c_int, at: i64) -> isize = -1;
    preadv2(fd: Fd, iov: Iov, n: c_int, at: i64, flags: c_int) -> isize = -1;
    preadv64v2(fd: Fd, iov: Iov, n: c_int, at: i64, flags: c_int) -> isize = -1;
    pwritev2(fd: Fd, iov: Iov, n: c_int, at: i64, flags: c_int) -> isize = -1;
    pwritev64v2(fd: Fd, iov: Iov, n: c_int, at: i64, flags: c_int) -> isize = -1;
    __read_chk(fd: Fd, buf: Buf, len: usize, room: usize) -> isize = -1;
    __pread_chk(fd: Fd, buf: Buf, len: usize, at: i64, room: usize) -> isize = -1;
    __pread64_chk(fd: Fd, buf: Buf, len: usize, at: i64, room: usize) -> isize = -1;
    lseek(fd: Fd, at: i64, whence: c_int) -> i64 = -1;
    lseek64(fd: Fd, at: i64, whence: c_int) -> i64 = -1;

    setrlimit(resource: libc::__rlimit_resource_t, new: *const libc::rlimit) -> c_int = -1;
    setrlimit64(resource: libc::__rlimit_resource_t, new: *const libc::rlimit) -> c_int = -1;
    prlimit(
        pid: libc::pid_t,
        resource: libc::__rlimit_resource_t,
        new: *const libc::rlimit,
        old: *mut libc::rlimit
    ) -> c_int = -1;
    prlimit64(
        pid: libc::pid_t,
        resource: libc::__rlimit_resource_t,
        new: *const libc::rlimit,
        old: *mut libc::rlimit
    ) -> c_int = -1;
    fsync(fd: Fd) -> c_int = -1;
    fdatasync(fd: Fd) -> c_int = -1;
    readahead(fd: Fd, at: i64, len: usize) -> isize = -1;
    posix_fadvise(fd: Fd, at: i64, len: i64, advice: c_int) -> c_int = libc::ENOSYS;
    posix_fadvise64(fd: Fd, at: i64, len: i64, advice: c_int) -> c_int = libc::ENOSYS;
    sync_file_range(fd: Fd, at: i64, len: i64, flags: u32) -> c_int = -1;
    ftruncate(fd: Fd, len: i64) -> c_int = -1;
    ftruncate64(fd: Fd, len: i64) -> c_int = -1;
    fallocate(fd: Fd, mode: c_int, at: i64, len: i64) -> c_int = -1;
    fallocate64(fd: Fd, mode: c_int, at: i64, len: i64) -> c_int = -1;
    posix_fallocate(fd: Fd, at: i64, len: i64) -> c_int = libc::ENOSYS;
    posix_fallocate64(fd: Fd, at: i64, len: i64) -> c_int = libc::ENOSYS;
    fstat(fd: Fd, into: *mut libc::stat) -> c_int = -1;
    fstat64(fd: Fd, into: *mut libc::stat) -> c_int = -1;
    __fxstat(version: c_int, fd: Fd, into: *mut libc::stat) -> c_int = -1;
    __fxstat64(version: c_int, fd: Fd, into: *mut libc::stat) -> c_int = -1;
    sendfile(to: Fd, from: Fd, at: *mut i64, len: usize) -> isize = -1;
    sendfile64(to: Fd, from: Fd, at: *mut i64, len: usize) -> isize = -1;
    copy_file_range(from: Fd, at: *mut i64, to: Fd, to_at: *mut i64, len: usize, flags: u32) -> isize = -1;
    splice(from: Fd, at: *mut i64, to: Fd, to_at: *mut i64, len: usize, flags: u32) -> isize = -1;
    sendmsg(fd: Fd, message: *const libc::msghdr, flags: c_int) -> isize = -1;
    sendmmsg(fd: Fd, messages: *mut libc::mmsghdr, n: u32, flags: c_int) -> c_int = -1;
    pidfd_getfd(pidfd: Fd, fd: Fd, flags: u32) -> Fd = -1;
    daemon(nochdir: c_int, noclose: c_int) -> c_int = -1;
    login_tty(fd: Fd) -> c_int = -1;
    pthread_cancel(thread: libc::pthread_t) -> c_int = libc::ENOSYS;
    pthread_testcancel() -> () = ();
    pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int = libc::ENOSYS;
    pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int = libc::ENOSYS;
    fork() -> libc::pid_t = -1;
    _Fork() -> libc::pid_t = -1;
    __register_atfork(
        before: Option<extern "C" fn()>,
        in_parent: Option<extern "C" fn()>,
        in_child: Option<extern "C" fn()>,
        of: Buf
    ) -> c_int = libc::ENOSYS;
    clone(
        entry: Option<unsafe extern "C-unwind" fn(Buf) -> c_int>,
        stack: Buf,
        flags: c_int,
        arg: Buf,
        parents_id: Buf,
        thread: Buf,
        childs_id: Buf
    ) -> c_int = -1;

    mmap(at: Buf, len: usize, protection: c_int, flags: c_int, fd: Fd, from: i64) -> Buf = libc::MAP_FAILED;
    mmap64(at: Buf, len: usize, protection: c_int, flags: c_int, fd: Fd, from: i64) -> Buf = libc::MAP_FAILED;

    fdopen(fd: Fd, mode: Path) -> Stream = std::ptr::null_mut();
    fopen(path: Path, mode: Path) -> Stream = std::ptr::null_mut();
    fopen64(path: Path, mode: Path) -> Stream = std::ptr::null_mut();
    freopen(path: Path, mode: Path, stream: Stream) -> Stream = std::ptr::null_mut();
    freopen64(path: Path, mode: Path, stream: Stream) -> Stream = std::ptr::null_mut();
    fclose(stream: Stream) -> c_int = -1;
    pclose(stream: Stream) -> c_int = -1;
    opendir(path: Path) -> *mut libc::DIR = std::ptr::null_mut();
    backtrace_symbols_fd(frames: *const Buf, n: c_int, fd: Fd) -> () = ();
    __backtrace_symbols_fd(frames: *const Buf, n: c_int, fd: Fd) -> () = ();
    popen(command: Path, mode: Path) -> Stream = std::ptr::null_mut();
    system(command: Path) -> c_int = -1;
    execve(path: Path, argv: Texts, env: Texts) -> c_int = -1;
    execv(path: Path, argv: Texts) -> c_int = -1;
    execvp(file: Path, argv: Texts) -> c_int = -1;
    execvpe(file: Path, argv: Texts, env: Texts) -> c_int = -1;
    fexecve(fd: Fd, argv: Texts, env: Texts) -> c_int = -1;
    execveat(dir: Fd, path: Path, argv: Texts, env: Texts, flags: c_int) -> c_int = -1;
    wordexp(text: Path, into: Buf, flags: c_int) -> c_int = WRDE_NOSPACE;
    forkpty(master: *mut Fd, name: *mut c_char, term: Bytes, size: Bytes) -> libc::pid_t = -1;
    openpty(master: *mut Fd, slave: *mut Fd, name: *mut c_char, term: Bytes, size: Bytes) -> c_int = -1;
    posix_spawn(pid: *mut i32, path: Path, actions: Bytes, attributes: Bytes, argv: Buf, env: Buf) -> c_int = libc::ENOSYS;
    posix_spawnp(pid: *mut i32, path: Path, actions: Bytes, attributes: Bytes, argv: Buf, env: Buf) -> c_int = libc::ENOSYS;
    pidfd_spawn(pidfd: *mut Fd, path: Path, actions: Bytes, attributes: Bytes, argv: Buf, env: Buf) -> c_int = NO_FUNCTION;
    pidfd_spawnp(pidfd: *mut Fd, path: Path, actions: Bytes, attributes: Bytes, argv: Buf, env: Buf) -> c_int = NO_FUNCTION;

    socket(domain: c_int, kind: c_int, protocol: c_int) -> Fd = -1;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, into: *mut Fd) -> c_int = -1;
    accept(fd: Fd, address: Buf, len: Buf) -> Fd = -1;
    accept4(fd: Fd, address: Buf, len: Buf, flags: c_int) -> Fd = -1;
    pipe(into: *mut Fd) -> c_int = -1;
    pipe2(into: *mut Fd, flags: c_int) -> c_int = -1;
    epoll_create(size: c_int) -> Fd = -1;
    epoll_create1(flags: c_int) -> Fd = -1;
    eventfd(start: u32, flags: c_int) -> Fd = -1;
    memfd_create(name: Path, flags: u32) -> Fd = -1;
    timerfd_create(clock: c_int, flags: c_int) -> Fd = -1;
    inotify_init() -> Fd = -1;
    inotify_init1(flags: c_int) -> Fd = -1;
    shm_open(path: Path, flags: c_int, mode: libc::mode_t) -> Fd = -1;

    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int = -1;
    syscall(n: i64, a: i64, b: i64, c: i64, d: i64, e: i64, f: i64) -> i64 = -1;
    _exit(code: c_int) -> () = ();
}

/// Sets errno.
pub fn set_errno(value: c_int) {
    // SAFETY: the thread's own word.
    unsafe { *libc::__errno_location() = value };
}

/// The value of errno.
pub fn errno() -> c_int {
    // SAFETY: the thread's own word.
    unsafe { *libc::__errno_location() }
}
