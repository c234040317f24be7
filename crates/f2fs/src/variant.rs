//! The variants of the F2FS range-lock paper (SYSTOR '19, section 4.1). All of them use the same image.

/// The variant that uses an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Variant {
    /// One call at a time changes a file, as in Linux.
    #[default]
    F2fs,
    /// Calls that write different pages of a file do not wait for each other.
    RangeLock,
    /// One call at a time changes a file; fsyncs and log checkpoints are written to a log in NVM.
    NodeLog,
    /// Both: the range lock and the node log.
    Integrated,
}

impl Variant {
    /// All of them.
    pub const ALL: [Variant; 4] = [Variant::F2fs, Variant::RangeLock, Variant::NodeLog, Variant::Integrated];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Variant::F2fs => "f2fs",
            Variant::RangeLock => "f2fs-rl",
            Variant::NodeLog => "f2fs-nl",
            Variant::Integrated => "f2fs-integrated",
        }
    }

    /// The variant of this name.
    pub fn from_name(name: &str) -> Option<Variant> {
        Variant::ALL.into_iter().find(|variant| variant.name() == name)
    }

    /// Returns true if a file may have several writers at a time.
    pub fn has_ranges(self) -> bool {
        matches!(self, Variant::RangeLock | Variant::Integrated)
    }

    /// Returns true if it needs NVM beside the image.
    pub fn has_node_log(self) -> bool {
        matches!(self, Variant::NodeLog | Variant::Integrated)
    }
}
