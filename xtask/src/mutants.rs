//! Mutants: the source changed by machine, one operator or return value at a time. A change that no test sees is a gap in the tests.
//!
//! cargo-mutants lists the changes. Each is made in a copy of the tree, and test binaries are built and run on it, cheap ones first,
//! until one fails. Two copies work side by side. What is left has survived: it gets a test, or a line with its reason in
//! `xtask/mutants-equivalent.txt`.

mod compiled;
mod equivalent;
mod list;
mod suites;
mod tree;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use equivalent::Equivalents;
use list::Mutant;
use suites::Baselines;
use tree::{Tree, Verdict};

/// Unless it is said otherwise. Of each, the tree and what cargo builds in it take some gigabytes.
const TREES: usize = 2;
const CRATES: [&str; 4] = ["nvmfs", "f2fs", "arena", "bypass"];
const USAGE: &str =
    "usage: cargo xtask mutants [CRATE…] [--sample N] [--seed S] [--changed SINCE] [--trees N] [--json FILE]
  CRATE            a folder of crates/ (nvmfs f2fs arena bypass)
  --sample N       as many of all mutants, spread evenly (100; 0: all)
  --seed S         which ones (1)
  --changed SINCE  only those in lines that changed since a commit
  --trees N        so many side by side (2)
  --json FILE      what became of each
Some three mutants a minute on two idle processors. Example, for what a branch touches:
  cargo xtask mutants --changed main --sample 0";

struct Options {
    crates: Vec<String>,
    sample: usize,
    seed: u64,
    changed: Option<String>,
    trees: usize,
    json: Option<String>,
}

fn options(root: &Path, args: &[String]) -> Result<Options> {
    let mut options =
        Options { crates: Vec::new(), sample: 100, seed: 1, changed: None, trees: TREES, json: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg}: what follows it is missing"));
        match arg.as_str() {
            "--sample" => options.sample = value()?.parse().context("--sample: not a number")?,
            "--seed" => options.seed = value()?.parse().context("--seed: not a number")?,
            "--changed" => options.changed = Some(value()?.clone()),
            "--trees" => options.trees = value()?.parse().context("--trees: not a number")?,
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

/// `cargo xtask mutants [CRATE…] [--sample N] [--seed S] [--changed SINCE] [--trees N] [--json FILE]`
pub fn chore(root: &Path, args: &[String]) -> Result<bool> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return Ok(true);
    }
    let options = options(root, args)?;
    let equivalents = Equivalents::read(root)?;
    let all = list::list(root, &options.crates, options.changed.as_deref())?;
    let (excused, judged): (Vec<Mutant>, Vec<Mutant>) =
        all.into_iter().partition(|mutant| equivalents.reason(mutant).is_some());
    let listed = judged.len();
    let mutants = list::sample(judged, options.sample, options.seed);
    println!(
        "{listed} mutants, {} excused by {}; {} are tried",
        excused.len(),
        equivalent::FILE,
        mutants.len()
    );
    let verdicts = judge(root, mutants, options.trees.max(1))?;
    if let Some(file) = &options.json {
        write_json(Path::new(file), &options, &verdicts)?;
    }
    Ok(report(&verdicts))
}

type Judged = Vec<(Mutant, Verdict)>;

/// Each worker has a tree of its own and takes the next mutant when it has judged one.
fn judge(root: &Path, mutants: Vec<Mutant>, trees: usize) -> Result<Judged> {
    let (count, began) = (mutants.len(), Instant::now());
    let trees: Vec<Tree> = (0..trees.min(count)).map(|n| Tree::new(root, n)).collect::<Result<_>>()?;
    let (queue, judged) = (Mutex::new(VecDeque::from(mutants)), Mutex::new(Vec::new()));
    let baselines = Baselines::default();
    let work = |tree: &Tree| -> Result<()> {
        loop {
            let Some(mutant) = queue.lock().expect("no holder panics").pop_front() else { return Ok(()) };
            let started = Instant::now();
            let verdict = tree.judge(&mutant, &baselines)?;
            let mut judged = judged.lock().expect("no holder panics");
            let (took, so_far) = (started.elapsed().as_secs(), judged.len() + 1);
            println!("{so_far}/{count} {verdict} ({took} s): {}", mutant.name);
            judged.push((mutant, verdict));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = trees.iter().map(|tree| scope.spawn(|| work(tree))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let judged = judged.into_inner().expect("no holder panics");
    ensure!(judged.len() == count, "{} of {count} were judged", judged.len());
    println!("{} s in all", Duration::as_secs(&began.elapsed()));
    Ok(judged)
}

fn report(judged: &Judged) -> bool {
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for (mutant, verdict) in judged {
        *counts.entry((&mutant.package, verdict.word())).or_default() += 1;
    }
    println!();
    for ((package, word), count) in counts {
        println!("{package:<20} {word:<12} {count:>4}");
    }
    let survivors: Vec<_> = judged.iter().filter(|(_, verdict)| *verdict == Verdict::Survived).collect();
    for (mutant, _) in &survivors {
        println!("\nSURVIVED {}\n    {}", mutant.name, mutant.line);
    }
    println!("\n{} of {} survived", survivors.len(), judged.len());
    survivors.is_empty()
}

fn write_json(file: &Path, options: &Options, judged: &Judged) -> Result<()> {
    let rows: Vec<_> = judged
        .iter()
        .map(
            |(mutant, verdict)| json!({ "name": mutant.name, "verdict": verdict.word(), "by": verdict.by() }),
        )
        .collect();
    let text = json!({ "seed": options.seed, "crates": options.crates, "mutants": rows });
    std::fs::write(file, serde_json::to_vec_pretty(&text)?)
        .with_context(|| format!("cannot write {}", file.display()))
}
