//! Pins: readers that copy from an inode's blocks without validation, counted by phase.
//!
//! State       one word. Bits 0 to 14: pins of phase 0. Bits 15 to 29: pins of phase 1. Bit 31: the phase that new pins belong to; the
//!             other one is the old phase. A count has room for every lane.
//! Invariants  I1  the phase turns only while the old one has no pins: one word, so one instant.
//!             I2  a block that a cell lost in a phase is used by no reader once that phase is old and has no pins. Pins of earlier
//!                 phases were gone when it became old (I1); pins of later phases took their maps later.
//!             So overlapping readers keep no block for longer than two of them take.
//! Orderings   O1  SeqCst: a pin is counted before its reader loads cells; a thread that took a block out of a cell loads the word
//!                 after that. One of the two sees the other.

use heddle_arena::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

const COUNT_BITS: u32 = 15;
const COUNT: u32 = (1 << COUNT_BITS) - 1;
const PRESENT: u32 = 1 << 31;

const _: () = assert!(crate::ids::LANES as u32 <= COUNT);

/// One of the two phases, 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase(pub u32);

impl Phase {
    fn other(self) -> Phase {
        Phase(1 - self.0)
    }

    fn one(self) -> u32 {
        1 << (self.0 * COUNT_BITS)
    }
}

/// The word, as loaded once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pinned(u32);

impl Pinned {
    /// The phase that new pins belong to.
    pub fn present(self) -> Phase {
        Phase(u32::from(self.0 & PRESENT != 0))
    }

    fn count(self, phase: Phase) -> u32 {
        self.0 >> (phase.0 * COUNT_BITS) & COUNT
    }

    /// Returns true if there is no pin.
    pub fn none(self) -> bool {
        self.0 & !PRESENT == 0
    }

    /// Returns true if there is no pin of this phase.
    pub fn over(self, phase: Phase) -> bool {
        self.count(phase) == 0
    }

    fn old_is_over(self) -> bool {
        self.over(self.present().other())
    }

    /// Returns true if no reader uses a block that a cell lost in `phase` (I2).
    pub fn lets_go(self, phase: Phase) -> bool {
        self.none() || (phase != self.present() && self.old_is_over())
    }

    /// The word without one pin of `phase`: that of the caller, which has no maps.
    pub fn without(self, phase: Phase) -> Pinned {
        debug_assert!(!self.over(phase), "a pin that nobody has");
        Pinned(self.0 - phase.one())
    }
}

/// The pins of an inode.
#[repr(transparent)]
pub struct Pins(AtomicU32);

impl Pins {
    pub(super) fn new() -> Pins {
        Pins(AtomicU32::new(0))
    }

    /// Loads the word (O1).
    #[cfg_attr(any(loom, shuttle), track_caller)]
    pub fn now(&self) -> Pinned {
        Pinned(self.0.load(SeqCst))
    }

    /// Takes a pin. Returns its phase.
    pub fn pin(&self) -> Phase {
        let mut seen = self.now();
        loop {
            let phase = seen.present();
            match self.0.compare_exchange(seen.0, seen.0 + phase.one(), SeqCst, SeqCst) {
                Ok(_) => return phase,
                Err(now) => seen = Pinned(now),
            }
        }
    }

    /// Returns a pin.
    pub fn unpin(&self, phase: Phase) {
        let before = Pinned(self.0.fetch_sub(phase.one(), SeqCst));
        debug_assert!(!before.over(phase), "a pin was given back twice");
    }

    /// Begins the next phase, if the old one has no pins (I1) and the present one some.
    pub fn turn(&self) {
        let mut seen = self.now();
        while seen.old_is_over() && !seen.none() {
            match self.0.compare_exchange(seen.0, seen.0 ^ PRESENT, SeqCst, SeqCst) {
                Ok(_) => return,
                Err(now) => seen = Pinned(now),
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_let_go_when_its_phase_is_over() {
        let (pins, [one, two]) = (Pins::new(), [Phase(0), Phase(1)]);
        let seen = || {
            let now = pins.now();
            (now.present(), [now.over(one), now.over(two)], [now.lets_go(one), now.lets_go(two)], now.none())
        };
        assert_eq!(seen(), (one, [true, true], [true, true], true));
        pins.turn();
        assert_eq!(seen(), (one, [true, true], [true, true], true), "nobody pins");
        assert_eq!([pins.pin(), pins.pin()], [one, one]);
        assert_eq!(seen(), (one, [false, true], [false, true], false));
        pins.turn();
        assert_eq!(seen(), (two, [false, true], [false, false], false));
        pins.turn();
        assert_eq!(seen().0, two, "the old phase has pins");
        assert_eq!(pins.pin(), two);
        pins.unpin(one);
        assert_eq!(seen(), (two, [false, false], [false, false], false));
        assert_eq!(pins.now().without(two), Pinned(PRESENT | 1));
        pins.unpin(one);
        assert_eq!(seen(), (two, [true, false], [true, false], false));
        pins.turn();
        assert_eq!(seen(), (one, [true, false], [false, false], false));
        pins.unpin(two);
        assert_eq!(seen(), (one, [true, true], [true, true], true));
    }

    #[test]
    fn each_phase_counts_a_pin_of_every_lane() {
        let pins = Pins::new();
        (0..crate::ids::LANES).for_each(|_| _ = pins.pin());
        pins.turn();
        (0..crate::ids::LANES).for_each(|_| assert_eq!(pins.pin(), Phase(1)));
        let now = pins.now();
        assert_eq!([now.count(Phase(0)), now.count(Phase(1))], [u32::from(crate::ids::LANES); 2]);
        assert_eq!(now.without(Phase(1)).count(Phase(1)), u32::from(crate::ids::LANES) - 1);
    }
}
