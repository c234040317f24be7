//! The media format: layouts alone, little-endian, those of Linux and f2fs-tools. The meaning of a field for
//! the engine is described where it is used.
//!
//! A block has 4 KiB, a segment 512 blocks. The device holds, in this order: two copies of the superblock,
//! the checkpoint packs, SIT (live blocks of each segment), NAT (position of each node), SSA (owner of each
//! block), and the main area with nodes and data.

mod checkpoint;
mod dentry;
mod inode;
mod nat;
mod node;
mod node_log;
mod sit;
mod summary;
mod superblock;
mod xattr;

pub use checkpoint::*;
pub use dentry::*;
pub use inode::*;
pub use nat::*;
pub use node::*;
pub use node_log::*;
pub use sit::*;
pub use summary::*;
pub use superblock::*;
pub use xattr::*;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Blocks of a segment.
pub const SEGMENT_BLOCKS: u32 = 512;

/// A block's bytes.
pub type Block = [u8; BLOCK_BYTES];

/// Bit `index` of a bitmap whose first bit is the highest of the first byte (SIT and version bitmaps).
pub fn bit_msb(bitmap: &[u8], index: usize) -> bool {
    bitmap.get(index / 8).is_some_and(|byte| byte & (0x80 >> (index % 8)) != 0)
}

/// Sets or clears bit `index` of a bitmap whose first bit is the highest of the first byte.
pub fn set_bit_msb(bitmap: &mut [u8], index: usize, value: bool) {
    if let Some(byte) = bitmap.get_mut(index / 8) {
        let mask = 0x80 >> (index % 8);
        *byte = if value { *byte | mask } else { *byte & !mask };
    }
}

/// Sets or clears bit `index` of a bitmap whose first bit is the lowest of the first byte.
pub fn set_bit_lsb(bitmap: &mut [u8], index: usize, value: bool) {
    if let Some(byte) = bitmap.get_mut(index / 8) {
        let mask = 1 << (index % 8);
        *byte = if value { *byte | mask } else { *byte & !mask };
    }
}

/// Bit `index` of a bitmap whose first bit is the lowest of the first byte (directories).
pub fn bit_lsb(bitmap: &[u8], index: usize) -> bool {
    bitmap.get(index / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_either_end_of_a_byte() {
        let (mut high, mut low) = ([0; 2], [0; 2]);
        for at in [0, 3, 9, 16, usize::MAX] {
            set_bit_msb(&mut high, at, true);
            set_bit_lsb(&mut low, at, true);
        }
        assert_eq!((high, low), ([0x90, 0x40], [0x09, 0x02]));
        for at in [0, 3, 9, 15, 16, 17] {
            let set = [0, 3, 9].contains(&at);
            assert_eq!((bit_msb(&high, at), bit_lsb(&low, at)), (set, set), "bit {at}");
        }
        set_bit_msb(&mut high, 3, false);
        set_bit_lsb(&mut low, 3, false);
        set_bit_msb(&mut high, 4, false);
        set_bit_lsb(&mut low, 4, false);
        assert_eq!((high, low), ([0x80, 0x40], [0x01, 0x02]));
    }

    #[test]
    fn a_bit_that_is_set_stays_so() {
        let (mut high, mut low) = ([0xa5], [0xa5]);
        for at in 0..8 {
            set_bit_msb(&mut high, at, true);
            set_bit_lsb(&mut low, at, true);
        }
        assert_eq!((high, low), ([0xff], [0xff]));
        for at in [0, 0, 7, 7] {
            set_bit_msb(&mut high, at, false);
            set_bit_lsb(&mut low, at, false);
        }
        assert_eq!((high, low), ([0x7e], [0x7e]));
    }
}
