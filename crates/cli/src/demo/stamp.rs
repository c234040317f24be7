//! Content that the demo writes: every page names the write that it belongs to, and no two writes look alike.
//!
//! Writer `w` writes in pages `[w * SHARE_PAGES, (w + 1) * SHARE_PAGES)` of one file. Its write number `seq`
//! covers a few pages, which `w` and `seq` determine. So the number of writes determines the content of the
//! file.

use std::ops::Range;

pub const PAGE_BYTES: usize = 4096;
/// Pages of one writer in the shared file.
pub const SHARE_PAGES: u64 = 512;
/// Most pages of one write.
const WRITE_PAGES_MAX: u64 = 8;

/// Pages of the file that a write covers.
pub fn pages(writer: u64, seq: u64) -> Range<u64> {
    let dice = mix(writer << 48 ^ seq);
    let count = 1 + dice % WRITE_PAGES_MAX;
    let first = writer * SHARE_PAGES + (dice >> 8) % (SHARE_PAGES - count + 1);
    first..first + count
}

/// Bytes of a page after write `seq`, which is never 0.
pub fn fill(page: u64, seq: u64, into: &mut [u8]) {
    for (slot, word) in into.chunks_exact_mut(8).enumerate() {
        let value = if slot == 0 { seq } else { mix(seq << 24 ^ page << 10 ^ slot as u64) };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The write that a page holds completely; 0 for a page never written; `None` for any other content.
pub fn read(page: u64, bytes: &[u8]) -> Option<u64> {
    let seq = u64::from_le_bytes(*bytes.first_chunk()?);
    if seq == 0 {
        return bytes.iter().all(|byte| *byte == 0).then_some(0);
    }
    let mut want = vec![0; bytes.len()];
    fill(page, seq, &mut want);
    (want == bytes).then_some(seq)
}

/// Bytes without a pattern.
pub fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes as u64 / 8).flat_map(|i| mix(seed << 40 ^ i).to_le_bytes()).collect()
}

/// Spreads every bit over all others (the finalizer of SplitMix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_two_writes_is_neither() {
        let (mut old, mut new) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        fill(7, 41, &mut old);
        fill(7, 42, &mut new);
        assert_eq!((read(7, &old), read(7, &new), read(7, &[0; PAGE_BYTES])), (Some(41), Some(42), Some(0)));
        assert_eq!(read(8, &new), None, "another page's bytes");
        new[2048..].copy_from_slice(&old[2048..]);
        assert_eq!(read(7, &new), None, "half of each");
    }

    #[test]
    fn a_write_stays_in_its_writers_share() {
        for seq in 1..5000 {
            for writer in 0..3 {
                let pages = pages(writer, seq);
                assert!(pages.start >= writer * SHARE_PAGES && pages.end <= (writer + 1) * SHARE_PAGES);
                assert!((1..=WRITE_PAGES_MAX).contains(&(pages.end - pages.start)));
            }
        }
    }
}
