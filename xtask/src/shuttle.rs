//! The whole engine under shuttle: programs of several threads, each with a schedule of its own, whose answers must have an order.
//!
//! `--cfg shuttle` changes every crate it compiles, so this build has a target folder of its own.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

const SEEDS: u64 = 50_000;
const SEEDS_IN_TEST: u64 = 300;

/// `cargo xtask shuttle [--seeds N]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let seeds = match args {
        [] => SEEDS,
        [option, count] if option == "--seeds" => {
            count.parse().with_context(|| format!("--seeds {count}: not a number"))?
        }
        _ => bail!("usage: cargo xtask shuttle [--seeds N]"),
    };
    process::run(&mut command(root, seeds), Duration::from_secs(6 * 3600))?;
    Ok(true)
}

/// The short run of the test command.
pub fn short(root: &Path) -> Result<Command> {
    Ok(command(root, SEEDS_IN_TEST))
}

fn command(root: &Path, seeds: u64) -> Command {
    let mut command =
        process::cargo(root, &["test", "--profile", "models", "-p", "heddle-nvmfs", "--test", "shuttle"]);
    // Processes that die between two stores: the same build.
    command.args(["--test", "deaths"]);
    command.env("RUSTFLAGS", "--cfg shuttle");
    command.env("CARGO_TARGET_DIR", process::target_dir(root).join("shuttle"));
    command.env("HEDDLE_SHUTTLE_SEEDS", seeds.to_string());
    command
}
