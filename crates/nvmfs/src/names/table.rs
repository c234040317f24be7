//! The volatile form of a directory: a hash table, looked up without locks.
//!
//! State       [`Table`]: `seq` (odd while it changes), the bucket array, a count. An entry is a row of words: next, hash, child
//!             and lengths, generation, version, name (eight bytes a word).
//! Invariants  I1  one changer at a time: who holds the directory's latch.
//!             I2  entries and arrays that are taken out may be reused at once; readers check `seq` after reading and throw
//!                 away what they read if it moved. Offsets read from such memory are checked before they are followed.
//!             I3  buckets are ranges of the hash in ascending order, so that reading in bucket order is reading in hash
//!                 order, whatever the size of the array: cookies survive a resize and a restart (protocol review C1).
//! Orderings   O1  a changer makes `seq` odd (with a fence behind it) before its first store, even (Release) after its last;
//!                 a reader loads it (Acquire) first and again after an Acquire fence.

use crate::core::{Core, no_memory};
use crate::ids::{InodeId, Version};
use crate::inode::InodeRef;
use crate::lane::Own;
use heddle_arena::sync::atomic::{AtomicU64, fence};
use heddle_arena::{Ptr, Shared};
use heddle_vfs::{Error, FileKind, Ino, NAME_MAX_BYTES, Result};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const HEADER_WORDS: usize = 5;
const ENTRY_WORDS_MAX: usize = HEADER_WORDS + NAME_MAX_BYTES.div_ceil(8);
const BUCKETS_FIRST_BITS: u32 = 3;
/// Entries a bucket on average before the array doubles.
const LOAD_MAX: u64 = 2;
/// Tries without the latch.
const TRIES: u32 = 16;
/// Steps of a walk along a bucket before it must be a torn one.
const CHAIN_MAX: u32 = 4096;

/// See the module.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Table {
    seq: AtomicU64,
    buckets: AtomicU64,
    bits: AtomicU64,
    count: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Shared for Table {}

/// An entry as it was read.
#[derive(Clone, Copy)]
pub struct Entry {
    /// What it names.
    pub child: InodeId,
    /// Kind of that.
    pub kind: FileKind,
    /// Version of its record.
    pub version: Version,
    /// Its place in the order of reading.
    pub hash: u64,
    name: [u8; NAME_MAX_BYTES + 1],
    len: usize,
}

impl Entry {
    /// The name.
    pub fn name(&self) -> &[u8] {
        &self.name[..self.len]
    }
}

/// 63-bit hash of a name, keyed by the image: nobody can prepare names that meet in one bucket of a stranger's image.
pub fn hash(core: &Core, name: &[u8]) -> u64 {
    let mut h = u64::from(core.seed) ^ 0x9e37_79b9_7f4a_7c15;
    for chunk in name.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let wide = u128::from(u64::from_le_bytes(word) ^ h) * 0xd6e8_feb8_6659_fd93_u128;
        h = (wide as u64) ^ (wide >> 64) as u64;
    }
    let wide = u128::from(h ^ name.len() as u64) * 0xa076_1d64_78bd_642f_u128;
    ((wide as u64) ^ (wide >> 64) as u64) >> 1
}

/// The table of a directory; `None` if it has none (it is dead).
fn table<'c>(core: &'c Core, dir: InodeRef<'c>) -> Option<&'c Table> {
    // A file keeps its locks in the same word.
    if !matches!(dir.vi.kind_perm(), Some((FileKind::Directory, _))) {
        return None;
    }
    // ORDERING: Acquire, pairs with the Release in `make`.
    core.arena.try_get(Ptr::from_raw(dir.vi.aux.load(Acquire)))
}

/// Gives a new directory its table.
pub fn make(core: &Core, own: &mut Own, dir: InodeRef<'_>) -> Result<()> {
    let buckets = new_buckets(core, BUCKETS_FIRST_BITS)?;
    let table = Table {
        // No two tables share a value of `seq`, though they may share memory.
        seq: AtomicU64::new(dir.vi.generation() << 20),
        buckets: AtomicU64::new(buckets.raw()),
        bits: AtomicU64::new(u64::from(BUCKETS_FIRST_BITS)),
        count: AtomicU64::new(0),
    };
    // SAFETY: `own` is this thread's.
    let at = unsafe { own.heap.alloc(&core.arena, table) }.map_err(no_memory)?;
    // ORDERING: Release, pairs with the Acquire in `table`.
    dir.vi.aux.store(at.raw(), Release);
    Ok(())
}

fn new_buckets(core: &Core, bits: u32) -> Result<Ptr<AtomicU64>> {
    core.arena.alloc_zeroed::<AtomicU64>(1 << bits).map_err(no_memory)
}

/// Frees the table of a directory that dies.
pub fn free(core: &Core, own: &mut Own, dir: InodeRef<'_>) {
    // ORDERING: Acquire, the directory is this caller's alone.
    let at = Ptr::<Table>::from_raw(dir.vi.aux.swap(0, Acquire));
    let Some(table) = core.arena.try_get(at) else { return };
    // ORDERING: Relaxed, as above.
    let (buckets, bits) = (table.buckets.load(Relaxed), table.bits.load(Relaxed));
    // SAFETY: nobody reaches them any more but readers that check afterwards (I2).
    unsafe {
        core.arena.free(Ptr::<AtomicU64>::from_raw(buckets), 1 << bits);
        own.heap.free(&core.arena, at, 1);
    }
}

/// Entries of a directory.
pub fn count(core: &Core, dir: InodeRef<'_>) -> u64 {
    // ORDERING: Acquire, pairs with the Release of the changer.
    table(core, dir).map_or(0, |t| t.count.load(Acquire))
}

/// Finds a name.
pub fn find(core: &Core, dir: InodeRef<'_>, name: &[u8]) -> Result<Option<Entry>> {
    read(core, dir, |table| find_once(core, table, name))
}

/// Version of a name's present record. The caller holds the latch, or can do with an older answer.
pub fn version_of(core: &Core, dir: InodeRef<'_>, name: &[u8]) -> Option<Version> {
    find_once(core, table(core, dir)?, name).ok().flatten().map(|e| e.version)
}

/// What a reader met memory that was being changed.
struct Torn;

/// Runs `f` until it saw a table at rest; after some tries, under the latch.
fn read<T>(core: &Core, dir: InodeRef<'_>, f: impl Fn(&Table) -> std::result::Result<T, Torn>) -> Result<T> {
    for _ in 0..TRIES {
        let table = table(core, dir).ok_or(Error::Stale)?;
        // ORDERING: Acquire, O1.
        let before = table.seq.load(Acquire);
        if before % 2 == 0
            && let Ok(result) = f(table)
        {
            // ORDERING: Acquire, O1.
            fence(Acquire);
            // ORDERING: Relaxed, behind the fence.
            let same = table.seq.load(Relaxed) == before;
            if same && self::table(core, dir).is_some_and(|now| std::ptr::eq(now, table)) {
                return Ok(result);
            }
        }
        heddle_arena::sync::spin_hint();
    }
    let _latched = dir.vi.eof.lock();
    let table = table(core, dir).ok_or(Error::Stale)?;
    f(table).map_err(|Torn| core.damage(format!("the volatile table of directory {}", dir.ino.0)))
}

fn bucket<'c>(core: &'c Core, table: &Table, at: u64) -> std::result::Result<&'c AtomicU64, Torn> {
    // ORDERING: Acquire, O1.
    let buckets = table.buckets.load(Acquire);
    core.arena.try_get(Ptr::<AtomicU64>::from_raw(buckets).add(at as usize)).ok_or(Torn)
}

fn bucket_of(table: &Table, hash: u64) -> u64 {
    // ORDERING: Acquire, O1.
    let bits = table.bits.load(Acquire).min(62);
    hash >> (63 - bits)
}

fn words(core: &Core, entry: u64, n: usize) -> std::result::Result<&[AtomicU64], Torn> {
    core.arena.try_get(Ptr::<AtomicU64>::from_raw(entry)).ok_or(Torn)?;
    core.arena.try_get(Ptr::<AtomicU64>::from_raw(entry).add(n - 1)).ok_or(Torn)?;
    Ok(core.arena.slice(Ptr::from_raw(entry), n))
}

fn find_once(core: &Core, table: &Table, name: &[u8]) -> std::result::Result<Option<Entry>, Torn> {
    let hash = hash(core, name);
    // ORDERING: Acquire, O1.
    let mut at = bucket(core, table, bucket_of(table, hash))?.load(Acquire);
    for _ in 0..CHAIN_MAX {
        if at == 0 {
            return Ok(None);
        }
        let head = words(core, at, HEADER_WORDS)?;
        // ORDERING: Relaxed, checked by `seq` (I2).
        if head[1].load(Relaxed) == hash {
            let entry = entry_at(core, at)?;
            if entry.name() == name {
                return Ok(Some(entry));
            }
        }
        // ORDERING: Acquire, O1.
        at = head[0].load(Acquire);
    }
    Err(Torn)
}

fn entry_at(core: &Core, at: u64) -> std::result::Result<Entry, Torn> {
    let head = words(core, at, HEADER_WORDS)?;
    // ORDERING: Relaxed, checked by `seq` (I2).
    let word = |i: usize| head[i].load(Relaxed);
    let packed = word(2);
    let len = (packed >> 48 & 0xff) as usize;
    let kind = FileKind::from_raw((packed >> 40 & 0xf) as u8).ok_or(Torn)?;
    let mut name = [0; NAME_MAX_BYTES + 1];
    if len == 0 {
        return Err(Torn);
    }
    let n = len.div_ceil(8);
    for (to, from) in name.chunks_mut(8).zip(&words(core, at, HEADER_WORDS + n)?[HEADER_WORDS..]) {
        // ORDERING: Relaxed, checked by `seq` (I2).
        to.copy_from_slice(&from.load(Relaxed).to_le_bytes());
    }
    Ok(Entry {
        child: InodeId { ino: Ino(packed & ((1 << 40) - 1)), generation: word(3) },
        kind,
        version: Version(word(4)),
        hash: word(1),
        name,
        len,
    })
}

/// Up to `max` entries whose hash is at least `from`, in the order of the hash; entries of one hash are not split.
pub fn list(core: &Core, dir: InodeRef<'_>, from: u64, max: usize) -> Result<Vec<Entry>> {
    read(core, dir, |table| {
        let mut out = Vec::new();
        // ORDERING: Acquire, O1.
        let buckets = 1u64 << table.bits.load(Acquire).min(62);
        let mut b = bucket_of(table, from);
        while b < buckets && out.len() < max {
            let first = out.len();
            // ORDERING: Acquire, O1.
            let mut at = bucket(core, table, b)?.load(Acquire);
            let mut steps = 0;
            while at != 0 {
                let entry = entry_at(core, at)?;
                if entry.hash >= from {
                    out.push(entry);
                }
                // ORDERING: Acquire, O1.
                at = words(core, at, HEADER_WORDS)?[0].load(Acquire);
                steps += 1;
                if steps > CHAIN_MAX {
                    return Err(Torn);
                }
            }
            out[first..].sort_by_key(|e| e.hash);
            b += 1;
        }
        Ok(out)
    })
}

/// A change of one directory's table, seen by readers all at once when it is dropped. A rename holds one on each directory.
pub struct Changing<'t>(&'t Table);

/// Begins a change. The caller holds the directory's latch.
pub fn change<'c>(core: &'c Core, dir: InodeRef<'c>) -> Option<Changing<'c>> {
    let table = table(core, dir)?;
    // ORDERING: Relaxed, the fence behind it orders (O1).
    table.seq.store(table.seq.load(Relaxed) + 1, Relaxed);
    // ORDERING: Release, O1: odd before any store of the change.
    fence(Release);
    Some(Changing(table))
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        // ORDERING: Release, O1.
        self.0.seq.store(self.0.seq.load(Relaxed) + 1, Release);
    }
}

/// Memory for an entry, taken before the operation becomes durable, so that what follows cannot fail.
pub struct Prepared(Ptr<AtomicU64>, usize);

/// Takes the memory of an entry of this name, and doubles the array if it is time.
pub fn prepare(core: &Core, own: &mut Own, dir: InodeRef<'_>, name: &[u8]) -> Result<Prepared> {
    let table = table(core, dir).ok_or(Error::NotFound)?;
    // ORDERING: Relaxed, under the latch.
    let (bits, count) = (table.bits.load(Relaxed), table.count.load(Relaxed));
    if count >= LOAD_MAX << bits && bits < 40 {
        let _changing = change(core, dir);
        grow(core, table, bits as u32)?;
    }
    let n = HEADER_WORDS + name.len().div_ceil(8);
    debug_assert!(n <= ENTRY_WORDS_MAX);
    // SAFETY: `own` is this thread's.
    let at = unsafe { own.heap.alloc_slice(&core.arena, n, |_| AtomicU64::new(0)) }.map_err(no_memory)?;
    Ok(Prepared(at, n))
}

/// Gives memory back that was not needed.
pub fn unprepare(core: &Core, own: &mut Own, prepared: Prepared) {
    // SAFETY: never linked.
    unsafe { own.heap.free(&core.arena, prepared.0, prepared.1) };
}

fn grow(core: &Core, table: &Table, bits: u32) -> Result<()> {
    let new_bits = bits + 2;
    let new = new_buckets(core, new_bits)?;
    // ORDERING: Relaxed throughout, under the latch and an odd `seq`.
    let old = Ptr::<AtomicU64>::from_raw(table.buckets.load(Relaxed));
    for from in core.arena.slice(old, 1 << bits) {
        let mut at = from.load(Relaxed);
        while at != 0 {
            let head: &[AtomicU64] = core.arena.slice(Ptr::from_raw(at), HEADER_WORDS);
            // ORDERING: Relaxed, as above.
            let (next, hash) = (head[0].load(Relaxed), head[1].load(Relaxed));
            let to = &core.arena.slice(new, 1 << new_bits)[(hash >> (63 - new_bits)) as usize];
            head[0].store(to.load(Relaxed), Relaxed); // ORDERING: Relaxed, as above.
            to.store(at, Relaxed); // ORDERING: Relaxed, as above.
            at = next;
        }
    }
    // ORDERING: Release, O1.
    table.buckets.store(new.raw(), Release);
    // ORDERING: Release, O1.
    table.bits.store(u64::from(new_bits), Release);
    // SAFETY: readers of the old array find `seq` moved (I2).
    unsafe { core.arena.free(old, 1 << bits) };
    Ok(())
}

impl Changing<'_> {
    /// Adds a name, or makes it mean something else; what it meant before.
    pub fn put(
        &self,
        core: &Core,
        own: &mut Own,
        name: &[u8],
        to: &Named,
        prepared: Prepared,
    ) -> Option<Entry> {
        let hash = hash(core, name);
        let packed = to.child.ino.0 | (to.kind as u64) << 40 | (name.len() as u64) << 48;
        let values = [packed, to.child.generation, to.version.0];
        if let Some((link, old)) = self.link_to(core, hash, name) {
            // ORDERING: Relaxed throughout, under the latch and an odd `seq`.
            let row: &[AtomicU64] = core.arena.slice(Ptr::from_raw(link.load(Relaxed)), HEADER_WORDS);
            row[2..].iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
            unprepare(core, own, prepared);
            return Some(old);
        }
        let row: &[AtomicU64] = core.arena.slice(prepared.0, prepared.1);
        let Ok(head) = bucket(core, self.0, bucket_of(self.0, hash)) else { return None };
        // ORDERING: Relaxed throughout, as above; linked by the Release below.
        row[0].store(head.load(Relaxed), Relaxed);
        row[1].store(hash, Relaxed);
        row[2..HEADER_WORDS].iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
        for (to, chunk) in row[HEADER_WORDS..].iter().zip(name.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            to.store(u64::from_le_bytes(word), Relaxed); // ORDERING: Relaxed, as above.
        }
        // ORDERING: Release, O1.
        head.store(prepared.0.raw(), Release);
        // ORDERING: Release, pairs with `count`.
        self.0.count.store(self.0.count.load(Relaxed) + 1, Release);
        None
    }

    /// Takes a name out; what it meant.
    pub fn take(&self, core: &Core, own: &mut Own, name: &[u8]) -> Option<Entry> {
        let (link, entry) = self.link_to(core, hash(core, name), name)?;
        // ORDERING: Relaxed throughout, under the latch and an odd `seq`.
        let at = link.load(Relaxed);
        let head: &[AtomicU64] = core.arena.slice(Ptr::from_raw(at), HEADER_WORDS);
        // ORDERING: Release, O1.
        link.store(head[0].load(Relaxed), Release);
        // ORDERING: Release, pairs with `count`.
        self.0.count.store(self.0.count.load(Relaxed) - 1, Release);
        let n = HEADER_WORDS + entry.len.div_ceil(8);
        // SAFETY: unlinked; readers that are still in it find `seq` moved (I2).
        unsafe { own.heap.free(&core.arena, Ptr::<AtomicU64>::from_raw(at), n) };
        Some(entry)
    }

    /// The link that leads to a name's entry.
    fn link_to<'c>(&self, core: &'c Core, hash: u64, name: &[u8]) -> Option<(&'c AtomicU64, Entry)> {
        let mut link = bucket(core, self.0, bucket_of(self.0, hash)).ok()?;
        loop {
            // ORDERING: Relaxed, under the latch.
            let at = link.load(Relaxed);
            if at == 0 {
                return None;
            }
            let entry = entry_at(core, at).ok()?;
            if entry.hash == hash && entry.name() == name {
                return Some((link, entry));
            }
            link = &core.arena.slice(Ptr::<AtomicU64>::from_raw(at), HEADER_WORDS)[0];
        }
    }
}

/// What a name means.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The inode.
    pub child: InodeId,
    /// Its kind.
    pub kind: FileKind,
    /// Version of the record that says so.
    pub version: Version,
}
