//! What SRL(tree) and SRL(array) cost in memory: Equations 1 to 3 of the SRL paper, put right.
//!
//! With `M` bits of file size, `S` of segment size, `d` levels and a working set of `2^W` bytes, each level indexes
//! `I = ceil((M - S) / d)` bits (Eq. 1). A level-`l` node has `2^I` pointers and covers `2^(S + I(d - l))` bytes, so the working set
//! needs `2^(W - S - I(d - l))` of them, at least one, and one lock word for each of its segments.
//!
//! As printed, Eq. 2 has `d - l - 1` in place of `d - l`, which counts a level's ENTRIES, not its nodes; Eq. 3 then multiplies by `2^l`
//! (or, read as `2^I`, by the entries once more). For `M` = 41, `S` = 12, `d` = 5 and 512 GB that gives 16.6 GiB (65.5 GiB), although the
//! paper says that the tree stays below the array's 1.5 GiB up to a working set of 512 GB. The form here gives 1,552 MiB at 512 GB: the
//! paper's crossover.
//!
//! These are the papers' figures, with leaves of pointers to words. Our leaves hold the words themselves and take about a third of
//! that; what a file really takes is [`RangeLock::memory_bytes`](crate::RangeLock::memory_bytes).

const POINTER_BYTES: u64 = 8;
const WORD_BYTES: u64 = 4;

/// Bytes that SRL(tree) takes for a working set of `2^working_set_bits` bytes (Eq. 1 to 3, corrected).
///
/// # Panics
/// Unless `segment_bits <= working_set_bits <= file_bits <= 64` and `depth > 0`.
pub fn model(file_bits: u32, segment_bits: u32, depth: u32, working_set_bits: u32) -> u64 {
    assert!(
        segment_bits <= working_set_bits && working_set_bits <= file_bits && file_bits <= 64 && depth > 0
    );
    let index_bits = (file_bits - segment_bits).div_ceil(depth);
    let segments_bits = working_set_bits - segment_bits;
    let pointers: u64 = (0..depth)
        .map(|level| segments_bits.saturating_sub(index_bits * (depth - level)))
        .map(|n| 1 << (n + index_bits))
        .sum();
    pointers * POINTER_BYTES + (WORD_BYTES << segments_bits)
}

/// Bytes that SRL(array) takes whatever the working set: a word for each segment of the largest file.
pub fn array(file_bytes_max: u64, segment_bits: u32) -> u64 {
    file_bytes_max.div_ceil(1 << segment_bits) * WORD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn tree_and_array_cross_at_the_papers_512_gb() {
        let array = array(1536 << 30, 12);
        assert_eq!(array, 1536 * MIB);
        assert_eq!(model(41, 12, 5, 39) / MIB, 1552);
        assert!(model(41, 12, 5, 38) < array && model(41, 12, 5, 39) > array);
    }

    #[test]
    fn pnovas_example_of_a_gigabyte() {
        assert_eq!(array(1 << 30, 12), MIB);
    }

    #[test]
    fn the_model_counts_nodes_of_each_level_and_words() {
        // Levels of 15 bits, 2^14 segments: a node of each level, and the words.
        assert_eq!(model(41, 12, 2, 26), 2 * 8 * (1 << 15) + (4 << 14));
        // 3 bits, 6 levels, 2^18 segments: 1, 8, ... 2^15 nodes of 8 pointers.
        let pointers: u64 = (0..6).map(|level| 8 << (3 * level)).sum();
        assert_eq!(model(30, 12, 6, 30), 8 * pointers + (4 << 18));
        assert_eq!(model(12, 12, 1, 12), 8 + 4, "one segment is a file");
        assert_eq!((array(1, 12), array(4097, 12)), (4, 8), "a part of a segment has a word too");
        for (file, segment, depth, set) in
            [(41, 12, 0, 20), (41, 21, 5, 20), (41, 12, 5, 42), (65, 12, 5, 20)]
        {
            assert!(
                std::panic::catch_unwind(|| model(file, segment, depth, set)).is_err(),
                "{set} of {file}"
            );
        }
    }

    #[test]
    fn a_small_working_set_costs_one_node_a_level() {
        assert_eq!(model(41, 12, 5, 12), 5 * 64 * 8 + 4);
    }
}
