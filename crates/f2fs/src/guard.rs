//! Who may be inside: calls, side by side, or a checkpoint, alone; and which inodes a call has to itself.
//!
//! Lock order  the gate, the latch of renames, inodes by stripe, a range of one (`ranges`), the chain of fsynced nodes, and then the
//!             locks of the tables: a shard of nodes, and under it those of the NAT or of the segments.
//! Invariants  K1  a call holds the stripes of all inodes that it changes for writing, of one that it reads for reading, until it
//!                 is done: it is seen whole or not at all.
//!             K2  a checkpoint runs while no call is inside: what is on the device after a crash is what calls had done that had returned
//!                 before one instant.

use crate::commit::Ledger;
use crate::ids::Nid;
use crate::media::Media;
use crate::node_log::NodeLog;
use crate::steps;
use crate::volume::F2fs;
use heddle_vfs::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks that inodes share.
pub(crate) const STRIPES: usize = 4096;
/// Pages in memory at which a checkpoint is made.
const PAGES_MAX: usize = 1 << 15;
/// Segments that are kept free: each log may fill one, and the cleaner needs some to begin with.
const SEGMENTS_KEPT: usize = 10;
/// Segments that are cleaned between two checkpoints.
const SEGMENTS_A_ROUND: usize = 8;
/// Rounds of cleaning before a writer is told that there is no space.
const ROUNDS: usize = 64;

/// See the module.
pub(crate) struct Guards {
    gate: RwLock<()>,
    pub(crate) renames: Mutex<()>,
    stripes: Vec<RwLock<()>>,
}

impl Guards {
    pub(crate) fn new() -> Guards {
        let stripes = (0..STRIPES).map(|_| RwLock::default()).collect();
        Guards { gate: RwLock::default(), renames: Mutex::default(), stripes }
    }

    /// Which one is an inode's.
    pub(crate) fn stripe(nid: Nid) -> usize {
        nid.0 as usize % STRIPES
    }

    /// Inodes to read one of.
    pub(crate) fn shared(&self, nid: Nid) -> RwLockReadGuard<'_, ()> {
        self.stripes[Guards::stripe(nid)].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inodes to change.
    pub(crate) fn alone(&self, nids: &[Nid]) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut stripes: Vec<usize> = nids.iter().map(|nid| Guards::stripe(*nid)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.iter().map(|n| self.stripes[*n].write().unwrap_or_else(PoisonError::into_inner)).collect()
    }
}

impl F2fs {
    /// A call that changes nothing.
    pub(crate) fn inside(&self) -> RwLockReadGuard<'_, ()> {
        self.guards.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that changes something: there are segments enough for it, and for all that waits in memory.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NoSpace`]; [`Error::Io`] as [`F2fs::not_failed`].
    pub(crate) fn changing(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let space = self.media.space()?;
        for _ in 0..2 {
            self.not_failed()?;
            let inside = self.inside();
            if space.segments.free() >= needed(&self.media) && self.media.pages.count() < PAGES_MAX {
                return Ok(inside);
            }
            drop(inside);
            self.make_room()?;
        }
        Err(Error::NoSpace)
    }

    /// Runs what changes something, inside, all locks held: if it fails half-way (`steps`), nothing is changed or written down any more.
    pub(crate) fn watched<R>(&self, call: impl FnOnce() -> Result<R>) -> Result<R> {
        let before = steps::taken();
        let done = call();
        if matches!(done, Err(Error::Io(_) | Error::Corrupt(_))) && steps::taken() != before {
            // ORDERING: Relaxed, the gate and the inodes, which whoever writes this down must have, are let go behind it.
            self.failed.store(true, Relaxed);
        }
        done
    }

    /// # Errors
    /// [`Error::Io`] after a call, a checkpoint or an fsync that failed half-way.
    pub(crate) fn not_failed(&self) -> Result<()> {
        // ORDERING: Relaxed, one word that only ever becomes true; who misses it looks again before anything is written down.
        if self.failed.load(Relaxed) {
            return Err(Error::Io(
                "an earlier call failed half-way, so nothing is changed any more: mount it again to have what is durable".into(),
            ));
        }
        Ok(())
    }

    /// Nobody else is inside.
    fn quiet<R>(&self, work: impl FnOnce(&mut Ledger) -> Result<R>) -> Result<R> {
        let _alone = self.guards.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.not_failed()?;
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut ledger);
        if done.is_err() {
            self.failed.store(true, Relaxed); // ORDERING: Relaxed, see `not_failed`.
        }
        done
    }

    /// Everything that calls have done is durable when this returns: by an epoch of the node log, if there is one and it has room.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.not_failed()?;
        self.quiet(|ledger| if self.media.close_epoch()? { Ok(()) } else { self.media.commit(ledger, false) })
    }

    /// The same, and the device alone has all of it.
    pub(crate) fn fold(&self, unmounts: bool) -> Result<()> {
        self.not_failed()?;
        self.quiet(|ledger| self.media.commit(ledger, unmounts))
    }

    /// A checkpoint, and if that frees too little, cleaning. If only memory is full, an epoch is enough.
    fn make_room(&self) -> Result<()> {
        self.quiet(|ledger| {
            let media = &self.media;
            if media.space()?.segments.free() >= needed(media) && media.close_epoch()? {
                return Ok(());
            }
            media.commit(ledger, false)?;
            let segments = &media.space()?.segments;
            for _ in 0..ROUNDS {
                if segments.free() >= needed(media) + SEGMENTS_A_ROUND / 2 {
                    break;
                }
                let victims = segments.victims(SEGMENTS_A_ROUND, segments.free());
                if victims.is_empty() {
                    break;
                }
                let before = segments.free();
                for victim in victims {
                    media.clean(victim)?;
                }
                media.commit(ledger, false)?;
                if segments.free() <= before {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Segments that it takes to write what is in memory, and to go on.
pub(crate) fn needed(media: &Media) -> usize {
    // A page that gets its block changes a node. A fold writes those that the log has.
    let logged = media.nodes.log.as_ref().map_or(0, NodeLog::nodes);
    let blocks = 2 * media.pages.count() + media.nodes.changed() + logged;
    blocks / crate::format::SEGMENT_BLOCKS as usize + SEGMENTS_KEPT
}
