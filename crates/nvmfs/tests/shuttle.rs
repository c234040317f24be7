//! Several threads over the whole engine under shuttle: every access to shared memory, and every half of a copy to or from the region,
//! is a place where another thread may go on. What the calls returned must be explained by some order of them.
//!
//! Why shuttle  The engine as a whole (mount, names, log, cleaning, recovery) is far too large for loom. Shuttle knows no weak memory:
//!              orderings are loom's part (`src/models`), whole calls against whole calls are this one's.
//! How many     `HEDDLE_SHUTTLE_SEEDS` programs a test (300), from number `HEDDLE_SHUTTLE_FROM` (0) on, each with a schedule of its
//!              own: threads change at every step, or go on for 10, 50 or 250 steps on average, or now for a few and now for a
//!              thousand. A failure names its seed: `HEDDLE_SHUTTLE_SEED=N` runs that one alone.
//! Same again   a seed is the same run on every machine: clock and identity of the image stand still (`clock`, `volume`), nothing else
//!              but the schedule differs.
//! Run          `cargo xtask shuttle`
#![cfg(shuttle)]

mod common;
#[path = "shuttle/file.rs"]
mod file;
#[path = "shuttle/linear.rs"]
mod linear;
#[path = "shuttle/names.rs"]
mod names;
#[path = "shuttle/rig.rs"]
mod rig;

use heddle_arena::sync::plant::{FaultCase, all_are_seen};
use rig::{Dice, under_shuttle};

#[test]
fn calls_on_one_file_have_an_order() {
    under_shuttle(|dice| file::run(dice, file::Mix::All));
}

#[test]
fn page_writes_and_reads_of_one_file_have_an_order() {
    under_shuttle(|dice| file::run(dice, file::Mix::Pages));
}

#[test]
fn reads_of_pages_whose_blocks_are_reused_have_an_order() {
    under_shuttle(|dice| file::run(dice, file::Mix::Reuse));
}

#[test]
fn reads_of_pages_that_change_together_have_an_order() {
    under_shuttle(|dice| file::run(dice, file::Mix::Wide));
}

#[test]
fn writing_and_clearing_a_page_without_a_cell_have_an_order() {
    under_shuttle(|dice| file::run(dice, file::Mix::NoCell));
}

#[test]
fn cleaning_and_shifts_beside_calls_on_a_file_have_an_order() {
    under_shuttle(|dice| file::run(dice, file::Mix::Cleaning));
}

#[test]
fn calls_on_two_directories_have_an_order() {
    under_shuttle(|dice| names::run(dice, names::Mix::All));
}

#[test]
fn a_file_that_is_moved_to_and_fro_is_in_one_place() {
    under_shuttle(|dice| names::run(dice, names::Mix::Moves));
}

macro_rules! plants {
    ($($test:literal: $file:literal, $after:literal, $access:literal => $fault:literal;)*) => {
        &[$(FaultCase {
            test: $test,
            file: concat!("nvmfs/src/", $file),
            source: include_str!(concat!("../src/", $file)),
            after: $after,
            access: $access,
            fault: $fault,
        }),*]
    };
}

/// What no interleaving may forgive.
///
/// Not `pin` without its count: an `unpin` then takes what is not there. So the fault is in who should look at it.
const PLANTS: &[FaultCase] = plants! {
    "reads_of_pages_that_change_together_have_an_order": "state/lane.rs", "pub fn commit(", ".store(state & " => "skip";
    "reads_of_pages_whose_blocks_are_reused_have_an_order":
        "file/deferred.rs", "pub fn free_replaced(", "pins.now(" => "keep=0";
    "writing_and_clearing_a_page_without_a_cell_have_an_order":
        "state/inode.rs", "pub fn raise_gate(", ".store(1" => "skip";
    "writing_and_clearing_a_page_without_a_cell_have_an_order":
        "state/inode.rs", "pub fn raise_floor(", ".fetch_max(" => "skip";
    "cleaning_and_shifts_beside_calls_on_a_file_have_an_order":
        "state/inode.rs", "pub fn set_size(", ".store(size" => "skip";
    "a_file_that_is_moved_to_and_fro_is_in_one_place":
        "names/bucket.rs", "pub fn begin_change(", "self.word.store(" => "skip";
};

#[test]
fn every_planted_fault_is_seen() {
    all_are_seen(PLANTS, &[("HEDDLE_SHUTTLE_SEEDS", "5000")]);
}

/// What the rig would say of an engine that forgets: each of these histories has no order.
#[test]
fn a_history_without_an_order_is_refused() {
    file::refuses_a_read_of_half_a_write();
    file::refuses_a_read_of_the_past();
    names::refuses_two_winners();
    let _ = Dice::new(1);
}
