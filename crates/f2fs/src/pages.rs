//! Pages of files in memory: changed pages, and a cache of unchanged ones.

pub(crate) mod dirty_pages;
pub(crate) mod page_cache;
