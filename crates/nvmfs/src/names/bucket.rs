//! A bucket of a directory's table: one cache line that its writer must own anyway.
//!
//! State       `word`   version:48 | lane:10 | dead | changing | locked: the version of the last change of any name in it, and who has
//!                      locked it
//!             `slots`  six entries: high bits of the hash:26 | where (in units of 16 bytes):38; 0 = none. So a look-up reads no other
//!                      entry's line, and a table grows without reading any.
//!             `chain`  the first of further entries, as a slot says it; each names the next in the same way
//!             Entries: `row`.
//! Invariants  I1  `slots`, `chain` and what they lead to change only while the bucket is locked and `changing`.
//!             I2  each change raises the version: who read the same word before and after read one state. Only `locked` and the lane
//!                 may differ:
//!                 a bucket is locked while its change is made durable, and means until then what it meant before.
//!             I3  entries that are taken out may be reused at once; readers throw away what they read if the word moved, and follow
//!                 offsets from such memory only after checking them.
//!             I4  memory that was a bucket once is a bucket for ever (`table` keeps a pool): a late locker locks a bucket, if of
//!                 another directory, and finds out. A bucket that is dead stays dead until it is given a new life.
//!             I5  slots that lead to entries are in ascending order, so in that of their hashes but where these agree in all bits that a
//!                 slot has: who adds one puts them in order, in the line that he has to himself, and none of many readers needs to.
//! Orderings   O1  a changer stores `changing` with a Release fence behind it before its first store of a change; the unlock
//!                 (SeqCst) comes last. A reader loads the word (Acquire) first and again behind an Acquire fence.

mod row;

pub use crate::state::bucket::{Bucket, SLOTS};
pub use row::{ENTRY_WORDS_MAX, HASH_BITS, Key, Meaning, Named, Prepared, Row, Torn, entry_words};

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

/// How long a call waits for others that may themselves wait for the call that it has interrupted.
const GIVES_WAY: Duration = Duration::from_secs(1);

/// Tries to lock before sleeping.
const SPINS: u32 = heddle_arena::sync::spins(200);
/// Steps along a chain before looking whether it is still there.
const STEPS: u32 = 64;
/// No bucket of a table that grows has so many entries outside its line.
const CHAIN_MAX: u32 = 1 << 20;

/// The word of a bucket as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Word(u64);

impl Word {
    /// Version of the last change.
    pub fn version(self) -> Version {
        Version(self.0 >> VERSION_SHIFT)
    }

    /// The directory is dead, or has another table.
    #[inline]
    pub fn dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// The lane that has locked it; 0: none that says so.
    pub fn holder(self) -> u16 {
        if self.0 & LOCKED == 0 { 0 } else { ((self.0 & LANE_MASK) >> LANE_SHIFT) as u16 }
    }

    /// Reading makes no sense just now.
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
    /// The call that this thread's call has interrupted (a signal's handler makes calls) has locked it, or locks others that its holder may
    /// wait for.
    Interrupted,
}

/// What a slot or a link says. In order of the tag.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link(u64);

impl Link {
    /// To nothing.
    pub const NONE: Link = Link(0);

    /// To the entry at `at`, of a name of this hash.
    fn to(at: u64, hash: u64) -> Link {
        Link(tag(hash) << PLACE_BITS | (at / UNIT))
    }

    /// The last one.
    #[inline]
    pub fn is_none(self) -> bool {
        self == Link::NONE
    }

    /// Has the entry fetched, for who will read it soon. The link need not be sound.
    #[inline(always)]
    pub fn prefetch(self, core: &Core) {
        core.arena.prefetch(self.place());
    }

    /// Where the entry is.
    #[inline]
    fn place(self) -> u64 {
        (self.0 & ((1 << PLACE_BITS) - 1)) * UNIT
    }

    /// What is known of its hash.
    #[inline]
    fn tag(self) -> u64 {
        self.0 >> PLACE_BITS
    }

    /// The entry. The link may be nonsense (I3), and must not be the last.
    #[inline(always)]
    pub fn follow(self, core: &Core) -> Result<Row<'_>, Torn> {
        Row::at(core, self.place())
    }
}

/// Reads a slot or link.
#[inline(always)]
fn read(link: &AtomicU64) -> Link {
    // ORDERING: Acquire, the entry's words are behind it.
    Link(link.load(Acquire))
}

impl Bucket {
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
    #[inline]
    pub fn word(&self) -> Word {
        // ORDERING: Acquire, O1.
        Word(self.word.load(Acquire))
    }

    /// Is it as it was when the word was `before`?
    #[inline]
    pub fn still(&self, before: Word) -> bool {
        // ORDERING: Acquire, O1.
        fence(Acquire);
        // ORDERING: Relaxed, behind the fence.
        (self.word.load(Relaxed) ^ before.0) & !(LOCKED | LANE_MASK) == 0
    }

    /// Locks it; `ours` says whether waiting still makes sense.
    pub fn lock(&self, core: &Core, ours: impl Fn() -> bool) -> Result<Word, Unlockable> {
        let (mut spins, mut began) = (0, None);
        let me = lease::with_current(|_, lane| u64::from(lane) << LANE_SHIFT).unwrap_or(0);
        loop {
            // ORDERING: Relaxed, a guess that the CAS checks.
            let seen = self.word.load(Relaxed);
            if seen & DEAD != 0 || !ours() {
                // ORDERING: Acquire, pairs with `kill`: who asks now whether the directory leads elsewhere learns of what killed it.
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
                } else if core.arena.parking().wait(key, locked, wait::look()) == Waited::TimedOut {
                    if since.elapsed() > GIVES_WAY && lease::has_interrupted_names(core) {
                        return Err(Unlockable::Interrupted);
                    }
                    wait::held_up(core, Word(seen).holder(), since.elapsed());
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

    /// Unlocks it as it was, if this lane, whose holder has died, has locked it and begun no change.
    pub fn unlock_dead(&self, core: &Core, lane: u16) {
        let word = self.word();
        if word.holder() == lane && !word.changing() && !word.dead() {
            self.unlock(core, word.version());
        }
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

    /// Calls `each` with every entry: those in the line by the high bits of their hashes, then those outside. Without the lock,
    /// [`Bucket::still`] decides what it was worth.
    #[inline]
    pub fn each<'c>(
        &'c self,
        core: &'c Core,
        mut each: impl FnMut(Row<'c>) -> Result<(), Torn>,
    ) -> Result<(), Torn> {
        for slot in self.slots.iter().map(read) {
            if !slot.is_none() {
                each(slot.follow(core)?)?;
            }
        }
        self.each_outside(core, |_, row| each(row).map(|()| None::<()>)).map(drop)
    }

    /// The word, and the links in the line in ascending order (I5), those to nothing anywhere between; `None` if that is not all there is
    /// to read: the bucket is changing, or dead, or has entries outside its line.
    #[inline]
    pub fn links(&self) -> Option<(Word, [Link; SLOTS])> {
        let word = self.word();
        let links = std::array::from_fn(|i| read(&self.slots[i]));
        // ORDERING: Relaxed, `still` decides what it was worth.
        let plain = !word.changing() && !word.dead() && self.chain.load(Relaxed) == 0;
        plain.then_some((word, links))
    }

    /// Calls `each` with every entry that hangs outside the line, and the link that led to it, until that has an answer.
    fn each_outside<'c, T>(
        &'c self,
        core: &'c Core,
        mut each: impl FnMut(Link, Row<'c>) -> Result<Option<T>, Torn>,
    ) -> Result<Option<T>, Torn> {
        let (mut link, mut steps) = (read(&self.chain), 0);
        let before = self.word();
        while !link.is_none() {
            let row = link.follow(core)?;
            if let Some(answer) = each(link, row)? {
                return Ok(Some(answer));
            }
            link = read(row.next());
            steps += 1;
            // A torn chain may lead in a circle, and one that somebody has scribbled over does so for ever.
            if steps % STEPS == 0 && (!self.still(before) || steps > CHAIN_MAX) {
                return Err(Torn);
            }
        }
        Ok(None)
    }

    /// The entry of a name. Without the lock, [`Bucket::still`] decides what it was worth.
    #[inline(always)]
    pub fn find<'c>(&'c self, core: &'c Core, key: Key<'_>) -> Result<Option<Row<'c>>, Torn> {
        let want = tag(key.hash);
        // All slots at once: which of them it is cannot be foretold, and a branch a slot would be.
        let slots: [Link; SLOTS] = std::array::from_fn(|i| read(&self.slots[i]));
        let mut likely = 0u32;
        for (i, slot) in slots.iter().enumerate() {
            likely |= u32::from(slot.tag() == want) << i;
        }
        while likely != 0 {
            let slot = slots[likely.trailing_zeros() as usize];
            likely &= likely - 1;
            if !slot.is_none() {
                let row = slot.follow(core)?;
                if row.is(core, key)? {
                    return Ok(Some(row));
                }
            }
        }
        // ORDERING: Relaxed, a look; `each_outside` reads it again.
        if self.chain.load(Relaxed) == 0 { Ok(None) } else { self.find_outside(core, key) }
    }

    #[inline(never)]
    fn find_outside<'c>(&'c self, core: &'c Core, key: Key<'_>) -> Result<Option<Row<'c>>, Torn> {
        self.each_outside(core, |link, row| {
            Ok(if link.tag() == tag(key.hash) && row.is(core, key)? { Some(row) } else { None })
        })
    }

    /// Has the bucket itself fetched.
    #[inline(always)]
    pub fn prefetch_line(&self) {
        heddle_arena::prefetch(self);
    }

    /// Adds a name that is not there. Locked and changing. How many entries now hang outside the line.
    pub fn add(&self, core: &Core, key: Key<'_>, to: &Named, prepared: Prepared) -> usize {
        Row::fill(core.arena.slice(prepared.0, prepared.1), key, to);
        self.hang(core, Link::to(prepared.0.raw(), key.hash))
    }

    /// Hangs an entry into the bucket. Locked and changing. How many now hang outside the line.
    fn hang(&self, core: &Core, link: Link) -> usize {
        // ORDERING: Relaxed throughout, I1; Release links the entry's words.
        let mut links: [Link; SLOTS] = std::array::from_fn(|i| read(&self.slots[i]));
        if let Some(free) = links.iter_mut().find(|link| link.is_none()) {
            *free = link;
            // I5.
            for (slot, link) in self.slots.iter().zip(sorted(links)) {
                slot.store(link.0, Release); // ORDERING: Release, as above.
            }
            return 0;
        }
        let first = self.chain.load(Relaxed);
        if let Ok(row) = link.follow(core) {
            row.next().store(first, Relaxed); // ORDERING: Relaxed, as above.
        }
        self.chain.store(link.0, Release); // ORDERING: Release, as above.
        let mut n = 0;
        let _ = self.each_outside(core, |_, _| {
            n += 1;
            Ok(None::<()>)
        });
        n
    }

    /// Takes a name out; its memory. Locked and changing.
    pub fn take(&self, core: &Core, row: Row<'_>) -> Prepared {
        // ORDERING: Relaxed throughout, I1.
        let next = row.next().load(Relaxed);
        let here = |link: &&AtomicU64| Link(link.load(Relaxed)).place() == row.place();
        if let Some(slot) = self.slots.iter().find(here) {
            slot.store(0, Relaxed); // ORDERING: Relaxed, as above.
        } else if here(&&self.chain) {
            self.chain.store(next, Release); // ORDERING: Release, as the entries behind it were linked.
        } else {
            let before = self.each_outside(core, |_, row| Ok(Some(row.next()).filter(here)));
            if let Ok(Some(link)) = before {
                link.store(next, Release); // ORDERING: Release, as above.
            }
            debug_assert!(matches!(before, Ok(Some(_))), "the entry was found under this lock");
        }
        row.memory()
    }

    /// Moves every entry to its bucket of a table of `1 << bits`: of those only that are this one's parts, and empty. All of them are
    /// the caller's alone; this one is changing.
    pub fn scatter<'c>(&'c self, core: &'c Core, bits: u32, to: &'c [Bucket]) {
        let mut links: Vec<Link> = self.slots.iter().map(read).filter(|slot| !slot.is_none()).collect();
        let _ = self.each_outside(core, |link, _| {
            links.push(link);
            Ok(None::<()>)
        });
        for link in links {
            let part = if bits <= TAG_BITS {
                link.tag() >> (TAG_BITS - bits)
            } else {
                let Ok(row) = link.follow(core) else { continue };
                row.hash() >> (HASH_BITS - bits)
            };
            to[part as usize].hang(core, link);
        }
    }
}

/// In ascending order, without a branch: it could not be foretold.
#[inline]
fn sorted(mut links: [Link; SLOTS]) -> [Link; SLOTS] {
    for (low, high) in
        [(0, 5), (1, 3), (2, 4), (1, 2), (3, 4), (0, 3), (2, 5), (0, 1), (2, 3), (4, 5), (1, 2), (3, 4)]
    {
        (links[low], links[high]) = (links[low].min(links[high]), links[low].max(links[high]));
    }
    links
}

/// What a slot keeps of a hash.
#[inline(always)]
fn tag(hash: u64) -> u64 {
    hash >> (HASH_BITS - TAG_BITS)
}

#[cfg(test)]
mod tests {
    use super::{Link, sorted};

    #[test]
    fn links_come_in_order_whatever_order_they_lay_in() {
        // A network that sorts all sequences of 0 and 1 sorts everything.
        for bits in 0..64u64 {
            let links = std::array::from_fn(|i| Link(bits >> i & 1));
            assert!(sorted(links).is_sorted(), "{bits:06b}");
        }
    }
}
