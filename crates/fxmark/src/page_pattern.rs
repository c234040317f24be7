//! The data: pages that carry their writer, their place in the file and the number of the write.
//!
//! State       a page has 512 words. Every 64th and the last are stamps of (owner, page, sequence); the others depend
//!             on the owner alone, so that a worker stamps nine words an operation and not 4 KiB.
//! Invariants  I1  no word is zero, so holes and lost writes are seen, and nothing is gained by detecting zeros.
//!             I2  `word` tells what any word of a page must be; a reader checks one word an operation, a final check
//!                 all.
//! `Fill::Zeros` is the original program, which writes zeros: only sizes and zeros can be checked there.

use crate::ops::Failure;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Block of all data workloads, in bytes.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Words of a page.
pub(crate) const WORDS: usize = 512;
/// The content of a buffer before a read that must overwrite it.
pub(crate) const POISON: u64 = 0xDEAD_BEEF_DEAD_BEEF;

/// A page, aligned for `O_DIRECT`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub(crate) struct Page {
    pub words: [u64; WORDS],
}

/// How pages are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fill {
    Stamped,
    Zeros,
}

/// The worker that owns a page: the seed of its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(pub u64);

impl Page {
    /// Filled with one word.
    pub fn filled(word: u64) -> Box<Page> {
        Box::new(Page { words: [word; WORDS] })
    }
}

impl Fill {
    /// The expected word `at` of a page.
    #[inline]
    pub fn word(self, owner: Owner, page: u64, seq: u64, at: usize) -> u64 {
        match self {
            Fill::Zeros => 0,
            Fill::Stamped if is_stamp(at) => stamp(owner, page, seq).wrapping_add((at as u64) << 1) | 1,
            Fill::Stamped => body(owner, at),
        }
    }

    /// A buffer whose stamps are still to be set.
    pub fn blank(self, owner: Owner) -> Box<Page> {
        let mut page = Page::filled(0);
        for at in 0..WORDS {
            page.words[at] = self.word(owner, 0, 0, at);
        }
        page
    }

    /// Stamps a buffer that came from `blank` of the same owner.
    #[inline]
    pub fn stamp(self, buf: &mut Page, owner: Owner, page: u64, seq: u64) {
        if self == Fill::Stamped {
            let base = stamp(owner, page, seq);
            for at in STAMPS {
                buf.words[at] = base.wrapping_add((at as u64) << 1) | 1;
            }
        }
    }

    /// Compares a whole page.
    pub fn check(self, buf: &Page, owner: Owner, page: u64, seq: u64) -> Result<(), Failure> {
        match (0..WORDS).find(|&at| buf.words[at] != self.word(owner, page, seq, at)) {
            None => Ok(()),
            Some(at) => Err(Failure::Wrong {
                what: "data",
                detail: format!(
                    "page {page}, byte {}: {:#018x} instead of {:#018x} (owner {}, write {seq})",
                    at * 8,
                    buf.words[at],
                    self.word(owner, page, seq, at),
                    owner.0,
                ),
            }),
        }
    }
}

const STAMPS: [usize; 9] = [0, 64, 128, 192, 256, 320, 384, 448, 511];

fn is_stamp(at: usize) -> bool {
    at.is_multiple_of(64) || at == WORDS - 1
}

fn stamp(owner: Owner, page: u64, seq: u64) -> u64 {
    let mixed = seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ page.wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    (mixed ^ owner.0.wrapping_mul(0x1656_67B1_9E37_79F9)) << 11
}

fn body(owner: Owner, at: usize) -> u64 {
    (owner.0 + 1)
        .wrapping_mul(0x2545_F491_4F6C_DD1D)
        .wrapping_add((at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
        | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamped_page_is_its_own_and_no_other() {
        let (fill, owner) = (Fill::Stamped, Owner(3));
        let mut page = fill.blank(owner);
        fill.stamp(&mut page, owner, 7, 42);
        fill.check(&page, owner, 7, 42).unwrap();
        for (owner, number, seq) in [(Owner(2), 7, 42), (owner, 8, 42), (owner, 7, 41), (owner, 7, 43)] {
            assert!(fill.check(&page, owner, number, seq).is_err(), "{owner:?} {number} {seq}");
        }
        assert!(page.words.iter().all(|w| *w != 0), "no word is zero");
    }

    #[test]
    fn one_wrong_bit_anywhere_is_seen() {
        let (fill, owner) = (Fill::Stamped, Owner(0));
        let mut page = fill.blank(owner);
        fill.stamp(&mut page, owner, 0, 1);
        for at in 0..WORDS {
            page.words[at] ^= 1 << (at % 64);
            assert!(fill.check(&page, owner, 0, 1).is_err(), "word {at}");
            page.words[at] ^= 1 << (at % 64);
        }
    }
}
