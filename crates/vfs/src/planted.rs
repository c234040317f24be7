//! Bugs planted on purpose. The random programs of the bypass must find them, or their silence proves
//! nothing. Also how a crate breaks a promise of SEMANTICS.md on purpose ([`crate::breaches`]).
//!
//! With the feature `planted` the variable `HEDDLE_PLANTED` names one, for the mount's process and for each
//! attached process. Without the feature every test for a bug is `false` at compile time. The crash rig has
//! its own bugs, which concern power cuts.

macro_rules! bugs {
    ($($(#[doc = $story:literal])+ $name:ident = $text:literal,)*) => {
        /// The bugs.
        #[cfg_attr(not(feature = "planted"), allow(dead_code, reason = "only a build with the feature asks for all"))]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug { $($(#[doc = $story])+ $name,)* }

        #[cfg(feature = "planted")]
        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name),*];

            /// Its name in `HEDDLE_PLANTED`.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$name => $text,)* }
            }
        }
    };
}

bugs! {
    /// A child that closes an inherited descriptor closes its parent's handle.
    ClosesForOthers = "closes-for-others",
    /// Handles of a process that has ended stay open.
    KeepsTheDead = "keeps-the-dead",
    /// A call in a signal handler goes to the kernel without the program's offset.
    HandlersOldOffset = "handlers-old-offset",
    /// A child made by `_Fork` does not share its parent's offset.
    ForkUnseen = "fork-unseen",
    /// `RWF_APPEND` at the present offset goes to the kernel, which has an old end of file.
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

/// Returns true if this bug is planted.
#[inline(always)]
pub fn planted(bug: Bug) -> bool {
    #[cfg(feature = "planted")]
    return CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == bug as u32 + 1;
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        false
    }
}

/// Defines `Breach`, the promises of SEMANTICS.md that the calling crate breaks on purpose, and `breaks`,
/// which tests for one. The test that a row names must see the breach, or it does not test that row (`cargo
/// xtask breaches`). With the crate's feature `planted` the variable `HEDDLE_BREACH` names one as
/// `CRATE:NAME`, for a whole process. Without the feature the answer is `false` at compile time.
#[macro_export]
macro_rules! breaches {
    ($($(#[doc = $story:literal])+ $name:ident,)*) => {
        /// Promises of SEMANTICS.md that are broken on purpose.
        #[cfg_attr(not(feature = "planted"), allow(dead_code, reason = "only a build with the feature asks for all"))]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Breach { $($(#[doc = $story])+ $name,)* }

        #[cfg(feature = "planted")]
        static BROKEN: std::sync::LazyLock<Option<Breach>> = std::sync::LazyLock::new(|| {
            let wanted = std::env::var("HEDDLE_BREACH").ok()?;
            let name = wanted.strip_prefix(concat!(env!("CARGO_PKG_NAME"), ":"))?;
            [$(Breach::$name),*].into_iter().find(|breach| format!("{breach:?}") == name)
        });

        /// Returns true if this promise is broken.
        #[inline(always)]
        pub(crate) fn breaks(breach: Breach) -> bool {
            #[cfg(feature = "planted")]
            return *BROKEN == Some(breach);
            #[cfg(not(feature = "planted"))]
            {
                let _ = breach;
                false
            }
        }

        /// Returns true if this promise is broken, one time in 64.
        #[allow(dead_code, reason = "not every crate asks so")]
        #[inline(always)]
        pub(crate) fn breaks_at_times(breach: Breach) -> bool {
            #[cfg(feature = "planted")]
            {
                use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
                static TIMES: AtomicU64 = AtomicU64::new(0);
                // ORDERING: Relaxed, a count.
                breaks(breach) && TIMES.fetch_add(1, Relaxed) % 64 == 63
            }
            #[cfg(not(feature = "planted"))]
            breaks(breach)
        }
    };
}

crate::breaches! {
    /// `XATTR_CREATE` and `XATTR_REPLACE` are ignored.
    XattrFlagsIgnored,
    /// A copy into a file stops a byte short.
    CopiesShort,
}
