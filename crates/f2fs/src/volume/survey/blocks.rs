//! One bit for each block of the main area: set when a first pointer refers to it.

use crate::format::SEGMENT_BLOCKS;
use crate::ids::BlockAddr;
use crate::segments::Segments;
use crate::superblock::Geometry;

/// The blocks to which pointers refer.
pub(super) struct ReferencedBlocks<'a> {
    geometry: &'a Geometry,
    bits: Vec<u8>,
    /// Number of blocks of the main area, less those of the files counted so far.
    left: u64,
    /// The SIT, if it could be read: it says which blocks are live.
    pub(super) segments: Option<Segments>,
}

/// Blocks of one inode to which a second pointer refers, or which are free in the SIT.
#[derive(Default)]
pub(super) struct BadReferences {
    twice: Blocks,
    free: Blocks,
}

/// Number of such blocks, and the first.
#[derive(Default)]
struct Blocks {
    count: u64,
    first: Option<BlockAddr>,
}

impl Blocks {
    fn add(&mut self, addr: BlockAddr) {
        self.count += 1;
        self.first.get_or_insert(addr);
    }

    fn message(&self, what: &str) -> Option<String> {
        let first = self.first?.0;
        Some(match self.count {
            1 => format!("its block {first} {what}"),
            count => format!("its block {first} {what}, and {} more", count - 1),
        })
    }
}

impl BadReferences {
    /// A message for each kind.
    pub(super) fn messages(&self) -> impl Iterator<Item = String> {
        let twice = self.twice.message("is referenced twice");
        let free = self.free.message("is free in the SIT");
        twice.into_iter().chain(free)
    }
}

impl<'a> ReferencedBlocks<'a> {
    pub(super) fn of(geometry: &'a Geometry) -> ReferencedBlocks<'a> {
        let left = u64::from(geometry.main_segments) * u64::from(SEGMENT_BLOCKS);
        ReferencedBlocks { geometry, bits: vec![0; left.div_ceil(8) as usize], left, segments: None }
    }

    /// Subtracts blocks of a file from those that remain. `None`: files have more blocks than the main area.
    pub(super) fn count(&mut self, blocks: u64) -> Option<()> {
        self.left = self.left.checked_sub(blocks)?;
        Some(())
    }

    /// Notes that a pointer refers to each of these blocks.
    pub(super) fn refer(&mut self, first: BlockAddr, blocks: u64, bad: &mut BadReferences) {
        for addr in (0..blocks).map(|n| first.plus(n as u32)).filter(|addr| self.geometry.in_main(*addr)) {
            let at = (addr.0 - self.geometry.main.0) as usize;
            let (byte, bit) = (at / 8, 1_u8 << (at % 8));
            if self.bits[byte] & bit != 0 {
                bad.twice.add(addr);
            }
            self.bits[byte] |= bit;
            if self.segments.as_ref().is_some_and(|segments| !segments.is_live(addr)) {
                bad.free.add(addr);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Segno;
    use crate::segments::tests::table;
    use crate::superblock::tests::small;

    fn geometry() -> Geometry {
        Geometry { blocks: 512 * 20, main: BlockAddr(5120), main_segments: 8, ..small() }
    }

    fn messages(referenced: &mut ReferencedBlocks<'_>, ranges: &[(u32, u64)]) -> Vec<String> {
        let mut bad = BadReferences::default();
        ranges.iter().for_each(|(first, blocks)| referenced.refer(BlockAddr(*first), *blocks, &mut bad));
        bad.messages().collect()
    }

    #[test]
    fn each_second_reference_to_a_block_is_counted() {
        let geometry = geometry();
        let mut referenced = ReferencedBlocks::of(&geometry);
        assert!(messages(&mut referenced, &[(5120, 20), (5140, 1), (9215, 1)]).is_empty());
        assert_eq!(messages(&mut referenced, &[(5139, 1)]), ["its block 5139 is referenced twice"]);
        assert_eq!(
            messages(&mut referenced, &[(5138, 10)]),
            ["its block 5138 is referenced twice, and 2 more"]
        );
        assert_eq!(messages(&mut referenced, &[(9214, 9)]), ["its block 9215 is referenced twice"]);
        // References to blocks outside the main area are ignored.
        assert!(messages(&mut referenced, &[(5119, 1), (5119, 1), (9216, 5), (9216, 5), (0, 0)]).is_empty());
        let all = u64::from(geometry.main_segments * SEGMENT_BLOCKS);
        assert_eq!(
            [referenced.count(all - 1), referenced.count(1), referenced.count(0), referenced.count(1)],
            [Some(()), Some(()), Some(()), None]
        );
    }

    #[test]
    fn referenced_blocks_that_are_free_in_the_sit_are_reported() {
        let (geometry, segments) = (geometry(), table(1, 8, &[]));
        let mut referenced = ReferencedBlocks { segments: Some(segments), ..ReferencedBlocks::of(&geometry) };
        assert_eq!(
            messages(&mut referenced, &[(5120, 1), (5120, 1)]),
            ["its block 5120 is referenced twice", "its block 5120 is free in the SIT, and 1 more"]
        );
        assert_eq!(
            referenced.segments.as_ref().map(|segments| segments.place_of(BlockAddr(5120)).0),
            Some(Segno(0))
        );
    }
}
