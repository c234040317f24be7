//! Many things, each read by one thread, several at a time.

use crate::state::core::Core;
use crate::upkeep::recovery::Progress;
use heddle_vfs::{Error, Result};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// On an image of fewer blocks a thread costs more than it saves, unless there are many things to do.
const SMALL_BLOCKS: u64 = 8192;
/// How many things of a small image keep a thread busy.
const MANY: usize = 64;
/// So often progress is told.
const TOLD_EVERY: usize = 64;

/// What `work` makes of each item, in their order; the first error ends all of it. `what` names the items for `progress`.
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
            // ORDERING: Relaxed, each number is drawn once; what is made of it is seen by joining the thread.
            let i = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(i) else { return Ok(done) };
            match work(item) {
                Ok(made) => done.push((i, made)),
                Err(error) => {
                    // ORDERING: Relaxed, who misses it reads some more for nothing.
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

/// How many threads so many items of this image deserve.
fn threads(core: &Core, items: usize) -> usize {
    // Shuttle and loom know their own threads alone.
    if cfg!(any(shuttle, loom)) {
        return 1;
    }
    let worth = if core.layout.blocks_total < SMALL_BLOCKS { items.div_ceil(MANY) } else { items };
    // Asking for the processors reads files: not for a handful of items.
    if worth <= 1 {
        return 1;
    }
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(worth)
}
