//! The workers of one run, and whoever leads them through it.
//!
//! State      the board's phase, moved by the leader alone; workers arrive at the end of each part.
//! Invariants I1  a worker that fails, dies or hangs ends the run with an error: nobody waits for it for ever.
//!            I2  no worker outlives a run, but for a thread that hangs inside an engine: it cannot be stopped; the
//!                run's error says so and what it holds is leaked.

mod attached;
pub(crate) mod processes;
pub(crate) mod threads;

use crate::board::{Board, Phase};
use crate::config::Job;
use std::time::{Duration, Instant};

/// How long workers may take to set up or to check: a device is filled, a file of gigabytes is read.
const SET_UP_MAX: Duration = Duration::from_secs(600);
/// How long a worker may take to end its last operation.
const LAST_OPERATION_MAX: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 60 });
/// How often the leader looks, while nothing is timed and while something is.
const LOOK: Duration = Duration::from_micros(200);
const LOOK_WHILE_TIMED: Duration = Duration::from_millis(20);

/// How a leader sees its workers.
pub(crate) trait Crew {
    /// Sleeps; an error tells why the run must end (a signal).
    fn nap(&mut self, time: Duration) -> Result<(), String>;

    /// An error tells that a worker is gone that has not finished.
    fn look(&mut self) -> Result<(), String>;
}

/// Leads a run from set-up to end.
pub(crate) fn lead(board: &Board, job: &Job, crew: &mut dyn Crew) -> Result<(), String> {
    let led = lead_parts(board, job, crew);
    match &led {
        Ok(()) => board.enter(Phase::End),
        Err(text) => {
            board.fail_run(text);
            board.enter(Phase::Abort);
        }
    }
    led
}

fn lead_parts(board: &Board, job: &Job, crew: &mut dyn Crew) -> Result<(), String> {
    let warm_up =
        if job.faithful { Duration::ZERO } else { Duration::from_secs_f64((job.secs / 10.0).min(0.2)) };
    gather(board, crew, 1, SET_UP_MAX)?;
    board.enter(Phase::Prepare);
    gather(board, crew, 2, SET_UP_MAX)?;
    board.enter(Phase::Settle);
    gather(board, crew, 3, SET_UP_MAX)?;
    // The original has no warm-up: straight past it.
    board.enter(if warm_up.is_zero() { Phase::Ready } else { Phase::WarmUp });
    timed(board, crew, warm_up)?;
    board.enter(Phase::Ready);
    gather(board, crew, 4, LAST_OPERATION_MAX)?;
    board.enter(Phase::Measure);
    timed(board, crew, Duration::from_secs_f64(job.secs))?;
    board.enter(Phase::Stop);
    gather(board, crew, 5, LAST_OPERATION_MAX)?;
    board.enter(Phase::Check);
    gather(board, crew, 6, SET_UP_MAX)?;
    board.enter(Phase::Prove);
    gather(board, crew, 7, SET_UP_MAX)
}

fn timed(board: &Board, crew: &mut dyn Crew, time: Duration) -> Result<(), String> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        crew.nap(left.min(LOOK_WHILE_TIMED))?;
        look(board, crew)?;
    }
}

fn gather(board: &Board, crew: &mut dyn Crew, parts: usize, limit: Duration) -> Result<(), String> {
    let start = Instant::now();
    while board.arrived() < parts * board.workers() {
        look(board, crew)?;
        crew.nap(LOOK)?;
        if start.elapsed() > limit {
            return Err(format!("a worker did not end this part of the run within {limit:?}"));
        }
    }
    Ok(())
}

fn look(board: &Board, crew: &mut dyn Crew) -> Result<(), String> {
    match board.has_failed() {
        true => Err("a worker failed".to_owned()),
        false => crew.look(),
    }
}
