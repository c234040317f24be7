//! Changed pages that are not on the device yet. A call that changes one holds its inode, or the page,
//! exclusively.
//!
//! State       pages by inode and number, in shards by inode. A page that is written to the device is removed only when its pointer leads
//!             to its block: a reader that finds no page here finds it there. Beside them the pages of `page_cache`.

use crate::format::Block;
use crate::ids::{ByNid, Nid, PageNo};
use crate::pages::page_cache::Kept;
use crate::steps;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SHARDS: usize = 64;

/// Each page has its own lock, so that 4 KiB are not copied under the shard's lock.
type Page = Arc<Mutex<Box<Block>>>;
type PagesOf = BTreeMap<PageNo, Page>;

/// The pages in memory.
pub(crate) struct Pages {
    shards: [RwLock<ByNid<PagesOf>>; SHARDS],
    kept: Kept,
    count: AtomicUsize,
}

impl Pages {
    pub(crate) fn new() -> Pages {
        Pages {
            shards: std::array::from_fn(|_| RwLock::default()),
            kept: Kept::new(),
            count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, nid: Nid) -> RwLockReadGuard<'_, ByNid<PagesOf>> {
        self.shards[nid.0 as usize % SHARDS].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_mut(&self, nid: Nid) -> RwLockWriteGuard<'_, ByNid<PagesOf>> {
        self.shards[nid.0 as usize % SHARDS].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of changed pages.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed) // ORDERING: Relaxed, an estimate, to decide when to write.
    }

    fn find(&self, nid: Nid, page: PageNo) -> Option<Page> {
        self.shard(nid).get(&nid)?.get(&page).cloned()
    }

    /// Calls `look` with a changed page.
    pub(crate) fn with<R>(&self, nid: Nid, page: PageNo, look: impl FnOnce(&Block) -> R) -> Option<R> {
        let found = self.find(nid, page)?;
        let block = found.lock().unwrap_or_else(PoisonError::into_inner);
        Some(look(&block))
    }

    /// The first dirty page from this one on.
    pub(crate) fn next_dirty(&self, nid: Nid, from: PageNo) -> Option<PageNo> {
        self.shard(nid).get(&nid)?.range(from..).next().map(|(page, _)| *page)
    }

    /// Changes a page if it is in memory as changed. Returns false if it is not.
    pub(crate) fn change(&self, nid: Nid, page: PageNo, change: impl FnOnce(&mut Block)) -> bool {
        let Some(page) = self.find(nid, page) else { return false };
        steps::take();
        change(&mut page.lock().unwrap_or_else(PoisonError::into_inner));
        true
    }

    /// Adds a changed page.
    pub(crate) fn put(&self, nid: Nid, page: PageNo, block: Box<Block>) {
        steps::take();
        let block = Arc::new(Mutex::new(block));
        self.kept.forget(nid, page..PageNo(page.0 + 1));
        if self.shard_mut(nid).entry(nid).or_default().insert(page, block).is_none() {
            self.count.fetch_add(1, Relaxed); // ORDERING: Relaxed, an estimate.
        }
    }

    /// Calls `look` with a page that is in memory, dirty or cached.
    pub(crate) fn with_page_in_memory<R>(
        &self,
        nid: Nid,
        page: PageNo,
        mut look: impl FnMut(&Block) -> R,
    ) -> Option<R> {
        self.with(nid, page, &mut look).or_else(|| self.kept.with(nid, page, look))
    }

    /// Caches a page that was read from the device. The caller holds its inode, or the page.
    pub(crate) fn cache(&self, nid: Nid, page: PageNo, block: Box<Block>) {
        self.kept.keep(nid, page, block);
    }

    /// Drops pages, including cached ones.
    pub(crate) fn drop_range(&self, nid: Nid, pages: Range<PageNo>) {
        self.kept.forget(nid, pages.clone());
        let mut shard = self.shard_mut(nid);
        let Some(of) = shard.get_mut(&nid) else { return };
        steps::take();
        let gone: Vec<PageNo> = of.range(pages).map(|(page, _)| *page).collect();
        for page in &gone {
            of.remove(page);
        }
        if of.is_empty() {
            shard.remove(&nid);
        }
        self.count.fetch_sub(gone.len(), Relaxed); // ORDERING: Relaxed, an estimate.
    }

    /// The inodes that have changed pages.
    pub(crate) fn inodes(&self) -> Vec<Nid> {
        let of_shard = |shard: &RwLock<ByNid<PagesOf>>| {
            shard.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// The changed pages of an inode.
    pub(crate) fn of(&self, nid: Nid) -> Vec<PageNo> {
        self.shard(nid).get(&nid).map(|pages| pages.keys().copied().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::BLOCK_BYTES;

    fn block(byte: u8) -> Box<Block> {
        Box::new([byte; BLOCK_BYTES])
    }

    #[test]
    fn changed_pages_are_counted_once_and_found_until_they_are_dropped() {
        let (pages, one, other) = (Pages::new(), Nid(5), Nid(5 + SHARDS as u32));
        [3, 4, 9].iter().for_each(|page| pages.put(one, PageNo(*page), block(*page as u8)));
        pages.put(other, PageNo(4), block(40));
        pages.put(one, PageNo(4), block(5));
        assert_eq!((pages.count(), pages.of(one)), (4, vec![PageNo(3), PageNo(4), PageNo(9)]));
        let first = |nid: Nid, page: u64| pages.with(nid, PageNo(page), |block| block[0]);
        assert_eq!(
            [first(one, 4), first(one, 5), first(other, 4), first(Nid(6), 4)],
            [Some(5), None, Some(40), None]
        );
        let next = |from: u64| pages.next_dirty(one, PageNo(from)).map(|page| page.0);
        assert_eq!([0, 3, 4, 5, 9, 10].map(next), [Some(3), Some(3), Some(4), Some(9), Some(9), None]);
        assert!(pages.change(one, PageNo(9), |block| block[0] = 90) && first(one, 9) == Some(90));
        assert!(!pages.change(one, PageNo(8), |_| panic!("it is not there")));
        let mut inodes = pages.inodes();
        inodes.sort();
        assert_eq!(inodes, [one, other]);
        pages.drop_range(one, PageNo(4)..PageNo(9));
        assert_eq!((pages.count(), pages.of(one)), (3, vec![PageNo(3), PageNo(9)]));
        pages.drop_range(one, PageNo(0)..PageNo(10));
        assert_eq!((pages.count(), pages.of(one), pages.inodes()), (1, vec![], vec![other]));
        pages.drop_range(one, PageNo(0)..PageNo(10));
        assert_eq!(pages.count(), 1);
    }

    #[test]
    fn a_page_that_changes_is_cached_no_more() {
        let (pages, nid) = (Pages::new(), Nid(5));
        let first = |page: u64| pages.with_page_in_memory(nid, PageNo(page), |block| block[0]);
        (3..6).for_each(|page| pages.cache(nid, PageNo(page), block(1)));
        pages.put(nid, PageNo(4), block(2));
        let is_kept = |page: u64| pages.kept.with(nid, PageNo(page), |_| ()).is_some();
        assert_eq!([3, 4, 5].map(is_kept), [true, false, true]);
        assert_eq!([3, 4, 5, 6].map(first), [Some(1), Some(2), Some(1), None]);
        assert_eq!(pages.count(), 1, "what is only cached is not counted");
        pages.drop_range(nid, PageNo(4)..PageNo(5));
        assert_eq!([3, 4, 5].map(first), [Some(1), None, Some(1)]);
        pages.drop_range(nid, PageNo(3)..PageNo(5));
        assert_eq!([3, 5].map(first), [None, Some(1)]);
    }
}
