//! The mark of an image that was repaired: which repair, and whether it has ended. The undo file of the repair has the same number.
//!
//! State       in both copies of the superblock, before the mark of a node log.
//! Invariants  R1  if a repair has changed a block behind the superblocks, and has neither ended nor gone back, a copy says that it is
//!                 under way. Nobody but a repair writes such an image.
//!             R2  an image that says that its repair has ended is as that repair left it, but for what Linux has written since, whose
//!                 checkpoints tell.
//! Crash order begin: the old bytes of the superblocks are durable in the undo file, then the mark, then all else changes.
//!             end: image and undo file are durable, then the mark says "done". The first write of a mount removes it before.
//!             going back: the mark says so; all else is durable, then the superblocks get their old bytes.

use super::{checked, rewrite_unprepared};
use crate::device::Device;
use crate::format::{REPAIR_BEGUN, REPAIR_DONE, REPAIR_UNDONE, Superblock};
use heddle_vfs::Result;
use std::hash::{BuildHasher, RandomState};

/// The number of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepairId(pub u64);

impl RepairId {
    /// A number that no other repair has.
    pub(crate) fn new() -> RepairId {
        // Each state has its own keys, from the system's random numbers.
        RepairId(RandomState::new().hash_one(()))
    }
}

/// What an image says of its last repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RepairState {
    UnderWay,
    /// Old bytes are being restored.
    GoingBack,
    Done,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RepairMark {
    pub(crate) id: RepairId,
    pub(crate) state: RepairState,
}

impl RepairMark {
    fn of(superblock: &Superblock) -> Option<RepairMark> {
        let state = match superblock.repair_mark {
            REPAIR_BEGUN => RepairState::UnderWay,
            REPAIR_UNDONE => RepairState::GoingBack,
            REPAIR_DONE => RepairState::Done,
            _ => return None,
        };
        Some(RepairMark { id: RepairId(superblock.repair_id.get()), state })
    }

    /// The image has something old and something new.
    pub(crate) fn is_half(self) -> bool {
        self.state != RepairState::Done
    }
}

/// The mark. A cut between the two copies leaves it on one: a half repaired image counts on either.
pub(crate) fn read(device: &Device) -> Option<RepairMark> {
    let marks: Vec<_> =
        (0..2).filter_map(|copy| checked(device, copy).ok()).map(|found| RepairMark::of(&found)).collect();
    let half = marks.iter().find(|mark| mark.is_some_and(RepairMark::is_half));
    half.or(marks.first()).copied().flatten()
}

/// Returns true if both whole copies have this mark, and there is one.
pub(crate) fn is_on_all(device: &Device, mark: RepairMark) -> bool {
    let mut whole = (0..2).filter_map(|copy| checked(device, copy).ok()).peekable();
    whole.peek().is_some() && whole.all(|found| RepairMark::of(&found) == Some(mark))
}

/// The first change of a block removes the mark before, durably: no undo file of a repair counts any more.
pub(crate) fn forget_at_first_write(device: &Device) {
    if read(device).is_some() {
        device.prepare_by(|device| write(device, None));
    }
}

/// Writes the mark to both copies, or removes it. Durable when this returns.
///
/// # Errors
/// [`heddle_vfs::Error::Io`].
pub(crate) fn write(device: &Device, mark: Option<RepairMark>) -> Result<()> {
    let order = if mark.is_some_and(RepairMark::is_half) { [0, 1] } else { [1, 0] };
    let (bytes, id) = match mark {
        Some(RepairMark { id, state: RepairState::UnderWay }) => (REPAIR_BEGUN, id),
        Some(RepairMark { id, state: RepairState::GoingBack }) => (REPAIR_UNDONE, id),
        Some(RepairMark { id, state: RepairState::Done }) => (REPAIR_DONE, id),
        None => ([0; REPAIR_BEGUN.len()], RepairId(0)),
    };
    rewrite_unprepared(device, order, |found| {
        found.repair_mark = bytes;
        found.repair_id.set(id.0);
    })
}
