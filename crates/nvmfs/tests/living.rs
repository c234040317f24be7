//! The living, the stopped and the dead, at random: trees of processes work on a nearly full image while they, those who settle them, and
//! the daemon are killed, stopped and frozen. Some trees are another user's, who came in by a group.
//!
//! What must hold: each byte read, then and in the end, is one that may be there; fsck finds nothing after any round; nobody finds the
//! image full while a recount finds space; no call takes longer than the mount's patience and five seconds, its own process's stops not
//! counted. (Where more threads want to run than there are processors, so many times longer.) `HEDDLE_LIVING_SECONDS` and
//! `HEDDLE_LIVING_SEED`: how long, and which (`cargo xtask processes`).
//!
//! A program of its own: its thousands of threads run beside no test that measures how long a call takes.

mod common;
mod living {
    pub mod fate;
    pub mod ledger;
    mod rig;
    pub mod tree;
    pub mod writer;
}
#[path = "processes/children.rs"]
#[allow(dead_code, reason = "each test file uses some of it")]
mod children;

use living::tree;
use std::path::Path;

#[test]
#[ignore = "run by the rig"]
fn the_child_that_plays_a_role() {
    let Ok(role) = std::env::var(children::ROLE) else { return };
    let mut words = role.split(' ');
    let part = words.next().unwrap();
    let mut next = || words.next().unwrap();
    match part {
        "serves" => tree::serves(false, next().parse().unwrap()),
        "takes-over" => tree::serves(true, next().parse().unwrap()),
        "fills" => tree::fills(next().parse().unwrap()),
        "looks" => tree::looks(Path::new(next())),
        shape => tree::lives(shape, next().parse().unwrap(), next().parse().unwrap()),
    }
}
