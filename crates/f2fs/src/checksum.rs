//! The checksum of superblock, checkpoints and inodes: CRC-32 with the reflected polynomial 0xEDB88320. Its
//! start value is given, and the result is not inverted.

use crate::format::{INODE_CHECKSUM_OFFSET_BYTES, InodeBlock};
use zerocopy::IntoBytes;

/// Start value for checkpoints and superblocks: the magic number.
pub const SEED: u32 = 0xf2f5_2010;

/// The checksum of `bytes`, started from `seed`. A checksum may be the seed of the next piece.
pub fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    // The library inverts before and after, as is usual.
    let mut hasher = crc32fast::Hasher::new_with_initial(!seed);
    hasher.update(bytes);
    !hasher.finalize()
}

/// Start value for the inodes of a file system.
pub fn inode_seed(uuid: &[u8; 16]) -> u32 {
    checksum(u32::MAX, uuid)
}

/// The checksum of an inode: over its number, its generation and its block, with the checksum's own word as
/// zero.
pub fn of_inode(seed: u32, inode: &InodeBlock) -> u32 {
    let (bytes, at) = (inode.as_bytes(), INODE_CHECKSUM_OFFSET_BYTES);
    let owner = checksum(checksum(seed, inode.footer.ino.as_bytes()), inode.generation.as_bytes());
    [&bytes[..at], &[0; 4], &bytes[at + 4..]].into_iter().fold(owner, checksum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_usual_crc_without_its_inversions() {
        // The check value of CRC-32: 0xcbf43926 for these digits, started from all ones and inverted at the end.
        assert_eq!(checksum(u32::MAX, b"123456789"), !0xcbf4_3926);
        assert_eq!(checksum(checksum(SEED, b"1234"), b"56789"), checksum(SEED, b"123456789"));
    }
}
