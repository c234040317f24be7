//! Rights: a process that has mapped an image and then loses rights must unmap it.
//!
//! At an open the kernel would check the new, lesser rights; for an existing mapping it checks nothing. So a
//! call that changes the process's rights gives all files to the kernel and unmaps the images
//! (`table::let_go`). That lasts as long as the process lives, since its threads may have different rights.
//! Another program that it executes attaches with its own rights.
//!
//! Ids and capabilities are compared before and after: a call that changes nothing, or fails, has no further
//! effect. Sandboxes (filters, namespaces, another root) cannot be compared, so the images are unmapped
//! before the call, even if it fails.

use super::children::is_process_1;
use super::meta::same;
use crate::table::stop_serving_for_ever;
use crate::thread::this_thread;
use crate::{memory, real, table, taking};
use libc::{c_char, c_int, c_long, c_void, gid_t};

/// The rights of the calling thread to files.
#[derive(PartialEq, Eq)]
struct Rights {
    /// Effective and file system ids, users then groups.
    ids: [i64; 4],
    /// A sum over the supplementary groups.
    groups: u64,
    effective: [u32; 2],
}

const CAPABILITIES_3: u32 = 0x2008_0522;
const GROUPS_MAX: usize = 65536;

impl Rights {
    /// The present rights; `None`: unknown.
    fn now() -> Option<Rights> {
        // SAFETY: neither takes a pointer; an impossible id changes nothing.
        let fs = [libc::SYS_setfsuid, libc::SYS_setfsgid].map(|n| unsafe { call(n, [-1, 0, 0]) });
        // SAFETY: neither takes a pointer.
        let [user, group] = [libc::SYS_geteuid, libc::SYS_getegid].map(|n| unsafe { call(n, [0; 3]) });
        let header = [CAPABILITIES_3, 0];
        let mut sets = [0_u32; 6];
        let at = [(&raw const header).addr() as i64, (&raw mut sets).addr() as i64, 0];
        // SAFETY: a header, and room for two words of three sets.
        let told = unsafe { call(libc::SYS_capget, at) };
        (told == 0).then_some(())?;
        Some(Rights { ids: [user, fs[0], group, fs[1]], groups: groups()?, effective: [sets[0], sets[3]] })
    }
}

/// A sum over the groups, which the kernel keeps sorted. No memory from the heap: a signal handler may change
/// rights.
fn groups() -> Option<u64> {
    let bytes = GROUPS_MAX * size_of::<gid_t>();
    let at = memory::map_zeroed(bytes)?;
    // SAFETY: room for the largest number of groups.
    let count = unsafe { call(libc::SYS_getgroups, [GROUPS_MAX as i64, at.expose_provenance() as i64, 0]) };
    let count = usize::try_from(count).ok()?.min(GROUPS_MAX);
    // SAFETY: the kernel has written this many, and zeros are valid groups too.
    let groups = unsafe { std::slice::from_raw_parts(at.cast::<gid_t>(), count) };
    let step = |sum: u64, group: &gid_t| (sum ^ u64::from(*group)).wrapping_mul(0x0000_0100_0000_01b3);
    let sum = groups.iter().fold(0xcbf2_9ce4_8422_2325 ^ count as u64, step);
    // SAFETY: mapped above, and used by no other thread.
    let _ = unsafe { rustix::mm::munmap(at, bytes) };
    Some(sum)
}

/// The kernel's answer, with errno unchanged.
unsafe fn call(n: c_long, args: [i64; 3]) -> i64 {
    let errno = real::errno();
    // SAFETY: the caller's promise.
    let done = unsafe { real::syscall(n, args[0], args[1], args[2], 0, 0, 0) };
    real::set_errno(errno);
    done
}

/// Runs a call that may change ids or capabilities.
pub fn changing<T>(call: impl FnOnce() -> T) -> T {
    if this_thread().is_vfork_child() {
        return call();
    }
    let before = table::any_engine().then(Rights::now);
    let done = call();
    // If there was no image before, another thread may have mapped the first one meanwhile, with the old
    // rights.
    let lost = before.is_none_or(|before| before.is_none() || before != Rights::now());
    if lost && table::any_engine() {
        let errno = real::errno();
        let _gone = table::let_go();
        real::set_errno(errno);
    }
    done
}

/// Runs a call that confines this process.
pub fn shutting_in<T>(call: impl FnOnce() -> T) -> T {
    let _gone = table::let_go();
    call()
}

/// Runs a call that locks all mapped memory. It would lock the mapped image and arena to their last page, and
/// allocate missing pages. So it fails, as where memory cannot be locked.
fn locking<T: From<i8>>(call: impl FnOnce() -> T) -> T {
    taking::no_more();
    if table::let_go() {
        return call();
    }
    real::set_errno(libc::EAGAIN);
    T::from(-1)
}

/// Runs a call after which no attach may be tried: under a filter of system calls, the calls of an attach (a
/// socket, an ioctl) may kill the program.
fn filtering<T>(call: impl FnOnce() -> T) -> T {
    taking::no_more_and_ask_nothing();
    shutting_in(call)
}

fn filtering_if<T>(filters: bool, call: impl FnOnce() -> T) -> T {
    if filters { filtering(call) } else { call() }
}

fn shutting_in_if<T>(shuts: bool, call: impl FnOnce() -> T) -> T {
    if shuts { shutting_in(call) } else { call() }
}

/// Returns true if this prctl(2) sets a filter of system calls. No other option changes rights at once.
fn filters(option: i64) -> bool {
    option == i64::from(libc::PR_SET_SECCOMP)
}

/// Runs unshare(2) with these flags: it may remove rights, or separate this thread's descriptors from the
/// others'.
fn unsharing<T>(flags: i64, call: impl FnOnce() -> T) -> T {
    let has = |flag: c_int| flags & i64::from(flag) != 0;
    // A vfork child in a new namespace of processes may have our number.
    if has(libc::CLONE_FILES) || has(libc::CLONE_NEWPID) && is_process_1() {
        stop_serving_for_ever();
    }
    shutting_in_if(flags & i64::from(libc::CLONE_NEWUSER) != 0, call)
}

/// Runs setns(2) with this kind of namespace: a vfork child in another namespace of processes may have our number.
fn entering<T>(kind: i64, call: impl FnOnce() -> T) -> T {
    if kind == 0 || kind & i64::from(libc::CLONE_NEWPID) != 0 {
        stop_serving_for_ever();
    }
    shutting_in(call)
}

/// As [`changing`] and [`shutting_in`], for a number of syscall(2). `Err`: it does neither; the call is
/// returned.
pub fn by_number(n: i64, [a, b]: [i64; 2], call: impl FnOnce() -> i64) -> Result<i64, impl FnOnce() -> i64> {
    match n {
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_setgroups
        | libc::SYS_capset => Ok(changing(call)),
        libc::SYS_prctl if filters(a) => Ok(filtering(call)),
        libc::SYS_seccomp => Ok(filtering(call)),
        libc::SYS_mlockall => Ok(locking(call)),
        libc::SYS_unshare => Ok(unsharing(a, call)),
        libc::SYS_setns => Ok(entering(b, call)),
        libc::SYS_chroot | libc::SYS_pivot_root | libc::SYS_landlock_restrict_self => Ok(shutting_in(call)),
        _ => Err(call),
    }
}

// As the C library's functions, which change the ids of all threads.
same! { [setuid setgid seteuid setegid setfsuid setfsgid] (id: u32) { changing } }
// As setreuid(2).
same! { [setreuid setregid] (real: u32, effective: u32) { changing } }
// As setresuid(2).
same! { [setresuid setresgid] (real: u32, effective: u32, saved: u32) { changing } }
// As setgroups(2).
same! { [setgroups] (n: usize, groups: *const gid_t) { changing } }
// As initgroups(3).
same! { [initgroups] (user: *const c_char, group: gid_t) { changing } }
// As capset(2).
same! { [capset] (header: *mut c_void, data: *const c_void) { changing } }
// As prctl(2).
same! {
    [prctl] (option: c_int, a: usize, b: usize, c: usize, d: usize) {
        |call| filtering_if(filters(option.into()), call)
    }
}
// As mlockall(2).
same! { [mlockall] (flags: c_int) { locking } }
// As unshare(2).
same! { [unshare] (flags: c_int) { |call| unsharing(flags.into(), call) } }
// As setns(2).
same! { [setns] (fd: c_int, kind: c_int) { |call| entering(kind.into(), call) } }
// As chroot(2).
same! { [chroot] (path: *const c_char) { shutting_in } }
// As pivot_root(2), which the C library has without a header.
same! { [pivot_root] (new: *const c_char, old: *const c_char) { shutting_in } }
