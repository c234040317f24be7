//! A parallel map over items: one thread reads each item.

use crate::state::core::Core;
use crate::upkeep::recovery::Progress;
use heddle_vfs::{Error, Result};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// On an image with fewer blocks a second thread costs more than it saves, unless there are many items.
const SMALL_BLOCKS: u64 = 8192;
/// Number of items of a small image that keep one thread busy.
const MANY: usize = 64;
/// Number of items between two progress reports.
const TOLD_EVERY: usize = 64;

/// Applies `work` to each item and returns the results in order. The first error ends all threads. `what`
/// names the items for `progress`.
pub fn in_parallel<T: Sync, R: Send>(
    core: &Core,
    what: &'static str,
    items: &[T],
    progress: Progress<'_>,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let total = items.len() as u64;
    let worker = || {
        let mut done = Vec::new();
        loop {
            // ORDERING: Relaxed, each number is drawn once; joining the thread makes its results visible.
            let i = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(i) else { return Ok(done) };
            match work(item) {
                Ok(made) => done.push((i, made)),
                Err(error) => {
                    // ORDERING: Relaxed, a thread that misses it only reads a few more items.
                    next.store(items.len(), Relaxed);
                    return Err(error);
                }
            }
            if i.is_multiple_of(TOLD_EVERY) {
                progress(what, i as u64, total);
            }
        }
    };
    let mut all = match threads(core, items.len()) {
        1 => worker()?,
        threads => std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
            let failed = || Error::Io("a thread of the recovery failed".into());
            let parts = handles.into_iter().map(|handle| handle.join().unwrap_or_else(|_| Err(failed())));
            parts.collect::<Result<Vec<_>>>().map(|parts| parts.into_iter().flatten().collect())
        })?,
    };
    if total > 0 {
        progress(what, total, total);
    }
    all.sort_unstable_by_key(|(i, _)| *i);
    Ok(all.into_iter().map(|(_, made)| made).collect())
}

/// Number of threads for so many items of this image.
fn threads(core: &Core, items: usize) -> usize {
    // Shuttle and loom know only threads of their own.
    if cfg!(any(shuttle, loom)) {
        return 1;
    }
    let worth = if core.layout.blocks_total < SMALL_BLOCKS { items.div_ceil(MANY) } else { items };
    // Asking for the number of processors reads files, which does not pay for few items.
    if worth <= 1 {
        return 1;
    }
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(worth)
}
