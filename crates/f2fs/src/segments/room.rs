//! Room: what logs may take to write something, and which segments cost least to clean.

use super::{DATA_LOGS, LOGS, Segments, State};
use crate::format::SEGMENT_BLOCKS;
use crate::ids::Segno;

/// Blocks that are written to move a page: itself, the node that leads to it, and its inode. Of a node it is itself alone.
const WRITTEN_A_PAGE: usize = 3;
/// Sections that are kept free, so that two things can always be done, one after the other: all that is in memory is written, and then
/// one section is cleaned. In that each log takes at most one section before its open segment is full, or because recovery left that
/// segment ([`Segments::keep`]). All others are taken for blocks: those of one section that is cleaned fill three at most.
pub(crate) const SECTIONS_KEPT: usize = LOGS + WRITTEN_A_PAGE;

/// Which segments are cleaned first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prefer {
    /// Those with the fewest live blocks.
    Emptiest,
    /// Those that make the logs write least. Nodes drag no other blocks along, so each of their segments surely brings something.
    Cheapest,
}

impl State {
    /// Whole sections that logs take at most to write so many blocks, whichever of them write how many: first those take one that have
    /// least left of their open segments.
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
    /// Blocks that logs could write until the next checkpoint, in all.
    pub(crate) fn room_blocks(&self) -> usize {
        let state = self.state();
        let open = state.logs.iter().map(|log| (SEGMENT_BLOCKS - log.next) as usize);
        open.sum::<usize>() + state.free.all.len() * SEGMENT_BLOCKS as usize
    }

    /// Up to `count` segments that cost least to clean, as long as the free ones hold what is written on account of them. Full ones bring
    /// nothing, open and empty ones neither.
    pub(crate) fn victims(&self, count: usize, prefer: Prefer) -> Vec<Segno> {
        let state = self.state();
        let is_open = |segno: usize| state.logs.iter().any(|log| log.segment.0 as usize == segno);
        // Whole sections, or none of their segments could be used by any log.
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
