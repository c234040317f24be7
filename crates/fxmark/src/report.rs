//! Results: every run, and each cell's median, least and greatest.
//!
//! Invariants  I1  a run that failed has no rate: 0 operations per second, and its error.
//!             I2  a cell with a failed run has none either: its median is 0 and it carries the first error.
//!             I3  ops_per_sec = ops / secs; secs is the mean of the workers' own timed seconds, pauses left out (as in
//!                 FxMark: sum of works / mean of seconds).

mod html;
mod summary;
mod text;

pub use summary::Cell;

use crate::config::{Access, Config, Job, Stride};
use crate::result_board::ResultBoard;
use crate::{Machine, Target, WorkersAs, Workload};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of the JSON form; changes when a key changes its meaning or goes.
const OUTPUT_VERSION: u32 = 1;

/// Lines were slow in a run if they took more than this many times the fastest.
const FAR: f64 = 2.0;

/// Returns true if a crossing is slow compared with the fastest.
pub(crate) fn is_far(ns: f64, least_ns: f64) -> bool {
    ns > FAR * least_ns
}

/// The results of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    output_version: u32,
    /// The machine.
    pub machine: Machine,
    /// The options.
    pub options: Options,
    /// Every run, in the order they were made.
    pub runs: Vec<Run>,
    /// Every cell.
    pub summary: Vec<Cell>,
}

/// The options that change the measurement.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "as in Config")]
pub struct Options {
    pub secs: f64,
    pub repeat: u32,
    pub access: Access,
    pub call_bytes: u64,
    pub stride: Stride,
    pub file_size_bytes: Option<u64>,
    pub direct: bool,
    pub faithful: bool,
    pub window_bytes: u64,
    pub files: u32,
    pub durability: &'static str,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// The workload.
    pub workload: Workload,
    /// The target.
    pub target: String,
    /// Workers, each on a CPU of its own.
    pub cores: usize,
    /// Number of the run in its cell, from 0.
    pub repeat: u32,
    /// Mean of the workers' timed seconds.
    pub secs: f64,
    /// Operations of all workers in that time.
    pub ops: u64,
    /// Operations that read.
    pub read_ops: u64,
    /// Operations that change something.
    pub write_ops: u64,
    /// Operations a second.
    pub ops_per_sec: f64,
    /// Median latency of an operation in ns.
    pub p50_ns: Option<u64>,
    /// 99 % of operations took no longer, in ns.
    pub p99_ns: Option<u64>,
    /// 99.9 % of operations took no longer, in ns.
    pub p999_ns: Option<u64>,
    /// The longest of the sampled operations, in ns.
    pub max_ns: Option<u64>,
    /// Share of the workers' time (pauses included) spent in user mode, in percent.
    pub cpu_user_pct: f64,
    /// In the kernel.
    pub cpu_sys_pct: f64,
    /// Waiting: for locks, for a device, for a CPU.
    pub cpu_idle_pct: f64,
    /// Time in ns for a cache line to pass between the first two workers' CPUs: the longer of the times
    /// before and after the run.
    pub line_crossing_ns: Option<f64>,
    /// How often the run was repeated because cache lines were slow.
    pub retaken: u32,
    /// The reason why there is no result.
    pub error: Option<String>,
    /// Threads or processes.
    pub workers_as: WorkersAs,
}

impl Run {
    pub(crate) fn measured(target: &Target, job: &Job, repeat: u32, board: &ResultBoard) -> Run {
        if let Some(error) = board.failure() {
            return Run::failed(target, job, repeat, error);
        }
        let tallies: Vec<_> = (0..board.workers()).map(|w| board.tally(w)).collect();
        let sum = |get: fn(&crate::result_board::Tally) -> u64| tallies.iter().map(get).sum::<u64>();
        let (read_ops, write_ops, timed_ns) = (sum(|t| t.reads), sum(|t| t.writes), sum(|t| t.timed_ns));
        let ops = read_ops + write_ops;
        if ops == 0 || timed_ns == 0 {
            return Run::failed(target, job, repeat, "no operation ended in time: raise --secs".to_owned());
        }
        let secs = timed_ns as f64 / 1e9 / job.workers as f64;
        let latencies = board.latencies();
        let percent = |ns: u64| ns as f64 * 100.0 / sum(|t| t.wall_ns) as f64;
        let (user, sys) = (percent(sum(|t| t.user_ns)), percent(sum(|t| t.system_ns)));
        let at = |quantile| Some(latencies.value_at_quantile(quantile));
        Run {
            secs,
            ops,
            read_ops,
            write_ops,
            ops_per_sec: ops as f64 / secs,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: at(1.0),
            cpu_user_pct: user,
            cpu_sys_pct: sys,
            cpu_idle_pct: (100.0 - user - sys).max(0.0),
            error: None,
            ..Run::failed(target, job, repeat, String::new())
        }
    }

    pub(crate) fn failed(target: &Target, job: &Job, repeat: u32, error: String) -> Run {
        Run {
            workload: job.workload,
            target: target.name().to_owned(),
            cores: job.workers,
            repeat,
            secs: 0.0,
            ops: 0,
            read_ops: 0,
            write_ops: 0,
            ops_per_sec: 0.0,
            p50_ns: None,
            p99_ns: None,
            p999_ns: None,
            max_ns: None,
            cpu_user_pct: 0.0,
            cpu_sys_pct: 0.0,
            cpu_idle_pct: 0.0,
            line_crossing_ns: None,
            retaken: 0,
            error: Some(error),
            workers_as: target.workers_as(),
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7} {:<16} {} cores #{}: ", self.workload, self.target, self.cores, self.repeat)?;
        match &self.error {
            Some(error) => write!(f, "failed: {error}"),
            None => write!(f, "{} ops/s", text::short(self.ops_per_sec)),
        }
    }
}

impl Report {
    pub(crate) fn new(config: &Config, machine: Machine, runs: Vec<Run>) -> Report {
        let summary = summary::cells(config, &runs);
        let options = Options {
            secs: config.secs,
            repeat: config.repeat,
            access: config.access,
            call_bytes: config.call_bytes,
            stride: config.stride,
            file_size_bytes: config.file_size_bytes,
            direct: config.direct,
            faithful: config.faithful,
            window_bytes: config.window_bytes,
            files: config.files,
            durability: config.durability,
        };
        Report { output_version: OUTPUT_VERSION, machine, options, runs, summary }
    }

    /// Returns true if any run failed.
    pub fn has_failures(&self) -> bool {
        self.runs.iter().any(|run| run.error.is_some())
    }

    /// The report as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and text always have a JSON form")
    }

    /// A line for each run, with a header.
    pub fn to_csv(&self) -> String {
        let mut out = String::from(
            "workload,target,cores,repeat,secs,ops,read_ops,write_ops,ops_per_sec,p50_ns,p99_ns,p999_ns,max_ns,\
             cpu_user_pct,cpu_sys_pct,cpu_idle_pct,line_crossing_ns,retaken,error,workers_as\n",
        );
        let ns = |value: Option<u64>| value.map_or(String::new(), |v| v.to_string());
        for run in &self.runs {
            let numbers = [run.ops, run.read_ops, run.write_ops].map(|n| n.to_string()).join(",");
            let latencies = [run.p50_ns, run.p99_ns, run.p999_ns, run.max_ns].map(ns).join(",");
            let cpu =
                [run.cpu_user_pct, run.cpu_sys_pct, run.cpu_idle_pct].map(|p| format!("{p:.1}")).join(",");
            out += &format!(
                "{},{},{},{},{:.6},{numbers},{:.1},{latencies},{cpu},{},{},{},{}\n",
                run.workload,
                quoted(&run.target),
                run.cores,
                run.repeat,
                run.secs,
                run.ops_per_sec,
                run.line_crossing_ns.map_or(String::new(), |ns| format!("{ns:.0}")),
                run.retaken,
                quoted(run.error.as_deref().unwrap_or("")),
                run.workers_as,
            );
        }
        out
    }

    /// The report as text: tables, then reasons for doubt.
    pub fn to_text(&self) -> String {
        text::render(self)
    }

    /// The report as a self-contained page with bars.
    pub fn to_html(&self) -> String {
        html::render(self)
    }
}

/// A field quoted as in RFC 4180.
fn quoted(field: &str) -> String {
    let plain = !field.contains([',', '"', '\n', '\r']);
    if plain { field.to_owned() } else { format!("\"{}\"", field.replace('"', "\"\"")) }
}
