//! Pages that were written and are not on the device yet. Who changes one has its inode to himself, or the page.
//!
//! State       pages by inode and number, in shards by inode. Who writes a page to the device takes it out only when its pointer says
//!             where it is: a reader who finds no page here finds it there.

use crate::format::Block;
use crate::ids::{Nid, PageNo};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 64;

/// Each has a lock of its own: a copy of 4 KiB is not made under the shard's.
type Page = Arc<Mutex<Box<Block>>>;
type PagesOf = BTreeMap<PageNo, Page>;

/// See the module.
pub(crate) struct Pages {
    shards: [Mutex<HashMap<Nid, PagesOf>>; SHARDS],
    count: AtomicUsize,
}

impl Pages {
    pub(crate) fn new() -> Pages {
        Pages { shards: std::array::from_fn(|_| Mutex::default()), count: AtomicUsize::new(0) }
    }

    fn shard(&self, nid: Nid) -> MutexGuard<'_, HashMap<Nid, PagesOf>> {
        self.shards[nid.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed) // ORDERING: Relaxed, an estimate for who decides when to write.
    }

    fn find(&self, nid: Nid, page: PageNo) -> Option<Page> {
        self.shard(nid).get(&nid)?.get(&page).cloned()
    }

    /// Looks at a page.
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
        let found = self.find(nid, page);
        found.map(|page| change(&mut page.lock().unwrap_or_else(PoisonError::into_inner))).is_some()
    }

    /// Puts a page here.
    pub(crate) fn put(&self, nid: Nid, page: PageNo, block: Box<Block>) {
        let block = Arc::new(Mutex::new(block));
        if self.shard(nid).entry(nid).or_default().insert(page, block).is_none() {
            self.count.fetch_add(1, Relaxed); // ORDERING: Relaxed, an estimate.
        }
    }

    /// Drops pages.
    pub(crate) fn drop_range(&self, nid: Nid, pages: Range<PageNo>) {
        let mut shard = self.shard(nid);
        let Some(of) = shard.get_mut(&nid) else { return };
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
        let of_shard = |shard: &Mutex<HashMap<Nid, PagesOf>>| {
            shard.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// The pages of an inode.
    pub(crate) fn of(&self, nid: Nid) -> Vec<PageNo> {
        self.shard(nid).get(&nid).map(|pages| pages.keys().copied().collect()).unwrap_or_default()
    }
}
