//! The systems of the F2FS range-lock paper (SYSTOR '19, section 4.1), as far as they are built. The image is the same in all of them.

/// Which of them works on an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Variant {
    /// One call at a time changes a file, as in Linux.
    #[default]
    F2fs,
    /// Calls that write different pages of a file do not wait for each other.
    RangeLock,
}

impl Variant {
    /// All of them.
    pub const ALL: [Variant; 2] = [Variant::F2fs, Variant::RangeLock];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Variant::F2fs => "f2fs",
            Variant::RangeLock => "f2fs-rl",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Variant> {
        Variant::ALL.into_iter().find(|variant| variant.name() == name)
    }
}
