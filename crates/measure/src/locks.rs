//! `heddle locks`: time and memory of each range lock, and each variant's cost per write.
//!
//! Source  SRL paper: Fig. 10 (time to acquire the lock within DWOM, at first writes and at overwrites), Fig. 11 with Eq. 3 in its
//!         corrected form (memory), Eq. 4 (one thread writing 1 GiB).

mod cost;
mod latency;
mod memory;
mod text;

use anyhow::Result;
use heddle_console::failure::usage;
use heddle_console::output::{self, Sink};
use heddle_fxmark::Machine;
use heddle_nvmfs::LockMode;
use heddle_range_lock::Geometry;
use serde::Serialize;

/// Measure the range locks: time to acquire, memory, and fences per write
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Numbers of threads; rows with more threads than CPUs are marked [default: 1, and 1, 2 and 4 times the CPUs]
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    threads: Vec<usize>,
    /// Seconds of overwriting, for each lock and number of threads
    #[arg(long, default_value_t = 0.5)]
    secs: f64,
    /// M: bits of the largest file size (41: 2 TiB)
    #[arg(short = 'M', long, default_value_t = 41, value_name = "BITS")]
    file_bits: u32,
    /// S: bits of a segment's size (12: 4 KiB)
    #[arg(short = 'S', long, default_value_t = 12, value_name = "BITS")]
    segment_bits: u32,
    /// d: levels of the tree
    #[arg(short = 'd', long, default_value_t = 5)]
    depth: usize,
    /// How waiters wait: paper (as published: they spin, readers go first) or fair (they sleep; readers hold back for a writer that
    /// readers have kept out for 1 ms). For interval both are the same: they sleep, and a reader waits for earlier writers that it overlaps
    #[arg(long, default_value = "paper", value_parser = heddle_console::variant::lock_mode)]
    lock_mode: LockMode,
    /// As JSON, to a file or to stdout (-)
    #[arg(long, value_name = "FILE|-")]
    json: Option<Sink>,
}

const EXAMPLES: &str = "\
Examples:
  heddle locks
  heddle locks --threads 1,2,4 --secs 2 --json locks.json
  heddle locks -M 41 -S 16 -d 3";

#[derive(Serialize)]
struct Report {
    output_version: u32,
    machine: Machine,
    options: Options,
    latency: Vec<latency::Row>,
    memory: Vec<memory::Row>,
    fences_per_write: Vec<cost::Fences>,
    write_1gb: Vec<cost::Gigabyte>,
}

#[derive(Serialize)]
struct Options {
    file_bits: u32,
    segment_bits: u32,
    depth: usize,
    lock_mode: &'static str,
    secs: f64,
    /// The time to read the clock, which each latency contains.
    clock_ns: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let machine = Machine::here();
    let geometry = geometry(args)?;
    if !(0.001..=600.0).contains(&args.secs) || args.threads.iter().any(|n| !(1..=1024).contains(n)) {
        return Err(usage("--secs is 0.001 to 600, --threads are 1 to 1024"));
    }
    args.json.as_ref().map_or(Ok(()), Sink::check)?;
    let cores = machine.cores;
    let mut threads =
        if args.threads.is_empty() { vec![1, cores, 2 * cores, 4 * cores] } else { args.threads.clone() };
    threads.dedup();
    let options = Options {
        file_bits: args.file_bits,
        segment_bits: args.segment_bits,
        depth: args.depth,
        lock_mode: if args.lock_mode == LockMode::Paper { "paper" } else { "fair" },
        secs: args.secs,
        clock_ns: latency::clock_ns(),
    };
    let report = Report {
        output_version: 1,
        latency: latency::measure(args.lock_mode, &geometry, &threads, cores, args.secs)?,
        memory: memory::measure(args.lock_mode, &geometry, args.file_bits, args.segment_bits)?,
        fences_per_write: cost::fences()?,
        write_1gb: cost::gigabyte()?,
        machine,
        options,
    };
    match &args.json {
        Some(sink) => output::json(sink, &report),
        None => output::data(&text::render(&report)),
    }
}

fn geometry(args: &Args) -> Result<Geometry> {
    if !(24..=44).contains(&args.file_bits) {
        return Err(usage("-M is 24 to 44 bits; more would make the array of lock words too large"));
    }
    if !(12..args.file_bits).contains(&args.segment_bits) {
        return Err(usage("-S is 12 bits (4 KiB) or more, and less than -M"));
    }
    let geometry = Geometry {
        segment_bytes: 1 << args.segment_bits,
        file_bytes_max: 1 << args.file_bits,
        depth: args.depth,
        split: None,
    };
    for kind in heddle_range_lock::LockKind::ALL {
        heddle_range_lock::make(kind, args.lock_mode, &geometry).map_err(usage)?;
    }
    Ok(geometry)
}
