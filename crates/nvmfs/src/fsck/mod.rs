//! fsck: reads the media by itself, says what is wrong with it in numbered issues, and can put it right.
//!
//! It shares `format` with the engine and nothing with recovery: two readings of one image that must agree.
//!
//! State       `media`: the region, and beside it the blocks that repair has changed so far. Nothing is written to the region
//!             before [`Verdict::apply`], and then the undo file comes first.
//! Passes      A pass reads everything (`pass`) and collects issues and what would mend each. Repairs have a level: what is exact
//!             (one flipped bit, told by a checksum) comes before what is made anew, logs before names, names before blocks that two
//!             claim; before all, pointers to chunks that are none. After the lowest level that has something to do, all is read again,
//!             until nothing is left to do: so that no later step acts on what an earlier one would have shown to be an error of
//!             reading, and what a repair uncovers is mended in the same run, under one undo file. A store that changes nothing is no
//!             repair, so that every pass but the last changes something; a run that has not ended after `PASSES_MAX` of them changes
//!             nothing on media and says so.
//! Recovery    judges the same image when it is mounted. What of a record counts, and what a power cut may have left of it, both take
//!             from `format` (`parse`, `decode`): where one of them finds damage the other must not see a torn line.
//! Invariants  F1  every position that is read was checked against the layout first; chains and lists end because each block is
//!                 entered once; bytes of the media never index, allocate or recurse unchecked.
//!             F2  an inode none of whose own structures is damaged keeps its content, whatever happens to others: of a block that two
//!                 claim each data claimant ends with a copy.
//!             F3  what a power cut leaves is no damage: a note, and recovery's work at the next mount.
//! To add      a kind of record: `contents` says which inodes may have it and what of it survives when a log is written anew.
//! Source      numbered issues with a text each, and repair over a view in memory: our own form of what fsck(8) programs do.

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
mod tree;
pub mod undo;

pub use catalogue::{CATALOGUE, Code, Entry, Severity};
pub use log::Figures;
pub use pass::{Issue, Spot};
pub use repair::{Applied, Verdict, examine};
pub use survey::{Inode, Owner, Survey, survey};

/// Why an image cannot be checked at all.
#[derive(thiserror::Error, Debug)]
pub enum FsckError {
    /// No superblock of ours, not even a damaged one.
    #[error("cannot check {image}: it holds no heddle file system, but {what}")]
    NotAnImage {
        /// The image.
        image: String,
        /// What is there instead.
        what: heddle_media::Content,
    },
    /// Another format.
    #[error(
        "cannot check {image}: its format is version {found}, this program knows version {known}. Use the heddle that made it"
    )]
    OtherVersion {
        /// The image.
        image: String,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The undo file.
    #[error("cannot use the undo file {file}: {why}")]
    Undo {
        /// The file.
        file: String,
        /// What is wrong, and the way out.
        why: String,
    },
    /// A store or a fence failed.
    #[error("cannot write {image}: {why}")]
    Write {
        /// The image.
        image: String,
        /// What the system said.
        why: String,
    },
}
