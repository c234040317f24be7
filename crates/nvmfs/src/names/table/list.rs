//! Reading a directory, in the order of the hash.
//!
//! Mostly many buckets at one go (`stretch`): all their links first, in one flat list, so that how many each bucket has is no branch that a
//! processor would have to foretell, and the entries are on their way from memory while others are read. Where a bucket is changing, or
//! has entries outside its line, it is read by itself.

use super::{Seen, Table, read};
use crate::core::Core;
use crate::inode::InodeRef;
use crate::names::bucket::{HASH_BITS, Line, Link, Row, SLOTS, Word};
use heddle_vfs::Result;

/// Buckets that are read at one go.
const STRETCH: usize = 16;

/// Entries that were read, in the order of the hash.
#[derive(Default)]
pub struct Batch {
    /// The entries.
    pub entries: Vec<Listed>,
    /// Names that are too long for an entry's line, one after the other.
    long: Vec<u8>,
}

/// One of them. A long name's place is noted in the line.
#[derive(Clone, Copy)]
pub struct Listed(pub Line);

impl Listed {
    /// Its place in the order of reading.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.0.hash()
    }
}

impl Batch {
    /// Forgets them.
    pub fn clear(&mut self) {
        self.cut((0, 0));
    }

    /// Its name. Of no bytes, if the entry makes no sense.
    #[inline]
    pub fn name<'b>(&'b self, entry: &'b Listed) -> &'b [u8] {
        match entry.0.name() {
            Some(name) => name,
            None => &self.long[entry.0.noted() as usize..][..entry.0.len()],
        }
    }

    fn mark(&self) -> (usize, usize) {
        (self.entries.len(), self.long.len())
    }

    /// Forgets what came since that mark.
    fn cut(&mut self, mark: (usize, usize)) {
        self.entries.truncate(mark.0);
        self.long.truncate(mark.1);
    }

    #[inline(always)]
    fn push(&mut self, core: &Core, row: Row<'_>) -> Seen<()> {
        let mut line = row.line();
        if line.name().is_none() {
            *line.note() = self.long.len() as u64;
            // The row may have changed since: the name is as long as the line says, or nothing of it counts.
            let start = self.long.len();
            row.copy_name(core, &mut self.long)?;
            self.long.resize(start + line.len(), 0);
        }
        self.entries.push(Listed(line));
        Ok(())
    }
}

/// Reads at least `max` entries whose hash is at least `from`, or to the end, in the order of the hash; entries of one hash are
/// not split.
pub fn list(core: &Core, dir: InodeRef<'_>, from: u64, max: usize, batch: &mut Batch) -> Result<()> {
    let mut at = from;
    while at >> HASH_BITS == 0 && batch.entries.len() < max {
        let mark = batch.mark();
        let end = match stretch(core, dir, at, batch) {
            Some(end) => Some(end),
            None => bucket(core, dir, at, mark, batch)?,
        };
        let Some(end) = end else {
            batch.cut(mark);
            return Ok(());
        };
        let new = &mut batch.entries[mark.0..];
        if !new.is_sorted_by_key(Listed::hash) {
            new.sort_unstable_by_key(Listed::hash);
        }
        at = end;
    }
    Ok(())
}

/// Reads the entries of some buckets, from the one of hash `at` on; where the next one begins. `None`: what was read is worth nothing.
#[inline]
fn stretch(core: &Core, dir: InodeRef<'_>, at: u64, batch: &mut Batch) -> Option<u64> {
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
            // Written over by the next one if it leads to nothing.
            links[entries] = link;
            entries += usize::from(!link.is_none());
        }
    }
    if buckets == 0 {
        return None;
    }
    links[..entries].iter().for_each(|link| link.prefetch(core));
    batch.entries.reserve(entries);
    for link in &links[..entries] {
        let row = link.follow(core).ok()?;
        if row.hash() >= at {
            batch.push(core, row).ok()?;
        }
    }
    let read = table.buckets[first..].iter().zip(&words[..buckets]);
    let same = read.fold(true, |same, (bucket, word)| same & bucket.still(*word));
    (same && table.current()).then(|| ((first + buckets) as u64) << (HASH_BITS - table.bits()))
}

/// The same of one bucket, whatever it takes. `None`: the directory is dead.
#[cold]
fn bucket(
    core: &Core,
    dir: InodeRef<'_>,
    at: u64,
    mark: (usize, usize),
    batch: &mut Batch,
) -> Result<Option<u64>> {
    read(core, dir, at, |table, bucket| {
        batch.cut(mark);
        bucket.each(core, |row| if row.hash() < at { Ok(()) } else { batch.push(core, row) })?;
        Ok((table.index(at) as u64 + 1) << (HASH_BITS - table.bits()))
    })
}
