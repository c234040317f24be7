//! Bugs planted on purpose that the random programs of the bypass must find, or their silence proves nothing.
//!
//! With the feature `planted` the variable `HEDDLE_PLANTED` names one, for the mount's process and for each that skips the kernel. Without
//! the feature every question here is `false` at compile time. The crash rig has bugs of its own, of what power cuts leave.

macro_rules! bugs {
    ($($(#[doc = $story:literal])+ $name:ident = $text:literal,)*) => {
        /// What can be planted.
        #[cfg_attr(not(feature = "planted"), allow(dead_code, reason = "only a build with the feature asks for all"))]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug { $($(#[doc = $story])+ $name,)* }

        #[cfg(feature = "planted")]
        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name),*];

            /// What `HEDDLE_PLANTED` calls it.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$name => $text,)* }
            }
        }
    };
}

bugs! {
    /// A child that closes what it has inherited gives back the handle of its parent.
    ClosesForOthers = "closes-for-others",
    /// Handles of a process that has ended are kept.
    KeepsTheDead = "keeps-the-dead",
    /// What a handler of a signal calls goes to the kernel without the program's offset.
    HandlersOldOffset = "handlers-old-offset",
    /// A child made by `_Fork` does not share its parent's offset.
    ForkUnseen = "fork-unseen",
    /// `RWF_APPEND` at the present offset goes to the kernel, which believes in an old end.
    AppendsAtOldEnd = "appends-at-old-end",
    /// The slower of two writers stores its older time.
    TimesGoBack = "times-go-back",
}

#[cfg(feature = "planted")]
static CHOSEN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Plants the bug that the environment names, in this process.
///
/// # Panics
/// If there is no such bug.
#[cfg(feature = "planted")]
pub fn plant_from_environment() {
    let Ok(name) = std::env::var("HEDDLE_PLANTED") else { return };
    let bug = Bug::ALL.iter().find(|bug| bug.name() == name);
    let bug = *bug.unwrap_or_else(|| panic!("HEDDLE_PLANTED={name}: there is no such bug"));
    // ORDERING: Relaxed, chosen before the threads that meet it begin.
    CHOSEN.store(bug as u32 + 1, std::sync::atomic::Ordering::Relaxed);
}

/// Is this bug planted?
#[inline(always)]
pub fn planted(bug: Bug) -> bool {
    #[cfg(feature = "planted")]
    // ORDERING: Relaxed, as above.
    return CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == bug as u32 + 1;
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        false
    }
}
