//! Pages that were written and are not on the device yet. A call that changes one has its inode to itself, or the page.
//!
//! State       pages by inode and number, in shards by inode. A page that is written to the device is taken out only when its pointer says
//!             where it is: a reader who finds no page here finds it there. Beside them those that are `page_cache`.

use crate::format::Block;
use crate::ids::{ByNid, Nid, PageNo};
use crate::pages::page_cache::Kept;
use crate::steps;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SHARDS: usize = 64;

/// Each has a lock of its own: a copy of 4 KiB is not made under the shard's.
type Page = Arc<Mutex<Box<Block>>>;
type PagesOf = BTreeMap<PageNo, Page>;

/// See the module.
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

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed) // ORDERING: Relaxed, an estimate, for the decision when to write.
    }

    fn find(&self, nid: Nid, page: PageNo) -> Option<Page> {
        self.shard(nid).get(&nid)?.get(&page).cloned()
    }

    /// Looks at a page that was changed.
    pub(crate) fn with<R>(&self, nid: Nid, page: PageNo, look: impl FnOnce(&Block) -> R) -> Option<R> {
        let found = self.find(nid, page)?;
        let block = found.lock().unwrap_or_else(PoisonError::into_inner);
        Some(look(&block))
    }

    /// The first page from this one on that is here.
    pub(crate) fn next_of(&self, nid: Nid, from: PageNo) -> Option<PageNo> {
        self.shard(nid).get(&nid)?.range(from..).next().map(|(page, _)| *page)
    }

    /// Changes a page that is here; false if it is not.
    pub(crate) fn change(&self, nid: Nid, page: PageNo, change: impl FnOnce(&mut Block)) -> bool {
        let Some(page) = self.find(nid, page) else { return false };
        steps::take();
        change(&mut page.lock().unwrap_or_else(PoisonError::into_inner));
        true
    }

    /// Puts a page here.
    pub(crate) fn put(&self, nid: Nid, page: PageNo, block: Box<Block>) {
        steps::take();
        let block = Arc::new(Mutex::new(block));
        self.kept.forget(nid, page..PageNo(page.0 + 1));
        if self.shard_mut(nid).entry(nid).or_default().insert(page, block).is_none() {
            self.count.fetch_add(1, Relaxed); // ORDERING: Relaxed, an estimate.
        }
    }

    /// Looks at a page that was changed, or kept.
    pub(crate) fn look<R>(&self, nid: Nid, page: PageNo, mut look: impl FnMut(&Block) -> R) -> Option<R> {
        self.with(nid, page, &mut look).or_else(|| self.kept.with(nid, page, look))
    }

    /// Caches a page as it was read from the device. The caller holds its inode, or the page.
    pub(crate) fn keep(&self, nid: Nid, page: PageNo, block: Box<Block>) {
        self.kept.keep(nid, page, block);
    }

    /// Drops pages, also those that are kept.
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

    /// The inodes that have pages here.
    pub(crate) fn inodes(&self) -> Vec<Nid> {
        let of_shard = |shard: &RwLock<ByNid<PagesOf>>| {
            shard.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// The pages of an inode.
    pub(crate) fn of(&self, nid: Nid) -> Vec<PageNo> {
        self.shard(nid).get(&nid).map(|pages| pages.keys().copied().collect()).unwrap_or_default()
    }
}
