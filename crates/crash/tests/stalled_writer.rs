//! pNOVA's Fig. 3: a writer stalls after it was given its place in the log; another one, of another range, returns; the power fails.
//! With commit marks what returned is there. With a range lock and a tail pointer it is not: the paper's argument.
//!
//! One bug can be planted at a time, so these are one test, in a process of its own.
#![cfg(feature = "planted")]

use heddle_crash::scenes::stalled_writer as play;
use heddle_nvmfs::Variant;
use heddle_nvmfs::planted::{Bug, Step, plant};

#[test]
fn commit_marks_keep_what_returned_beside_a_stalled_writer_and_a_tail_does_not() {
    for variant in [Variant::NovaInterval, Variant::NovaArray, Variant::NovaTree] {
        for stall in [Step::DataWrite, Step::Logged] {
            let found = play(variant, stall).unwrap();
            assert!(found.is_none(), "stalled in {stall:?}: {}", found.unwrap());
        }
    }
    for (bug, stall) in [(Bug::TailOverAHole, Step::Logging), (Bug::StopsAtFirstGap, Step::Logged)] {
        plant(Some(bug));
        let found = play(Variant::NovaTree, stall);
        plant(None);
        assert!(found.unwrap().is_some(), "{} is not seen", bug.name());
    }
}
