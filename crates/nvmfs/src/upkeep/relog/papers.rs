//! Logging anew in files of the papers' variants: a record is moved as one of their writes, under the range
//! lock of its pages.
//!
//! A page is read and unlinked under the log lock, which comes after the range lock. So this runs when a call
//! has released both. Between the steps others may write. Records that they supersede are not moved, and a
//! page goes only if no record in it is alive under the log lock.

use super::{Alive, new_write_record, read_page};
use crate::alloc::Purpose;
use crate::file::resize::{Eof, log_attributes_again};
use crate::file::write_heddle::cell_state;
use crate::format::record::Record;
use crate::ids::{BlockNo, Extent, PageNo};
use crate::log::chain::{self, Chain};
use crate::log::commit;
use crate::planted::{Met, met};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::latch::Spun;
use crate::state::lease::LaneGuard;
use crate::state::papers::{
    RangeGuard, lock_file_for_log, lock_range, locks_ranges, paper_locks, step_locks,
};
use crate::upkeep::garbage;
use heddle_range_lock::Access;
use heddle_vfs::Result;

/// Moves the oldest page of a file's log, if the log has grown too long. The caller holds neither a range nor
/// the log lock.
pub fn step(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, eof: Eof) {
    if locks_ranges(core) && paper_locks(core, inode).is_some() {
        // A failure (no space) is retried when the next page is begun.
        garbage::while_too_long(core, inode, || _ = move_oldest(core, guard, inode, eof));
    }
}

/// Moves the oldest page of a file's log, as [`step`] does, however long the log is.
pub fn move_one(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, eof: Eof) {
    // If it fails, the caller's next attempt does too.
    let _done = move_oldest(core, guard, inode, eof);
}

fn move_oldest(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, eof: Eof) -> Result<()> {
    let found = {
        let _log = lock_log(core, guard, inode)?;
        oldest(core, guard, inode)?
    };
    let Some((page, alive)) = found.filter(|(_, alive)| alive.may_move(core) && alive.punches.is_empty())
    else {
        return Ok(());
    };
    if alive.attributes {
        log_attributes_again(core, guard, inode, eof)?;
        met(Met::AttributesMoved);
    }
    for write in &alive.writes {
        move_write(core, guard, inode, write, eof)?;
    }
    let _log = lock_log(core, guard, inode)?;
    match oldest(core, guard, inode)? {
        Some((now, alive)) if now == page && alive.only_verbatim() => {
            let chain = chain::only(core, guard.own, inode)?;
            chain::unlink_page_unfenced(core, inode, chain, None, page)?;
            met(Met::FileMoved);
            let mut garbage = alive.lists;
            garbage.push(Extent { block: page, count: 1 });
            chain.clean_after.set(0);
            garbage::free_unlinked(core, guard, chain, &garbage);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The guard of the chain: the file's lock if that covers the log, else the log lock.
pub struct LogGuard<'c> {
    _file: Option<RangeGuard<'c>>,
    _log: Option<Spun<'c>>,
}

/// Locks the chain of a file.
pub fn lock_log<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'c>) -> Result<LogGuard<'c>> {
    Ok(LogGuard {
        _file: lock_file_for_log(core, guard.lane, guard.own, inode)?,
        _log: step_locks(core, inode).map(|locks| locks.log.lock()),
    })
}

/// Returns the first page and its living records, unless it is the page that takes records. The log is
/// locked.
fn oldest(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) -> Result<Option<(BlockNo, Alive)>> {
    let chain: &Chain = chain::only(core, guard.own, inode)?;
    let page = chain.head().filter(|page| *page != chain.tail().0);
    Ok(page.and_then(|page| Some((page, read_page(core, inode, page, chain)?))))
}

fn move_write(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    record: &Record,
    eof: Eof,
) -> Result<()> {
    let Record::Write { page, pages, version, .. } = *record else { return Ok(()) };
    let end = PageNo(page.0 + pages);
    let _range =
        lock_range(core, guard.lane, guard.own, inode, page.offset(), end.offset(), Access::Exclusive)?;
    // The range lock of a truncation ends at EOF. Beyond it the EOF latch keeps truncations out: without it the record stays where it is.
    let is_beyond = end.offset() > inode.volatile.size();
    let Some(_latched) = (if is_beyond { eof.try_hold(inode) } else { Some(None) }) else { return Ok(()) };
    let current = |p: PageNo| cell_state(core, inode, p).1 == version;
    let mut at = page;
    while at < end {
        let mut stop = at;
        while stop < end && current(stop) {
            stop = PageNo(stop.0 + 1);
        }
        if at < stop
            && let Some(again) = new_write_record(inode, record, at, stop)
        {
            commit::commit_for(core, guard, inode, std::slice::from_ref(&again), Purpose::Regain)?;
            met(Met::WriteMoved);
            publish(core, inode, &again);
        }
        at = PageNo(stop.0 + 1);
    }
    Ok(())
}

/// Gives the pages the record's version. They keep their blocks.
fn publish(core: &Core, inode: InodeRef<'_>, again: &Record) {
    let Record::Write { page, pages, version, .. } = *again else { return };
    let locks = step_locks(core, inode);
    let _index = locks.map(|l| l.index.lock());
    for page in (page.0..page.0 + pages).map(PageNo) {
        if let Some(run) = inode.volatile.index().find(&core.arena, page) {
            run.cells[0].set(run.cells[0].map(), version);
        }
    }
}
