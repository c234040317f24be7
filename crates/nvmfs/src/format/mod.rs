//! The media format, and nothing else: layouts and checksums, and how each structure tells whole from torn
//! from damaged.
//!
//! Every structure certifies itself. Records and headers are lines of 8-byte words, each with its two top
//! bits set. At a power cut media loses whole words: they stay zero, since pages are zeroed before they are
//! linked. So a zero word means *torn*, and a wrong checksum without a zero word means *damaged*, even after
//! one flipped bit (docs/protocol.md D3).

pub mod blob;
pub mod extent_list;
pub mod fields;
pub mod inode;
pub mod layout;
pub mod page;
pub mod pointer;
pub mod record;
pub mod superblock;
pub mod word;

#[cfg(test)]
mod tests;
