//! The measuring commands: their JSON has the promised keys, their exit codes tell of failed cells, a closed pipe is no error.

mod common;

use common::{Place, command, heddle};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn fxmark_writes_every_form_of_its_report() {
    let place = Place::new();
    let (csv, html) = (place.text("runs.csv"), place.text("page.html"));
    let said = heddle(&[
        "fxmark",
        "DWOM",
        "drbm",
        "--target",
        "heddle,nova-tree",
        "--secs",
        "0.05",
        "--repeat",
        "2",
        "--json",
        "-",
        "--csv",
        &csv,
        "--html",
        &html,
    ])
    .ok();
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(report["output_version"], 1);
    assert!(report["machine"]["cores"].as_u64() >= Some(1));
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2 * 2 * 2);
    for run in runs {
        for key in ["workload", "target", "cores", "repeat", "secs", "ops", "ops_per_sec", "p50_ns", "p99_ns"]
        {
            assert!(!run[key].is_null(), "{key} lacks in {run}");
        }
        assert!(run["error"].is_null() && run["ops"].as_u64() > Some(0), "{run}");
        assert_eq!(run["workers_as"], "threads", "as nova-tree has to have them");
    }
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), 1 + runs.len());
    assert!(std::fs::read_to_string(html).unwrap().contains("DWOM"));
    assert_eq!(said.err.lines().count(), runs.len(), "a line a run where there is no terminal");
}

#[test]
fn workers_of_heddle_are_processes_unless_threads_are_asked_for() {
    for (asked, are) in [(&[][..], "processes"), (&["--workers-as", "threads"], "threads")] {
        let run = ["fxmark", "MWCL", "--files", "64", "--secs", "0.02", "--repeat", "1", "--json", "-"];
        let said = heddle(&[&run[..], asked].concat()).ok();
        let report: Value = serde_json::from_str(&said.out).unwrap();
        for told in [&report["runs"][0], &report["summary"][0]] {
            assert_eq!((&told["target"], &told["workers_as"]), (&"heddle".into(), &are.into()));
        }
    }
}

/// Processes that this one has started.
fn children(of: u32) -> Vec<u32> {
    let parent = |pid: &u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| parent(pid) == Some(of)).collect()
}

#[test]
fn a_killed_worker_fails_its_cell_and_leaves_nothing() {
    let place = Place::new();
    let mut fxmark = command(&["fxmark", "DWOM", "--secs", "60", "--repeat", "1"]);
    // What has a name would have it there.
    fxmark.env("TMPDIR", place.path("mnt")).env("XDG_RUNTIME_DIR", place.path("mnt"));
    let fxmark = fxmark.env("HEDDLE_RUNTIME_DIR", place.path("mnt"));
    let fxmark = fxmark.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let program = fxmark.id();
    let began = Instant::now();
    let (leader, worker) = loop {
        let found =
            children(program).into_iter().find_map(|leader| Some((leader, *children(leader).first()?)));
        if let Some(found) = found {
            break found;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "no worker in sight");
        std::thread::sleep(Duration::from_millis(10));
    };
    std::thread::sleep(Duration::from_millis(100));
    kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::KILL).unwrap();
    let said = fxmark.wait_with_output().unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said.status.code(), Some(1), "{text}");
    assert!(text.contains("failed: DWOM heddle on 1 cores: worker 0 was killed by signal 9"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(45), "the others waited for it");
    for gone in [leader, worker] {
        assert!(!std::path::Path::new(&format!("/proc/{gone}")).exists(), "process {gone} is left");
    }
    assert_eq!(std::fs::read_dir(place.path("mnt")).unwrap().count(), 0);
    assert!(!std::path::Path::new(&format!("/dev/shm/heddle-{program}")).exists());
}

#[test]
fn fxmark_measures_each_size_of_segment() {
    let args =
        ["fxmark", "DWOM", "--target", "nova-array,heddle", "--segment", "4K,64K", "--access", "random"];
    let said = heddle(&[&args[..], &["--secs", "0.02", "--repeat", "1", "--json", "-"]].concat()).ok();
    let report: Value = serde_json::from_str(&said.out).unwrap();
    let targets: Vec<&str> =
        report["runs"].as_array().unwrap().iter().map(|r| r["target"].as_str().unwrap()).collect();
    assert_eq!(targets, ["nova-array@4K", "nova-array@64K", "heddle"]);
}

#[test]
fn a_cell_that_fails_makes_fxmark_fail_with_1() {
    let said = heddle(&["fxmark", "DWOL", "--file-size", "900T", "--secs", "0.02", "--repeat", "1"]);
    assert_eq!(said.code, 1);
    assert!(said.out.contains("smaller --file-size"), "{}", said.out);
}

#[test]
fn locks_tells_of_every_lock_and_variant() {
    let said = heddle(&["locks", "--threads", "1,9", "--secs", "0.01", "-M", "34", "--json", "-"]).ok();
    let report: Value = serde_json::from_str(&said.out).unwrap();
    let rows = |key: &str| report[key].as_array().unwrap().clone();
    assert_eq!(rows("latency").len(), 4 * 2 * 2);
    for row in rows("latency") {
        assert!(row["max_ns"].as_u64() >= row["p999_ns"].as_u64(), "{row}");
        assert!(
            row["p999_ns"].as_u64() >= row["median_ns"].as_u64() && row["samples"].as_u64() > Some(0),
            "{row}"
        );
    }
    let tree: Vec<Value> = rows("memory").into_iter().filter(|row| row["lock"] == "tree").collect();
    let grows = |key: &str| tree.windows(2).all(|pair| pair[0][key].as_u64() < pair[1][key].as_u64());
    assert!(tree.len() > 2 && grows("model_bytes") && grows("measured_bytes"), "{tree:?}");
    let fences: Vec<Value> = rows("fences_per_write");
    assert_eq!(fences.len(), 5);
    assert!(fences.iter().all(|row| (1..=8).contains(&row["fences"].as_u64().unwrap())), "{fences:?}");
    assert!(rows("write_1gb").iter().all(|row| row["secs"].as_f64() > Some(0.0)));
}

#[test]
fn bandwidth_is_told_for_each_number_of_threads() {
    let said = heddle(&[
        "bandwidth",
        "--threads",
        "1,2",
        "--secs",
        "0.01",
        "--repeat",
        "1",
        "--buffer",
        "4M",
        "--json",
        "-",
    ])
    .ok();
    let report: Value = serde_json::from_str(&said.out).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert!(
        rows.iter()
            .all(|row| row["write"]["gb_s"].as_f64() > Some(0.0) && row["read"]["gb_s"].as_f64() > Some(0.0))
    );
}

#[test]
fn the_next_fxmark_frees_what_killed_commands_left_in_memory() {
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let left = std::path::PathBuf::from(format!("/dev/shm/heddle-{}.0", ended.id()));
    ended.wait().unwrap();
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("image"), "x").unwrap();
    heddle(&["fxmark", "DRBL", "--target", "heddle", "--secs", "0.01", "--repeat", "1"]).ok();
    let is_gone = !left.exists();
    let _none = std::fs::remove_dir_all(&left);
    assert!(is_gone);
}

#[test]
fn mount_times_refuses_a_disk_and_leaves_nothing_when_interrupted() {
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if rustix::fs::statfs(disk.path()).unwrap().f_type != rustix::fs::statfs("/dev/shm").unwrap().f_type {
        heddle(&["mount-times", "--dir", disk.path().to_str().unwrap()]).failed(2, &["--dir", "/dev/shm"]);
    } else {
        eprintln!("SKIPPED, NOT TESTED: the build's directory lies in memory");
    }
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
    let place = Place::new();
    let mut measuring = command(&["mount-times", "--files", "1000000", "--dir", &place.mnt()]);
    let mut child = measuring.stderr(Stdio::null()).spawn().unwrap();
    let is_empty = || std::fs::read_dir(place.mnt()).unwrap().next().is_none();
    while is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended without an image");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(is_empty());
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let mut child =
        command(&["fxmark", "--list"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let said = child.wait_with_output().unwrap();
    assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
    let mut child = command(&["completions", "bash"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The commands that `heddle --help` shows.
fn commands() -> Vec<String> {
    let help = heddle(&["--help"]).ok().out;
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // What goes on in the next line is indented further.
    let named = lines.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let named = named.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    let all: Vec<String> = named.filter(|name| *name != "help").map(str::to_owned).collect();
    assert!(all.len() > 15 && all.iter().any(|name| name == "mount-times"), "{all:?}");
    all
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let place = Place::new();
    heddle(&["man", &place.mnt()]).ok();
    let mut wanted: Vec<String> = commands().iter().map(|name| format!("heddle-{name}.1")).collect();
    wanted.push("heddle.1".into());
    wanted.sort();
    let page = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut found: Vec<String> =
        std::fs::read_dir(place.mnt()).unwrap().map(|entry| page(entry.unwrap())).collect();
    found.sort();
    assert_eq!(found, wanted);
    for page in found {
        let text = std::fs::read_to_string(place.path("mnt").join(&page)).unwrap();
        let header =
            format!(".TH {} 1  \"heddle {}\"", page.trim_end_matches(".1"), env!("CARGO_PKG_VERSION"));
        assert!(text.lines().any(|line| line.trim_end() == header), "{page}: {header}");
    }
}

/// A shell offered `demo-writer`, which writes until somebody kills it.
#[test]
fn completions_offer_the_commands_of_the_help_and_no_others() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = heddle(&["completions", shell]).ok().out;
        commands().iter().for_each(|name| assert!(script.contains(name), "{shell}: {name}"));
        for hidden in ["demo-writer", "coherence-worker"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
}

#[test]
fn a_mounted_target_is_measured_through_fuse_and_leaves_nothing() {
    if !common::own_namespace() {
        return;
    }
    let args = [
        "fxmark",
        "DWOM",
        "--target",
        "nova-tree+mount,heddle+mount,f2fs-rl+mount",
        "--secs",
        "0.05",
        "--repeat",
        "1",
    ];
    let said = heddle(&[&args[..], &["--json", "-"]].concat()).ok();
    let report: Value = serde_json::from_str(&said.out).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    assert!(runs.iter().all(|run| run["error"].is_null() && run["ops"].as_u64() > Some(0)), "{runs:?}");
    assert_eq!(runs[0]["target"], "nova-tree+mount");
}

#[test]
fn systems_for_flash_are_measured_beside_the_others() {
    let targets = "heddle,f2fs,f2fs-rl,f2fs-nl,f2fs-integrated";
    let run = ["fxmark", "DWOM", "MWCM", "--target", targets, "--files", "64", "--cores", "2"];
    let said = heddle(&[&run[..], &["--secs", "0.05", "--repeat", "1", "--json", "-"]].concat()).ok().out;
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 10);
    for run in runs {
        assert!(run["error"].is_null() && run["ops"].as_u64() > Some(0), "{run}");
        assert_eq!(run["workers_as"], "threads", "{run}");
    }
    let said = [&run[..], &["--workers-as", "processes"]].concat();
    heddle(&said).failed(2, &["f2fs", "one process"]);
}
