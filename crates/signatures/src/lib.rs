//! Signatures of foreign formats, as blkid(8) and wipefs(8) know them, and the users of a file or device (`claim`).
//!
//! Commands call this crate before they write to a path that a user named, and for errors about a path that holds no file system of ours.
//! A signature lies at a fixed position: most near the beginning, some at the end. `magic_numbers` has those of a few fixed bytes,
//! `detectors` those that need more. A signature is no proof that the rest of the format is whole: such a file counts as in use all the
//! same.
//!
//! Invariants  I1  nothing here changes what it was handed, but [`wipe`] and [`discard`].
//!             I2  a read outside the media gives zeros; numbers from the media are bounded before they are used.
//!             I3  text from the media is escaped before it is shown.

mod claim;
mod detectors;
mod discard;
mod holder;
mod magic_numbers;
mod media_reader;
mod protected;

pub use claim::{Claim, ClaimMode, claim, have_bytes_in_common, user_of};
pub use discard::discard;
pub use holder::{holder, lock_holder};
pub use protected::is_write_protected;

use media_reader::MediaReader;
use std::fmt;

/// Fills a buffer from a position; it leaves bytes that cannot be read zero.
pub type ReadAt<'a> = &'a dyn Fn(u64, &mut [u8]);

/// How much of each end is looked at for anything that is not zero.
const ENDS_BYTES: u64 = 1 << 20;

/// The least that a device writes.
const SECTOR_BYTES: u64 = 512;

/// A format that says it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its usual name.
    pub kind: &'static str,
    /// What its user called it, if anything.
    pub label: Option<String>,
    /// Where it says so: position and length of each mark.
    pub magics: Vec<(u64, u64)>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) => write!(f, "{} (label \"{label}\")", self.kind),
            None => f.write_str(self.kind),
        }
    }
}

/// What a file or device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeros at both ends, a mebibyte each.
    Blank,
    /// These formats.
    Known(Vec<Signature>),
    /// Something.
    Unknown,
}

impl Content {
    /// Another format than `own` with a mark at a position that counts, and that position.
    pub fn other_than(&self, own: &str, counts: impl Fn(u64) -> bool) -> Option<(&Signature, u64)> {
        let Content::Known(found) = self else { return None };
        let marks = found.iter().filter(|found| found.kind != own);
        let mut marks = marks.flat_map(|other| other.magics.iter().map(move |(at, _)| (other, *at)));
        marks.find(|(_, at)| counts(*at))
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Blank => f.write_str("zeros at both ends"),
            Content::Known(found) => {
                for (n, signature) in found.iter().enumerate() {
                    write!(f, "{}{signature}", if n > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            Content::Unknown => f.write_str("bytes that heddle does not know"),
        }
    }
}

/// What `len_bytes` of media hold.
pub fn detect(len_bytes: u64, read: ReadAt<'_>) -> Content {
    let media = MediaReader { len_bytes, read };
    let mut found: Vec<Signature> = Vec::new();
    for signature in magic_numbers::found(&media).into_iter().chain(detectors::found(&media)) {
        match found.iter_mut().find(|known| known.kind == signature.kind) {
            Some(known) => {
                known.magics.extend(signature.magics);
                known.label = known.label.take().or(signature.label);
            }
            None => found.push(signature),
        }
    }
    if !found.is_empty() {
        return Content::Known(found);
    }
    let tail = len_bytes.saturating_sub(ENDS_BYTES);
    let is_blank = media.is_zero(0, ENDS_BYTES.min(len_bytes)) && media.is_zero(tail, len_bytes - tail);
    if is_blank { Content::Blank } else { Content::Unknown }
}

/// Clears the sectors with the marks of everything that is there, so that nothing finds it any more; `write` stores bytes at a
/// position.
///
/// # Errors
/// The first one of `write`.
pub fn wipe<E>(content: &Content, mut write: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
    let Content::Known(found) = content else { return Ok(()) };
    for (at, len_bytes) in found.iter().flat_map(|signature| &signature.magics) {
        let (from, to) = (at - at % SECTOR_BYTES, (at + len_bytes).next_multiple_of(SECTOR_BYTES));
        write(from, &vec![0; (to - from) as usize])?;
    }
    Ok(())
}
