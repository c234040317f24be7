//! The bytes of files: reading, writing, and their blocks.

pub(crate) mod block_owner;
pub(crate) mod direct_io;
pub(crate) mod pointers;
pub(crate) mod read;
pub(crate) mod read_ahead;
pub(crate) mod write;
