//! How often each kind of record, of transition and of cleaning step was met: what a rig claims to test must not stand at 0.
//!
//! A thread counts for itself. Without the feature `planted` nothing is counted.

macro_rules! met {
    ($($(#[doc = $what:literal])+ $name:ident,)*) => {
        /// What is counted.
        #[cfg_attr(not(feature = "planted"), allow(dead_code, reason = "nothing is counted without the feature"))]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Met { $($(#[doc = $what])+ $name,)* }

        #[cfg(feature = "planted")]
        impl Met {
            /// All of them.
            pub const ALL: &[Met] = &[$(Met::$name),*];

            /// What it is, in words.
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
    /// record: state
    State,
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
    /// cleaning: a page without a living record went
    PageDropped,
    /// cleaning: a file's page was logged anew, and went
    FileMoved,
    /// cleaning: a directory's page was logged anew, and went
    DirectoryMoved,
    /// cleaning: a write was logged anew
    WriteMoved,
    /// cleaning: a state was logged anew for its page
    StateMoved,
    /// cleaning: extended attributes were logged anew
    XattrsMoved,
    /// cleaning: a name was logged anew
    NameMoved,
    /// cleaning: a removal was logged anew
    RemovalMoved,
    /// cleaning: a state that ends what a rename's record says of its old directory
    DebtEnded,
    /// inodes: a chunk was made
    ChunkMade,
    /// inodes: a chunk was given back
    ChunkGone,
    /// inodes: one without a name was made
    Unnamed,
    /// names: a record that made a name became its removal
    Struck,
    /// recovery: a rename's copy was written for its old directory
    DebtPaid,
    /// recovery: what was torn was zeroed
    Zeroed,
}

#[cfg(feature = "planted")]
mod counts {
    use super::Met;
    use std::cell::RefCell;

    /// By [`Met::ALL`].
    pub type Counts = Vec<u64>;

    thread_local! {
        static COUNTS: RefCell<Counts> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn add(what: Met) {
        // A thread that ends settles lanes when its counts may be gone.
        let _gone = COUNTS.try_with(|counts| {
            let mut counts = counts.borrow_mut();
            counts.resize(Met::ALL.len(), 0);
            counts[what as usize] += 1;
        });
    }

    /// What the calling thread has met since it was asked last.
    pub fn take() -> Counts {
        COUNTS.take()
    }
}

#[cfg(feature = "planted")]
pub use counts::{Counts, take};

/// Counts one.
#[inline(always)]
pub(crate) fn met(what: Met) {
    #[cfg(feature = "planted")]
    counts::add(what);
    let _ = what;
}
