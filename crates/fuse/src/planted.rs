//! Promises of SEMANTICS.md that are broken on purpose: the test that a row names for mounts must see each
//! breach (`cargo xtask breaches`).

heddle_vfs::breaches! {
    /// The umask is not applied to new files.
    UmaskForgotten,
    /// A user is in the primary group only.
    GroupsForgotten,
    /// A write does not clear the set-id bits.
    SetIdsStay,
    /// A write does not remove the capabilities.
    CapabilityStays,
}
