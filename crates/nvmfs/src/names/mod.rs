//! Names: directories and what is in them.

pub mod bucket;
pub mod life;
pub mod locks;
pub mod ops;
pub mod rename;
pub mod strike;
pub mod table;
