//! The papers' variants as switches of one engine (docs/protocol.md, "The papers' variants").
//!
//! They differ in four points: the lock of a range, how a record becomes valid, where time and size are kept,
//! and whether data is copied before or under the lock. The variant alone decides each point.

use heddle_range_lock::LockKind;

/// A variant of the papers, or ours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Variant {
    /// NOVA: one readers-writer lock for each inode, held over all four steps; log with a tail pointer.
    Nova,
    /// pNOVA-interval: interval tree, commit marks.
    NovaInterval,
    /// pNOVA-atomic, SRL(array): one word for each segment, in an array sized to the largest file; commit
    /// marks.
    NovaArray,
    /// SRL(tree): the same words in a radix tree; commit marks.
    NovaTree,
    /// Ours: cells, versions, a chain for each lane, readers without locks.
    Heddle,
}

/// How records are appended and become valid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LogKind {
    /// One chain; records before the tail pointer count (NOVA).
    Tail,
    /// One chain; records with a commit mark count (SRL paper IV-D).
    CommitMark,
    /// A chain for each writing lane; the checksum is the commit mark.
    SelfCertifying,
}

impl Variant {
    /// All, in the order of the papers.
    pub const ALL: [Variant; 5] =
        [Variant::Nova, Variant::NovaInterval, Variant::NovaArray, Variant::NovaTree, Variant::Heddle];

    /// Its name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Nova => "nova",
            Variant::NovaInterval => "nova-interval",
            Variant::NovaArray => "nova-array",
            Variant::NovaTree => "nova-tree",
            Variant::Heddle => "heddle",
        }
    }

    /// The variant of this name.
    pub fn from_name(name: &str) -> Option<Variant> {
        Variant::ALL.into_iter().find(|v| v.name() == name)
    }

    /// The kind of its log. An image can be mounted as any variant with the same kind.
    pub fn log(self) -> LogKind {
        match self {
            Variant::Nova => LogKind::Tail,
            Variant::NovaInterval | Variant::NovaArray | Variant::NovaTree => LogKind::CommitMark,
            Variant::Heddle => LogKind::SelfCertifying,
        }
    }

    /// The lock that guards ranges of a file; `None` if the pages' cells do.
    pub fn lock(self) -> Option<LockKind> {
        match self {
            Variant::Nova => Some(LockKind::Inode),
            Variant::NovaInterval => Some(LockKind::Interval),
            Variant::NovaArray => Some(LockKind::Array),
            Variant::NovaTree => Some(LockKind::Tree),
            Variant::Heddle => None,
        }
    }

    /// Returns true if one lock of the file covers all steps of a call, its log included.
    pub fn locks_whole_file(self) -> bool {
        self.lock() == Some(LockKind::Inode)
    }

    /// Returns true if the lock has a word for each segment that a file can have: a file is no larger than the
    /// image.
    pub fn locks_by_array(self) -> bool {
        self.lock() == Some(LockKind::Array)
    }

    /// Its number in the superblock.
    pub(crate) fn raw(self) -> u32 {
        Variant::ALL.iter().position(|v| *v == self).map_or(0, |i| i as u32 + 1)
    }

    pub(crate) fn from_raw(raw: u32) -> Option<Variant> {
        Variant::ALL.get((raw as usize).checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_found_by_its_name_and_its_number() {
        for (n, variant) in Variant::ALL.into_iter().enumerate() {
            assert_eq!(Variant::from_name(variant.name()), Some(variant));
            assert_eq!((variant.raw(), Variant::from_raw(n as u32 + 1)), (n as u32 + 1, Some(variant)));
            assert_eq!(variant.lock().is_none(), variant.log() == LogKind::SelfCertifying);
            assert_eq!(variant.lock() == Some(LockKind::Inode), variant.log() == LogKind::Tail);
            assert_eq!(variant.locks_whole_file(), variant == Variant::Nova);
            assert_eq!(variant.locks_by_array(), variant == Variant::NovaArray);
        }
        let wrong =
            [Variant::from_name("heddl"), Variant::from_name(""), Variant::from_raw(0), Variant::from_raw(6)];
        assert_eq!(wrong, [None; 4]);
    }
}
