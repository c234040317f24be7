//! A floor counts as reached only by a measurement that is whole.

use serde_json::json;

use super::judge::{Measured, Sample, Verdict, judge, read_report};
use super::options::Options;
use super::page::page;
use super::table::{Bound, CAMPAIGNS, COPIED, COPY, Campaign, Durability, FLOORS, Floor, Form, Limit};
use super::{table_json, table_text};

static FLOOR: Floor = Floor {
    durability: Durability::Process,
    form: Form { name: "", args: &[] },
    workload: "DWOM",
    of: ("heddle", 2),
    to: (&["tmpfs", "ext4"], 2),
    bound: Bound::AtLeast(2.5),
};

/// One sample a repeat.
fn cell(target: &str, cores: u32, figures: &[f64]) -> Vec<Sample> {
    let sample = |(repeat, ops): (usize, &f64)| Sample {
        durability: Durability::Process,
        form: "",
        workload: "DWOM".into(),
        target: target.into(),
        cores,
        repeat: repeat as u64,
        ops_per_sec: Ok(*ops),
        crossing_ns: (cores > 1).then_some(50.0 + repeat as f64),
    };
    figures.iter().enumerate().map(sample).collect()
}

fn cells(heddle: [f64; 3]) -> Vec<Sample> {
    let peers = [cell("tmpfs", 2, &[10.0, 10.0, 20.0]), cell("ext4", 2, &[9.0, 9.0, 9.0])].concat();
    [cell("heddle", 2, &heddle), cell("heddle", 1, &[900.0; 3]), peers].concat()
}

#[test]
fn medians_are_compared_with_the_best_peer_and_repeats_make_the_spread() {
    let judgement = judge(&FLOOR, &cells([30.0, 25.0, 20.0]), 3);
    assert_eq!(judgement.measured, Some(2.5));
    assert_eq!(judgement.spread, Some((1.0, 3.0)));
    assert_eq!(judgement.verdict, Verdict::Reached);
    assert_eq!(judge(&FLOOR, &cells([30.0, 24.9, 20.0]), 3).verdict, Verdict::Missed);
}

#[test]
fn figures_of_another_durability_do_not_count() {
    let mut samples = cells([30.0; 3]);
    samples.iter_mut().for_each(|sample| sample.durability = Durability::Power);
    assert_eq!(
        judge(&FLOOR, &samples, 3).verdict.to_string(),
        "NOT MEASURED: DWOM heddle@2: 0 repeats, not 3"
    );
}

#[test]
fn figures_of_another_form_do_not_count() {
    let mut samples = cells([30.0; 3]);
    samples.iter_mut().for_each(|sample| sample.form = "512 B");
    assert!(matches!(judge(&FLOOR, &samples, 3).verdict, Verdict::NotMeasured(_)));
}

#[test]
fn a_missing_failed_or_short_cell_is_no_measurement() {
    let verdict = |samples: &[Sample], repeats| judge(&FLOOR, samples, repeats).verdict.to_string();
    let whole = cells([30.0; 3]);
    assert_eq!(verdict(&whole, 4), "NOT MEASURED: DWOM heddle@2: 3 repeats, not 4");

    let no_ext4: Vec<Sample> = whole.iter().filter(|sample| sample.target != "ext4").cloned().collect();
    assert_eq!(verdict(&no_ext4, 3), "NOT MEASURED: DWOM ext4@2: 0 repeats, not 3");

    let mut failed = whole.clone();
    failed[0].ops_per_sec = Err("wrong data".into());
    assert_eq!(verdict(&failed, 3), "NOT MEASURED: DWOM heddle@2 failed: wrong data");

    let mut idle = whole;
    idle[0].ops_per_sec = Ok(0.0);
    assert_eq!(verdict(&idle, 3), "NOT MEASURED: DWOM heddle@2: 0 operations a second");
}

#[test]
fn bounds_hold_where_they_say() {
    assert!(Bound::AtLeast(0.9).holds(0.9) && !Bound::AtLeast(0.9).holds(0.89));
    assert!(Bound::AtMost(1.15).holds(1.15) && !Bound::AtMost(1.15).holds(1.16));
    assert!(Bound::Below(1.0).holds(0.99) && !Bound::Below(1.0).holds(1.0));
}

#[test]
fn every_floor_is_measured_and_within_one_campaign() {
    for floor in FLOORS {
        let measures = |target: &str, cores| {
            CAMPAIGNS.iter().position(|campaign| {
                (campaign.durability, campaign.form) == (floor.durability, floor.form)
                    && campaign.workloads.contains(&floor.workload)
                    && campaign.targets.contains(&target)
                    && campaign.cores.contains(&cores)
            })
        };
        let of = measures(floor.of.0, floor.of.1);
        assert!(of.is_some(), "{}", floor.row());
        let copied = |campaign: &Campaign| {
            campaign.durability == floor.durability
                && campaign.form.name.is_empty()
                && campaign.workloads.contains(&COPIED)
                && campaign.targets.contains(&COPY)
                && campaign.cores.contains(&floor.of.1)
        };
        let once = CAMPAIGNS.iter().filter(|campaign| copied(campaign)).count() == 1;
        assert!(floor.limit() != Some(Limit::Copy) || once, "no limit beside {}", floor.row());
        assert!(floor.to.0.iter().all(|target| measures(target, floor.to.1) == of), "{}", floor.row());
    }
}

#[test]
fn a_report_is_read_with_its_failed_cells() {
    let run = |error| {
        json!({"workload": "DWOM", "target": "heddle", "cores": 2, "repeat": 0, "secs": 2.0, "ops": 4,
               "ops_per_sec": 2.0, "p50_ns": 1, "p99_ns": 2, "line_crossing_ns": 61.5, "error": error})
    };
    let (options, runs) = (json!({"durability": "process"}), [run(json!(null)), run(json!("no space"))]);
    let report = json!({"output_version": 1, "machine": {}, "options": options, "runs": runs});
    let samples = read_report(&report.to_string(), Durability::Process, "form").unwrap();
    assert_eq!((samples[0].form, &samples[0].ops_per_sec), ("form", &Ok(2.0)));
    assert_eq!(samples[0].crossing_ns, Some(61.5));
    assert_eq!(samples[1].ops_per_sec, Err("no space".into()));
    assert!(read_report(&report.to_string(), Durability::Power, "form").is_err(), "of another durability");
    let wrong = [
        json!({"output_version": 2, "options": options, "runs": []}),
        json!({"output_version": 1, "options": options, "runs": [{"workload": "DWOM"}]}),
    ];
    assert!(
        wrong.iter().all(|report| read_report(&report.to_string(), Durability::Process, "form").is_err())
    );
}

#[test]
fn the_table_and_its_json_say_the_same() {
    let judgements = [judge(&FLOOR, &cells([30.0, 25.0, 20.0]), 3), judge(&FLOOR, &[], 3)];
    let text = table_text(&judgements);
    assert!(text.contains("DWOM heddle@2 / best of tmpfs ext4@2"), "{text}");
    assert!(text.ends_with("1 of 2 floors reached\n"), "{text}");
    let json = table_json(&judgements, &Options::default());
    assert_eq!(json["floors"][0]["measured"], 2.5);
    assert_eq!(json["floors"][0]["reached"], true);
    assert_eq!(json["floors"][1]["measured"], json!(null));
    assert_eq!(json["floors"][1]["reached"], false);
}

#[test]
fn the_results_page_names_workload_duration_and_kind_of_calls() {
    let samples = cells([30.0, 25.0, 20.0]);
    let options =
        Options::read(&["--repeats".into(), "3".into(), "--secs".into(), "0.5".into()]).unwrap().unwrap();
    let text = page(&[judge(&FLOOR, &samples, 3)], &samples, &options);
    assert!(text.contains("3 interleaved repeats of 0.5 s"), "{text}");
    assert!(text.contains("| DWOM | heddle@2 | tmpfs, ext4@2 | >= 2.5 | 2.50 |"), "{text}");
    assert!(text.contains("durability `process`") && text.contains("function calls"), "{text}");
    assert!(text.contains("| DWOM | 25 op/s | 10 op/s | 9 op/s | - | - |"), "{text}");
    assert!(text.contains("no measurement for docs"), "fewer than five repeats of two seconds: {text}");
}

#[test]
fn the_machines_limit_stands_beside_a_row_that_has_one() {
    let mut copies = cell(COPY, 2, &[40.0, 50.0, 60.0]);
    copies.iter_mut().for_each(|sample| sample.workload = COPIED.into());
    let samples = [cells([30.0; 3]), copies].concat();
    assert_eq!(judge(&FLOOR, &samples, 3).limit, Some(Measured::Copies(50.0)));
    assert_eq!(judge(&FLOOR, &cells([30.0; 3]), 3).limit, None, "it was not measured");
    static LOCKED: Floor = Floor { of: ("nova", 2), to: (&["tmpfs"], 2), ..FLOOR };
    let locked = judge(&LOCKED, &[cell("nova", 2, &[9.0; 3]), samples.clone()].concat(), 3);
    assert_eq!(locked.limit, Some(Measured::CrossingNs(51.0)));
    static NAMES: Floor = Floor { workload: "MWCL", ..FLOOR };
    let judgements = [judge(&FLOOR, &samples, 3), locked, judge(&NAMES, &samples, 3)];
    let text = page(&judgements, &samples, &Options::default());
    for shown in ["| copy: 50 op/s | reached |", "| line: 51 ns | MISSED |", "| - | - | - | NOT MEASURED"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    let json = table_json(&judgements, &Options::default());
    assert_eq!(json["floors"][0]["limit"], json!({"copies_per_sec": 50.0}));
    assert_eq!(json["floors"][1]["limit"], json!({"line_crossing_ns": 51.0}));
    assert_eq!(json["floors"][2]["limit"], json!(null));
}

#[test]
fn options_say_what_is_measured_and_how_long_it_takes() {
    let read = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        Options::read(&args)
    };
    assert!(read(&["--help"]).unwrap().is_none());
    let all = read(&[]).unwrap().unwrap();
    assert!(all.is_whole() && all.minutes() > 20, "{} minutes", all.minutes());
    let short = read(&["DWOM", "--repeats", "3", "--secs", "1"]).unwrap().unwrap();
    assert!(
        short.wants("DWOM") && !short.wants("DWOL") && !short.is_whole() && short.minutes() < all.minutes()
    );
    for wrong in [&["DWXX"][..], &["--repeats", "2"], &["--secs", "x"], &["--json"], &["--wrong", "1"]] {
        assert!(read(wrong).is_err(), "{wrong:?}");
    }
}
