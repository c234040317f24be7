//! A number that a process finds out once. Threads that ask at once each find it out for themselves: in a lock a forked child would wait
//! for ever for a thread that it does not have.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A kept number (see the module).
#[derive(Debug, Default)]
pub struct KnownNumber {
    /// One more than the number; 0: it is not known.
    word: AtomicU64,
}

impl KnownNumber {
    /// It is not known yet.
    pub const fn new() -> KnownNumber {
        KnownNumber { word: AtomicU64::new(0) }
    }

    /// The number that was found out first, or that of `find`, which is kept.
    pub fn get_or_find(&self, find: impl FnOnce() -> u32) -> u32 {
        let known = match self.word.load(SeqCst) {
            0 => {
                let found = u64::from(find()) + 1;
                self.word.compare_exchange(0, found, SeqCst, SeqCst).map_or_else(|first| first, |_| found)
            }
            known => known,
        };
        (known - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_found_first_stays() {
        for number in [0, 7, u32::MAX] {
            let known = KnownNumber::new();
            let found = known.get_or_find(|| {
                assert_eq!(known.get_or_find(|| number), number);
                5
            });
            assert_eq!((found, known.get_or_find(|| panic!("it is known"))), (number, number));
        }
    }

    #[test]
    fn a_child_forked_while_a_number_is_found_finds_it_too() {
        let known = KnownNumber::new();
        let mut child = 0;
        let found = known.get_or_find(|| {
            // SAFETY: the child finds the number, and leaves by `_exit`; an alarm ends it if it sleeps for ever.
            child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe { libc::alarm(20) };
                let good = known.get_or_find(|| 5) == 5;
                // SAFETY: as above.
                unsafe { libc::_exit(i32::from(!good)) };
            }
            7
        });
        let mut status = 0;
        // SAFETY: room for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, found), (0, 7));
    }
}
