//! Why an image cannot be used.

use crate::format::feature;
use std::path::PathBuf;

/// Why an image cannot be used.
#[derive(thiserror::Error, Debug)]
pub enum OpenError {
    /// A system call failed.
    #[error("cannot {what} {}: {source}", image.display())]
    System {
        /// The image.
        image: PathBuf,
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process uses it.
    #[error("{} {by}", image.display())]
    InUse {
        /// The image.
        image: PathBuf,
        /// "is in use by ..."
        by: String,
    },
    /// It is write-protected.
    #[error("{} is write-protected: mount it with -o ro", image.display())]
    WriteProtected {
        /// The image.
        image: PathBuf,
    },
    /// Not F2FS, or both superblocks are destroyed.
    #[error("{} is not an F2FS image, or a damaged one: {why}. If it is one, repair it with: fsck.f2fs", image.display())]
    NotF2fs {
        /// The image.
        image: PathBuf,
        /// What both superblocks lack.
        why: String,
    },
    /// Another format was made on it later.
    #[error(
        "{} holds {what}, made after the F2FS image of which it has the rest: nothing is written to it. To read the F2FS image: \
         heddle mount -o ro. If that is what counts, take the other mark away with: wipefs -o {at:#x} {}",
        image.display(), heddle_undo::shell_word(image)
    )]
    Foreign {
        /// The image.
        image: PathBuf,
        /// The other format.
        what: String,
        /// Where its mark is.
        at: u64,
    },
    /// It is F2FS, but inconsistent.
    #[error("{} is damaged: {what}. Check it with: heddle fsck {}", image.display(), image.display())]
    Damaged {
        /// The image.
        image: PathBuf,
        /// The structure and its fault.
        what: String,
    },
    /// The image contradicts itself in what only a writer needs.
    #[error(
        "{} is damaged: {what}. To copy files from it, mount it with -o ro; to repair it: heddle fsck -y {}",
        image.display(), image.display()
    )]
    DamagedForWriting {
        /// The image.
        image: PathBuf,
        /// The structure and its fault.
        what: String,
    },
    /// The size is impossible for an image.
    #[error(
        "{} has {} MiB: an F2FS image has between {} MiB and {} TiB",
        image.display(), bytes >> 20, crate::IMAGE_BYTES_MIN >> 20, crate::IMAGE_BYTES_MAX >> 40
    )]
    Size {
        /// The image.
        image: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// A repair of it was stopped half-way: nobody writes it before somebody has gone back.
    #[error("{} is half repaired: a repair of it was stopped half-way. {way}", image.display())]
    HalfRepaired {
        /// The image.
        image: PathBuf,
        /// How to go back.
        way: String,
    },
    /// It has a node log, which was not given.
    #[error(
        "{} needs its node log: it was mounted as f2fs-nl or f2fs-integrated, and not unmounted. Mount it so once more, with the same \
         --nvm. To give up what only the log has: heddle mount -o discard-nvm", image.display()
    )]
    NeedsLog {
        /// The image.
        image: PathBuf,
    },
    /// The region given as its node log is not that log, or cannot be used.
    #[error("cannot use {} with this node log: {what}", image.display())]
    NodeLog {
        /// The image.
        image: PathBuf,
        /// The reason.
        what: String,
    },
    /// The image differs from the one with which the node log was written, or has an older or newer state.
    #[error("{} is not the image that this node log was last written with: {what}", image.display())]
    Replaced {
        /// The image.
        image: PathBuf,
        /// The evidence, and the ways out.
        what: String,
    },
    /// The image could not be made.
    #[error("cannot make an F2FS image in {}: {why}. What was there is gone; make it again", image.display())]
    Making {
        /// The image.
        image: PathBuf,
        /// The reason.
        why: String,
    },
    /// It uses features of F2FS that this engine does not support.
    #[error("{} uses a feature that this engine does not support: {what}", image.display())]
    Unsupported {
        /// The image.
        image: PathBuf,
        /// The features.
        what: String,
    },
}

/// Names of the bits of a feature word.
pub(crate) fn feature_names(bits: u32) -> String {
    let named = feature::NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| (*name).to_owned());
    let unnamed = bits & !feature::NAMES.iter().fold(0, |all, (bit, _)| all | bit);
    let rest = (unnamed != 0).then(|| format!("{unnamed:#x}"));
    named.chain(rest).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_named_and_those_without_a_name_numbered() {
        assert_eq!(feature_names(0), "");
        assert_eq!(feature_names(feature::ENCRYPT | feature::VERITY), "encrypt, verity");
        assert_eq!(feature_names(feature::READ_ONLY | 0x1010_0000), "ro, 0x10100000");
    }
}
