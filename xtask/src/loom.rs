//! The concurrent algorithms under loom: every interleaving and every weak-memory outcome of small models.
//!
//! The models of the lower crates use what those offer and lie in `tests/loom.rs`; those of the engine use its inside and lie in it.
//!
//! `--cfg loom` changes every crate it compiles, so these builds have a target folder of their own.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::process;

const MODELS: &str = "tests/loom.rs";
/// Of each model of the locks with the marks.
const MARKED_EXECUTIONS: &str = "200000";
/// Of a model of the engine in the test command; each asks for up to three.
const PREEMPTIONS_IN_TEST: &str = "1";

/// `cargo xtask loom [-- FILTER]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let filter = crate::after_dashes(args)?;
    for mut command in [short(root)?, marked(root)?, engine(root)?] {
        command.args(filter);
        process::run(&mut command, Duration::from_secs(3600))?;
    }
    Ok(true)
}

/// The models of every crate that has some.
pub fn command(root: &Path) -> Result<Command> {
    let crates = process::crates_with(root, MODELS)?;
    if crates.is_empty() {
        bail!("no crate has {MODELS}");
    }
    let mut command = process::cargo(root, &["test", "--profile", "models", "--test", "loom"]);
    command.args(process::packages(&crates)).arg("--");
    Ok(under(root, command))
}

/// The models with the marks (see `heddle_arena::sync`). Those of the tree of locks do not end in ten minutes: of each model the first
/// executions, so that the run ends.
fn marked(root: &Path) -> Result<Command> {
    let mut command = command(root)?;
    command.env("LOOM_MAX_PERMUTATIONS", MARKED_EXECUTIONS);
    Ok(command)
}

/// The models without the marks, all of them: also the short run of the test command.
pub fn short(root: &Path) -> Result<Command> {
    let mut command = command(root)?;
    command.env("HEDDLE_LOOM_MARKS", "0");
    Ok(command)
}

/// The models of the engine, and the faults that they must see.
pub fn engine(root: &Path) -> Result<Command> {
    let mut command =
        process::cargo(root, &["test", "--profile", "models", "-p", "heddle-nvmfs", "--lib", "--"]);
    command.arg("models::");
    Ok(under(root, command))
}

/// The same with fewer preemptions; for the planted faults as many as it takes to see them.
pub fn short_engine(root: &Path) -> Result<Command> {
    let mut command = engine(root)?;
    command.env("HEDDLE_LOOM_PREEMPTIONS", PREEMPTIONS_IN_TEST);
    Ok(command)
}

fn under(root: &Path, mut command: Command) -> Command {
    command.env("RUSTFLAGS", "--cfg loom");
    command.env("CARGO_TARGET_DIR", process::target_dir(root).join("loom"));
    command
}

/// A reason to skip: no models yet.
pub fn absent(root: &Path) -> Option<String> {
    let crates = process::crates_with(root, MODELS).unwrap_or_default();
    crates.is_empty().then(|| format!("no crate has {MODELS}"))
}
