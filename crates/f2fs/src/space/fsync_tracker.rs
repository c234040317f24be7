//! The state that an fsync needs about the time since the last checkpoint: for which files their own nodes
//! are enough.
//!
//! The nodes of a file, marked and found again after a crash, contain its content and its inode, and for a
//! new file its one name. They do not record that another name or a node was removed, and they name a
//! directory that must exist. Where that matters, an fsync makes a checkpoint. In a node log, records also
//! tell that nodes were freed.
//!
//! State       one mutex, and a count. A checkpoint or a log checkpoint clears both while no call is inside.
//! Invariants  S1  before the first checkpoint of a mount every fsync makes a checkpoint: behind the next block of the current segment of
//!                 nodes there may be nodes that were marked before the mount and have the same checkpoint version.
//! Source      F2FS paper (FAST '15) section 2.4.2; Linux falls back to a checkpoint in the same cases, and in some fewer.

use crate::ids::{Nid, Nids};
use crate::inode::Inode;
use heddle_vfs::FileKind;
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most names that are kept.
const LEFT_MAX: usize = 1 << 16;

/// New nodes that may lead to a new page of a directory.
const NODES_TO_PAGE: usize = 2;

/// The state for fsyncs.
#[derive(Default)]
pub(crate) struct Since {
    state: Mutex<State>,
    /// Number of nodes that fsyncs have written and only the next mount would recover. Writers read it
    /// without the mutex.
    ahead: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// True: there was a checkpoint in this mount (S1).
    begun: bool,
    /// New inodes.
    born: Nids,
    /// Inodes with a change that is not in their nodes: of a name.
    beyond: Nids,
    /// Inodes that have lost nodes.
    lessened: Nids,
    /// Names that were removed, or lead to another file now: their directories and checksums.
    left: HashSet<(Nid, u32)>,
    /// Their directories.
    left_dirs: Nids,
    /// True: more names than are kept.
    left_many: bool,
    /// Files with pages on the device that may not be durable.
    spilled: Nids,
}

/// How an fsync makes a file durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Durable {
    /// By a checkpoint.
    ByCheckpoint,
    /// By its nodes.
    ByNodes {
        /// True: its name must be recovered too.
        with_name: bool,
    },
}

impl State {
    /// Returns true if the name of a new file led to another file before. Then that file's removal must be
    /// durable first. Another name with the same checksum counts as well, which costs a checkpoint.
    fn has_left(&self, parent: Nid, inode: &Inode) -> bool {
        let block = inode.block();
        let name = &block.name[..(block.name_bytes.get() as usize).min(block.name.len())];
        self.left_many || self.left.contains(&(parent, crc32fast::hash(name)))
    }
}

impl Since {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a new inode.
    pub(crate) fn born(&self, nid: Nid) {
        self.state().born.insert(nid);
    }

    /// Notes a change of an inode that is not in its nodes.
    pub(crate) fn beyond(&self, nid: Nid) {
        self.state().beyond.insert(nid);
    }

    /// Notes that an inode loses nodes, or may.
    pub(crate) fn nodes_went(&self, nid: Nid) {
        self.state().lessened.insert(nid);
    }

    /// Notes that a name is removed from a directory, or leads to another file.
    pub(crate) fn left(&self, dir: Nid, name: &[u8]) {
        let mut state = self.state();
        if state.left.len() < LEFT_MAX {
            state.left.insert((dir, crc32fast::hash(name)));
            state.left_dirs.insert(dir);
        } else {
            state.left_many = true;
        }
    }

    /// Most blocks that recovery may need beside names that were removed, or lead to another file now: one for each name, and two nodes
    /// for each directory.
    pub(crate) fn blocks_for_names_left(&self) -> u64 {
        let state = self.state();
        (state.left.len() + NODES_TO_PAGE * state.left_dirs.len()) as u64
    }

    /// Counts nodes that an fsync writes.
    pub(crate) fn goes_ahead(&self, nodes: usize) {
        self.ahead.fetch_add(nodes, Relaxed); // ORDERING: Relaxed, a count; it is reset while no call is inside.
    }

    /// Number of nodes written. After a crash, a mount writes each of them once more, at most.
    pub(crate) fn nodes_ahead(&self) -> usize {
        self.ahead.load(Relaxed)
    }

    /// Notes that pages of a file were written.
    pub(crate) fn spilled(&self, nid: Nid) {
        self.state().spilled.insert(nid);
    }

    /// Returns true if pages of a file were written without a flush after them, and clears that: the caller
    /// flushes.
    pub(crate) fn take_spilled(&self, nid: Nid) -> bool {
        self.state().spilled.remove(&nid)
    }

    /// Called when a checkpoint is valid.
    pub(crate) fn checkpointed(&self) {
        *self.state() = State { begun: true, ..State::default() };
        self.ahead.store(0, Relaxed); // ORDERING: Relaxed, as in `goes_ahead`.
    }

    /// Called when a log checkpoint is valid.
    pub(crate) fn log_checkpointed(&self) {
        let mut state = self.state();
        *state = State { begun: state.begun, ..State::default() };
        self.ahead.store(0, Relaxed); // ORDERING: Relaxed, as in `goes_ahead`.
    }

    /// How an fsync makes this file durable, with a node log or without.
    pub(crate) fn way_of(&self, inode: &Inode, by_log: bool) -> Durable {
        let state = self.state();
        let parent = Nid(inode.block().parent.get());
        let with_name = state.born.contains(&inode.nid);
        let plain = inode.kind == FileKind::Regular && inode.block().links.get() == 1;
        let name_is_safe = !with_name || !(state.born.contains(&parent) || state.has_left(parent, inode));
        let said_by_nodes = by_log || (state.begun && !state.lessened.contains(&inode.nid));
        if said_by_nodes && plain && name_is_safe && !state.beyond.contains(&inode.nid) {
            Durable::ByNodes { with_name }
        } else {
            Durable::ByCheckpoint
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{InodeBlock, NodeBlock};
    use Durable::{ByCheckpoint, ByNodes};
    use std::sync::Arc;
    use zerocopy::little_endian::{U16, U32};
    use zerocopy::{FromBytes, FromZeros, IntoBytes};

    const FILE: Nid = Nid(9);
    const DIR: Nid = Nid(5);

    fn inode(mode: u32, links: u32, name: &[u8]) -> Inode {
        let mut block = InodeBlock::new_zeroed();
        (block.mode, block.links, block.parent) = (U16::new(mode as u16), U32::new(links), U32::new(DIR.0));
        (block.footer.nid, block.footer.ino) = (U32::new(FILE.0), U32::new(FILE.0));
        block.name_bytes = U32::new(name.len() as u32);
        block.name[..name.len()].copy_from_slice(name);
        Inode::of(Arc::new(NodeBlock::read_from_bytes(block.as_bytes()).unwrap()), 0).unwrap()
    }

    fn file() -> Inode {
        inode(libc::S_IFREG, 1, b"name")
    }

    /// The state after the first checkpoint of a mount.
    fn begun() -> Since {
        let since = Since::default();
        since.checkpointed();
        since
    }

    #[test]
    fn a_plain_file_is_said_by_its_nodes_after_the_first_checkpoint() {
        let old = ByNodes { with_name: false };
        assert_eq!(Since::default().way_of(&file(), false), ByCheckpoint);
        assert_eq!(Since::default().way_of(&file(), true), old, "a log is of this mount alone");
        assert_eq!(begun().way_of(&file(), false), old);
        assert_eq!(begun().way_of(&inode(libc::S_IFREG, 2, b"name"), false), ByCheckpoint);
        assert_eq!(begun().way_of(&inode(libc::S_IFDIR, 1, b"name"), true), ByCheckpoint);
        let since = begun();
        since.beyond(FILE);
        assert_eq!([false, true].map(|by_log| since.way_of(&file(), by_log)), [ByCheckpoint; 2]);
        let since = begun();
        since.nodes_went(FILE);
        assert_eq!([false, true].map(|by_log| since.way_of(&file(), by_log)), [ByCheckpoint, old]);
        since.log_checkpointed();
        assert_eq!(since.way_of(&file(), false), old, "it has begun still");
        let never = Since::default();
        never.log_checkpointed();
        assert_eq!(never.way_of(&file(), false), ByCheckpoint);
    }

    #[test]
    fn a_new_file_brings_its_name_where_that_can_be_made_again() {
        let since = begun();
        since.born(FILE);
        assert_eq!(since.way_of(&file(), false), ByNodes { with_name: true });
        since.left(DIR, b"other");
        since.left(Nid(6), b"name");
        assert_eq!(since.way_of(&file(), false), ByNodes { with_name: true });
        since.left(DIR, b"name");
        assert_eq!(
            (since.way_of(&file(), false), since.blocks_for_names_left()),
            (ByCheckpoint, 3 + 2 * 2),
            "it meant another file"
        );
        let since = begun();
        since.left(DIR, b"name");
        assert_eq!(since.way_of(&file(), false), ByNodes { with_name: false }, "an old file's name stays");
        since.born(FILE);
        since.born(DIR);
        since.checkpointed();
        assert_eq!(
            (since.blocks_for_names_left(), since.way_of(&file(), false)),
            (0, ByNodes { with_name: false })
        );
        since.born(FILE);
        since.born(DIR);
        assert_eq!(since.way_of(&file(), true), ByCheckpoint, "its directory is new too");
    }

    #[test]
    fn more_names_than_are_kept_are_all_names() {
        let since = begun();
        since.born(FILE);
        let mut n = 0_u32;
        let all = LEFT_MAX as u64 + 2;
        while since.blocks_for_names_left() < all {
            since.left(Nid(6), &n.to_le_bytes());
            n += 1;
        }
        assert_eq!(since.way_of(&file(), false), ByNodes { with_name: true });
        since.left(Nid(6), b"one more");
        assert_eq!((since.blocks_for_names_left(), since.way_of(&file(), false)), (all, ByCheckpoint));
    }

    #[test]
    fn what_was_written_ahead_or_spilled_is_told_once() {
        let since = begun();
        assert!(since.nodes_ahead() == 0 && !since.take_spilled(FILE));
        since.goes_ahead(2);
        since.goes_ahead(1);
        since.spilled(FILE);
        assert!(since.nodes_ahead() == 3 && !since.take_spilled(DIR));
        assert!(since.take_spilled(FILE) && !since.take_spilled(FILE));
        since.spilled(FILE);
        since.checkpointed();
        assert!(since.nodes_ahead() == 0 && !since.take_spilled(FILE));
    }
}
