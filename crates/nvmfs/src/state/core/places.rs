//! Where a process sees what lies in the arena for as long as the mount lives: looked up, and checked, once.
//!
//! Invariants  I1  these parts of the arena are made before its root is set, and never freed.
//!             I2  [`Core`](super::Core) holds the arena, so it stays mapped at its address.

use super::{Chunk, Root};
use crate::format::layout::Layout;
use crate::ids::LANES;
use crate::state::lane::Lane;
use heddle_arena::{Arena, Ptr};
use std::ptr::NonNull;

/// See the module.
pub struct Places {
    root: NonNull<Root>,
    lanes: NonNull<[Lane]>,
    chunks: NonNull<[Chunk]>,
}

// SAFETY: what they lead to is `Sync` (`Shared` asks for that).
unsafe impl Send for Places {}
// SAFETY: as above.
unsafe impl Sync for Places {}

impl Places {
    /// Those of an arena; `None` if it is none of ours.
    pub fn of(arena: &Arena, root: Ptr<Root>) -> Option<Places> {
        let r = arena.try_get(root)?;
        let layout = Layout::new(r.blocks_total);
        Some(Places {
            root: NonNull::from(r),
            lanes: NonNull::from(arena.try_slice(r.lanes, usize::from(LANES))?),
            chunks: NonNull::from(arena.try_slice(r.chunks, layout.chunks_max as usize)?),
        })
    }

    /// The root. The caller has the arena (I2).
    #[inline]
    pub fn root(&self) -> &Root {
        // SAFETY: I1, I2.
        unsafe { self.root.as_ref() }
    }

    /// All lanes.
    #[inline]
    pub fn lanes(&self) -> &[Lane] {
        // SAFETY: I1, I2.
        unsafe { self.lanes.as_ref() }
    }

    /// All inode chunks that can be.
    #[inline]
    pub fn chunks(&self) -> &[Chunk] {
        // SAFETY: I1, I2.
        unsafe { self.chunks.as_ref() }
    }
}
