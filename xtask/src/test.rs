//! `cargo xtask test`: everything that must hold before a change is merged, in one table, in under 15 minutes.
//!
//! To add a rig, add a row to [`STEPS`]. Cheap and telling steps come first. The builds share cargo's target folder:
//! one check build (clippy, docs), one test build, one release build (demo and rigs), and loom's and shuttle's own. Long steps
//! that keep one processor busy run beside the next.
//!
//! It ends within [`ENDS`], whatever hangs; what it has not reached by then has failed.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::step::Try::{First, Second};
use crate::step::Turn::{BesideTheNext, InOrder};
use crate::step::{self, Action, Outcome, Step, always};
use crate::{
    apps, coherence, crash, cross, docs, loom, process, sandbox, setup, shuttle, test_binaries, tidy,
};

/// A busy machine takes three times the usual quarter of an hour.
const ENDS: Duration = minutes(70);

const STEPS: &[Step] = &[
    Step {
        name: "setup",
        proves: "the tools that tests use are installed",
        action: Action::Call(setup::install),
        skip: always,
        limit: minutes(5),
        turn: InOrder,
        decides: First,
    },
    Step {
        name: "tidy",
        proves: "the code keeps the style rules",
        action: Action::Call(tidy_outcome),
        skip: always,
        limit: minutes(1),
        turn: InOrder,
        decides: First,
    },
    Step {
        name: "format",
        proves: "the code is formatted",
        action: Action::Cargo(&["fmt", "--all", "--check"]),
        skip: |root| component_missing(root, "fmt"),
        limit: minutes(1),
        turn: InOrder,
        decides: First,
    },
    Step {
        name: "clippy",
        proves: "no warning in any target",
        action: Action::Cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        skip: |root| component_missing(root, "clippy"),
        limit: minutes(20),
        turn: InOrder,
        decides: First,
    },
    Step {
        name: "docs",
        proves: "the API documentation builds and its links lead somewhere",
        action: Action::Command(docs::command),
        skip: always,
        limit: minutes(20),
        turn: InOrder,
        decides: First,
    },
    Step {
        name: "build",
        proves: "the release build works",
        action: Action::Cargo(process::RELEASE_BUILD),
        skip: always,
        limit: minutes(20),
        turn: InOrder,
        decides: First,
    },
    Step {
        name: "pages",
        proves: "files, tests, commands, options and figures that the pages name are there (their commands: cargo xtask docs)",
        action: Action::Call(docs::pages_outcome),
        skip: always,
        limit: minutes(1),
        turn: InOrder,
        decides: First,
    },
    Step {
        name: "tests",
        proves: "every unit and integration test passes, 200 kills and two minutes of mixed work on nearly full images lose nothing",
        action: Action::Call(test_binaries::run),
        skip: always,
        limit: minutes(12),
        turn: InOrder,
        decides: First,
    },
    Step {
        name: "doc tests",
        proves: "the examples in the documentation run",
        action: Action::Cargo(&["test", "--workspace", "--doc"]),
        skip: always,
        limit: minutes(10),
        turn: InOrder,
        decides: First,
    },
    Step {
        name: "shuttle",
        proves: "what calls of several threads return has an order (all: cargo xtask shuttle)",
        action: Action::Command(shuttle::short),
        skip: always,
        limit: minutes(16),
        turn: BesideTheNext,
        decides: Second,
    },
    Step {
        name: "planted",
        proves: "the crash rig sees all bugs that are planted for it; requests refused and lines lost end no call wrongly",
        action: Action::Command(crash::short_planted),
        skip: |root| rig_missing(root, crash::RIG),
        limit: minutes(16),
        turn: BesideTheNext,
        decides: Second,
    },
    Step {
        name: "loom",
        proves: "range locks, allocator and parking hold in every interleaving of the models, on weak memory",
        action: Action::Command(loom::short),
        skip: loom::absent,
        limit: minutes(20),
        turn: InOrder,
        decides: Second,
    },
    Step {
        name: "models",
        proves: "the engine's lock-free parts hold under loom, and its models see each planted fault (all: cargo xtask loom)",
        action: Action::Command(loom::short_engine),
        skip: always,
        limit: minutes(20),
        turn: InOrder,
        decides: Second,
    },
    Step {
        name: "demo",
        proves: "the README's first command succeeds",
        action: Action::Cargo(&["run", "--quiet", "--release", "--", "demo"]),
        skip: always,
        limit: minutes(10),
        turn: InOrder,
        decides: Second,
    },
    Step {
        name: "apps",
        proves: "fio, SQLite and dbench find their content right on mount and bypass (all: cargo xtask apps)",
        action: Action::Call(apps::short),
        skip: |_| sandbox::lacking(),
        limit: minutes(10),
        turn: InOrder,
        decides: Second,
    },
    Step {
        name: "coherence",
        proves: "readers and writers of one file's different pages share no line they write, nova's readers do",
        action: Action::Call(coherence::short),
        skip: coherence::absent,
        limit: minutes(20),
        turn: InOrder,
        decides: Second,
    },
    Step {
        name: "crash",
        proves: "a power cut in any single operation leaves what was before or after it (all: cargo xtask crash)",
        action: Action::Command(crash::short),
        skip: |root| rig_missing(root, crash::RIG),
        limit: minutes(10),
        turn: InOrder,
        decides: Second,
    },
];

/// `cargo xtask test [STEP…]`, or `--target NAME`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    if let Some((_, rest)) = args.split_first().filter(|(first, _)| *first == "--target") {
        return cross::chore(root, rest);
    }
    let names = || STEPS.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
    if let Some(arg) = args.iter().find(|arg| !STEPS.iter().any(|step| step.name == **arg)) {
        bail!("{arg}: no such step; there are {}. For a single test: cargo test -p PACKAGE NAME", names());
    }
    let chosen = |step: &&Step| args.is_empty() || args.iter().any(|arg| *arg == step.name);
    process::end_by(ENDS);
    Ok(step::run_all(root, STEPS.iter().filter(chosen)))
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

fn tidy_outcome(root: &Path) -> Result<Outcome> {
    if tidy::check_and_print(root)? { Ok(Outcome::Passed) } else { Ok(Outcome::Failed("see above".into())) }
}

fn rig_missing(root: &Path, path: &str) -> Option<String> {
    (!root.join(path).exists()).then(|| format!("{path} does not exist"))
}

/// Distributions and minimal toolchains leave rustfmt and clippy out.
fn component_missing(root: &Path, name: &str) -> Option<String> {
    let answer = process::cargo(root, &[name, "--version"]).output();
    let there = answer.is_ok_and(|output| output.status.success());
    (!there).then(|| format!("cargo {name} is not installed; run: rustup component add rustfmt clippy"))
}
