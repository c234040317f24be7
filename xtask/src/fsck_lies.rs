//! Planted damage with many values: every field of every structure on the media, every variant.
//!
//! The rig is an ignored test of the NVM engine; here is only how many values it tries.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

const VALUES: u64 = 9;

/// `cargo xtask fsck-lies [--values N]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let values = match args {
        [] => VALUES,
        [option, count] if option == "--values" => {
            count.parse().with_context(|| format!("--values {count}: not a number"))?
        }
        _ => bail!("usage: cargo xtask fsck-lies [--values N]"),
    };
    let mut command = process::cargo(root, &["test", "--release", "-p", "heddle-nvmfs", "--test", "fsck"]);
    command.args(["--", "--ignored", "--nocapture", "planted_damage"]);
    command.env("HEDDLE_FSCK_LIES", values.to_string());
    process::run(&mut command, Duration::from_secs(2 * 3600))?;
    Ok(true)
}
