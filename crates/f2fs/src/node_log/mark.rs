//! The mark of an image: "a node log may have what I have not", and the number that the head of that log has too, the *pairing*.
//!
//! State       in both copies of the superblock, the last reserved bytes. The first whole copy counts: it is marked before the second one,
//!             and loses the mark behind it.
//! Invariants  P1  if records of a log count, its image is marked with the pairing of its head.
//!             P2  each mount that writes records takes a new pairing for them, and so does a log whose records are given up: a copy of the
//!                 image or of the log from before has another one, or none.
//!             P3  an image without a mark is whole.
//! Crash order first record of a mount: the head, without records, gets the pairing; the mark; the head says that records count.
//!             Unmount, mount, and giving up: the head says that no record counts; the mark goes.
//!
//! | a cut between | the image | the head | the next mount |
//! |---|---|---|---|
//! | pairing and mark | unmarked | no records, new pairing | begins the log anew |
//! | mark and records | marked | no records, same pairing | finds nothing; the mark goes |
//! | fold and end of the mark | marked | no records, same pairing | the same |
//! | giving up and end of the mark | marked | no records, new pairing | refuses: the records are to be given up once more |

use crate::device::Device;
use crate::format::{LOG_MARK, Superblock};
use crate::superblock::rewrite;
use heddle_vfs::Result;
use std::hash::{BuildHasher, RandomState};

/// A number that an image and its log share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pairing(pub(super) u64);

impl Pairing {
    /// One that no image and no log has.
    pub(super) fn new() -> Pairing {
        // Each state has keys of its own, from the system's random numbers.
        Pairing(RandomState::new().hash_one(()))
    }
}

/// What the image says: `None`, it needs no log.
pub(crate) fn of(superblock: &Superblock) -> Option<Pairing> {
    (superblock.log_mark == LOG_MARK).then(|| Pairing(superblock.log_pairing.get()))
}

/// Has both copies say that a log may have what the image has not, or that none has. Durable when this returns.
///
/// # Errors
/// [`heddle_vfs::Error::Io`].
pub(crate) fn write(device: &Device, mark: Option<Pairing>) -> Result<()> {
    let order = if mark.is_some() { [0, 1] } else { [1, 0] };
    rewrite(device, order, |found| put(found, mark))
}

/// The same of a superblock in memory.
pub(crate) fn put(found: &mut Superblock, mark: Option<Pairing>) {
    found.log_mark = mark.map_or([0; LOG_MARK.len()], |_| LOG_MARK);
    found.log_pairing.set(mark.map_or(0, |Pairing(number)| number));
}
