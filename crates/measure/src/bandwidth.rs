//! `heddle bandwidth`: the memory's best bandwidth, the denominator of every share of the limit.

use anyhow::Result;
use heddle_console::failure::usage;
use heddle_console::output::{self, Sink, talk};
use heddle_console::overwrite::{self, Force};
use heddle_console::size::Size;
use heddle_console::table::table;
use heddle_fxmark::{Machine, memory_available_bytes};
use heddle_pmem::bandwidth::{BUFFER_BYTES, Plan, Rate, Row, measure};
use heddle_pmem::{Durability, OpenOptions, Region};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Measure the memory's bandwidth: stores and loads of 64-byte lines, one private buffer per thread
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Numbers of threads [default: 1, doubled up to the number of CPUs]
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    threads: Vec<usize>,
    /// Seconds of one repeat of one direction
    #[arg(long, default_value_t = 0.5)]
    secs: f64,
    /// Repeats; the median counts
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Private buffer per thread [default: 300M, as in the SRL paper's Fig. 9]
    #[arg(long)]
    buffer: Option<Size>,
    /// Measure this device, or a new file, instead of plain memory
    #[arg(long, value_name = "IMAGE")]
    on: Option<PathBuf>,
    /// With --on: a device that holds something LOSES IT
    #[arg(long, requires = "on")]
    force: bool,
    /// As JSON, to a file or to stdout (-)
    #[arg(long, value_name = "FILE|-")]
    json: Option<Sink>,
}

const EXAMPLES: &str = "\
Examples:
  heddle bandwidth
  heddle bandwidth --threads 1,2 --secs 2 --json -
  heddle bandwidth --on /dev/dax0.0 --json bandwidth.json";

#[derive(Serialize)]
struct Report {
    output_version: u32,
    machine: Machine,
    buffer_bytes: u64,
    secs: f64,
    repeat: usize,
    rows: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    threads: usize,
    write: Speed,
    read: Speed,
}

#[derive(Serialize)]
struct Speed {
    gb_s: f64,
    min_gb_s: f64,
    max_gb_s: f64,
}

impl From<Rate> for Speed {
    fn from(rate: Rate) -> Speed {
        Speed { gb_s: rate.gb_s, min_gb_s: rate.min_gb_s, max_gb_s: rate.max_gb_s }
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let machine = Machine::here();
    let plan = plan(args, machine.cores)?;
    args.json.as_ref().map_or(Ok(()), Sink::check)?;
    let region = take(args, plan.region_bytes())?;
    talk(&format!(
        "measuring {} numbers of threads, {} s each way, {} times",
        plan.threads.len(),
        args.secs,
        args.repeat
    ));
    let rows: Vec<Row> = measure(&region, &plan);
    drop(region);
    if let Some(path) = args.on.as_ref().filter(|path| path.is_file()) {
        std::fs::remove_file(path)?;
    }
    let lines =
        rows.iter().map(|row| Line { threads: row.threads, write: row.write.into(), read: row.read.into() });
    let report = Report {
        output_version: 1,
        machine,
        buffer_bytes: plan.buffer_bytes,
        secs: args.secs,
        repeat: args.repeat,
        rows: lines.collect(),
    };
    match &args.json {
        Some(sink) => output::json(sink, &report),
        None => output::data(&text(&report)),
    }
}

fn plan(args: &Args, cores: usize) -> Result<Plan> {
    let doubling =
        || std::iter::successors(Some(1), |n| Some(n * 2)).take_while(move |n| *n < cores).chain([cores]);
    let threads = if args.threads.is_empty() { doubling().collect() } else { args.threads.clone() };
    // Of whole pages, as regions are.
    let buffer_bytes = args.buffer.map_or(BUFFER_BYTES, |size| size.0).div_ceil(4096).saturating_mul(4096);
    if threads.iter().any(|n| !(1..=1024).contains(n)) || !(1..=1000).contains(&args.repeat) {
        return Err(usage("--threads are 1 to 1024, --repeat is 1 to 1000"));
    }
    if !(0.001..=3600.0).contains(&args.secs) {
        return Err(usage("--secs is 0.001 to 3600"));
    }
    if buffer_bytes < 1 << 20 {
        return Err(usage("--buffer is at least 1M; below the size of the cache it measures the cache"));
    }
    let plan = Plan { threads, buffer_bytes, time: Duration::from_secs_f64(args.secs), repeats: args.repeat };
    let (want, free) = (plan.region_bytes(), memory_available_bytes());
    if args.on.is_none() && want > free / 10 * 9 {
        return Err(usage(format!(
            "{} of buffers are needed, {} of memory are free: choose fewer --threads or a smaller --buffer",
            Size(want),
            Size(free)
        )));
    }
    Ok(plan)
}

fn take(args: &Args, bytes: u64) -> Result<Region> {
    match &args.on {
        // Stores past the cache are measured.
        None => Ok(Region::anonymous_as(bytes, Durability::Power)?),
        Some(path) => {
            let exists = || usage(format!("{} exists: name a new file, or a device", path.display()));
            // Before --force is advised, which gives up no file.
            if path.is_file() {
                return Err(exists());
            }
            let force = if args.force { Force::Yes } else { Force::No };
            let target =
                overwrite::take(path, force, "Name another one, or give up what it holds with --force")?;
            // One may have been made meanwhile.
            if target.locked_file.is_file() && !target.locked_file.is_new() {
                return Err(exists());
            }
            let how = OpenOptions { durability: Some(Durability::Power), ..OpenOptions::default() };
            heddle_console::image::create(path, target, bytes, &how)
        }
    }
}

fn text(report: &Report) -> String {
    let rows = report.rows.iter().map(|line| {
        let span = |speed: &Speed| format!("{:.1}..{:.1}", speed.min_gb_s, speed.max_gb_s);
        let value = |speed: &Speed| format!("{:.2}", speed.gb_s);
        [line.threads.to_string(), value(&line.write), span(&line.write), value(&line.read), span(&line.read)]
    });
    let table = table(["threads", "write GB/s", "", "read GB/s", ""], rows);
    format!(
        "{}, {} CPUs; median and span of {} repeats of {} s, private buffers of {}\n{table}",
        report.machine.cpu_model,
        report.machine.cores,
        report.repeat,
        report.secs,
        Size(report.buffer_bytes)
    )
}
