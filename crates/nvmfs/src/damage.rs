//! The first damage found while a file system is mounted. It ends all changes, in every process, and every
//! refusal names it.
//!
//! State       in the arena's root: a flag, and a text that names the damage and its place. Any attached process can scribble over the
//!             text, so it is decoded with care.

use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// The note of the first damage.
#[repr(C)]
pub struct DamageNote {
    /// 0: no damage; 1: damage, its text is not complete; 2: the text is complete.
    state: AtomicU32,
    len: AtomicU32,
    text: [AtomicU64; DAMAGE_WORDS],
}

/// Longest text of a [`DamageNote`], in words.
const DAMAGE_WORDS: usize = 40;

impl DamageNote {
    /// No damage.
    pub fn new() -> DamageNote {
        DamageNote {
            state: AtomicU32::new(0),
            len: AtomicU32::new(0),
            text: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns true if damage was noted.
    pub fn is_noted(&self) -> bool {
        // ORDERING: Relaxed, a flag that is set once. A thread that misses it for a moment changes only parts
        // that it found sound.
        self.state.load(Relaxed) != 0
    }

    /// Notes damage. The first note stays, because it explains later ones.
    pub fn note(&self, what: &str) {
        if self.state.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
            return;
        }
        for (word, bytes) in self.text.iter().zip(what.as_bytes().chunks(8)) {
            let mut raw = [0; 8];
            raw[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(raw), Relaxed); // ORDERING: Relaxed, published by `state`.
        }
        let len = what.len().min(DAMAGE_WORDS * 8) as u32;
        self.len.store(len, Relaxed);
        // ORDERING: Release, pairs with the Acquire in `text`.
        self.state.store(2, Release);
    }

    /// The note, as a sentence for users.
    pub fn text(&self) -> String {
        // ORDERING: Acquire, pairs with the Release in `note`.
        let said = self.state.load(Acquire) == 2;
        // ORDERING: Relaxed throughout, published by `state`.
        let bytes: Vec<u8> = self.text.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        let len = (self.len.load(Relaxed) as usize).min(bytes.len());
        let what = if said { String::from_utf8_lossy(&bytes[..len]) } else { "being looked at".into() };
        format!(
            "damage was found while mounted: {what}. Nothing is changed any more: unmount, then run heddle fsck"
        )
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const REST: &str = ". Nothing is changed any more: unmount, then run heddle fsck";

    #[test]
    fn the_first_damage_is_told_whole_and_no_later_one() {
        let note = DamageNote::new();
        assert!(!note.is_noted());
        note.note("inode 5: page 3");
        note.note("what follows from it");
        assert!(note.is_noted());
        assert_eq!(note.text(), format!("damage was found while mounted: inode 5: page 3{REST}"));
        let long = DamageNote::new();
        long.note(&"x".repeat(1000));
        assert_eq!(long.text(), format!("damage was found while mounted: {}{REST}", "x".repeat(320)));
        long.len.store(u32::MAX, Relaxed);
        assert_eq!(
            long.text().len(),
            320 + "damage was found while mounted: ".len() + REST.len(),
            "scribbled"
        );
    }

    #[test]
    fn damage_that_is_not_said_yet_is_noted() {
        let note = DamageNote::new();
        note.state.store(1, SeqCst);
        assert!(note.is_noted());
        assert_eq!(note.text(), format!("damage was found while mounted: being looked at{REST}"));
    }
}
