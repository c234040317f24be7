//! A list of steps, each timed, each passed, failed or skipped with its reason; one failure does not stop the rest.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

/// One row of the test command.
pub struct Step {
    /// Short, unique.
    pub name: &'static str,
    /// What holds if it passes.
    pub proves: &'static str,
    /// What is done.
    pub action: Action,
    /// A reason not to do it here, or none.
    pub skip: fn(&Path) -> Option<String>,
    /// A step that takes longer has failed.
    pub limit: Duration,
}

/// What a step does, always in the workspace's root.
pub enum Action {
    /// Cargo with these arguments.
    Cargo(&'static [&'static str]),
    /// A command that depends on what is there.
    Command(fn(&Path) -> Result<Command>),
    /// A function of this program.
    Call(fn(&Path) -> Result<Outcome>),
}

/// How a step ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It holds as far as it was tried. First line: how much was not; the others: what and why.
    Partly(String),
    /// It does not, and why.
    Failed(String),
    /// Not tried, or not all of it, and why.
    Skipped(String),
}

/// No reason to skip.
pub fn always(_root: &Path) -> Option<String> {
    None
}

/// Does all steps, prints a table and the closing line; true if none failed.
pub fn run_all<'a>(root: &Path, steps: impl Iterator<Item = &'a Step>) -> bool {
    let mut results = Vec::new();
    for step in steps {
        println!("\n==> {}: {}", step.name, step.proves);
        let (start, busy) = (Instant::now(), children_ticks());
        let outcome = match (step.skip)(root) {
            Some(reason) => Outcome::Skipped(reason),
            None => attempt(root, step),
        };
        match &outcome {
            Outcome::Passed | Outcome::Partly(_) => {}
            Outcome::Failed(reason) => println!("FAILED {}: {reason}", step.name),
            Outcome::Skipped(reason) => println!("SKIPPED {}: {reason}", step.name),
        }
        let took = Took { wall: start.elapsed(), busy: ticks(children_ticks() - busy) };
        results.push((step.name, outcome, took));
    }
    print!("{}", summary(&results));
    !results.iter().any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
}

fn attempt(root: &Path, step: &Step) -> Outcome {
    let run = |mut command: Command| crate::process::run(&mut command, step.limit).map(|()| Outcome::Passed);
    let result = match step.action {
        Action::Cargo(args) => run(crate::process::cargo(root, args)),
        Action::Command(make) => make(root).and_then(run),
        Action::Call(call) => call(root),
    };
    result.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
}

/// How long a step took, and how long its processes computed meanwhile: far less than the wall time of all processors is waiting.
#[derive(Clone, Copy, Default)]
struct Took {
    wall: Duration,
    busy: Duration,
}

/// Processor time of this process' children that have ended, in ticks: `cutime` and `cstime` of proc(5).
fn children_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Linux counts 100 a second for programs, whatever its own clock does.
fn ticks(count: u64) -> Duration {
    Duration::from_millis(10 * count)
}

fn summary(results: &[(&str, Outcome, Took)]) -> String {
    let mut text = String::from("\n");
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, outcome, took) in results {
        let (verdict, reason) = match outcome {
            Outcome::Passed => ("passed", ""),
            Outcome::Partly(reason) => ("passed", reason.as_str()),
            Outcome::Failed(reason) => ("FAILED", reason.as_str()),
            Outcome::Skipped(reason) => ("skipped", reason.as_str()),
        };
        match outcome {
            Outcome::Passed | Outcome::Partly(_) => passed += 1,
            Outcome::Failed(_) => failed += 1,
            Outcome::Skipped(_) => skipped += 1,
        }
        let first_line = reason.lines().next().unwrap_or_default();
        let (wall, busy) = (took.wall.as_secs_f64(), took.busy.as_secs_f64());
        let line = format!("{name:<14} {verdict:<8} {wall:>6.1} s  {busy:>6.1} s busy  {first_line}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let total: Duration = results.iter().map(|(_, _, took)| took.wall).sum();
    text.push_str(&format!("{:<14} {:<8} {:>6.1} s\n\n", "in all", "", total.as_secs_f64()));
    text.push_str(&not_tried(results));
    text.push_str(&format!("{passed} passed, {failed} failed, {skipped} skipped\n"));
    text
}

/// A line for each thing that was not tried here, with the reason; empty if there is none.
fn not_tried(results: &[(&str, Outcome, Took)]) -> String {
    let lines: Vec<String> = results
        .iter()
        .flat_map(|(name, outcome, _)| {
            let (reason, headings) = match outcome {
                Outcome::Passed | Outcome::Failed(_) => ("", 0),
                Outcome::Partly(reason) => (reason.as_str(), 1),
                Outcome::Skipped(reason) => (reason.as_str(), 0),
            };
            reason.lines().skip(headings).map(move |line| format!("  {name}: {line}\n"))
        })
        .collect();
    if lines.is_empty() { String::new() } else { format!("Not tried here:\n{}\n", lines.concat()) }
}
