//! A cache of unchanged pages, for later readers.
//!
//! State       pages by inode and number, in shards by inode. If there are too many, one page of the next shard in turn is evicted: a
//!             clock hand passes over pages that were read since it last passed (second chance).
//! Invariants  C1  a cached page has the content of the block of its pointer: a call that changes, cuts or moves a page drops it from the
//!                 cache. That call holds the inode or the page exclusively (`call_gate`, `range_lock`), and a reader that caches a
//!                 page holds either for reading. So no old content is cached.

use crate::format::Block;
use crate::ids::{Nid, PageNo};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SHARDS: usize = 64;
/// Number of pages from which each new page evicts one: 128 MiB.
const PAGES_MAX: usize = 1 << 15;
/// Most pages that the hand passes over at a time.
const PASSED_MAX: usize = 64;

type Key = (Nid, PageNo);

struct Page {
    block: Box<Block>,
    /// True: read since the hand passed.
    seen: AtomicBool,
}

struct Shard {
    pages: BTreeMap<Key, Page>,
    hand: Key,
}

/// The page cache.
pub(crate) struct Kept {
    shards: [RwLock<Shard>; SHARDS],
    count: AtomicUsize,
    turn: AtomicUsize,
}

impl Shard {
    /// Evicts the next page in turn. Returns false if there is none.
    fn give_one_up(&mut self) -> bool {
        for passed in 0.. {
            let behind = (Bound::Excluded(self.hand), Bound::Unbounded);
            let next = self.pages.range(behind).next().or_else(|| self.pages.first_key_value());
            let Some((key, page)) = next else { return false };
            self.hand = *key;
            // ORDERING: Relaxed, a hint, under the shard's lock for writing.
            if passed >= PASSED_MAX || !page.seen.swap(false, Relaxed) {
                break;
            }
        }
        self.pages.remove(&self.hand).is_some()
    }
}

impl Kept {
    pub(crate) fn new() -> Kept {
        let shard = || RwLock::new(Shard { pages: BTreeMap::new(), hand: (Nid::NONE, PageNo(0)) });
        Kept {
            shards: std::array::from_fn(|_| shard()),
            count: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
        }
    }

    fn shard(&self, nid: Nid) -> RwLockReadGuard<'_, Shard> {
        self.shards[nid.0 as usize % SHARDS].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_mut(&self, n: usize) -> RwLockWriteGuard<'_, Shard> {
        self.shards[n % SHARDS].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `look` with a cached page.
    pub(crate) fn with<R>(&self, nid: Nid, page: PageNo, look: impl FnOnce(&Block) -> R) -> Option<R> {
        let shard = self.shard(nid);
        let found = shard.pages.get(&(nid, page))?;
        // ORDERING: Relaxed, a hint. Loaded first, so that the line of a popular page is not written.
        if !found.seen.load(Relaxed) {
            found.seen.store(true, Relaxed);
        }
        Some(look(&found.block))
    }

    /// Caches a page (C1).
    pub(crate) fn keep(&self, nid: Nid, page: PageNo, block: Box<Block>) {
        let page = ((nid, page), Page { block, seen: AtomicBool::new(false) });
        let new = self.shard_mut(nid.0 as usize).pages.insert(page.0, page.1).is_none();
        // ORDERING: Relaxed, a count that only decides, approximately, how much is cached.
        if new && self.count.fetch_add(1, Relaxed) >= PAGES_MAX {
            let gone = (0..SHARDS).any(|_| {
                let turn = self.turn.fetch_add(1, Relaxed); // ORDERING: Relaxed, any shard will do.
                self.shard_mut(turn).give_one_up()
            });
            self.count.fetch_sub(usize::from(gone), Relaxed);
        }
    }

    /// Drops these pages, because they change (C1).
    pub(crate) fn forget(&self, nid: Nid, pages: Range<PageNo>) {
        let range = (nid, pages.start)..(nid, pages.end);
        if pages.is_empty() || self.shard(nid).pages.range(range.clone()).next().is_none() {
            return;
        }
        let mut shard = self.shard_mut(nid.0 as usize);
        let gone: Vec<Key> = shard.pages.range(range).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| drop(shard.pages.remove(key)));
        self.count.fetch_sub(gone.len(), Relaxed); // ORDERING: Relaxed, as in `keep`.
    }

    /// Number of cached pages.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.count.load(Relaxed) // ORDERING: Relaxed, for a test.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(kept: &Kept, nid: u32, page: u64) -> Option<u8> {
        kept.with(Nid(nid), PageNo(page), |block| block[0])
    }

    fn keep(kept: &Kept, nid: u32, page: u64, fill: u8) {
        kept.keep(Nid(nid), PageNo(page), Box::new([fill; crate::format::BLOCK_BYTES]));
    }

    #[test]
    fn what_is_forgotten_is_gone_and_the_rest_stays() {
        let kept = Kept::new();
        for page in 0..10 {
            // Two inodes in one shard.
            keep(&kept, 7, page, 1);
            keep(&kept, 7 + SHARDS as u32, page, 2);
        }
        kept.forget(Nid(7), PageNo(3)..PageNo(5));
        kept.forget(Nid(7), PageNo(5)..PageNo(3));
        let left = |nid: u32| (0..10).map(|page| fill(&kept, nid, page)).collect::<Vec<_>>();
        assert_eq!(left(7), [1, 1, 1, 0, 0, 1, 1, 1, 1, 1].map(|fill| (fill > 0).then_some(fill)));
        assert_eq!(left(7 + SHARDS as u32), [Some(2); 10]);
        kept.forget(Nid(7), PageNo(0)..PageNo(u64::MAX));
        assert_eq!((left(7), kept.count()), (vec![None; 10], 10));
    }

    #[test]
    fn there_are_never_too_many_and_one_that_is_looked_at_stays() {
        let kept = Kept::new();
        keep(&kept, 5, 0, 9);
        for page in 0..3 * PAGES_MAX as u64 {
            keep(&kept, 100 + page as u32 % 50, page, 1);
            assert!(kept.count() <= PAGES_MAX);
            if page % 1000 == 0 {
                assert_eq!(fill(&kept, 5, 0), Some(9), "after {page}");
            }
        }
        assert_eq!(kept.count(), PAGES_MAX);
        let there = kept.shards.iter().map(|shard| shard.read().unwrap().pages.len()).sum::<usize>();
        assert_eq!(there, PAGES_MAX);
    }

    #[test]
    fn pages_are_given_up_in_turn_but_for_those_just_read() {
        let kept = Kept::new();
        (0..4).for_each(|page| keep(&kept, 5, page, 1));
        let left = || -> Vec<u64> { kept.shard(Nid(5)).pages.keys().map(|(_, page)| page.0).collect() };
        let give_up = || kept.shard_mut(5).give_one_up();
        fill(&kept, 5, 0);
        fill(&kept, 5, 2);
        assert!(give_up());
        assert_eq!(left(), [0, 2, 3]);
        assert!(give_up());
        assert_eq!(left(), [0, 2]);
        // Passed over once, both are as the others.
        assert!(give_up());
        assert_eq!(left(), [2]);
        fill(&kept, 5, 2);
        assert!(give_up() && left().is_empty() && !give_up());
    }
}
