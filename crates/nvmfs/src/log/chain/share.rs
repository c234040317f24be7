//! Taking over a chain that another lane keeps. This happens when there is no block for a new log page, or
//! when the inode already has the largest number of chains. The lane that kept the chain notices at its next
//! call (I1 of [`super`]).

use super::{Chain, existing, ways_of};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::wait;
use heddle_arena::Ptr;
use heddle_arena::sync::yield_now;
use heddle_vfs::Result;
use std::time::{Duration, Instant};

/// Takes over a chain that another lane keeps, that is not busy, and for which `wanted` holds. The chain is
/// busy for this lane then. `wanted` is evaluated before the chain is taken, so its answer is only a hint.
pub(super) fn take_over<'c>(
    core: &'c Core,
    lane: u16,
    inode: InodeRef<'c>,
    wanted: impl Fn(&Chain) -> bool,
) -> Option<&'c Chain> {
    existing(core, inode).filter(|chain| wanted(chain)).find(|chain| {
        let taken = chain.claim_quiet(lane);
        let right = taken && wanted(chain);
        if taken && !right {
            chain.unclaim();
        }
        right
    })
}

/// Waits for a chain when the inode has the largest number of chains and more threads than that write it.
/// Takes the first chain that is not busy: a call uses its chain for a moment only.
///
/// # Errors
/// If there is no chain to wait for.
pub(super) fn wait_for_one<'c>(core: &'c Core, lane: u16, inode: InodeRef<'c>) -> Result<&'c Chain> {
    let (began, mut turns) = (Instant::now(), wait::Retries::default());
    loop {
        if let Some(chain) = take_over(core, lane, inode, |_| true) {
            return Ok(chain);
        }
        yield_now();
        if !users_held_up(core, inode, began.elapsed()) {
            turns.again(core, || format!("the chains of inode {}", inode.ino.0))?;
        }
    }
}

/// Handles a caller that has waited since `waited` for busy chains of this inode, whose users may be dead or
/// stopped. Returns false if no chain is busy.
pub fn users_held_up(core: &Core, inode: InodeRef<'_>, waited: Duration) -> bool {
    let mut any = false;
    for user in existing(core, inode).filter_map(Chain::user) {
        any = true;
        if waited > wait::CHECK_EVERY && wait::check_every().is_some() {
            wait::held_up(core, user, waited);
        }
    }
    any
}

/// Called when there is no space for a log page. Takes over a chain of this inode that has room for `slots`
/// and is not busy.
pub fn has_room_elsewhere(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, slots: u32) -> bool {
    let generation = inode.volatile.generation();
    let is_its = |way: &usize| {
        let held = guard.own.chains[*way];
        held.ino == inode.ino.0 && held.generation == generation
    };
    let Some(way) = ways_of(inode.ino).into_iter().find(is_its) else { return false };
    let Some(chain) = take_over(core, guard.id, inode, |chain| chain.has_room(slots)) else { return false };
    // The lane's intent names the inode throughout: the settler of this lane examines its chains. This call
    // replaces the chain without room.
    let held = &mut guard.own.chains[way];
    core.arena.get::<Chain>(Ptr::from_raw(held.chain)).unclaim();
    held.chain = core.arena.offset_of(chain).raw();
    true
}
