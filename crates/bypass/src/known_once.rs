//! An answer that is kept. Threads that ask at once each ask for themselves: a forked child would wait for ever for a thread that it does
//! not have.

use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// A kept answer (see the module).
pub struct KnownOnce(AtomicU8);

impl KnownOnce {
    /// Nothing is known yet.
    pub const fn new() -> KnownOnce {
        KnownOnce(AtomicU8::new(UNKNOWN))
    }

    /// The kept answer, or that of `ask`, which is kept.
    pub fn get_or_ask(&self, ask: impl FnOnce() -> bool) -> bool {
        match self.0.load(SeqCst) {
            UNKNOWN => {
                let answer = ask();
                self.0.store(if answer { YES } else { NO }, SeqCst);
                answer
            }
            known => known == YES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_waits_for_no_other() {
        for answer in [false, true] {
            let known = KnownOnce::new();
            let outer = known.get_or_ask(|| {
                // As in a child that is forked here.
                let inner = known.get_or_ask(|| answer);
                assert_eq!(known.get_or_ask(|| panic!("it is known")), inner);
                inner
            });
            assert_eq!((outer, known.get_or_ask(|| !answer)), (answer, answer));
        }
    }
}
