//! Promises of SEMANTICS.md that are broken on purpose: the test that a row names for mounts must see it (`cargo xtask breaches`).

heddle_vfs::breaches! {
    /// Nothing is taken from the mode of what is made.
    UmaskForgotten,
    /// A user is in his first group alone.
    GroupsForgotten,
    /// A write leaves the set-id bits.
    SetIdsStay,
    /// A write leaves the capabilities.
    CapabilityStays,
}
