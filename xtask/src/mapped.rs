//! Shared mappings beside calls on the same pages: nothing that either wrote is lost.
//!
//! The rig is a test of the command line (`crates/cli/tests/mapped.rs`), which the test command runs for a few rounds;
//! here is only how many it makes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

const ROUNDS: u64 = 500;

/// `cargo xtask mapped [--rounds N]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let rounds: u64 = match args {
        [] => ROUNDS,
        [option, count] if option == "--rounds" => {
            count.parse().with_context(|| format!("--rounds {count}: not a number"))?
        }
        _ => bail!("usage: cargo xtask mapped [--rounds N]"),
    };
    let mut command = process::cargo(root, &["test", "-p", "heddle-cli", "--test", "mapped"]);
    command.args(["--", "--nocapture", "--test-threads=1"]).env("HEDDLE_MAPPED_ROUNDS", rounds.to_string());
    process::run(&mut command, Duration::from_secs(3600 + rounds * 10))?;
    Ok(true)
}
