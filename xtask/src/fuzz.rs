//! Hostile input for a long time: the fuzzer of `crates/fuzz`, built with counters on the edges of the control flow.
//!
//! The counters are LLVM's, which a stable compiler puts in too. They go into every crate that is compiled for the target, so this
//! build has a target folder of its own, and names its target: else build scripts would get them. What was worth keeping stays in
//! that folder, and the next run begins with it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process;

const COUNTERS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters";
/// Processor time of each target if nothing is said.
const SECONDS: &str = "60";

/// `cargo xtask fuzz [TARGET…] [--seconds N] [--seed N] [--inputs N] [--replay FILE…]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let folder = process::target_dir(root).join("fuzz");
    let host = host()?;
    let mut build = process::cargo(
        root,
        &["build", "--quiet", "--profile", "fuzz", "-p", "heddle-fuzz", "--target", &host],
    );
    build.env("RUSTFLAGS", COUNTERS).env("CARGO_TARGET_DIR", &folder);
    process::run(&mut build, Duration::from_secs(1800))?;
    let mut run = Command::new(folder.join(&host).join("fuzz").join("heddle-fuzz"));
    run.current_dir(root).args(args);
    let has = |option: &str| args.iter().any(|arg| arg == option);
    if !has("--replay") {
        run.arg("--dir").arg(folder.join("kept"));
        if !has("--seconds") && !has("--inputs") {
            run.args(["--seconds", SECONDS]);
        }
    }
    process::run(&mut run, Duration::from_secs(48 * 3600))?;
    Ok(true)
}

/// The machine this compiler compiles for.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot ask rustc for its host")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_string())
}
