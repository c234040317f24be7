//! Blobs in the region: chains of blocks, written before the record that names them.

use crate::alloc::{Purpose, return_unused, take_blocks};
use crate::format::blob::{Kind, WORDS_A_BLOCK, decode, encode};
use crate::ids::{BlockNo, Extent, InodeId, block_at};
use crate::state::core::Core;
use crate::state::lane::LaneLocal;
use heddle_vfs::{Error, Result};

/// A blob that no durable record names yet.
#[derive(Debug)]
pub struct Fresh {
    extents: Vec<Extent>,
}

impl Fresh {
    /// Its first block; `None` if it has no words.
    pub fn first(&self) -> Option<BlockNo> {
        self.extents.first().map(|e| e.block)
    }

    /// Frees the blocks, because the record was not written.
    pub fn give_up(self, core: &Core) {
        // PERSIST: D15: this lane's stores into them come before another lane's. No check sees it: simulated
        // memory orders two stores to one word, whichever lanes make them.
        core.region.fence();
        return_unused(core.free_map(), &self.extents);
    }
}

/// Writes a blob, without a fence.
pub fn write_unfenced(
    core: &Core,
    own: &mut LaneLocal,
    owner: InodeId,
    kind: Kind,
    words: &[u64],
    purpose: Purpose,
) -> Result<Fresh> {
    let mut extents = Vec::new();
    let count = words.len().div_ceil(WORDS_A_BLOCK) as u64;
    if count == 0 {
        return Ok(Fresh { extents });
    }
    if !take_blocks(core.free_map(), &core.region, own, count, purpose, &mut extents) {
        return Err(Error::NoSpace);
    }
    for (i, body) in words.chunks(WORDS_A_BLOCK).enumerate() {
        let at = block_at(&extents, i as u64);
        let next = (i as u64 + 1 < count).then(|| block_at(&extents, i as u64 + 1));
        let block = encode(core.seed, owner, kind, at, body, next);
        let bytes: Vec<u8> = block.iter().flat_map(|word| word.to_le_bytes()).collect();
        core.region.nt_write(at.pos(), &bytes);
    }
    Ok(Fresh { extents })
}

/// Returns the words and the blocks of the blob that starts in `first`; `None` if it is damaged, or longer
/// than `blocks_max`.
pub fn read(
    core: &Core,
    owner: InodeId,
    kind: Kind,
    first: Option<BlockNo>,
    blocks_max: usize,
) -> Option<(Vec<u64>, Vec<Extent>)> {
    let (mut words, mut blocks, mut next) = (Vec::new(), Vec::new(), first);
    while let Some(at) = next {
        if !core.layout.holds(at, 1) || blocks.len() >= blocks_max {
            return None;
        }
        blocks.push(Extent { block: at, count: 1 });
        let word_at = |i: usize| core.region.load_u64(at.pos().plus(i as u64 * 8));
        let (body, following) = decode(core.seed, owner, kind, at, word_at)?;
        words.extend(body);
        next = following;
    }
    Some((words, blocks))
}
