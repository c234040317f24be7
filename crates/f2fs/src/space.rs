//! What a writer counts: blocks, nodes and inodes in use, and the blocks that users may have.

use crate::format::CheckpointHead;
use crate::segments::Segments;
use heddle_vfs::{Error, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// In use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Nodes, data, and pages that are reserved.
    pub(crate) blocks: u64,
    pub(crate) nodes: u64,
    pub(crate) inodes: u64,
}

impl Counts {
    /// As a checkpoint says.
    pub(crate) fn of(head: &CheckpointHead) -> Counts {
        Counts {
            blocks: head.blocks_valid.get(),
            nodes: u64::from(head.nodes_valid.get()),
            inodes: u64::from(head.inodes_valid.get()),
        }
    }
}

/// The space of an image that is open for writing.
pub(crate) struct Space {
    pub(crate) segments: Segments,
    pub(crate) blocks_user: u64,
    counts: Mutex<Counts>,
}

impl Space {
    pub(crate) fn new(segments: Segments, blocks_user: u64, counts: Counts) -> Space {
        Space { segments, blocks_user, counts: Mutex::new(counts) }
    }

    fn locked(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in use.
    pub(crate) fn counts(&self) -> Counts {
        *self.locked()
    }

    /// One more block of data.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn take_block(&self) -> Result<()> {
        let mut counts = self.locked();
        if counts.blocks >= self.blocks_user {
            return Err(Error::NoSpace);
        }
        counts.blocks += 1;
        Ok(())
    }

    /// One more node.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn take_node(&self, is_inode: bool) -> Result<()> {
        self.take_block()?;
        let mut counts = self.locked();
        counts.nodes += 1;
        counts.inodes += u64::from(is_inode);
        Ok(())
    }

    /// So many blocks of data fewer.
    pub(crate) fn give_blocks(&self, count: u64) {
        let mut counts = self.locked();
        counts.blocks = counts.blocks.saturating_sub(count);
    }

    /// A node fewer.
    pub(crate) fn give_node(&self, is_inode: bool) {
        let mut counts = self.locked();
        counts.blocks = counts.blocks.saturating_sub(1);
        counts.nodes = counts.nodes.saturating_sub(1);
        counts.inodes = counts.inodes.saturating_sub(u64::from(is_inode));
    }
}
