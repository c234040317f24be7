//! Processes that share an image are killed at random, again and again: writers, the daemon, and those that are stopped too long.
//!
//! The rigs are tests of the NVM engine (`crates/nvmfs/tests/processes/deaths.rs`), which the test command runs for a few rounds; here
//! is only how many rounds each makes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{durability, process};

const USAGE: &str =
    "usage: cargo xtask kill-loop [--rounds N] [--who client|daemon|stop] [--durability process|power]";
const ROUNDS: u64 = 500;
const KILLS: u64 = 2_000;

/// Whom a rig kills, the variable that says how often, and its tests.
const RIGS: &[(&str, &str, &[&str])] = &[
    (
        "client",
        "HEDDLE_PROCESS_KILLS",
        &[
            "a_writer_that_is_killed_holds_nobody_up_and_loses_nothing_acknowledged",
            "a_process_killed_among_names_blocks_nobody_and_loses_nothing",
        ],
    ),
    ("daemon", "HEDDLE_DAEMON_KILLS", &["a_daemon_that_starts_again_takes_over_what_the_clients_hold"]),
    ("stop", "HEDDLE_PROCESS_STOPS", &["a_stopped_writer_in_the_way_is_killed_after_the_patience"]),
];

/// `cargo xtask kill-loop [--rounds N] [--who client|daemon|stop] [--durability process|power]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let (args, named) = durability::taken_from(args)?;
    let (mut rounds, mut who) = (ROUNDS, None);
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!(USAGE) };
        match option.as_str() {
            "--rounds" => {
                rounds = value.parse().with_context(|| format!("--rounds {value}: not a number"))?;
            }
            "--who" if RIGS.iter().any(|rig| rig.0 == value) => who = Some(value.as_str()),
            _ => bail!(USAGE),
        }
    }
    for rig in RIGS.iter().filter(|rig| who.is_none_or(|who| who == rig.0)) {
        let mut command = command(root, rig.1, rig.2, rounds);
        process::run(command.envs(named.clone()), Duration::from_secs(3600 + rounds * 20))?;
    }
    Ok(true)
}

/// `cargo xtask survive [--kills N] [--seed N] [--durability process|power]`:
/// `crates/nvmfs/tests/processes/survivors.rs`, the release build.
pub fn survive(root: &Path, args: &[String]) -> Result<bool> {
    const USAGE: &str = "usage: cargo xtask survive [--kills N] [--seed N] [--durability process|power]";
    let (args, named) = durability::taken_from(args)?;
    let (mut kills, mut seed) = (KILLS, None);
    for pair in args.chunks(2) {
        let [option, value] = pair else { bail!(USAGE) };
        let number: u64 = value.parse().with_context(|| format!("{option} {value}: not a number"))?;
        match option.as_str() {
            "--kills" => kills = number,
            "--seed" => seed = Some(number),
            _ => bail!(USAGE),
        }
    }
    let mut command =
        command(root, "HEDDLE_SURVIVE_KILLS", &["a_call_killed_at_any_instruction_is_done_or_undone"], kills);
    command.envs(seed.map(|seed| ("HEDDLE_SURVIVE_SEED", seed.to_string()))).envs(named);
    process::run(&mut command, Duration::from_secs(3600 + kills * 10))?;
    Ok(true)
}

fn command(root: &Path, variable: &str, tests: &[&str], rounds: u64) -> Command {
    let mut command =
        process::cargo(root, &["test", "--release", "-p", "heddle-nvmfs", "--test", "processes"]);
    command.args(["--", "--nocapture", "--test-threads=1"]).args(tests);
    command.env(variable, rounds.to_string());
    command
}
