//! Room: the space that logs may need for a write, and the segments that are cheapest to clean.

use super::{DATA_LOGS, LOGS, Segments, State};
use crate::format::SEGMENT_BLOCKS;
use crate::ids::Segno;

/// Blocks written to move a page: itself, its node, and its inode. A node needs only itself.
const WRITTEN_A_PAGE: usize = 3;
/// Number of sections kept free, so that two steps are always possible in sequence: writing all that is in
/// memory, and then cleaning one section. In these each log takes at most one section before its open segment
/// is full, or because recovery left that segment ([`Segments::keep`]). All other sections are taken for
/// blocks: those of one cleaned section fill three at most.
pub(crate) const SECTIONS_RESERVED: usize = LOGS + WRITTEN_A_PAGE;

/// Which segments are cleaned first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prefer {
    /// Those with the fewest live blocks.
    Emptiest,
    /// Those whose cleaning writes least. Moving a node requires no other block, so each segment of nodes is
    /// a sure gain.
    Cheapest,
}

impl State {
    /// Most whole sections that logs take to write so many blocks, for any distribution among the logs: logs
    /// with the least room in their open segments come first.
    pub(super) fn sections_to_write(&self, blocks: usize, per_section: usize) -> usize {
        let mut lefts: Vec<usize> =
            self.logs.iter().map(|log| (SEGMENT_BLOCKS - log.next) as usize).collect();
        lefts.sort_unstable();
        let mut blocks_left = blocks;
        let taken = lefts.into_iter().take_while(|left| {
            let is_filled = *left <= blocks_left;
            blocks_left -= if is_filled { *left } else { 0 };
            is_filled
        });
        taken.count() + blocks_left / (per_section * SEGMENT_BLOCKS as usize)
    }
}

impl Segments {
    /// Number of blocks that logs can write until the next checkpoint.
    pub(crate) fn room_blocks(&self) -> usize {
        let state = self.state();
        let open = state.logs.iter().map(|log| (SEGMENT_BLOCKS - log.next) as usize);
        open.sum::<usize>() + state.free.all.len() * SEGMENT_BLOCKS as usize
    }

    /// Up to `count` segments that are cheapest to clean, as long as the free segments hold what cleaning
    /// writes. Full segments bring no gain, and open and empty ones neither.
    pub(crate) fn victims(&self, count: usize, prefer: Prefer) -> Vec<Segno> {
        let state = self.state();
        let is_open = |segno: usize| state.logs.iter().any(|log| log.segment.0 as usize == segno);
        // Whole sections, because no log could use single segments of them.
        let per_section = self.geometry.segments_per_section;
        let mut found: Vec<(usize, usize, u32)> = Vec::new();
        for first in (0..state.table.len() as u32).step_by(per_section as usize) {
            let section = first..(first + per_section).min(state.table.len() as u32);
            let is_out = |n: u32| is_open(n as usize) || state.left_out.contains_key(&Segno(n));
            let (mut live, mut written) = (0, 0);
            for segment in section.clone().map(|n| &state.table[n as usize]) {
                let count = usize::from(segment.count);
                live += count;
                written += if segment.kind >= DATA_LOGS as u8 { count } else { WRITTEN_A_PAGE * count };
            }
            let all = section.len() * SEGMENT_BLOCKS as usize;
            if (1..all).contains(&live) && !section.clone().any(is_out) {
                found.push((if prefer == Prefer::Cheapest { written } else { live }, written, first));
            }
        }
        found.sort_unstable();
        let free = state.free.whole_sections;
        let mut written_in_all = 0;
        let sections = found.into_iter().filter(|(_, written, _)| {
            let fits = state.sections_to_write(written_in_all + written, per_section as usize) <= free;
            written_in_all += if fits { *written } else { 0 };
            fits
        });
        let sections = sections.take(count.div_ceil(per_section as usize));
        let segments = sections.flat_map(|(.., first)| first..first + per_section);
        segments.filter(|n| state.table.get(*n as usize).is_some_and(|s| s.count > 0)).map(Segno).collect()
    }
}
