//! The workers of one run, and the leader that takes them through its phases.
//!
//! State      the board's phase, which only the leader changes; workers arrive at the end of each part.
//! Invariants I1  a worker that fails, dies or hangs ends the run with an error: every wait for it is bounded.
//!            I2  no worker outlives a run, except a thread that hangs inside an engine: it cannot be stopped; the
//!                run's error reports that, and what the thread holds is leaked.

mod attached;
pub(crate) mod processes;
pub(crate) mod threads;

use crate::config::Job;
use crate::result_board::{Phase, ResultBoard};
use std::time::{Duration, Instant};

/// How long workers may take to set up or to check: a device is filled, a file of gigabytes is read.
const SET_UP_MAX: Duration = Duration::from_secs(600);
/// How long a worker may take to end its last operation.
const LAST_OPERATION_MAX: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 60 });
/// How often the leader looks, while nothing is timed and while something is.
const LOOK: Duration = Duration::from_micros(200);
const LOOK_WHILE_TIMED: Duration = Duration::from_millis(20);

/// The leader's view of its workers.
pub(crate) trait WorkerPool {
    /// Sleeps. The error is the reason why the run must end (a signal).
    fn nap(&mut self, time: Duration) -> Result<(), String>;

    /// Fails if a worker has ended before it finished.
    fn look(&mut self) -> Result<(), String>;
}

/// Leads a run from set-up to end.
pub(crate) fn lead(board: &ResultBoard, job: &Job, pool: &mut dyn WorkerPool) -> Result<(), String> {
    let led = lead_parts(board, job, pool);
    match &led {
        Ok(()) => board.enter(Phase::End),
        Err(text) => {
            board.fail_run(text);
            board.enter(Phase::Abort);
        }
    }
    led
}

fn lead_parts(board: &ResultBoard, job: &Job, pool: &mut dyn WorkerPool) -> Result<(), String> {
    let warm_up =
        if job.faithful { Duration::ZERO } else { Duration::from_secs_f64((job.secs / 10.0).min(0.2)) };
    gather(board, pool, 1, SET_UP_MAX)?;
    board.enter(Phase::Prepare);
    gather(board, pool, 2, SET_UP_MAX)?;
    board.enter(Phase::WriteBack);
    gather(board, pool, 3, SET_UP_MAX)?;
    // The original has no warm-up: straight past it.
    board.enter(if warm_up.is_zero() { Phase::Ready } else { Phase::WarmUp });
    timed(board, pool, warm_up)?;
    board.enter(Phase::Ready);
    gather(board, pool, 4, LAST_OPERATION_MAX)?;
    board.enter(Phase::Measure);
    timed(board, pool, Duration::from_secs_f64(job.secs))?;
    board.enter(Phase::Stop);
    gather(board, pool, 5, LAST_OPERATION_MAX)?;
    board.enter(Phase::Check);
    gather(board, pool, 6, SET_UP_MAX)?;
    board.enter(Phase::Prove);
    gather(board, pool, 7, SET_UP_MAX)
}

fn timed(board: &ResultBoard, pool: &mut dyn WorkerPool, time: Duration) -> Result<(), String> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        pool.nap(left.min(LOOK_WHILE_TIMED))?;
        look(board, pool)?;
    }
}

fn gather(
    board: &ResultBoard,
    pool: &mut dyn WorkerPool,
    parts: usize,
    limit: Duration,
) -> Result<(), String> {
    let start = Instant::now();
    while board.arrived() < parts * board.workers() {
        look(board, pool)?;
        pool.nap(LOOK)?;
        if start.elapsed() > limit {
            return Err(format!("a worker did not end this part of the run within {limit:?}"));
        }
    }
    Ok(())
}

fn look(board: &ResultBoard, pool: &mut dyn WorkerPool) -> Result<(), String> {
    match board.has_failed() {
        true => Err("a worker failed".to_owned()),
        false => pool.look(),
    }
}
