//! Whose the blocks of the main area are: a bit each, set by the first pointer that leads there.

use crate::format::SEGMENT_BLOCKS;
use crate::ids::BlockAddr;
use crate::segments::Segments;
use crate::superblock::Geometry;

/// Blocks that something leads to.
pub(super) struct Owners<'a> {
    geometry: &'a Geometry,
    taken: Vec<u8>,
    /// Blocks that files may still lead to.
    left: u64,
    /// Which blocks are live, if that is known.
    pub(super) segments: Option<Segments>,
}

/// What is wrong with the blocks of one inode.
#[derive(Default)]
pub(super) struct Claims {
    twice: Blocks,
    free: Blocks,
}

/// How many, and the first.
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

    fn told(&self, what: &str) -> Option<String> {
        let first = self.first?.0;
        Some(match self.count {
            1 => format!("its block {first} {what}"),
            count => format!("its block {first} {what}, and so are {} more", count - 1),
        })
    }
}

impl Claims {
    /// In words.
    pub(super) fn told(&self) -> impl Iterator<Item = String> {
        let twice = self.twice.told("is led to twice");
        let free = self.free.told("is said to be free by the segment table");
        twice.into_iter().chain(free)
    }
}

impl<'a> Owners<'a> {
    pub(super) fn of(geometry: &'a Geometry) -> Owners<'a> {
        let left = u64::from(geometry.main_segments) * u64::from(SEGMENT_BLOCKS);
        Owners { geometry, taken: vec![0; left.div_ceil(8) as usize], left, segments: None }
    }

    /// Counts blocks of files; `None`: there are not so many.
    pub(super) fn count(&mut self, blocks: u64) -> Option<()> {
        self.left = self.left.checked_sub(blocks)?;
        Some(())
    }

    /// Something leads to these blocks.
    pub(super) fn claim(&mut self, first: BlockAddr, blocks: u64, claims: &mut Claims) {
        for addr in (0..blocks).map(|n| first.plus(n as u32)).filter(|addr| self.geometry.in_main(*addr)) {
            let at = (addr.0 - self.geometry.main.0) as usize;
            let (byte, bit) = (at / 8, 1_u8 << (at % 8));
            if self.taken[byte] & bit != 0 {
                claims.twice.add(addr);
            }
            self.taken[byte] |= bit;
            if self.segments.as_ref().is_some_and(|segments| !segments.is_live(addr)) {
                claims.free.add(addr);
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

    fn told(owners: &mut Owners<'_>, ranges: &[(u32, u64)]) -> Vec<String> {
        let mut claims = Claims::default();
        ranges.iter().for_each(|(first, blocks)| owners.claim(BlockAddr(*first), *blocks, &mut claims));
        claims.told().collect()
    }

    #[test]
    fn each_block_that_is_led_to_again_is_counted() {
        let geometry = geometry();
        let mut owners = Owners::of(&geometry);
        assert!(told(&mut owners, &[(5120, 20), (5140, 1), (9215, 1)]).is_empty());
        assert_eq!(told(&mut owners, &[(5139, 1)]), ["its block 5139 is led to twice"]);
        assert_eq!(told(&mut owners, &[(5138, 10)]), ["its block 5138 is led to twice, and so are 2 more"]);
        assert_eq!(told(&mut owners, &[(9214, 9)]), ["its block 9215 is led to twice"]);
        // What is outside the main area is nobody's here.
        assert!(told(&mut owners, &[(5119, 1), (5119, 1), (9216, 5), (9216, 5), (0, 0)]).is_empty());
        let all = u64::from(geometry.main_segments * SEGMENT_BLOCKS);
        assert_eq!(
            [owners.count(all - 1), owners.count(1), owners.count(0), owners.count(1)],
            [Some(()), Some(()), Some(()), None]
        );
    }

    #[test]
    fn blocks_that_the_table_has_as_free_are_told() {
        let (geometry, segments) = (geometry(), table(1, 8, &[]));
        let mut owners = Owners { segments: Some(segments), ..Owners::of(&geometry) };
        assert_eq!(
            told(&mut owners, &[(5120, 1), (5120, 1)]),
            [
                "its block 5120 is led to twice",
                "its block 5120 is said to be free by the segment table, and so are 1 more"
            ]
        );
        assert_eq!(
            owners.segments.as_ref().map(|segments| segments.place_of(BlockAddr(5120)).0),
            Some(Segno(0))
        );
    }
}
