//! Code that the commands of `heddle` share: output and messages, errors, sizes, tables, progress, scratch
//! directories, and opening images.
//!
//! A command lies in `heddle-cli` or, if it measures, in `heddle-measure`. Code that two commands need lies
//! here.
#![warn(missing_docs)]

pub mod clock;
pub mod failure;
pub mod image;
pub mod inherited;
pub mod mounted;
pub mod namespace;
pub mod open_error;
pub mod output;
pub mod overwrite;
pub mod preload;
pub mod progress;
pub mod scratch;
pub mod size;
pub mod table;
pub mod variant;
