//! Overlapping I/O is never torn: writers and readers on one file, every read checked, every variant.
//!
//! The checker is an ignored test of the NVM engine; here is only how many reads it makes of each shape.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

/// Where the checker lives.
pub const RIG: &str = "crates/nvmfs/tests/torn.rs";

const READS: u64 = 1_000_000;
const READS_IN_TEST: u64 = 10_000;

/// `cargo xtask torn [--reads N]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let reads = match args {
        [] => READS,
        [option, count] if option == "--reads" => {
            count.parse().with_context(|| format!("--reads {count}: not a number"))?
        }
        _ => bail!("usage: cargo xtask torn [--reads N]"),
    };
    process::run(&mut command(root, reads), Duration::from_secs(6 * 3600))?;
    Ok(true)
}

/// The short run of the test command.
pub fn short(root: &Path) -> Result<Command> {
    Ok(command(root, READS_IN_TEST))
}

/// The largest shape (256 KiB) costs some fifty times the smallest, and gets a tenth of the reads in a long run.
fn command(root: &Path, reads: u64) -> Command {
    let largest = if reads > READS_IN_TEST { (reads / 10).max(READS_IN_TEST) } else { reads };
    let mut command = process::cargo(root, &["test", "--release", "-p", "heddle-nvmfs", "--test", "torn"]);
    command.args(["--", "--include-ignored", "--nocapture"]);
    command.env("HEDDLE_TORN_READS", reads.to_string());
    command.env("HEDDLE_TORN_READS_LARGEST", largest.to_string());
    command
}
