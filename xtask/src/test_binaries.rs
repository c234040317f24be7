//! All test binaries of the workspace, as many side by side as there are processors.
//!
//! Cargo runs one after the other: a suite that waits for a mount, a child or its longest test leaves processors idle meanwhile.
//! The soak takes what is left of them: it runs beside all others at lowest priority, for its two minutes.
//!
//! A suite that fails is tried once more when all others have ended. One that passes then is named as unstable in the closing list, with
//! what it printed the first time above. A busy machine fails a suite so; a race in the code does too, and is to be looked for.

mod skips;

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::step::Outcome;
use crate::{docs, process, soak, torn};

/// Not `cargo test --no-run`: that leaves out the libraries that programs load, and a test that builds one for itself compiles the engine
/// anew, with other features.
const BUILD: &[&str] =
    &["build", "--workspace", "--lib", "--bins", "--tests", "--message-format=json-render-diagnostics"];
/// Tells the tests that all is built.
pub const BUILT: &str = "HEDDLE_ALL_BUILT";
/// What takes longest begins first, so that no processor waits for it at the end.
const LONGEST: [&str; 5] = ["nvmfs/fsck", "fxmark/lib", "nvmfs/images", "cli/bypass", "crash/power_cuts"];
/// Of one suite.
const LIMIT: Duration = Duration::from_secs(10 * 60);
/// As many failures may be the machine's; of more the code is the cause.
const TRIED_AGAIN_MAX: usize = 3;

/// A test binary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suite {
    /// Crate and file: `nvmfs/fsck`, `nvmfs/lib`.
    pub name: String,
    /// Where cargo would run it.
    pub folder: PathBuf,
    /// The binary.
    pub program: PathBuf,
}

/// Builds and runs all; what each printed follows when it has ended.
pub fn run(root: &Path) -> Result<Outcome> {
    let (beside, suites): (Vec<Suite>, Vec<Suite>) =
        built(root)?.into_iter().partition(|suite| suite.name == soak::SUITE);
    ensure!(!suites.is_empty() && beside.len() == 1, "cargo built no tests, or no {}", soak::SUITE);
    let logs = process::target_dir(root).join("tmp");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let queue = Mutex::new(VecDeque::from(suites));
    let results = Mutex::new(Results::default());
    let tell = |suite: &Suite, ended| results.lock().expect("no holder panics").add(suite, ended);
    let side_by_side = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..side_by_side {
            scope.spawn(|| {
                while let Some(suite) = next(&queue) {
                    tell(&suite, suite.run(suite.command(), &logs));
                }
            });
        }
        for suite in &beside {
            tell(suite, suite.run(suite.command(), &logs));
        }
    });
    let mut results = results.into_inner().expect("no holder panics");
    if results.failed.len() <= TRIED_AGAIN_MAX {
        for suite in std::mem::take(&mut results.failed) {
            println!("\n{} is tried once more, alone", suite.name);
            results.unstable.push(suite.name.clone());
            results.add(&suite, suite.run(suite.command(), &logs));
        }
    }
    results.outcome(root)
}

/// What the suites left behind.
#[derive(Default)]
struct Results {
    failed: Vec<Suite>,
    /// Those that were tried twice.
    unstable: Vec<String>,
    skipped: Vec<String>,
    ran: Vec<String>,
}

impl Results {
    fn add(&mut self, suite: &Suite, (result, printed): (Result<()>, String)) {
        self.skipped.extend(skips::split(&suite.name, &printed).1);
        self.ran.extend(skips::ran(&printed));
        if let Err(error) = result {
            println!("FAILED {}: {error:#}", suite.name);
            self.failed.push(suite.clone());
        }
    }

    fn outcome(mut self, root: &Path) -> Result<Outcome> {
        let mut failed: Vec<String> = self.failed.iter().map(|suite| suite.name.clone()).collect();
        let absent = docs::not_run(root, &self.ran)?;
        failed.extend(absent.into_iter().map(|name| format!("{name} is named in a page and did not run")));
        self.skipped.sort();
        self.skipped.dedup();
        Ok(outcome(&failed, &self.unstable, &self.skipped))
    }
}

/// The first line is for the table; what was tried twice and what was skipped follows.
fn outcome(failed: &[String], unstable: &[String], skipped: &[String]) -> Outcome {
    if !failed.is_empty() {
        return Outcome::Failed(failed.join(", "));
    }
    if unstable.is_empty() && skipped.is_empty() {
        return Outcome::Passed;
    }
    let mut heading = format!("{} skipped, listed below", skipped.len());
    if !unstable.is_empty() {
        heading = format!("{} passed at the second try alone, {heading}", unstable.len());
    }
    let unstable =
        unstable.iter().map(|name| format!("UNSTABLE {name}: it failed, and passed when it was tried alone"));
    let lines: Vec<String> = unstable.chain(skipped.iter().cloned()).collect();
    Outcome::Partly(format!("{heading}\n{}", lines.join("\n")))
}

fn next(queue: &Mutex<VecDeque<Suite>>) -> Option<Suite> {
    queue.lock().expect("no holder panics").pop_front()
}

impl Suite {
    /// As it is run here; some have a short form, and the soak runs after all others.
    fn command(&self) -> Command {
        let mut command =
            Command::new(if self.name == soak::SUITE { Path::new("nice") } else { &self.program });
        if self.name == soak::SUITE {
            command.args(["-n", "19"]).arg(&self.program).envs(soak::short());
        }
        if self.name == torn::SUITE {
            command.envs(torn::short());
        }
        command
    }

    /// How it ended, and what it printed.
    fn run(&self, command: Command, logs: &Path) -> (Result<()>, String) {
        let path = logs.join(format!("{}.log", self.name.replace('/', "-")));
        let start = Instant::now();
        let result = self.run_into(command, &path);
        let printed = std::fs::read(&path).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let (kept, _) = skips::split(&self.name, &printed);
        // One call, so that two suites' lines do not mix.
        println!("\n--> {}, {:.1} s\n{}", self.name, start.elapsed().as_secs_f64(), kept.trim());
        (result, printed)
    }

    fn run_into(&self, mut command: Command, path: &Path) -> Result<()> {
        let log = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        command
            .arg("--show-output")
            .env(BUILT, "1")
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log);
        process::run(&mut command, LIMIT)
    }
}

/// The suites, longest first.
fn built(root: &Path) -> Result<Vec<Suite>> {
    let output =
        process::cargo(root, BUILD).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "the tests do not build");
    let messages = String::from_utf8_lossy(&output.stdout);
    let mut suites = named(&messages);
    suites.sort_by_key(|suite| LONGEST.iter().position(|name| *name == suite.name).unwrap_or(LONGEST.len()));
    Ok(suites)
}

/// The test binaries that cargo's messages name.
pub fn named(messages: &str) -> Vec<Suite> {
    messages.lines().filter_map(suite).collect()
}

/// Why tests were skipped, out of what they printed.
pub fn skipped(printed: &str) -> Vec<String> {
    skips::split("", printed).1
}

/// What a line of cargo's says about a test binary.
fn suite(line: &str) -> Option<Suite> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let program = message["executable"].as_str()?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let target = &message["target"];
    let kind = target["kind"][0].as_str()?;
    let file = if kind == "test" || kind == "bin" { target["name"].as_str()? } else { "lib" };
    let name = format!("{}/{file}", folder.file_name()?.to_str()?);
    Some(Suite { name, folder: folder.to_owned(), program: program.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_that_passed_at_its_second_try_is_named() {
        let none: [String; 0] = [];
        let (suite, skip) = (["cli/mount".to_string()], ["f2fs/linux: no QEMU".to_string()]);
        assert_eq!(outcome(&none, &none, &none), Outcome::Passed);
        assert_eq!(outcome(&suite, &suite, &skip), Outcome::Failed("cli/mount".into()));
        let Outcome::Partly(text) = outcome(&none, &suite, &skip) else { panic!("not all was tried") };
        assert!(text.starts_with("1 passed at the second try alone, 1 skipped"), "{text}");
        assert!(text.contains("\nUNSTABLE cli/mount: ") && text.ends_with("\nf2fs/linux: no QEMU"), "{text}");
    }

    #[test]
    fn of_what_cargo_says_the_test_binaries_are_taken() {
        let artifact = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/nvmfs/Cargo.toml","profile":{{"test":{test}}},
                "target":{{"kind":["test"],"name":"fsck"}},"executable":{executable}}}"#
            )
            .replace('\n', " ")
        };
        let found = suite(&artifact(true, r#""/t/fsck-1""#)).unwrap();
        assert_eq!(
            (found.name.as_str(), found.folder.as_path()),
            ("nvmfs/fsck", Path::new("/r/crates/nvmfs"))
        );
        assert_eq!(found.program, Path::new("/t/fsck-1"));
        assert_eq!(suite(&artifact(false, r#""/t/heddle""#)), None, "a program, not a test");
        assert_eq!(suite(&artifact(true, "null")), None, "a test that was not built");
        assert_eq!(suite("   Compiling"), None);
    }
}
