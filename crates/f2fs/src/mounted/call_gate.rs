//! The call gate: calls come in side by side, a checkpoint alone, and what comes in has room for what it makes dirty.
//!
//! Lock order  the gate, the latch of renames, inodes by stripe, a range of one (`range_lock`), the chain of fsynced nodes, and then the
//!             locks of the tables: a shard of nodes, and under it those of the NAT or of the segments.
//! Invariants  K1  a call holds the stripes of all inodes that it changes for writing, of one that it reads for reading, until it
//!                 is done: it is seen whole or not at all.
//!             K2  a checkpoint runs while no call is inside: what is on the device after a crash is what calls had done that had returned
//!                 before one instant.
//!             K3  free segments hold all that is dirty, all that the changes inside make so at most, and what cleaning and a checkpoint
//!                 need beside: a change that is let in never lacks a block for what it does, nor does the checkpoint behind it.

use super::guards::Inside;
use crate::change::{Change, Need};
use crate::checkpoint::commit::Ledger;
use crate::image::Media;
use crate::mounted::F2fs;
use crate::node_log::NodeLog;
use crate::segments::room::{Prefer, SECTIONS_KEPT};
use crate::steps;
use heddle_vfs::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, RwLockReadGuard};

/// Pages in memory at which a checkpoint is made.
const PAGES_MAX: usize = 1 << 15;
/// Changed nodes in memory at which one is made: 128 MiB.
const NODES_MAX: usize = 1 << 15;
/// Node numbers that came free at which one is made: what is remembered of each takes memory, and none is taken again before.
const FREED_MAX: usize = 1 << 17;
/// Segments that are cleaned between two checkpoints.
const SEGMENTS_A_ROUND: usize = 8;
/// Segments that are freed beyond what a call needs, so that the next calls need not clean.
const SEGMENTS_BEYOND: usize = SEGMENTS_A_ROUND / 2;
/// Rounds of cleaning at most, whatever they bring: what one frees the next may take, back and forth.
const ROUNDS_MAX: usize = 1 << 10;
/// Rounds in a row that may bring nothing: what is moved may fill the segments that it frees, and leave dead nodes in others, which the
/// next round then frees.
const IDLE_ROUNDS: usize = 3;

impl F2fs {
    /// A call that changes nothing.
    pub(crate) fn inside(&self) -> RwLockReadGuard<'_, ()> {
        self.guards.inside()
    }

    /// A change comes in that makes so many blocks dirty at most (K3).
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NoSpace`]; [`Error::Io`] as [`F2fs::not_failed`].
    pub(crate) fn changing(&self, dirty: u64) -> Result<Inside<'_>> {
        let space = self.media.space()?;
        let dirty = usize::try_from(dirty).map_err(|_| Error::NoSpace)?;
        loop {
            self.not_failed()?;
            let (inside, before) = self.guards.changing(dirty);
            let fits = space.segments.free() >= needed(&self.media, before.saturating_add(dirty));
            let nodes = &self.media.nodes;
            let in_memory = self.media.pages.count() < PAGES_MAX
                && nodes.changed() < NODES_MAX
                && nodes.nat.freed() < FREED_MAX;
            if fits && in_memory {
                return Ok(inside);
            }
            drop(inside);
            // Others may take the room that is made here before this one is in; it asks again then.
            self.make_room(dirty)?;
        }
    }

    /// Runs a change. `look` locks what it is about, finds out whether it may be, and says what it needs; that is set aside, and `run`
    /// does it. Only what `run` does is a step: all errors before leave everything as it was.
    pub(crate) fn change<L, R>(
        &self,
        at_first: Need,
        mut look: impl FnMut() -> Result<(L, Need)>,
        run: impl FnOnce(&Change<'_>, &L) -> Result<R>,
    ) -> Result<R> {
        let mut dirty = at_first.dirty_in_all();
        loop {
            let inside = self.changing(dirty)?;
            let (looked, need) = look()?;
            if need.dirty_in_all() > dirty {
                dirty = need.dirty_in_all();
                continue;
            }
            let change = match self.media.set_aside(need) {
                // Numbers that came free can be taken again behind a checkpoint.
                Err(Error::NoInodes) if self.media.nodes.nat.freed() > 0 => {
                    drop((looked, inside));
                    self.checkpoint()?;
                    continue;
                }
                change => change?,
            };
            return self.watched(|| run(&change, &looked));
        }
    }

    /// Runs what changes something, inside, all locks held: if it fails half-way (`steps`), nothing is changed or written down any more.
    pub(crate) fn watched<R>(&self, call: impl FnOnce() -> Result<R>) -> Result<R> {
        let before = steps::taken();
        let done = call();
        if done.is_err() && steps::taken() != before {
            // ORDERING: Relaxed, the gate and the inodes, which the writer of a checkpoint must have, are let go behind it.
            self.failed.store(true, Relaxed);
        }
        done
    }

    /// # Errors
    /// [`Error::Io`] after a call, a checkpoint or an fsync that failed half-way.
    pub(crate) fn not_failed(&self) -> Result<()> {
        // ORDERING: Relaxed, one word that only ever becomes true; a thread that misses it looks again before it writes anything to the
        // device.
        if self.failed.load(Relaxed) {
            return Err(Error::Io(
                "an earlier call failed half-way, so nothing is changed any more: mount it again to have what is durable".into(),
            ));
        }
        Ok(())
    }

    /// Nobody else is inside.
    fn quiet<R>(&self, work: impl FnOnce(&mut Ledger) -> Result<R>) -> Result<R> {
        let _alone = self.guards.quiet();
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

    /// Room for so many dirty blocks: a checkpoint, and if that frees too little, cleaning. If only memory is full, an epoch is enough.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is none to be made, and that alone: nothing has failed then.
    fn make_room(&self, dirty: usize) -> Result<()> {
        let has_room = self.quiet(|ledger| {
            let media = &self.media;
            let segments = &media.space()?.segments;
            if segments.free() >= needed(media, dirty) && media.close_epoch()? {
                return Ok(true);
            }
            media.commit(ledger, false)?;
            // Rounds in a row that brought no segment, and no block. What the call needs is worth any number of the former: some blocks a
            // round become a segment, although the log that they fill may just have taken one.
            let (mut slow, mut idle) = (0, 0);
            for _ in 0..ROUNDS_MAX {
                let (free, room) = (segments.free(), segments.room_blocks());
                let beyond = if slow < IDLE_ROUNDS { SEGMENTS_BEYOND } else { 0 };
                if free >= needed(media, dirty) + beyond || idle == IDLE_ROUNDS {
                    break;
                }
                let prefer = if idle == 0 { Prefer::Emptiest } else { Prefer::Cheapest };
                let victims = segments.victims(SEGMENTS_A_ROUND, prefer);
                if victims.is_empty() {
                    break;
                }
                for victim in victims {
                    media.clean(victim)?;
                }
                media.commit(ledger, false)?;
                slow = if segments.free() <= free { slow + 1 } else { 0 };
                idle = if segments.room_blocks() <= room { idle + 1 } else { 0 };
            }
            Ok(segments.free() >= needed(media, dirty))
        })?;
        if has_room { Ok(()) } else { Err(Error::NoSpace) }
    }
}

/// Segments that it takes to write what is in memory, and what makes so many blocks dirty, and to go on.
fn needed(media: &Media, dirty: usize) -> usize {
    // A page that gets its block changes a node. A fold writes those that the log has, and a mount those that fsyncs have written.
    let logged = media.nodes.log.as_ref().map_or(0, NodeLog::nodes);
    let fsynced = media.space.as_ref().map_or(0, |space| space.since.nodes_ahead());
    let kept = SECTIONS_KEPT * media.geometry.segments_per_section as usize;
    let blocks = 2 * media.pages.count() + media.nodes.changed() + logged + fsynced;
    blocks.saturating_add(dirty).div_ceil(crate::format::SEGMENT_BLOCKS as usize) + kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_log::LogState;
    use crate::variant::Variant;
    use crate::volume::LogRegion;
    use heddle_pmem::{OpenOptions, Region};
    use heddle_vfs::{Cred, FileKind, FileSystem, Ino, Name, NewNode};
    use std::fs::File;

    /// An empty image of each system.
    fn each(test: impl Fn(&F2fs)) {
        for variant in Variant::ALL {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let path = dir.path().join("image");
            File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
            crate::make_image(&path, "", &|_, _| ()).unwrap();
            let log = || LogRegion {
                region: Region::create(dir.path().join("nvm"), 1 << 20, &OpenOptions::default()).unwrap(),
                state: LogState::Free,
                discard: false,
            };
            let fs = match variant.has_node_log() {
                true => F2fs::open_with_log(&path, variant, log()),
                false => F2fs::open_as(&path, variant),
            };
            test(&fs.unwrap());
        }
    }

    /// Makes something and removes it.
    fn come_and_go(fs: &F2fs) -> Result<()> {
        let (root, name) = (Cred::root(), Name::new(b"pipe")?);
        fs.make(&root, Ino::ROOT, name, NewNode { kind: FileKind::Fifo, perm: 0o600, rdev: 0, target: &[] })?;
        fs.unlink(&root, Ino::ROOT, name)
    }

    #[test]
    fn a_number_that_came_free_is_taken_when_no_other_is_left() {
        each(|fs| {
            let nat = &fs.media.nodes.nat;
            // As if nearly all numbers were in use; the first four are nobody's.
            let used = fs.media.geometry.nids() as usize - 4 - 20;
            let aside = nat.set_aside(&fs.media.device, used).unwrap();
            (0..100).for_each(|n| come_and_go(fs).unwrap_or_else(|error| panic!("{n}: {error}")));
            nat.give_back(&aside);
        });
    }

    #[test]
    fn numbers_that_came_free_are_remembered_up_to_a_limit() {
        each(|fs| {
            let nat = &fs.media.nodes.nat;
            let aside = nat.set_aside(&fs.media.device, FREED_MAX - 1).unwrap();
            for (nid, _) in &aside {
                nat.free(&fs.media.device, *nid).unwrap();
            }
            assert_eq!(nat.freed(), FREED_MAX - 1);
            (0..3).for_each(|_| come_and_go(fs).unwrap());
            assert!(nat.freed() < 3, "{}", nat.freed());
            assert!(!fs.has_failed());
        });
    }
}
