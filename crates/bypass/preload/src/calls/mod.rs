//! The exported functions, by what they do.

mod aio;
mod copies;
mod data;
mod limits;
mod meta;
mod numbers;
mod open;
mod stdio;
