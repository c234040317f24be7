//! A writer's counts: blocks, nodes and inodes in use, and the blocks that users may have.

pub(crate) mod fsync_tracker;

use crate::format::CheckpointHead;
use crate::ids::BlockAddr;
use crate::segments::Segments;
use crate::space::fsync_tracker::Since;
use heddle_vfs::{Error, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts of what is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Nodes, data, and reserved pages.
    pub(crate) blocks: u64,
    pub(crate) nodes: u64,
    pub(crate) inodes: u64,
}

impl Counts {
    /// The counts of a checkpoint.
    pub(crate) fn of(head: &CheckpointHead) -> Counts {
        Counts {
            blocks: head.blocks_valid.get(),
            nodes: u64::from(head.nodes_valid.get()),
            inodes: u64::from(head.inodes_valid.get()),
        }
    }
}

/// The counts that a change has taken, less those that it has freed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Taken {
    pub(crate) blocks: i64,
    pub(crate) nodes: i64,
    pub(crate) inodes: i64,
    /// Blocks taken, including those that were freed again.
    pub(crate) ever: u64,
}

/// The space of an image that is open for writing.
pub(crate) struct Space {
    pub(crate) segments: Segments,
    pub(crate) blocks_user: u64,
    pub(crate) since: Since,
    counted: Mutex<Counted>,
}

struct Counted {
    now: Counts,
    /// Blocks in use at the last checkpoint or log checkpoint, plus all blocks taken since, including those that were
    /// freed again.
    last: u64,
    taken: u64,
    /// Blocks that changes under way may still take.
    aside: u64,
}

impl Counted {
    fn begin_anew(&mut self) {
        (self.last, self.taken) = (self.now.blocks, 0);
    }
}

impl Space {
    pub(crate) fn new(segments: Segments, blocks_user: u64, counts: Counts) -> Space {
        let counted = Mutex::new(Counted { now: counts, last: counts.blocks, taken: 0, aside: 0 });
        Space { segments, blocks_user, since: Since::default(), counted }
    }

    fn locked(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts in use, without those of changes under way.
    pub(crate) fn counts(&self) -> Counts {
        self.locked().now
    }

    /// Returns true if so many blocks could be reserved now.
    pub(crate) fn has(&self, blocks: u64) -> bool {
        let counted = self.locked();
        counted.now.blocks.saturating_add(counted.aside).saturating_add(blocks) <= self.blocks_user
    }

    /// Returns true if there is space for everything in the last checkpoint or log checkpoint and, in addition, for
    /// all changes since. After a crash both may exist: a new name in the place of a removed one may need a
    /// block then, and its directory nodes.
    pub(crate) fn can_roll_forward(&self) -> bool {
        let names = self.since.blocks_for_names_left();
        let counted = self.locked();
        counted.last + counted.taken + names <= self.blocks_user
    }

    /// Called when a log checkpoint is valid.
    pub(crate) fn log_checkpointed(&self) {
        self.since.log_checkpointed();
        self.locked().begin_anew();
    }

    /// Called when a checkpoint is valid. Returns blocks that are not in use any more, in runs.
    pub(crate) fn checkpointed(&self) -> Vec<(BlockAddr, u32)> {
        let freed = self.segments.checkpointed();
        self.since.checkpointed();
        self.locked().begin_anew();
        freed
    }

    /// Reserves so many blocks for a change (H1 of `change`).
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn set_aside(&self, blocks: u64) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let mut counted = self.locked();
        if counted.now.blocks.saturating_add(counted.aside).saturating_add(blocks) > self.blocks_user {
            return Err(Error::NoSpace);
        }
        counted.aside += blocks;
        Ok(())
    }

    /// Ends a change for which so many blocks were reserved.
    pub(crate) fn end_reservation(&self, aside: u64, taken: Taken) {
        let mut counted = self.locked();
        counted.aside -= aside;
        counted.taken += taken.ever;
        let now = &mut counted.now;
        now.blocks = now.blocks.saturating_add_signed(taken.blocks);
        now.nodes = now.nodes.saturating_add_signed(taken.nodes);
        now.inodes = now.inodes.saturating_add_signed(taken.inodes);
    }

    /// Adds to the counts of the checkpoint.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a count would become negative.
    pub(crate) fn recount(&self, blocks: i64, nodes: i64, inodes: i64) -> Result<()> {
        let now = &mut self.locked().now;
        let less = || Error::Corrupt("the node log takes away more than the image has".into());
        for (count, change) in [(&mut now.blocks, blocks), (&mut now.nodes, nodes), (&mut now.inodes, inodes)]
        {
            *count = count.checked_add_signed(change).ok_or_else(less)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Nid;
    use crate::segments::tests::table;

    const IN_USE: Counts = Counts { blocks: 90, nodes: 20, inodes: 10 };

    fn space() -> Space {
        Space::new(table(1, 8, &[]), 100, IN_USE)
    }

    fn taken(blocks: i64, nodes: i64, inodes: i64, ever: u64) -> Taken {
        Taken { blocks, nodes, inodes, ever }
    }

    #[test]
    fn blocks_in_use_and_set_aside_never_exceed_what_users_have() {
        let space = space();
        assert!(space.has(10) && !space.has(11) && !space.has(u64::MAX));
        assert_eq!((space.set_aside(6), space.set_aside(5)), (Ok(()), Err(Error::NoSpace)));
        assert_eq!(
            (space.set_aside(4), space.set_aside(0), space.set_aside(1)),
            (Ok(()), Ok(()), Err(Error::NoSpace))
        );
        assert_eq!((space.has(0), space.has(1), space.counts()), (true, false, IN_USE));
        space.end_reservation(6, taken(3, 2, 1, 5));
        assert_eq!(space.counts(), Counts { blocks: 93, nodes: 22, inodes: 11 });
        assert!(space.has(3) && !space.has(4), "four are set aside still");
        space.end_reservation(4, taken(-100, -1, -1, 0));
        assert_eq!(space.counts(), Counts { blocks: 0, nodes: 21, inodes: 10 });
        assert!(space.has(100));
    }

    #[test]
    fn what_came_since_the_checkpoint_must_fit_beside_what_it_has() {
        let space = space();
        space.set_aside(10).unwrap();
        space.end_reservation(10, taken(2, 0, 0, 10));
        assert!(space.can_roll_forward(), "10 came, 8 went again");
        space.since.left(Nid(5), b"name");
        assert!(!space.can_roll_forward(), "a name that comes back may need a block");
        space.log_checkpointed();
        assert!(space.can_roll_forward());
        space.since.left(Nid(5), b"name");
        space.set_aside(8).unwrap();
        space.end_reservation(8, taken(-40, 0, 0, 8));
        assert!(!space.can_roll_forward(), "what went is there after a crash");
        assert!(space.checkpointed().is_empty());
        assert!(space.can_roll_forward());
    }

    #[test]
    fn names_that_come_back_have_room_for_nodes_of_their_directories() {
        let space = space();
        let left = |dir: u32, name: &[u8]| {
            space.since.left(Nid(dir), name);
            space.can_roll_forward()
        };
        assert_eq!([left(5, b"1"), left(5, b"2"), left(6, b"1")], [true; 3], "ten blocks are free");
        assert_eq!([left(6, b"2"), left(6, b"3"), left(6, b"4"), left(6, b"5")], [true, true, true, false]);
    }

    #[test]
    fn a_recount_never_goes_below_nothing() {
        let space = space();
        assert_eq!(space.recount(-90, 5, -10), Ok(()));
        assert_eq!(space.counts(), Counts { blocks: 0, nodes: 25, inodes: 0 });
        for change in [(-1, 0, 0), (0, -26, 0), (0, 0, -1)] {
            assert!(
                matches!(space.recount(change.0, change.1, change.2), Err(Error::Corrupt(_))),
                "{change:?}"
            );
        }
    }
}
