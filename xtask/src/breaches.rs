//! The test of the tests: promises of SEMANTICS.md are broken on purpose (the engines' feature `planted`), one at a time, and the test that
//! the promise's row names must fail, and say what is wrong; without that it passes. The same for bugs of the engine that its own tests
//! see, and for which the crash rig does not look.
//!
//! All test binaries are built at one go, and run as cargo would run them. A test that skips itself here says nothing of its row.

mod list;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::test_binaries::{self, Suite};
use crate::{process, sandbox};
use list::{BREACHES, BUGS};

/// A promise that is broken.
pub struct Breach {
    family: Family,
    /// How its row begins; empty: of a bug.
    row: &'static str,
    /// What `HEDDLE_BREACH` calls it, without `heddle-`: the crate that breaks it, and the name in its `planted.rs`.
    name: &'static str,
    /// Crate and file of the test, as `n/`, `f/` and `c/` have them: `nvmfs/threads`.
    suite: &'static str,
    /// The test, with its modules.
    test: &'static str,
    /// Some of what it says when it fails: it has seen the promise broken, and not stumbled.
    says: &'static str,
}

/// For which columns of the tables the test speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// H and N.
    Nvm,
    /// F and L.
    F2fs,
    /// What serves all of them.
    Both,
}

impl Family {
    fn has(self, other: Family) -> bool {
        self == Family::Both || self == other
    }
}

/// Of one test.
const LIMIT: Duration = Duration::from_secs(600);
/// What the long ones are told: a broken promise shows in less.
pub const SHORT: [(&str, &str); 3] =
    [("HEDDLE_ALL_BUILT", "1"), ("HEDDLE_KILL_ROUNDS", "60"), ("HEDDLE_FULL_SECONDS", "4")];

/// `cargo xtask breaches [NAME…]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    if let Some(arg) = args.iter().find(|arg| !all().any(|breach| breach.is_called(arg))) {
        bail!("{arg}: no such breach; they are listed in xtask/src/breaches/list.rs");
    }
    let began = Instant::now();
    let suites = built(root)?;
    println!("built in {:.0} s", began.elapsed().as_secs_f64());
    let log = process::target_dir(root).join("tmp/breach.log");
    let (mut unbroken, mut seen, mut missed) = (BTreeMap::new(), Vec::new(), Vec::new());
    for breach in all().filter(|breach| args.is_empty() || args.iter().any(|a| breach.is_called(a))) {
        let suite = suites.iter().find(|suite| suite.name == breach.suite);
        let suite = suite.with_context(|| format!("cargo built no {}", breach.suite))?;
        let start = Instant::now();
        let before = match unbroken.get(&(breach.suite, breach.test)) {
            Some(before) => *before,
            None => run(suite, breach.test, None, &log)?.0,
        };
        unbroken.insert((breach.suite, breach.test), before);
        let (verdict, said) = match before {
            Ended::Passed => {
                let (ended, printed) = run(suite, breach.test, Some(breach.name), &log)?;
                (breach.verdict(ended, &printed), failure(&printed))
            }
            Ended::Skipped => ("skipped", String::new()),
            _ => ("FAILS UNBROKEN", String::new()),
        };
        println!(
            "{verdict:<8} {:<32} {} ({:.0} s) {said}",
            breach.name,
            breach.test,
            start.elapsed().as_secs_f64()
        );
        match verdict {
            "seen" => seen.push(breach),
            "skipped" => {}
            _ => missed.push(breach.name),
        }
    }
    for (family, of) in [(Family::Nvm, "NVM images"), (Family::F2fs, "F2FS images")] {
        let of_rows = seen.iter().filter(|b| b.family.has(family) && !b.row.is_empty());
        let rows: BTreeSet<&str> = of_rows.map(|b| b.row).collect();
        let promised: Vec<Promise> =
            promises(root)?.into_iter().filter(|promise| promise.is_tested(family)).collect();
        println!(
            "{of}: of {} of the {} rows with a test the test sees the promise broken",
            rows.len(),
            promised.len()
        );
        if args.is_empty() {
            let unseen = promised.iter().filter(|p| !rows.iter().any(|row| p.text.starts_with(row)));
            unseen.for_each(|promise| println!("  not seen: {}", promise.text));
        }
    }
    let bugs = seen.iter().filter(|breach| breach.row.is_empty()).count();
    println!("of {} bugs that the crash rig does not look for, tests see {bugs}", BUGS.len());
    println!("{:.0} s in all; not seen: {missed:?}", began.elapsed().as_secs_f64());
    Ok(missed.is_empty())
}

fn all() -> impl Iterator<Item = &'static Breach> {
    BREACHES.iter().chain(BUGS)
}

impl Breach {
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.name.split_once(':').is_some_and(|(_, short)| short == name)
    }

    fn verdict(&self, ended: Ended, printed: &str) -> &'static str {
        match ended {
            Ended::Failed if printed.contains(self.says) => "seen",
            Ended::Failed => "STUMBLED",
            Ended::Passed | Ended::Skipped => "MISSED",
            Ended::Never => "NO END",
        }
    }
}

/// How a test ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    Passed,
    Failed,
    /// It passed, and has tried nothing.
    Skipped,
    /// It had to be killed: nothing was seen.
    Never,
}

/// The test binaries: those of unit tests, and the others, which share one build of the engines.
fn built(root: &Path) -> Result<Vec<Suite>> {
    let (units, files): (BTreeSet<&str>, BTreeSet<&str>) =
        all().map(|breach| breach.suite).partition(|suite| suite.ends_with("/lib"));
    let of = |suites: &BTreeSet<&str>, more: &[&str]| -> Vec<String> {
        let crates = suites.iter().filter_map(|suite| suite.split('/').next());
        let crates: BTreeSet<&str> = crates.chain(more.iter().copied()).collect();
        crates.into_iter().flat_map(with_planted).collect()
    };
    let mut unit_tests = process::cargo(root, &["build", "--tests"]);
    unit_tests.args(of(&units, &[]));
    // Programs and libraries too: tests start and preload them.
    let mut tests = process::cargo(root, &["build", "--lib", "--bins"]);
    tests.args(of(&files, &["preload", "c"]));
    for file in files.iter().filter_map(|suite| suite.split('/').nth(1)).collect::<BTreeSet<_>>() {
        tests.args(["--test", file]);
    }
    let mut found = Vec::new();
    for mut command in [unit_tests, tests] {
        command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
        let output = command.output().context("cannot start cargo")?;
        ensure!(output.status.success(), "the tests do not build");
        found.extend(test_binaries::named(&String::from_utf8_lossy(&output.stdout)));
    }
    Ok(found)
}

/// Crates without promises of their own have no such feature.
fn with_planted(name: &str) -> Vec<String> {
    let mut args = vec!["-p".to_string(), format!("heddle-{name}")];
    if name != "c" {
        args.extend(["--features".to_string(), format!("heddle-{name}/planted")]);
    }
    args
}

/// How a test ended, and what was printed.
fn run(suite: &Suite, test: &str, broken: Option<&str>, log: &Path) -> Result<(Ended, String)> {
    std::fs::create_dir_all(log.parent().unwrap_or(log))?;
    let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    // What is broken may leave a daemon behind.
    let mut command = sandbox::around(&suite.program);
    command.args(["--exact", test, "--show-output"]).envs(SHORT).env_remove("HEDDLE_BREACH");
    if let Some(name) = broken {
        command.env("HEDDLE_BREACH", format!("heddle-{name}"));
    }
    command.current_dir(&suite.folder).stdin(Stdio::null()).stderr(file.try_clone()?).stdout(file);
    let status = process::status(&mut command, LIMIT);
    let printed = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    let ended = match status {
        Err(_) => Ended::Never,
        Ok(status) if !status.success() => Ended::Failed,
        Ok(_) if !test_binaries::skipped(&printed).is_empty() => Ended::Skipped,
        Ok(_) => {
            ensure!(printed.contains("1 passed"), "{} has no test {test}", suite.name);
            Ended::Passed
        }
    };
    Ok((ended, printed))
}

/// The first words behind a panic's place.
fn failure(printed: &str) -> String {
    let mut lines = printed.lines().skip_while(|line| !line.contains("panicked at"));
    let said: Vec<&str> = lines.by_ref().skip(1).take(2).map(str::trim).collect();
    said.join(" ").chars().take(160).collect()
}

/// A row of SEMANTICS.md.
struct Promise {
    text: String,
    /// Of the columns.
    marks: [String; 4],
}

impl Promise {
    /// Is there a test of the row on one of the family's systems?
    fn is_tested(&self, family: Family) -> bool {
        let of = if family == Family::F2fs { &self.marks[2..] } else { &self.marks[..2] };
        of.iter().any(|mark| mark == "y")
    }
}

fn promises(root: &Path) -> Result<Vec<Promise>> {
    let page = std::fs::read_to_string(root.join("SEMANTICS.md")).context("SEMANTICS.md")?;
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.split(" | ").collect();
        let [text, a, b, c, d, _] = cells[..] else { return None };
        let marks = [a, b, c, d].map(str::to_string);
        let is_mark = |mark: &String| matches!(mark.as_str(), "y" | "u" | "-");
        marks.iter().all(is_mark).then(|| Promise { text: text.to_string(), marks })
    };
    Ok(page.lines().filter_map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the variants' and rules' tests one stands for all.
    const ONE_OF_MANY: [&str; 2] = ["model", "posix"];

    #[test]
    fn each_breach_names_a_row_and_a_test_that_the_row_names() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = std::fs::read_to_string(root.join("SEMANTICS.md")).unwrap();
        let promises = promises(root).unwrap();
        for Breach { family, row, name, suite, test, .. } in BREACHES {
            let found: Vec<_> = promises.iter().filter(|promise| promise.text.starts_with(row)).collect();
            assert_eq!(found.len(), 1, "{row}");
            assert!(
                found[0].is_tested(*family) || *family == Family::Both,
                "{row}: {family:?} is not promised"
            );
            let line = page.lines().find(|line| line.starts_with(&format!("| {row}"))).unwrap();
            let (folder, file) = suite.split_once('/').unwrap();
            let short = [("nvmfs", "n/"), ("f2fs", "f/"), ("cli", "c/")];
            let place =
                short.iter().find(|(of, _)| *of == folder).map(|(_, short)| format!("{short}{file}.rs"));
            // Unit tests stand in a crate's `src`.
            let place = place.filter(|_| file != "lib").unwrap_or_else(|| format!("crates/{folder}"));
            let (_, own) = test.rsplit_once("::").unwrap_or(("", test));
            let above = line.contains("as above");
            assert!(above || line.contains(&place), "{row}: {place}");
            assert!(above || ONE_OF_MANY.contains(&file) || line.contains(own), "{row}: {own}");
            let (of, name) = name.split_once(':').unwrap();
            let planted = std::fs::read_to_string(root.join(format!("crates/{of}/src/planted.rs"))).unwrap();
            assert!(
                planted.contains(&format!("    {name},")) || planted.contains(&format!("\"{name}\"")),
                "{name}"
            );
        }
    }

    #[test]
    fn each_bug_of_the_engine_is_seen_by_rig_or_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
        let (engine, rig) = (read("crates/nvmfs/src/planted.rs"), read("crates/crash/src/planted.rs"));
        let of_tests = rig.split_once("const OF_TESTS").unwrap().1.split_once("];").unwrap().0;
        let mut bugs = BTreeSet::new();
        for line in engine.lines() {
            let Some((bug, name)) = line.trim().strip_suffix("\",").and_then(|l| l.split_once(" = \""))
            else {
                continue;
            };
            let listed = BUGS.iter().any(|breach| breach.name == format!("nvmfs:{name}"));
            assert_eq!(listed, of_tests.contains(&format!("Bug::{bug},")), "{name}");
            assert!(rig.contains(&format!("Bug::{bug}")), "{name}");
            bugs.insert(name);
        }
        assert!(BUGS.iter().all(|breach| bugs.contains(breach.name.strip_prefix("nvmfs:").unwrap())));
    }

    #[test]
    fn each_row_that_is_promised_has_a_breach() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for family in [Family::Nvm, Family::F2fs] {
            for promise in promises(root).unwrap().iter().filter(|promise| promise.is_tested(family)) {
                let broken = BREACHES.iter().any(|b| b.family.has(family) && promise.text.starts_with(b.row));
                assert!(broken, "{family:?}: nobody breaks: {}", promise.text);
            }
        }
    }
}
