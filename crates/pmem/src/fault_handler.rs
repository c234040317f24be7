//! Faults in a region's memory: its file was truncated, or the media has lost a line. Without this module the
//! process ends (SIGBUS).
//!
//! State       a table of this process's regions; the handler that was installed before.
//! Invariants  I1  the handler calls only `mmap`, `mremap` and atomics, and keeps `errno`.
//!             I2  the faulting page is replaced by one full of [`LOST_WORD`]s, which is filled before it is mapped there. No reader
//!                 sees zeros, which would be valid content. The loss is noted before that (I2 of `lost`).
//!             I3  a fault elsewhere is passed to the handler that was installed before.
//!             I4  a place in the table is taken by one exchange, without a lock: so a child forked while another thread takes one can
//!                 still map regions.
//! Replaced    Stores to such a page do not reach the media. So from then on [`Region::failed`](crate::Region::failed) reports that the
//!             region must not be changed. Stores that were durable before stay durable.

use crate::BLOCK_BYTES;
use crate::dirty::Failure;
use crate::lost::LOST_WORD;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Most regions of a process that are protected at once; a fault in one more ends the process.
const REGIONS_MAX: usize = 64;

struct Entry {
    base: AtomicUsize,
    len_bytes: AtomicUsize,
    failure: AtomicPtr<crate::dirty::FirstError>,
}

static REGIONS: [Entry; REGIONS_MAX] = [const {
    Entry { base: AtomicUsize::new(0), len_bytes: AtomicUsize::new(0), failure: AtomicPtr::new(null_mut()) }
}; REGIONS_MAX];

/// In place of a base: a thread is filling in this place.
const TAKEN: usize = 1;

/// The action for SIGBUS that was installed before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A region's place in the table, until dropped.
#[derive(Debug)]
pub(crate) struct HandledRegion {
    place: usize,
    _failure: Failure,
}

impl HandledRegion {
    /// Notes a mapping; `None` if the table is full.
    pub(crate) fn new(base: usize, len_bytes: u64, failure: &Failure) -> Option<HandledRegion> {
        let take = |entry: &Entry| {
            // ORDERING: Acquire, pairs with the Release in `drop`: the last holder of the place is done with it.
            entry.base.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let place = REGIONS.iter().position(take)?;
        let entry = &REGIONS[place];
        entry.len_bytes.store(len_bytes as usize, Ordering::Relaxed); // ORDERING: Relaxed, published by the base.
        entry.failure.store(Arc::as_ptr(failure).cast_mut(), Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire in `region_at`.
        entry.base.store(base, Ordering::Release);
        Some(HandledRegion { place, _failure: failure.clone() })
    }
}

impl HandledRegion {
    /// Clears the place: the mapping is about to be unmapped, and its addresses may be reused.
    pub(crate) fn forget(&self) {
        // ORDERING: Release: all uses of the region have ended.
        REGIONS[self.place].base.store(0, Ordering::Release);
    }
}

impl Drop for HandledRegion {
    fn drop(&mut self) {
        self.forget();
    }
}

/// From now on a load or store that faults in a region does not end the process. It meets lost words
/// ([`Region::lost`](crate::Region::lost)), and the region fails ([`Region::failed`](crate::Region::failed)).
/// For our own programs; a library in other people's processes should not change their signal handling.
pub fn install_fault_handler() {
    BEFORE.get_or_init(|| {
        // SAFETY: `sigaction` is plain integers and pointers, for which zero is valid.
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = on_fault;
        new.sa_sigaction = handler as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler keeps to I1; both structs are live locals.
        unsafe {
            libc::sigemptyset(&mut new.sa_mask);
            libc::sigaction(libc::SIGBUS, &new, &mut old);
        }
        old
    });
}

/// The region that contains an address, and the offset in it.
fn region_at(address: usize) -> Option<(&'static crate::dirty::FirstError, usize)> {
    REGIONS.iter().find_map(|entry| {
        // ORDERING: Acquire, pairs with the Release in `new`.
        let base = entry.base.load(Ordering::Acquire);
        // ORDERING: Relaxed, published by the base.
        let within = address.wrapping_sub(base) < entry.len_bytes.load(Ordering::Relaxed);
        let failure = entry.failure.load(Ordering::Relaxed);
        // SAFETY: the faulting thread uses a region that is in the table, so its `HandledRegion`, which holds the failure, lives.
        (base > TAKEN && within).then(|| (unsafe { &*failure }, address - base))
    })
}

/// Returns true if this is an address in a region.
pub(crate) fn is_of_a_region(address: usize) -> bool {
    region_at(address).is_some()
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid siginfo; SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    // SAFETY: the thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    let replaced = region_at(address).is_some_and(|(failure, at)| {
        failure.lost.note(at as u64, BLOCK_BYTES.trailing_zeros());
        failure.lost.note_replaced();
        replace(address & !(BLOCK_BYTES - 1))
    });
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !replaced {
        hand_on(signal, info, context);
    }
}

/// Replaces a faulting page by a page of lost words (I2).
fn replace(page: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new page at an address of the kernel's choice.
    let fresh = unsafe { libc::mmap(null_mut(), BLOCK_BYTES, access, how, -1, 0) };
    if fresh == libc::MAP_FAILED {
        return false;
    }
    for word in 0..BLOCK_BYTES / 8 {
        // SAFETY: inside the page just made.
        unsafe { fresh.cast::<u64>().add(word).write(LOST_WORD.to_le()) };
    }
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the target is an unusable page of a mapping of ours; its owner unmaps the whole range.
    let moved = unsafe { libc::mremap(fresh, BLOCK_BYTES, BLOCK_BYTES, flags, page as *mut c_void) };
    moved != libc::MAP_FAILED
}

/// I3.
fn hand_on(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = BEFORE.get();
    let action = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if action == libc::SIG_DFL || action == libc::SIG_IGN {
        // The load or store is executed again, and ends the process as it would have without us. SAFETY: sets
        // the default.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) {
        // SAFETY: a handler installed with SA_SIGINFO is a function of three arguments.
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(action) };
        handler(signal, info, context);
    } else {
        // SAFETY: a handler installed without it is a function of one.
        let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(action) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenOptions, Pos, Region};
    use std::fs;
    use std::path::Path;
    use std::process::{Command, Stdio};

    #[test]
    fn truncating_a_mapped_image_loses_bytes_but_kills_no_process() {
        install_fault_handler();
        for parent in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            let path = parent.join(format!("heddle-pmem-cut-{}", std::process::id()));
            let region = Region::create(&path, 1 << 20, &OpenOptions::default()).unwrap();
            let again = region.map_again().unwrap();
            let at = Pos(region.len_bytes() / 2 + 4096);
            region.store_u64(Pos(64), 7);
            region.store_u64(at, 8);
            region.fence();
            assert!(!region.lost(at, 8) && region.failed().is_none());
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(at.0 - 4096).unwrap();
            assert_eq!((region.load_u64(Pos(64)), region.load_u64(at)), (7, crate::LOST_WORD));
            assert!(region.lost(at, 8) && region.lost(Pos(at.0 + 4000), 1) && !region.lost(Pos(64), 8));
            assert!(again.lost(at, 8), "both mappings know");
            let error = again.failed().expect("what is stored may be lost").to_string();
            assert!(error.contains("cut short") && error.contains("heddle-pmem-cut"), "{error}");
            // A store, first of all, to a page that is gone: neither ends the process.
            again.nt_write(Pos(at.0 + 8192), &[1; 100]);
            region.fence();
            assert!(region.lost(Pos(at.0 + 8192), 1));
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_fault_outside_all_regions_ends_the_process() {
        const CHILD: &str = "HEDDLE_TEST_FAULT_CHILD";
        if std::env::var_os(CHILD).is_some() {
            install_fault_handler();
            let file = rustix::fs::memfd_create("no-region", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            // No file content is behind the page: a load of it faults.
            let mapping =
                crate::mapping::Mapping::of_file(std::os::fd::AsFd::as_fd(&file), 4096, true, false);
            // SAFETY: mapped; the fault is what is tested.
            let word = unsafe { mapping.unwrap().base().read_volatile() };
            unreachable!("{word} was read");
        }
        let name = "fault_handler::tests::a_fault_outside_all_regions_ends_the_process";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact"]).env(CHILD, "1").stdout(Stdio::null()).stderr(Stdio::null());
        let status = child.status().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGBUS), "{status}");
    }
}
