//! Every chore of the project behind one word: `cargo xtask help`.
//!
//! A chore is a row of [`CHORES`]; the steps of the test command are rows of a table in `test.rs`, the floors rows of
//! one in `floors/table.rs`, the style rules functions in `tidy/`.

mod apps;
mod bench;
mod coherence;
mod crash;
mod docs;
mod floors;
mod fsck_lies;
mod fuzz;
