//! The generation of this process, checked at every call: a forked child must not use its parent's leases.
//!
//! State       one page that the kernel wipes in a child (`MADV_WIPEONFORK`, Linux 4.14), with the process's generation in it; and the
//!             last generation in this line of forks, which a fork copies: a child takes the next one. Process numbers would not
//!             do: parent and child may both be number 1 of their namespaces.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

struct Page(&'static AtomicU32);

static PAGE: OnceLock<Option<Page>> = OnceLock::new();
static LAST: AtomicU32 = AtomicU32::new(0);

/// A number that differs from those of all processes whose memory this one has inherited.
#[inline]
pub fn generation() -> u32 {
    match PAGE.get_or_init(make) {
        // The kernel is too old for such a page: the process number is the best substitute.
        None => std::process::id(),
        Some(Page(word)) => {
            // ORDERING: Relaxed, the exchange below decides.
            let known = word.load(Relaxed);
            if known != 0 { known } else { first(word) }
        }
    }
}

/// Returns true if [`begin_anew`] is possible.
pub fn may_begin_anew() -> bool {
    PAGE.get().is_some_and(Option::is_some)
}

/// Makes this process a new one with regard to its threads' leases, as a fork does for the child.
pub fn begin_anew() {
    if let Some(Some(Page(word))) = PAGE.get() {
        word.store(0, SeqCst);
    }
}

#[cold]
fn first(word: &AtomicU32) -> u32 {
    let next = LAST.load(SeqCst).wrapping_add(1).max(1);
    // Before other threads of this process find it: one may fork, and the child takes the next one.
    LAST.fetch_max(next, SeqCst);
    word.compare_exchange(0, next, SeqCst, SeqCst).map_or_else(|others| others, |_| next)
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
    // SAFETY: the mapping is never unmapped, zero bytes are an atomic 0, and only this reference reaches it.
    Some(Page(unsafe { &*base.cast::<AtomicU32>() }))
}

/// Identity of this boot of the machine: an arena of another boot is not valid.
#[cfg(not(loom))]
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    let mut id = [0; 16];
    for (to, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *to = pair[0] << 4 | pair[1];
    }
    id
}

/// Process and thread in their own numbering: for messages, never to decide whether they live.
pub fn for_people() -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(rustix::thread::gettid().as_raw_nonzero().get() as u32)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_child_and_a_process_that_begins_anew_are_new() {
        let mine = generation();
        assert!(mine != 0 && generation() == mine && may_begin_anew());
        // SAFETY: the child compares some numbers and leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let child = generation();
            let is_new = child != 0 && child != mine && child == generation() && may_begin_anew();
            begin_anew();
            let anew = generation();
            let is_newer = anew != 0 && anew != child && anew != mine && anew == generation();
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(!is_new) | i32::from(!is_newer) << 1) };
        }
        let mut status = 0;
        // SAFETY: room for the answer.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!((status, generation()), (0, mine));
    }

    #[test]
    fn boot_and_thread_are_those_of_the_kernel() {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let said: String = boot_id().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(said, text.trim().replace('-', ""));
        // SAFETY: reads a number, cannot fail.
        let thread = unsafe { libc::gettid() } as u64;
        assert_eq!((for_people() >> 32, for_people() % (1 << 32)), (std::process::id().into(), thread));
    }
}
