//! Chains that another lane keeps, and how they become this one's: where there is no block for a page, and where there are as many
//! chains as there can be. A lane that keeps a chain between its calls finds out at its next (I1 of [`super`]).

use super::{Chain, existing, ways_of};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::wait;
use heddle_arena::Ptr;
use heddle_arena::sync::yield_now;
use heddle_vfs::Result;
use std::time::{Duration, Instant};

/// A chain that another lane keeps, but is not using, and that is `wanted`: it is this lane's now, and busy. What is looked at before it
/// is taken is a guess.
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

/// There are as many chains as there can be: more threads than that write one inode. The first that is not being used is the caller's;
/// a call uses its chain for a moment only.
///
/// # Errors
/// If there is none to wait for either.
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

/// Somebody waits since `waited` for calls that use chains of this inode: they may be dead, or stopped. False: there are none.
pub fn users_held_up(core: &Core, inode: InodeRef<'_>, waited: Duration) -> bool {
    let mut any = false;
    for user in existing(core, inode).filter_map(Chain::user) {
        any = true;
        if waited > wait::LOOK && wait::look().is_some() {
            wait::held_up(core, user, waited);
        }
    }
    any
}

/// For who finds no space for a log page: makes a chain of this inode that has room for `slots`, and that nobody is using, the lane's.
pub fn has_room_elsewhere(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, slots: u32) -> bool {
    let generation = inode.vi.generation();
    let is_its = |way: &usize| {
        let held = guard.own.chains[*way];
        held.ino == inode.ino.0 && held.generation == generation
    };
    let Some(way) = ways_of(inode.ino).into_iter().find(is_its) else { return false };
    let Some(chain) = take_over(core, guard.id, inode, |chain| chain.has_room(slots)) else { return false };
    // The inode stays named throughout: whoever settles this lane looks at its chains. The one without room is this call's.
    let held = &mut guard.own.chains[way];
    core.arena.get::<Chain>(Ptr::from_raw(held.chain)).unclaim();
    held.chain = core.arena.offset_of(chain).raw();
    true
}
