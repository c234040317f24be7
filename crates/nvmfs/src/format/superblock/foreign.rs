//! Another format that was made over an image later.
//!
//! The first block of an image holds the first superblock, and zeros behind it: mkfs clears the block. So the
//! magic number of another format in it is newer than the image, of which the second superblock, in the last
//! block, is left. A mount or a repair would write the first superblock over the other format.

use heddle_pmem::BLOCK_BYTES;
use heddle_signatures::Content;

/// The name of this format among signatures.
const OWN: &str = "a heddle file system";

/// The other format in an image with this content, and the position of its magic number. `None`: nothing was
/// made over the image.
pub fn made_later(content: &Content) -> Option<(String, u64)> {
    let (other, at) = content.other_than(OWN, |at| at < BLOCK_BYTES as u64)?;
    Some((other.to_string(), at))
}
