//! A bucket of a directory's hash table: one cache line that its writer must own anyway.
//!
//! State       `word`   version:48 | lane:10 | dead | changing | locked: the version of the last change of any name in the bucket, and
//!                      the lane that holds the lock
//!             `slots`  six entries: high bits of the hash:26 | position (in units of 16 bytes):38; 0 = none. With the hash bits here,
//!                      a look-up reads no other entry's line, and a table grows without reading any.
//!             `chain`  the first of further entries, encoded as a slot; each entry links to the next in the same way
//!             Entries: `entry`.
//! Invariants  I1  `slots`, `chain` and the entries behind them change only while the bucket is locked and `changing`.
//!             I2  each change raises the version. A reader that read the same word before and after has read one state. Only `locked`
//!                 and the lane may differ: the bucket is locked while its change is made durable, and its old entries are valid until
//!                 then.
//!             I3  the memory of removed entries may be reused at once. A reader discards its result if the word changed, and checks
//!                 each offset from such memory before it follows it.
//!             I4  memory that was once a bucket stays a bucket for ever (`table` keeps a pool). A thread that locks late may lock
//!                 a bucket of another directory, and then notices. A dead bucket stays dead until `revive`.
//!             I5  slots with entries are in ascending order, hence in the order of the hashes, except where two hashes agree in all bits
//!                 that a slot keeps. The writer that adds an entry sorts the slots, because it owns the line; so no reader has to.
//! Orderings   O1  a writer stores `changing`, with a Release fence after it, before its first store of a change; the unlock
//!                 (SeqCst) comes last. A reader loads the word (Acquire) first, and again after an Acquire fence.

mod entry;

pub use crate::state::bucket::{Bucket, SLOTS};
pub use entry::{ENTRY_WORDS_MAX, Entry, EntryMemory, HASH_BITS, Key, Meaning, Named, Torn, entry_words};

use crate::ids::Version;
use crate::state::bucket::DEAD;
use crate::state::core::Core;
use crate::state::{lease, wait};
use heddle_arena::Waited;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::atomic::fence;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

const LOCKED: u64 = 1;
const CHANGING: u64 = 2;
const LANE_SHIFT: u32 = 4;
const LANE_MASK: u64 = 0x3ff << LANE_SHIFT;
const VERSION_SHIFT: u32 = 16;

const _: () = assert!((crate::ids::LANES as u64) << LANE_SHIFT <= LANE_MASK);

const TAG_BITS: u32 = 26;
const PLACE_BITS: u32 = 64 - TAG_BITS;
const UNIT: u64 = 16;

/// How long a call in a signal handler waits for threads that may themselves wait for the interrupted call.
const GIVES_WAY: Duration = Duration::from_secs(1);

/// Attempts to lock before sleeping.
const SPINS: u32 = heddle_arena::sync::spins(200);
/// Steps along a chain between two checks that the chain still exists.
const STEPS: u32 = 64;
/// Larger than the number of entries outside its line that a bucket of any table can have.
const CHAIN_MAX: u32 = 1 << 20;

/// The word of a bucket, as loaded once.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Word(u64);

impl Word {
    /// Version of the last change.
    pub fn version(self) -> Version {
        Version(self.0 >> VERSION_SHIFT)
    }

    /// Returns true if the directory is dead, or has another table.
    #[inline]
    pub fn dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// The lane that holds the lock. 0: not locked, or by a caller without a lane.
    pub fn holder(self) -> u16 {
        if self.0 & LOCKED == 0 { 0 } else { ((self.0 & LANE_MASK) >> LANE_SHIFT) as u16 }
    }

    /// Returns true if a change is under way, so that reading is pointless.
    #[inline]
    pub fn changing(self) -> bool {
        self.0 & CHANGING != 0
    }
}

/// Why a bucket could not be locked.
#[derive(Debug)]
pub enum Unlockable {
    /// It is dead.
    Dead,
    /// This thread runs a signal handler. The call that it interrupted has locked the bucket, or locks others
    /// that the bucket's holder may wait for.
    Interrupted,
}

/// The contents of a slot or a link. Links are ordered by their hash bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link(u64);

impl Link {
    /// No entry.
    pub const NONE: Link = Link(0);

    /// A link to the entry at `at`, of a name with this hash.
    fn to(at: u64, hash: u64) -> Link {
        Link(tag(hash) << PLACE_BITS | (at / UNIT))
    }

    /// Returns true if this is no entry.
    #[inline]
    pub fn is_none(self) -> bool {
        self == Link::NONE
    }

    /// Prefetches the entry for a read that follows soon. The link need not be valid.
    #[inline(always)]
    pub fn prefetch(self, core: &Core) {
        core.arena.prefetch(self.place());
    }

    /// Position of the entry.
    #[inline]
    fn place(self) -> u64 {
        (self.0 & ((1 << PLACE_BITS) - 1)) * UNIT
    }

    /// The bits of the hash that a link keeps.
    #[inline]
    fn tag(self) -> u64 {
        self.0 >> PLACE_BITS
    }

    /// Returns the entry. The link may be stale (I3), and must not be `NONE`.
    #[inline(always)]
    pub fn follow(self, core: &Core) -> Result<Entry<'_>, Torn> {
        Entry::at(core, self.place())
    }
}

/// Reads a slot or link.
#[inline(always)]
fn read(link: &AtomicU64) -> Link {
    // ORDERING: Acquire, the entry's words were stored before the link.
    Link(link.load(Acquire))
}

impl Bucket {
    /// Makes a dead bucket usable again, empty. Only the caller knows its position; `dead` kept late lockers
    /// out so far.
    pub fn revive(&self, version: Version) {
        self.slots.iter().chain([&self.chain]).for_each(|slot| slot.store(0, Relaxed)); // ORDERING: Relaxed, see below.
        // ORDERING: Release: a late locker or reader that sees this word sees an empty bucket.
        self.word.store(version.0 << VERSION_SHIFT, Release);
    }

    /// The word by which a dead bucket in the pool links to the next one.
    pub fn pooled(&self) -> &AtomicU64 {
        &self.slots[0]
    }

    /// The word, for a reader without the lock. The reader calls [`Bucket::still`] afterwards.
    #[inline]
    pub fn word(&self) -> Word {
        // ORDERING: Acquire, O1.
        Word(self.word.load(Acquire))
    }

    /// Returns true if the bucket is unchanged since its word was `before`.
    #[inline]
    pub fn still(&self, before: Word) -> bool {
        // ORDERING: Acquire, O1.
        fence(Acquire);
        // ORDERING: Relaxed, after the fence.
        (self.word.load(Relaxed) ^ before.0) & !(LOCKED | LANE_MASK) == 0
    }

    /// Locks the bucket. `ours` returns false when waiting no longer makes sense.
    pub fn lock(&self, core: &Core, ours: impl Fn() -> bool) -> Result<Word, Unlockable> {
        let (mut spins, mut began) = (0, None);
        let me = lease::with_current(|_, lane| u64::from(lane) << LANE_SHIFT).unwrap_or(0);
        loop {
            // ORDERING: Relaxed, a guess that the CAS checks.
            let seen = self.word.load(Relaxed);
            if seen & DEAD != 0 || !ours() {
                // ORDERING: Acquire, pairs with `kill`: a thread that checks now whether the directory leads elsewhere sees what killed it.
                fence(Acquire);
                return Err(Unlockable::Dead);
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
                if lease::is_interrupted(core, Word(seen).holder()) {
                    return Err(Unlockable::Interrupted);
                }
                let locked = || self.word.load(SeqCst) & (LOCKED | DEAD) == LOCKED;
                let key = core.arena.offset_of(self).raw();
                let (by, since) = *began.get_or_insert_with(|| (seen & LANE_MASK, Instant::now()));
                if by != seen & LANE_MASK {
                    began = None;
                } else if core.arena.parking().wait(key, locked, wait::check_every()) == Waited::TimedOut {
                    if since.elapsed() > GIVES_WAY && lease::has_interrupted_names(core) {
                        return Err(Unlockable::Interrupted);
                    }
                    wait::held_up(core, Word(seen).holder(), since.elapsed());
                }
            }
        }
    }

    /// Unlocks the bucket and sets its version.
    pub fn unlock(&self, core: &Core, version: Version) {
        // SeqCst: sleeping waiters rely on it (see the arena's `park`).
        self.word.store(version.0 << VERSION_SHIFT, SeqCst);
        core.arena.parking().wake(core.arena.offset_of(self).raw());
    }

    /// Unlocks the bucket unchanged, if this dead lane has locked it and begun no change.
    pub fn unlock_dead(&self, core: &Core, lane: u16) {
        let word = self.word();
        if word.holder() == lane && !word.changing() && !word.dead() {
            self.unlock(core, word.version());
        }
    }

    /// Marks a locked bucket as dead. Threads that wait for the lock notice.
    pub fn kill(&self, core: &Core) {
        self.word.store(DEAD, SeqCst);
        core.arena.parking().wake(core.arena.offset_of(self).raw());
    }

    /// Must precede the first store of a change to a locked bucket.
    pub fn begin_change(&self) {
        // ORDERING: Relaxed throughout, this caller holds the lock; the fence orders (O1).
        self.word.store(self.word.load(Relaxed) | CHANGING, Relaxed);
        // ORDERING: Release, O1.
        fence(Release);
    }

    /// Removes all entries, and leaks their memory. The bucket is locked and changing.
    pub fn clear(&self) {
        self.slots.iter().chain([&self.chain]).for_each(|slot| slot.store(0, Relaxed)); // ORDERING: Relaxed, I1.
    }

    /// Returns true if the bucket has no entries. Exact under the lock.
    pub fn is_empty(&self) -> bool {
        // ORDERING: Relaxed, checked by `still`, or under the lock.
        self.slots.iter().chain([&self.chain]).all(|slot| slot.load(Relaxed) == 0)
    }

    /// Number of entries in the line itself.
    pub fn in_line(&self) -> usize {
        // ORDERING: Relaxed, an estimate.
        self.slots.iter().filter(|slot| slot.load(Relaxed) != 0).count()
    }

    /// Calls `each` for every entry: those in the line by the high bits of their hashes, then those outside.
    /// Without the lock, the result is valid only if [`Bucket::still`] says so afterwards.
    #[inline]
    pub fn each<'c>(
        &'c self,
        core: &'c Core,
        mut each: impl FnMut(Entry<'c>) -> Result<(), Torn>,
    ) -> Result<(), Torn> {
        for slot in self.slots.iter().map(read) {
            if !slot.is_none() {
                each(slot.follow(core)?)?;
            }
        }
        self.each_outside(core, |_, entry| each(entry).map(|()| None::<()>)).map(drop)
    }

    /// Returns the word, and the links of the line in ascending order (I5); empty links may stand anywhere
    /// between. Returns `None` if the line is not all: the bucket is changing, or dead, or has entries
    /// outside its line.
    #[inline]
    pub fn links(&self) -> Option<(Word, [Link; SLOTS])> {
        let word = self.word();
        let links = std::array::from_fn(|i| read(&self.slots[i]));
        // ORDERING: Relaxed, `still` validates the result.
        let plain = !word.changing() && !word.dead() && self.chain.load(Relaxed) == 0;
        plain.then_some((word, links))
    }

    /// Calls `each` for every entry outside the line, and the link that led to it, until `each` returns a
    /// result.
    fn each_outside<'c, T>(
        &'c self,
        core: &'c Core,
        mut each: impl FnMut(Link, Entry<'c>) -> Result<Option<T>, Torn>,
    ) -> Result<Option<T>, Torn> {
        let (mut link, mut steps) = (read(&self.chain), 0);
        let before = self.word();
        while !link.is_none() {
            let entry = link.follow(core)?;
            if let Some(answer) = each(link, entry)? {
                return Ok(Some(answer));
            }
            link = read(entry.next());
            steps += 1;
            // A torn chain may be circular. One that a client has scribbled over stays circular.
            if steps % STEPS == 0 && (!self.still(before) || steps > CHAIN_MAX) {
                return Err(Torn);
            }
        }
        Ok(None)
    }

    /// Finds the entry of a name. Without the lock, the result is valid only if [`Bucket::still`] says so
    /// afterwards.
    #[inline(always)]
    pub fn find<'c>(&'c self, core: &'c Core, key: Key<'_>) -> Result<Option<Entry<'c>>, Torn> {
        let want = tag(key.hash);
        // Compares all slots at once: a branch for each slot would be mispredicted.
        let slots: [Link; SLOTS] = std::array::from_fn(|i| read(&self.slots[i]));
        let mut likely = 0u32;
        for (i, slot) in slots.iter().enumerate() {
            likely |= u32::from(slot.tag() == want) << i;
        }
        while likely != 0 {
            let slot = slots[likely.trailing_zeros() as usize];
            likely &= likely - 1;
            if !slot.is_none() {
                let entry = slot.follow(core)?;
                if entry.is(core, key)? {
                    return Ok(Some(entry));
                }
            }
        }
        // ORDERING: Relaxed, only a hint; `each_outside` reads it again.
        if self.chain.load(Relaxed) == 0 { Ok(None) } else { self.find_outside(core, key) }
    }

    #[inline(never)]
    fn find_outside<'c>(&'c self, core: &'c Core, key: Key<'_>) -> Result<Option<Entry<'c>>, Torn> {
        self.each_outside(core, |link, entry| {
            Ok(if link.tag() == tag(key.hash) && entry.is(core, key)? { Some(entry) } else { None })
        })
    }

    /// Prefetches the bucket's own line.
    #[inline(always)]
    pub fn prefetch_line(&self) {
        heddle_arena::prefetch(self);
    }

    /// Adds a name that is not there. The bucket is locked and changing. Returns the number of entries
    /// outside the line.
    pub fn add(&self, core: &Core, key: Key<'_>, to: &Named, memory: EntryMemory) -> usize {
        Entry::fill(core.arena.slice(memory.0, memory.1), key, to);
        self.hang(core, Link::to(memory.0.raw(), key.hash))
    }

    /// Links an entry into the bucket. The bucket is locked and changing. Returns the number of entries
    /// outside the line.
    fn hang(&self, core: &Core, link: Link) -> usize {
        // ORDERING: Relaxed throughout, I1; Release links the entry's words.
        let mut links: [Link; SLOTS] = std::array::from_fn(|i| read(&self.slots[i]));
        if let Some(free) = links.iter_mut().find(|link| link.is_none()) {
            *free = link;
            // I5.
            for (slot, link) in self.slots.iter().zip(sorted(links)) {
                slot.store(link.0, Release);
            }
            return 0;
        }
        let first = self.chain.load(Relaxed);
        if let Ok(entry) = link.follow(core) {
            entry.next().store(first, Relaxed);
        }
        self.chain.store(link.0, Release);
        let mut n = 0;
        let _ = self.each_outside(core, |_, _| {
            n += 1;
            Ok(None::<()>)
        });
        n
    }

    /// Removes a name and returns its memory. The bucket is locked and changing.
    pub fn take(&self, core: &Core, entry: Entry<'_>) -> EntryMemory {
        // ORDERING: Relaxed throughout, I1.
        let next = entry.next().load(Relaxed);
        let here = |link: &&AtomicU64| Link(link.load(Relaxed)).place() == entry.place();
        if let Some(slot) = self.slots.iter().find(here) {
            slot.store(0, Relaxed);
        } else if here(&&self.chain) {
            self.chain.store(next, Release); // ORDERING: Release, as the entries behind it were linked.
        } else {
            let before = self.each_outside(core, |_, entry| Ok(Some(entry.next()).filter(here)));
            if let Ok(Some(link)) = before {
                link.store(next, Release);
            }
            debug_assert!(matches!(before, Ok(Some(_))), "the entry was found under this lock");
        }
        entry.memory()
    }

    /// Moves every entry to its bucket of `to`, a table of `1 << bits`. Those that this one is split into are
    /// empty. The caller alone uses all of them. This bucket is changing.
    pub fn scatter<'c>(&'c self, core: &'c Core, bits: u32, to: &'c [Bucket]) {
        let mut links: Vec<Link> = self.slots.iter().map(read).filter(|slot| !slot.is_none()).collect();
        let _ = self.each_outside(core, |link, _| {
            links.push(link);
            Ok(None::<()>)
        });
        for link in links {
            if let Some(part) = index_of(link, bits, || Some(link.follow(core).ok()?.hash())) {
                to[part].hang(core, link);
            }
        }
    }
}

/// The index of an entry's bucket in a table of `1 << bits`. `hash` reads the entry's own line, which only a
/// table of more buckets than a link tells apart needs.
fn index_of(link: Link, bits: u32, hash: impl FnOnce() -> Option<u64>) -> Option<usize> {
    let index = match TAG_BITS.checked_sub(bits) {
        Some(others) => link.tag() >> others,
        None => hash()? >> (HASH_BITS - bits),
    };
    Some(index as usize)
}

/// Sorts without branches, which would be mispredicted.
#[inline]
fn sorted(mut links: [Link; SLOTS]) -> [Link; SLOTS] {
    for (low, high) in
        [(0, 5), (1, 3), (2, 4), (1, 2), (3, 4), (0, 3), (2, 5), (0, 1), (2, 3), (4, 5), (1, 2), (3, 4)]
    {
        (links[low], links[high]) = (links[low].min(links[high]), links[low].max(links[high]));
    }
    links
}

/// The bits of a hash that a slot keeps.
#[inline(always)]
fn tag(hash: u64) -> u64 {
    hash >> (HASH_BITS - TAG_BITS)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
