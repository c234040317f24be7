//! The whole benchmark: every workload on every number of cores against every target, repeated.
//!
//! Order  the targets of a cell run one after the other in each repeat, so that slow changes of the machine meet all of
//!        them alike; each repeat starts with the next target, so that none always follows the same neighbour.
//! Again  a run in which the machine's lines were slow is taken again (`line_latency`).

use crate::config::{Config, ConfigError, Job};
use crate::environment::Environment;
use crate::line_latency::LineLatency;
use crate::machine::allowed_cpus;
use crate::report::{Report, Run};
use crate::result_board::ResultBoard;
use crate::target::{Need, Opener, Session, Target};
use crate::worker_pool::processes::Home;
use crate::worker_pool::{processes, threads};
use crate::{Machine, WorkersAs, Workload, line_latency};
use std::io::Write;
use std::sync::Arc;

/// Watches a benchmark.
pub trait Progress {
    /// So many runs will be made.
    fn start(&mut self, _runs: usize) {}

    /// A run begins.
    fn run_begins(&mut self, _workload: Workload, _target: &str, _cores: usize, _repeat: u32) {}

    /// A run has ended.
    fn run_ends(&mut self, _run: &Run) {}
}

impl Progress for () {}

/// Progress without a terminal: a line for each run that has ended.
pub struct Lines<W>(pub W);

impl<W: Write> Progress for Lines<W> {
    fn run_ends(&mut self, run: &Run) {
        // A log that cannot be written must not stop a benchmark.
        let _ = writeln!(self.0, "{run}");
    }
}

/// Runs the benchmark. A run that fails is a failed run of the report, not an error.
///
/// # Errors
/// A usage error, found before anything runs.
pub fn run(config: &Config, progress: &mut dyn Progress) -> Result<Report, ConfigError> {
    config.check()?;
    let cpus = allowed_cpus();
    let cells = config.workloads.len() * config.cores.len() * config.targets.len();
    progress.start(cells * config.repeat as usize);
    let (mut runs, mut crossings) =
        (Vec::new(), LineLatency::new(|| line_latency::between(&cpus), config.retakes));
    for &workload in &config.workloads {
        for &cores in &config.cores {
            let job = config.job(workload, cores);
            for repeat in 0..config.repeat {
                for at in 0..config.targets.len() {
                    let target = &config.targets[(at + repeat as usize) % config.targets.len()];
                    progress.run_begins(workload, target.name(), cores, repeat);
                    let take = || one(target, &job, &cpus, repeat);
                    let run = if cores > 1 { crossings.steady(take) } else { take() };
                    progress.run_ends(&run);
                    runs.push(run);
                }
            }
        }
    }
    Ok(Report::new(config, Machine::here(), runs))
}

fn one(target: &Target, job: &Job, cpus: &[usize], repeat: u32) -> Run {
    let need = Need::of(job);
    let board = match target {
        Target::InProcess { open, workers_as, .. } => in_process(open, *workers_as, &need, job, cpus),
        Target::Kernel(kernel) => Environment::ram_disk(*kernel, &need)
            .and_then(|on| processes::run(&Home::Environment(on), job, cpus)),
        Target::Directory { path, .. } => {
            processes::run(&Home::Environment(Environment::Inside { path: path.clone() }), job, cpus)
        }
        Target::Elsewhere { name, run } => {
            return match run(job.workload, job.workers) {
                Ok(run) => Run { target: name.clone(), repeat, ..run },
                Err(error) => Run::failed(target, job, repeat, error),
            };
        }
    };
    match board {
        Ok(board) => Run::measured(target, job, repeat, &board),
        Err(error) => Run::failed(target, job, repeat, error),
    }
}

fn in_process(
    open: &Opener,
    workers_as: WorkersAs,
    need: &Need,
    job: &Job,
    cpus: &[usize],
) -> Result<Arc<ResultBoard>, String> {
    let Session { fs, attach, close } = open(need).map_err(|e| format!("cannot be opened: {e:#}"))?;
    let ran = match (workers_as, attach) {
        // Threads that hang hold the file system, so it stays open.
        (WorkersAs::Threads, _) => Ok(threads::run(fs, job, cpus)?),
        (WorkersAs::Processes, Some(attach)) => {
            drop(fs);
            processes::run(&Home::Engine(attach), job, cpus)
        }
        (WorkersAs::Processes, None) => {
            Err("this engine works in one process only: its workers are threads".to_owned())
        }
    };
    match (ran, close()) {
        // The first failure says more.
        (Ok(board), Err(error)) if board.failure().is_none() => Err(format!("cannot be closed: {error:#}")),
        (ran, _) => ran,
    }
}
