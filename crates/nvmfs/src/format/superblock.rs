//! The superblock: identity and layout of the image. Two copies, in the first and the last block.
//!
//! | offset | size | field | guards against |
//! |--------|------|-------|----------------|
//! | 0   | 8  | magic | a file that is no image |
//! | 8   | 4  | version | an image of another format |
//! | 12  | 4  | crc32c of the other bytes | a torn or damaged copy |
//! | 16  | 16 | uuid | another image: distinguishes this image from all others, and its copies from theirs |
//! | 32  | 8  | sequence | which copy is newer |
//! | 40  | 8  | blocks in all | a truncated image |
//! | 48  | 8  | mount epoch | records of an earlier mount that look unused |
//! | 56  | 8  | inode directory: first block | |
//! | 64  | 8  | inode directory: pointers | |
//! | 72  | 8  | first block of the data area | |
//! | 80  | 8  | when it was made, ns | |
//! | 88  | 4  | variant | mounting as a variant with another log |
//! | 92  | 4  | 1: unmounted cleanly; 2: a repair stores its blocks | using an image that a repair has left half done |
//! | 96  | 8  | when it was mounted last, ns | |
//! | 104 | 4  | seed of every checksum, made with the image | blocks of another image |
//! | 108 | 8  | number of the last repair; 0: none | going back by the undo file of another repair |
//! | 116 | 12 | unused | |

mod foreign;

use super::layout::Layout;
use crate::ids::BlockNo;
pub use foreign::made_later;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of an image.
pub const MAGIC: [u8; 8] = *b"HEDDLE\x00\xf5";
/// Format this code reads and writes. It may change at any time before 1.0.
pub const VERSION: u32 = 3;
/// Most mounts of an image: a generation has 22 bits for the mount that made the inode, and must never be
/// used twice.
pub const MOUNTS_MAX: u64 = (1 << 22) - 1;
/// Largest sequence number: it grows with each write of the superblock, at a mount, an unmount and a repair.
const SEQUENCE_MAX: u64 = 4 * MOUNTS_MAX;
/// In place of `clean`, while the blocks of a repair, or of the way back from it, are being stored.
pub const HALF_REPAIRED: u32 = 2;
/// Bytes of the superblock.
pub const SUPERBLOCK_BYTES: usize = 128;

/// A field of the superblock.
#[derive(Clone, Copy, Debug)]
pub struct ByteField {
    /// The field's name in [`Superblock`].
    pub name: &'static str,
    /// Its first byte.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

macro_rules! superblock {
    ($($field:ident: $type:ty,)*) => {
        /// The superblock.
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        #[allow(missing_docs)]
        pub struct Superblock {
            $(pub $field: $type,)*
        }
        /// All its fields.
        pub const FIELDS: &[ByteField] = &[$(ByteField {
            name: stringify!($field),
            offset: std::mem::offset_of!(Superblock, $field),
            bytes: size_of::<$type>(),
        }),*];
    };
}

superblock! {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    uuid: [u8; 16],
    sequence: U64,
    blocks_total: U64,
    epoch: U64,
    inode_dir_block: U64,
    inode_dir_pointers: U64,
    data_block: U64,
    created_ns: U64,
    variant: U32,
    clean: U32,
    mounted_ns: U64,
    seed: U32,
    repair: U64,
    unused: [u8; 12],
}

const _: () = assert!(size_of::<Superblock>() == SUPERBLOCK_BYTES);
const _: () = assert!(std::mem::offset_of!(Superblock, uuid) == 16);
const _: () = assert!(std::mem::offset_of!(Superblock, variant) == 88);

/// The result of decoding a superblock.
#[derive(Clone, Copy, Debug)]
pub enum FoundSuperblock {
    /// All zero.
    Blank,
    /// Not a superblock.
    Foreign,
    /// An image of this other version of the format.
    OtherVersion(u32),
    /// A superblock with a wrong checksum.
    Damaged,
    /// A valid superblock.
    Whole(Superblock),
}

impl Superblock {
    fn sum(&self) -> u32 {
        let mut copy = *self;
        copy.crc = U32::ZERO;
        crc32c::crc32c(copy.as_bytes())
    }

    /// The next superblock of this image, to be written over it; `None`: its counters are at their limit.
    pub fn next(mut self, mounts: u64) -> Option<Superblock> {
        self.epoch = U64::new(self.epoch.get() + mounts);
        self.sequence = U64::new(self.sequence.get() + 1);
        (self.epoch.get() <= MOUNTS_MAX && self.sequence.get() <= SEQUENCE_MAX).then_some(self)
    }

    /// The superblock that the next mount writes; `None`: its counters are at their limit, including the
    /// unmount after it.
    pub fn mounted(self) -> Option<Superblock> {
        self.next(1).filter(|mounted| mounted.next(0).is_some())
    }

    /// Fills in the checksum.
    pub fn sealed(mut self) -> Superblock {
        self.crc = U32::new(self.sum());
        self
    }

    /// Seed of every checksum of this image.
    pub fn seed(&self) -> u32 {
        self.seed.get()
    }

    /// Decodes these bytes.
    pub fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> FoundSuperblock {
        if bytes.iter().all(|b| *b == 0) {
            return FoundSuperblock::Blank;
        }
        let Ok(sb) = Superblock::read_from_bytes(bytes) else { return FoundSuperblock::Foreign };
        let right = sb.crc.get() == sb.sum();
        match () {
            () if sb.magic != MAGIC && !right => FoundSuperblock::Foreign,
            () if sb.magic == MAGIC && sb.version.get() != VERSION && right => {
                FoundSuperblock::OtherVersion(sb.version.get())
            }
            () if sb.magic != MAGIC || !right || sb.version.get() != VERSION => FoundSuperblock::Damaged,
            // No image reaches these counts, so the checksum was made over forged values.
            () if sb.epoch.get() > MOUNTS_MAX || sb.sequence.get() > SEQUENCE_MAX => FoundSuperblock::Damaged,
            () => FoundSuperblock::Whole(sb),
        }
    }
}

/// Inodes may take a quarter of an image.
const BLOCKS_A_CHUNK: u64 = 4;

/// Both copies, with their positions.
#[derive(Clone, Copy, Debug)]
pub struct Copies {
    /// The contents of the first block.
    pub first: FoundSuperblock,
    /// The contents of the second copy's position. A whole superblock of another image counts as foreign.
    pub second: FoundSuperblock,
    /// That position: taken from the first copy, or else the last block.
    pub second_block: u64,
    /// Number of blocks of the image according to the first copy, whole or damaged.
    told: Option<u64>,
}

impl Copies {
    /// Reads them from media of so many blocks; `read` returns the first bytes of a block.
    ///
    /// The last block of the media may hold the second copy of an older, larger image. It counts only if the
    /// first copy does not contradict it.
    pub fn read(blocks: u64, read: &dyn Fn(u64) -> [u8; SUPERBLOCK_BYTES]) -> Copies {
        let head = read(0);
        let first = Superblock::decode(&head);
        let last = blocks.saturating_sub(1);
        let bytes = Superblock::read_from_bytes(&head).ok();
        // Damage rarely destroys all of a copy: the rest of its fields identifies the other copy and its
        // position.
        let told = bytes.filter(|sb| match first {
            FoundSuperblock::Whole(_) => true,
            // With a damaged magic it looks foreign.
            FoundSuperblock::Damaged | FoundSuperblock::Foreign => sb.fits_mostly(),
            _ => false,
        });
        let of_told =
            told.map(|sb| sb.blocks_total.get().wrapping_sub(1)).filter(|block| (1..=last).contains(block));
        let is_whole = matches!(first, FoundSuperblock::Whole(_));
        // The size itself may be damaged: the number of inode pointers allows only four sizes.
        let guessed = told.filter(|_| !is_whole).into_iter().flat_map(|sb| {
            let pointers = sb.inode_dir_pointers.get().min(1 << BlockNo::BITS);
            pointers * BLOCKS_A_CHUNK..(pointers + 1) * BLOCKS_A_CHUNK
        });
        let guessed = guessed.map(|blocks| blocks.wrapping_sub(1)).filter(|block| (1..=last).contains(block));
        let mut places = of_told.into_iter().chain(guessed).chain((!is_whole).then_some(last));
        let copy = places.find_map(|block| match Superblock::decode(&read(block)) {
            FoundSuperblock::Whole(sb) if sb.is_copy_of(told.as_ref(), block) => {
                Some((block, FoundSuperblock::Whole(sb)))
            }
            _ => None,
        });
        let (second_block, second) = copy.unwrap_or_else(|| {
            let block = of_told.unwrap_or(last);
            match Superblock::decode(&read(block)) {
                FoundSuperblock::Whole(_) => (block, FoundSuperblock::Foreign),
                other => (block, other),
            }
        });
        Copies { first, second, second_block, told: told.map(|sb| sb.blocks_total.get()) }
    }

    /// Number of blocks of the image, if known.
    pub fn blocks(&self) -> Option<u64> {
        self.newest().map(|sb| sb.blocks_total.get()).or(self.told)
    }

    /// The newer of the whole copies.
    pub fn newest(&self) -> Option<Superblock> {
        let whole = [self.first, self.second].into_iter().filter_map(|found| match found {
            FoundSuperblock::Whole(sb) => Some(sb),
            _ => None,
        });
        whole.max_by_key(|sb| sb.sequence.get())
    }

    /// The whole copies, and their blocks.
    pub fn whole(&self) -> impl Iterator<Item = (u64, Superblock)> + use<> {
        let both = [(0, self.first), (self.second_block, self.second)];
        both.into_iter().filter_map(|(block, found)| match found {
            FoundSuperblock::Whole(sb) => Some((block, sb)),
            _ => None,
        })
    }

    /// The number of a repair that was stopped half-way: a cut between the copies leaves the mark on one.
    pub fn half_repaired(&self) -> Option<u64> {
        self.whole().find(|(_, sb)| sb.clean.get() == HALF_REPAIRED).map(|(_, sb)| sb.repair.get())
    }

    /// Returns true if the first copy is whole and the second is not, or is older.
    pub fn first_counts(&self) -> bool {
        match (self.first, self.second) {
            (FoundSuperblock::Whole(first), FoundSuperblock::Whole(second)) => {
                first.sequence.get() > second.sequence.get()
            }
            (FoundSuperblock::Whole(_), _) => true,
            _ => false,
        }
    }
}

impl Superblock {
    /// Returns true if this copy, found in that block, is of the same image as the first one or its readable
    /// fields. It must lie where it says.
    fn is_copy_of(&self, first: Option<&Superblock>, block: u64) -> bool {
        let same = |first: &Superblock| {
            first.uuid == self.uuid || first.blocks_total == self.blocks_total && first.seed == self.seed
        };
        self.blocks_total.get() == block + 1 && first.is_none_or(same)
    }

    /// Returns true if most of the fields that depend on each other, or have only one possible value, agree.
    fn fits_mostly(&self) -> bool {
        let layout = Layout::new(self.blocks_total.get().min(1 << BlockNo::BITS));
        let signs = [
            self.magic == MAGIC,
            self.version.get() == VERSION,
            self.inode_dir_block.get() == layout.inode_dir.0,
            self.inode_dir_pointers.get() == layout.chunks_max,
            self.data_block.get() == layout.data.0,
            self.clean.get() <= HALF_REPAIRED,
            self.unused == [0; 12],
        ];
        signs.into_iter().filter(|sign| *sign).count() >= 4
    }
}

#[cfg(test)]
mod tests;
