//! The crash rig: power cuts at every fence of all short sequences of operations, every variant; and bugs planted to show that it sees.
//!
//! The rig is a program of `crates/crash`; here is only how it is built and called.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::process;

/// Where the rig lives.
pub const RIG: &str = "crates/crash/src/bin/crash-rig.rs";

/// `cargo xtask crash …`: the rig reads the words itself.
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    process::run(&mut command(root, args), Duration::from_secs(12 * 3600))?;
    Ok(true)
}

/// The short run of the test command: all sequences of one operation, a few images a cut.
pub fn short(root: &Path) -> Result<Command> {
    process::run(&mut process::cargo(root, process::RELEASE_BUILD), Duration::from_secs(600))?;
    let mut command = Command::new(process::target_dir(root).join("release/crash-rig"));
    command.args(["--length", "1", "--images", "6", "--random", "2", "--seconds", "30"]).current_dir(root);
    Ok(command)
}

/// The planted bugs, and a part of the faults.
pub fn short_planted(root: &Path) -> Result<Command> {
    Ok(command(root, &["--planted", "--faults", "--fast"]))
}

/// With the feature: so the rig counts what it meets.
fn command(root: &Path, args: &[impl AsRef<std::ffi::OsStr>]) -> Command {
    let mut command =
        process::cargo(root, &["run", "--quiet", "--release", "-p", "heddle-crash", "--bin", "crash-rig"]);
    command.args(["--features", "planted", "--"]).args(args);
    command
}
