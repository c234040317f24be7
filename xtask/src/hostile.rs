//! What an attacker and a careless script do: memory is overwritten under everybody's hands, commands get every kind of wrong operand.
//!
//! Both rigs are tests of the command line (`crates/cli/tests/scribble.rs`, `cli_fuzz.rs`), of which the test command runs a short form;
//! here is only how long they go on.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

const SCRIBBLE_SECONDS: u64 = 3600;
/// Some thousands of commands.
const CLI_FUZZ_MAX: Duration = Duration::from_secs(3600);

/// `cargo xtask scribble [--seconds N] [--seed N]`
pub fn scribble(root: &Path, args: &[String]) -> Result<bool> {
    let (mut seconds, mut seed) = (SCRIBBLE_SECONDS, 1);
    for pair in args.chunks(2) {
        let value = |text: &String| text.parse::<u64>().with_context(|| format!("{text}: not a number"));
        match pair {
            [option, value_of] if option == "--seconds" => seconds = value(value_of)?,
            [option, value_of] if option == "--seed" => seed = value(value_of)?,
            _ => bail!("usage: cargo xtask scribble [--seconds N] [--seed N]"),
        }
    }
    let mut command = rig(root, "scribble");
    command.env("HEDDLE_SCRIBBLE_SECONDS", seconds.to_string());
    command.env("HEDDLE_SCRIBBLE_SEED", seed.to_string());
    process::run(&mut command, Duration::from_secs(3600 + seconds))?;
    Ok(true)
}

/// `cargo xtask cli-fuzz [--say]`
pub fn cli_fuzz(root: &Path, args: &[String]) -> Result<bool> {
    let how = match args {
        [] => "all",
        [option] if option == "--say" => "say",
        _ => bail!("usage: cargo xtask cli-fuzz [--say]"),
    };
    let mut command = rig(root, "cli_fuzz");
    process::run(command.env("HEDDLE_OPERANDS", how), CLI_FUZZ_MAX)?;
    Ok(true)
}

fn rig(root: &Path, test: &str) -> std::process::Command {
    let mut command = process::cargo(root, &["test", "-p", "heddle-cli", "--test", test]);
    command.args(["--", "--nocapture", "--test-threads=1"]).env("RUST_BACKTRACE", "0");
    command
}
