//! The exported functions, by what they do.

mod aio;
mod data;
mod meta;
mod numbers;
mod open;
mod stdio;
