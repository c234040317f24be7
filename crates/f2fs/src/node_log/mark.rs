//! The mark of an image: "a node log may be newer than this image", and the *pairing*, a number that the head
//! of that log has too.
//!
//! State       in both copies of the superblock, the last reserved bytes. The first whole copy is valid: it is marked before the second
//!             one, and loses the mark after it.
//! Invariants  P1  if records of a log count, its image is marked with the pairing in its head.
//!             P2  each mount that writes records uses a new pairing. So does a log whose records are discarded: an older copy of the
//!                 image or of the log has another pairing, or none.
//!             P3  an image without a mark is complete.
//! Crash order first record of a mount: the head, without records, gets the pairing; the mark; the head is set active.
//!             Unmount, mount, and discarding: the head is set clean; the mark is removed.
//!
//! | a cut between | the image | the head | the next mount |
//! |---|---|---|---|
//! | pairing and mark | unmarked | no records, new pairing | begins the log anew |
//! | mark and records | marked | no records, same pairing | finds no records; removes the mark |
//! | fold and end of the mark | marked | no records, same pairing | the same |
//! | discarding and end of the mark | marked | no records, new pairing | refuses: the records must be discarded once more |

use crate::device::Device;
use crate::format::{LOG_MARK, Superblock};
use crate::superblock::rewrite;
use heddle_vfs::Result;
use std::hash::{BuildHasher, RandomState};

/// A number that an image and its log share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pairing(pub(super) u64);

impl Pairing {
    /// A pairing that no image and no log has.
    pub(super) fn new() -> Pairing {
        // Each state has its own keys, from the system's random numbers.
        Pairing(RandomState::new().hash_one(()))
    }
}

/// The pairing in the superblock; `None`: the image needs no log.
pub(crate) fn of(superblock: &Superblock) -> Option<Pairing> {
    (superblock.node_log_mark == LOG_MARK).then(|| Pairing(superblock.node_log_pairing.get()))
}

/// Writes the mark to both copies, or removes it. Durable when this returns.
///
/// # Errors
/// [`heddle_vfs::Error::Io`].
pub(crate) fn write(device: &Device, mark: Option<Pairing>) -> Result<()> {
    let order = if mark.is_some() { [0, 1] } else { [1, 0] };
    rewrite(device, order, |found| put(found, mark))
}

/// Sets the mark in a superblock in memory.
pub(crate) fn put(found: &mut Superblock, mark: Option<Pairing>) {
    found.node_log_mark = mark.map_or([0; LOG_MARK.len()], |_| LOG_MARK);
    found.node_log_pairing.set(mark.map_or(0, |Pairing(number)| number));
}
