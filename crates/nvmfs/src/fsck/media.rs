//! The image as fsck sees it: the region, and the blocks that repair has changed so far.
//!
//! Invariants  I1  the region is only read; changes are kept in `changed`, whole blocks by number.
//!             I2  callers pass positions inside the region (F1); they check blocks with `Layout::holds` before.

use crate::format::word::Line;
use crate::ids::BlockNo;
use heddle_pmem::{BLOCK_BYTES, Pos, Region};
use std::collections::{BTreeMap, BTreeSet};

/// Words of a block.
pub const BLOCK_WORDS: usize = BLOCK_BYTES / 8;

/// The words of a changed block.
pub type Words = Box<[u64; BLOCK_WORDS]>;

/// The image with the changes of a repair.
pub struct Media<'a> {
    region: &'a Region,
    changed: BTreeMap<u64, Words>,
    /// Blocks stored through this view, not through the one below.
    stored: BTreeSet<u64>,
}

fn parts(at: Pos) -> (u64, usize) {
    (at.0 / BLOCK_BYTES as u64, at.0 as usize % BLOCK_BYTES / 8)
}

impl<'a> Media<'a> {
    /// The image, unchanged.
    pub fn new(region: &'a Region) -> Media<'a> {
        Media { region, changed: BTreeMap::new(), stored: BTreeSet::new() }
    }

    /// A view over another one; changes to the new view do not affect the other.
    pub fn over(below: &Media<'a>) -> Media<'a> {
        Media { region: below.region, changed: below.changed.clone(), stored: BTreeSet::new() }
    }

    /// Returns the blocks stored through this view, with their present content, and clears the list.
    pub fn take_stored(&mut self) -> Vec<(BlockNo, Words)> {
        std::mem::take(&mut self.stored).into_iter().map(|b| (BlockNo(b), self.block(BlockNo(b)))).collect()
    }

    /// Number of blocks of the file or device.
    pub fn blocks(&self) -> u64 {
        self.region.len_bytes() / BLOCK_BYTES as u64
    }

    /// The kind of content of the file or device.
    pub fn content(&self) -> heddle_signatures::Content {
        heddle_signatures::detect(self.region.len_bytes(), &|at, into| self.region.read(Pos(at), into))
    }

    /// One word; `at` is a multiple of 8.
    pub fn word(&self, at: Pos) -> u64 {
        let (block, word) = parts(at);
        match self.changed.get(&block) {
            Some(words) => words[word],
            None => self.region.load_u64(at),
        }
    }

    /// One line; `at` is a multiple of 64.
    pub fn line(&self, at: Pos) -> Line {
        if self.changed.is_empty() {
            return self.region.line(at);
        }
        std::array::from_fn(|i| self.word(at.plus(i as u64 * 8)))
    }

    /// A whole block.
    pub fn block(&self, block: BlockNo) -> Words {
        match self.changed.get(&block.0) {
            Some(words) => words.clone(),
            None => Box::new(std::array::from_fn(|i| self.region.load_u64(block.pos().plus(i as u64 * 8)))),
        }
    }

    /// Changes words in this view.
    pub fn store(&mut self, at: Pos, words: &[u64]) {
        for (i, word) in words.iter().enumerate() {
            let (block, index) = parts(at.plus(i as u64 * 8));
            let old = BlockNo(block);
            self.stored.insert(block);
            if !self.changed.contains_key(&block) {
                let words = self.block(old);
                self.changed.insert(block, words);
            }
            if let Some(words) = self.changed.get_mut(&block) {
                words[index] = *word;
            }
        }
    }

    /// Blocks that differ from the region, by number.
    pub fn into_changes(self) -> Vec<(BlockNo, Words)> {
        let region = self.region;
        let differs = |block: u64, words: &Words| {
            let at = BlockNo(block).pos();
            words.iter().enumerate().any(|(i, w)| region.load_u64(at.plus(i as u64 * 8)) != *w)
        };
        self.changed
            .into_iter()
            .filter(|(block, words)| differs(*block, words))
            .map(|(block, words)| (BlockNo(block), words))
            .collect()
    }
}
