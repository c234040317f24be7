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

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(segment_bytes: u64, file_bytes_max: u64) -> Result<Segments, BadGeometry> {
        Geometry { segment_bytes, file_bytes_max, ..Geometry::default() }.segments()
    }

    #[test]
    fn a_segment_is_a_power_of_two_and_less_than_the_file() {
        for bad in [0, 1, 2048, 4095, 4097, 12288, 1 << 20, 1 << 21] {
            assert_eq!(segments(bad, 1 << 20).err(), Some(BadGeometry::Segment(bad)));
        }
        for good in [4096, 8192, 1 << 19] {
            assert_eq!(segments(good, 1 << 20).unwrap().count(), (1 << 20) / good);
        }
        assert_eq!(segments(4096, 4097).unwrap().count(), 2);
        assert_eq!(segments(4096, (1 << 20) + 1).unwrap().count(), 257);
    }

    #[test]
    fn ranges_are_rounded_out_to_segments_within_the_largest_file() {
        let of = segments(4096, 1 << 20).unwrap();
        let within = |range| of.within_file(&range);
        assert_eq!(within(0..1), Ok((0, 0)));
        assert_eq!(within(4095..4097), Ok((0, 1)));
        assert_eq!(within(4096..8192), Ok((1, 1)));
        assert_eq!(within(5000..u64::MAX), Ok((1, 255)));
        assert_eq!(within((1 << 20) - 1..1 << 20), Ok((255, 255)));
        assert_eq!(of.of(&((1 << 30)..(1 << 30) + 1)), Ok((1 << 18, 1 << 18)), "wherever it is");
        for empty in [5..5, Range { start: 6, end: 5 }] {
            assert_eq!(within(empty.clone()), Err(Error::Empty));
            assert_eq!(of.of(&empty), Err(Error::Empty));
        }
        let max_bytes = 1 << 20;
        for beyond in [0..max_bytes + 1, max_bytes..max_bytes + 1, max_bytes..u64::MAX] {
            let end_bytes = beyond.end;
            assert_eq!(within(beyond), Err(Error::TooBig { end_bytes, max_bytes }));
        }
    }

    #[test]
    fn index_bits_are_spread_over_levels_of_1_to_20_bits() {
        let levels = |bits: u32, depth, split: Option<Vec<u8>>| {
            Geometry { file_bytes_max: 1 << (12 + bits), depth, split, ..Geometry::default() }.levels()
        };
        assert_eq!(levels(29, 5, None), Ok(vec![6, 6, 6, 6, 5]));
        assert_eq!(levels(9, 4, None), Ok(vec![3, 2, 2, 2]));
        assert_eq!(levels(20, 1, None), Ok(vec![20]));
        assert_eq!(levels(8, 8, None), Ok(vec![1; 8]));
        for (bits, depth) in [(21, 1), (9, 9), (7, 8), (9, 0)] {
            assert_eq!(levels(bits, depth, None), Err(BadGeometry::Depth { depth, index_bits: bits }));
        }
        assert_eq!(levels(21, 2, Some(vec![20, 1])), Ok(vec![20, 1]));
        assert_eq!(levels(8, 8, Some(vec![1; 8])), Ok(vec![1; 8]));
        for (bits, depth, split) in [
            (21, 1, vec![21]),
            (9, 2, vec![9, 0]),
            (9, 9, vec![1; 9]),
            (9, 2, vec![4, 4]),
            (9, 1, vec![4, 5]),
        ] {
            let wrong = BadGeometry::Split { split: split.clone(), depth, index_bits: bits };
            assert_eq!(levels(bits, depth, Some(split)), Err(wrong));
        }
        let odd = Geometry { file_bytes_max: 4096 * 5, depth: 2, ..Geometry::default() };
        assert_eq!(odd.levels(), Ok(vec![2, 1]), "5 segments need 3 bits");
    }
}
