//! Lines of eight 62-bit words: the frame of every record, page header and inode.

use crate::ids::InodeId;
use heddle_vfs::Time;

/// One cache line as eight little-endian words.
pub type Line = [u64; 8];

/// The two bits that are set in each written word, so that it is never zero.
pub const WRITTEN: u64 = 0b11 << 62;

/// Largest value a word carries.
pub const PAYLOAD_MAX: u64 = !WRITTEN;

/// A written word. A value wider than 62 bits is a bug of the caller.
pub fn word(payload: u64) -> u64 {
    debug_assert!(payload <= PAYLOAD_MAX);
    payload & PAYLOAD_MAX | WRITTEN
}

/// The payload of a word.
pub fn payload(word: u64) -> u64 {
    word & PAYLOAD_MAX
}

/// The state of a line, before its checksum is verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Never written.
    Blank,
    /// Some words never arrived.
    Torn,
    /// Every word was written (or damaged).
    Full,
}

/// Classifies words as blank, torn or full.
pub fn shape(words: &[u64]) -> Shape {
    if words.iter().all(|w| *w != 0) {
        Shape::Full
    } else if words.iter().all(|w| *w == 0) {
        Shape::Blank
    } else {
        Shape::Torn
    }
}

/// Returns true if all words have their two [`WRITTEN`] bits. The checksums cover these only indirectly, so
/// decoders check them.
pub fn all_written(words: &[u64]) -> bool {
    words.iter().all(|w| w & WRITTEN == WRITTEN)
}

/// Checksum over words in order, continued from `seed`: CRC-32C without the customary inversions, so that a
/// few words cost only a few instructions.
#[inline]
pub fn crc(seed: u32, words: &[u64]) -> u32 {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse4.2"))]
    {
        // SAFETY: this code is compiled only for processors that have the instruction.
        words.iter().fold(u64::from(seed), |crc, w| unsafe { std::arch::x86_64::_mm_crc32_u64(crc, *w) })
            as u32
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse4.2")))]
    words.iter().fold(seed, |crc, w| !crc32c::crc32c_append(!crc, &w.to_le_bytes()))
}

/// The seed that binds a structure to this image and this inode.
pub fn owner_seed(volume_seed: u32, owner: InodeId) -> u32 {
    crc(volume_seed, &[owner.ino.0, owner.generation])
}

/// Extracts `bits` bits at `shift` from a word.
pub fn field(word: u64, shift: u32, bits: u32) -> u64 {
    word >> shift & ((1 << bits) - 1)
}

/// Times on media count from 1960: 62 bits of nanoseconds reach into 2106, beyond second 2^32, which test
/// suites use.
const TIME_BASE_NS: i64 = -10 * 365 * 86_400 * 1_000_000_000;

/// Encodes a time; times outside 1960 to 2106 are clamped.
pub fn time_payload(time: Time) -> u64 {
    let ns = i128::from(time.0) - i128::from(TIME_BASE_NS);
    ns.clamp(0, i128::from(PAYLOAD_MAX)) as u64
}

/// Decodes a time.
pub fn time_of(word: u64) -> Time {
    Time(((payload(word) as i128) + i128::from(TIME_BASE_NS)).min(i128::from(i64::MAX)) as i64)
}
