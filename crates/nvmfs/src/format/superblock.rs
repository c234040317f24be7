//! The superblock: what the image is. Two copies, in the first and the last block.
//!
//! | offset | size | field | guards against |
//! |--------|------|-------|----------------|
//! | 0   | 8  | magic | a file that is no image |
//! | 8   | 4  | version | an image of another format |
//! | 12  | 4  | crc32c of the other bytes | a torn or damaged copy |
//! | 16  | 16 | uuid | blocks of another image: it seeds every checksum |
//! | 32  | 8  | sequence | which copy is newer |
//! | 40  | 8  | blocks in all | a truncated image |
//! | 48  | 8  | mount epoch | records of an earlier mount that look unused |
//! | 56  | 8  | inode directory: first block | |
//! | 64  | 8  | inode directory: pointers | |
//! | 72  | 8  | first block of the data area | |
//! | 80  | 8  | when it was made, ns | |
//! | 88  | 4  | variant | mounting as a variant with another log |
//! | 92  | 4  | 1: unmounted cleanly | |
//! | 96  | 8  | when it was mounted last, ns | |
//! | 104 | 24 | unused | |

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of an image.
pub const MAGIC: [u8; 8] = *b"HEDDLE\x00\xf5";
/// Format this code reads and writes. It may change at any time before 1.0.
pub const VERSION: u32 = 1;
/// Times an image can be mounted: a generation has 22 bits for the mount that made the inode, and must never come twice.
pub const MOUNTS_MAX: u64 = (1 << 22) - 1;
/// A superblock is written at a mount, an unmount and a repair, and counts that.
const SEQUENCE_MAX: u64 = 4 * MOUNTS_MAX;
/// Bytes of the superblock.
pub const SUPERBLOCK_BYTES: usize = 128;

/// A field of the superblock.
#[derive(Clone, Copy, Debug)]
pub struct ByteField {
    /// As in [`Superblock`].
    pub name: &'static str,
    /// Where it begins.
    pub offset: usize,
    /// How long it is.
    pub bytes: usize,
}

macro_rules! superblock {
    ($($field:ident: $type:ty,)*) => {
        /// See the module.
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
    unused: [u8; 24],
}

const _: () = assert!(size_of::<Superblock>() == SUPERBLOCK_BYTES);
const _: () = assert!(std::mem::offset_of!(Superblock, uuid) == 16);
const _: () = assert!(std::mem::offset_of!(Superblock, variant) == 88);

/// What the bytes of a superblock turned out to be.
#[derive(Clone, Copy, Debug)]
pub enum FoundSuperblock {
    /// All zero.
    Blank,
    /// Something else.
    Foreign,
    /// An image of this other format version.
    OtherVersion(u32),
    /// Ours, its checksum wrong.
    Damaged,
    /// Ours.
    Whole(Superblock),
}

impl Superblock {
    fn sum(&self) -> u32 {
        let mut copy = *self;
        copy.crc = U32::ZERO;
        crc32c::crc32c(copy.as_bytes())
    }

    /// The next of this image, to be written over it; `None`: it counts no further.
    pub fn next(mut self, mounts: u64) -> Option<Superblock> {
        self.epoch = U64::new(self.epoch.get() + mounts);
        self.sequence = U64::new(self.sequence.get() + 1);
        (self.epoch.get() <= MOUNTS_MAX && self.sequence.get() <= SEQUENCE_MAX).then_some(self)
    }

    /// As the next mount writes it; `None`: it counts no further, with the unmount after it.
    pub fn mounted(self) -> Option<Superblock> {
        self.next(1).filter(|mounted| mounted.next(0).is_some())
    }

    /// The bytes, checksum filled in.
    pub fn sealed(mut self) -> Superblock {
        self.crc = U32::new(self.sum());
        self
    }

    /// Seed of every checksum of this image.
    pub fn seed(&self) -> u32 {
        crc32c::crc32c(&self.uuid)
    }

    /// Tells what these bytes are.
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
            // No image counts so far: the checksum was made over nonsense.
            () if sb.epoch.get() > MOUNTS_MAX || sb.sequence.get() > SEQUENCE_MAX => FoundSuperblock::Damaged,
            () => FoundSuperblock::Whole(sb),
        }
    }
}
