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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::state::core::tests::bare;
    use crate::state::lease::enter;
    use heddle_vfs::Ino;

    #[test]
    fn a_blob_is_read_up_to_its_limit_and_given_up() {
        let core = bare(2048);
        let guard = enter(&core).unwrap();
        let owner = InodeId { ino: Ino(5), generation: 9 };
        let words: Vec<u64> = (0..2 * 510 + 3).collect();
        let free = core.free_map().count();
        let mut write =
            |words: &[u64]| write_unfenced(&core, guard.own, owner, Kind::Map, words, Purpose::Data);
        let fresh = write(&words).unwrap();
        assert_eq!(core.free_map().count() + 3, free);
        let read_from = |first, most| read(&core, owner, Kind::Map, first, most);
        let (found, blocks) = read_from(fresh.first(), 3).unwrap();
        assert!(found == words && blocks.len() == 3);
        assert_eq!(blocks.first().map(|extent| extent.block), fresh.first());
        assert!(read_from(fresh.first(), 2).is_none(), "it is longer");
        assert!(read(&core, owner, Kind::Xattrs, fresh.first(), 3).is_none(), "another kind");
        assert!(read_from(Some(BlockNo(1)), 3).is_none(), "no block of the data area");
        assert!(read_from(Some(core.layout.last()), 3).is_none());
        assert_eq!(read_from(None, 0), Some((vec![], vec![])));
        fresh.give_up(&core);
        assert_eq!(core.free_map().count(), free);
        assert!(write(&[]).unwrap().first().is_none());
        let exactly = write(&words[..2 * 510]).unwrap();
        assert_eq!(read_from(exactly.first(), 2).unwrap().0, words[..2 * 510]);
    }
}
