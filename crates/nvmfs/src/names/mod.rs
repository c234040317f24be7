//! Names: directories and their entries.

pub mod bucket;
pub mod life;
pub mod locks;
pub mod ops;
pub mod rename;
pub mod strike;
pub mod table;
