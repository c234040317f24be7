//! Another format that was made over an image later.
//!
//! The first block of an image holds the first superblock, and zeros behind it: mkfs clears the block. So the
//! magic number of another format in it is newer than the image, of which the second superblock, in the last
//! block, is left. A mount or a repair would write the first superblock over the other format.

use heddle_pmem::BLOCK_BYTES;

/// The name of this format among signatures.
const OWN: &str = "a heddle file system";

/// Where signatures are looked for. Farther on a read would take memory for the holes of an image that has
/// grown.
const NEAR_BYTES: u64 = 128 << 10;

/// The other format in an image of so many bytes, and the position of its magic number. `None`: nothing was made
/// over the image. `read` fills a buffer from a position.
pub fn made_later(len_bytes: u64, read: &dyn Fn(u64, &mut [u8])) -> Option<(String, u64)> {
    let near = |at: u64, into: &mut [u8]| {
        if at + into.len() as u64 <= NEAR_BYTES.min(len_bytes) { read(at, into) } else { into.fill(0) }
    };
    let content = heddle_signatures::detect(len_bytes, &near);
    let (other, at) = content.other_than(OWN, |at| at < BLOCK_BYTES as u64)?;
    Some((other.to_string(), at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN_BYTES: u64 = 4 << 20;
    const EROFS: &[u8] = b"\xe2\xe1\xf5\xe0";
    const OCFS2: &[u8] = b"OCFSV2";

    /// What is found in media with these bytes, of which no more is read than may be.
    fn found(marks: &[(usize, &[u8])]) -> Option<(String, u64)> {
        let mut media = vec![0; LEN_BYTES as usize];
        for (at, bytes) in marks {
            media[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        made_later(LEN_BYTES, &|at, into| {
            assert!(at + into.len() as u64 <= 131_072, "{} bytes at {at}", into.len());
            into.copy_from_slice(&media[at as usize..][..into.len()]);
        })
    }

    #[test]
    fn marks_in_the_first_block_are_of_a_format_made_later() {
        let own: (usize, &[u8]) = (0, b"HEDDLE\x00\xf5");
        let wanted = |kind: &str, at| Some((kind.to_owned(), at));
        assert_eq!(found(&[own]), None);
        assert_eq!(found(&[own, (1024, EROFS)]), wanted("erofs", 1024));
        assert_eq!(found(&[own, (2048, OCFS2)]), wanted("ocfs2", 2048));
        // The second block is the inode directory's, and data follow it.
        for at in [4096, 8192] {
            assert_eq!(found(&[own, (at, OCFS2)]), None, "{at}");
        }
        assert_eq!(found(&[own, (0x10040, &b"_BHRfS_M"[..])]), None);
        let label: Vec<u8> = "disk".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let f2fs = [own, (1024, &b"\x10\x20\xf5\xf2"[..]), (1024 + 0x7c, &label[..])];
        assert_eq!(found(&f2fs), wanted("f2fs (label \"disk\")", 1024));
    }

    #[test]
    fn a_mark_of_media_shorter_than_what_is_read_counts() {
        let mut media = [0; 4096];
        media[1024..1028].copy_from_slice(EROFS);
        let read = |at: u64, into: &mut [u8]| into.copy_from_slice(&media[at as usize..][..into.len()]);
        assert_eq!(made_later(4096, &read), Some(("erofs".to_owned(), 1024)));
    }
}
