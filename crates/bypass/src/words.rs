//! Words that a process shares with its forked children, one per open file; and whether any of those
//! processes still lives.
//!
//! State       one page of words for the files that one fork shares, and before it a page private to this process, the head.
//!             The shared page is a System V memory segment: the kernel counts the processes that have it mapped, however they end, and
//!             it needs no descriptor. Where there are no such segments it is plain shared memory, and no process is ever known to be
//!             alone.
//! Invariants  P1  the pages are unmapped when the last file of this process that uses them is closed, and no [`StaysShared`] keeps them;
//!                 words are not used again.
//!             P2  a segment is marked for removal before any other process knows it: it goes with its last process.
//!             P3  a forked child lets go of what other threads of its parent keep: they do not exist there.
//!
//! Nothing here allocates from the heap: a signal handler may fork.

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};

const PAGE_BYTES: usize = 4096;
/// The head and the words.
const PAIR_BYTES: usize = 2 * PAGE_BYTES;
const BOTH: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The private page before the shared one; zeros when it is new.
struct Head {
    /// Files of this process that use the two pages, and each [`StaysShared`].
    users: AtomicU32,
    /// The segment's number plus 1; 0 for plain memory.
    segment: AtomicI32,
    /// The namespace in which that number is valid.
    namespace: AtomicU64,
}

/// Words for the files that one fork shares.
pub struct Words {
    page: *mut AtomicU8,
    left: usize,
}

impl Default for Words {
    fn default() -> Words {
        Words { page: null_mut(), left: 0 }
    }
}

impl Words {
    /// The next word. Returns `None` if there is no memory.
    pub(crate) fn next(&mut self) -> Option<*mut AtomicU8> {
        if self.left == 0 {
            self.page = new_page()?;
            self.left = PAGE_BYTES;
        }
        self.left -= 1;
        // SAFETY: within the page.
        let word = unsafe { self.page.add(self.left) };
        head_of(word).users.fetch_add(1, SeqCst);
        Some(word)
    }
}

/// The words of each [`StaysShared`]; null: a free place. If there are more, a child keeps their pages (P3).
static KEPT: [AtomicPtr<AtomicU8>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];

/// Keeps the pages of this word mapped until it is dropped, so that no other process finds itself alone.
pub struct StaysShared {
    word: *mut AtomicU8,
    place: Option<&'static AtomicPtr<AtomicU8>>,
}

impl StaysShared {
    /// The caller has a file that uses the word.
    pub(crate) fn begin(word: *mut AtomicU8) -> StaysShared {
        // In this order, as in `drop`: a fork in between leaves the child one user too many.
        head_of(word).users.fetch_add(1, SeqCst);
        let is_free =
            |place: &&AtomicPtr<_>| place.compare_exchange(null_mut(), word, SeqCst, SeqCst).is_ok();
        StaysShared { word, place: KEPT.iter().find(is_free) }
    }
}

impl Drop for StaysShared {
    fn drop(&mut self) {
        let (word, place) = (self.word, self.place);
        let is_kept = |place: &AtomicPtr<_>| place.compare_exchange(word, null_mut(), SeqCst, SeqCst).is_ok();
        // In a child that was forked meanwhile, its place is free.
        if place.is_none_or(is_kept) {
            give_back(word);
        }
    }
}

/// P3.
pub(crate) fn reset_in_child() {
    for place in &KEPT {
        let word = place.swap(null_mut(), SeqCst);
        if !word.is_null() {
            give_back(word);
        }
    }
}

/// Releases the word of a file that this process has closed.
pub(crate) fn give_back(word: *mut AtomicU8) {
    if head_of(word).users.fetch_sub(1, SeqCst) == 1 {
        // SAFETY: P1: no file of this process uses either page any more.
        let _ = unsafe { munmap(first_of(word), PAIR_BYTES) };
    }
}

/// Returns true if no other process has this word for certain: each that had it has ended, called exec, or
/// closed its file.
pub(crate) fn are_ours_alone(word: *mut AtomicU8) -> bool {
    let head = head_of(word);
    let segment = head.segment.load(SeqCst);
    segment != 0 && mapped_once(segment - 1) && ipc_namespace() == Some(head.namespace.load(SeqCst))
}

/// Maps two pages: the first is private, the second is shared with children.
fn new_page() -> Option<*mut AtomicU8> {
    // SAFETY: new memory, at no particular address.
    let map = |len_bytes| unsafe { mmap_anonymous(null_mut(), len_bytes, BOTH, MapFlags::PRIVATE) };
    let first = two_aligned_pages(map).ok()?;
    let second = first.wrapping_byte_add(PAGE_BYTES);
    if let Some((segment, namespace)) = counted_memory(second) {
        let head = head_of(second.cast());
        head.namespace.store(namespace, SeqCst);
        head.segment.store(segment + 1, SeqCst);
        return Some(second.cast());
    }
    // SAFETY: the second page of the new mapping is replaced.
    unsafe {
        if mmap_anonymous(second, PAGE_BYTES, BOTH, MapFlags::SHARED | MapFlags::FIXED).is_err() {
            let _ = munmap(first, PAIR_BYTES);
            return None;
        }
    }
    Some(second.cast())
}

/// Cuts memory that `map` maps down to two pages, at an address that is a multiple of their size.
fn two_aligned_pages(
    map: impl FnOnce(usize) -> rustix::io::Result<*mut c_void>,
) -> rustix::io::Result<*mut c_void> {
    let all = map(2 * PAIR_BYTES)?;
    let first = all.map_addr(|at| at.next_multiple_of(PAIR_BYTES));
    let before = first.addr() - all.addr();
    // SAFETY: the pages around were mapped just now, and no other code knows them. Where there are none, the kernel refuses.
    unsafe {
        let _ = munmap(all, before);
        let _ = munmap(first.wrapping_byte_add(PAIR_BYTES), PAIR_BYTES - before);
    }
    Ok(first)
}

/// Maps a segment of one page over the page at `at`. Returns its number and the namespace of that number.
fn counted_memory(at: *mut c_void) -> Option<(i32, u64)> {
    if !system_calls_are_free() {
        return None;
    }
    let namespace = ipc_namespace()?;
    keeping_errno(|| {
        // SAFETY: a new segment replaces the caller's page, or nothing has changed; P2.
        unsafe {
            let segment = libc::shmget(libc::IPC_PRIVATE, PAGE_BYTES, libc::IPC_CREAT | 0o600);
            if segment < 0 {
                return None;
            }
            let mapped = libc::shmat(segment, at, libc::SHM_REMAP) == at;
            libc::shmctl(segment, libc::IPC_RMID, null_mut());
            mapped.then_some((segment, namespace))
        }
    })
}

fn mapped_once(segment: i32) -> bool {
    // SAFETY: plain numbers, for which zero is valid, and which the kernel fills in.
    let (told, mapped) = keeping_errno(|| unsafe {
        let mut said: libc::shmid_ds = std::mem::zeroed();
        (libc::shmctl(segment, libc::IPC_STAT, &mut said), said.shm_nattch)
    });
    told == 0 && mapped == 1
}

/// The namespace in which this thread's segment numbers count.
fn ipc_namespace() -> Option<u64> {
    rustix::fs::stat(c"/proc/thread-self/ns/ipc").ok().map(|stat| stat.st_ino)
}

/// Returns true if no filter of system calls is set. A filter that does not know segments may kill the
/// program.
fn system_calls_are_free() -> bool {
    let Ok(file) =
        rustix::fs::open(c"/proc/thread-self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return false;
    };
    contains(b"\nSeccomp:\t0\n", |text| rustix::io::read(&file, text).unwrap_or(0))
}

/// Returns true if `read` reads these bytes, a piece at a time, before it reads nothing.
fn contains(line: &[u8], mut read: impl FnMut(&mut [u8]) -> usize) -> bool {
    // A small buffer, for the stack may be small: the rest of one piece is moved before the next.
    let (mut text, mut kept) = ([0_u8; 256], 0);
    loop {
        let len = kept + read(&mut text[kept..]);
        if len == kept {
            return false;
        }
        if text[..len].windows(line.len()).any(|part| part == line) {
            return true;
        }
        kept = len.min(line.len());
        text.copy_within(len - kept..len, 0);
    }
}

fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: this thread's own word.
    unsafe {
        let errno = *libc::__errno_location();
        let done = call();
        *libc::__errno_location() = errno;
        done
    }
}

fn first_of(word: *mut AtomicU8) -> *mut c_void {
    word.map_addr(|at| at & !(PAIR_BYTES - 1)).cast()
}

fn head_of(word: *mut AtomicU8) -> &'static Head {
    // SAFETY: the private page before the words, zeros when it was new; P1: mapped while one of its words is
    // used.
    unsafe { &*first_of(word).cast::<Head>() }
}

/// Tests make pages one at a time: an unmapped address may belong to another test at once.
#[cfg(test)]
pub(crate) static ONE_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that waits until it is told to end.
    fn child(word: *mut AtomicU8) -> i32 {
        // SAFETY: the child only makes system calls and touches shared memory.
        unsafe {
            match libc::fork() {
                0 => {
                    while (*word).load(SeqCst) == 0 {
                        libc::sched_yield();
                    }
                    libc::_exit(0)
                }
                child => child,
            }
        }
    }

    /// Returns true if there are segments of shared memory here, and no filter of system calls.
    fn has_segments() -> bool {
        // SAFETY: a new segment, which goes at once.
        let made = unsafe {
            let segment = libc::shmget(libc::IPC_PRIVATE, PAGE_BYTES, 0o600);
            segment >= 0 && libc::shmctl(segment, libc::IPC_RMID, null_mut()) == 0
        };
        made && std::fs::read_to_string("/proc/thread-self/status").unwrap().contains("\nSeccomp:\t0\n")
    }

    #[test]
    fn two_pages_are_cut_out_whole_wherever_they_lie() {
        const WHOLE: usize = 16 * PAGE_BYTES;
        for before in [0, PAGE_BYTES] {
            let file = rustix::fs::memfd_create("cut", rustix::fs::MemfdFlags::empty()).unwrap();
            rustix::fs::ftruncate(&file, WHOLE as u64).unwrap();
            // SAFETY: a new mapping at an address of the kernel's choice.
            let whole = unsafe { rustix::mm::mmap(null_mut(), WHOLE, BOTH, MapFlags::SHARED, &file, 0) };
            let whole = whole.unwrap();
            let from = whole.addr().next_multiple_of(8192) + 8192 - before;
            let cut = two_aligned_pages(|len| {
                assert_eq!(len, 16384);
                Ok(whole.with_addr(from))
            });
            let cut = cut.unwrap().addr();
            assert_eq!((cut % 8192, cut), (0, from + before));
            let left = [(whole.addr(), from), (cut, cut + 8192), (from + 16384, whole.addr() + WHOLE)];
            let inode = rustix::fs::fstat(&file).unwrap().st_ino.to_string();
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let of_file = |line: &&str| line.contains("/memfd:cut") && line.contains(&format!(" {inode} "));
            let parts: Vec<&str> =
                maps.lines().filter(of_file).filter_map(|line| line.split(' ').next()).collect();
            let wanted = left.iter().filter(|(from, to)| from < to);
            // The two pages may touch what lies before or behind.
            let mut joined: Vec<(usize, usize)> = Vec::new();
            for (from, to) in wanted {
                match joined.last_mut().filter(|last| last.1 == *from) {
                    Some(last) => last.1 = *to,
                    None => joined.push((*from, *to)),
                }
            }
            let wanted: Vec<String> = joined.iter().map(|(from, to)| format!("{from:x}-{to:x}")).collect();
            assert_eq!(parts, wanted, "{before} bytes before");
        }
    }

    #[test]
    fn a_line_is_found_wherever_its_pieces_end() {
        const LINE: &[u8] = b"\nSeccomp:\t0\n";
        let found = |text: &[u8], piece: usize| {
            let mut rest = text;
            contains(LINE, |into| {
                let n = rest.len().min(into.len()).min(piece);
                into[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                n
            })
        };
        for before in 0..600 {
            let mut text = vec![b'x'; before];
            text.extend_from_slice(LINE);
            text.extend_from_slice(b"Seccomp_filters:\t0\n");
            for piece in [usize::MAX, 200, 13, 1] {
                assert!(found(&text, piece), "after {before} bytes, in pieces of {piece}");
            }
            text[before + LINE.len() - 2] = b'2';
            assert!(!found(&text, usize::MAX) && !found(&text, 7), "after {before} bytes");
        }
        assert!(!found(b"", 1) && !found(&LINE[1..], 5));
    }

    #[test]
    fn under_a_filter_of_system_calls_no_page_is_counted() {
        let _alone = ONE_TEST.lock();
        let filtered = || {
            let mut all =
                libc::sock_filter { code: libc::BPF_RET as u16, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
            let program = libc::sock_fprog { len: 1, filter: &mut all };
            // SAFETY: settings of this thread alone, which ends with them; the filter lives as long as the call.
            let is_set = unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
            };
            if !is_set {
                eprintln!("SKIPPED, NOT TESTED: there are no filters of system calls here");
                return;
            }
            assert!(!system_calls_are_free());
            let word = Words::default().next().unwrap();
            assert_eq!(head_of(word).segment.load(SeqCst), 0);
            assert!(!are_ours_alone(word));
            let child = child(word);
            // SAFETY: a word of this test, which lives until its end; the test waits for its own child.
            unsafe {
                (*word).store(1, SeqCst);
                assert_eq!(libc::waitpid(child, null_mut(), 0), child, "the child has seen it");
            }
            give_back(word);
        };
        std::thread::spawn(filtered).join().unwrap();
    }

    #[test]
    fn what_is_read_of_the_thread_is_closed_at_an_exec() {
        let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let jump = libc::BPF_JMP | libc::BPF_K;
        // How rustix opens, and where its flags are: the call's number is the first word, its arguments begin at byte 16.
        #[cfg(target_arch = "x86_64")]
        let (open, flags_at) = (libc::SYS_open as u32, 16 + 8);
        #[cfg(not(target_arch = "x86_64"))]
        let (open, flags_at) = (libc::SYS_openat as u32, 16 + 2 * 8);
        let mut all = [
            statement(load, 0, 0, 0),
            statement(jump | libc::BPF_JEQ, 0, 3, open),
            statement(load, 0, 0, flags_at),
            statement(jump | libc::BPF_JSET, 1, 0, libc::O_CLOEXEC as u32),
            statement(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
            statement(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: all.len() as u16, filter: all.as_mut_ptr() };
        // SAFETY: the child makes system calls alone; the filter lives as long as the call that sets it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let no_dump = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &no_dump);
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program);
                system_calls_are_free();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert!(libc::WIFEXITED(status), "it was killed: {status:#x}");
        }
    }

    #[test]
    fn the_first_segment_of_a_namespace_counts_as_any() {
        let _alone = ONE_TEST.lock();
        let in_another = || {
            // SAFETY: this thread alone gets another namespace.
            if !has_segments() || unsafe { libc::unshare(libc::CLONE_NEWIPC) } != 0 {
                eprintln!("SKIPPED, NOT TESTED: there are no segments here, or no namespaces of them");
                return;
            }
            let word = Words::default().next().unwrap();
            assert_eq!(head_of(word).segment.load(SeqCst), 1, "the kernel counts from 0");
            assert!(are_ours_alone(word));
            give_back(word);
        };
        std::thread::spawn(in_another).join().unwrap();
    }

    #[test]
    fn a_process_knows_when_it_is_alone_again() {
        let (_alone, word) = (ONE_TEST.lock(), Words::default().next().unwrap());
        if !has_segments() {
            eprintln!("SKIPPED, NOT TESTED: there are no segments of shared memory here");
            return;
        }
        assert!(are_ours_alone(word));
        // SAFETY: plain numbers, for which zero is valid, and which the kernel fills in.
        let mode = unsafe {
            let mut said: libc::shmid_ds = std::mem::zeroed();
            libc::shmctl(head_of(word).segment.load(SeqCst) - 1, libc::IPC_STAT, &mut said);
            said.shm_perm.mode & 0o777
        };
        assert_eq!(mode, 0o600, "other users cannot map it");
        let children = [child(word), child(word)];
        assert!(!are_ours_alone(word));
        // SAFETY: a word of this test, which lives until its end; the test waits for its own children.
        unsafe {
            libc::kill(children[0], libc::SIGKILL);
            assert_eq!(libc::waitpid(children[0], null_mut(), 0), children[0]);
            assert!(!are_ours_alone(word), "the other one lives");
            (*word).store(1, SeqCst);
            assert_eq!(libc::waitpid(children[1], null_mut(), 0), children[1]);
        }
        assert!(are_ours_alone(word));
        head_of(word).namespace.store(1, SeqCst);
        assert!(!are_ours_alone(word), "its number may be another segment's in another namespace");
        give_back(word);
    }

    #[test]
    fn a_forked_child_keeps_nothing_for_threads_of_its_parent() {
        let (_alone, word) = (ONE_TEST.lock(), Words::default().next().unwrap());
        let users = || head_of(word).users.load(SeqCst);
        drop(StaysShared::begin(word));
        assert_eq!(users(), 1);
        let kept = StaysShared::begin(word);
        assert_eq!(users(), 2);
        // As in a child that is forked here.
        reset_in_child();
        assert_eq!(users(), 1);
        drop(kept);
        assert_eq!(users(), 1, "it was let go of already");
        give_back(word);
    }

    #[test]
    fn a_page_has_one_head_and_a_word_for_each_byte() {
        let (_alone, mut words) = (ONE_TEST.lock(), Words::default());
        let all: Vec<_> = (0..=PAGE_BYTES).map(|_| words.next().unwrap()).collect();
        let (page, next) = (&all[..PAGE_BYTES], all[PAGE_BYTES]);
        let mut addresses: Vec<usize> = page.iter().map(|word| word.addr()).collect();
        addresses.sort_unstable();
        let first = first_of(page[0]).addr();
        assert_eq!(first % (2 * PAGE_BYTES), 0);
        assert!(addresses.into_iter().eq(first + PAGE_BYTES..first + 2 * PAGE_BYTES));
        assert_ne!(first_of(next).addr(), first);
        assert_eq!((head_of(page[7]).users.load(SeqCst), head_of(next).users.load(SeqCst)), (4096, 1));
        // SAFETY: words of this test's.
        assert!(all.iter().all(|word| unsafe { &**word }.swap(1, SeqCst) == 0));
        page[1..].iter().for_each(|word| give_back(*word));
        assert_eq!(head_of(page[0]).users.load(SeqCst), 1);
        give_back(page[0]);
        give_back(next);
    }

    #[test]
    fn what_the_kernel_says_of_this_thread_is_found_out() {
        use std::os::unix::fs::MetadataExt;
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert_eq!(system_calls_are_free(), status.contains("\nSeccomp:\t0\n"));
        let namespace = std::fs::metadata("/proc/self/ns/ipc").unwrap().ino();
        assert_eq!(ipc_namespace(), Some(namespace));
        // SAFETY: this thread's own word.
        let errno = || unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno() = 5 };
        let given = keeping_errno(|| {
            // SAFETY: as above.
            unsafe { *errno() = 6 };
            7
        });
        // SAFETY: as above.
        assert_eq!((given, unsafe { *errno() }), (7, 5));
    }
}
