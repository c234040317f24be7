//! Fragmentation: the number of extents per file.

use serde::Serialize;

#[derive(Serialize)]
pub struct Fragmentation {
    files_with_data: u64,
    extents: u64,
    extents_of_one_file_max: u64,
    blocks_an_extent: f64,
}

impl Fragmentation {
    /// For files with these numbers of extents, which have `blocks` data blocks in all.
    pub fn of(extents: impl Iterator<Item = u64> + Clone, blocks: u64) -> Fragmentation {
        let all = extents.clone().sum();
        Fragmentation {
            files_with_data: extents.clone().filter(|extents| *extents > 0).count() as u64,
            extents: all,
            extents_of_one_file_max: extents.max().unwrap_or(0),
            blocks_an_extent: blocks as f64 / all.max(1) as f64,
        }
    }

    /// As text.
    pub fn text(&self) -> String {
        format!(
            "{} in {} files (at most {} in one), {:.1} blocks each",
            self.extents, self.files_with_data, self.extents_of_one_file_max, self.blocks_an_extent
        )
    }
}
