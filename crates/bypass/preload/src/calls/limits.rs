//! The limit of a file's size (`RLIMIT_FSIZE`): a call that may reach it is passed to the kernel, which also
//! sends the signal.
//!
//! Usually there is no limit. That is checked at a thread's first call and then from time to time. If the
//! program itself sets a limit, this library sees that, and from then on checks at each call. A limit that
//! another process sets (`prlimit` with a pid) counts a little later.

use super::meta::same;
use crate::real;
use crate::thread::this_thread;
use heddle_bypass::Passed;
use libc::{c_int, pid_t};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number of calls between two checks.
const LOOK_EVERY: u32 = 1024;

/// True if this program has ever set the limit.
static SET_HERE: AtomicBool = AtomicBool::new(false);

/// Serves the call if no limit is near; otherwise the kernel makes it.
#[inline]
pub fn may_grow_to(end: impl FnOnce() -> i64) -> Result<(), Passed> {
    let left = &this_thread().limitless_for;
    // ORDERING: Relaxed: a thread that sets a limit while another one writes is not ordered with it anyway.
    match left.get() {
        calls if calls > 0 && !SET_HERE.load(Relaxed) => {
            left.set(calls - 1);
            Ok(())
        }
        _ => look(end()),
    }
}

#[cold]
fn look(end: i64) -> Result<(), Passed> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        None => {
            this_thread().limitless_for.set(LOOK_EVERY);
            Ok(())
        }
        Some(limit) if u64::try_from(end).is_ok_and(|end| end > limit) => Err(Passed::Limited),
        Some(_) => Ok(()),
    }
}

/// Notes that a call may be setting a limit.
pub fn note(resource: libc::__rlimit_resource_t, changes: bool) {
    if changes && resource == libc::RLIMIT_FSIZE {
        // ORDERING: Relaxed, as in `may_grow_to`; stored before the limit itself is set, so that no thread
        // misses it.
        SET_HERE.store(true, Relaxed);
    }
}

// As setrlimit(2).
same! {
    [setrlimit setrlimit64] (resource: libc::__rlimit_resource_t, new: *const libc::rlimit) {
        |call: _| {
            note(resource, true);
            answered(call)
        }
    }
}

// As prlimit(2).
same! {
    [prlimit prlimit64] (
        pid: pid_t,
        resource: libc::__rlimit_resource_t,
        new: *const libc::rlimit,
        old: *mut libc::rlimit
    ) {
        |call: _| {
            note(resource, !new.is_null());
            answered(call)
        }
    }
}

fn answered(call: impl FnOnce() -> c_int) -> c_int {
    call()
}
