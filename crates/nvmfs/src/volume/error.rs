//! Why an image cannot be made or mounted.

use crate::format::superblock::{MOUNTS_MAX, VERSION};
use heddle_signatures::Content;
use heddle_vfs::Error;
use std::path::{Path, PathBuf};

/// Why an image cannot be made or mounted.
#[derive(thiserror::Error, Debug)]
pub enum VolumeError {
    /// The file of the region cannot be used.
    #[error(transparent)]
    Region(#[from] heddle_pmem::Error),
    /// The region is too small.
    #[error("cannot make {}: {have} bytes are too few for a file system, at least {min} are needed (--size 4M or more)", path.display())]
    TooSmall {
        /// Image.
        path: PathBuf,
        /// Its size in bytes.
        have: u64,
        /// Bytes needed.
        min: u64,
    },
    /// Neither copy of the superblock is valid.
    #[error("cannot mount {}: it holds no heddle file system, but {what}{}", path.display(), way_on(path, what))]
    NotAnImage {
        /// Image.
        path: PathBuf,
        /// The content found instead.
        what: Content,
    },
    /// Another format was made on it later.
    #[error(
        "cannot write {}: it holds {what}, made after the heddle file system of which it has the rest. To read that: heddle mount -o ro. \
         If that is what counts, take the other mark away with: wipefs -o {at:#x} {}", path.display(), heddle_undo::shell_word(path)
    )]
    Foreign {
        /// Image.
        path: PathBuf,
        /// The other format.
        what: String,
        /// Position of its magic number.
        at: u64,
    },
    /// A repair of it was stopped half-way.
    #[error("cannot write {}: it is half repaired. {way}", path.display())]
    HalfRepaired {
        /// Image.
        path: PathBuf,
        /// How to go back.
        way: String,
    },
    /// Both copies of the superblock are damaged.
    #[error("cannot mount {}: both copies of the superblock are damaged. Restore the image from a backup", path.display())]
    SuperblockDamaged {
        /// Image.
        path: PathBuf,
    },
    /// Another version of the format.
    #[error("cannot mount {}: its format is version {found}, this program reads version {VERSION}. Use the heddle that made it", path.display())]
    OtherVersion {
        /// Image.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Its mount counter is at the limit.
    #[error("cannot mount {}: it has been mounted {MOUNTS_MAX} times, as often as its numbers allow. Mount it read-only and copy what it holds to a new image", path.display())]
    WornOut {
        /// Image.
        path: PathBuf,
    },
    /// The file is shorter than the file system.
    #[error("cannot mount {}: it is truncated: the file system has {want} bytes, the file {have}. Restore the missing part", path.display())]
    Truncated {
        /// Image.
        path: PathBuf,
        /// Bytes of the file system.
        want: u64,
        /// Bytes of the file.
        have: u64,
    },
    /// The image has another kind of log.
    #[error("cannot mount {} as {asked}: it was made as {made}, which writes its log in another format than {asked}. Leave --variant out, or make a new image with: heddle mkfs --variant {asked}", path.display())]
    WrongVariant {
        /// Image.
        path: PathBuf,
        /// The requested variant.
        asked: &'static str,
        /// The variant that it was made as.
        made: &'static str,
    },
    /// Invalid settings of the range lock.
    #[error("cannot mount {}: {why}", path.display())]
    Lock {
        /// Image.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// No memory for the volatile state.
    #[error("cannot mount {}: {why}", path.display())]
    Memory {
        /// Image.
        path: PathBuf,
        /// The system's error.
        why: String,
    },
    /// It was unmounted, but not marked clean, although nothing is lost.
    #[error("{} is not marked clean: {why}. Nothing that a call has acknowledged is lost; the next mount recovers the image",
            path.display())]
    NotClean {
        /// Image.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// Recovery found damage, or ran out of a resource.
    #[error("cannot mount {}: {source}", path.display())]
    Recovery {
        /// Image.
        path: PathBuf,
        /// The error.
        source: Error,
    },
}

/// The command that makes an image, if nothing would be lost. It is not shown for other data.
fn way_on(path: &Path, what: &Content) -> String {
    match what {
        Content::Blank => format!(". Make one with: heddle mkfs {}", path.display()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mkfs_is_suggested_where_nothing_would_be_lost() {
        let said = |what| VolumeError::NotAnImage { path: "a.img".into(), what }.to_string();
        assert!(said(Content::Blank).ends_with(". Make one with: heddle mkfs a.img"));
        assert!(!said(Content::Unknown).contains("mkfs"));
        assert_eq!(way_on(Path::new("a.img"), &Content::Unknown), "");
    }
}
