//! Mutants: the source changed by machine, one operator or return value at a time. A change that no test sees is a gap in the tests.
//!
//! cargo-mutants lists the changes. One build of a copy of the tree has all of them, and a number in the environment switches one on
//! (`switched`). Test binaries are run with it, cheap ones first, until one fails. What no binary sees has survived: it gets a test, or a
//! line with its reason in `xtask/mutants-equivalent.txt`. The few changes that cannot be switched are built alone, at the end.

mod compiled;
mod equivalent;
mod judge;
mod list;
mod run;
mod suites;
mod switched;
mod tree;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::json;

use equivalent::Equivalents;
use judge::{Judge, Trial, Verdict};
use list::Mutant;
use suites::Baselines;
use tree::Tree;

use crate::process;

/// Unless it is said otherwise.
const WORKERS: usize = 2;
const CRATES: [&str; 4] = ["nvmfs", "f2fs", "arena", "bypass"];
const USAGE: &str =
    "usage: cargo xtask mutants [CRATE…] [--sample N] [--seed S,…] [--changed SINCE] [--only PART] [--suites NAME,…]
                            [--workers N] [--json FILE] [--no-run]
  CRATE            a folder of crates/ (nvmfs f2fs arena bypass)
  --sample N       as many of all mutants, spread evenly (100; 0: all)
  --seed S,…       which ones (1); several: a sample of each, in one build
  --changed SINCE  only those in lines that changed since a commit
  --only PART      only those with this in their name, as they are printed
  --suites NAME,…  ask these alone (lib, posix, …): quicker, but what survives may be seen by the others
  --workers N      so many side by side (2)
  --json FILE      what became of each
  --no-run         build alone; the same command without it finds all built
Example, for what a branch touches:
  cargo xtask mutants --changed main --sample 0";

struct Options {
    crates: Vec<String>,
    sample: usize,
    seeds: Vec<u64>,
    changed: Option<String>,
    only: Vec<String>,
    suites: Vec<String>,
    workers: usize,
    json: Option<String>,
    runs: bool,
}

fn options(root: &Path, args: &[String]) -> Result<Options> {
    let mut options = Options {
        crates: Vec::new(),
        sample: 100,
        seeds: vec![1],
        changed: None,
        only: Vec::new(),
        suites: Vec::new(),
        workers: WORKERS,
        json: None,
        runs: true,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg}: what follows it is missing"));
        match arg.as_str() {
            "--sample" => options.sample = value()?.parse().context("--sample: not a number")?,
            "--seed" => {
                let seeds = value()?.split(',').map(str::parse).collect::<Result<_, _>>();
                options.seeds = seeds.context("--seed: not a number")?;
            }
            "--changed" => options.changed = Some(value()?.clone()),
            "--only" => options.only.push(value()?.clone()),
            "--suites" => options.suites = value()?.split(',').map(str::to_owned).collect(),
            "--workers" => options.workers = value()?.parse().context("--workers: not a number")?,
            "--no-run" => options.runs = false,
            "--json" => options.json = Some(value()?.clone()),
            name if root.join("crates").join(name).join("Cargo.toml").exists() => {
                options.crates.push(name.to_owned());
            }
            _ => bail!("{arg}: neither an option nor a crate\n{USAGE}"),
        }
    }
    if options.crates.is_empty() {
        options.crates = CRATES.map(str::to_owned).to_vec();
    }
    Ok(options)
}

/// `cargo xtask mutants [CRATE…] [--sample N] [--seed S,…] [--changed SINCE] [--only PART] [--suites NAME,…] …`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return Ok(true);
    }
    let options = options(root, args)?;
    let equivalents = Equivalents::read(root)?;
    let mut all = list::list(root, &options.crates, options.changed.as_deref())?;
    if options.changed.is_none() {
        for row in equivalents.stale(&all, &options.crates) {
            println!("STALE in {}, of no mutant: {row}", equivalent::FILE);
        }
    }
    all.retain(|mutant| {
        options.only.is_empty() || options.only.iter().any(|part| mutant.name.contains(part))
    });
    let (excused, judged): (Vec<Mutant>, Vec<Mutant>) =
        all.into_iter().partition(|mutant| equivalents.reason(mutant).is_some());
    let samples: Vec<Vec<Mutant>> =
        options.seeds.iter().map(|seed| list::sample(judged.clone(), options.sample, *seed)).collect();
    let mut names = BTreeSet::new();
    let mutants: Vec<Mutant> =
        samples.iter().flatten().filter(|mutant| names.insert(mutant.name.clone())).cloned().collect();
    println!(
        "{} mutants, {} excused by {}; {} are tried",
        judged.len(),
        excused.len(),
        equivalent::FILE,
        mutants.len()
    );
    if mutants.is_empty() {
        return Ok(true);
    }
    let workers = if options.runs { options.workers.max(1) } else { 0 };
    let verdicts = judge(root, &mutants, &options.suites, workers)?;
    if let Some(file) = &options.json {
        write_json(Path::new(file), &options, &verdicts)?;
    }
    for (seed, sample) in options.seeds.iter().zip(&samples) {
        report(*seed, sample, &verdicts);
    }
    Ok(!verdicts.iter().any(|(_, verdict)| *verdict == Verdict::Survived))
}

type Judged = Vec<(Mutant, Verdict)>;

/// All that can be switched on, in one build; then the others, each in a build of its own.
fn judge(root: &Path, mutants: &[Mutant], asked: &[String], workers: usize) -> Result<Judged> {
    let (began, judged) = (Instant::now(), Mutex::new(Judged::new()));
    let tell = |mutant: &Mutant, verdict: Verdict, took: u64| {
        let mut judged = judged.lock().expect("no holder panics");
        println!("{}/{} {verdict} ({took} s): {}", judged.len() + 1, mutants.len(), mutant.name);
        judged.push((mutant.clone(), verdict));
    };
    let numbered: BTreeMap<u32, &Mutant> = (1..).zip(mutants).collect();
    let watchers = mutants.iter().flat_map(|mutant| suites::watching(root, mutant.crate_name()));
    let is_asked = |name: &String| {
        asked.is_empty()
            || asked.iter().any(|asked| name.split('/').any(|part| part == asked) || name == asked)
    };
    let mut tree = Tree::new(root, watchers.filter(is_asked).collect())?;
    let built = tree.build(&numbered)?;
    println!("built in {} s: {} can be switched on", began.elapsed().as_secs(), built.switched.len());
    if workers == 0 {
        return Ok(Judged::new());
    }
    for number in &built.unviable {
        tell(numbered[number], Verdict::Unviable, 0);
    }
    let baselines = Baselines::default();
    let log = |worker: usize| process::target_dir(root).join(format!("mutants/{worker}.log"));
    let trials = built.switched.iter().map(|number| Trial::new(root, numbered[number], *number));
    // Each goes to the end after a suite, so that all are asked the cheap ones first.
    let queue = Mutex::new(VecDeque::from_iter(trials));
    let next = || queue.lock().expect("no holder panics").pop_front();
    let work = |worker: usize| -> Result<()> {
        let judge = Judge { suites: &built.suites, baselines: &baselines, log: log(worker) };
        while let Some(mut trial) = next() {
            match judge.ask(&mut trial)? {
                Some(verdict) => tell(trial.mutant, verdict, trial.took.as_secs()),
                None => queue.lock().expect("no holder panics").push_back(trial),
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let alone = |number: &&u32| !built.switched.contains(number) && !built.unviable.contains(number);
    for mutant in numbered.keys().filter(alone).map(|number| numbered[number]) {
        let suites = tree.build_alone(mutant)?;
        let mut trial = Trial::new(root, mutant, 0);
        let verdict = match &suites {
            None => Verdict::Unviable,
            Some(suites) => {
                let judge = Judge { suites, baselines: &baselines, log: log(0) };
                loop {
                    if let Some(verdict) = judge.ask(&mut trial)? {
                        break verdict;
                    }
                }
            }
        };
        tell(mutant, verdict, trial.took.as_secs());
    }
    println!("{} s in all", began.elapsed().as_secs());
    Ok(judged.into_inner().expect("no holder panics"))
}

fn report(seed: u64, sample: &[Mutant], judged: &Judged) {
    let of: Vec<_> =
        judged.iter().filter(|(mutant, _)| sample.iter().any(|of| of.name == mutant.name)).collect();
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for (mutant, verdict) in &of {
        *counts.entry((&mutant.package, verdict.word())).or_default() += 1;
    }
    println!("\nseed {seed}");
    for ((package, word), count) in counts {
        println!("{package:<20} {word:<12} {count:>4}");
    }
    let survivors: Vec<_> = of.iter().filter(|(_, verdict)| *verdict == Verdict::Survived).collect();
    for (mutant, _) in &survivors {
        println!("\nSURVIVED {}\n    {}", mutant.name, mutant.line);
    }
    println!("\n{} of {} survived", survivors.len(), of.len());
}

fn write_json(file: &Path, options: &Options, judged: &Judged) -> Result<()> {
    let rows: Vec<_> = judged
        .iter()
        .map(
            |(mutant, verdict)| json!({ "name": mutant.name, "verdict": verdict.word(), "by": verdict.by() }),
        )
        .collect();
    let text = json!({ "seeds": options.seeds, "crates": options.crates, "mutants": rows });
    std::fs::write(file, serde_json::to_vec_pretty(&text)?)
        .with_context(|| format!("cannot write {}", file.display()))
}
