//! fsck: reads the media independently, reports numbered issues, and can repair them.
//!
//! It shares `format` with the engine and nothing with recovery: the two readings of one image must agree.
//!
//! State       `media`: the region, and beside it the blocks that repair has changed so far. Nothing is written to the region
//!             before [`Verdict::apply`], which writes the undo file first.
//! Passes      A pass reads everything (`pass`), and collects issues with their repairs. Repairs have levels. Pointers to blocks
//!             that are no chunks come first. Then exact repairs (one flipped bit, identified by a checksum), then structures made anew,
//!             logs, names, blocks with two claims. Only the lowest level with work is done; then everything is read again, until no
//!             work is left. So no later step acts on an issue that an earlier repair would have shown to be an error of
//!             reading. Issues that a repair uncovers are mended in the same run, under one undo file. A store that changes nothing
//!             is no repair, so every pass but the last changes something. A run that has not ended after `PASSES_MAX` passes
//!             reports that and changes nothing on media.
//! Recovery    judges the same image at a mount. Both take from `format` (`parse`, `decode`) which part of a record counts and how a
//!             torn record looks: a line that one of them finds damaged must not look torn to the other.
//! Invariants  F1  every position is checked against the layout before it is read. Chains and lists end because each block is
//!                 entered once. Bytes of the media never index, allocate or recurse unchecked.
//!             F2  an inode without damage in its own structures keeps its content, whatever happens to others: if several files claim
//!                 a block as data, each ends with a copy.
//!             F3  the traces of a power cut are no damage: fsck notes them, and recovery handles them at the next mount.
//! To add      a kind of record: `contents` says which inodes may have it, and which part survives when a log is written anew.
//! Source      numbered issues with a text each, and repair over a view in memory: our own form of the usual fsck(8) design.

mod catalogue;
mod claims;
mod contents;
pub mod dump;
mod image;
mod log;
mod media;
mod mend;
mod page;
mod pass;
mod relog;
mod repair;
mod slots;
mod survey;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod tree;
pub mod undo;

pub use catalogue::{CATALOGUE, Code, Entry, Severity};
pub use log::Figures;
pub use pass::{Issue, Location};
pub use repair::{Applied, Verdict, examine, give_up_undo};
pub use survey::{Inode, Owner, Survey, survey};

/// Why an image cannot be checked at all.
#[derive(thiserror::Error, Debug)]
pub enum FsckError {
    /// Neither copy of the superblock is one of this format, not even a damaged one.
    #[error("cannot check {image}: it holds no heddle file system, but {what}")]
    NotAnImage {
        /// The image.
        image: String,
        /// The content found instead.
        what: heddle_signatures::Content,
    },
    /// Another version of the format.
    #[error(
        "cannot check {image}: its format is version {found}, this program knows version {known}. Use the heddle that made it"
    )]
    OtherVersion {
        /// The image.
        image: String,
        /// Its version.
        found: u32,
        /// The version that this program knows.
        known: u32,
    },
    /// Another format was made on it later.
    #[error(
        "cannot check {image}: it holds {what}, made after the heddle file system of which it has the rest. If that is what counts, \
         take the other mark away with: wipefs -o {at:#x} {}", heddle_undo::shell_word(image.as_ref())
    )]
    Foreign {
        /// The image.
        image: String,
        /// The other format.
        what: String,
        /// Position of its magic number.
        at: u64,
    },
    /// A repair of it was stopped half-way.
    #[error("{image} is half repaired: a repair of it was stopped half-way. {way}")]
    HalfRepaired {
        /// The image.
        image: String,
        /// How to go back.
        way: String,
    },
    /// The undo file cannot be used.
    #[error("cannot use the undo file {file}: {why}")]
    Undo {
        /// The file.
        file: String,
        /// The cause, and the way out.
        why: String,
    },
    /// A store or a fence failed.
    #[error("cannot write {image}: {why}{way}")]
    Write {
        /// The image.
        image: String,
        /// The system's error.
        why: String,
        /// How to go back, if there is an undo file.
        way: String,
    },
}
