//! All tests of the rig, at random, until there are enough states.
//!
//! In each round every variant runs two long lists, some sequences of three, a workload of the corpus and a
//! run of several threads, under one model of the power cut. A list that fails is shortened before it is
//! printed.

use crate::cut::Bounds;
use crate::op::Workload;
use crate::rig::{Config, Failure, Report};
use crate::tasks::{Task, run_all};
use crate::{ace, corpus, mixed, shrink, threads};
use heddle_nvmfs::Variant;
use heddle_pmem::Model;
use std::time::{Duration, Instant};

/// The models in turn: the models of most machines come twice.
const MODELS: [Model; 6] =
    [Model::Ordered, Model::Process, Model::Ordered, Model::Pessimistic, Model::Process, Model::Eadr];
/// Sequences of three per round.
const SEQUENCES: usize = 4;
/// How long a failing list may be shortened.
const SHRINK: Duration = Duration::from_secs(120);

/// Parameters of a mix.
pub struct Mix {
    /// The variants.
    pub variants: Vec<Variant>,
    /// Only this model.
    pub model: Option<Model>,
    /// Most images per cut in order, if given.
    pub images: Option<usize>,
    /// Further images at random, if given.
    pub random: Option<usize>,
    /// Seed of lists, sequences, schedules and random images.
    pub seed: u64,
    /// Ends when so many states were formed,
    pub states: u64,
    /// or so much time has passed.
    pub limit: Option<Duration>,
    /// Workloads in parallel.
    pub jobs: usize,
}

impl Mix {
    /// Runs up to the first finding. Returns the number of runs, and their results.
    pub fn run(&self) -> (usize, Report) {
        let (start, mut told) = (Instant::now(), Instant::now());
        let (mut runs, mut sum) = (0, Report::default());
        for round in 0.. {
            let left = self.limit.map(|limit| limit.saturating_sub(start.elapsed()));
            if left == Some(Duration::ZERO) || sum.states >= self.states || !sum.failures.is_empty() {
                break;
            }
            let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(round);
            let model = self.model.unwrap_or(MODELS[round as usize % MODELS.len()]);
            let tasks = self.tasks(round, seed, model);
            let outcome = run_all(&tasks, self.jobs, left, 1, &|_, _| {});
            runs += outcome.runs;
            if let Some(failure) = outcome.report.failures.first() {
                smaller(&tasks, failure);
            }
            sum.add(outcome.report);
            for variant in &self.variants {
                let bounds =
                    Bounds { ordered: self.images.unwrap_or(12), random: self.random.unwrap_or(4), seed };
                sum.add(threads::one(*variant, model, bounds, round));
                runs += 1;
            }
            if told.elapsed() > Duration::from_secs(30) {
                told = Instant::now();
                let Report { cuts, states, images, .. } = &sum;
                eprintln!("round {round}: {runs} runs, {cuts} cuts, {states} states, {images} images");
            }
        }
        (runs, sum)
    }

    fn tasks(&self, round: u64, seed: u64, model: Model) -> Vec<Task> {
        let bounds = Bounds { ordered: self.images.unwrap_or(24), random: self.random.unwrap_or(24), seed };
        let corpus = corpus::workloads();
        let mut workloads = ace::sequences(3, Some((SEQUENCES, seed)));
        workloads.extend([mixed::list(seed), mixed::list(!seed)]);
        workloads.push(corpus[round as usize % corpus.len()].clone());
        let task = |workload: &Workload, variant: &Variant| Task {
            workload: workload.clone(),
            config: Config { variant: *variant, model, bounds, only: None },
        };
        workloads.iter().flat_map(|w| self.variants.iter().map(|v| task(w, v))).collect()
    }
}

/// Prints the shortest list that fails, for `heddle crash`.
fn smaller(tasks: &[Task], failure: &Failure) {
    println!("FOUND {failure}");
    let is_it =
        |task: &&Task| task.workload.name == failure.workload && task.config.variant == failure.variant;
    let Some(task) = tasks.iter().find(is_it) else { return };
    if let Some((workload, failure)) = shrink::shrink(&task.workload, &task.config, SHRINK) {
        println!("It takes, as a file for heddle crash --variant {}:\n{workload}", failure.variant.name());
        println!("which fails so: {failure}");
    }
}
