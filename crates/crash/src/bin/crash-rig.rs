//! Runs the rig's own workloads: `cargo xtask crash` calls it.

use heddle_crash::cut::Bounds;
use heddle_crash::op::Workload;
use heddle_crash::rig::{Config, Report};
use heddle_crash::tasks::{Task, run_all};
use heddle_crash::{ace, shelf, threads};
use heddle_nvmfs::Variant;
use heddle_pmem::Model;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: crash-rig [--length 0|1|2|3] [--workload NAME] [--variant V] [--model ordered|pessimistic|eadr] [--sample N] [--images N]
                 [--random N] [--seed N] [--seconds N] [--jobs N] [--threads] [--planted [--fast]]
  --length     0: the shelf of workloads at the edges; 1, 2: all sequences of operations; 3: a sample of them [default: 0, 1 and 2]
  --images     images a cut that are chosen in order [64; sequences of 2 and 3: 16]     --random  and at random [16; 4]
  --threads    power cuts while several threads are inside, for --seconds (60)
  --planted    plant each bug of the list and show that it is caught (needs the feature `planted`)";

struct Args {
    lengths: Vec<usize>,
    workload: Option<String>,
    variants: Vec<Variant>,
    model: Model,
    sample: usize,
    images: Option<usize>,
    random: Option<usize>,
    seed: u64,
    seconds: Option<u64>,
    jobs: usize,
    threads: bool,
    planted: bool,
    fast: bool,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(text) => {
            eprintln!("crash-rig: {text}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    heddle_crash::judge::keep_memory();
    if args.planted {
        return planted(&args);
    }
    let start = Instant::now();
    let mut all = Report::default();
    if args.threads {
        all.add(in_threads(&args, start));
    }
    let lengths = if args.threads { &[][..] } else { &args.lengths };
    for length in lengths {
        let tasks = tasks(&args, *length);
        let report = go(&args, &tasks, *length, start);
        all.add(report);
    }
    println!(
        "in all: {} states, {} images, {} recoveries cut, {} failures, {:.0} s",
        all.states,
        all.images,
        all.nested,
        all.failures.len(),
        start.elapsed().as_secs_f64()
    );
    for failure in all.failures.iter().take(20) {
        println!("FAILED {failure}");
    }
    if all.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        lengths: vec![0, 1, 2],
        workload: None,
        variants: Variant::ALL.to_vec(),
        model: Model::Ordered,
        sample: 2000,
        images: None,
        random: None,
        seed: 1,
        seconds: None,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        threads: false,
        planted: false,
        fast: false,
    };
    while let Some(option) = words.next() {
        match option.as_str() {
            "--planted" => args.planted = true,
            "--threads" => args.threads = true,
            "--fast" => args.fast = true,
            _ => {
                let value =
                    words.next().ok_or_else(|| format!("{option}: unknown, or its value is missing"))?;
                set(&mut args, &option, &value)?;
            }
        }
    }
    Ok(args)
}

fn set(args: &mut Args, option: &str, value: &str) -> Result<(), String> {
    let number = || value.parse::<u64>().map_err(|_| format!("{option} {value}: not a number"));
    match option {
        "--length" => args.lengths = vec![number()?.min(3) as usize],
        "--workload" => (args.workload, args.lengths) = (Some(value.to_string()), vec![0]),
        "--variant" => {
            args.variants = vec![Variant::from_name(value).ok_or_else(|| format!("{value}: no variant"))?];
        }
        "--model" => args.model = model(value)?,
        "--sample" => args.sample = number()? as usize,
        "--images" => args.images = Some(number()? as usize),
        "--random" => args.random = Some(number()? as usize),
        "--seed" => args.seed = number()?,
        "--seconds" => args.seconds = Some(number()?),
        "--jobs" => args.jobs = number()? as usize,
        _ => return Err(format!("{option}: unknown")),
    }
    Ok(())
}

fn model(text: &str) -> Result<Model, String> {
    match text {
        "ordered" => Ok(Model::Ordered),
        "pessimistic" => Ok(Model::Pessimistic),
        "eadr" => Ok(Model::Eadr),
        _ => Err(format!("{text}: a model is ordered, pessimistic or eadr")),
    }
}

fn tasks(args: &Args, length: usize) -> Vec<Task> {
    let workloads: Vec<Workload> = match length {
        0 => {
            let named = |w: &Workload| args.workload.as_ref().is_none_or(|name| *name == w.name);
            shelf::workloads().into_iter().filter(named).collect()
        }
        3 => ace::sequences(3, Some((args.sample, args.seed))),
        _ => ace::sequences(length, None),
    };
    let (images, random) = if length < 2 { (64, 16) } else { (16, 4) };
    let bounds = Bounds {
        ordered: args.images.unwrap_or(images),
        random: args.random.unwrap_or(random),
        seed: args.seed,
    };
    let config = |variant: &Variant| Config { variant: *variant, model: args.model, bounds, only: None };
    let with = |workload: &Workload| {
        let tasks = args.variants.iter().map(|v| Task { workload: workload.clone(), config: config(v) });
        tasks.collect::<Vec<_>>()
    };
    workloads.iter().flat_map(with).collect()
}

fn go(args: &Args, tasks: &[Task], length: usize, start: Instant) -> Report {
    let limit = args.seconds.map(|s| Duration::from_secs(s).saturating_sub(start.elapsed()));
    let told = Mutex::new(Instant::now());
    let outcome = run_all(tasks, args.jobs, limit, 20, &|runs, report| {
        let Ok(mut last) = told.try_lock() else { return };
        if last.elapsed() > Duration::from_secs(5) {
            *last = Instant::now();
            let (states, images) = (report.states, report.images);
            eprintln!(
                "{runs}/{} workloads, {states} states, {images} images, {} failures",
                tasks.len(),
                report.failures.len()
            );
        }
    });
    let what = if length == 0 { "shelf".to_string() } else { format!("length {length}") };
    let Report { cuts, states, images, nested, failures } = &outcome.report;
    println!(
        "{what}: {}/{} runs, {cuts} cuts, {states} states, {images} images, {nested} recoveries cut, {} failures, {:.0} s",
        outcome.runs,
        tasks.len(),
        failures.len(),
        outcome.took.as_secs_f64()
    );
    outcome.report
}

/// Several threads inside, until the time is up.
fn in_threads(args: &Args, start: Instant) -> Report {
    let mut sum = Report::default();
    let limit = Duration::from_secs(args.seconds.unwrap_or(60));
    let (mut runs, mut told) = (0, Instant::now());
    'all: for round in 0.. {
        for variant in &args.variants {
            if start.elapsed() > limit || !sum.failures.is_empty() {
                break 'all;
            }
            let seed = args.seed.wrapping_mul(1_000_003).wrapping_add(round);
            let bounds =
                Bounds { ordered: args.images.unwrap_or(12), random: args.random.unwrap_or(4), seed };
            let threads = 2 + (round % 2) as usize;
            let calls = if threads == 2 { 6 } else { 4 };
            let config = threads::Config {
                variant: *variant,
                model: args.model,
                threads,
                calls,
                seed,
                cuts: 12,
                bounds,
            };
            match threads::run(&config) {
                Ok(report) => sum.add(report),
                Err(text) => println!("cannot run: {text}"),
            }
            runs += 1;
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                eprintln!(
                    "{runs} runs, {} cuts, {} images, {} failures",
                    sum.cuts,
                    sum.images,
                    sum.failures.len()
                );
            }
        }
    }
    println!("threads: {runs} runs, {} cuts, {} states, {} images", sum.cuts, sum.states, sum.images);
    sum
}

#[cfg(not(feature = "planted"))]
fn planted(_: &Args) -> ExitCode {
    eprintln!("crash-rig: this build has no planted bugs; use: cargo xtask crash --planted");
    ExitCode::from(2)
}

#[cfg(feature = "planted")]
fn planted(args: &Args) -> ExitCode {
    heddle_crash::planted::table(args.seed, args.fast)
}
