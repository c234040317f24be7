//! Pages of files in memory: those that the device does not have yet, and copies of those that it has.

pub(crate) mod dirty_pages;
pub(crate) mod page_cache;
