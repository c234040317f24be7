//! Which process this is, asked at every call: a forked child must not use what its parent's threads have leased. And whether another one
//! lives that left its mark.
//!
//! State       one page that the kernel wipes in a child (`MADV_WIPEONFORK`, Linux 4.14), with the number of the process in it. Where
//!             there is no such page, the kernel is asked each time.

use heddle_arena::sync::atomic::AtomicU32;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

struct Page(&'static AtomicU32);

static PAGE: OnceLock<Option<Page>> = OnceLock::new();

/// The number of this process.
#[inline]
pub fn id() -> u32 {
    match PAGE.get_or_init(make) {
        None => std::process::id(),
        Some(Page(word)) => {
            // ORDERING: Relaxed throughout, every thread that finds 0 stores the same number.
            let known = word.load(Relaxed);
            if known != 0 {
                return known;
            }
            let id = std::process::id();
            word.store(id, Relaxed); // ORDERING: Relaxed, as above.
            id
        }
    }
}

fn make() -> Option<Page> {
    const BYTES: usize = 4096;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let base = unsafe {
        mmap_anonymous(std::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let base = base.ok()?;
    // SAFETY: the mapping just made.
    if unsafe { libc::madvise(base, BYTES, libc::MADV_WIPEONFORK) } != 0 {
        return None;
    }
    // SAFETY: the mapping is never unmapped, zero bytes are an atomic 0, and it is reached through this reference alone.
    Some(Page(unsafe { &*base.cast::<AtomicU32>() }))
}

/// The calling thread, as the kernel numbers it.
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Is there no such thread in that process? Of none that could be asked about: false.
pub fn thread_is_gone(process: u32, thread: u32) -> bool {
    if process == 0 || thread == 0 {
        return false;
    }
    // SAFETY: signal 0 is sent to nobody: the kernel says whether it could be. Not /proc: that may be hidden from this user.
    let there = unsafe { libc::syscall(libc::SYS_tgkill, process as i32, thread as i32, 0) };
    there != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Bits of a process number (`PID_MAX_LIMIT` is 2^22).
const PID_BITS: u32 = 24;

/// A mark of this process that no other one of this boot has or had: its number, and when it was started.
pub fn mark() -> u64 {
    let id = std::process::id();
    started(id).unwrap_or(0) << PID_BITS | u64::from(id)
}

/// Is the process that left this mark alive? (Of a process that this one numbers differently nothing can be said: false.)
pub fn lives(mark: u64) -> bool {
    let id = (mark & ((1 << PID_BITS) - 1)) as u32;
    id != 0 && started(id) == Some(mark >> PID_BITS)
}

/// When a process was started, in ticks since boot; `None` if there is none, or it has ended and nobody has asked how.
fn started(id: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // Behind a name that may hold blanks and brackets: state, then the 19th field after it.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let ended = fields.next()?.starts_with(['Z', 'X']);
    let ticks = fields.nth(18)?.parse().ok()?;
    (!ended).then_some(ticks)
}
