//! Trees of processes on one nearly full image, killed, stopped and frozen at random, each byte checked.
//!
//! The rig is a test of the NVM engine (`crates/nvmfs/tests/living.rs`), which the test command runs for some seconds; here is
//! only for how long it runs, and with which seed.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

const MINUTES: u64 = 60;
const RIG: &str = "the_living_are_right_whoever_is_killed_stopped_or_frozen";

/// `cargo xtask processes [--minutes N] [--seed S]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let (mut minutes, mut seed) = (MINUTES, None);
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!("{}: what follows it is missing", pair[0]) };
        let number = || value.parse::<u64>().with_context(|| format!("{option} {value}: not a number"));
        match option.as_str() {
            "--minutes" => minutes = number()?,
            "--seed" => seed = Some(number()?),
            _ => bail!("usage: cargo xtask processes [--minutes N] [--seed S]"),
        }
    }
    let mut command = process::cargo(root, &["test", "--release", "-p", "heddle-nvmfs", "--test", "living"]);
    command.args(["--", "--nocapture", "--test-threads=1", RIG]);
    command.env("HEDDLE_LIVING_SECONDS", (minutes * 60).to_string());
    command.envs(seed.map(|seed| ("HEDDLE_LIVING_SEED", seed.to_string())));
    process::run(&mut command, Duration::from_secs(minutes * 90 + 1800))?;
    Ok(true)
}
