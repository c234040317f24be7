//! The micro-benchmarks of the crates that have some.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::process;

/// `cargo xtask bench [-- FILTER]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let filter = crate::after_dashes(args)?;
    let crates = process::crates_with(root, "benches")?;
    if crates.is_empty() {
        bail!("no crate has a folder benches");
    }
    // `--bench *` leaves the unit tests out, whose harness does not know the benchmarks' options.
    let mut command = process::cargo(root, &["bench", "--bench", "*"]);
    command.args(process::packages(&crates)).arg("--").args(filter);
    process::run(&mut command, Duration::from_secs(3600))?;
    Ok(true)
}
