//! How a transaction becomes valid.
//!
//! A transaction is self-certifying: its records with their marks, then one fence. At recovery checksums and marks decide. Where an inode
//! has one chain, a record's place in it is not known to be valid without one more fence: see `papers`.

use crate::alloc::Purpose;
use crate::format::record::Record;
use crate::log::chain::{self, Chain};
use crate::log::papers;
use crate::planted::{Breach, Bug, breaks_at_times, fence_unless};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::operation::Durable;
use crate::state::papers::one_chain;
use crate::steps::{Step, step};
use heddle_vfs::{Error, FileKind, Result};

/// Most slots of one transaction, since a transaction lies in one page.
pub const TXN_SLOTS_MAX: u32 = crate::format::page::SLOTS;

/// Makes room for `slots` records, so that the caller can [`commit`] next. Returns true if a fence must come
/// before that; most callers fence anyway for their data. In the one chain of a file room is made later,
/// under the log lock. `purpose` is the purpose of the operation.
pub fn prepare(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    slots: u32,
    purpose: Purpose,
) -> Result<bool> {
    let directory = matches!(inode.volatile.kind_perm(), Some((FileKind::Directory, _)));
    if one_chain(core) && !directory {
        return Ok(false);
    }
    let chain = chain_of(core, guard, inode)?;
    make_room(core, guard, inode, chain, slots, purpose)
}

/// As [`chain::make_room`]. If there is no space for a page, tries a chain with room that another lane keeps.
fn make_room(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    chain: &Chain,
    slots: u32,
    purpose: Purpose,
) -> Result<bool> {
    match chain::make_room(core, guard.own, guard.id, inode, chain, slots, purpose) {
        Err(Error::NoSpace) if !one_chain(core) && chain::has_room_elsewhere(core, guard, inode, slots) => {
            // The last user of that chain may have prepared a page there and not yet fenced it.
            Ok(true)
        }
        made => made,
    }
}

/// The chain that this lane appends to: one of its own, or the only one.
pub fn chain_of<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'c>) -> Result<&'c Chain> {
    if one_chain(core) { chain::only(core, guard.own, inode) } else { chain::lease(core, guard, inode) }
}

/// Appends a transaction and makes it durable. The caller has called [`prepare`], and has fenced if that
/// asked for it.
///
/// # Errors
/// No space, where room is made here. Nothing has changed then. Or those of [`Durable::fenced`].
pub fn commit(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
) -> Result<Durable> {
    commit_for(core, guard, inode, records, purpose_of(records))
}

/// As [`commit`]; `purpose` is for a log page that is still to be taken.
pub fn commit_for(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<Durable> {
    if breaks_at_times(Breach::RecordLeftOut) {
        return Durable::fenced(&core.region, || ());
    }
    if one_chain(core) {
        let (durable, began_page) = papers::commit(core, guard, inode, records, purpose)?;
        note_began_page(guard, inode, began_page);
        return Ok(durable);
    }
    let mut chain = chain_of(core, guard, inode)?;
    let slots = records.iter().map(|r| r.slots_in(inode.id())).sum();
    // `prepare` made room, unless this lane has lost the chain since: a chain of another inode took
    // its place.
    if make_room(core, guard, inode, chain, slots, purpose)? {
        // PERSIST: a fresh log page is empty before it is linked.
        core.region.fence();
        chain = chain_of(core, guard, inode)?;
    }
    let at = chain::append_unfenced(core, guard.id, inode, chain, records, true);
    step(Step::Stored);
    // PERSIST: the operation is durable from here on.
    let durable = Durable::fenced(&core.region, || fence_unless(Bug::CommitFenceMissing, &core.region))?;
    note_began_page(guard, inode, at.began_page);
    Ok(durable)
}

/// Purpose of a log page that [`prepare`] has not taken.
fn purpose_of(records: &[Record]) -> Purpose {
    let frees = |record: &Record| {
        matches!(record, Record::Punch { .. } | Record::Remap { .. } | Record::Name { removed: true, .. })
    };
    if records.iter().any(frees) { Purpose::Free } else { Purpose::Replace }
}

/// Notes that a page was begun. The cleaning runs when the call holds nothing more.
fn note_began_page(guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, began_page: bool) {
    if began_page {
        guard.scratch.to_clean.push(inode.id());
    }
}

/// Refuses a transaction that does not fit, before anything is written. That is a mistake of the calling
/// code, not of the user.
pub fn fits(records: &[Record]) -> Result<()> {
    let slots: u32 = records.iter().map(Record::slots_max).sum();
    if slots <= TXN_SLOTS_MAX {
        Ok(())
    } else {
        Err(Error::InvalidArgument("too many records in one transaction"))
    }
}
