//! What is on the media, and nothing else: layouts, checksums, how each thing tells whole from torn from damaged.
//!
//! Every structure certifies itself. Records and headers are lines of 8-byte words, each with its two top bits set: media
//! loses whole words at a power cut (they stay zero, pages are zeroed before they are linked), so a word that is zero
//! means *torn* and a wrong checksum without a zero word means *damaged*, even after one flipped bit (protocol review D3).

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
