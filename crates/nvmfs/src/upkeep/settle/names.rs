//! Names that a dead lane was changing. Its buckets are set to what the logs say, and copies that it owed a
//! log are made. Inodes that it was making or freeing, or that have lost their last name, are freed.

use super::living;
use crate::alloc::Purpose;
use crate::format::page::SLOTS;
use crate::format::pointer::{self, PointerLocation, Target};
use crate::format::record::Record;
use crate::ids::{BlockNo, InodeId};
use crate::log::{chain, commit};
use crate::names::life;
use crate::names::ops::prepare;
use crate::names::table::{self, Logged};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::{Freeing, Lane};
use crate::state::lease::LaneGuard;
use crate::state::opens;
use crate::steps::{Step, step};
use crate::upkeep::recovery::scan;
use heddle_arena::ProcessTag;
use heddle_arena::sync::atomic::fence;
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::planted::{Bug, planted};
use heddle_vfs::{FileKind, Ino, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::time::Duration;

/// Attempts to read a log that other lanes clean meanwhile.
const TRIES: u32 = 200;

/// A name record of the dead lane's transactions, and the inode in whose log it lies.
pub struct Changed {
    /// The log's inode.
    pub home: u64,
    /// The record.
    pub record: Record,
    /// The bucket of its name lacks it ([`prepare_names`]).
    pub is_pending: bool,
}

/// Drops what others may have changed since: a call holds buckets again after its change, and its transaction is still noted then. Notes
/// the inode that loses a name in the lane's intent, before any bucket is settled. The lane's chains must not have been let go of: the
/// record of a removal in the log itself stays as long as nobody cleans the log.
pub fn prepare_names(core: &Core, guard: &LaneGuard<'_>, changed: &mut [Changed]) {
    for change in changed.iter_mut() {
        if let Record::Name { dir, name, version, .. } = &change.record {
            let dir = living(core, dir.ino.0).filter(|inode| inode.id() == *dir);
            let is_pending = |dir| table::is_pending(core, guard.id, dir, name.bytes(), *version);
            change.is_pending = dir.is_some_and(is_pending);
        }
    }
    if guard.lane.intent.unlinking().is_some() {
        return;
    }
    let noted = match changed.iter().any(|change| change.is_pending) {
        true => note_loser(core, guard, changed),
        false => note_removal_in_place(core, guard),
    };
    if let Err(error) = noted {
        let _noted = core.damage(error.to_string());
    }
}

fn dirs_of<'c>(core: &'c Core, guard: &LaneGuard<'_>) -> Vec<InodeRef<'c>> {
    let dirs = guard.lane.intent.dirs().filter_map(|ino| living(core, ino));
    dirs.filter(|dir| dir.volatile.is_directory()).collect()
}

fn note_loser(core: &Core, guard: &LaneGuard<'_>, changed: &[Changed]) -> Result<()> {
    // A moved inode has its name elsewhere.
    let named = |id: InodeId| {
        changed.iter().any(|c| matches!(c.record, Record::Name { removed: false, child, .. } if child == id))
    };
    for dir in dirs_of(core, guard) {
        for loser in table::losers(core, guard.id, dir, &changes_of(dir, changed))? {
            if !named(loser) {
                guard.lane.intent.note_unlinking(loser);
            }
        }
    }
    Ok(())
}

/// The lane may have died behind a removal in the log itself, and before its note.
fn note_removal_in_place(core: &Core, guard: &LaneGuard<'_>) -> Result<()> {
    for dir in dirs_of(core, guard) {
        if let Some(child) = table::removed_in_place(core, guard.id, dir, || log_of(core, dir))? {
            // The lane had borrowed all chains that there were. Pages of later ones may be reused at any moment.
            let borrowed = chain::existing(core, dir).filter(|chain| chain.is_busy_for(guard.id));
            for page in borrowed.flat_map(|chain| chain::pages_of(core, dir, chain)) {
                // PERSIST: the removal, before the inode ends: the dead thread may not have reached its fence. No check sees it: only one
                // process has a simulated region, and no test cuts power after a death.
                core.region.flush_unfenced(page?.pos(), BLOCK_BYTES as u64);
            }
            core.region.fence(); // PERSIST: as above.
            guard.lane.intent.note_unlinking(child);
            return Ok(());
        }
    }
    Ok(())
}

/// Settles the buckets that the lane holds.
pub fn settle(core: &Core, guard: &mut LaneGuard<'_>, changed: &[Changed]) {
    if let Err(error) = write_owed_copies(core, guard, changed) {
        let _noted = core.damage(format!("an interrupted rename could not be finished: {error}"));
    }
    step(Step::Settling);
    // Before the buckets are unlocked: others may move the directory then.
    for change in changed.iter().filter(|change| change.is_pending) {
        if let Record::Name { dir, removed: false, child, kind: FileKind::Directory, .. } = change.record
            && let Some(moved) = living(core, child.ino.0)
        {
            moved.volatile.parent.store(dir.ino.0, SeqCst);
        }
    }
    for dir in dirs_of(core, guard) {
        let is_dead = guard.lane.intent.unlinking().is_some_and(|(id, _)| id == dir.id());
        if is_dead && table::kill_dead(core, guard.id, dir) {
            continue;
        }
        let changes = changes_of(dir, changed);
        let settled = table::settle_dead(core, guard.own, guard.id, dir, &changes, || log_of(core, dir));
        if let Err(error) = settled {
            let _noted = core.damage(error.to_string());
        }
        step(Step::Settling);
    }
    table::unlock_reused_table(core, guard.id, guard.lane.intent.table());
}

/// The changes of the transaction to names of this directory that its buckets lack.
fn changes_of(dir: InodeRef<'_>, changed: &[Changed]) -> Vec<(Vec<u8>, Logged)> {
    let of = changed.iter().filter(|change| change.is_pending).filter_map(|change| match &change.record {
        Record::Name { dir: of, removed, child, kind, name, version, .. } if *of == dir.id() => {
            Some((name.bytes().to_vec(), (*version, (!removed).then_some((*child, *kind)))))
        }
        _ => None,
    });
    of.collect()
}

/// Makes the copy that a rename across directories owes the old directory's log.
fn write_owed_copies(core: &Core, guard: &mut LaneGuard<'_>, changed: &[Changed]) -> Result<()> {
    // No lock is let go of before the copy is durable. An older one must not come behind what others wrote since.
    for change in changed.iter().filter(|change| change.is_pending) {
        let Record::Name { dir, version, name, .. } = &change.record else { continue };
        let is_copy = |other: &Changed| {
            other.home == dir.ino.0
                && matches!(&other.record, Record::Name { dir: d, version: v, name: n, .. } if (d, v, n) == (dir, version, name))
        };
        if change.home == dir.ino.0 || changed.iter().any(is_copy) {
            continue;
        }
        let Some(owed) = living(core, dir.ino.0).filter(|inode| inode.id() == *dir) else { continue };
        prepare(core, guard, owed, change.record.slots_max(), Purpose::Regain)?;
        commit::commit(core, guard, owed, std::slice::from_ref(&change.record))?;
    }
    Ok(())
}

/// The names in a directory's log. Other lanes may append to the log and clean it meanwhile. But records of
/// names in held buckets stay where they are.
fn log_of(core: &Core, dir: InodeRef<'_>) -> Result<HashMap<Vec<u8>, Logged>> {
    for _ in 0..TRIES {
        if let Some(names) = read_log(core, dir) {
            return Ok(names);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(core.damage(format!("the log of directory {} cannot be read", dir.ino.0)))
}

/// Returns `None` if a page was unlinked while it was read.
fn read_log(core: &Core, dir: InodeRef<'_>) -> Option<HashMap<Vec<u8>, Logged>> {
    let scan = scan(core);
    let mut names: HashMap<Vec<u8>, Logged> = HashMap::new();
    let mut left = core.layout.blocks_total;
    for chain in chain::existing(core, dir) {
        // ORDERING: Acquire, the table exists: the chain is in it.
        let chains = core.arena.get(dir.volatile.chains.load(Acquire));
        let raw = core.region.load_u64(chain::head_pos(core, dir, chains, chain.number()));
        let mut next = match pointer::decode(core.seed, dir.id(), PointerLocation::Head(chain.number()), raw)
        {
            Target::None => None,
            Target::At(head) if core.layout.holds(head, 1) => Some(head),
            _ => return None,
        };
        while let Some(page) = next {
            // A chain with more pages than the image has blocks is circular.
            left = left.checked_sub(1)?;
            read_page(core, dir, chain.number(), page, &mut names)?;
            next = scan.next(dir.id(), page).ok()?;
            // ORDERING: Acquire: all of the page was loaded before its header is loaded again. A lane that
            // reuses the block clears its header and fences before it stores a record.
            fence(Acquire);
            // The page must still be of this log: otherwise the records read were another's.
            scan.header(dir.id(), chain.number(), page).ok()?;
        }
    }
    Some(names)
}

fn read_page(
    core: &Core,
    dir: InodeRef<'_>,
    number: u32,
    page: BlockNo,
    names: &mut HashMap<Vec<u8>, Logged>,
) -> Option<()> {
    let scan = scan(core);
    let header = scan.header(dir.id(), number, page).ok()?;
    let found = scan.page(dir.id(), &header, page, SLOTS + 1).ok()?;
    for (_, record) in found.records {
        if let Record::Name { dir: of, removed, child, kind, name, version, .. } = record
            && of == dir.id()
            && names.get(name.bytes()).is_none_or(|known| (known.0, known.1.is_none()) < (version, removed))
        {
            names.insert(name.bytes().to_vec(), (version, (!removed).then_some((child, kind))));
        }
    }
    Some(())
}

/// Clears the note of an inode being made, if the transaction gave it its name.
pub fn forget_born_with_name(core: &Core, guard: &LaneGuard<'_>, changed: &[Changed]) {
    let Some((creating, _)) = guard.lane.intent.creating() else { return };
    let has_name =
        |c: &Changed| matches!(c.record, Record::Name { removed: false, child, .. } if child == creating);
    if changed.iter().any(has_name) {
        if let Some(inode) = living(core, creating.ino.0).filter(|inode| inode.id() == creating) {
            inode.volatile.set_linkable(false);
        }
        guard.lane.intent.created();
    }
}

/// Frees the inode that the lane was making, or takes the count back that a first name had.
fn end_creating(core: &Core, guard: &mut LaneGuard<'_>) {
    let Some((id, is_older)) = guard.lane.intent.creating() else { return };
    let alive = living(core, id.ino.0).filter(|inode| inode.id() == id);
    match alive {
        Some(_) if is_older => guard.lane.intent.note_unlinking(id),
        Some(inode) => {
            // It never got its name. Any handle of it was the dead thread's.
            opens::forget_inode(core, guard.id, inode);
            return life::unmake(core, guard, inode);
        }
        // Its slot may have been written already; or it is another inode's by now.
        None => {
            let on_media = core.slot(id.ino).filter(|slot| life::slot_has(core, *slot, id.generation));
            on_media.into_iter().for_each(|slot| life::zero_slot(core, slot));
        }
    }
    guard.lane.intent.created();
}

/// Frees the inodes that the lane was making, or has left without name and handle.
pub fn end_inodes(core: &Core, guard: &mut LaneGuard<'_>) {
    end_creating(core, guard);
    if let Some((id, last)) = guard.lane.intent.unlinking()
        && let Some(inode) = living(core, id.ino.0).filter(|inode| inode.id() == id)
    {
        lose(core, guard, inode, last);
    }
    guard.lane.intent.note_lowering(None);
    // Only one thread of the process may have died: then the other threads keep the handles.
    let is_gone = core.lane_table().is_gone(&core.arena, ProcessTag::from_word(guard.lane.home.load(SeqCst)));
    if is_gone && !planted(Bug::KeepsTheDead) {
        for handles in opens::of_gone(core, guard.id) {
            // Noted first: if this settler dies, the next one finds no count of it.
            guard.lane.intent.note_freeing(handles.id.ino.0, Freeing::Asked);
            handles.remove();
            step(Step::Settling);
            let inode = living(core, handles.id.ino.0).filter(|inode| inode.id() == handles.id);
            if let Some(nameless) = inode.filter(|inode| inode.volatile.nlink.load(SeqCst) == 0) {
                life::end_once(core, guard, nameless);
            }
        }
        guard.lane.intent.note_freeing(0, Freeing::None);
    }
}

/// Lowers the count of an inode that has lost a name. `last`: the dead thread may have lowered it, to zero.
fn lose(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, last: bool) {
    if inode.volatile.is_directory() && !last {
        inode.volatile.nlink.store(1, SeqCst);
    }
    match inode.volatile.nlink.load(SeqCst) {
        0 => life::end_once(core, guard, inode),
        _ => life::drop_name(core, guard, inode),
    }
}

/// The inode of this number, if the lane has claimed its end.
fn claimed(core: &Core, lane: u16, ino: u64) -> Option<InodeRef<'_>> {
    core.slot(Ino(ino)).filter(|inode| inode.volatile.claimer() == lane)
}

/// Withdraws the claim of the lane on an inode that it has not begun to end. Its note stays: [`end_half_ended`] asks again.
pub fn withdraw_claim(core: &Core, lane: &Lane, number: u16) {
    if let Some((ino, how)) = lane.intent.freeing()
        && how != Freeing::Begun
        && let Some(inode) = claimed(core, number, ino)
    {
        inode.volatile.unclaim(opens::claims_as(core, number));
    }
}

/// Completes the freeing of an inode that the lane had begun to end, or decides anew whether one ends whose claim was withdrawn.
pub fn end_half_ended(core: &Core, guard: &mut LaneGuard<'_>) {
    let Some((ino, how)) = guard.lane.intent.freeing() else { return };
    if how == Freeing::Begun
        && let Some(inode) = claimed(core, guard.id, ino)
    {
        // Its blocks and its number are free at the next mount.
        life::dies(core, guard.id, inode);
    }
    step(Step::Settling);
    guard.lane.intent.note_freeing(0, Freeing::None);
    if how != Freeing::Begun
        && let Some(inode) = living(core, ino).filter(|inode| inode.volatile.nlink.load(SeqCst) == 0)
    {
        life::end_once(core, guard, inode);
    }
}
