//! The bytes of files: read, written, cached, and where their blocks are.

pub(crate) mod block_owner;
pub(crate) mod direct_io;
pub(crate) mod dirty_pages;
pub(crate) mod page_cache;
pub(crate) mod partial_io;
pub(crate) mod pointers;
pub(crate) mod range_lock;
pub(crate) mod read;
pub(crate) mod write;
