//! Reports become names, curves and verdicts; wrong commands are told.

use super::code::{Code, parse_functions};
use super::options::{Options, Sink};
use super::report::Report;
use super::{Line, Run, bars, chart, json_of, names, plugin_api};

const REPORT: &str = "heddle-coherence 1
ops\t1000
thing\t500\t1\theddle_nvmfs::state::inode::VolatileInode\tcrates/nvmfs/src/alloc/itable.rs\t104\t320\t4
by\t400\t4096\t8192
by\t100\t4096\t12288
thing\t20\t3\theddle_nvmfs::state::inode::VolatileInode\tcrates/nvmfs/src/alloc/itable.rs\t104\t320\t2
thing\t7\t7\tcore::sync::atomic::AtomicU64\tcrates/nvmfs/src/state/free_map.rs\t38\t8\t0
thing\t5\t5\tlog page\tcrates/nvmfs/src/log/chain/append.rs\t74\t4096\t9
address\t3\t1099511627776
by\t3\t4096\t8192
";

fn run(workload: &str, target: &str, workers: usize, lines: &[(&str, u64)]) -> Run {
    let line = |&(name, transfers): &(&str, u64)| Line { name: name.into(), transfers, count: 1, code: None };
    Run {
        workload: workload.into(),
        target: target.into(),
        workers,
        ops: 100,
        lines: lines.iter().map(line).collect(),
    }
}

fn args(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

#[test]
fn lines_are_told_by_the_structure_they_belong_to_most_transfers_first() {
    let report = Report::parse(REPORT).unwrap();
    assert_eq!(report.ops, 1000);
    let lines = names::lines(&report, "heddle", &Code::default());
    let told: Vec<(&str, u64, u64)> = lines.iter().map(|l| (l.name.as_str(), l.transfers, l.count)).collect();
    let want = [
        ("inode: counts of names, handles, blocks, pins (line 4)", 500, 1),
        ("inode: size and times (line 2)", 20, 3),
        ("free map", 7, 7),
        ("log page", 5, 5),
        ("heap, touched by code at 0x2000", 3, 1),
    ];
    assert_eq!(told, want);
    assert_eq!(lines[0].code, Some(("code at 0x1000".into(), "code at 0x2000".into())));
}

#[test]
fn a_range_locks_first_line_is_recognised_by_its_content() {
    let text = "heddle-coherence 1\nops\t10\nthing\t10\t1\theddle_nvmfs::state::papers::PaperLocks\ta.rs\t1\t384\t0\n\
                thing\t4\t1\theddle_nvmfs::state::papers::PaperLocks\ta.rs\t1\t384\t2\n";
    let report = Report::parse(text).unwrap();
    let of = |target| names::lines(&report, target, &Code::default());
    assert_eq!(of("nova")[0].name, "range lock: reader count");
    assert_eq!(of("nova-interval")[0].name, "range lock: mutex of the interval tree");
    assert_eq!(of("nova-tree")[1].name, "log lock");
}

#[test]
fn a_report_that_is_none_is_refused() {
    for (text, word) in [
        ("", "another version"),
        ("heddle-coherence 9\nops\t1\n", "another version"),
        ("heddle-coherence 1\nops\t0\n", "no operation"),
        ("heddle-coherence 1\nops\tx\n", "bad line"),
        ("heddle-coherence 1\nby\t1\t2\t3\n", "bad line"),
    ] {
        let error = format!("{:#}", Report::parse(text).unwrap_err());
        assert!(error.contains(word), "{text:?}: {error}");
    }
}

#[test]
fn code_is_told_by_the_two_innermost_functions_of_this_workspace() {
    let text = "0x0000000000001000\ncore::sync::atomic::atomic_load\n/rustc/1/library/atomic.rs:9\n\
                heddle_nvmfs::state::inode::VolatileInode::size\n/x/crates/nvmfs/src/state/inode.rs:269\n\
                heddle_nvmfs::file::write_heddle::write::{{closure}}\n/x/crates/nvmfs/src/file/write_heddle.rs:60 (discriminator 2)\n\
                heddle_nvmfs::fs::write\n/x/crates/nvmfs/src/fs.rs:1\n\
                0x0000000000002000\n??\n??:0\n";
    let found = parse_functions(text);
    assert_eq!(
        found[&0x1000],
        "VolatileInode::size (nvmfs/src/state/inode.rs:269) < write_heddle::write (nvmfs/src/file/write_heddle.rs:60)"
    );
    assert_eq!(found[&0x2000], "??");
}

#[test]
fn the_function_around_an_allocation_names_its_words() {
    let text = "impl X {\n    pub fn first() {\n    }\n    /// fn not this\n\
                \x20   pub unsafe fn second<T>(\n        a: T,\n    ) {\n        alloc()\n";
    assert_eq!(names::function_at(text, 8), Some("second".into()));
    assert_eq!(names::function_at(text, 2), Some("first".into()));
    assert_eq!(names::function_at("let x = 1;\n", 1), None);
}

#[test]
fn bars_are_judged_on_the_runs_there_are() {
    let runs = [
        run("DRBM", "heddle", 64, &[("free map", 4)]),
        run("DWOM", "heddle", 64, &[("inode: size and times (line 2)", 5)]),
        run("DRBM", "nova", 64, &[("range lock: reader count", 100), ("free map", 50)]),
        run("DRBM", "nova-tree", 64, &[("range lock: words and nodes of the tree", 5), ("free map", 50)]),
        run(
            "DWOM",
            "nova-interval",
            64,
            &[("range lock: mutex of the interval tree", 99), ("log lock", 100)],
        ),
        run("MWCM", "heddle", 16, &[("log chain", 100)]),
        run("MWCM", "heddle", 64, &[("log chain", 110)]),
    ];
    let verdicts = bars::judge(&runs);
    let told: Vec<String> = verdicts
        .iter()
        .map(|v| format!("{} {}", v.holds, v.to_string().split("  ").next().unwrap()))
        .collect();
    let want = [
        "true DRBM heddle 64 workers",
        "false DWOM heddle 64 workers",
        "true DRBM nova 64 workers, range lock: reader count",
        "false DRBM nova-tree 64 workers, range lock",
        "false DWOM nova-interval 64 workers, range lock: mutex",
        "true DWOM nova-interval 64 workers, log lock",
        "true MWCM heddle 16 workers",
        "true MWCM heddle 64 workers",
        "false MWCM heddle 64 workers",
    ];
    assert_eq!(told, want);
    assert!(bars::text(&verdicts).ends_with("5 of 9 bars reached\n"));
}

#[test]
fn json_has_the_keys_that_were_promised_and_no_others() {
    let json = json_of(&[run("DWOM", "nova", 2, &[("log lock", 150), ("free map", 50)])]);
    let want = serde_json::json!({"runs": [{
        "workload": "DWOM", "target": "nova", "workers": 2, "ops": 100, "transfers": 200, "transfers_per_op": 2.0,
        "lines": [{"name": "log lock", "transfers": 150}, {"name": "free map", "transfers": 50}],
    }]});
    assert_eq!(json, want);
}

#[test]
fn every_target_gets_its_curve_in_every_workloads_field() {
    let runs: Vec<Run> = ["DRBM", "DWOM"]
        .iter()
        .flat_map(|w| ["nova", "heddle"].map(|t| [2, 64].map(|n| run(w, t, n, &[("log lock", n as u64)]))))
        .flatten()
        .collect();
    let svg = chart::draw(&runs);
    assert_eq!(svg.matches("<polyline").count(), 4);
    assert_eq!(svg.matches("<circle").count(), 8);
    assert!(svg.contains(">DRBM<") && svg.contains("nova, 64 workers: 0.640") && svg.ends_with("</svg>\n"));
}

#[test]
fn the_command_line_has_the_usual_runs_as_default_and_tells_mistakes() {
    let all = Options::parse(&[]).unwrap();
    assert_eq!((all.workloads.len(), all.targets, all.workers), (19, vec!["heddle".into()], vec![2, 16, 64]));
    let some =
        Options::parse(&args("drbm DWOM --target nova,heddle --workers 4 --json - --svg x.svg")).unwrap();
    assert_eq!(some.workloads, ["DRBM", "DWOM"]);
    assert_eq!((some.workers, some.json, some.svg), (vec![4], Some(Sink::Stdout), Some("x.svg".into())));
    for (wrong, word) in [
        ("DRBX", "DRBM"),
        ("--target tmpfs", "nova-array"),
        ("--workers 65", "1 to 64"),
        ("--workers 0", "1 to 64"),
        ("--json", "wants a value"),
        ("--secs 2", "unknown option"),
    ] {
        let error = Options::parse(&args(wrong)).unwrap_err().to_string();
        assert!(error.contains(word), "{wrong}: {error}");
    }
}

#[test]
fn newer_qemus_are_told_the_interface_they_want() {
    assert_eq!(plugin_api("qemu-x86_64 version 7.2.22 (Debian 1:7.2+dfsg-7)"), None);
    assert_eq!(plugin_api("qemu-x86_64 version 10.0.2"), Some("2"));
    assert_eq!(plugin_api("what?"), None);
}
