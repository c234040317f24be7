//! What comes out: JSON as the figures read it, CSV, text, and the arithmetic in between.

use super::toy::Fault;
use super::{measured, quick, toy};
use crate::*;

/// A report whose runs have these rates; a negative one failed.
fn report(rates: &[(&str, f64)]) -> Report {
    let mut targets: Vec<Target> = Vec::new();
    for (name, _) in rates {
        if targets.iter().all(|t| t.name() != *name) {
            targets.push(match Target::find(name, &[]) {
                Ok(kernel) => kernel,
                Err(_) => Target::Directory { label: (*name).into(), path: "/".into() },
            });
        }
    }
    let config = Config { targets, ..quick([Workload::DWOM], vec![]) };
    let job = config.job(Workload::DWOM, super::cores());
    let runs = rates.iter().enumerate().map(|(repeat, (name, rate))| {
        let target = config.targets.iter().find(|target| target.name() == *name).unwrap();
        let failed = Run::failed(target, &job, repeat as u32, "broke, \"badly\"".into());
        let fine =
            Run { ops_per_sec: *rate, ops: 1, secs: 1.0, p50_ns: Some(100), error: None, ..failed.clone() };
        if *rate < 0.0 { failed } else { fine }
    });
    let runs = runs.collect();
    Report::new(&config, Machine::here(), runs)
}

fn cell<'r>(report: &'r Report, target: &str) -> &'r Cell {
    report.summary.iter().find(|cell| cell.target == target).unwrap()
}

#[test]
fn a_table_cell_has_median_spread_and_ratio_to_the_best_kernel() {
    let report = report(&[
        ("mine", 300.0),
        ("tmpfs", 100.0),
        ("ext4", 50.0),
        ("mine", 500.0),
        ("tmpfs", 110.0),
        ("mine", 310.0),
        ("tmpfs", 90.0),
    ]);
    let mine = cell(&report, "mine");
    assert_eq!((mine.median_ops_per_sec, mine.min_ops_per_sec, mine.max_ops_per_sec), (310.0, 300.0, 500.0));
    assert_eq!(mine.ratio_to_best_kernel, Some(3.1));
    assert!((mine.spread_pct - 64.516).abs() < 0.001 && mine.is_unstable());
    assert_eq!(cell(&report, "ext4").ratio_to_best_kernel, Some(0.5));
}

#[test]
fn an_even_number_of_runs_has_the_mean_of_the_middle_two() {
    let report = report(&[("mine", 4.0), ("mine", 1.0), ("mine", 2.0), ("mine", 3.0)]);
    assert_eq!(cell(&report, "mine").median_ops_per_sec, 2.5);
    assert_eq!(cell(&report, "mine").ratio_to_best_kernel, None, "no peer was measured");
}

#[test]
fn a_failed_run_fails_its_cell_a_failed_peer_no_other() {
    let report =
        report(&[("mine", 300.0), ("mine", -1.0), ("tmpfs", -1.0), ("ext4", 50.0), ("other", 100.0)]);
    let mine = cell(&report, "mine");
    assert_eq!((mine.median_ops_per_sec, mine.max_ops_per_sec, mine.p50_ns), (0.0, 0.0, None));
    assert!(mine.error.is_some() && report.has_failures());
    assert_eq!(cell(&report, "other").ratio_to_best_kernel, Some(2.0));
}

#[test]
fn json_has_the_keys_that_figures_read() {
    let report = measured(&quick([Workload::DWOM, Workload::MIX50], vec![toy(Fault::None)]));
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["output_version"], 1);
    for key in ["cpu_model", "cores", "kernel", "memory_bytes"] {
        assert!(!json["machine"][key].is_null(), "{key}");
    }
    let run = &json["runs"][0];
    assert_eq!((run["workload"].as_str(), run["target"].as_str()), (Some("DWOM"), Some("toy")));
    for key in ["cores", "repeat", "secs", "ops", "ops_per_sec", "p50_ns", "p99_ns", "read_ops", "write_ops"]
    {
        assert!(run[key].is_number(), "{key}");
    }
    assert!(run.as_object().unwrap().contains_key("error") && run["error"].is_null());
    assert!(json["summary"][1]["median_ops_per_sec"].as_f64().unwrap() > 0.0);
    assert_eq!(
        (run["workers_as"].as_str(), json["summary"][1]["workers_as"].as_str()),
        (Some("threads"), Some("threads"))
    );
}

#[test]
fn csv_has_a_line_a_run_and_quotes_errors() {
    let csv = report(&[("mine", 300.0), ("mine", -1.0)]).to_csv();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    let columns = lines[0].split(',').count();
    assert_eq!(lines[1].split(',').count(), columns);
    assert!(lines[2].ends_with("\"broke, \"\"badly\"\"\",processes"), "{}", lines[2]);
}

#[test]
fn text_tells_failures_and_unstable_cells_and_what_to_do() {
    let text = report(&[("mine", 300.0), ("mine", 500.0), ("tmpfs", 100.0), ("ext4", -1.0)]).to_text();
    for part in ["DWOM", "400", "4.00x", "failed: DWOM ext4", "unstable: 1 of 3", "raise --secs"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!report(&[("mine", 300.0)]).to_text().contains("unstable"));
}

#[test]
fn a_report_names_the_kind_of_worker_of_each_target() {
    let config = quick([Workload::DWOM], vec![toy(Fault::None), Target::Kernel(Kernel::Tmpfs)]);
    let job = config.job(Workload::DWOM, super::cores());
    let of = |config: &Config| {
        let runs = config.targets.iter().map(|target| Run::failed(target, &job, 0, "broke".into()));
        Report::new(config, Machine::here(), runs.collect())
    };
    let both = of(&config);
    assert!(both.to_text().contains("Workers are threads in toy; processes in tmpfs."), "{}", both.to_text());
    assert!(both.to_html().contains("threads in toy"));
    let alone = |target: &Target| of(&Config { targets: vec![target.clone()], ..config.clone() }).to_text();
    assert!(alone(&config.targets[0]).contains("Workers are threads of one process."));
    assert!(alone(&config.targets[1]).contains("Workers are processes."));
}

#[test]
fn html_stands_alone_and_escapes_what_it_shows() {
    let html = report(&[("<mine>", 300.0), ("tmpfs", 100.0)]).to_html();
    assert!(html.contains("&lt;mine&gt;") && !html.contains("<mine>"));
    assert!(html.contains("<svg") && !html.contains("http"));
    assert_eq!(html.matches("<rect").count(), 2);
}

#[test]
fn progress_hears_of_every_run() {
    #[derive(Default)]
    struct Heard(usize, Vec<String>);
    impl Progress for Heard {
        fn start(&mut self, runs: usize) {
            self.0 = runs;
        }
        fn run_begins(&mut self, workload: Workload, target: &str, _: usize, repeat: u32) {
            self.1.push(format!("{workload} {target} {repeat}"));
        }
        fn run_ends(&mut self, run: &Run) {
            self.1.push(format!("{} done", run.workload));
        }
    }
    let mut heard = Heard::default();
    run(&Config { repeat: 2, secs: 0.005, ..quick([Workload::DRBH], vec![toy(Fault::None)]) }, &mut heard)
        .unwrap();
    assert_eq!(heard.0, 2);
    assert_eq!(heard.1, ["DRBH toy 0", "DRBH done", "DRBH toy 1", "DRBH done"]);
    let mut lines = Lines(Vec::new());
    run(&Config { secs: 0.005, ..quick([Workload::DRBH], vec![toy(Fault::None)]) }, &mut lines).unwrap();
    assert!(String::from_utf8(lines.0).unwrap().contains("ops/s"));
}

#[test]
fn runs_among_slow_lines_are_told_and_so_are_those_taken_again() {
    let mut report = report(&[("mine", 4.0), ("mine", 2.0), ("mine", 4.0)]);
    assert!(!report.to_text().contains("slow lines"), "nothing was measured");
    for (run, ns) in report.runs.iter_mut().zip([50.0, 210.0, 60.0]) {
        run.line_crossing_ns = Some(ns);
    }
    assert!(
        report.to_text().contains("slow lines: in 1 of 3 runs a line took up to 210 ns"),
        "{}",
        report.to_text()
    );
    assert!(report.to_csv().contains(",210,0,,processes\n"), "{}", report.to_csv());
    report.runs[1] = Run { line_crossing_ns: Some(55.0), retaken: 2, ..report.runs[1].clone() };
    assert!(report.to_text().contains("slow lines: 2 runs were taken again"), "{}", report.to_text());
}
