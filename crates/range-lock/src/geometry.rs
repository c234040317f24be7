//! How a file is cut into segments, and a segment's number into indexes (SRL Fig. 7).

use std::ops::Range;

use crate::Error;

/// The shape of a lock. Defaults: 4 KiB segments, files up to 2^48 bytes, 5 levels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a segment, in bytes: a power of two (the index is cut from the bits of the offset), 4 KiB or more.
    pub segment_bytes: u64,
    /// The largest file, in bytes: the array has a word for each of its segments, the tree `M` = its binary logarithm, rounded up.
    pub file_bytes_max: u64,
    /// Levels of the tree.
    pub depth: usize,
    /// Index bits of each level from the root down; none: spread evenly, wider levels first (29 bits in 5 levels: 6/6/6/6/5).
    pub split: Option<Vec<u8>>,
}

/// A lock of that shape is not possible.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
pub enum BadGeometry {
    /// Segment size.
    #[error(
        "a segment of {0} bytes is not possible: choose a power of two from 4096 up, smaller than the largest file"
    )]
    Segment(u64),
    /// Number of levels.
    #[error(
        "{depth} levels cannot share {index_bits} index bits: choose 1 to 8 levels, each of 1 to 20 bits"
    )]
    Depth {
        /// Levels asked for.
        depth: usize,
        /// Bits to index a segment of the largest file.
        index_bits: u32,
    },
    /// Split of the index.
    #[error(
        "the index split {split:?} does not fit: {depth} levels of 1 to 20 bits, {index_bits} bits in all"
    )]
    Split {
        /// Asked for.
        split: Vec<u8>,
        /// Levels asked for.
        depth: usize,
        /// Bits to index a segment of the largest file.
        index_bits: u32,
    },
}

/// Most levels of a tree.
pub(crate) const DEPTH_MAX: usize = 8;
const LEVEL_BITS_MAX: u32 = 20;

impl Default for Geometry {
    fn default() -> Self {
        Geometry { segment_bytes: 4096, file_bytes_max: 1 << 48, depth: 5, split: None }
    }
}

impl Geometry {
    /// SRL Fig. 7: 41-bit offsets, 4 KiB segments, levels of 6/6/6/6/5 bits.
    pub fn paper() -> Self {
        Geometry { file_bytes_max: 1 << 41, ..Geometry::default() }
    }

    pub(crate) fn segments(&self) -> Result<Segments, BadGeometry> {
        let size = self.segment_bytes;
        if !size.is_power_of_two() || size < 4096 || size >= self.file_bytes_max {
            return Err(BadGeometry::Segment(size));
        }
        Ok(Segments { bits: size.trailing_zeros(), file_bytes_max: self.file_bytes_max })
    }

    /// Index bits of each level, from the root down.
    pub(crate) fn levels(&self) -> Result<Vec<u32>, BadGeometry> {
        let segments = self.segments()?;
        let index_bits = segments.count().next_power_of_two().trailing_zeros();
        let depth = self.depth;
        let fits = |bits: &u32| (1..=LEVEL_BITS_MAX).contains(bits);
        let Some(split) = &self.split else {
            if !(1..=DEPTH_MAX).contains(&depth) {
                return Err(BadGeometry::Depth { depth, index_bits });
            }
            let (each, wider) = (index_bits / depth as u32, index_bits as usize % depth);
            let levels: Vec<u32> = (0..depth).map(|level| each + (level < wider) as u32).collect();
            return if levels.iter().all(fits) {
                Ok(levels)
            } else {
                Err(BadGeometry::Depth { depth, index_bits })
            };
        };
        let levels: Vec<u32> = split.iter().map(|bits| *bits as u32).collect();
        let right = levels.len() == depth && depth <= DEPTH_MAX && levels.iter().sum::<u32>() == index_bits;
        if right && levels.iter().all(fits) {
            Ok(levels)
        } else {
            Err(BadGeometry::Split { split: split.clone(), depth, index_bits })
        }
    }
}

/// Rounds bytes out to segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segments {
    bits: u32,
    pub(crate) file_bytes_max: u64,
}

impl Segments {
    /// Segments of the largest file.
    pub(crate) fn count(self) -> u64 {
        ((self.file_bytes_max - 1) >> self.bits) + 1
    }

    /// First and last segment of `bytes`, wherever they are.
    #[inline]
    pub(crate) fn of(self, bytes: &Range<u64>) -> Result<(u64, u64), Error> {
        if bytes.start >= bytes.end {
            return Err(Error::Empty);
        }
        Ok((bytes.start >> self.bits, (bytes.end - 1) >> self.bits))
    }

    /// First and last segment of `bytes`; an end of `u64::MAX` is the end of the largest file.
    #[inline]
    pub(crate) fn within_file(self, bytes: &Range<u64>) -> Result<(u64, u64), Error> {
        let max_bytes = self.file_bytes_max;
        let end_bytes = if bytes.end == u64::MAX { max_bytes } else { bytes.end };
        if end_bytes > max_bytes || bytes.start >= max_bytes {
            return Err(Error::TooBig { end_bytes: bytes.end, max_bytes });
        }
        self.of(&(bytes.start..end_bytes))
    }
}
