//! Reading a directory, in the order of the hash.

use super::{Seen, read};
use crate::core::Core;
use crate::inode::InodeRef;
use crate::names::bucket::{HASH_BITS, Line, Row, Torn};
use heddle_vfs::{FileKind, Ino, Result};

/// How many buckets ahead entries are fetched.
const AHEAD: usize = 4;

/// Entries that were read, in the order of the hash.
#[derive(Default)]
pub struct Batch {
    /// The entries.
    pub entries: Vec<Listed>,
    /// Names that are too long for an entry's line, one after the other.
    long: Vec<u8>,
}

/// One of them.
#[derive(Clone, Copy)]
pub struct Listed {
    /// What it names.
    pub ino: Ino,
    /// Kind of that.
    pub kind: FileKind,
    line: Line,
    /// A long name's place.
    long: (u32, u8),
}

impl Listed {
    /// Its place in the order of reading.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.line.hash()
    }
}

impl Batch {
    /// Forgets them.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.long.clear();
    }

    /// Its name.
    #[inline]
    pub fn name<'b>(&'b self, entry: &'b Listed) -> &'b [u8] {
        match entry.line.name() {
            Some(name) => name,
            None => &self.long[entry.long.0 as usize..][..usize::from(entry.long.1)],
        }
    }

    #[inline]
    fn push(&mut self, core: &Core, row: Row<'_>) -> Seen<()> {
        let line = row.line();
        let named = line.named()?;
        let mut long = (0, 0);
        match line.name() {
            Some([]) => return Err(Torn),
            Some(_) => {}
            None => {
                let start = self.long.len() as u32;
                long = (start, row.copy_name(core, &mut self.long)? as u8);
            }
        }
        self.entries.push(Listed { ino: named.child.ino, kind: named.kind, line, long });
        Ok(())
    }
}

/// Reads at least `max` entries whose hash is at least `from`, or to the end, in the order of the hash; entries of one hash are
/// not split.
pub fn list(core: &Core, dir: InodeRef<'_>, from: u64, max: usize, batch: &mut Batch) -> Result<()> {
    let mut at = from;
    while at >> HASH_BITS == 0 && batch.entries.len() < max {
        let (first, first_long) = (batch.entries.len(), batch.long.len());
        let end = read(core, dir, at, |table, bucket| {
            batch.entries.truncate(first);
            batch.long.truncate(first_long);
            if let Some(soon) = table.buckets.get(table.index(at) + AHEAD) {
                soon.prefetch(core);
            }
            bucket.each(core, |row| if row.hash() < at { Ok(()) } else { batch.push(core, row) })?;
            Ok((table.index(at) as u64 + 1) << (HASH_BITS - table.bits()))
        })?;
        let Some(end) = end else {
            batch.entries.truncate(first);
            return Ok(());
        };
        if !batch.entries[first..].is_sorted_by_key(Listed::hash) {
            batch.entries[first..].sort_unstable_by_key(Listed::hash);
        }
        at = end;
    }
    Ok(())
}
