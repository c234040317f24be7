//! Several threads over the whole engine under shuttle: every access to shared memory, and every half of a copy to or from the region,
//! is a place where another thread may go on. What the calls returned must be explained by some order of them.
//!
//! Why shuttle  The engine as a whole (mount, names, log, cleaning, recovery) is far too large for loom. Shuttle knows no weak memory:
//!              orderings are loom's part (`src/models`), whole calls against whole calls are this one's.
//! How many     `HEDDLE_SHUTTLE_SEEDS` programs a test (300), each with a schedule of its own: threads change at every step, or go
//!              on for 10, 50 or 250 steps on average. A failure names its seed: `HEDDLE_SHUTTLE_SEED=N` runs that one alone.
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

use heddle_arena::sync::plant::{Plant, all_are_seen};
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
fn calls_on_two_directories_have_an_order() {
    under_shuttle(names::run);
}

macro_rules! plants {
    ($($test:literal: $file:literal, $behind:literal, $access:literal => $fault:literal;)*) => {
        &[$(Plant {
            test: $test,
            file: concat!("nvmfs/src/", $file),
            source: include_str!(concat!("../src/", $file)),
            behind: $behind,
            access: $access,
            fault: $fault,
        }),*]
    };
}

/// What no interleaving may forgive.
const PLANTS: &[Plant] = plants! {
    "page_writes_and_reads_of_one_file_have_an_order": "lane.rs", "pub fn commit(", ".store(state & " => "skip";
    "page_writes_and_reads_of_one_file_have_an_order": "inode.rs", "pub fn pin(", ".fetch_add(1" => "skip";
    "calls_on_one_file_have_an_order": "inode.rs", "pub fn raise_gate(", ".store(1" => "skip";
    "calls_on_one_file_have_an_order": "inode.rs", "pub fn raise_floor(", ".fetch_max(" => "skip";
    "calls_on_two_directories_have_an_order": "names/bucket.rs", "pub fn begin_change(", "self.word.store(" => "skip";
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
