//! Random programs with the bypass do what they do without it.
//!
//! The checker is a test of the command line's (`bypass_diff`); here is only how long it works, and from which seed on.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

const MINUTES: u64 = 30;

/// `cargo xtask bypass-diff [--minutes N] [--seed S]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let (mut minutes, mut seed) = (MINUTES, 1_u64);
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!("{}: its number is missing", pair[0]) };
        let value = value.parse().with_context(|| format!("{option} {value}: not a number"))?;
        match option.as_str() {
            "--minutes" => minutes = value,
            "--seed" => seed = value,
            other => bail!("{other}: unknown; usage: cargo xtask bypass-diff [--minutes N] [--seed S]"),
        }
    }
    let mut command =
        process::cargo(root, &["test", "--release", "-p", "heddle-cli", "--test", "bypass_diff"]);
    command.args(["--", "--nocapture"]);
    command.env("HEDDLE_DIFF_SECONDS", (60 * minutes).to_string());
    command.env("HEDDLE_DIFF_SEED", seed.to_string());
    process::run(&mut command, Duration::from_secs(60 * (minutes + 30)))?;
    Ok(true)
}
