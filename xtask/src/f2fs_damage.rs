//! Every field of every structure of an F2FS image set to what it never is.
//!
//! The rig is a test of the flash engine, which the test command runs for some seconds; here is only for how long it runs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

/// `cargo xtask f2fs-damage [--seconds N] [--seed N]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let (mut seconds, mut seed) = (3600, 1);
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!("{}: what follows it is missing", pair[0]) };
        let number = || value.parse().with_context(|| format!("{option} {value}: not a number"));
        match option.as_str() {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            _ => bail!("usage: cargo xtask f2fs-damage [--seconds N] [--seed N]"),
        }
    }
    let mut command = process::cargo(root, &["test", "--release", "-p", "heddle-f2fs", "--test", "damage"]);
    command.args(["--", "--nocapture"]);
    command.env("HEDDLE_F2FS_DAMAGE_SECONDS", seconds.to_string());
    command.env("HEDDLE_F2FS_DAMAGE_SEED", seed.to_string());
    process::run(&mut command, Duration::from_secs(seconds + 3600))?;
    Ok(true)
}
