//! `O_APPEND` of an open file description, which all processes that hold it share.
//!
//! State       one word: off, on, or "ask the kernel". Before the first fork the word is private to this process. Then it lies in a page
//!             that parent and child share, and each sees at once what the other sets. A process that passes the open file to a program
//!             without this library (exec, a socket) sets the word to "ask the kernel", for all holders.

use crate::number::Number;
use crate::words::{self, StaysShared, Words};
use rustix::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::SeqCst};

const OFF: u8 = 0;
const ON: u8 = 1;
const ASK: u8 = 2;

/// `O_APPEND` of one open file (see the module).
pub struct Append {
    own: AtomicU8,
    shared: AtomicPtr<AtomicU8>,
}

impl Append {
    /// The flag as the file was opened.
    pub const fn new(on: bool) -> Append {
        Append { own: AtomicU8::new(if on { ON } else { OFF }), shared: AtomicPtr::new(null_mut()) }
    }

    #[inline]
    fn word(&self) -> &AtomicU8 {
        // SAFETY: null, or a word of a page that stays mapped until `close` (P1).
        unsafe { self.shared.load(SeqCst).as_ref() }.unwrap_or(&self.own)
    }

    /// Returns true if writes go to the end of the file. Returns `None` if the number no longer means this
    /// file and the kernel must answer.
    #[inline]
    pub fn is_on(&self, number: impl Number) -> Option<bool> {
        match self.word().load(SeqCst) {
            OFF => Some(false),
            ON => Some(true),
            _ => number.while_ours(kernel_says),
        }
    }

    /// Records that this process has set or cleared the flag with fcntl(2).
    pub fn set(&self, on: bool) {
        let to = if on { ON } else { OFF };
        let _asks = self.word().fetch_update(SeqCst, SeqCst, |now| (now != ASK).then_some(to));
    }

    /// Makes every holder ask the kernel from now on: a program without this library is about to get the open
    /// file.
    pub fn ask_from_now_on(&self) {
        self.word().store(ASK, SeqCst);
    }

    /// Moves the word into a shared page: a child is about to get the open file.
    pub fn share(&self, words: &mut Words) {
        if !self.shared.load(SeqCst).is_null() || self.own.load(SeqCst) == ASK {
            return;
        }
        match words.next() {
            Some(word) => {
                // SAFETY: within a mapped page, and no other thread knows the word yet.
                unsafe { &*word }.store(self.own.load(SeqCst), SeqCst);
                self.shared.store(word, SeqCst);
            }
            None => self.own.store(ASK, SeqCst),
        }
    }

    /// Releases the word: this process has closed the file.
    pub fn close(&self) {
        let word = self.shared.swap(null_mut(), SeqCst);
        if !word.is_null() {
            words::give_back(word);
        }
    }

    /// Keeps other processes from being alone with the open file until the result is dropped. The caller keeps this file open meanwhile.
    pub fn stays_shared(&self) -> Option<StaysShared> {
        let word = self.shared.load(SeqCst);
        (!word.is_null()).then(|| StaysShared::begin(word))
    }

    /// Returns true if another process with this library may have the open file, or had it.
    pub fn was_shared(&self) -> bool {
        !self.shared.load(SeqCst).is_null() || self.own.load(SeqCst) == ASK
    }

    /// Returns true if it is certain that no other process has the open file.
    pub fn is_this_process_alone(&self) -> bool {
        let word = self.shared.load(SeqCst);
        // In this order: a child that passes the file on sets the word before its own page goes.
        !word.is_null() && words::are_ours_alone(word) && self.word().load(SeqCst) != ASK
    }
}

#[cold]
fn kernel_says(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::APPEND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::ONE_TEST;
    use rustix::fd::AsFd;

    const PAGE_BYTES: usize = 4096;

    fn is_shared_memory(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{address:x}-")) && line.contains("rw-s"))
    }

    fn file() -> std::fs::File {
        tempfile::tempfile().unwrap()
    }

    #[test]
    fn what_one_process_sets_another_sees() {
        let (file, _alone) = (file(), ONE_TEST.lock());
        let (parents, mut words) = (Append::new(false), Words::default());
        parents.share(&mut words);
        // A forked child has a copy of its parent's memory, and the shared page.
        let childs = Append { own: AtomicU8::new(OFF), shared: AtomicPtr::new(parents.shared.load(SeqCst)) };
        childs.set(true);
        assert_eq!(parents.is_on(file.as_fd()), Some(true));
        parents.set(false);
        assert_eq!(childs.is_on(file.as_fd()), Some(false));
    }

    #[test]
    fn the_kernel_is_asked_once_strangers_have_the_file() {
        let file = file();
        let append = Append::new(false);
        append.ask_from_now_on();
        append.set(true);
        assert_eq!(append.is_on(file.as_fd()), Some(false), "the kernel's open file has no O_APPEND");
        rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND).unwrap();
        assert_eq!(append.is_on(file.as_fd()), Some(true));
    }

    /// A number that has come to mean another file.
    #[derive(Clone, Copy)]
    struct Reused;

    impl Number for Reused {
        fn while_ours<T>(self, _call: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
            None
        }
    }

    #[test]
    fn a_flag_that_is_known_needs_no_number() {
        let (on, off) = (Append::new(true), Append::new(false));
        assert_eq!((on.is_on(Reused), off.is_on(Reused)), (Some(true), Some(false)));
        on.ask_from_now_on();
        assert_eq!(on.is_on(Reused), None, "the kernel cannot be asked");
    }

    #[test]
    fn a_file_that_was_shared_or_passed_on_stays_so() {
        let (_alone, mut words) = (ONE_TEST.lock(), Words::default());
        let (shared, passed) = (Append::new(false), Append::new(true));
        assert!(!shared.was_shared() && !passed.was_shared());
        shared.share(&mut words);
        passed.ask_from_now_on();
        assert!(shared.was_shared() && passed.was_shared());
        shared.close();
    }

    #[test]
    fn a_page_of_words_goes_with_its_last_file() {
        let (mut words, _alone) = (Words::default(), ONE_TEST.lock());
        let files: Vec<Append> = (0..3).map(|i| Append::new(i == 1)).collect();
        files.iter().for_each(|append| append.share(&mut words));
        let page = files[0].shared.load(SeqCst).addr() & !(PAGE_BYTES - 1);
        let mapped = || is_shared_memory(page);
        assert!(mapped());
        files[0].close();
        files[2].close();
        assert!(mapped() && files[1].is_on(file().as_fd()) == Some(true), "one still uses it");
        files[1].close();
        assert!(!mapped());
    }

    #[test]
    fn a_file_is_shared_once_and_not_after_strangers_have_it() {
        let (file, _alone, mut words) = (file(), ONE_TEST.lock(), Words::default());
        let (append, strange) = (Append::new(true), Append::new(true));
        assert!(!append.is_this_process_alone(), "it was never shared");
        append.share(&mut words);
        let word = append.shared.load(SeqCst);
        append.share(&mut words);
        assert_eq!(append.shared.load(SeqCst), word);
        assert_eq!(append.is_on(file.as_fd()), Some(true), "it is as it was");
        assert_eq!(append.is_this_process_alone(), words::are_ours_alone(word));
        append.ask_from_now_on();
        assert!(!append.is_this_process_alone() && append.is_on(file.as_fd()) == Some(false));
        strange.ask_from_now_on();
        strange.share(&mut words);
        assert!(strange.shared.load(SeqCst).is_null());
        strange.close();
        append.close();
        assert!(
            append.shared.load(SeqCst).is_null() && append.is_on(file.as_fd()) == Some(true),
            "its own word counts again"
        );
    }
}
