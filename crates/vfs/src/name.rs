//! Names of directory entries, looked at eight bytes a step: a path walk checks, hashes and compares one at every directory.

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
                // The last bytes may be looked at twice.
                (Some(last), ..) => {
                    let (eights, _) = bytes.as_chunks();
                    eights.iter().chain([last]).any(|eight| is_forbidden(u64::from_le_bytes(*eight)))
                }
                (None, Some(first), Some(last)) => {
                    let [first, last] = [first, last].map(|four| u64::from(u32::from_le_bytes(*four)));
                    is_forbidden(first | last << 32)
                }
                // Bytes of ones stand for those that are not there: they are neither.
                _ => is_forbidden(word_of(bytes) | u64::MAX << (8 * bytes.len())),
            },
        };
        if forbidden { Err(Error::InvalidName) } else { Ok(Name(bytes)) }
    }

    /// The bytes.
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Is one of the word's bytes NUL or a slash?
#[inline]
fn is_forbidden(word: u64) -> bool {
    has_zero(word) || has_zero(word ^ u64::from_le_bytes([b'/'; 8]))
}

/// Is one of the word's bytes zero?
#[inline]
fn has_zero(word: u64) -> bool {
    const LOW: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    word.wrapping_sub(LOW) & !word & HIGH != 0
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

    #[test]
    fn what_no_name_may_have_is_found_wherever_it_stands() {
        for len in 1..=20 {
            for byte in 0..=255u8 {
                for at in 0..len {
                    let mut name = vec![b'x'; len];
                    name[at] = byte;
                    let allowed = byte != 0 && byte != b'/' && name != b".";
                    assert_eq!(Name::new(&name).is_ok(), allowed, "{name:?}");
                }
            }
        }
        for name in [&b""[..], b".", b".."] {
            assert_eq!(Name::new(name), Err(Error::InvalidName), "{name:?}");
        }
        assert!(Name::new(b"...").is_ok());
        assert!(Name::new(&[b'n'; NAME_MAX_BYTES]).is_ok());
        assert_eq!(Name::new(&[b'n'; NAME_MAX_BYTES + 1]), Err(Error::NameTooLong));
    }
}
