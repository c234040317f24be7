//! Mixed work of many threads on an image that is nearly full, remounted and checked again and again.
//!
//! The rig is a test of the NVM engine; here is only for how long it runs, and which checker it calls between mounts.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

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

/// `cargo xtask soak [--minutes N] [--threads N] [--variant V]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let plan = plan(args)?;
    let mut command = command(root)?;
    command
        .env("HEDDLE_SOAK_SECONDS", (plan.minutes * 60).to_string())
        .env("HEDDLE_SOAK_ROUND_SECONDS", "60")
        .env("HEDDLE_SOAK_THREADS", plan.threads.to_string())
        .env("HEDDLE_SOAK_VARIANT", plan.variant);
    process::run(&mut command, Duration::from_secs(plan.minutes * 120 + 1800))?;
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
            _ => bail!("usage: cargo xtask soak [--minutes N] [--threads N] [--variant V]"),
        }
    }
    Ok(plan)
}

/// The short run of the test command: all variants.
pub fn short(root: &Path) -> Result<Command> {
    let mut command = command(root)?;
    command.env("HEDDLE_SOAK_SECONDS", (SECONDS_IN_TEST / VARIANTS).to_string());
    command.env("HEDDLE_SOAK_ROUND_SECONDS", "6");
    Ok(command)
}

fn command(root: &Path) -> Result<Command> {
    process::run(&mut process::cargo(root, &["build", "--quiet", "--release"]), Duration::from_secs(1800))?;
    let checker = process::target_dir(root).join("release").join("heddle");
    let mut command = process::cargo(root, &["test", "--release", "-p", "heddle-nvmfs", "--test", "soak"]);
    command.args(["--", "--nocapture", "--test-threads=1"]);
    // A build without the checker soaks all the same.
    let has_checker = Command::new(&checker).args(["fsck", "--help"]).output();
    if has_checker.is_ok_and(|output| output.status.success()) {
        command.env("HEDDLE_SOAK_FSCK", format!("{} fsck -n", checker.display()));
    } else {
        println!("soak: this heddle has no fsck; images are compared, not checked");
    }
    Ok(command)
}
