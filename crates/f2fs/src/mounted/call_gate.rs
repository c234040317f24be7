//! The call gate: it admits calls together, and a checkpoint alone. A call that it admits has room for the
//! blocks that it makes dirty.
//!
//! Lock order  the call gate, the latch of renames, inodes by stripe, a range of one (`range_lock`), the fsync chain, and then the
//!             locks of the tables: a shard of nodes, and under it those of the NAT or of the segments.
//! Invariants  K1  until it is done, a call holds the stripes of all inodes that it changes for writing, and of one that it reads for
//!                 reading. So other calls see it as a whole or not at all.
//!             K2  a checkpoint runs while no call is inside. So after a crash the device has exactly the effects of the calls that had
//!                 returned before one instant.
//!             K3  free segments have room for all dirty blocks, for those that the changes inside make dirty at most, and for cleaning
//!                 and a checkpoint. So an admitted change never lacks a block, and neither does the checkpoint after it.

use super::guards::Inside;
use crate::change::{Change, Need};
use crate::checkpoint::commit::CheckpointState;
use crate::image::Media;
use crate::mounted::F2fs;
use crate::node_log::NodeLog;
use crate::segments::room::{Prefer, SECTIONS_RESERVED};
use crate::steps;
use heddle_vfs::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{PoisonError, RwLockReadGuard};

/// Number of pages in memory that causes a checkpoint.
const PAGES_MAX: usize = 1 << 15;
/// Number of changed nodes in memory that causes a checkpoint: 128 MiB.
const NODES_MAX: usize = 1 << 15;
/// Number of freed node numbers that causes a checkpoint: each takes memory, and none is reused before a
/// checkpoint.
const FREED_MAX: usize = 1 << 17;
/// Number of segments cleaned between two checkpoints.
const SEGMENTS_A_ROUND: usize = 8;
/// Number of segments freed beyond the need of a call, so that the next calls need not clean.
const SEGMENTS_BEYOND: usize = SEGMENTS_A_ROUND / 2;
/// Most rounds of cleaning: the segments that one round frees the next may take, for ever.
const ROUNDS_MAX: usize = 1 << 10;
/// Most consecutive rounds without a gain: moved blocks may fill the segments that the round frees, and leave
/// dead nodes in others, which the next round frees.
const IDLE_ROUNDS: usize = 3;

/// Work under way. If it is dropped, the work has ended by an error or a panic, and the file system has failed.
struct HalfDone<'f> {
    failed: &'f AtomicBool,
    /// Nothing has failed if the thread has taken no step beyond these.
    after_step: Option<u64>,
}

impl HalfDone<'_> {
    fn unless_done<R>(self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let done = work()?;
        std::mem::forget(self);
        Ok(done)
    }
}

impl Drop for HalfDone<'_> {
    fn drop(&mut self) {
        if self.after_step.is_none_or(|steps| steps::taken() != steps) {
            // ORDERING: Relaxed, the call gate and the inodes, which the writer of a checkpoint needs, are
            // released after it.
            self.failed.store(true, Relaxed);
        }
    }
}

impl F2fs {
    /// Enters the call gate for a call that changes nothing.
    pub(crate) fn inside(&self) -> RwLockReadGuard<'_, ()> {
        self.guards.inside()
    }

    /// Enters the call gate for a change that makes at most so many blocks dirty (K3).
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::NoSpace`]; [`Error::Io`] as for [`F2fs::not_failed`].
    pub(crate) fn changing(&self, dirty: u64) -> Result<Inside<'_>> {
        let space = self.media.space()?;
        let dirty = usize::try_from(dirty).map_err(|_| Error::NoSpace)?;
        loop {
            self.not_failed()?;
            let (inside, before) = self.guards.changing(dirty);
            // Counted before the free segments: a page that another thread writes meanwhile counts twice rather than not at all.
            let needed = needed(&self.media, before.saturating_add(dirty));
            let fits = space.segments.free() >= needed;
            let nodes = &self.media.nodes;
            let in_memory = self.media.pages.count() < PAGES_MAX
                && nodes.changed() < NODES_MAX
                && nodes.nat.freed() < FREED_MAX;
            if fits && in_memory {
                return Ok(inside);
            }
            drop(inside);
            // Other calls may take the room that is made here before this one enters; then it asks again.
            self.make_room(dirty)?;
        }
    }

    /// Runs a change. `look` locks the inodes, checks that the change is permitted, and returns its need.
    /// That is reserved, and `run` makes the change. Only `run` takes steps: an error before it leaves
    /// everything unchanged.
    pub(crate) fn change<L, R>(
        &self,
        first_guess: Need,
        mut look: impl FnMut() -> Result<(L, Need)>,
        run: impl FnOnce(&Change<'_>, &L) -> Result<R>,
    ) -> Result<R> {
        let mut dirty = first_guess.dirty_in_all();
        loop {
            let inside = self.changing(dirty)?;
            let (looked, need) = look()?;
            if need.dirty_in_all() > dirty {
                dirty = need.dirty_in_all();
                continue;
            }
            let change = match self.media.set_aside(need) {
                // Freed numbers can be taken again after a checkpoint.
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

    /// Runs the steps of a change, with all locks held. If it fails half-way (`steps`), no further change is
    /// made or written to the device.
    pub(crate) fn watched<R>(&self, call: impl FnOnce() -> Result<R>) -> Result<R> {
        let half = HalfDone { failed: &self.failed, after_step: Some(steps::taken()) };
        half.unless_done(call)
    }

    /// The same for work that has no harmless beginning.
    pub(crate) fn watched_from_the_start<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        HalfDone { failed: &self.failed, after_step: None }.unless_done(work)
    }

    /// Fails if the file system has failed.
    ///
    /// # Errors
    /// [`Error::Io`] after a call, a checkpoint or an fsync that failed half-way, or a write to the device that failed.
    pub(crate) fn not_failed(&self) -> Result<()> {
        self.media.device.not_lost()?;
        // ORDERING: Relaxed, one word that only ever becomes true; a thread that misses it loads it again
        // before it writes to the device.
        if self.failed.load(Relaxed) {
            return Err(Error::Io(
                "an earlier call failed half-way, so nothing is changed any more: mount it again to have what is durable".into(),
            ));
        }
        Ok(())
    }

    /// Runs `work` while no call is inside.
    fn quiet<R>(&self, work: impl FnOnce(&mut CheckpointState) -> Result<R>) -> Result<R> {
        let _alone = self.guards.quiet();
        self.not_failed()?;
        let mut state = self.checkpoint_state.lock().unwrap_or_else(PoisonError::into_inner);
        self.watched_from_the_start(|| work(&mut state))
    }

    /// Makes the effects of all finished calls durable: by a log checkpoint of the node log, if there is one with
    /// room.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.not_failed()?;
        self.quiet(|state| match self.media.write_log_checkpoint()? {
            true => Ok(()),
            false => self.media.commit(state, false),
        })
    }

    /// The same, on the device alone.
    pub(crate) fn fold(&self, unmounts: bool) -> Result<()> {
        self.not_failed()?;
        self.quiet(|state| self.media.commit(state, unmounts))
    }

    /// Makes room for so many dirty blocks: by a checkpoint, and if that is too little, by cleaning. If only
    /// memory is full, a log checkpoint is enough.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is no room, and no other error: the file system has not failed then.
    fn make_room(&self, dirty: usize) -> Result<()> {
        let has_room = self.quiet(|state| {
            let media = &self.media;
            let segments = &media.space()?.segments;
            if segments.free() >= needed(media, dirty) && media.write_log_checkpoint()? {
                return Ok(true);
            }
            media.commit(state, false)?;
            // Consecutive rounds that gained no segment, and no block. If the call needs room, any number of
            // the former is worth it: a few blocks a round add up to a segment, even if the log has just
            // taken one.
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
                media.commit(state, false)?;
                slow = if segments.free() <= free { slow + 1 } else { 0 };
                idle = if segments.room_blocks() <= room { idle + 1 } else { 0 };
            }
            Ok(segments.free() >= needed(media, dirty))
        })?;
        if has_room { Ok(()) } else { Err(Error::NoSpace) }
    }
}

/// Number of segments needed to write all that is in memory, and so many dirty blocks, and to go on.
fn needed(media: &Media, dirty: usize) -> usize {
    // A page that gets its block changes a node. A fold writes the nodes in the log, and a mount those that
    // fsyncs have written.
    let logged = media.nodes.log.as_ref().map_or(0, NodeLog::nodes);
    let fsynced = media.space.as_ref().map_or(0, |space| space.since.nodes_ahead());
    let kept = SECTIONS_RESERVED * media.geometry.segments_per_section as usize;
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

    fn image() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
        crate::make_image(&path, "", &|_, _| ()).unwrap();
        (dir, path)
    }

    /// Runs a test on an empty image of each variant.
    fn each(test: impl Fn(&F2fs)) {
        for variant in Variant::ALL {
            let (dir, path) = image();
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

    /// Makes a file and removes it.
    fn come_and_go(fs: &F2fs) -> Result<()> {
        let (root, name) = (Cred::root(), Name::new(b"pipe")?);
        fs.make(&root, Ino::ROOT, name, NewNode { kind: FileKind::Fifo, perm: 0o600, rdev: 0, target: &[] })?;
        fs.unlink(&root, Ino::ROOT, name)
    }

    /// Runs work that panics.
    fn panics(work: impl FnOnce() -> Result<()>) {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        assert!(caught.is_err());
    }

    #[test]
    fn what_a_panic_left_half_done_is_not_made_durable() {
        let (_dir, path) = image();
        let fs = F2fs::open_for_writing(&path).unwrap();
        let root = crate::inode::nid_of(Ino::ROOT).unwrap();
        let look = || Ok(((), Need::NONE));
        panics(|| fs.change(Need::NONE, look, |_, ()| panic!("before the first step")));
        come_and_go(&fs).unwrap();
        fs.sync().unwrap();
        panics(|| {
            fs.change(Need::NONE, look, |change, ()| {
                change.change_inode(root, |inode| inode.uid.set(77))?;
                panic!("half-way")
            })
        });
        assert!(fs.sync().is_err() && fs.unmount().is_err());
        drop(fs);
        let fs = F2fs::open_for_writing(&path).unwrap();
        assert_eq!(fs.getattr(Ino::ROOT).unwrap().uid, 0);
        panics(|| fs.quiet(|_| panic!("in a checkpoint")));
        assert!(fs.unmount().is_err());
    }

    #[test]
    fn a_number_that_came_free_is_taken_when_no_other_is_left() {
        each(|fs| {
            let nat = &fs.media.nodes.nat;
            // As if nearly all numbers were in use; the first four are not available.
            let used = fs.media.geometry.nids() as usize - 4 - 20;
            let aside = nat.set_aside(&fs.media.device, used).unwrap();
            (0..100).for_each(|n| come_and_go(fs).unwrap_or_else(|error| panic!("{n}: {error}")));
            nat.give_back(&aside);
        });
    }

    #[test]
    fn segments_are_needed_for_all_in_memory_and_to_clean() {
        each(|fs| {
            let name = Name::new(b"file").unwrap();
            let flags = heddle_vfs::OpenFlags::READ_WRITE;
            let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o600, flags).unwrap();
            fs.sync().unwrap();
            // What is kept for cleaning, and 512 blocks a segment; `there`: what is to be written besides.
            let is_needed = |there: usize| {
                for dirty in [0, 1, 511, 512, 513, 1024 - there, 1025 - there, 5000] {
                    let segments = (there + dirty).div_ceil(512);
                    assert_eq!(needed(&fs.media, dirty), SECTIONS_RESERVED + segments, "{there} {dirty}");
                }
            };
            let media = &fs.media;
            let written = || {
                let logged = media.nodes.log.as_ref().map_or(0, NodeLog::nodes);
                logged + media.space.as_ref().map_or(0, |space| space.since.nodes_ahead())
            };
            is_needed(media.nodes.changed() + written());
            // A page changes the node that leads to it.
            fs.write(&file, 0, &[5; 300 * 4096]).unwrap();
            assert!(media.nodes.changed() > 0 && media.pages.count() == 300);
            is_needed(2 * 300 + media.nodes.changed() + written());
            fs.fsync(&file, false).unwrap();
            assert!(written() > 0 && media.pages.count() == 0);
            is_needed(media.nodes.changed() + written());
            fs.release(file);
        });
        // Sections of three segments.
        let (_dir, path) = image();
        let mut fs = F2fs::open(&path).unwrap();
        fs.media.geometry.segments_per_section = 3;
        assert_eq!(needed(&fs.media, 1), 3 * SECTIONS_RESERVED + 1);
    }

    #[test]
    fn a_file_is_refused_when_all_numbers_are_in_use() {
        each(|fs| {
            let nat = &fs.media.nodes.nat;
            let aside = nat.set_aside(&fs.media.device, fs.media.geometry.nids() as usize - 4).unwrap();
            assert_eq!(come_and_go(fs), Err(Error::NoInodes));
            nat.give_back(&aside[..1]);
            come_and_go(fs).unwrap();
            nat.give_back(&aside[1..]);
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
            (0..2).for_each(|_| come_and_go(fs).unwrap());
            assert!(nat.freed() < 3, "{}", nat.freed());
            assert!(!fs.has_failed());
        });
    }
}
