//! Names: directories and what is in them.

pub mod life;
pub mod ops;
pub mod rename;
pub mod table;
