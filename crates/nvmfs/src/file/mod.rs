//! Files: reading, writing (`heddle` for that variant, `paper` for the papers'), changing size, allocating and
//! freeing ranges.

pub mod blocks;
pub mod cells;
pub mod deferred;
pub mod new_blocks;
pub mod page_by_page;
pub mod range;
pub mod read;
pub mod resize;
pub mod shift;
pub mod write_heddle;
pub mod write_paper;
pub mod zero;

#[cfg(all(test, not(loom)))]
mod tests;
