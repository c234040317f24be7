//! Directory entries as an engine returns them: many per call, in the caller's memory.
//!
//! One call of the engine fills a listing. Its reader then walks it without further calls, and without any
//! lock held.
//!
//! State       `words`  three per entry (where reading continues, inode number, kind and length) and the name, eight bytes per word
//!             `used`   the words that hold entries
//! Invariant   the words below `used` are complete entries, whose names were checked when they were added: no reader checks them again.

use crate::{Cookie, FileKind, Ino, NAME_MAX_BYTES, Name, Result, ShortName};
use zerocopy::IntoBytes;

const HEAD_WORDS: usize = 3;
const ENTRY_WORDS_MAX: usize = HEAD_WORDS + NAME_MAX_BYTES.div_ceil(8);
const LEN_SHIFT: u32 = 8;

/// One entry of a directory. `.` and `..` are not entries of an engine: front ends add them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Its name.
    pub name: Name<'a>,
    /// Where reading continues after this entry.
    pub next: Cookie,
}

/// A listing (see the module).
#[derive(Debug)]
pub struct Listing {
    words: Vec<u64>,
    used: usize,
}

/// The position of [`Listing::mark`].
#[derive(Clone, Copy, Debug)]
pub struct Mark(usize);

impl Default for Listing {
    /// Room for what C libraries read with one `getdents64`.
    fn default() -> Listing {
        Listing::with_room(32 << 10)
    }
}

impl Listing {
    /// Space for `bytes` of entries, each of which takes 24 bytes and its name, rounded up to eights. At
    /// least one entry of the longest name fits.
    pub fn with_room(bytes: usize) -> Listing {
        Listing { words: vec![0; (bytes / 8).max(ENTRY_WORDS_MAX)], used: 0 }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// The present end, to go back to.
    #[inline]
    pub fn mark(&self) -> Mark {
        Mark(self.used)
    }

    /// Removes the entries added since that mark.
    pub fn cut(&mut self, mark: Mark) {
        self.used = self.used.min(mark.0);
    }

    /// Returns true if it has no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds an entry. Returns false if there is no space for it.
    #[must_use]
    pub fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        let name = entry.name.bytes();
        let Some(words) = self.next_words(entry.ino, entry.kind, entry.next, name.len()) else {
            return false;
        };
        words.as_mut_bytes()[..name.len()].copy_from_slice(name);
        self.used += HEAD_WORDS + name.len().div_ceil(8);
        true
    }

    /// Replaces the content by entries, until it is full.
    ///
    /// # Errors
    /// The first of `entries`.
    pub fn fill<'e>(&mut self, entries: impl IntoIterator<Item = Result<DirEntry<'e>>>) -> Result<()> {
        self.clear();
        for entry in entries {
            if !self.push(&entry?) {
                break;
            }
        }
        Ok(())
    }

    /// [`Listing::push`] for a short name whose bytes are words already.
    #[inline(always)]
    #[must_use]
    pub fn push_short(&mut self, ino: Ino, kind: FileKind, name: ShortName, next: Cookie) -> bool {
        let Some(words) = self.next_words(ino, kind, next, name.len()) else { return false };
        let Some(to) = words.first_chunk_mut() else { return false };
        *to = name.words();
        self.used += HEAD_WORDS + name.len().div_ceil(8);
        true
    }

    /// Writes the head of the next entry. Returns the words behind it, enough for its name and for a short
    /// name.
    #[inline(always)]
    fn next_words(&mut self, ino: Ino, kind: FileKind, next: Cookie, len: usize) -> Option<&mut [u64]> {
        let (head, name) = self.words.get_mut(self.used..)?.split_first_chunk_mut::<HEAD_WORDS>()?;
        *head = [next.0, ino.0, kind as u64 | (len as u64) << LEN_SHIFT];
        (name.len() >= len.div_ceil(8).max(ShortName::WORDS)).then_some(name)
    }

    /// Returns true if that is the place behind the last entry.
    #[inline(always)]
    pub fn is_behind(&self, place: usize) -> bool {
        place >= self.used
    }

    /// The entry at `place`, and advances `place`; the first entry is at 0. Returns `None` behind the last
    /// entry.
    #[inline(always)]
    pub fn next(&self, place: &mut usize) -> Option<DirEntry<'_>> {
        let (head, name) = self.words[..self.used].get(*place..)?.split_first_chunk::<HEAD_WORDS>()?;
        let len = (head[2] >> LEN_SHIFT) as usize;
        *place += HEAD_WORDS + len.div_ceil(8);
        Some(DirEntry {
            ino: Ino(head[1]),
            kind: FileKind::from_raw(head[2] as u8)?,
            name: Name::known(name.as_bytes().get(..len)?),
            next: Cookie(head[0]),
        })
    }

    /// The entries, in the order they came in.
    pub fn entries(&self) -> impl Iterator<Item = DirEntry<'_>> {
        let mut place = 0;
        std::iter::from_fn(move || self.next(&mut place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, next: u64) -> DirEntry<'_> {
        let name = Name::new(name.as_bytes()).unwrap();
        DirEntry { ino: Ino(u64::MAX - next), kind: FileKind::Socket, name, next: Cookie(next) }
    }

    fn words(bytes: &[u8]) -> [u64; ShortName::WORDS] {
        let mut words = [0; ShortName::WORDS];
        words.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        words
    }

    #[test]
    fn what_was_put_in_comes_out() {
        let names: Vec<String> = (1..=NAME_MAX_BYTES).map(|len| "n".repeat(len)).collect();
        let mut listing = Listing::with_room(64 << 10);
        for _ in 0..2 {
            listing.clear();
            assert!(listing.is_empty());
            for (i, name) in names.iter().enumerate() {
                let entry = entry(name, i as u64);
                let fits = match (i % 2, name.len()) {
                    (0, 1..=24) => {
                        let short = ShortName::new(words(name.as_bytes()), name.len()).unwrap();
                        listing.push_short(entry.ino, entry.kind, short, entry.next)
                    }
                    _ => listing.push(&entry),
                };
                assert!(fits);
            }
            let wanted = names.iter().enumerate().map(|(i, name)| entry(name, i as u64));
            assert!(listing.entries().eq(wanted));
        }
    }

    #[test]
    fn a_full_listing_keeps_what_it_has() {
        let long = "l".repeat(NAME_MAX_BYTES);
        let mut listing = Listing::with_room(0);
        assert!(listing.push(&entry(&long, 1)), "one of the longest always fits");
        assert!(!listing.push(&entry("s", 2)));
        assert!(!listing.push_short(
            Ino(1),
            FileKind::Fifo,
            ShortName::new(words(b"s"), 1).unwrap(),
            Cookie(2)
        ));
        assert!(listing.entries().eq([entry(&long, 1)]));
        listing.clear();
        let fitting = (0..).take_while(|i| listing.push(&entry("name", *i))).count();
        assert!(fitting > 5);
        assert_eq!(listing.entries().count(), fitting);
    }
}
