//! The generation of this process, by which a forked child knows what it has copied from its parent.
//!
//! State       one page that the kernel wipes in a child (`MADV_WIPEONFORK`, Linux 4.14), with the process's generation in it; and the
//!             last generation in this line of forks, which a fork copies: a child takes the next one. Process numbers would not
//!             do: parent and child may both be number 1 of their namespaces.
//! Invariants  I1  no lock and no heap: a fork in the middle leaves the child nothing to wait for.
//! Orderings   O1  the page's address (Release) pairs with the Acquire in `generation`.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32};

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
static LAST: AtomicU32 = AtomicU32::new(0);
/// In place of the page where the kernel is too old for one.
static NO_PAGE: AtomicU32 = AtomicU32::new(0);

/// A number that differs from those of all processes whose memory this one has inherited; never 0.
#[inline]
pub fn generation() -> u32 {
    // ORDERING: Acquire, O1.
    let mut page = PAGE.load(Acquire);
    if page.is_null() {
        page = make();
    }
    // SAFETY: a page that is never unmapped, or a static.
    let word = unsafe { &*page };
    // ORDERING: Relaxed, the exchange in `first` decides.
    let known = word.load(Relaxed);
    if known != 0 { known } else { first(word) }
}

/// The page, if it is there and the kernel wipes it.
fn page() -> Option<&'static AtomicU32> {
    // ORDERING: Acquire, O1.
    // SAFETY: null, a page that is never unmapped, or a static.
    unsafe { PAGE.load(Acquire).as_ref() }.filter(|page| !std::ptr::eq(*page, &NO_PAGE))
}

/// Returns true if [`begin_anew`] is possible.
pub fn may_begin_anew() -> bool {
    page().is_some()
}

/// Makes this process a new one, as a fork makes the child. No thread uses a region.
pub fn begin_anew() {
    if let Some(word) = page() {
        word.store(0, SeqCst);
    }
}

#[cold]
fn first(word: &AtomicU32) -> u32 {
    if std::ptr::eq(word, &NO_PAGE) {
        return std::process::id();
    }
    let next = LAST.load(SeqCst).wrapping_add(1).max(1);
    // Before other threads of this process find it: one may fork, and the child takes the next one.
    LAST.fetch_max(next, SeqCst);
    word.compare_exchange(0, next, SeqCst, SeqCst).map_or_else(|others| others, |_| next)
}

#[cold]
fn make() -> *mut AtomicU32 {
    const BYTES: usize = 4096;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let mapped = unsafe { mmap_anonymous(null_mut(), BYTES, access, MapFlags::PRIVATE) };
    let page = match mapped {
        // SAFETY: the mapping just made.
        Ok(page) if unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } == 0 => page.cast(),
        _ => (&raw const NO_PAGE).cast_mut(),
    };
    // ORDERING: Release, and Acquire for another's page, O1.
    match PAGE.compare_exchange(null_mut(), page, Release, Acquire) {
        Ok(_) => page,
        Err(others) => {
            if let Ok(mapped) = mapped {
                // SAFETY: made above, and not published. If it cannot be unmapped, it stays.
                let _ = unsafe { munmap(mapped, BYTES) };
            }
            others
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_and_a_process_that_begins_anew_are_new() {
        let _alone = crate::tests::FORKS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mine = generation();
        assert!(mine != 0 && generation() == mine);
        // SAFETY: child and grandchild compare generations, and leave by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let its = generation();
            // SAFETY: as above.
            let grandchild = unsafe { libc::fork() };
            if grandchild == 0 {
                let its_own = generation();
                let is_new = ![0, mine, its].contains(&its_own) && may_begin_anew();
                begin_anew();
                let anew = generation();
                let good = is_new && ![0, mine, its, its_own].contains(&anew) && anew == generation();
                // SAFETY: ends this process.
                unsafe { libc::_exit(i32::from(!good)) };
            }
            let mut status = 0;
            // SAFETY: room for the answer; ends this process.
            unsafe {
                libc::waitpid(grandchild, &mut status, 0);
                libc::_exit(i32::from(its == 0 || its == mine || its != generation() || status != 0));
            }
        }
        let mut status = 0;
        // SAFETY: room for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, generation()), (0, mine));
    }
}
