//! Reading a directory, in the order of the hash.
//!
//! Usually many buckets are read at once (`stretch`): first all their links, into one flat list. So the
//! number of links of each bucket is no branch that the processor could mispredict, and entries are fetched
//! from memory while others are read. A bucket that is changing, or has entries outside its line, is read
//! alone.

use super::{Seen, Table, read};
use crate::names::bucket::{Entry, HASH_BITS, Link, SLOTS, Torn, Word};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use heddle_vfs::{Cookie, DirEntry, Listing, NAME_MAX_BYTES, Name, Result};

/// Number of buckets that are read at once.
const STRETCH: usize = 16;

/// The hash at which reading continues; `None`: the listing is full, or the directory ends.
type Next = Option<u64>;

/// Fills a listing with the entries whose hash is at least `from`, in the order of the hash. A cookie is the
/// smallest hash not yet listed.
pub fn list(core: &Core, dir: InodeRef<'_>, from: u64, listing: &mut Listing) -> Result<()> {
    listing.clear();
    let mut at = from;
    while at >> HASH_BITS == 0 {
        let before = listing.mark();
        let next = match stretch(core, dir, at, listing) {
            Some(next) => next,
            None => {
                let seen = read(core, dir, at, |table, bucket| {
                    listing.cut(before);
                    let mut entries = Vec::new();
                    bucket.each(core, |entry| {
                        entries.push((entry.hash(), entry));
                        Ok(())
                    })?;
                    let full = push_all(core, at, entries, listing)?;
                    Ok((!full).then(|| end(table, table.index(at) + 1)))
                })?;
                if seen.is_none() {
                    // The directory is dead: entries that were read meanwhile do not count.
                    listing.cut(before);
                }
                seen.flatten()
            }
        };
        let Some(next) = next else { return Ok(()) };
        at = next;
    }
    Ok(())
}

/// The hash at which a bucket begins.
fn end(table: &Table<'_>, bucket: usize) -> u64 {
    (bucket as u64) << (HASH_BITS - table.bits())
}

/// Reads the entries of several buckets, from the one of hash `at` on. Returns `None` if the entries that it
/// added do not count; the caller cuts them.
#[inline]
fn stretch(core: &Core, dir: InodeRef<'_>, at: u64, listing: &mut Listing) -> Option<Next> {
    let table = Table::of(core, dir)?;
    let first = table.index(at);
    let mut words = [Word::default(); STRETCH];
    let mut links = [Link::NONE; STRETCH * SLOTS];
    let (mut buckets, mut entries) = (0, 0);
    for bucket in table.buckets[first..].iter().take(STRETCH) {
        let Some((word, sorted)) = bucket.links() else { break };
        words[buckets] = word;
        buckets += 1;
        for link in sorted {
            // If the link is empty, the next one overwrites it.
            links[entries] = link;
            entries += usize::from(!link.is_none());
        }
    }
    if buckets == 0 {
        return None;
    }
    links[..entries].iter().for_each(|link| link.prefetch(core));
    let (mut least, mut full) = (at, false);
    for link in &links[..entries] {
        let entry = link.follow(core).ok()?;
        let hash = entry.hash();
        if hash < at {
            continue;
        }
        // Two entries with equal bits in their slots may be out of order, and entries of one hash share a
        // cookie. Both are rare.
        if hash < least {
            return None;
        }
        least = hash.wrapping_add(1);
        if !push(core, entry, least, listing).ok()? {
            full = true;
            break;
        }
    }
    unchanged(&table, first, &words[..buckets]).then(|| (!full).then(|| end(&table, first + buckets)))
}

/// Returns true if these are still the directory's buckets from `first` on, and unchanged since they had these
/// words.
#[inline]
pub(super) fn unchanged(table: &Table<'_>, first: usize, words: &[Word]) -> bool {
    let read = table.buckets[first..].iter().zip(words);
    // Without a branch for each bucket.
    let same = read.fold(true, |same, (bucket, word)| same & bucket.still(*word));
    same && table.current()
}

/// Adds the entries of a bucket whose hash is at least `at`. Returns true if the listing is full.
fn push_all(core: &Core, at: u64, mut entries: Vec<(u64, Entry<'_>)>, listing: &mut Listing) -> Seen<bool> {
    entries.retain(|(hash, _)| *hash >= at);
    entries.sort_unstable_by_key(|(hash, _)| *hash);
    for (i, (hash, entry)) in entries.iter().enumerate() {
        // Entries of one hash share a cookie. Stopping between them lists one of them twice rather than none.
        let next_same = entries.get(i + 1).is_some_and(|(next, _)| next == hash);
        if !push(core, *entry, hash.wrapping_add(u64::from(!next_same)), listing)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds an entry. Returns false if there is no room for it.
#[inline(always)]
fn push(core: &Core, entry: Entry<'_>, next: u64, listing: &mut Listing) -> Seen<bool> {
    match entry.short() {
        Some((ino, kind, name)) => Ok(listing.push_short(ino, kind, name, Cookie(next))),
        None => push_long(core, entry, next, listing),
    }
}

#[inline(never)]
fn push_long(core: &Core, entry: Entry<'_>, next: u64, listing: &mut Listing) -> Seen<bool> {
    let meaning = entry.meaning();
    let mut bytes = [0; NAME_MAX_BYTES];
    let name = Name::new(entry.copy_name(core, &mut bytes)?).map_err(|_| Torn)?;
    let kind = meaning.kind().ok_or(Torn)?;
    Ok(listing.push(&DirEntry { ino: meaning.ino(), kind, name, next: Cookie(next) }))
}
