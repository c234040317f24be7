//! Cache-line transfers an operation, with many workers on any machine: FxMark's workloads under QEMU's user mode.
//!
//! A transfer: a worker touches a line that another has written since its own last touch. QEMU runs `heddle` with a plug-in
//! (`crates/coherence`) that watches every load and store; workers take turns, operation by operation. What is counted and how to read
//! it: docs/coherence.md. Here: the runs, the names of lines (`names.rs`), the code that touched them (`code.rs`), the bars that must
//! hold (`bars.rs`), and the forms of the answer.

mod bars;
mod chart;
mod code;
mod names;
mod options;
mod report;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::process;
use crate::step::Outcome;
use options::{Options, Sink};
use report::Report;

/// Longest run: the largest set-up (a tree of 32,768 files) takes some seconds.
const LIMIT: Duration = Duration::from_secs(900);
/// The C library gives each thread a heap of its own only up to eight a processor: here as on a machine of 64.
const MALLOC: &str = "GLIBC_TUNABLES=glibc.malloc.arena_max=512";
/// Lines of a run that are shown on the terminal.
const SHOWN: usize = 6;

/// Workloads in one directory run on so many images, added up: the seed of an image decides which names share a bucket. From 16 workers
/// on, where counts are compared with each other, enough for 80,000 operations (128 a worker and image).
fn images(workers: usize) -> usize {
    if workers < 16 { 5 } else { (640 / workers).max(5) }
}

/// A workload on a target with a number of workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    workload: String,
    target: String,
    workers: usize,
    ops: u64,
    lines: Vec<Line>,
}

/// Transfers of one structure.
#[derive(Clone, Debug, PartialEq)]
struct Line {
    name: String,
    transfers: u64,
    /// Different lines of memory.
    count: u64,
    /// The code between which most of them went: the writer, the reader.
    code: Option<(String, String)>,
}

impl Run {
    fn transfers(&self) -> u64 {
        self.lines.iter().map(|line| line.transfers).sum()
    }

    fn per_op(&self, transfers: u64) -> f64 {
        transfers as f64 / self.ops.max(1) as f64
    }

    /// Adds what the same run made of another image.
    fn add(&mut self, other: Run) {
        self.ops += other.ops;
        for line in other.lines {
            match self.lines.iter_mut().find(|mine| mine.name == line.name) {
                Some(mine) => {
                    mine.transfers += line.transfers;
                    mine.count += line.count;
                }
                None => self.lines.push(line),
            }
        }
        self.lines.sort_by_key(|line| std::cmp::Reverse(line.transfers));
    }
}

/// `cargo xtask coherence [WORKLOAD…] [--target T,…] [--workers N,…] [--json FILE|-] [--svg FILE]`; true if every bar holds.
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    let options = Options::parse(args)?;
    let qemu = Qemu::build(root)?;
    let runs = qemu.run_all(&options)?;
    let verdicts = bars::judge(&runs);
    eprint!("{}", bars::text(&verdicts));
    let text = serde_json::to_string_pretty(&json_of(&runs))? + "\n";
    match &options.json {
        None => {}
        Some(Sink::Stdout) => print!("{text}"),
        Some(Sink::File(file)) => {
            std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    let svg = options.svg.unwrap_or_else(|| process::target_dir(root).join("coherence.svg"));
    std::fs::write(&svg, chart::draw(&runs)).with_context(|| format!("cannot write {}", svg.display()))?;
    eprintln!("curves: {}", svg.display());
    Ok(verdicts.iter().all(|verdict| verdict.holds))
}

/// Bars that the short run is judged by: two of `heddle`, one of `nova`, two of `nova-interval`.
const SHORT_BARS: usize = 5;

/// The short run of the test command: `heddle` beside papers' variants that must share.
pub fn short(root: &Path) -> Result<Outcome> {
    let qemu = Qemu::build(root)?;
    let options = Options::parse(
        &["DRBM", "DWOM", "--target", "nova,nova-interval,heddle", "--workers", "4"].map(String::from),
    )?;
    let verdicts = bars::judge(&qemu.run_all(&options)?);
    eprint!("{}", bars::text(&verdicts));
    Ok(match verdicts.iter().find(|verdict| !verdict.holds) {
        None if verdicts.len() == SHORT_BARS => Outcome::Passed,
        None => Outcome::Failed(format!("only {} bars were judged", verdicts.len())),
        Some(verdict) => Outcome::Failed(verdict.to_string()),
    })
}

/// Why the short run cannot be made here.
pub fn absent(_root: &Path) -> Option<String> {
    process::find_program(&program()).is_none().then(missing)
}

/// QEMU for programs of this very machine.
fn program() -> String {
    format!("qemu-{}", std::env::consts::ARCH)
}

fn missing() -> String {
    format!("{} is not installed; run: apt-get install qemu-user (as root: cargo xtask setup)", program())
}

/// QEMU, the plug-in, and the program that is watched.
struct Qemu {
    program: PathBuf,
    plugin: PathBuf,
    heddle: PathBuf,
}

impl Qemu {
    fn build(root: &Path) -> Result<Qemu> {
        let Some(found) = process::find_program(&program()) else { bail!("{}", missing()) };
        let mut build = process::cargo(root, &["build", "--quiet", "--release"]);
        build.args(["-p", "heddle-cli", "-p", "heddle-coherence"]);
        if let Some(api) = plugin_api(&version(&found)?) {
            build.env("HEDDLE_QEMU_PLUGIN_API", api);
        }
        process::run(&mut build, LIMIT)?;
        let built = process::target_dir(root).join("release");
        Ok(Qemu {
            program: found,
            plugin: built.join("libheddle_coherence.so"),
            heddle: built.join("heddle"),
        })
    }

    fn run_all(&self, options: &Options) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for workload in &options.workloads {
            for target in &options.targets {
                for &workers in &options.workers {
                    let run = self.run_images(workload, target, workers)?;
                    eprint!("{}", text(&run));
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    fn run_images(&self, workload: &str, target: &str, workers: usize) -> Result<Run> {
        let mut all = self.run(workload, target, workers)?;
        if bars::SHARED_DIRECTORY.contains(&workload) {
            let mut each = format!("{:.3}", all.per_op(all.transfers()));
            let images = images(workers);
            for _ in 1..images {
                let run = self.run(workload, target, workers)?;
                each += &format!(" {:.3}", run.per_op(run.transfers()));
                all.add(run);
            }
            eprintln!("{workload} {target} {workers} workers, {images} images: {each}");
        }
        Ok(all)
    }

    fn run(&self, workload: &str, target: &str, workers: usize) -> Result<Run> {
        let out = std::env::temp_dir().join(format!("heddle-coherence-{}", std::process::id()));
        let mut command = Command::new(&self.program);
        command.args(["-cpu", "max", "-E", MALLOC, "-plugin"]);
        command.arg(format!("{},out={}", self.plugin.display(), out.display()));
        command.arg(&self.heddle).args(["coherence-worker", workload, "--target", target, "--workers"]);
        command.arg(workers.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        let ran = process::run(&mut command, LIMIT);
        let text = std::fs::read_to_string(&out);
        if out.exists() {
            std::fs::remove_file(&out)?;
        }
        ran.with_context(|| format!("{workload} on {target} with {workers} workers"))?;
        let report = Report::parse(&text.context("the plug-in wrote no report")?)?;
        let code = code::Code::read(&self.heddle, &report);
        Ok(Run {
            workload: workload.to_owned(),
            target: target.to_owned(),
            workers,
            ops: report.ops,
            lines: names::lines(&report, target, &code),
        })
    }
}

fn version(qemu: &Path) -> Result<String> {
    let output = Command::new(qemu).arg("--version").output().context("cannot run QEMU")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The version of the plug-in interface that this QEMU takes, if it is not the first: since 9.0 it wants the second at least.
fn plugin_api(version: &str) -> Option<&'static str> {
    let number = version.split_whitespace().skip_while(|word| *word != "version").nth(1)?;
    let major: u32 = number.split('.').next()?.parse().ok()?;
    (major >= 9).then_some("2")
}

fn text(run: &Run) -> String {
    let Run { workload, target, workers, ops, lines } = run;
    let per_op = run.per_op(run.transfers());
    let mut text = format!("{workload} {target} {workers} workers: {per_op:.3} transfers/op ({ops} ops)\n");
    for line in lines.iter().take(SHOWN) {
        text += &format!("  {:>8.3}  {} [{} lines]\n", run.per_op(line.transfers), line.name, line.count);
        if let Some((writer, toucher)) = &line.code {
            text += &format!("            written: {writer}\n            touched: {toucher}\n");
        }
    }
    if lines.len() > SHOWN {
        text += &format!("            and {} more\n", lines.len() - SHOWN);
    }
    text
}

fn json_of(runs: &[Run]) -> serde_json::Value {
    let runs: Vec<_> = runs
        .iter()
        .map(|run| {
            let lines: Vec<_> =
                run.lines.iter().map(|l| json!({"name": l.name, "transfers": l.transfers})).collect();
            json!({
                "workload": run.workload,
                "target": run.target,
                "workers": run.workers,
                "ops": run.ops,
                "transfers": run.transfers(),
                "transfers_per_op": run.per_op(run.transfers()),
                "lines": lines,
            })
        })
        .collect();
    json!({ "runs": runs })
}
