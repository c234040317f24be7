//! Names of directory entries, processed eight bytes per step: a path walk checks, hashes and compares one at
//! every directory.

use crate::{Error, Result};

/// Longest name of a directory entry in bytes, as Linux' `NAME_MAX`.
pub const NAME_MAX_BYTES: usize = 255;

/// One path component: 1 to 255 bytes, no NUL, no '/'. `.` and `..` are not names: front ends resolve them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Checks the bytes.
    ///
    /// # Errors
    /// [`Error::NameTooLong`] beyond 255 bytes, [`Error::InvalidName`] if empty, `.`, `..`, or with NUL or '/'.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>> {
        if bytes.len() > NAME_MAX_BYTES {
            return Err(Error::NameTooLong);
        }
        let forbidden = match bytes {
            [] | b"." | b".." => true,
            _ => match (bytes.last_chunk(), bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
                // The last bytes may be checked twice.
                (Some(last), ..) => {
                    let (eights, _) = bytes.as_chunks();
                    eights.iter().chain([last]).any(|eight| is_forbidden(u64::from_le_bytes(*eight)))
                }
                (None, Some(first), Some(last)) => {
                    let [first, last] = [first, last].map(|four| u64::from(u32::from_le_bytes(*four)));
                    is_forbidden(first | last << 32)
                }
                // All-ones bytes stand for absent ones: they are neither NUL nor a slash.
                _ => is_forbidden(word_of(bytes) | u64::MAX << (8 * bytes.len())),
            },
        };
        if forbidden { Err(Error::InvalidName) } else { Ok(Name(bytes)) }
    }

    /// A name that was checked before.
    #[inline(always)]
    pub(crate) fn known(bytes: &'a [u8]) -> Name<'a> {
        debug_assert!(Name::new(bytes).is_ok());
        Name(bytes)
    }

    /// The bytes.
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A name of up to 24 bytes, eight bytes per word (the first byte is the lowest). Bytes behind the last one
/// are ignored. For engines that keep names in words: it is checked without a copy and copied without a call.
#[derive(Clone, Copy, Debug)]
pub struct ShortName {
    words: [u64; ShortName::WORDS],
    len: u8,
}

impl ShortName {
    /// Number of its words.
    pub const WORDS: usize = 3;

    /// All-ones for the bytes behind a name of so many bytes: they are neither NUL nor a slash.
    const BEHIND: [[u64; ShortName::WORDS]; 8 * ShortName::WORDS + 1] = {
        let mut behind = [[0; ShortName::WORDS]; 8 * ShortName::WORDS + 1];
        let mut len = 0;
        while len < behind.len() {
            let mut at = len;
            while at < 8 * ShortName::WORDS {
                behind[len][at / 8] |= 0xff << (at % 8 * 8);
                at += 1;
            }
            len += 1;
        }
        behind
    };

    /// Checks the bytes as [`Name::new`] does; `None` as well if there are more than 24.
    #[inline(always)]
    pub fn new(words: [u64; ShortName::WORDS], len: usize) -> Option<ShortName> {
        let behind = ShortName::BEHIND.get(len)?;
        let dots = u64::from_le_bytes(*b"..\0\0\0\0\0\0");
        let found =
            words.iter().zip(behind).fold(0, |found, (word, behind)| found | forbidden(word | behind));
        let is_dots = len <= 2 && (words[0] ^ dots) & !behind[0] == 0;
        (len > 0 && found == 0 && !is_dots).then_some(ShortName { words, len: len as u8 })
    }

    /// The words, in the byte order of memory.
    #[inline(always)]
    pub(crate) fn words(self) -> [u64; ShortName::WORDS] {
        self.words.map(u64::to_le)
    }

    /// Bytes of the name.
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        usize::from(self.len)
    }
}

/// Returns true if one of the word's bytes is NUL or a slash.
#[inline(always)]
fn is_forbidden(word: u64) -> bool {
    forbidden(word) != 0
}

/// Not 0 if one of the word's bytes is NUL or a slash.
#[inline(always)]
fn forbidden(word: u64) -> u64 {
    zeros(word) | zeros(word ^ u64::from_le_bytes([b'/'; 8]))
}

/// Not 0 if one of the word's bytes is zero.
#[inline(always)]
fn zeros(word: u64) -> u64 {
    const LOW: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    word.wrapping_sub(LOW) & !word & HIGH
}

/// The first eight bytes of a name, or all if there are fewer, as a word.
#[inline]
pub fn word_of(bytes: &[u8]) -> u64 {
    let n = bytes.len();
    let one = |i: usize| u64::from(bytes[i]) << (8 * i);
    match n {
        0 => 0,
        // Each of one to three bytes is the first, the middle or the last.
        1..4 => one(0) | one(n / 2) | one(n - 1),
        4..8 => {
            let four = |i: usize| {
                let four = bytes[i..].first_chunk().expect("there are four");
                u64::from(u32::from_le_bytes(*four)) << (8 * i)
            };
            four(0) | four(n - 4)
        }
        _ => u64::from_le_bytes(*bytes.first_chunk().expect("there are eight")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_the_first_eight_bytes() {
        let name = b"abcdefghij";
        for n in 0..=name.len() {
            let mut eight = [0; 8];
            eight[..n.min(8)].copy_from_slice(&name[..n.min(8)]);
            assert_eq!(word_of(&name[..n]), u64::from_le_bytes(eight), "{n} bytes");
        }
    }

    fn is_short(name: &[u8], behind: u8) -> bool {
        let mut bytes = [behind; 8 * ShortName::WORDS];
        bytes[..name.len()].copy_from_slice(name);
        let words = std::array::from_fn(|i| word_of(&bytes[8 * i..]));
        ShortName::new(words, name.len()).is_some()
    }

    #[test]
    fn what_no_name_may_have_is_found_wherever_it_stands() {
        for len in 1..=24 {
            for byte in 0..=255u8 {
                for at in 0..len {
                    let mut name = vec![b'x'; len];
                    name[at] = byte;
                    let allowed = byte != 0 && byte != b'/' && name != b".";
                    assert_eq!(Name::new(&name).is_ok(), allowed, "{name:?}");
                    assert_eq!(is_short(&name, 0), allowed, "{name:?}");
                    assert_eq!(is_short(&name, b'/'), allowed, "{name:?}");
                }
            }
        }
        for name in [&b""[..], b".", b".."] {
            assert_eq!(Name::new(name), Err(Error::InvalidName), "{name:?}");
            assert!(!is_short(name, 0) && !is_short(name, b'.'), "{name:?}");
        }
        assert!(
            Name::new(b"...").is_ok() && is_short(b"...", 0) && is_short(b"x.", b'.') && is_short(b".x", 0)
        );
        assert!(Name::new(&[b'n'; NAME_MAX_BYTES]).is_ok());
        assert_eq!(Name::new(&[b'n'; NAME_MAX_BYTES + 1]), Err(Error::NameTooLong));
    }
}
