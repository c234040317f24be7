//! `O_APPEND` of an open file, which all who have that open file share.
//!
//! State       a word: off, on, or "ask the kernel". This process's own until the first fork; then it lies in a page that parent and
//!             child share, and either sees at once what the other sets. Who hands the open file to a program that does not know
//!             of the word (exec, a socket) sets it to "ask", for all who share it.
//! Invariants  P1  a page of words is given back when the last file of this process that uses it is closed; words are not used again.
//!
//! Nothing here allocates from the heap: a handler of a signal may fork.

use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering::SeqCst};

const OFF: u8 = 0;
const ON: u8 = 1;
const ASK: u8 = 2;

const PAGE_BYTES: usize = 4096;

/// See the module.
pub struct Append {
    own: AtomicU8,
    shared: AtomicPtr<AtomicU8>,
}

/// This process's page beside the shared one.
struct Head {
    /// Files of this process that use the page.
    users: AtomicU32,
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
    /// One more; `None`: there is no memory.
    fn next(&mut self) -> Option<*mut AtomicU8> {
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

/// Two pages: the first is this process's, the second is shared with its children.
fn new_page() -> Option<*mut AtomicU8> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, at no place in particular, twice aligned by what is cut off.
    let all = unsafe { mmap_anonymous(null_mut(), 4 * PAGE_BYTES, both, MapFlags::PRIVATE) }.ok()?;
    let first = all.map_addr(|at| at.next_multiple_of(2 * PAGE_BYTES));
    let second = first.wrapping_byte_add(PAGE_BYTES);
    // SAFETY: the second page of what was just mapped is replaced; the pages around are this function's too.
    unsafe {
        let before = first.addr() - all.addr();
        if before > 0 {
            let _ = munmap(all, before);
        }
        let _ = munmap(second.wrapping_byte_add(PAGE_BYTES), 2 * PAGE_BYTES - before);
        if mmap_anonymous(second, PAGE_BYTES, both, MapFlags::SHARED | MapFlags::FIXED).is_err() {
            let _ = munmap(first, 2 * PAGE_BYTES);
            return None;
        }
    }
    Some(second.cast())
}

fn head_of(word: *mut AtomicU8) -> &'static Head {
    let head = word.map_addr(|at| at & !(2 * PAGE_BYTES - 1)).cast::<Head>();
    // SAFETY: the page before the words', zeros when it was new; P1: mapped while one of its words is used.
    unsafe { &*head }
}

impl Append {
    /// As a file was opened.
    pub const fn new(on: bool) -> Append {
        Append { own: AtomicU8::new(if on { ON } else { OFF }), shared: AtomicPtr::new(null_mut()) }
    }

    #[inline]
    fn word(&self) -> &AtomicU8 {
        // SAFETY: null, or a word of a page that is mapped until `close` (P1).
        unsafe { self.shared.load(SeqCst).as_ref() }.unwrap_or(&self.own)
    }

    /// Do writes go to the end?
    #[inline]
    pub fn is_on(&self, fd: BorrowedFd<'_>) -> bool {
        match self.word().load(SeqCst) {
            OFF => false,
            ON => true,
            _ => kernel_says(fd),
        }
    }

    /// It was set or taken away with fcntl(2), by this process.
    pub fn set(&self, on: bool) {
        let to = if on { ON } else { OFF };
        let _asks = self.word().fetch_update(SeqCst, SeqCst, |now| (now != ASK).then_some(to));
    }

    /// A program that does not know of the word is to have the open file too.
    pub fn ask_from_now_on(&self) {
        self.word().store(ASK, SeqCst);
    }

    /// A child is to have the open file too.
    pub fn share(&self, words: &mut Words) {
        if !self.shared.load(SeqCst).is_null() || self.own.load(SeqCst) == ASK {
            return;
        }
        match words.next() {
            Some(word) => {
                // SAFETY: within a mapped page, and nobody else's.
                unsafe { &*word }.store(self.own.load(SeqCst), SeqCst);
                self.shared.store(word, SeqCst);
            }
            None => self.own.store(ASK, SeqCst),
        }
    }

    /// The file is closed in this process.
    pub fn close(&self) {
        let word = self.shared.swap(null_mut(), SeqCst);
        if word.is_null() || head_of(word).users.fetch_sub(1, SeqCst) != 1 {
            return;
        }
        let first = word.map_addr(|at| at & !(2 * PAGE_BYTES - 1));
        // SAFETY: P1: nobody of this process uses it any more.
        let _ = unsafe { munmap(first.cast(), 2 * PAGE_BYTES) };
    }
}

#[cold]
fn kernel_says(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::APPEND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    /// Pages come and go in one test at a time: an address is somebody else's the moment after.
    static PAGES: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn is_shared_memory(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{address:x}-")) && line.contains("rw-s"))
    }

    fn file() -> std::fs::File {
        tempfile::tempfile().unwrap()
    }

    #[test]
    fn what_one_process_sets_another_sees() {
        let (file, _alone) = (file(), PAGES.lock());
        let (parents, mut words) = (Append::new(false), Words::default());
        parents.share(&mut words);
        // A forked child has a copy of its parent's memory, and the shared page.
        let childs = Append { own: AtomicU8::new(OFF), shared: AtomicPtr::new(parents.shared.load(SeqCst)) };
        childs.set(true);
        assert!(parents.is_on(file.as_fd()));
        parents.set(false);
        assert!(!childs.is_on(file.as_fd()));
    }

    #[test]
    fn the_kernel_is_asked_once_strangers_have_the_file() {
        let file = file();
        let append = Append::new(false);
        append.ask_from_now_on();
        append.set(true);
        assert!(!append.is_on(file.as_fd()), "the kernel's open file has no O_APPEND");
        rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND).unwrap();
        assert!(append.is_on(file.as_fd()));
    }

    #[test]
    fn a_page_of_words_goes_with_its_last_file() {
        let (mut words, _alone) = (Words::default(), PAGES.lock());
        let files: Vec<Append> = (0..3).map(|i| Append::new(i == 1)).collect();
        files.iter().for_each(|append| append.share(&mut words));
        let page = files[0].shared.load(SeqCst).addr() & !(PAGE_BYTES - 1);
        let mapped = || is_shared_memory(page);
        assert!(mapped());
        files[0].close();
        files[2].close();
        assert!(mapped() && files[1].is_on(file().as_fd()), "one still uses it");
        files[1].close();
        assert!(!mapped());
    }
}
