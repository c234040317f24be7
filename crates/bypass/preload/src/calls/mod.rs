//! The exported functions, grouped by their effect.

mod aio;
pub mod cancel;
mod children;
mod copies;
mod data;
mod exec;
mod ioctls;
mod limits;
mod lookup;
mod meta;
mod names;
mod numbers;
mod open;
mod raw;
mod rights;
mod stdio;
