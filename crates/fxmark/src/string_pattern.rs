//! Bytes of records that are no whole pages: pieces of one string. The piece tells the writer and the number of the write.
//!
//! Invariants  I1  no byte is zero, so holes and lost writes are seen.
//!             I2  of one file, writes that follow each other begin at different places of the string, which repeats nothing: what a
//!                 write left standing of the one before is seen.

use crate::ops::{Failure, Result};
use crate::random::Random;

/// Places where a piece may begin: a prime, so that steps of any length visit all of them.
const PLACES: u64 = 65_521;

/// The string.
pub(crate) struct Pattern(Vec<u8>);

/// Which write of which file: where its bytes begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(u64);

impl Tag {
    /// Of a write by number.
    pub fn of(file: u64, write: u64) -> Tag {
        Tag((file.wrapping_mul(0x9E37_79B9_7F4A_7C15) % PLACES + write % PLACES * 257) % PLACES)
    }
}

impl Pattern {
    /// For files of up to so many bytes.
    pub fn for_files_of(bytes_max: usize) -> Pattern {
        let mut random = Random::of_worker(0);
        Pattern((0..PLACES as usize + bytes_max).map(|_| random.below(255) as u8 + 1).collect())
    }

    /// So many bytes of a file, from an offset on.
    #[inline]
    pub fn bytes(&self, tag: Tag, offset: usize, len: usize) -> &[u8] {
        &self.0[tag.0 as usize + offset..][..len]
    }

    /// Compares what was read of a file from its beginning on.
    pub fn check(&self, found: &[u8], tag: Tag) -> Result<()> {
        let wanted = self.bytes(tag, 0, found.len());
        if found == wanted {
            return Ok(());
        }
        let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted).unwrap_or_default();
        let detail = format!("byte {at}: {:#04x} instead of {:#04x}", found[at], wanted[at]);
        Err(Failure::Wrong { what: "data", detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_patterns_differ_by_write_and_file_in_every_bit() {
        let pattern = Pattern::for_files_of(5000);
        let mut piece = pattern.bytes(Tag::of(7, 3), 0, 5000).to_vec();
        assert!(piece.iter().all(|byte| *byte != 0));
        pattern.check(&piece, Tag::of(7, 3)).unwrap();
        for other in [Tag::of(7, 2), Tag::of(7, 4), Tag::of(8, 3), Tag::of(7, 3 + 65_520)] {
            assert!(pattern.check(&piece, other).is_err(), "{other:?}");
        }
        for at in [0, 1, 2500, 4999] {
            piece[at] ^= 4;
            assert!(pattern.check(&piece, Tag::of(7, 3)).is_err(), "byte {at}");
            piece[at] ^= 4;
        }
    }
}
