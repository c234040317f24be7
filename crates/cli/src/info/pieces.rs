//! In how many pieces files lie.

use serde::Serialize;

#[derive(Serialize)]
pub struct Fragmentation {
    files_with_data: u64,
    extents: u64,
    extents_of_one_file_max: u64,
    blocks_an_extent: f64,
}

impl Fragmentation {
    /// Of files with so many extents each, that have so many blocks of data in all.
    pub fn of(extents: impl Iterator<Item = u64> + Clone, blocks: u64) -> Fragmentation {
        let all = extents.clone().sum();
        Fragmentation {
            files_with_data: extents.clone().filter(|extents| *extents > 0).count() as u64,
            extents: all,
            extents_of_one_file_max: extents.max().unwrap_or(0),
            blocks_an_extent: blocks as f64 / all.max(1) as f64,
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        format!(
            "{} in {} files (at most {} in one), {:.1} blocks each",
            self.extents, self.files_with_data, self.extents_of_one_file_max, self.blocks_an_extent
        )
    }
}
