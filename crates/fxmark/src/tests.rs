//! The suite measured: every workload in both worlds, planted faults, nothing left behind.

mod environment;
mod faults;
mod reports;
mod toy;
mod turn_runner;

use crate::*;
use std::sync::Arc;
use toy::{Fault, Toy};

/// A target that opens a toy with a fault.
fn toy(fault: Fault) -> Target {
    let open = move |_: &Need| -> anyhow::Result<Session> {
        Ok(Session { fs: Arc::new(Toy::new(fault)), attach: None, close: Box::new(|| Ok(())) })
    };
    Target::InProcess { name: "toy".into(), workers_as: WorkersAs::Threads, open: Arc::new(open) }
}

/// One or two workers: whatever this machine allows.
fn cores() -> usize {
    machine::allowed_cpus().len().min(2)
}

/// A directory that a disk does not slow down, if there is one.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn quick(workloads: impl IntoIterator<Item = Workload>, targets: Vec<Target>) -> Config {
    Config {
        workloads: workloads.into_iter().collect(),
        targets,
        cores: vec![cores()],
        secs: 0.05,
        repeat: 1,
        // The toys' runs are counted, and machines that test are busy.
        retakes: 0,
        file_size_bytes: Some(64 * 4096 * cores() as u64),
        window_bytes: 100 * 4096,
        files: 100,
        ..Config::default()
    }
}

fn measured(config: &Config) -> Report {
    let report = run(config, &mut ()).unwrap();
    for run in &report.runs {
        assert_eq!(run.error, None, "{run}");
        assert!(run.ops > 0 && run.ops_per_sec > 0.0 && run.p50_ns.is_some(), "{run}");
        assert_eq!(run.ops, run.read_ops + run.write_ops);
        assert!((run.ops_per_sec * run.secs / run.ops as f64 - 1.0).abs() < 1e-9);
    }
    report
}

#[test]
fn every_workload_runs_in_process() {
    measured(&quick(Workload::all(), vec![toy(Fault::None)]));
}

#[test]
fn every_workload_runs_the_originals_loops_too() {
    let workloads = Workload::all().filter(|w| *w != Workload::DWAL && !w.is_application());
    measured(&Config { faithful: true, ..quick(workloads, vec![toy(Fault::None)]) });
}

#[test]
fn every_workload_runs_in_a_directory_and_leaves_nothing_there() {
    let dir = directory();
    let target = Target::find(&format!("here={}", dir.path().display()), &[]).unwrap();
    measured(&quick(Workload::all(), vec![target]));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the run removed what it made");
}

#[test]
fn calls_of_any_length_are_made_in_both_worlds() {
    let dir = directory();
    for (call_bytes, access) in [(512, Access::Random), (16 << 10, Access::Random), (64, Access::Fixed)] {
        let here = Target::find(&format!("here={}", dir.path().display()), &[]).unwrap();
        let config = quick([Workload::DRBL, Workload::DWOL], vec![toy(Fault::None), here]);
        measured(&Config { call_bytes, access, ..config });
    }
}

#[test]
fn readers_and_writers_of_a_mix_are_counted_apart() {
    let report = measured(&Config { cores: vec![1], ..quick([Workload::MIX25], vec![toy(Fault::None)]) });
    let run = &report.runs[0];
    assert!(
        run.write_ops.abs_diff(run.read_ops / 3) <= 100,
        "{} writes, {} reads",
        run.write_ops,
        run.read_ops
    );
    let report = measured(&quick([Workload::DRBM, Workload::DWOM], vec![toy(Fault::None)]));
    assert_eq!((report.runs[0].write_ops, report.runs[1].read_ops), (0, 0));
}

#[test]
fn random_access_stays_in_the_workers_own_set() {
    for stride in [Stride::Page, Stride::Segment] {
        let fs = Arc::new(Toy::watched());
        let shared = fs.clone();
        let open = move |_: &Need| -> anyhow::Result<Session> {
            Ok(Session { fs: shared.clone(), attach: None, close: Box::new(|| Ok(())) })
        };
        let workers_as = WorkersAs::Threads;
        let target = Target::InProcess { name: "toy".into(), workers_as, open: Arc::new(open) };
        let config = Config { access: Access::Random, stride, ..quick([Workload::DWOM], vec![target]) };
        measured(&config);
        let touched = fs.touched.lock().unwrap();
        let mut owners = std::collections::HashMap::new();
        for (thread, offset) in touched.iter() {
            assert_eq!(offset % 4096, 0);
            assert_eq!(owners.insert(offset, thread).unwrap_or(thread), thread, "page {}", offset / 4096);
        }
        assert_eq!(owners.len(), 64 * cores(), "every page was somebody's");
    }
}

#[test]
fn targets_of_a_cell_take_turns_and_each_repeat_starts_with_another() {
    let named = |name: &str| match toy(Fault::None) {
        Target::InProcess { open, workers_as, .. } => {
            Target::InProcess { name: name.into(), workers_as, open }
        }
        _ => unreachable!(),
    };
    let config = Config { repeat: 3, secs: 0.005, ..quick([Workload::DRBH], vec![named("a"), named("b")]) };
    let order: Vec<String> = measured(&config).runs.into_iter().map(|run| run.target).collect();
    assert_eq!(order, ["a", "b", "b", "a", "a", "b"]);
}

#[test]
fn mistakes_of_usage_are_told_before_anything_runs() {
    let good = quick([Workload::DWOM], vec![toy(Fault::None)]);
    let bad = [
        (Config { workloads: vec![], ..good.clone() }, "workload"),
        (Config { targets: vec![], ..good.clone() }, "target"),
        (Config { cores: vec![100_000], ..good.clone() }, "CPUs"),
        (Config { cores: vec![0], ..good.clone() }, "at least one worker"),
        (Config { secs: f64::NAN, ..good.clone() }, "--secs"),
        (Config { repeat: 0, ..good.clone() }, "--repeat"),
        (Config { file_size_bytes: Some(100), ..good.clone() }, "--file-size"),
        (Config { targets: vec![toy(Fault::None), toy(Fault::None)], ..good.clone() }, "twice"),
        (Config { direct: true, workloads: vec![Workload::DWAL], ..good.clone() }, "DRBL DRBM DWOL DWOM"),
        (Config { faithful: true, workloads: vec![Workload::HACC], ..good.clone() }, "HACC"),
        (Config { call_bytes: 512, ..good.clone() }, "not about DWOM"),
        (Config { call_bytes: 1000, workloads: vec![Workload::DWOL], ..good.clone() }, "power of two"),
        (Config { call_bytes: 1 << 20, workloads: vec![Workload::DRBL], ..good.clone() }, "--file-size"),
    ];
    for (config, word) in bad {
        let text = run(&config, &mut ()).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn an_unknown_target_is_answered_with_the_names_there_are() {
    let text = Target::find("zfs", &[toy(Fault::None)]).unwrap_err().to_string();
    assert!(text.contains("toy, tmpfs, ext4") && text.contains("LABEL=PATH"), "{text}");
    let text = Target::find("x=/no/such/place", &[]).unwrap_err().to_string();
    assert!(text.contains("mkdir -p /no/such/place"), "{text}");
    assert_eq!(Target::find("toy", &[toy(Fault::None)]).unwrap().name(), "toy");
    assert_eq!(Target::find("btrfs", &[]).unwrap().name(), "btrfs");
}

#[test]
fn with_direct_io_tmpfs_is_no_yardstick() {
    let peers = |direct| Kernel::ALL.map(|kernel| Target::Kernel(kernel).is_peer(direct));
    assert_eq!((peers(false), peers(true)), ([true; 6], [false, true, true, true, true, true]));
    assert!(!toy(Fault::None).is_peer(false));
}
