//! A bucket of a directory's table: one cache line that its writer must own anyway.
//!
//! State       `word`   version:48 | lane:10 | dead | changing | locked: the version of the last change of any name in it, and who has
//!                      locked it
//!             `slots`  six entries: where (in units of 16 bytes):38 | high bits of the hash:26; 0 = none. So a look-up reads no other
//!                      entry's line, and a table grows without reading any.
//!             `chain`  further entries, linked
//!             An entry is a row of words: next, hash, child with kind and length, generation, version, name (eight bytes a word).
//! Invariants  I1  `slots`, `chain` and what they lead to change only while the bucket is locked and `changing`.
//!             I2  each change raises the version: who read the same word before and after read one state. Only `locked` and the lane
//!                 may differ:
//!                 a bucket is locked while its change is made durable, and means until then what it meant before.
//!             I3  entries that are taken out may be reused at once; readers throw away what they read if the word moved, and follow
//!                 offsets from such memory only after checking them.
//!             I4  memory that was a bucket once is a bucket for ever (`table` keeps a pool): a late locker locks a bucket, if of
//!                 another directory, and finds out. A bucket that is dead stays dead until it is given a new life.
//! Orderings   O1  a changer stores `changing` with a Release fence behind it before its first store of a change; the unlock
//!                 (SeqCst) comes last. A reader loads the word (Acquire) first and again behind an Acquire fence.

use crate::core::Core;
use crate::ids::{InodeId, Version};
use crate::lease;
use crate::settle;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::atomic::fence;
use heddle_arena::{Ptr, Shared, Waited};
use heddle_vfs::{FileKind, Ino, NAME_MAX_BYTES};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Instant;

const LOCKED: u64 = 1;
const CHANGING: u64 = 2;
const DEAD: u64 = 4;
const LANE_SHIFT: u32 = 4;
const LANE_MASK: u64 = 0x3ff << LANE_SHIFT;
const VERSION_SHIFT: u32 = 16;

const _: () = assert!((crate::core::LANES as u64) << LANE_SHIFT <= LANE_MASK);

/// Entries in the line itself.
pub const SLOTS: usize = 6;
const TAG_BITS: u32 = 26;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
/// Bits of a hash.
pub const HASH_BITS: u32 = 63;
const UNIT: u64 = 16;

const HEADER_WORDS: usize = 5;
/// An entry has at least a line, so that a name of 24 bytes is found in one, and checked in one step.
const ENTRY_WORDS_MIN: usize = 8;
pub const ENTRY_WORDS_MAX: usize = HEADER_WORDS + NAME_MAX_BYTES.div_ceil(8);

/// Words of the entry of a name of so many bytes.
pub fn entry_words(name_bytes: usize) -> usize {
    (HEADER_WORDS + name_bytes.div_ceil(8)).max(ENTRY_WORDS_MIN)
}

/// Tries to lock before sleeping.
const SPINS: u32 = heddle_arena::sync::spins(200);
/// Steps along a chain before looking whether it is still there.
const STEPS: u32 = 64;

/// See the module.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Bucket {
    word: AtomicU64,
    slots: [AtomicU64; SLOTS],
    chain: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket>() == 64);

// SAFETY: atomics only.
unsafe impl Shared for Bucket {}

/// The word of a bucket as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word(u64);

impl Word {
    /// Version of the last change.
    pub fn version(self) -> Version {
        Version(self.0 >> VERSION_SHIFT)
    }

    /// The directory is dead, or has another table.
    pub fn dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// The lane that has locked it; 0: none that says so.
    pub fn holder(self) -> u16 {
        if self.0 & LOCKED == 0 { 0 } else { ((self.0 & LANE_MASK) >> LANE_SHIFT) as u16 }
    }

    /// Reading makes no sense just now.
    pub fn changing(self) -> bool {
        self.0 & CHANGING != 0
    }
}

/// What a name means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// The inode.
    pub child: InodeId,
    /// Its kind.
    pub kind: FileKind,
    /// Version of the record that says so.
    pub version: Version,
}

/// A name as one looks for it.
#[derive(Clone, Copy)]
pub struct Key<'n> {
    /// The bytes.
    pub name: &'n [u8],
    /// Their hash: 63 bits.
    pub hash: u64,
}

impl Key<'_> {
    fn words(&self) -> impl Iterator<Item = u64> {
        self.name.chunks(8).map(word_of)
    }
}

/// Up to eight bytes as a word.
pub fn word_of(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(eight) => u64::from_le_bytes(eight),
        Err(_) => {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        }
    }
}

/// A reader met memory that was being changed.
#[derive(Debug)]
pub struct Torn;

/// The bucket is dead.
#[derive(Debug)]
pub struct Dead;

/// An entry in memory.
#[derive(Clone, Copy)]
pub struct Row<'c> {
    words: &'c [AtomicU64],
    at: u64,
}

impl<'c> Row<'c> {
    /// The entry at an offset that may be nonsense (I3).
    fn at(core: &'c Core, at: u64) -> Result<Row<'c>, Torn> {
        let words = core.arena.try_slice(Ptr::from_raw(at), ENTRY_WORDS_MIN).ok_or(Torn)?;
        Ok(Row { words, at })
    }

    fn word(&self, i: usize) -> u64 {
        // ORDERING: Relaxed, the slot or link that led here was loaded with Acquire; the bucket's word is checked (O1).
        self.words[i].load(Relaxed)
    }

    fn next(&self) -> u64 {
        // ORDERING: Acquire, the next entry's words are behind it.
        self.words[0].load(Acquire)
    }

    /// Its place in the order of reading.
    pub fn hash(&self) -> u64 {
        self.word(1)
    }

    fn len(&self) -> usize {
        (self.word(2) >> 48 & 0xff) as usize
    }

    /// What it means.
    pub fn named(&self) -> Result<Named, Torn> {
        let packed = self.word(2);
        Ok(Named {
            child: InodeId { ino: Ino(packed & ((1 << 40) - 1)), generation: self.word(3) },
            kind: FileKind::from_raw((packed >> 40 & 0xf) as u8).ok_or(Torn)?,
            version: Version(self.word(4)),
        })
    }

    fn name_words(&self, core: &'c Core) -> Result<&'c [AtomicU64], Torn> {
        let n = self.len().div_ceil(8);
        if HEADER_WORDS + n <= ENTRY_WORDS_MIN {
            return Ok(&self.words[HEADER_WORDS..HEADER_WORDS + n]);
        }
        let words = core.arena.try_slice(Ptr::from_raw(self.at), HEADER_WORDS + n).ok_or(Torn)?;
        Ok(&words[HEADER_WORDS..])
    }

    #[inline]
    fn is(&self, core: &'c Core, key: Key<'_>) -> Result<bool, Torn> {
        if self.hash() != key.hash || self.len() != key.name.len() {
            return Ok(false);
        }
        let words = self.name_words(core)?;
        // ORDERING: Relaxed, as `word`.
        Ok(words.iter().zip(key.words()).all(|(word, want)| word.load(Relaxed) == want))
    }

    /// Appends the name to `out`; its length.
    pub fn copy_name(&self, core: &'c Core, out: &mut Vec<u8>) -> Result<usize, Torn> {
        let len = self.len();
        let start = out.len();
        for word in self.name_words(core)? {
            // ORDERING: Relaxed, as `word`.
            out.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        out.truncate(start + len);
        if len == 0 { Err(Torn) } else { Ok(len) }
    }
}

/// Memory for an entry, taken before the operation becomes durable, so that what follows cannot fail.
#[must_use]
pub struct Prepared(pub Ptr<AtomicU64>, pub usize);

/// Where an entry hangs.
enum Link<'c> {
    Slot(&'c AtomicU64),
    Chain(&'c AtomicU64),
}

impl Bucket {
    /// Memory of a bucket without a directory.
    pub fn dead() -> Bucket {
        let zero = || AtomicU64::new(0);
        Bucket { word: AtomicU64::new(DEAD), slots: std::array::from_fn(|_| zero()), chain: zero() }
    }

    /// Gives a dead bucket a new life, empty. The caller alone knows where it is, but for late lockers, whom `dead` keeps off.
    pub fn revive(&self, version: Version) {
        self.slots.iter().chain([&self.chain]).for_each(|slot| slot.store(0, Relaxed)); // ORDERING: Relaxed, see below.
        // ORDERING: Release, what a late locker or reader sees behind it is an empty bucket.
        self.word.store(version.0 << VERSION_SHIFT, Release);
    }

    /// Where a dead bucket in the pool names the next.
    pub fn pooled(&self) -> &AtomicU64 {
        &self.slots[0]
    }

    /// The word, for who reads without the lock; [`Bucket::still`] comes afterwards.
    pub fn word(&self) -> Word {
        // ORDERING: Acquire, O1.
        Word(self.word.load(Acquire))
    }

    /// Is it as it was when the word was `before`?
    pub fn still(&self, before: Word) -> bool {
        // ORDERING: Acquire, O1.
        fence(Acquire);
        // ORDERING: Relaxed, behind the fence.
        (self.word.load(Relaxed) ^ before.0) & !(LOCKED | LANE_MASK) == 0
    }

    /// Locks it; `ours` says whether waiting still makes sense.
    pub fn lock(&self, core: &Core, ours: impl Fn() -> bool) -> Result<Word, Dead> {
        let (mut spins, mut began) = (0, None);
        let me = lease::with_current(|_, lane| u64::from(lane) << LANE_SHIFT).unwrap_or(0);
        loop {
            // ORDERING: Relaxed, a guess that the CAS checks.
            let seen = self.word.load(Relaxed);
            if seen & DEAD != 0 || !ours() {
                return Err(Dead);
            }
            if seen & LOCKED == 0 {
                // ORDERING: Acquire, pairs with the unlock; Relaxed on failure.
                if self.word.compare_exchange(seen, seen | LOCKED | me, Acquire, Relaxed).is_ok() {
                    return Ok(Word(seen));
                }
            } else if spins < SPINS {
                spins += 1;
                heddle_arena::sync::spin_hint();
            } else {
                let locked = || self.word.load(SeqCst) & (LOCKED | DEAD) == LOCKED;
                let key = core.arena.offset_of(self).raw();
                let (by, since) = *began.get_or_insert_with(|| (seen & LANE_MASK, Instant::now()));
                if by != seen & LANE_MASK {
                    began = None;
                } else if core.arena.parking().wait(key, locked, settle::look()) == Waited::TimedOut {
                    settle::held_up(core, Word(seen).holder(), since.elapsed());
                }
            }
        }
    }

    /// Unlocks it: what it holds is of this version.
    pub fn unlock(&self, core: &Core, version: Version) {
        // SeqCst: who sleeps relies on it (see the arena's `park`).
        self.word.store(version.0 << VERSION_SHIFT, SeqCst);
        core.arena.parking().wake(core.arena.offset_of(self).raw());
    }

    /// Ends a locked bucket's life; who waits for the lock finds out.
    pub fn kill(&self, core: &Core) {
        self.word.store(DEAD, SeqCst);
        core.arena.parking().wake(core.arena.offset_of(self).raw());
    }

    /// Before the first store of a change to a locked bucket.
    pub fn begin_change(&self) {
        // ORDERING: Relaxed throughout, this caller holds the lock; the fence orders (O1).
        self.word.store(self.word.load(Relaxed) | CHANGING, Relaxed);
        // ORDERING: Release, O1.
        fence(Release);
    }

    /// Forgets all entries. Locked and changing; their memory is lost.
    pub fn clear(&self) {
        self.slots.iter().chain([&self.chain]).for_each(|slot| slot.store(0, Relaxed)); // ORDERING: Relaxed, I1.
    }

    /// Has it no entries? Exact under the lock.
    pub fn is_empty(&self) -> bool {
        // ORDERING: Relaxed, checked by `still`, or under the lock.
        self.slots.iter().chain([&self.chain]).all(|slot| slot.load(Relaxed) == 0)
    }

    /// Entries in the line itself.
    pub fn in_line(&self) -> usize {
        // ORDERING: Relaxed, an estimate.
        self.slots.iter().filter(|slot| slot.load(Relaxed) != 0).count()
    }

    /// Calls `each` with every entry. Without the lock, [`Bucket::still`] decides what it was worth.
    pub fn each<'c>(
        &'c self,
        core: &'c Core,
        mut each: impl FnMut(Row<'c>) -> Result<(), Torn>,
    ) -> Result<(), Torn> {
        let before = self.word();
        for slot in &self.slots {
            // ORDERING: Acquire, the entry's words are behind it.
            let slot = slot.load(Acquire);
            if slot != 0 {
                each(Row::at(core, (slot >> TAG_BITS) * UNIT)?)?;
            }
        }
        let mut steps = 0;
        // ORDERING: Acquire, as above.
        let mut at = self.chain.load(Acquire);
        while at != 0 {
            let row = Row::at(core, at)?;
            each(row)?;
            at = row.next();
            steps += 1;
            // A torn chain may lead in a circle.
            if steps % STEPS == 0 && !self.still(before) {
                return Err(Torn);
            }
        }
        Ok(())
    }

    /// The entry of a name. Without the lock, [`Bucket::still`] decides what it was worth.
    #[inline]
    pub fn find<'c>(&'c self, core: &'c Core, key: Key<'_>) -> Result<Option<Row<'c>>, Torn> {
        for slot in &self.slots {
            // ORDERING: Acquire, the entry's words are behind it.
            let slot = slot.load(Acquire);
            if slot != 0 && slot & TAG_MASK == tag(key.hash) {
                let row = Row::at(core, (slot >> TAG_BITS) * UNIT)?;
                if row.is(core, key)? {
                    return Ok(Some(row));
                }
            }
        }
        // ORDERING: Acquire, as above.
        if self.chain.load(Acquire) == 0 { Ok(None) } else { self.find_in_chain(core, key) }
    }

    #[cold]
    fn find_in_chain<'c>(&'c self, core: &'c Core, key: Key<'_>) -> Result<Option<Row<'c>>, Torn> {
        let mut found = None;
        self.each(core, |row| {
            if found.is_none() && row.is(core, key)? {
                found = Some(row);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Has the entries in the line fetched, for who will read them soon. What the slots hold need not be sound.
    #[inline]
    pub fn prefetch(&self, core: &Core) {
        for slot in &self.slots {
            // ORDERING: Relaxed, a hint.
            let slot = slot.load(Relaxed);
            if slot != 0 {
                core.arena.prefetch((slot >> TAG_BITS) * UNIT);
            }
        }
    }

    /// Makes a name that is there mean something else. Locked and changing.
    pub fn replace(&self, row: Row<'_>, to: &Named) {
        let packed = to.child.ino.0 | (to.kind as u64) << 40 | (row.len() as u64) << 48;
        for (word, value) in row.words[2..].iter().zip([packed, to.child.generation, to.version.0]) {
            word.store(value, Relaxed); // ORDERING: Relaxed, I1.
        }
    }

    /// Adds a name that is not there. Locked and changing. How many entries now hang outside the line.
    pub fn add(&self, core: &Core, key: Key<'_>, to: &Named, prepared: Prepared) -> usize {
        let row: &[AtomicU64] = core.arena.slice(prepared.0, prepared.1);
        let packed = to.child.ino.0 | (to.kind as u64) << 40 | (key.name.len() as u64) << 48;
        let head = [key.hash, packed, to.child.generation, to.version.0];
        for (word, value) in row[1..].iter().zip(head.into_iter().chain(key.words())) {
            word.store(value, Relaxed); // ORDERING: Relaxed, linked by the Release in `hang`.
        }
        self.hang(core, prepared.0.raw(), key.hash)
    }

    /// Hangs an entry into the bucket. Locked and changing. How many now hang outside the line.
    fn hang(&self, core: &Core, at: u64, hash: u64) -> usize {
        let next = &core.arena.slice(Ptr::<AtomicU64>::from_raw(at), HEADER_WORDS)[0];
        // ORDERING: Relaxed throughout, I1; Release links the entry's words.
        if let Some(free) = self.slots.iter().find(|slot| slot.load(Relaxed) == 0) {
            free.store((at / UNIT) << TAG_BITS | tag(hash), Release); // ORDERING: Release, as above.
            return 0;
        }
        let first = self.chain.load(Relaxed);
        next.store(first, Relaxed); // ORDERING: Relaxed, as above.
        self.chain.store(at, Release); // ORDERING: Release, as above.
        let (mut n, mut at) = (1, first);
        while let Some(next) = core.arena.try_get(Ptr::<AtomicU64>::from_raw(at)) {
            n += 1;
            at = next.load(Relaxed); // ORDERING: Relaxed, as above.
        }
        n
    }

    /// Takes a name out; its memory. Locked and changing.
    pub fn take(&self, core: &Core, row: Row<'_>) -> Prepared {
        let memory = Prepared(Ptr::from_raw(row.at), entry_words(row.len()));
        let next = row.next();
        match self.link_to(core, row.at) {
            // ORDERING: Release, as the entries behind it were linked.
            Some(Link::Chain(link)) => link.store(next, Release),
            Some(Link::Slot(slot)) => slot.store(0, Relaxed), // ORDERING: Relaxed, I1.
            None => debug_assert!(false, "the entry was found under this lock"),
        }
        memory
    }

    fn link_to<'c>(&'c self, core: &'c Core, at: u64) -> Option<Link<'c>> {
        // ORDERING: Relaxed throughout, under the lock.
        let slot = self.slots.iter().find(|slot| {
            let slot = slot.load(Relaxed);
            slot != 0 && (slot >> TAG_BITS) * UNIT == at
        });
        if let Some(slot) = slot {
            return Some(Link::Slot(slot));
        }
        let mut link = &self.chain;
        while link.load(Relaxed) != at {
            link = core.arena.try_get(Ptr::from_raw(link.load(Relaxed)))?;
        }
        Some(Link::Chain(link))
    }

    /// Moves every entry to its bucket of a table of `1 << bits`: of those only that are this one's parts, and empty. All of them are
    /// the caller's alone; this one is changing.
    pub fn scatter<'c>(&'c self, core: &'c Core, bits: u32, to: &'c [Bucket]) {
        let mut rest = Vec::new();
        for slot in &self.slots {
            // ORDERING: Relaxed throughout, I1.
            let slot = slot.load(Relaxed);
            if slot != 0 && bits <= TAG_BITS {
                let part = &to[((slot & TAG_MASK) >> (TAG_BITS - bits)) as usize];
                // A part has as many slots as this bucket, and the chain comes later.
                if let Some(free) = part.slots.iter().find(|slot| slot.load(Relaxed) == 0) {
                    free.store(slot, Relaxed); // ORDERING: Relaxed, published with the table.
                }
            } else if slot != 0 {
                rest.push((slot >> TAG_BITS) * UNIT);
            }
        }
        let mut at = self.chain.load(Relaxed);
        while let Ok(row) = Row::at(core, at) {
            rest.push(at);
            at = row.next();
        }
        for at in rest {
            let Ok(row) = Row::at(core, at) else { continue };
            to[(row.hash() >> (HASH_BITS - bits)) as usize].hang(core, at, row.hash());
        }
    }
}

/// What a slot keeps of a hash.
fn tag(hash: u64) -> u64 {
    hash >> (HASH_BITS - TAG_BITS)
}
