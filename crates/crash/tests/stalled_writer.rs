//! pNOVA's Fig. 3: a writer stalls after it was given its place in the log; another one, of another range, returns; the power fails.
//! With commit marks what returned is there. With a range lock and a tail pointer it is not: the paper's argument.
//!
//! One bug can be planted at a time, so these are one test, in a process of its own.
#![cfg(feature = "planted")]

use heddle_crash::scenes::{PAGE_ENDS, stalled_writer, writer_stalled_anywhere};
use heddle_nvmfs::Variant;
use heddle_nvmfs::planted::{Bug, Step, plant};
use heddle_pmem::Model;

#[test]
fn commit_marks_keep_writes_beside_a_stalled_writer_a_tail_does_not() {
    for variant in [Variant::NovaInterval, Variant::NovaArray, Variant::NovaTree] {
        let found = writer_stalled_anywhere(variant, Model::Ordered).unwrap();
        assert!(found.is_none(), "{}", found.unwrap());
    }
    for (bug, stall) in [(Bug::TailOverAHole, Step::Logging), (Bug::StopsAtFirstGap, Step::Logged)] {
        plant(Some(bug));
        let found = stalled_writer(Variant::NovaTree, stall, 1, Model::Ordered);
        plant(None);
        assert!(found.unwrap().is_some(), "{} is not seen", bug.name());
    }
    plant(Some(Bug::LinkFencedLate));
    let seen = |records| {
        stalled_writer(Variant::NovaTree, Step::Unfenced, records, Model::Ordered).unwrap().is_some()
    };
    let found = PAGE_ENDS.filter(|records| seen(*records)).count();
    plant(None);
    assert_eq!(found, 1, "one number of records ends a page");
}
