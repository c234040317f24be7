//! What was fsynced after the checkpoint, found and taken in at a mount.

pub(crate) mod fsynced;
pub(crate) mod node_log;
pub(crate) mod roll_forward;
