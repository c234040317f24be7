//! Random programs on full images, of both engines.
//!
//! They are tests of the engines, which the test command runs for some seconds; here is only for how long they run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

const USAGE: &str = "cargo xtask full [--seconds N] [--seed N] [--variant V|f2fs]";

/// How long, from which program on, of which system.
struct Plan {
    seconds: u64,
    seed: u64,
    variant: Option<String>,
}

/// `cargo xtask full [--seconds N] [--seed N] [--variant V|f2fs]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let plan = plan(args)?;
    let flash = plan.variant.as_deref() == Some("f2fs");
    let crates = match &plan.variant {
        None => vec!["heddle-nvmfs", "heddle-f2fs"],
        Some(_) if flash => vec!["heddle-f2fs"],
        Some(_) => vec!["heddle-nvmfs"],
    };
    let seconds = plan.seconds / crates.len() as u64;
    for package in crates {
        let mut command = process::cargo(root, &["test", "-p", package, "--test", "full"]);
        command.args(["--", "--nocapture", "programs"]);
        command.env("HEDDLE_FULL_SECONDS", seconds.to_string());
        command.env("HEDDLE_FULL_SEED", plan.seed.to_string());
        if let Some(variant) = plan.variant.as_ref().filter(|_| !flash) {
            command.env("HEDDLE_FULL_VARIANT", variant);
        }
        process::run(&mut command, Duration::from_secs(seconds + 3600))?;
    }
    Ok(true)
}

fn plan(args: &[String]) -> Result<Plan> {
    let mut plan = Plan { seconds: 3600, seed: 1, variant: None };
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!("{}: what follows it is missing; {USAGE}", pair[0]) };
        let number = || value.parse().with_context(|| format!("{option} {value}: not a number"));
        match option.as_str() {
            "--seconds" => plan.seconds = number()?,
            "--seed" => plan.seed = number()?,
            "--variant" => plan.variant = Some(value.clone()),
            _ => bail!("usage: {USAGE}"),
        }
    }
    Ok(plan)
}
