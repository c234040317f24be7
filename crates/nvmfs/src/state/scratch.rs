//! Buffers in the process's memory that a lane's operations reuse.

use crate::format::record::Record;
use crate::ids::{Extent, InodeId};
use crate::state::cell::{LockVersion, Map};
use crate::state::lane::OpState;

/// Room for a call of a few pages: such a call needs no memory from the heap.
const ROOM: usize = 16;

/// Buffers in the process's memory that a lane's operations reuse.
pub struct Scratch {
    /// Blocks of a write.
    pub extents: Vec<Extent>,
    /// Blocks it replaces.
    pub replaced: Vec<Extent>,
    /// Records of a transaction.
    pub records: Vec<Record>,
    /// Inodes whose logs are cleaned at the end of the call, when it holds nothing: once for each page that the call has begun.
    pub to_clean: Vec<InodeId>,
    /// Unlinked pages of a log.
    pub garbage: Vec<Extent>,
    /// Cells that a read collected.
    pub collected: Vec<Seen>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch {
            extents: Vec::with_capacity(ROOM),
            replaced: Vec::with_capacity(ROOM),
            records: Vec::with_capacity(ROOM),
            to_clean: Vec::with_capacity(ROOM),
            garbage: Vec::with_capacity(ROOM),
            collected: Vec::with_capacity(ROOM),
        }
    }
}

/// The state of a page when it was collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its lock and version; `None`: there is no cell.
    pub lock_version: Option<LockVersion>,
    /// State of the lane that held it.
    pub owner: Option<OpState>,
    /// Its mapping.
    pub map: Map,
}

/// A page without a cell.
pub const ABSENT: Seen = Seen { lock_version: None, owner: None, map: Map::HOLE };

impl Seen {
    /// The mapping.
    pub fn map(&self) -> Map {
        self.map
    }
}
