//! The POSIX file system tests of `pjdfstest` (crates.io, a tool, no dependency): on tmpfs, on a mount, and under the bypass.
//!
//! tmpfs says which tests this machine and this kernel pass at all; a mount must pass the same ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::apps::{Kind, TestDir, TestRoot};
use crate::{process, sandbox, setup};

const VERSION: &str = "0.2.2";
const LIMIT: Duration = Duration::from_secs(1800);
/// Switched on: what Linux has. Two users that every Debian has, each the member of a group of its own.
const CONFIGURATION: &str = "\
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.05
allow_remount = false

[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// How a test ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Ok,
    Failed,
    Skipped,
}

/// Verdicts by name, and why tests were skipped.
struct Report {
    tests: BTreeMap<String, Verdict>,
    reasons: BTreeMap<String, usize>,
}

impl Report {
    fn count(&self, verdict: Verdict) -> usize {
        self.tests.values().filter(|v| **v == verdict).count()
    }
}

/// `cargo xtask pjdfstest [PATTERN…]`; true if mount and bypass fail nothing that tmpfs passes.
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let mut again = vec!["pjdfstest"];
    again.extend(args.iter().map(String::as_str));
    if let Some(ended) = sandbox::enter(root, &again, LIMIT)? {
        return Ok(ended);
    }
    let tool = installed(root)?;
    let build = ["build", "--quiet", "--release", "-p", "heddle-cli", "-p", "heddle-preload"];
    process::run(&mut process::cargo(root, &build), LIMIT)?;
    let test_root = TestRoot::new(&process::target_dir(root).join("release/heddle"))?;
    let mut reports = Vec::new();
    for kind in [Kind::Tmpfs, Kind::Mount, Kind::Bypass] {
        let test_dir = test_root.test_dir(kind, None)?;
        let (report, log) = run(&test_dir, &tool, args)?;
        let [ok, failed, skipped] = [Verdict::Ok, Verdict::Failed, Verdict::Skipped].map(|v| report.count(v));
        println!("{:<7} {ok} passed, {failed} failed, {skipped} skipped", kind.name());
        if failed > 0 {
            println!("{log}");
        }
        if kind == Kind::Bypass {
            println!("        {}", test_dir.served()?);
        }
        test_dir.finish()?;
        reports.push((kind, report));
    }
    let (_, tmpfs) = &reports[0];
    for (why, count) in &tmpfs.reasons {
        println!("skipped {count}: {why}");
    }
    let mut same = true;
    for (kind, report) in &reports[1..] {
        for (name, verdict) in
            report.tests.iter().filter(|(name, verdict)| tmpfs.tests.get(*name) != Some(verdict))
        {
            println!("{}: {name}: {verdict:?}, on tmpfs {:?}", kind.name(), tmpfs.tests.get(name));
            same = false;
        }
        same &= report.tests.len() == tmpfs.tests.len() && report.count(Verdict::Failed) == 0;
    }
    Ok(same && tmpfs.count(Verdict::Ok) > 0)
}

/// The tool, built once into the target folder.
fn installed(root: &Path) -> Result<PathBuf> {
    let home = process::target_dir(root).join("tools");
    let tool = home.join("bin/pjdfstest");
    if !tool.is_file() {
        setup::install_packages(&["libacl1-dev"]);
        println!("installing pjdfstest {VERSION} into {} (needs libacl1-dev)", home.display());
        let mut cargo = process::cargo(
            root,
            &["install", "--quiet", "--locked", "pjdfstest", "--version", VERSION, "--root"],
        );
        process::run(cargo.arg(&home), LIMIT)?;
    }
    Ok(tool)
}

fn run(test_dir: &TestDir, tool: &Path, patterns: &[String]) -> Result<(Report, String)> {
    let configuration = test_dir.path_outside("pjdfstest.toml");
    fs::write(&configuration, CONFIGURATION)?;
    let log = test_dir.path_outside("pjdfstest.log");
    let mut command: Command = test_dir.command_as_placed(tool);
    command
        .arg("-c")
        .arg(&configuration)
        .arg("-p")
        .arg(&test_dir.dir)
        .args(["-s", "/dev/shm"])
        .args(patterns);
    command.stdout(fs::File::create(&log)?).stderr(fs::File::options().append(true).open(&log)?);
    let status = process::status(&mut command, LIMIT)?;
    let text = fs::read_to_string(&log).context("what pjdfstest said")?;
    let report = parse(&text);
    if report.tests.is_empty() {
        bail!("pjdfstest on {} ended with {status} and said: {text}", test_dir.kind.name());
    }
    ensure!(
        text.contains("total"),
        "pjdfstest on {} did not come to its end: {status}",
        test_dir.kind.name()
    );
    Ok((report, failures(&text)))
}

/// `NAME  ok`, `NAME  FAILED`, `NAME  skipped` and, below that, why.
fn parse(text: &str) -> Report {
    let mut report = Report { tests: BTreeMap::new(), reasons: BTreeMap::new() };
    let mut skipped = false;
    for line in text.lines() {
        if let Some(why) = line.strip_prefix('\t').filter(|_| skipped) {
            *report.reasons.entry(why.trim().to_owned()).or_default() += 1;
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let verdict = match words.as_slice() {
            [_, "ok"] => Verdict::Ok,
            [_, "FAILED"] => Verdict::Failed,
            [_, "skipped"] => Verdict::Skipped,
            _ => continue,
        };
        skipped = verdict == Verdict::Skipped;
        report.tests.insert(words[0].to_owned(), verdict);
    }
    report
}

/// What is said about tests that failed.
fn failures(text: &str) -> String {
    let mut failed = false;
    let of_failed = |line: &&str| {
        failed = if line.starts_with('\t') { failed } else { line.trim_end().ends_with("FAILED") };
        failed
    };
    text.lines().filter(of_failed).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_and_reasons_are_read_from_what_the_tool_says() {
        let why = "\trequires features: chflags";
        let text =
            format!("a::b   ok\nc::d(x)  FAILED\n\tassertion\ne::f  skipped\n{why}\ng  skipped\n{why}\n");
        let report = parse(&text);
        assert_eq!([Verdict::Ok, Verdict::Failed, Verdict::Skipped].map(|v| report.count(v)), [1, 1, 2]);
        assert_eq!(report.reasons, [("requires features: chflags".to_owned(), 2)].into());
        assert_eq!(failures(&text), "c::d(x)  FAILED\n\tassertion");
    }
}
