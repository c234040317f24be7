//! Random programs with the bypass do what they do without it.
//!
//! The checker is a test of the command line's (`bypass_diff`); here is only how long it works, and from which seed on.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{durability, process};

const MINUTES: u64 = 30;

const USAGE: &str =
    "usage: cargo xtask bypass-diff [--minutes N] [--seed S] [--durability process|power] | --planted";

/// `cargo xtask bypass-diff [--minutes N] [--seed S] [--durability process|power]`, or with `--planted`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    if args.first().is_some_and(|arg| arg == "--planted") {
        return planted(root);
    }
    let (args, named) = durability::taken_from(args)?;
    let (mut minutes, mut seed) = (MINUTES, 1_u64);
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!("{}: its number is missing; {USAGE}", pair[0]) };
        let value = value.parse().with_context(|| format!("{option} {value}: not a number"))?;
        match option.as_str() {
            "--minutes" => minutes = value,
            "--seed" => seed = value,
            other => bail!("{other}: unknown; {USAGE}"),
        }
    }
    let mut command = process::cargo(root, &["test", "-p", "heddle-cli", "--test", "bypass_diff"]);
    command.args(["--", "--nocapture"]);
    command.env("HEDDLE_DIFF_SECONDS", (60 * minutes).to_string());
    command.env("HEDDLE_DIFF_SEED", seed.to_string()).envs(named);
    process::run(&mut command, Duration::from_secs(60 * (minutes + 30)))?;
    Ok(true)
}

/// Bugs that are planted for it are found. Built beside the others: a program for users has none of them.
fn planted(root: &Path) -> Result<bool> {
    let mut command = process::cargo(root, &["test", "-p", "heddle-cli", "--test", "bypass_diff"]);
    command.args(["--features", "planted", "--target-dir", "target/planted"]);
    command.args(["--", "--nocapture", "--ignored", "each_planted_fault_is_found"]);
    process::run(&mut command, Duration::from_secs(3600))?;
    Ok(true)
}
