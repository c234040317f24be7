//! Rigs of the flash engine that run for long: random programs on full images.
//!
//! They are tests of the engine, which the test command runs for some seconds; here is only for how long they run.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

/// `cargo xtask f2fs-full [--seconds N] [--seed N]`
pub fn full(root: &Path, args: &[String]) -> Result<bool> {
    let (mut seconds, mut seed) = (3600, 1);
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!("{}: what follows it is missing", pair[0]) };
        let number = || value.parse().with_context(|| format!("{option} {value}: not a number"));
        match option.as_str() {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            _ => bail!("usage: cargo xtask f2fs-full [--seconds N] [--seed N]"),
        }
    }
    let mut command = process::cargo(root, &["test", "--release", "-p", "heddle-f2fs", "--test", "full"]);
    command.args(["--", "--nocapture"]);
    command.env("HEDDLE_F2FS_FULL_SECONDS", seconds.to_string());
    command.env("HEDDLE_F2FS_FULL_SEED", seed.to_string());
    process::run(&mut command, Duration::from_secs(seconds + 3600))?;
    Ok(true)
}
