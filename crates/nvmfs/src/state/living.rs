//! Which inodes are alive. A claimed inode is still alive, because the claim may be withdrawn.

use crate::ids::LANES;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::Freeing;
use crate::state::papers::counts_handles_in_inode;
use crate::state::{lease, wait};
use heddle_arena::sync::spin_hint;
use heddle_vfs::{Error, Ino, Result};
use std::time::Instant;

impl Core {
    /// The living inode of this number.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is none.
    #[inline(always)]
    pub fn inode(&self, ino: Ino) -> Result<InodeRef<'_>> {
        let slot = self.slot(ino).ok_or(Error::Stale)?;
        if slot.volatile.lives() { Ok(slot) } else { self.if_it_lives_on(slot) }
    }

    /// Handles an inode that does not exist, or that is claimed and may stay alive.
    #[cold]
    fn if_it_lives_on<'c>(&'c self, slot: InodeRef<'c>) -> Result<InodeRef<'c>> {
        let generation = slot.volatile.generation();
        let lives = generation != 0 && !counts_handles_in_inode(self) && lives_on(self, slot, generation);
        lives.then_some(slot).ok_or(Error::Stale)
    }
}

/// Waits while another thread checks whether the inode of this generation has handles. Returns true if it
/// stays alive, false when it is freed. A claim alone frees nothing: a caller that has a handle finds the
/// inode alive. A dead claimer is settled. A stopped one is subject to the mount's patience, as the holder of
/// a lock is.
#[cold]
pub fn lives_on(core: &Core, inode: InodeRef<'_>, generation: u64) -> bool {
    let mine = lease::with_current(|_, lane| lane).unwrap_or(0);
    let (mut looks, began) = (0u32, Instant::now());
    loop {
        if inode.volatile.generation() != generation {
            return false;
        }
        if inode.volatile.lives() {
            return true;
        }
        let by = inode.volatile.claimer();
        // In `heddle` the claimer is a lane. 0: the claim was withdrawn since `lives` loaded it. Any other
        // number is a client's scribble, and the wait for it is limited as for any lock.
        if !counts_handles_in_inode(core) {
            let known = (1..=LANES).contains(&by);
            let ends = || core.lane(by).intent.freeing() == Some((inode.ino.0, Freeing::Begun));
            if known && (by == mine || ends()) {
                return false;
            }
            looks += 1;
            if looks > 1000
                && let Some(every) = wait::check_every()
            {
                std::thread::sleep(every / 100);
                if began.elapsed() >= every {
                    wait::held_up(core, by, began.elapsed());
                }
            }
        }
        spin_hint();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
