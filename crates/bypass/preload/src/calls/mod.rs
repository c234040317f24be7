//! The C library's functions that this library replaces, a module for each kind.

mod aio;
pub mod cancel;
mod children;
mod copies;
mod data;
mod descriptor_numbers;
mod exec;
mod ioctls;
mod limits;
mod lookup;
mod meta;
mod names;
mod open;
mod raw;
mod rights;
mod stdio;
