//! Is every fence and every write-back needed? Each call of the engine that stores or fences is left out, one
//! at a time, in one build (`heddle_pmem::planted::leave_out`). Then the rig's tests run until one fails.
//!
//! Order       1  all tests once with nothing left out: they tell which test runs which call. 2  for each call the tests that run it, the
//!             shortest first. 3  for the rest the same under the pessimistic model, sequences of two whose last operation runs the call,
//!             and several threads. Calls whose comment argues for them come last: they take all of it.
//! Verdicts    noticed, and by which test; argued: a comment above the call says "no check sees it", and why it is still needed;
//!             not met; not noticed; noticed although the comment says that no check sees it; met but not found in the source. The last
//!             four fail the run. So does a test that fails with nothing left out.

mod source;

use crate::cut::Bounds;
use crate::rig::{Config, Failure, Only, Report};
use crate::scenes::SCENES;
use crate::tasks::{Task, run_all};
use crate::{ace, corpus, threads};
use heddle_nvmfs::Variant;
use heddle_pmem::Model;
use heddle_pmem::planted::{Site, leave_out};
use source::{is_engines, shown, word, written};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Parameters of the search.
pub struct Search {
    /// The variants, in the order of trying.
    pub variants: Vec<Variant>,
    /// Most sequences of two per call.
    pub sample: usize,
    /// How long several threads run for a call that no other test noticed.
    pub threads: Duration,
    /// Seed of sequences, schedules and random images.
    pub seed: u64,
    /// Workloads in parallel.
    pub jobs: usize,
    /// Part of a file's name, or `file:line`: only these calls.
    pub only: Option<String>,
}

/// The test that noticed a missing call.
struct Noticed {
    by: String,
    how: String,
}

/// The tests that run a call.
#[derive(Default)]
struct Meets {
    /// Tasks, the fastest first.
    tasks: Vec<usize>,
    scenes: Vec<usize>,
}

/// The verdict on a call.
enum Verdict {
    Noticed(Noticed),
    Argued,
    NotMet,
    NotNoticed,
    /// Its comment says that no check sees it, but a test noticed.
    Contradicted(Noticed),
}

impl Verdict {
    fn new(found: Option<Noticed>, argued: bool, met: bool) -> Verdict {
        match found {
            Some(noticed) if argued => Verdict::Contradicted(noticed),
            Some(noticed) => Verdict::Noticed(noticed),
            None if argued => Verdict::Argued,
            None if met => Verdict::NotNoticed,
            None => Verdict::NotMet,
        }
    }

    fn is_open(&self) -> bool {
        !matches!(self, Verdict::Noticed(_) | Verdict::Argued)
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::Noticed(Noticed { by, how }) => write!(f, "{by} | {how}"),
            Verdict::Argued => write!(f, "argued | see its comment"),
            Verdict::NotMet => write!(f, "NOT MET | "),
            Verdict::NotNoticed => write!(f, "NOT NOTICED | "),
            Verdict::Contradicted(Noticed { by, how }) => write!(f, "{by}, AGAINST ITS COMMENT | {how}"),
        }
    }
}

impl Search {
    /// Prints the table. Returns success if no verdict fails the run.
    pub fn table(&self) -> ExitCode {
        let start = Instant::now();
        let written = written();
        let wanted = |site: &Site| self.only.as_ref().is_none_or(|only| shown(site).contains(only.as_str()));
        let mut sites: Vec<(bool, Site)> =
            written.iter().map(|(site, of)| (of.argued, *site)).filter(|(_, site)| wanted(site)).collect();
        sites.sort();
        if let (true, Some(only)) = (sites.is_empty(), &self.only) {
            eprintln!(
                "--only {only}: no fence or store is in such a place; paths begin below crates/nvmfs/src"
            );
            return ExitCode::from(2);
        }
        std::panic::set_hook(Box::new(|_| {}));
        let tasks = self.tasks();
        let (meets, broken) = self.who_meets_what(&tasks);
        eprintln!("{} calls, {:.0} s so far", sites.len(), start.elapsed().as_secs_f64());
        let (mut noticed, mut argued, mut open) = (0, 0, 0);
        println!("| call | in | what | runs that meet it | noticed by | how |\n|---|---|---|---|---|---|");
        for (is_argued, site) in &sites {
            let nobody = Meets::default();
            let runs = meets.get(site).unwrap_or(&nobody);
            let met = runs.tasks.len() + runs.scenes.len();
            let found = if met == 0 { None } else { self.notice(*site, &tasks, runs) };
            let verdict = Verdict::new(found, *is_argued, met != 0);
            open += usize::from(verdict.is_open());
            noticed += usize::from(matches!(verdict, Verdict::Noticed(_)));
            argued += usize::from(matches!(verdict, Verdict::Argued));
            let function = &written[site].function;
            println!("| {} | {function} | {} | {met} | {verdict} |", shown(site), word(site.kind));
        }
        for site in meets.keys().filter(|site| is_engines(site) && !written.contains_key(site)) {
            open += 1;
            println!("| {} | | {} | met | NOT FOUND IN THE SOURCE | |", shown(site), word(site.kind));
        }
        println!(
            "{} calls: {noticed} noticed, {argued} argued, {open} open, {:.0} s",
            sites.len(),
            start.elapsed().as_secs_f64()
        );
        if open + broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
    }

    fn tasks(&self) -> Vec<Task> {
        let bounds = Bounds { ordered: 64, random: 16, seed: self.seed };
        let workloads: Vec<_> = corpus::workloads().into_iter().chain(ace::sequences(1, None)).collect();
        let with = |variant: &Variant| {
            let config = Config { variant: *variant, model: Model::Ordered, bounds, only: None };
            workloads
                .iter()
                .map(move |workload| Task { workload: workload.clone(), config: config.clone() })
                .collect::<Vec<_>>()
        };
        self.variants.iter().flat_map(with).collect()
    }

    /// The tests that run each call, and how many tests fail with nothing left out.
    fn who_meets_what(&self, tasks: &[Task]) -> (BTreeMap<Site, Meets>, usize) {
        // A few images suffice: each recovery that is cut runs the same calls.
        let bounds = Bounds { ordered: 2, random: 1, seed: self.seed };
        let next = AtomicUsize::new(0);
        let reports: Mutex<BTreeMap<usize, Report>> = Mutex::default();
        let worker = || {
            loop {
                let at = next.fetch_add(1, SeqCst);
                let Some(Task { workload, config }) = tasks.get(at) else { return };
                let quick = Task { workload: workload.clone(), config: Config { bounds, ..config.clone() } };
                let report = run_all(std::slice::from_ref(&quick), 1, None, 1, &|_, _| {}).report;
                reports.lock().unwrap_or_else(PoisonError::into_inner).insert(at, report);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(worker);
            }
        });
        let (mut meets, mut broken): (BTreeMap<Site, Meets>, usize) = Default::default();
        let mut images = vec![0; tasks.len()];
        for (at, report) in reports.into_inner().unwrap_or_else(PoisonError::into_inner) {
            for failure in report.failures.iter().take(1) {
                broken += 1;
                println!("FAILED, nothing left out: {failure}");
            }
            images[at] = report.images;
            for site in report.coverage.sites.keys() {
                meets.entry(*site).or_default().tasks.push(at);
            }
        }
        for (at, (name, scene)) in SCENES.iter().enumerate() {
            match scene(Model::Ordered) {
                Ok((None, coverage)) => {
                    coverage.sites.keys().for_each(|site| meets.entry(*site).or_default().scenes.push(at));
                }
                Ok((Some(failure), _)) => {
                    broken += 1;
                    println!("FAILED, nothing left out: {failure}");
                }
                Err(text) => {
                    broken += 1;
                    println!("FAILED, nothing left out: {name} cannot be played: {text}");
                }
            }
        }
        meets.values_mut().for_each(|runs| runs.tasks.sort_by_key(|at| images[*at]));
        (meets, broken)
    }

    fn run(&self, tasks: &[Task]) -> Report {
        run_all(tasks, self.jobs, None, 1, &|_, _| {}).report
    }

    fn notice(&self, site: Site, tasks: &[Task], runs: &Meets) -> Option<Noticed> {
        leave_out(Some(site));
        let found = self.notice_somehow(tasks, runs);
        leave_out(None);
        found
    }

    fn notice_somehow(&self, tasks: &[Task], runs: &Meets) -> Option<Noticed> {
        let of = |at: &usize, model: Model| {
            let Task { workload, config } = &tasks[*at];
            Task { workload: workload.clone(), config: Config { model, ..config.clone() } }
        };
        for scene in &runs.scenes {
            if let Ok((Some(failure), _)) = (SCENES[*scene].1)(Model::Ordered) {
                return Some(noticed(&failure));
            }
        }
        for model in [Model::Ordered, Model::Pessimistic] {
            let chosen: Vec<Task> = runs.tasks.iter().map(|at| of(at, model)).collect();
            if let Some(noticed) = seen(&self.run(&chosen)) {
                return Some(noticed);
            }
        }
        let mut variants: Vec<Variant> = runs.tasks.iter().map(|at| tasks[*at].config.variant).collect();
        variants.dedup();
        variants.sort_by_key(|variant| self.variants.iter().position(|known| known == variant));
        variants.dedup();
        let last: BTreeSet<String> = runs.tasks.iter().map(|at| tasks[*at].workload.name.clone()).collect();
        let two: Vec<Task> = self.sequences(&last, &variants);
        seen(&self.run(&two)).or_else(|| self.in_threads(&variants))
    }

    /// Sequences of two whose last operation is one of these.
    fn sequences(&self, last: &BTreeSet<String>, variants: &[Variant]) -> Vec<Task> {
        let ends = |name: &str| name.rsplit("; ").next().is_some_and(|name| last.contains(name));
        let all: Vec<_> = ace::sequences(2, None).into_iter().filter(|w| ends(&w.name)).collect();
        let step = (all.len() / self.sample.max(1)).max(1);
        let chosen = all.into_iter().step_by(step);
        let bounds = Bounds { ordered: 16, random: 4, seed: self.seed };
        let with = |workload: crate::op::Workload| {
            let config = |variant: &Variant| Config {
                variant: *variant,
                model: Model::Ordered,
                bounds,
                only: None::<Only>,
            };
            variants
                .iter()
                .take(2)
                .map(|variant| Task { workload: workload.clone(), config: config(variant) })
                .collect::<Vec<_>>()
        };
        if self.sample == 0 { Vec::new() } else { chosen.flat_map(with).collect() }
    }

    fn in_threads(&self, variants: &[Variant]) -> Option<Noticed> {
        let start = Instant::now();
        for round in 0.. {
            for variant in variants {
                if start.elapsed() >= self.threads {
                    return None;
                }
                let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(round);
                let bounds = Bounds { ordered: 12, random: 4, seed };
                let found = seen(&threads::one(*variant, Model::Ordered, bounds, round));
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }
}

fn seen(report: &Report) -> Option<Noticed> {
    report.failures.first().map(noticed)
}

fn noticed(failure: &Failure) -> Noticed {
    let when = match failure.fence {
        None => "no power cut",
        Some(_) if failure.returned => "after the return",
        Some(_) => "within",
    };
    let text = failure.text.replace(['\n', '|'], " ");
    let how: String = text.chars().take(90).collect();
    let by = format!("{}, {}: {when} {}", failure.variant.name(), failure.workload, failure.op);
    Noticed { by: by.replace('|', " "), how }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_that_a_workload_meets_is_found_in_the_source() {
        let workload = corpus::workload("names").unwrap();
        let bounds = Bounds { ordered: 2, random: 0, seed: 1 };
        let config = Config { variant: Variant::Heddle, model: Model::Ordered, bounds, only: None };
        let report = run_all(&[Task { workload, config }], 1, None, 1, &|_, _| {}).report;
        let written = written();
        let met: Vec<&Site> = report.coverage.sites.keys().filter(|site| is_engines(site)).collect();
        assert!(met.len() > 10, "{met:?}");
        let unknown: Vec<_> = met.iter().filter(|site| !written.contains_key(**site)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
