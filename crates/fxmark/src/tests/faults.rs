//! A file system that does not do what it says has no figure.

use super::toy::Fault;
use super::{measured, quick, toy};
use crate::*;
use Workload::*;

/// So many runs see a fault: on a busy machine a short one may hold no operation that meets it.
const RUNS_MAX: u32 = 20;
/// So many are short. Each later one takes a tenth of a second longer than the one before.
const RUNS_SHORT: u32 = 10;

/// Runs the workloads on a toy with this fault; each must fail with this word and have no rate.
fn fails(fault: Fault, workloads: &[Workload], word: &str) {
    workloads.iter().for_each(|workload| each_fails(fault, *workload, word));
}

fn each_fails(fault: Fault, workload: Workload, word: &str) {
    let once = |n: u32| {
        let quick = quick([workload], vec![toy(fault)]);
        let secs = quick.secs + 0.1 * f64::from(n.saturating_sub(RUNS_SHORT));
        run(&Config { secs, ..quick }, &mut ()).unwrap()
    };
    let mut reports = (0..RUNS_MAX).map(once);
    let report = reports.find(Report::has_failures);
    let report = report.unwrap_or_else(|| panic!("{fault:?} went unseen by {workload:?}"));
    assert_eq!(report.runs.len(), 1);
    assert!(report.has_failures());
    for run in &report.runs {
        let error = run.error.as_deref().unwrap_or_else(|| panic!("{fault:?} went unseen: {run}"));
        assert!(error.contains(word), "{fault:?}: {run}");
        assert_eq!((run.ops, run.ops_per_sec, run.p50_ns), (0, 0.0, None));
    }
    for cell in &report.summary {
        assert!(cell.error.is_some() && cell.median_ops_per_sec == 0.0);
    }
}

#[test]
fn a_lost_write_is_seen_even_if_later_ones_cover_it() {
    fails(Fault::DropsWrites, &[DWOL, DWOM, DWAL, DWTL, DWSL, MIX50, HACC, OLTP], "wrong");
    // A mail that lost its first write is empty when it is read. A mail that lost an append is too short.
    fails(Fault::DropsWrites, &[VARMAIL], "");
}

#[test]
fn reads_of_zeros_are_seen() {
    fails(Fault::ReadsZeros, &[DRBL, DRBM, DRBH, DWOL, DWOM, DWAL, MIX25, HACC, OLTP, VARMAIL], "wrong data");
}

#[test]
fn reads_that_move_nothing_are_seen() {
    fails(Fault::ReadsNothing, &[DRBL, DRBM, DRBH, DWOM, HACC, OLTP, VARMAIL], "wrong data");
}

#[test]
fn by_calls_of_any_length_lost_writes_and_wrong_reads_are_seen() {
    for call_bytes in [512, 16 << 10] {
        for (fault, workload) in
            [(Fault::DropsWrites, DWOL), (Fault::ReadsZeros, DRBL), (Fault::ReadsNothing, DRBL)]
        {
            let config = Config { call_bytes, access: Access::Random, ..quick([workload], vec![toy(fault)]) };
            let run = &run(&config, &mut ()).unwrap().runs[0];
            assert!(run.error.as_deref().is_some_and(|error| error.contains("wrong data")), "{run}");
        }
    }
}

#[test]
fn an_error_of_one_worker_fails_the_run() {
    fails(Fault::Fails, &[DWOL, DWOM, DWAL, DWTL, DWSL, HACC, OLTP, VARMAIL], "planted");
}

#[test]
fn a_panic_of_the_engine_fails_the_run_and_not_the_program() {
    fails(Fault::Panics, &[DWOM], "panicked: planted panic");
}

#[test]
fn a_hanging_engine_fails_the_run_without_hanging_it() {
    fails(Fault::Hangs, &[DWOM], "hangs inside the engine");
}

#[test]
fn a_truncation_that_keeps_the_tail_is_seen() {
    fails(Fault::KeepsTail, &[DWAL, DWTL], "wrong");
}

#[test]
fn names_that_stay_or_do_not_move_are_seen() {
    // VARMAIL makes a mail anew, or lists the directory first: which is drawn.
    fails(Fault::KeepsNames, &[MWUL, MWUM, MWRL, MWRM, VARMAIL], "");
    fails(Fault::KeepsNames, &[MWCL, MWCM], "exists");
}

#[test]
fn paths_that_lead_to_the_wrong_file_are_seen() {
    fails(Fault::MixesUpFiles, &[MRPM], "wrong file");
}

#[test]
fn a_listing_that_leaves_out_an_entry_is_seen() {
    fails(Fault::HidesEntry, &[MRDL, MRDM, VARMAIL], "wrong");
}

#[test]
fn an_image_that_cannot_be_opened_or_closed_fails_the_run() {
    let broken = |fail_open: bool| {
        let open = move |_: &Need| -> anyhow::Result<Session> {
            anyhow::ensure!(!fail_open, "no such engine");
            let close = Box::new(|| Err(anyhow::anyhow!("fsck found 3 problems")));
            Ok(Session { fs: std::sync::Arc::new(super::Toy::new(Fault::None)), attach: None, close })
        };
        let workers_as = WorkersAs::Threads;
        Target::InProcess { name: "broken".into(), workers_as, open: std::sync::Arc::new(open) }
    };
    for (fail_open, word) in [(true, "no such engine"), (false, "fsck found 3 problems")] {
        let report = run(&quick([DRBL], vec![broken(fail_open)]), &mut ()).unwrap();
        assert!(report.runs[0].error.as_ref().unwrap().contains(word));
    }
}

#[test]
fn zeros_as_data_are_the_originals_and_only_its() {
    measured(&Config { faithful: true, ..quick([DRBL], vec![toy(Fault::ReadsZeros)]) });
}
