//! Counts of each kind of record, transition and cleaning step that ran. A step that a rig claims to test
//! must not stay at 0.
//!
//! Each thread counts for itself. Without the feature `planted` nothing is counted.

macro_rules! met {
    ($($(#[doc = $what:literal])+ $name:ident,)*) => {
        /// The steps that are counted.
        #[cfg_attr(not(feature = "planted"), allow(dead_code, reason = "nothing is counted without the feature"))]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Met { $($(#[doc = $what])+ $name,)* }

        #[cfg(feature = "planted")]
        impl Met {
            /// All of them.
            pub const ALL: &[Met] = &[$(Met::$name),*];

            /// A description.
            pub fn text(self) -> &'static str {
                match self { $(Met::$name => concat!($($what),+).trim_ascii(),)* }
            }
        }
    };
}

met! {
    /// record: write
    Write,
    /// record: write that names an extent list
    WriteByList,
    /// record: allocation without data
    Unwritten,
    /// record: punch
    Punch,
    /// record: remap
    Remap,
    /// record: attributes
    Attributes,
    /// record: extended attributes
    Xattrs,
    /// record: name
    Name,
    /// record: removal of a name
    Removal,
    /// record: of another directory's name
    Foreign,
    /// log: a page became full
    PageClosed,
    /// log: a block for more heads of chains
    HeadBlock,
    /// cleaning: a page without a living record was freed
    PageDropped,
    /// cleaning: a file's page was logged anew and freed
    FileMoved,
    /// cleaning: a directory's page was logged anew and freed
    DirectoryMoved,
    /// cleaning: a write was logged anew
    WriteMoved,
    /// cleaning: attributes were logged anew for their page
    AttributesMoved,
    /// cleaning: extended attributes were logged anew
    XattrsMoved,
    /// cleaning: a name was logged anew
    NameMoved,
    /// cleaning: a removal was logged anew
    RemovalMoved,
    /// cleaning: a state was logged that ends a rename's record of its old directory
    DebtEnded,
    /// inodes: a chunk was made
    ChunkMade,
    /// inodes: a chunk was freed
    ChunkGone,
    /// inodes: one was made without a name
    Unnamed,
    /// names: a record that made a name became its removal
    RemovedInPlace,
    /// recovery: a rename's copy was written to its old directory
    DebtPaid,
    /// recovery: torn records were zeroed
    Zeroed,
}

#[cfg(feature = "planted")]
mod counts {
    use super::Met;
    use std::cell::RefCell;

    /// Counts, in the order of [`Met::ALL`].
    pub type Counts = Vec<u64>;

    thread_local! {
        static COUNTS: RefCell<Counts> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn add(what: Met) {
        // An ending thread settles lanes when its counts may be gone.
        let _gone = COUNTS.try_with(|counts| {
            let mut counts = counts.borrow_mut();
            counts.resize(Met::ALL.len(), 0);
            counts[what as usize] += 1;
        });
    }

    /// The counts of the calling thread since the last call.
    pub fn take() -> Counts {
        COUNTS.take()
    }
}

#[cfg(feature = "planted")]
pub use counts::{Counts, take};

/// Counts one step.
#[inline(always)]
pub(crate) fn met(what: Met) {
    #[cfg(feature = "planted")]
    counts::add(what);
    let _ = what;
}
