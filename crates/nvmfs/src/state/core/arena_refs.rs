//! Addresses, in this process, of arena parts that live as long as the mount. They are looked up and checked
//! once.
//!
//! Invariants  I1  these parts of the arena are made before its root is set, and never freed.
//!             I2  [`Core`](super::Core) holds the arena, so it stays mapped at its address.

use super::{ChunkEntry, Root};
use crate::format::layout::Layout;
use crate::ids::LANES;
use crate::state::lane::Lane;
use heddle_arena::{Arena, Ptr};
use std::ptr::NonNull;

/// Addresses of the arena's fixed parts.
pub struct ArenaRefs {
    root: NonNull<Root>,
    lanes: NonNull<[Lane]>,
    chunks: NonNull<[ChunkEntry]>,
}

// SAFETY: the parts are `Sync` (`Shared` requires that).
unsafe impl Send for ArenaRefs {}
// SAFETY: as above.
unsafe impl Sync for ArenaRefs {}

impl ArenaRefs {
    /// The addresses for an arena; `None` if another build made it, or if a part lies outside it. Whose arena
    /// it is, the caller checks (`Core::join`).
    pub fn of(arena: &Arena, root: Ptr<Root>) -> Option<ArenaRefs> {
        let r = arena.try_get(root).filter(|root| root.is_of_this_build())?;
        let layout = Layout::new(r.blocks_total);
        Some(ArenaRefs {
            root: NonNull::from(r),
            lanes: NonNull::from(arena.try_slice(r.lanes, usize::from(LANES))?),
            chunks: NonNull::from(arena.try_slice(r.chunks, layout.chunks_max as usize)?),
        })
    }

    /// The root. The caller keeps the arena alive (I2).
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

    /// The arena's entries for all chunks that the image may have.
    #[inline]
    pub fn chunks(&self) -> &[ChunkEntry] {
        // SAFETY: I1, I2.
        unsafe { self.chunks.as_ref() }
    }
}
