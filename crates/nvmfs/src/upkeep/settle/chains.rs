//! Chains that a dead lane was using. They are read again from the media, which decides what was linked.

use crate::format::inode::{HEAD_BLOCK_WORD, HEADS_INLINE};
use crate::format::page::{SLOTS, slot_pos};
use crate::format::pointer::{self, PointerLocation, Target};
use crate::ids::{BlockNo, Extent};
use crate::log::chain::{self, Chain, Tail};
use crate::log::scan::Damage;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::steps::{Step, step};
use crate::upkeep::recovery::scan;
use heddle_pmem::{BLOCK_BYTES, LINE_BYTES};
use std::sync::atomic::Ordering::Acquire;

/// Repairs the chains of an inode that this lane was using. Stored records are flushed, slots of a torn
/// transaction are zeroed, and the next record goes behind those that count. The caller fences. A page that
/// was prepared and never linked is added to `garbage`. Chains that the lane only kept are released at once.
/// Between calls a chain is always whole, and other lanes may be cleaning it.
pub fn repair(core: &Core, lane: u16, inode: InodeRef<'_>, garbage: &mut Vec<Extent>) -> Result<(), Damage> {
    let mut repaired = Ok(());
    for chain in chain::existing(core, inode) {
        step(Step::Repairing);
        chain.forget_keeper(lane);
        if chain.is_busy_for(lane) {
            repaired = repaired.and(repair_one(core, inode, chain, garbage));
        }
    }
    repaired
}

/// Clears the owner of the chains of this inode that the lane was using.
pub fn let_go(core: &Core, lane: u16, inode: InodeRef<'_>) {
    chain::existing(core, inode).filter(|chain| chain.is_busy_for(lane)).for_each(Chain::unclaim);
}

fn repair_one(
    core: &Core,
    inode: InodeRef<'_>,
    chain: &Chain,
    garbage: &mut Vec<Extent>,
) -> Result<(), Damage> {
    let head = head_on_media(core, inode, chain)?;
    let (mut last, mut next, mut seen) = (None, head, 0);
    let mut tail = Tail::NONE;
    let spare = chain.spare();
    let mut spare_is_linked = false;
    while let Some(page) = next {
        // PERSIST: the link to the next page, as the dead thread stored it. No check sees it: only one
        // process has a simulated region, and no test cuts power after a death.
        core.region.flush_unfenced(page.pos(), LINE_BYTES as u64);
        spare_is_linked |= spare.is_some_and(|spare| spare.block == page);
        seen += 1;
        if seen > core.layout.blocks_total {
            return Err(Damage(format!("the log of inode {} leads in a circle", inode.ino.0)));
        }
        last = Some(page);
        next = scan(core).next(inode.id(), page)?;
    }
    if let Some(last) = last {
        tail = close(core, inode, chain, last)?;
    }
    // PERSIST: C2 of `chain`: unlinked pages are unreachable before other lanes are told so. No check sees
    // it: only one process has a simulated region, and no test cuts power after a death.
    core.region.fence();
    chain.restart(head, tail);
    garbage.extend(spare.filter(|_| !spare_is_linked));
    Ok(())
}

pub(super) fn head_on_media(
    core: &Core,
    inode: InodeRef<'_>,
    chain: &Chain,
) -> Result<Option<BlockNo>, Damage> {
    let number = chain.number();
    // ORDERING: Acquire. The table exists, since the chain is in it.
    let chains = core.arena.get(inode.volatile.chains.load(Acquire));
    if number >= HEADS_INLINE {
        // PERSIST: the link to the block of heads. No check sees it: only one process has a simulated region,
        // and no test cuts power after a death.
        core.region.flush_unfenced(chain::pointer_word_pos(core, inode, HEAD_BLOCK_WORD), 8);
    }
    let at = chain::head_pos(core, inode, chains, number);
    // PERSIST: the head. No check sees it: only one process has a simulated region, and no test cuts power
    // after a death.
    core.region.flush_unfenced(at, 8);
    match pointer::decode(core.seed, inode.id(), PointerLocation::Head(number), core.region.load_u64(at)) {
        Target::None => Ok(None),
        Target::At(head) if core.layout.holds(head, 1) => Ok(Some(head)),
        _ => Err(Damage(format!("inode {}: the pointer to chain {number} is wrong", inode.ino.0))),
    }
}

/// Closes the last page: flushes all of it, zeroes torn slots (D4b). When the caller has fenced, the next
/// record goes behind those that count.
fn close(core: &Core, inode: InodeRef<'_>, chain: &Chain, page: BlockNo) -> Result<Tail, Damage> {
    let scan = scan(core);
    let header = scan.header(inode.id(), chain.number(), page)?;
    let found = scan.page(inode.id(), &header, page, SLOTS + 1)?;
    // PERSIST: the records of the last page. No check sees it: only one process has a simulated region, and
    // no test cuts power after a death.
    core.region.flush_unfenced(page.pos(), BLOCK_BYTES as u64);
    let slot = found.next_slot(inode.id());
    for slot in found.dropped {
        // PERSIST: with the fence of `repair_one`. No check sees it: only one process has a simulated region,
        // and no test cuts power after a death.
        core.region.nt_zero(slot_pos(page, slot), LINE_BYTES as u64);
    }
    Ok(Tail { page, slot, seed: header.record_seed(core.seed) })
}
