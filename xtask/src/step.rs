//! A list of steps, each timed, each passed, failed or skipped with its reason; one failure does not stop the rest.
//!
//! Some keep one processor busy at most: they run beside those that follow, and what they print follows at the end.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

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
    /// What else may run meanwhile.
    pub turn: Turn,
    /// Which try decides.
    pub decides: Try,
}

/// Which try of a step decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Try {
    /// The same happens each time.
    First,
    /// A step that failed is tried once more when all others have ended, for a busy machine can be the cause. If it passes then, the
    /// closing list names it as unstable.
    Second,
}

/// What may run while a step does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Nothing but steps that began before.
    InOrder,
    /// All that follows. For commands that nobody watches the time of.
    BesideTheNext,
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
    let began = Instant::now();
    let steps: Vec<&Step> = steps.collect();
    let mut results: Vec<(&str, Outcome, Took)> = std::thread::scope(|scope| {
        let mut begun: Vec<Begun<'_>> = Vec::new();
        for step in &steps {
            println!("\n==> {}: {}", step.name, step.proves);
            let next = match step.turn {
                Turn::InOrder => {
                    let shares = begun.iter().any(Begun::is_running);
                    let (start, busy) = (Instant::now(), children_ticks());
                    let outcome = tried(root, step, None);
                    let busy = (!shares).then(|| ticks(children_ticks() - busy));
                    Begun::Ended(step.name, outcome, Took { wall: start.elapsed(), busy })
                }
                Turn::BesideTheNext => Begun::beside(scope, root, step),
            };
            begun.push(next);
        }
        begun.into_iter().map(Begun::end).collect()
    });
    for (step, (_, outcome, took)) in steps.iter().zip(&mut results) {
        if matches!(outcome, Outcome::Failed(_)) && step.decides == Try::Second && !crate::process::is_over()
        {
            println!("\n==> {} is tried once more, alone", step.name);
            let start = Instant::now();
            *outcome = at_second_try(step.name, tried(root, step, None));
            *took = Took { wall: took.wall + start.elapsed(), busy: None };
        }
    }
    print!("{}", summary(&results, began.elapsed()));
    !results.iter().any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
}

/// A step that passed after it had failed is not passed over in silence.
fn at_second_try(name: &str, outcome: Outcome) -> Outcome {
    let unstable = format!("UNSTABLE {name}: it failed, and passed when it was tried alone");
    match outcome {
        Outcome::Passed => Outcome::Partly(format!("passed at the second try\n{unstable}")),
        Outcome::Partly(rest) => {
            let (heading, lines) = rest.split_once('\n').unwrap_or((rest.as_str(), ""));
            Outcome::Partly(format!("passed at the second try, {heading}\n{unstable}\n{lines}"))
        }
        failed => failed,
    }
}

/// A step that has begun.
enum Begun<'s> {
    Ended(&'static str, Outcome, Took),
    Running(&'static str, PathBuf, ScopedJoinHandle<'s, (Outcome, Took)>),
}

impl<'s> Begun<'s> {
    fn beside<'e>(scope: &'s Scope<'s, 'e>, root: &'e Path, step: &'e Step) -> Begun<'s> {
        let log = crate::process::target_dir(root).join(format!("tmp/{}.log", step.name));
        let into = log.clone();
        let runs = scope.spawn(move || {
            let start = Instant::now();
            let outcome = tried(root, step, Some(&into));
            (outcome, Took { wall: start.elapsed(), busy: None })
        });
        println!("runs beside the next; what it prints follows");
        Begun::Running(step.name, log, runs)
    }

    fn is_running(&self) -> bool {
        matches!(self, Begun::Running(_, _, runs) if !runs.is_finished())
    }

    fn end(self) -> (&'static str, Outcome, Took) {
        match self {
            Begun::Ended(name, outcome, took) => (name, outcome, took),
            Begun::Running(name, log, runs) => {
                let (outcome, took) = runs.join().expect("a step gives its outcome");
                let printed = std::fs::read(log).unwrap_or_default();
                println!("\n--> {name}\n{}", String::from_utf8_lossy(&printed).trim_end());
                (name, outcome, took)
            }
        }
    }
}

/// `log`: where it prints to, if not here.
fn tried(root: &Path, step: &Step, log: Option<&Path>) -> Outcome {
    let outcome = match (step.skip)(root) {
        Some(reason) => Outcome::Skipped(reason),
        None => attempt(root, step, log),
    };
    match &outcome {
        Outcome::Passed | Outcome::Partly(_) => {}
        Outcome::Failed(reason) => println!("FAILED {}: {reason}", step.name),
        Outcome::Skipped(reason) => println!("SKIPPED {}: {reason}", step.name),
    }
    outcome
}

fn attempt(root: &Path, step: &Step, log: Option<&Path>) -> Outcome {
    let run = |mut command: Command| {
        if let Some(log) = log {
            std::fs::create_dir_all(log.parent().unwrap_or(root))?;
            let file = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
            command.stdout(file.try_clone()?).stderr(file);
        }
        crate::process::run(&mut command, step.limit).map(|()| Outcome::Passed)
    };
    let result = match step.action {
        Action::Cargo(args) => run(crate::process::cargo(root, args)),
        Action::Command(make) => make(root).and_then(run),
        Action::Call(_) if log.is_some() => return Outcome::Failed("only commands run beside others".into()),
        Action::Call(call) => call(root),
    };
    result.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
}

/// How long a step took, and how long its processes computed meanwhile: far less than the wall time of all processors is waiting. Of steps
/// that share the processors nobody knows whose the time was.
#[derive(Clone, Copy, Default)]
struct Took {
    wall: Duration,
    busy: Option<Duration>,
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

fn summary(results: &[(&str, Outcome, Took)], all: Duration) -> String {
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
        let busy =
            took.busy.map_or_else(|| " ".repeat(13), |busy| format!("{:>6.1} s busy", busy.as_secs_f64()));
        let wall = took.wall.as_secs_f64();
        let line = format!("{name:<14} {verdict:<8} {wall:>6.1} s  {busy}  {first_line}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.push_str(&format!("{:<14} {:<8} {:>6.1} s\n\n", "in all", "", all.as_secs_f64()));
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
