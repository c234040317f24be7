//! The volatile form of a directory: a hash table of buckets, read without locks, changed bucket by bucket.
//!
//! State       one word in the directory's inode: position of the buckets | their number (a power of two); 0: no table.
//! Invariants  I1  a name is changed under its bucket's lock, from before its record is logged until the bucket says the same. So a
//!                 bucket's version orders all records of its names (docs/protocol.md D18).
//!             I2  a caller that holds one bucket of a directory knows that the directory lives and keeps its table: growing the
//!                 table and removing the directory take all buckets (D21).
//!             I3  buckets are ranges of the hash in ascending order. So reading in bucket order is reading in hash order, for any
//!                 number of buckets: cookies survive a resize and a restart (docs/protocol.md C1).
//!             I4  a table of one bucket is the directory's `home`, in its inode. Larger arrays come from a pool and return to it. Both
//!                 stay buckets for ever (`bucket` I4). After locking a bucket, a caller checks that the directory still leads to it.
//!             I5  buckets of a new array start with the version of the bucket that they were split from. After a restart all start with
//!                 the largest version in the directory's log.
//! Lock order  the growth latch (the inode's EOF latch), then buckets: by inode number, within a directory by hash, which is by index.
//! Growth      a table grows when too many entries lie outside one bucket's line and a sample of other buckets is full. No shared
//!             count is needed. Each crowded bucket has a sample of its own, so no sample decides for long. All buckets are
//!             locked, the new array is filled and published, and the old one dies.
//! Orderings   O1  the word is stored (Release) when the array is filled. A reader loads it (Acquire) before, and compares it after.
//!             O2  the generation is compared after the word was loaded (Acquire): the word was this directory's.

mod dead;
mod list;
mod pending;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(test)]
pub use dead::lock_reused_table;
pub use dead::{Logged, losers, removed_in_place, settle_dead, unlock_reused_table};
pub use list::list;
pub use pending::{is_pending, may_count};

use crate::ids::Version;
use crate::names::bucket::{Bucket, ENTRY_WORDS_MAX, Entry, HASH_BITS, SLOTS, Torn, Unlockable, entry_words};
use crate::state::bucket::{GROWTH_BITS, NAMES_A_BUCKET};
use crate::state::core::{Core, no_memory};
use crate::state::inode::InodeRef;
use crate::state::lane::LaneLocal;
use crate::state::operation::Durable;
use crate::state::{lease, wait};
use heddle_arena::Ptr;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_vfs::{Error, Result};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Instant;

pub use crate::names::bucket::{EntryMemory, Key, Meaning, Named};

const BITS_MASK: u64 = 63;
/// Number of entries outside a bucket's line from which the table grows.
const CROWD: usize = 3;
/// Number of buckets in a sample, which tells a full table from one with a single crowded bucket.
const SAMPLE: usize = 32;
/// Attempts without the lock.
const TRIES: u32 = 16;

/// A name and its hash.
#[inline]
pub fn key<'n>(core: &Core, name: &'n [u8]) -> Key<'n> {
    Key::new(core.seed, name)
}

/// The buckets that a directory has, or had when its word was loaded.
#[derive(Clone, Copy)]
struct Table<'c> {
    dir: InodeRef<'c>,
    generation: u64,
    word: u64,
    buckets: &'c [Bucket],
}

impl<'c> Table<'c> {
    /// Returns `None` if the inode is not a directory, or is dead.
    #[inline(always)]
    fn of(core: &'c Core, dir: InodeRef<'c>) -> Option<Table<'c>> {
        let generation = dir.volatile.generation();
        let mode = dir.volatile.mode();
        // ORDERING: Acquire, O1.
        let word = dir.volatile.aux.load(Acquire);
        // A file keeps its locks in the same word. So the word must be of this generation (O2).
        if !mode.is_directory() || word == 0 || generation == 0 || dir.volatile.generation() != generation {
            return None;
        }
        let buckets = buckets_at(core, word).unwrap_or_else(|| leads_nowhere(word));
        Some(Table { dir, generation, word, buckets })
    }

    /// Returns true if the directory still has this table.
    #[inline(always)]
    fn current(&self) -> bool {
        // ORDERING: Acquire, O1.
        self.dir.volatile.aux.load(Acquire) == self.word && self.dir.volatile.generation() == self.generation
    }

    #[inline(always)]
    fn bits(&self) -> u32 {
        (self.word & BITS_MASK) as u32
    }

    #[inline(always)]
    fn index(&self, hash: u64) -> usize {
        (hash >> (HASH_BITS - self.bits())) as usize
    }

    /// Reads a bucket. Returns `None` if the bucket or the table changed meanwhile.
    fn read<T>(&self, bucket: &'c Bucket, f: impl FnOnce(&'c Bucket) -> Seen<T>) -> Option<Option<T>> {
        let before = bucket.word();
        if before.changing() {
            heddle_arena::sync::spin_hint();
            return None;
        }
        // The bucket is dead and is still the directory's: so the directory is dead, and has no names.
        let result = if before.dead() { None } else { Some(f(bucket).ok()?) };
        (bucket.still(before) && self.current()).then_some(result)
    }
}

/// The buckets that a word leads to. Empty if the word was overwritten with nonsense: a table is never larger
/// than the image's most names require. So a scribbled word cannot make a caller walk through all of the
/// arena.
#[inline(always)]
fn buckets_at(core: &Core, word: u64) -> Option<&[Bucket]> {
    let bits = word & BITS_MASK;
    if bits > u64::from(core.table_bits_max) {
        return None;
    }
    core.arena.try_slice(Ptr::from_raw(word & !BITS_MASK), 1 << bits)
}

#[cold]
fn leads_nowhere(word: u64) -> ! {
    panic!("the word {word:#x} leads to no directory's table");
}

type Seen<T> = std::result::Result<T, Torn>;

/// Runs `f` on the bucket of a hash until no change interfered; after some attempts, under its lock. Returns
/// `None` if the directory is dead.
#[inline]
fn read<'c, T>(
    core: &'c Core,
    dir: InodeRef<'c>,
    hash: u64,
    mut f: impl FnMut(&Table<'c>, &'c Bucket) -> Seen<T>,
) -> Result<Option<T>> {
    let table = Table::of(core, dir).ok_or(Error::Stale)?;
    match table.read(&table.buckets[table.index(hash)], |bucket| f(&table, bucket)) {
        Some(result) => Ok(result),
        None => read_again(core, dir, hash, f),
    }
}

/// The attempts after the first.
#[cold]
fn read_again<'c, T>(
    core: &'c Core,
    dir: InodeRef<'c>,
    hash: u64,
    mut f: impl FnMut(&Table<'c>, &'c Bucket) -> Seen<T>,
) -> Result<Option<T>> {
    for _ in 1..TRIES {
        let table = Table::of(core, dir).ok_or(Error::Stale)?;
        if let Some(result) = table.read(&table.buckets[table.index(hash)], |bucket| f(&table, bucket)) {
            return Ok(result);
        }
    }
    if lease::with_current(|_, _| ()).is_none() {
        return read_without_lock(core, dir, hash, f);
    }
    match lock(core, dir, hash) {
        Ok(locked) => f(&locked.table, locked.bucket).map(Some).map_err(|Torn| damage(core, dir)),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// As `read`, for a caller without a lane. Such a caller must not lock: no settler could release its lock
/// after its death.
fn read_without_lock<'c, T>(
    core: &'c Core,
    dir: InodeRef<'c>,
    hash: u64,
    mut f: impl FnMut(&Table<'c>, &'c Bucket) -> Seen<T>,
) -> Result<Option<T>> {
    let began = Instant::now();
    loop {
        let table = Table::of(core, dir).ok_or(Error::Stale)?;
        let bucket = &table.buckets[table.index(hash)];
        let before = bucket.word();
        if let Some(result) = table.read(bucket, |bucket| f(&table, bucket)) {
            return Ok(result);
        }
        // The bucket did not change all the while, and is inconsistent: it will stay so.
        if !before.changing() && bucket.still(before) && table.current() {
            return Err(damage(core, dir));
        }
        std::thread::yield_now();
        if bucket.word().changing() && began.elapsed() > wait::CHECK_EVERY {
            wait::held_up(core, bucket.word().holder(), began.elapsed());
        }
    }
}

/// Finds a name.
pub fn find(core: &Core, dir: InodeRef<'_>, key: Key<'_>) -> Result<Option<Named>> {
    match glance(core, dir, key) {
        Some(meaning) if meaning.is_none() => Ok(None),
        Some(meaning) => meaning.named().map(Some).map_err(|Torn| damage(core, dir)),
        None => find_again(core, dir, key),
    }
}

/// Returns the meaning of a name, if its bucket is not changing. It is inlined into its callers and returns
/// words, not a `Result`: that would go through memory, stored in one width and loaded in another.
#[inline(always)]
pub fn glance(core: &Core, dir: InodeRef<'_>, key: Key<'_>) -> Option<Meaning> {
    // Most directories are small. This prefetch comes before the position of the buckets is known: in a
    // directory that was not used for long, both lines are cache misses.
    dir.volatile.home.prefetch_line();
    let table = Table::of(core, dir)?;
    let bucket = table.buckets.get(table.index(key.hash))?;
    let before = bucket.word();
    if before.changing() || before.dead() {
        return None;
    }
    let meaning = match bucket.find(core, key) {
        Ok(Some(entry)) => entry.meaning(),
        Ok(None) => Meaning::NONE,
        Err(Torn) => return None,
    };
    if bucket.still(before) && table.current() { Some(meaning) } else { None }
}

#[cold]
#[inline(never)]
fn find_again(core: &Core, dir: InodeRef<'_>, key: Key<'_>) -> Result<Option<Named>> {
    let found = read(core, dir, key.hash, |_, bucket| {
        bucket.find(core, key)?.map(|entry| entry.named()).transpose()
    })?;
    Ok(found.flatten())
}

/// Reports that the volatile table is inconsistent.
#[cold]
fn damage(core: &Core, dir: InodeRef<'_>) -> Error {
    core.damage(format!("the volatile table of directory {}", dir.ino.0))
}

/// Number of entries that fit the directory's table without growth, approximately: the measure for its log. 0 if it is not a directory.
pub fn count(core: &Core, dir: InodeRef<'_>) -> u64 {
    Table::of(core, dir).map_or(0, |table| 2 << table.bits())
}

/// Returns true if the directory has no names at this moment.
pub fn is_empty(core: &Core, dir: InodeRef<'_>) -> bool {
    Table::of(core, dir).is_none_or(|table| table.buckets.iter().all(Bucket::is_empty))
}

/// A locked bucket. Dropping it unlocks the bucket.
pub struct Locked<'c> {
    core: &'c Core,
    table: Table<'c>,
    bucket: &'c Bucket,
    version: Version,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.bucket.unlock(self.core, self.version);
    }
}

/// Notes in the lane's intent that it may lock buckets of this directory and of this table, for its settler.
/// Both are noted because, between the look at the directory and the lock, the memory may become another
/// directory's (I4 of `bucket`).
fn announce(table: &Table<'_>) {
    lease::with_current(|core, lane| {
        let intent = &core.lane(lane).intent;
        intent.note_dir(table.dir.ino.0);
        intent.note_table(table.word);
    });
}

/// Locks the bucket of a hash.
///
/// # Errors
/// [`Error::NotFound`] if the directory is dead; [`Error::WouldDeadlock`] in a signal handler, if
/// the interrupted call holds the bucket.
pub fn lock<'c>(core: &'c Core, dir: InodeRef<'c>, hash: u64) -> Result<Locked<'c>> {
    loop {
        let table = Table::of(core, dir).ok_or(Error::NotFound)?;
        announce(&table);
        let bucket = &table.buckets[table.index(hash)];
        match bucket.lock(core, || table.current()) {
            Ok(word) => {
                let locked = Locked { core, table, bucket, version: word.version() };
                // I4.
                if table.current() {
                    return Ok(locked);
                }
            }
            Err(Unlockable::Interrupted) => return Err(Error::WouldDeadlock),
            Err(Unlockable::Dead) if table.current() => return Err(Error::NotFound),
            Err(Unlockable::Dead) => {}
        }
    }
}

impl<'c> Locked<'c> {
    /// Version of the last change of a name in the bucket.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns true if this is the bucket of that hash in that directory.
    pub fn covers(&self, dir: InodeRef<'_>, hash: u64) -> bool {
        self.table.dir.ino == dir.ino
            && std::ptr::eq(self.bucket, &self.table.buckets[self.table.index(hash)])
    }

    /// Finds a name.
    pub fn find(&self, key: Key<'_>) -> Result<Option<Named>> {
        self.entry(key)?.map(|entry| entry.named()).transpose().map_err(|Torn| self.damage())
    }

    #[inline(always)]
    fn entry(&self, key: Key<'_>) -> Result<Option<Entry<'c>>> {
        self.bucket.find(self.core, key).map_err(|Torn| self.damage())
    }

    #[cold]
    fn damage(&self) -> Error {
        damage(self.core, self.table.dir)
    }

    /// Begins a change that is durable. Readers see it when the bucket is unlocked, with this version.
    pub fn begin_change(&mut self, _: &Durable, version: Version) {
        self.begin_removal_in_place(version);
    }

    /// The same, before a record in the log is turned into a removal (`in_place_removal`, I1).
    pub fn begin_removal_in_place(&mut self, version: Version) {
        self.bucket.begin_change();
        self.version = version;
    }

    /// Adds a name, or changes its meaning. A change has begun. If the bucket is crowded now, returns the
    /// table: the caller passes it to [`grow`] when it has unlocked the bucket.
    pub fn put(
        &self,
        own: &mut LaneLocal,
        key: Key<'_>,
        to: &Named,
        memory: EntryMemory,
    ) -> Result<Option<Crowded>> {
        if let Some(entry) = self.entry(key)? {
            entry.set_meaning(to);
            free_entry(self.core, own, memory);
            return Ok(None);
        }
        let crowded = self.bucket.add(self.core, key, to, memory) >= CROWD;
        Ok(crowded.then(|| Crowded { word: self.table.word, index: self.table.index(key.hash) }))
    }

    /// Changes the meaning of an existing name. A change has begun.
    pub fn set_meaning(&self, key: Key<'_>, to: &Named) -> Result<()> {
        if let Some(entry) = self.entry(key)? {
            entry.set_meaning(to);
        }
        Ok(())
    }

    /// Removes a name. A change has begun.
    pub fn take(&self, own: &mut LaneLocal, key: Key<'_>) -> Result<()> {
        if let Some(entry) = self.entry(key)? {
            free_entry(self.core, own, self.bucket.take(self.core, entry));
        }
        Ok(())
    }
}

/// All buckets of a directory, locked. Dropping it unlocks them unchanged.
pub struct Whole<'c> {
    core: &'c Core,
    table: Table<'c>,
    locked: usize,
}

/// Locks all buckets of a directory.
///
/// # Errors
/// [`Error::NotFound`] if the directory is dead; [`Error::WouldDeadlock`] as for [`lock`].
pub fn lock_whole<'c>(core: &'c Core, dir: InodeRef<'c>) -> Result<Whole<'c>> {
    'again: loop {
        let table = Table::of(core, dir).ok_or(Error::NotFound)?;
        announce(&table);
        let mut whole = Whole { core, table, locked: 0 };
        for bucket in table.buckets {
            match bucket.lock(core, || table.current()) {
                Ok(_) => whole.locked += 1,
                Err(Unlockable::Interrupted) => return Err(Error::WouldDeadlock),
                Err(Unlockable::Dead) if table.current() => return Err(Error::NotFound),
                Err(Unlockable::Dead) => continue 'again,
            }
        }
        if table.current() {
            return Ok(whole);
        }
    }
}

impl Whole<'_> {
    /// Returns true if the directory has no names.
    pub fn is_empty(&self) -> bool {
        self.table.buckets.iter().all(Bucket::is_empty)
    }

    /// Marks the directory as dead. Callers that wait to change it notice (D21).
    pub fn kill(mut self) {
        self.locked = 0;
        self.table.buckets.iter().for_each(|bucket| bucket.kill(self.core));
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        for bucket in &self.table.buckets[..self.locked] {
            bucket.unlock(self.core, bucket.word().version());
        }
    }
}

/// Kills the buckets of a directory that lost its name, if a dead lane holds all of them that are alive.
pub fn kill_dead(core: &Core, lane: u16, dir: InodeRef<'_>) -> bool {
    let Some(table) = Table::of(core, dir) else { return false };
    let gone = |bucket: &Bucket| bucket.word().dead() || bucket.word().holder() == lane;
    let all = table.buckets.iter().all(|bucket| gone(bucket) && bucket.is_empty());
    if all {
        table.buckets.iter().filter(|bucket| !bucket.word().dead()).for_each(|bucket| bucket.kill(core));
    }
    all
}

/// Allocates the memory of an entry of this name.
pub fn alloc_entry(core: &Core, own: &mut LaneLocal, name: &[u8]) -> Result<EntryMemory> {
    let n = entry_words(name.len());
    debug_assert!(n <= ENTRY_WORDS_MAX);
    // SAFETY: `own` is this thread's.
    let at = unsafe { own.heap.alloc_slice(&core.arena, n, |_| AtomicU64::new(0)) }.map_err(no_memory)?;
    Ok(EntryMemory(at, n))
}

/// Frees the memory of an entry that no bucket leads to.
pub fn free_entry(core: &Core, own: &mut LaneLocal, memory: EntryMemory) {
    // SAFETY: never linked, or unlinked; readers that still read it notice that the bucket's word changed.
    unsafe { own.heap.free(&core.arena, memory.0, memory.1) };
}

/// Gives a new directory its table, with room for `names`. `version` is the largest version of its names.
pub fn make(
    core: &Core,
    own: &mut LaneLocal,
    dir: InodeRef<'_>,
    names: usize,
    version: Version,
) -> Result<()> {
    let buckets = if names <= SLOTS { 1 } else { names.div_ceil(NAMES_A_BUCKET).next_power_of_two() };
    let bits = buckets.ilog2().min(core.table_bits_max);
    let array = if bits == 0 { home(core, dir) } else { take_array(core, own, bits)? };
    array.1.iter().for_each(|bucket| bucket.revive(version));
    // ORDERING: Release, O1.
    dir.volatile.aux.store(array.0, Release);
    Ok(())
}

/// Frees the table of a dying directory. No caller can reach the directory any more.
pub fn free(core: &Core, dir: InodeRef<'_>) {
    // ORDERING: Acquire, the directory is this caller's alone.
    let word = dir.volatile.aux.swap(0, Acquire);
    if word == 0 {
        return;
    }
    for bucket in buckets_at(core, word).unwrap_or_else(|| leads_nowhere(word)) {
        // A bucket that `rmdir` did not kill: the directory never got its name. The lock keeps late lockers
        // of the memory's earlier use out.
        match bucket.lock(core, || true) {
            Ok(_) => {
                debug_assert!(bucket.is_empty(), "a directory with names does not end");
                bucket.kill(core);
            }
            Err(Unlockable::Dead) => {}
            // The late locker is the call that this thread's signal handler interrupted. The memory is
            // leaked.
            Err(Unlockable::Interrupted) => return,
        }
    }
    give_array(core, word);
}

/// Grows the table, unless another call that found it crowded has grown it. `latched`: the caller holds the
/// EOF latch. If memory is short, the table stays as it is: slower, but correct.
pub fn grow(core: &Core, own: &mut LaneLocal, dir: InodeRef<'_>, crowded: Crowded, latched: bool) {
    // Checked before all buckets are locked: in a large table some bucket is crowded long before the table is
    // full.
    let full = |table: Table<'_>| table.word == crowded.word && is_full(table.buckets, crowded.index);
    if !Table::of(core, dir).is_some_and(full) {
        return;
    }
    let _latch = (!latched).then(|| dir.volatile.eof.lock());
    let Ok(old) = lock_whole(core, dir) else { return };
    let bits = old.table.bits();
    if old.table.word != crowded.word || bits >= core.table_bits_max {
        return;
    }
    let more = GROWTH_BITS.min(core.table_bits_max - bits);
    let Ok((word, new)) = take_array(core, own, bits + more) else { return };
    for (parts, bucket) in new.chunks(1 << more).zip(old.table.buckets) {
        let version = bucket.word().version();
        parts.iter().for_each(|part| part.revive(version));
        bucket.begin_change();
        bucket.scatter(core, bits + more, new);
    }
    // ORDERING: Release, O1.
    dir.volatile.aux.store(word, Release);
    let old_word = old.table.word;
    old.kill();
    give_array(core, old_word);
}

/// Returns true if the buckets hold as many names as they should. If not, one bucket is crowded by chance, or
/// by names of one hash. More buckets would separate few names, and a listing would have to read them all.
/// The sample is taken at equal distances from the crowded bucket. With a fixed sample, those few buckets
/// alone could keep a table small that is otherwise full.
fn is_full(buckets: &[Bucket], crowded: usize) -> bool {
    let step = (buckets.len() / SAMPLE).max(1);
    let sample = buckets.iter().skip(crowded % step).step_by(step);
    let (n, entries) = sample.fold((0, 0), |(n, entries), bucket| (n + 1, entries + bucket.in_line()));
    entries >= NAMES_A_BUCKET * n
}

/// A table that was found crowded, and the bucket.
#[derive(Clone, Copy)]
pub struct Crowded {
    word: u64,
    index: usize,
}

/// The one bucket of a small directory: the word that leads to it, and the bucket.
fn home<'c>(core: &'c Core, dir: InodeRef<'c>) -> (u64, &'c [Bucket]) {
    (core.arena.offset_of(&dir.volatile.home).raw(), std::slice::from_ref(&dir.volatile.home))
}

/// Allocates an array of several dead buckets: the word that leads to it, and the array.
fn take_array<'c>(core: &'c Core, own: &mut LaneLocal, bits: u32) -> Result<(u64, &'c [Bucket])> {
    let at = match from_pool(core, bits) {
        // SAFETY: `own` is this thread's.
        0 => unsafe { own.heap.alloc_slice(&core.arena, 1 << bits, |_| Bucket::dead()) }
            .map_err(no_memory)?
            .raw(),
        at => at,
    };
    Ok((at | u64::from(bits), core.arena.slice(Ptr::from_raw(at), 1 << bits)))
}

/// Returns dead buckets to the pool.
fn give_array(core: &Core, word: u64) {
    if word & BITS_MASK != 0 {
        to_pool(core, word);
    }
}

fn from_pool(core: &Core, bits: u32) -> u64 {
    let pool = &core.root().buckets;
    // ORDERING: Relaxed throughout, under the pool's latch. Most size classes are empty most of the time.
    let head = &pool.heads[bits as usize];
    if head.load(Relaxed) == 0 {
        return 0;
    }
    let _latched = pool.latch.lock();
    let first = head.load(Relaxed);
    if first != 0 {
        let bucket: &Bucket = core.arena.get(Ptr::from_raw(first));
        head.store(bucket.pooled().load(Relaxed), Relaxed);
    }
    first
}

fn to_pool(core: &Core, word: u64) {
    let pool = &core.root().buckets;
    let (at, head) = (word & !BITS_MASK, &pool.heads[(word & BITS_MASK) as usize]);
    let bucket: &Bucket = core.arena.get(Ptr::from_raw(at));
    let _latched = pool.latch.lock();
    // ORDERING: Relaxed throughout, under the pool's latch.
    bucket.pooled().store(head.load(Relaxed), Relaxed);
    head.store(at, Relaxed);
}
