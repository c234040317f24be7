//! Mixed work of many threads on an image that is nearly full, remounted and checked by fsck again and again.
//!
//! The rig is a test of the NVM engine; here is only for how long it runs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{durability, process};

/// The rig as the test command names it.
pub const SUITE: &str = "nvmfs/soak";
/// What the short run of the test command takes, in seconds, over all variants.
const SECONDS_IN_TEST: u64 = 120;
/// Variants that share it.
const VARIANTS: u64 = 5;

/// How long and wide.
struct Plan {
    minutes: u64,
    threads: u64,
    variant: String,
}

/// `cargo xtask soak [--minutes N] [--threads N] [--variant V|all] [--durability process|power]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let (args, named) = durability::taken_from(args)?;
    let plan = plan(&args)?;
    let mut command = command(root);
    command
        .envs(named)
        .env("HEDDLE_SOAK_SECONDS", (plan.minutes * 60).to_string())
        .env("HEDDLE_SOAK_ROUND_SECONDS", "60")
        .env("HEDDLE_SOAK_THREADS", plan.threads.to_string());
    let variants = match plan.variant.as_str() {
        // One after the other.
        "all" => VARIANTS,
        one => {
            command.env("HEDDLE_SOAK_VARIANT", one);
            1
        }
    };
    process::run(&mut command, Duration::from_secs(variants * plan.minutes * 120 + 1800))?;
    Ok(true)
}

fn plan(args: &[String]) -> Result<Plan> {
    let mut plan = Plan { minutes: 20, threads: 8, variant: "heddle".into() };
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!("{}: what follows it is missing", pair[0]) };
        let number = || value.parse().with_context(|| format!("{option} {value}: not a number"));
        match option.as_str() {
            "--minutes" => plan.minutes = number()?,
            "--threads" => plan.threads = number()?,
            "--variant" => plan.variant = value.clone(),
            _ => bail!(
                "usage: cargo xtask soak [--minutes N] [--threads N] [--variant V|all] {}",
                durability::OPTION
            ),
        }
    }
    Ok(plan)
}

/// What makes it the short run of the test command: all variants.
pub fn short() -> [(&'static str, String); 2] {
    let seconds = SECONDS_IN_TEST / VARIANTS;
    [("HEDDLE_SOAK_SECONDS", seconds.to_string()), ("HEDDLE_SOAK_ROUND_SECONDS", (seconds / 4).to_string())]
}

fn command(root: &Path) -> Command {
    let mut command = process::cargo(root, &["test", "--release", "-p", "heddle-nvmfs", "--test", "soak"]);
    command.args(["--", "--nocapture", "--test-threads=1"]);
    command
}
