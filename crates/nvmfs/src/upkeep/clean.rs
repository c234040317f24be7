//! Log cleaning by the calls themselves: a call that begins a page examines old pages of the same chain.
//!
//! A page whose records are all superseded is unlinked. The unlinking is fenced before the block is used
//! again (D5a). A record is durable before it is published. So an older record is dead as soon as the cells
//! of its pages carry larger versions. If a cell is older than its record (the papers' variants publish late),
//! the record stays alive. When a log has grown to several times its living records, the living records of
//! the oldest page are logged anew (`relog`).
//!
//! The rules for dead records: `garbage`.
//! Source      fast and thorough garbage collection of NOVA, the rules changed for many chains: docs/protocol.md D5, P7, P8.

use crate::file::blocks::list_blocks;
use crate::file::resize::{Eof, log_attributes_again};
use crate::format::page::{PageHeader, SLOTS, slot_pos};
use crate::format::record::{FoundRecord, PlainWrite, decode_plain_write, parse};
use crate::ids::{BlockNo, Extent, InodeId};
use crate::log::chain::{self, Chain};
use crate::log::commit;
use crate::names::{life, ops};
use crate::planted::{Met, met};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::papers::locks_ranges;
use crate::upkeep::garbage::{Page, alive, can_shrink, free_unlinked, while_too_long, write_alive};
use crate::upkeep::relog;
use heddle_arena::sync::yield_now;
use heddle_vfs::{Error, FileKind, Result};

/// Number of old pages examined for each page begun, until one is found dead. So as many pages are freed as are added, and the living
/// pages between them are passed faster than they grow.
const PAGES_A_STEP: u32 = 3;

/// The last step of a call that changes something, which returns what the call has done. It cleans the logs in which the call has begun
/// pages. The call holds no lock any more, and still has its files open.
///
/// # Errors
/// [`Error::Io`]: a fence has failed. Other errors are those of the call.
#[inline]
pub fn after_call<T>(core: &Core, guard: &mut LaneGuard<'_>, done: Result<T>) -> Result<T> {
    if !guard.scratch.to_clean.is_empty() && core.region.failed_fence().is_none() {
        clean_logs(core, guard, clean_of);
    }
    match core.region.failed_fence() {
        None => done,
        // Also if the call found no space: it may not have, but for the failure.
        Some(error) => Err(Error::Io(error.to_string())),
    }
}

/// Cleans between the transactions of a call that has many of one file and holds the file's EOF latch.
pub fn between(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    if !guard.scratch.to_clean.is_empty() {
        clean_logs(core, guard, |core, guard, _| clean_file(core, guard, inode, Eof::Held));
    }
}

#[cold]
fn clean_logs(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    mut clean: impl FnMut(&Core, &mut LaneGuard<'_>, InodeId),
) {
    let mut logs = std::mem::take(&mut guard.scratch.to_clean);
    for id in logs.drain(..) {
        clean(core, guard, id);
    }
    // Logs in which cleaning itself has begun pages are left to a later call.
    guard.scratch.to_clean = logs;
}

fn clean_of(core: &Core, guard: &mut LaneGuard<'_>, id: InodeId) {
    let Some(inode) = core.slot(id.ino).filter(|inode| inode.volatile.is(id)) else { return };
    let Some((kind, _)) = inode.volatile.kind_perm() else { return };
    if kind == FileKind::Regular {
        return clean_file(core, guard, inode, Eof::NotHeld);
    }
    // Held open, because the inode may die meanwhile.
    if life::open(core, guard, inode, id.generation).is_ok() {
        if kind == FileKind::Directory {
            // The call holds no bucket any more, and the intent has room for few directories.
            guard.lane.intent.forget_dirs();
            let latched = ops::latch(core, inode);
            step(core, guard, inode, if latched.is_some() { Eof::Held } else { Eof::NotHeld });
        } else {
            clean_file(core, guard, inode, Eof::NotHeld);
        }
        // When the handle is gone, another call may end the inode, and its chains are the slot's next inode's.
        // The intent names a record in them: then a settler would look for it in a page that others clean.
        guard.lane.intent.logged();
        guard.own.rest_chains(&core.arena, guard.id);
        life::drop_open(core, guard, inode, id.generation);
    }
}

/// Moves a page of the log of a file whose call finds no space: calls clean when they have filled a page, and here none can be had. The
/// call holds no lock. Returns `None` if no page can be spared. If another call was faster with that page, there may be room all the same.
#[cold]
pub fn compress(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) -> Option<relog::Progress> {
    if !can_shrink(core, inode) {
        return None;
    }
    let mut done = relog::Progress::Stays;
    if locks_ranges(core) {
        relog::papers::move_one(core, guard, inode, Eof::NotHeld);
    } else if let Ok(chain) = commit::chain_of(core, guard, inode) {
        done = relog::step(core, guard, inode, chain, Eof::NotHeld);
    }
    yield_now();
    Some(done)
}

/// Cleans a file's log. In the papers' variants the lock of the file's chain is held, but not while records
/// are moved.
fn clean_file(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, eof: Eof) {
    let Ok(log) = relog::papers::lock_log(core, guard, inode) else { return };
    step(core, guard, inode, eof);
    drop(log);
    relog::papers::step(core, guard, inode, eof);
}

/// One step on the chain that this lane holds. Damage found here stops further changes to the file system.
/// The caller's operation has succeeded nevertheless.
fn step(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, eof: Eof) {
    let directory = matches!(inode.volatile.kind_perm(), Some((FileKind::Directory, _)));
    if directory && inode.volatile.foreign_record_may_count() {
        if log_attributes_again(core, guard, inode, eof).is_err() {
            return;
        }
        met(Met::DebtEnded);
    }
    let Ok(chain) = commit::chain_of(core, guard, inode) else { return };
    let mut garbage = std::mem::take(&mut guard.scratch.garbage);
    for _ in 0..PAGES_A_STEP {
        let looked = look_at_next(core, inode, chain, &mut garbage);
        if !garbage.is_empty() || !matches!(looked, Ok(true)) {
            break;
        }
    }
    free_unlinked(core, guard, chain, &garbage);
    garbage.clear();
    guard.scratch.garbage = garbage;
    // Under range locks a file's records are moved later: see `relog::papers`.
    let later = locks_ranges(core) && !directory;
    if !later {
        // Anew each time: a step without a block may have changed the lane's chain.
        while_too_long(core, inode, || {
            if let Ok(chain) = commit::chain_of(core, guard, inode) {
                relog::step(core, guard, inode, chain, eof);
            }
        });
    }
}

/// Examines one page. Returns false if there is none to examine. Unlinked extents are added to `garbage`;
/// they are free after a fence.
fn look_at_next(core: &Core, inode: InodeRef<'_>, chain: &Chain, garbage: &mut Vec<Extent>) -> Result<bool> {
    let before = Some(BlockNo(chain.clean_after.get())).filter(|b| b.0 != 0);
    let page = match before {
        Some(before) => chain::next_page(core, inode, before)?,
        None => chain.head(),
    };
    let last = chain.tail().0;
    let Some(page) = page.filter(|p| *p != last) else {
        chain.clean_after.set(0);
        return Ok(false);
    };
    match lists_of_dead(core, inode, page, before.is_none().then_some(chain)) {
        Some(lists) => {
            chain::unlink_page_unfenced(core, inode, chain, before, page)?;
            met(Met::PageDropped);
            garbage.push(Extent { block: page, count: 1 });
            garbage.extend(lists);
        }
        None => chain.clean_after.set(page.0),
    }
    Ok(true)
}

/// Returns `None` if a record in the page is alive, else the extent lists that are freed with it. `first_of`:
/// the chain whose first page this is.
fn lists_of_dead(
    core: &Core,
    inode: InodeRef<'_>,
    page: BlockNo,
    first_of: Option<&Chain>,
) -> Option<Vec<Extent>> {
    let header = PageHeader::decode(core.seed, &core.region.line(page.pos()))?;
    let seed = header.record_seed(core.seed);
    // In most living pages the first record is alive: reading its two lines is cheaper than reading the page.
    let first = decode_plain_write(seed, 1, &core.region.line(slot_pos(page, 1)));
    if first.is_some_and(|first| write_alive(core, inode, &first)) {
        return None;
    }
    let mut words = Page::empty();
    words.load(core, page);
    let mut lists = Vec::new();
    let mut slot = 1;
    let mut last_dead: Option<PlainWrite> = None;
    while slot <= SLOTS {
        if let Some(write) = decode_plain_write(seed, slot, &words.line(slot)) {
            // An older write of exactly the pages of a dead one is dead too.
            let older = last_dead.is_some_and(|dead| {
                (dead.page, dead.pages, dead.change_count) == (write.page, write.pages, write.change_count)
                    && dead.end_in_last_page >= write.end_in_last_page
                    && dead.version >= write.version
            });
            if !older && write_alive(core, inode, &write) {
                return None;
            }
            last_dead = Some(write).filter(|_| !older).or(last_dead);
            slot += 1;
            continue;
        }
        match parse(seed, inode.id(), slot, |s| words.line(s)) {
            FoundRecord::Blank => slot += 1,
            FoundRecord::Whole { record, slots, .. } if !alive(core, inode, &record, first_of) => {
                lists.extend(list_blocks(core, inode, &record)?);
                slot += slots;
            }
            // Alive, or damaged: recovery has zeroed all incomplete records.
            _ => return None,
        }
    }
    Some(lists)
}
