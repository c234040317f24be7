//! Runs the rig's built-in workloads, for `cargo xtask crash`.

use heddle_crash::cut::Bounds;
#[cfg(feature = "planted")]
use heddle_crash::faults;
use heddle_crash::mix::Mix;
use heddle_crash::op::Workload;
use heddle_crash::rig::{Config, Report};
use heddle_crash::tasks::{Task, run_all};
use heddle_crash::{ace, corpus, mixed, threads};
use heddle_nvmfs::Variant;
use heddle_pmem::Model;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: cargo xtask crash [MODE] [OPTION…]
What is run (without any of these: --length 0, then 1, then 2):
  --length N       0: the corpus: workloads of corner cases, written by hand; 1, 2: all sequences of operations; 3: a sample of them
  --workload NAME  one of the corpus alone
  --mixed          all of it at random, until --states or --seconds: long lists of mixed operations, sequences of three, threads, the corpus
  --threads        power cuts while several threads are inside, for --seconds [60]
  --faults         every request for memory and blocks refused once, every line of used blocks lost, before a mount and during one;
                   --fast: every 23rd line
  --planted        plants each bug of the list and shows which image gives it away; --fast: looks for it in one workload, and for
                   most bugs of power cuts without dying processes
  --fences         leaves each fence and each write-back of the engine out, one at a time, and shows what notices;
                   --only PART: only the calls whose FILE:LINE contains PART; --sample N: sequences of two a call [200];
                   --seconds N: of several threads a call [20]
  --print NAME     prints a workload for `heddle crash`: one of the corpus, or mixed:SEED
How:
  --variant V      nova, nova-interval, nova-array, nova-tree, heddle [all]
  --model M        what a cut may do: ordered, pessimistic, eadr; process: a death, memory stays [ordered; --mixed: all]
  --images N       states a cut, chosen systematically [64; sequences of 2 and 3: 16; mixed: 24; threads: 12]
  --random N       further states a cut, chosen at random [16; 4; 24; 4]
  --sample N       sequences of three [2000]
  --seed N         which sample, lists, schedules and random images [1]
  --seconds N      ends after so many seconds [without: when all is done]
  --states N       --mixed ends when so many states were formed [1000000]
  --jobs N         workloads at once [processors]";

struct Args {
    lengths: Vec<usize>,
    workload: Option<String>,
    variants: Vec<Variant>,
    model: Option<Model>,
    sample: Option<usize>,
    images: Option<usize>,
    random: Option<usize>,
    seed: u64,
    seconds: Option<u64>,
    jobs: usize,
    threads: bool,
    planted: bool,
    fast: bool,
    mixed: bool,
    faults: bool,
    fences: bool,
    only: Option<String>,
    states: u64,
    print: Option<String>,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(text) if text.is_empty() => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprintln!("crash: {text}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    heddle_crash::judge::keep_memory();
    if let Some(name) = &args.print {
        return print(name);
    }
    if args.planted || args.faults || args.fences {
        let parts =
            [(args.planted, planted as fn(&Args) -> ExitCode), (args.faults, faults), (args.fences, fences)];
        let done: Vec<ExitCode> =
            parts.iter().filter(|(wanted, _)| *wanted).map(|(_, part)| part(&args)).collect();
        return done.into_iter().find(|code| *code != ExitCode::SUCCESS).unwrap_or(ExitCode::SUCCESS);
    }
    let start = Instant::now();
    let mut all = Report::default();
    if args.threads {
        all.add(in_threads(&args, start));
    }
    if args.mixed {
        all.add(in_a_mix(&args, start));
    }
    let lengths = if args.threads || args.mixed { &[][..] } else { &args.lengths };
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
    #[cfg(feature = "planted")]
    let all_met = met_all(&args, &all);
    #[cfg(not(feature = "planted"))]
    let all_met = true;
    for failure in all.failures.iter().take(20) {
        println!("FAILED {failure}");
    }
    if all.failures.is_empty() && all_met { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Prints the coverage. After the whole corpus no count may be 0.
#[cfg(feature = "planted")]
fn met_all(args: &Args, all: &Report) -> bool {
    let (table, missing) = all.coverage.table();
    print!("met while the power could be cut:\n{table}");
    let whole = args.lengths.contains(&0) && args.workload.is_none() && args.seconds.is_none();
    let all_variants = args.variants.len() == Variant::ALL.len();
    if !whole || !all_variants || args.threads || args.mixed || missing.is_empty() {
        return true;
    }
    println!("FAILED never met: {}", missing.join("; "));
    false
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        lengths: vec![0, 1, 2],
        workload: None,
        variants: Variant::ALL.to_vec(),
        model: None,
        sample: None,
        images: None,
        random: None,
        seed: 1,
        seconds: None,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        threads: false,
        planted: false,
        fast: false,
        mixed: false,
        faults: false,
        fences: false,
        only: None,
        states: 1_000_000,
        print: None,
    };
    while let Some(option) = words.next() {
        match option.as_str() {
            "-h" | "--help" => return Err(String::new()),
            "--planted" => args.planted = true,
            "--mixed" => args.mixed = true,
            "--faults" => args.faults = true,
            "--fences" => args.fences = true,
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
        "--length" => {
            let length = number()? as usize;
            if length > 3 {
                return Err(format!("--length {length}: 0 to 3; for longer lists: --mixed"));
            }
            args.lengths = vec![length];
        }
        "--workload" => {
            if corpus::workload(value).is_none() {
                return Err(format!(
                    "--workload {value}: not in the corpus, which has: {}",
                    names_of_corpus()
                ));
            }
            (args.workload, args.lengths) = (Some(value.to_string()), vec![0]);
        }
        "--only" => args.only = Some(value.to_string()),
        "--states" => args.states = number()?,
        "--print" => args.print = Some(value.to_string()),
        "--variant" => {
            args.variants = vec![Variant::from_name(value).ok_or_else(|| format!("{value}: no variant"))?];
        }
        "--model" => args.model = Some(value.parse()?),
        "--sample" => args.sample = Some(number()? as usize),
        "--images" => args.images = Some(number()? as usize),
        "--random" => args.random = Some(number()? as usize),
        "--seed" => args.seed = number()?,
        "--seconds" => args.seconds = Some(number()?),
        "--jobs" => args.jobs = number()? as usize,
        _ => return Err(format!("{option}: unknown")),
    }
    Ok(())
}

fn names_of_corpus() -> String {
    corpus::workloads().into_iter().map(|workload| workload.name).collect::<Vec<_>>().join(", ")
}

/// Prints a workload as a file for `heddle crash`.
fn print(name: &str) -> ExitCode {
    let workload = match name.strip_prefix("mixed:").map(str::parse) {
        Some(Ok(seed)) => Some(mixed::list(seed)),
        Some(Err(_)) => None,
        None => corpus::workload(name),
    };
    match workload {
        Some(workload) => {
            print!("{workload}");
            ExitCode::SUCCESS
        }
        None => {
            eprintln!("crash: --print {name}: a workload is mixed:SEED or one of: {}", names_of_corpus());
            ExitCode::from(2)
        }
    }
}

fn tasks(args: &Args, length: usize) -> Vec<Task> {
    let workloads: Vec<Workload> = match length {
        0 => {
            let named = |w: &Workload| args.workload.as_ref().is_none_or(|name| *name == w.name);
            corpus::workloads().into_iter().filter(named).collect()
        }
        3 => ace::sequences(3, Some((args.sample.unwrap_or(2000), args.seed))),
        _ => ace::sequences(length, None),
    };
    let (images, random) = if length < 2 { (64, 16) } else { (16, 4) };
    let bounds = Bounds {
        ordered: args.images.unwrap_or(images),
        random: args.random.unwrap_or(random),
        seed: args.seed,
    };
    let config = |variant: &Variant| Config {
        variant: *variant,
        model: args.model.unwrap_or_default(),
        bounds,
        only: None,
    };
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
    let what = if length == 0 { "corpus".to_string() } else { format!("length {length}") };
    let Report { cuts, states, images, nested, failures, .. } = &outcome.report;
    println!(
        "{what}: {}/{} runs, {cuts} cuts, {states} states, {images} images, {nested} recoveries cut, {} failures, {:.0} s",
        outcome.runs,
        tasks.len(),
        failures.len(),
        outcome.took.as_secs_f64()
    );
    outcome.report
}

/// Runs everything at random until there are enough states.
fn in_a_mix(args: &Args, start: Instant) -> Report {
    let mix = Mix {
        variants: args.variants.clone(),
        model: args.model,
        images: args.images,
        random: args.random,
        seed: args.seed,
        states: args.states,
        limit: args.seconds.map(Duration::from_secs),
        jobs: args.jobs,
    };
    let (runs, sum) = mix.run();
    let Report { cuts, states, images, nested, .. } = &sum;
    println!(
        "mixed, seed {}: {runs} runs, {cuts} cuts, {states} states, {images} images, {nested} recoveries cut, {:.0} s",
        args.seed,
        start.elapsed().as_secs_f64()
    );
    sum
}

/// Runs several threads in parallel until the time is over.
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
            sum.add(threads::one(*variant, args.model.unwrap_or_default(), bounds, round));
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
fn faults(_: &Args) -> ExitCode {
    eprintln!("crash: this build cannot refuse requests; use: cargo xtask crash --faults");
    ExitCode::from(2)
}

/// Injects faults other than power cuts.
#[cfg(feature = "planted")]
fn faults(args: &Args) -> ExitCode {
    let start = Instant::now();
    let mut found = 0;
    let mut told = |what: &str, variant: Variant, run: Result<faults::Figures, String>| {
        let seconds = start.elapsed().as_secs_f64();
        match run {
            Ok(faults::Figures { faults, failed }) => println!(
                "{}: {what}: {faults} faults, {failed} calls and mounts failed and said so, {seconds:.0} s",
                variant.name()
            ),
            Err(text) => {
                found += 1;
                println!("{}: {what}: FAILED {text}", variant.name());
            }
        }
    };
    for variant in &args.variants {
        for resource in [faults::Resource::Memory, faults::Resource::Blocks] {
            told(&format!("{resource:?}, the N-th request"), *variant, faults::refused(*variant, resource));
        }
        let step = if args.fast { 23 } else { 1 };
        told("lines lost", *variant, faults::lost(*variant, (args.seed % step) as usize, step as usize));
    }
    println!("in all: {found} findings, {:.0} s", start.elapsed().as_secs_f64());
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

#[cfg(not(feature = "planted"))]
fn fences(_: &Args) -> ExitCode {
    eprintln!("crash: this build cannot leave fences out; use: cargo xtask crash --fences");
    ExitCode::from(2)
}

#[cfg(feature = "planted")]
fn fences(args: &Args) -> ExitCode {
    let search = heddle_crash::fences::Search {
        variants: args.variants.clone(),
        sample: args.sample.unwrap_or(200),
        threads: Duration::from_secs(args.seconds.unwrap_or(20)),
        seed: args.seed,
        jobs: args.jobs,
        only: args.only.clone(),
    };
    search.table()
}

#[cfg(not(feature = "planted"))]
fn planted(_: &Args) -> ExitCode {
    eprintln!("crash: this build has no planted bugs; use: cargo xtask crash --planted");
    ExitCode::from(2)
}

#[cfg(feature = "planted")]
fn planted(args: &Args) -> ExitCode {
    heddle_crash::planted::table(args.seed, args.fast)
}
