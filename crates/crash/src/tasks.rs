//! Many runs in parallel: each worker takes the next workload of a list.

use crate::op::Workload;
use crate::rig::{Config, Failure, Nobody, Report, run};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// One run.
pub struct Task {
    /// The workload.
    pub workload: Workload,
    /// The parameters.
    pub config: Config,
}

/// Results of all runs.
#[derive(Default)]
pub struct Outcome {
    /// Number of runs.
    pub runs: usize,
    /// Sums and findings.
    pub report: Report,
    /// The time that it took.
    pub took: Duration,
}

/// Runs all tasks on `workers` threads, until all are done, `limit` has passed, or there are `failures_max`
/// findings. `progress` gets the number of finished runs from time to time.
pub fn run_all(
    tasks: &[Task],
    workers: usize,
    limit: Option<Duration>,
    failures_max: usize,
    progress: &(dyn Fn(usize, &Report) + Sync),
) -> Outcome {
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let sum = Mutex::new((0, Report::default()));
    let worker = || {
        loop {
            let Some(task) = tasks.get(next.fetch_add(1, SeqCst)) else { return };
            let enough = sum.lock().unwrap_or_else(PoisonError::into_inner).1.failures.len() >= failures_max;
            if enough || limit.is_some_and(|limit| start.elapsed() > limit) {
                return;
            }
            let report = run(&task.workload, &task.config, &mut Nobody).unwrap_or_else(|cannot| Report {
                failures: vec![no_run(task, cannot.to_string())],
                ..Report::default()
            });
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.0 += 1;
            sum.1.add(report);
            progress(sum.0, &sum.1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..workers.max(1) {
            scope.spawn(worker);
        }
    });
    let (runs, report) = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    Outcome { runs, report, took: start.elapsed() }
}

fn no_run(task: &Task, text: String) -> Failure {
    Failure {
        workload: task.workload.name.clone(),
        variant: task.config.variant,
        step: 0,
        op: String::new(),
        returned: false,
        fence: None,
        arrived: String::new(),
        text,
    }
}
