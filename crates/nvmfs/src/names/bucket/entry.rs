//! Names, their meaning, and their entries in memory.
//!
//! State       an entry: link to the next entry outside the bucket's line | hash | child, kind and length | child's generation | version
//!             | name, eight bytes a word. The entry of a name of up to 24 bytes fits one cache line.
//! Invariants  those of `bucket`: an entry's words change only under its bucket's lock. A reader without the lock validates afterwards
//!             (I3).

use crate::ids::{InodeId, Version};
use crate::state::core::Core;
use heddle_arena::Ptr;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_vfs::{FileKind, Ino, NAME_MAX_BYTES, ShortName, word_of};
use std::sync::atomic::Ordering::Relaxed;

/// Bits of a hash.
pub const HASH_BITS: u32 = 63;

pub const HEADER_WORDS: usize = 5;
/// An entry takes at least one cache line, so that a name of up to 24 bytes is read from one line and
/// compared in one step.
const ENTRY_WORDS_MIN: usize = HEADER_WORDS + ShortName::WORDS;
pub const ENTRY_WORDS_MAX: usize = HEADER_WORDS + NAME_MAX_BYTES.div_ceil(8);

/// Number of words in the entry of a name of this length.
pub fn entry_words(name_bytes: usize) -> usize {
    (HEADER_WORDS + name_bytes.div_ceil(8)).max(ENTRY_WORDS_MIN)
}

/// The inode that a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// The inode.
    pub child: InodeId,
    /// Its kind.
    pub kind: FileKind,
    /// Version of the record that set the name.
    pub version: Version,
}

/// The meaning of a name, as an entry holds it. It consists of whole words because a look-up passes it
/// between functions: a byte that is stored in one width and loaded in another stalls the processor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Meaning([u64; 3]);

impl Meaning {
    /// The name does not exist.
    pub const NONE: Meaning = Meaning([0; 3]);

    /// Returns true if the name does not exist.
    #[inline(always)]
    pub fn is_none(self) -> bool {
        self.0[0] == 0
    }

    /// The inode.
    #[inline(always)]
    pub fn ino(self) -> Ino {
        ino(self.0[0])
    }

    /// Its kind; `None` if the words are inconsistent.
    #[inline(always)]
    pub fn kind(self) -> Option<FileKind> {
        kind(self.0[0])
    }

    /// Decodes the meaning.
    #[inline]
    pub fn named(self) -> Result<Named, Torn> {
        let [_, generation, version] = self.0;
        Ok(Named {
            child: InodeId { ino: self.ino(), generation },
            kind: self.kind().ok_or(Torn)?,
            version: Version(version),
        })
    }
}

/// A name to look for.
#[derive(Clone, Copy)]
pub struct Key<'n> {
    /// The bytes.
    pub name: &'n [u8],
    /// Their hash: 63 bits.
    pub hash: u64,
    /// Its first eight bytes, or all of a shorter name.
    first: u64,
}

impl<'n> Key<'n> {
    /// The key of a name in an image of this seed. The hash is keyed by the seed, so that no attacker can
    /// prepare names that collide in one bucket of another user's image.
    #[inline(always)]
    pub fn new(seed: u32, name: &'n [u8]) -> Key<'n> {
        let first = word_of(name);
        let mut h = mix(first ^ u64::from(seed) ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93);
        if name.len() > 8 {
            h = rest_of_hash(h, &name[8..]);
        }
        Key { name, hash: mix(h ^ name.len() as u64, 0xa076_1d64_78bd_642f) >> 1, first }
    }

    /// The name, eight bytes a word.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.name.chunks(8).map(word_of)
    }
}

#[inline(never)]
fn rest_of_hash(h: u64, rest: &[u8]) -> u64 {
    rest.chunks(8).fold(h, |h, chunk| mix(word_of(chunk) ^ h, 0xd6e8_feb8_6659_fd93))
}

#[inline]
fn mix(h: u64, by: u64) -> u64 {
    let wide = u128::from(h) * u128::from(by);
    wide as u64 ^ (wide >> 64) as u64
}

#[inline]
fn store_meaning(words: &[AtomicU64], len: usize, to: &Named) {
    let packed = to.child.ino.0 | (to.kind as u64) << 40 | (len as u64) << 48;
    words[2].store(packed, Relaxed); // ORDERING: Relaxed, I1 of `bucket`.
    words[3].store(to.child.generation, Relaxed);
    words[4].store(to.version.0, Relaxed);
}

#[inline(always)]
fn ino(packed: u64) -> Ino {
    Ino(packed & ((1 << 40) - 1))
}

#[inline(always)]
fn kind(packed: u64) -> Option<FileKind> {
    FileKind::from_raw((packed >> 40 & 0xf) as u8)
}

#[inline(always)]
fn len(packed: u64) -> usize {
    (packed >> 48 & 0xff) as usize
}

/// A reader met memory that was changing.
#[derive(Debug)]
pub struct Torn;

/// An entry in memory.
#[derive(Clone, Copy)]
pub struct Entry<'c> {
    words: &'c [AtomicU64; ENTRY_WORDS_MIN],
    at: u64,
}

impl<'c> Entry<'c> {
    /// The entry at an offset that may be stale (I3).
    #[inline(always)]
    pub fn at(core: &'c Core, at: u64) -> Result<Entry<'c>, Torn> {
        let words = core.arena.try_slice(Ptr::from_raw(at), ENTRY_WORDS_MIN).ok_or(Torn)?;
        Ok(Entry { words: words.first_chunk().ok_or(Torn)?, at })
    }

    /// Its position.
    pub fn place(&self) -> u64 {
        self.at
    }

    #[inline(always)]
    fn word(&self, i: usize) -> u64 {
        // ORDERING: Relaxed. The slot or link that led here was loaded with Acquire, and the bucket's word is
        // checked afterwards (O1).
        self.words[i].load(Relaxed)
    }

    /// The word that links to the next entry.
    pub fn next(&self) -> &'c AtomicU64 {
        &self.words[0]
    }

    /// The hash of its name, by which listings are ordered.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.word(1)
    }

    /// Length of the name, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        len(self.word(2))
    }

    /// Its meaning.
    #[inline(always)]
    pub fn meaning(&self) -> Meaning {
        Meaning([self.word(2), self.word(3), self.word(4)])
    }

    /// As [`Entry::meaning`].
    pub fn named(&self) -> Result<Named, Torn> {
        self.meaning().named()
    }

    /// Changes its meaning. Its bucket is locked and changing.
    pub fn set_meaning(&self, to: &Named) {
        store_meaning(self.words, self.len(), to);
    }

    /// Writes a new entry, all but its link. No link leads to it yet.
    pub fn fill(words: &[AtomicU64], key: Key<'_>, to: &Named) {
        words[1].store(key.hash, Relaxed); // ORDERING: Relaxed, linked by a Release in `bucket`.
        store_meaning(words, key.name.len(), to);
        for (word, value) in words[HEADER_WORDS..].iter().zip(key.words()) {
            word.store(value, Relaxed);
        }
    }

    fn name_words(&self, core: &'c Core) -> Result<&'c [AtomicU64], Torn> {
        let n = self.len().div_ceil(8);
        if HEADER_WORDS + n <= ENTRY_WORDS_MIN {
            return Ok(&self.words[HEADER_WORDS..HEADER_WORDS + n]);
        }
        let words = core.arena.try_slice(Ptr::from_raw(self.at), HEADER_WORDS + n).ok_or(Torn)?;
        Ok(&words[HEADER_WORDS..])
    }

    /// Returns true if this is the entry of that name.
    #[inline(always)]
    pub fn is(&self, core: &'c Core, key: Key<'_>) -> Result<bool, Torn> {
        if self.hash() != key.hash || self.len() != key.name.len() || self.word(HEADER_WORDS) != key.first {
            return Ok(false);
        }
        if key.name.len() <= 8 { Ok(true) } else { self.has_name(core, key) }
    }

    #[inline(never)]
    fn has_name(&self, core: &'c Core, key: Key<'_>) -> Result<bool, Torn> {
        let words = self.name_words(core)?;
        // ORDERING: Relaxed, as `word`.
        Ok(words.iter().zip(key.words()).all(|(word, want)| word.load(Relaxed) == want))
    }

    /// Returns all that a listing needs, if the name has at most 24 bytes and the entry is consistent.
    #[inline(always)]
    pub fn short(&self) -> Option<(Ino, FileKind, ShortName)> {
        let packed = self.word(2);
        let name = ShortName::new(std::array::from_fn(|i| self.word(HEADER_WORDS + i)), len(packed))?;
        Some((ino(packed), kind(packed)?, name))
    }

    /// Copies the name to `to`.
    pub fn copy_name<'b>(&self, core: &'c Core, to: &'b mut [u8; NAME_MAX_BYTES]) -> Result<&'b [u8], Torn> {
        let len = self.len();
        for (word, to) in self.name_words(core)?.iter().zip(to[..len].chunks_mut(8)) {
            // ORDERING: Relaxed, as `word`.
            to.copy_from_slice(&word.load(Relaxed).to_le_bytes()[..to.len()]);
        }
        Ok(&to[..len])
    }
}

/// Memory for an entry. It is taken before the operation becomes durable, so that the steps after that
/// cannot fail.
#[must_use]
pub struct EntryMemory(pub Ptr<AtomicU64>, pub usize);

impl Entry<'_> {
    /// Its memory, to be freed when no link leads to it.
    pub fn memory(&self) -> EntryMemory {
        EntryMemory(Ptr::from_raw(self.at), entry_words(self.len()))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::names::table::alloc_entry;
    use crate::state::lease::enter;
    use crate::variant::Variant;
    use crate::volume::{MountOptions, format, mount};

    #[test]
    fn the_entry_of_a_name_of_24_bytes_fits_a_line() {
        let words = [1, 8, 9, 24, 25, 32, 33, 255].map(entry_words);
        assert_eq!((words, ENTRY_WORDS_MAX), ([8, 8, 8, 8, 9, 9, 10, 37], 37));
    }

    /// A directory is listed in the order of the hashes, in every mount and by every version of the program.
    #[test]
    fn a_hash_is_what_it_was_in_earlier_mounts() {
        let long = [b'x'; 255];
        let hashes: [(u32, &[u8], u64); 7] = [
            (0, b"a", 0x2877_e0d2_cf99_0c1b),
            (7, b"a", 0x3333_276f_2a44_775c),
            (7, b"12345678", 0x54c1_f021_679b_ede7),
            (7, b"123456789", 0x0859_d2b1_395f_3769),
            (7, b"12345678abcdefgh", 0x3805_c03f_71e2_4ed0),
            (7, b"12345678abcdefghi", 0x3bb5_10d7_4775_3d97),
            (0xdead_beef, &long, 0x0c45_5404_cf3d_1666),
        ];
        for (seed, name, hash) in hashes {
            assert_eq!(Key::new(seed, name).hash, hash, "{seed} {name:?}");
        }
    }

    #[test]
    fn an_entry_is_of_its_own_name_alone_whatever_others_hashes() {
        let region = heddle_pmem::Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let core = volume.fs().core;
        let guard = enter(&core).unwrap();
        let child = InodeId { ino: Ino((1 << 40) - 2), generation: 9 };
        let to = Named { child, kind: FileKind::Fifo, version: Version(3) };
        for (name, others) in [
            (
                &b"aaaaaaaabbbbbbbbccccccccdddddd"[..],
                [
                    &b"aaaaaaaabbbbbbbbccccccccddddd"[..],
                    b"xaaaaaaabbbbbbbbccccccccdddddd",
                    b"aaaaaaaabbbxbbbbccccccccdddddd",
                    b"aaaaaaaabbbbbbbbccccccccdddddx",
                ],
            ),
            (
                b"aaaaaaaabbbbbbbbcccccccc",
                [
                    b"aaaaaaaabbbbbbbbccccccc",
                    b"aaaaaaaxbbbbbbbbcccccccc",
                    b"aaaaaaaabbbbbbbbcccccccx",
                    b"aaaaaaaabbbbbbbbccccccccd",
                ],
            ),
            (b"short", [b"shor", b"shorx", b"xhort", b"shorts"]),
        ] {
            let key = Key::new(core.seed, name);
            let memory = alloc_entry(&core, guard.own, name).unwrap();
            Entry::fill(core.arena.slice(memory.0, memory.1), key, &to);
            let entry = Entry::at(&core, memory.0.raw()).unwrap();
            assert!(entry.is(&core, key).unwrap());
            for other in others {
                let other = Key { hash: key.hash, ..Key::new(core.seed, other) };
                assert!(!entry.is(&core, other).unwrap(), "{:?} is {name:?}", other.name);
            }
            assert!(!entry.is(&core, Key { hash: key.hash ^ 1, ..key }).unwrap(), "another hash");
            let changed = Named { kind: FileKind::Directory, version: Version(4), ..to };
            entry.set_meaning(&changed);
            assert_eq!((entry.named().unwrap(), entry.len(), entry.hash()), (changed, name.len(), key.hash));
            assert_eq!(entry.copy_name(&core, &mut [0; NAME_MAX_BYTES]).unwrap(), name);
            assert_eq!(entry.short().is_some(), name.len() <= 24);
            assert!(entry.is(&core, key).unwrap());
        }
        drop(guard);
        volume.abandon();
    }
}
