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
