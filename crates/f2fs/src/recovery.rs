//! Recovery, at a mount, of nodes that were fsynced after the checkpoint.

pub(crate) mod fsynced;
pub(crate) mod node_log;
pub(crate) mod reader;
pub(crate) mod roll_forward;
