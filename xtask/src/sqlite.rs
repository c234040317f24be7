//! Short SQLite writers at once, under the bypass: none ends by a signal, no row is lost.
//!
//! The rig is a test of the command line (`crates/cli/tests/sqlite.rs`), which the test command runs with fewer writers; here is only how
//! many databases they write.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

const BATCHES: u64 = 40;

/// `cargo xtask sqlite [--batches N]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let batches: u64 = match args {
        [] => BATCHES,
        [option, count] if option == "--batches" => {
            count.parse().with_context(|| format!("--batches {count}: not a number"))?
        }
        _ => bail!("usage: cargo xtask sqlite [--batches N]"),
    };
    let mut command = process::cargo(root, &["test", "-p", "heddle-cli", "--test", "sqlite"]);
    command.args(["--", "--nocapture"]).env("HEDDLE_SQLITE_BATCHES", batches.to_string());
    process::run(&mut command, Duration::from_secs(600 + batches * 120))?;
    Ok(true)
}
