//! Overlapping I/O is never torn: writers and readers on one file, every read checked, every variant.
//!
//! The checkers are tests: of threads an ignored one of the NVM engine, of processes one that attaches to the arena and one that goes
//! through the mount, the bypass, and both at once. Here is only how many reads they make of each shape.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{durability, process};

const READS: u64 = 1_000_000;
/// In the test command, of each shape, and of the largest.
const READS_IN_TEST: [u64; 2] = [10_000, 10_000];

/// `cargo xtask torn [--processes] [--reads N] [--durability process|power]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let (args, named) = durability::taken_from(args)?;
    let (processes, rest) = match args.as_slice() {
        [first, rest @ ..] if first == "--processes" => (true, rest),
        all => (false, all),
    };
    let reads = match rest {
        [] => READS,
        [option, count] if option == "--reads" => {
            count.parse().with_context(|| format!("--reads {count}: not a number"))?
        }
        _ => bail!("usage: cargo xtask torn [--processes] [--reads N] {}", durability::OPTION),
    };
    let commands = if processes { of_processes(root, reads) } else { vec![command(root, reads)] };
    for mut command in commands {
        process::run(command.envs(named.clone()), Duration::from_secs(6 * 3600))?;
    }
    Ok(true)
}

/// Attached to the arena; then through the mount, the bypass, and both.
fn of_processes(root: &Path, reads: u64) -> Vec<Command> {
    let attached = [
        "reads_see_writes_of_other_processes_whole_or_not_at_all",
        "appends_of_several_processes_neither_overlap_nor_get_lost",
    ];
    let rigs: [(&str, &str, &[&str]); 2] =
        [("heddle-nvmfs", "processes", &attached), ("heddle-cli", "together", &[])];
    let commands = rigs.map(|(package, test, filters)| {
        let mut command = process::cargo(root, &["test", "--release", "-p", package, "--test", test]);
        command.args(["--", "--nocapture", "--test-threads=1"]).args(filters);
        command.env("HEDDLE_TORN_READS", reads.to_string());
        command
    });
    commands.into()
}

/// The rig as the test command names it.
pub const SUITE: &str = "nvmfs/torn";

/// What makes it the short run of the test command.
pub fn short() -> [(&'static str, String); 2] {
    let [reads, largest] = READS_IN_TEST.map(|reads| reads.to_string());
    [("HEDDLE_TORN_READS", reads), ("HEDDLE_TORN_READS_LARGEST", largest)]
}

/// The largest shape (256 KiB) costs some fifty times the smallest, and gets a tenth of the reads.
fn command(root: &Path, reads: u64) -> Command {
    let largest = (reads / 10).max(READS_IN_TEST[1]);
    let mut command = process::cargo(root, &["test", "--release", "-p", "heddle-nvmfs", "--test", "torn"]);
    command.args(["--", "--include-ignored", "--nocapture"]);
    command.env("HEDDLE_TORN_READS", reads.to_string());
    command.env("HEDDLE_TORN_READS_LARGEST", largest.to_string());
    command
}
