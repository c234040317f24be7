//! Names: directories and their entries.

pub mod bucket;
pub mod in_place_removal;
pub mod life;
pub mod locks;
pub mod ops;
pub mod rename;
pub mod table;
