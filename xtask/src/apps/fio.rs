//! fio: several processes on one file, what they have written verified by checksums; then the rate of two writers of one file.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::test_dir::{TestDir, run_for_output};
use super::{App, Figure, Length, figure};

pub const APP: App = App {
    name: "fio",
    packages: &[("fio", "fio")],
    about: "psync, 4 processes on one file, every block verified, by the mount too; 2 processes write it at random",
    group: None,
    run,
};

const LIMIT: Duration = Duration::from_secs(300);
/// Writers that are verified.
const WRITERS: u64 = 4;
/// Writers that are timed.
const TIMED: u64 = 2;

fn run(test_dir: &TestDir, length: Length) -> Result<Vec<Figure>> {
    let part = length.pick(4 << 20, 64 << 20);
    // Blocks of all lengths up to a request's, so that edges of pages are shared by two calls.
    let sizes = "--bsrange=512-64k";
    let verified = |how: &str| {
        let args = ["--rw=randrw", sizes, "--verify=crc32c", how].map(str::to_owned);
        [shared(WRITERS, part), args.to_vec()].concat()
    };
    let wrote = fio(test_dir, test_dir.command_as_placed("fio"), &verified("--do_verify=1"))?;
    ensure!(of(&wrote, "write", "total_ios")? > 0.0, "nothing was written");
    // Again from the file alone, and without the bypass.
    fio(test_dir, test_dir.command_without_bypass("fio"), &verified("--verify_only=1"))?;
    let seconds = format!("--runtime={}", length.pick(1, 5));
    let mut figures = Vec::new();
    for (what, rw) in [
        ("2 processes write 4 KiB of one file", "--rw=randwrite"),
        ("2 processes read 4 KiB of one file", "--rw=randread"),
    ] {
        let timed = [rw, "--bs=4k", "--time_based=1", &seconds, "--norandommap=1"].map(str::to_owned);
        let ran = fio(
            test_dir,
            test_dir.command_as_placed("fio"),
            &[shared(TIMED, part), timed.to_vec()].concat(),
        )?;
        figures.push(figure(
            what,
            "k calls/s",
            (of(&ran, "write", "iops")? + of(&ran, "read", "iops")?) / 1e3,
        ));
    }
    Ok(figures)
}

/// Processes, each with a part of one file.
fn shared(processes: u64, part: u64) -> Vec<String> {
    let mut args: Vec<String> = [
        "--name=shared",
        "--filename=shared",
        "--ioengine=psync",
        "--group_reporting=1",
        "--randseed=7",
        "--fallocate=none",
    ]
    .map(str::to_owned)
    .into();
    args.extend([
        format!("--numjobs={processes}"),
        format!("--size={part}"),
        format!("--offset_increment={part}"),
    ]);
    args
}

fn fio(test_dir: &TestDir, mut command: Command, args: &[String]) -> Result<Value> {
    command.args(["--output-format=json", "--verify_state_save=0", "--verify_fatal=1"]);
    command.args(args);
    let out = run_for_output(&mut command, LIMIT)?;
    // Notes may come before it.
    let json = out.find('{').map(|at| &out[at..]).unwrap_or_default();
    let value: Value =
        serde_json::from_str(json).with_context(|| format!("fio on {} said: {out}", test_dir.kind.name()))?;
    let errors = value["jobs"][0]["error"].as_i64();
    ensure!(errors == Some(0), "fio ended with error {errors:?}");
    Ok(value)
}

fn of(report: &Value, way: &str, what: &str) -> Result<f64> {
    report["jobs"][0][way][what].as_f64().with_context(|| format!("fio's report has no {way} {what}"))
}
