//! The owner of the bytes of a file or device, and their users under other names (`claim`). Commands ask it before they write
//! to a place that a user named, and for errors about a place that holds no file system of ours.
//!
//! Formats say what they are at fixed places: most near the beginning, some at the end (`table` has the simple ones, `kinds` those
//! that need a second look). Recognising is no proof that the rest of the format is whole: bytes that say that they are somebody's are
//! treated as such.
//!
//! Invariants  I1  nothing here writes, but [`wipe`], to what it was handed.
//!             I2  a read outside the media gives zeros; numbers from the media are bounded before they are used.
//!             I3  text from the media is escaped before it is shown.

mod bytes;
mod claim;
mod holder;
mod kinds;
mod protected;
mod table;

pub use claim::{Claim, Use, claim, have_bytes_in_common, user_of};
pub use holder::{holder, lock_holder};
pub use protected::is_write_protected;

use bytes::Bytes;
use std::fmt;

/// Fills a buffer from a position; what cannot be read it leaves zero.
pub type Read<'a> = &'a dyn Fn(u64, &mut [u8]);

/// How much of each end is looked at for anything that is not zero.
const ENDS_BYTES: u64 = 1 << 20;

/// The least that a device writes.
const SECTOR_BYTES: u64 = 512;

/// A format that says it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its usual name.
    pub kind: &'static str,
    /// What its user called it, if anything.
    pub label: Option<String>,
    /// Where it says so: position and length of each mark.
    pub marks: Vec<(u64, u64)>,
}

impl fmt::Display for Holding {
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
    Known(Vec<Holding>),
    /// Something.
    Unknown,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Blank => f.write_str("zeros at both ends"),
            Content::Known(found) => {
                for (n, holding) in found.iter().enumerate() {
                    write!(f, "{}{holding}", if n > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            Content::Unknown => f.write_str("bytes that heddle does not know"),
        }
    }
}

/// What `len_bytes` of media hold.
pub fn look(len_bytes: u64, read: Read<'_>) -> Content {
    let bytes = Bytes { len_bytes, read };
    let mut found: Vec<Holding> = Vec::new();
    for holding in table::found(&bytes).into_iter().chain(kinds::found(&bytes)) {
        match found.iter_mut().find(|known| known.kind == holding.kind) {
            Some(known) => {
                known.marks.extend(holding.marks);
                known.label = known.label.take().or(holding.label);
            }
            None => found.push(holding),
        }
    }
    if !found.is_empty() {
        return Content::Known(found);
    }
    let tail = len_bytes.saturating_sub(ENDS_BYTES);
    let is_blank = bytes.is_zero(0, ENDS_BYTES.min(len_bytes)) && bytes.is_zero(tail, len_bytes - tail);
    if is_blank { Content::Blank } else { Content::Unknown }
}

/// Clears the sectors with the marks of everything that is there, so that nothing finds it any more; `write` stores bytes at a
/// position.
///
/// # Errors
/// The first one of `write`.
pub fn wipe<E>(content: &Content, mut write: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
    let Content::Known(found) = content else { return Ok(()) };
    for (at, len_bytes) in found.iter().flat_map(|holding| &holding.marks) {
        let (from, to) = (at - at % SECTOR_BYTES, (at + len_bytes).next_multiple_of(SECTOR_BYTES));
        write(from, &vec![0; (to - from) as usize])?;
    }
    Ok(())
}
