//! The workloads in turns: one operation of worker 0, one of worker 1, and so on, for tools that count what operations touch.
//!
//! Nothing is timed, and no two workers are inside the file system at once: what an operation touches does not depend on the
//! machine, on its number of cores, or on luck. Set-up and loop are those of a timed run. The checks are shorter: worker 0 alone
//! checks MRPM, and one operation of each worker is proved.
//!
//! State       `turn` counts the turns since the start of the run; worker `turn % workers` is next. It and the run's failure are under
//!             one mutex; each worker sleeps on a condition of its own.
//! Invariants  I1  a worker does anything at all only in its turn; a worker that fails ends the run for all.

use crate::bench::{Bench, Next, Pass, WorkerContext, dispatch};
use crate::config::{Config, Job};
use crate::ops::engine::Engine;
use crate::ops::{Failure, Ops, Result};
use crate::recorder::Recorder;
use crate::target::{Need, Session};
use crate::worker::panic_text;
use crate::{Target, Workload};
use heddle_vfs::FileSystem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// An observer of a run: it is told when each operation begins and ends.
pub trait Watch: Sync {
    /// The calling thread will be this worker.
    fn worker_starts(&self, worker: usize);
    /// The calling thread begins an operation as this worker; `counted`: the warm-up is over.
    fn begins(&self, worker: usize, counted: bool);
    /// The worker has ended the operation.
    fn ends(&self, worker: usize);
}

/// How long a run in turns is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rounds {
    /// Operations of each worker before any counts.
    pub warm_up: u32,
    /// Operations of each worker that count.
    pub counted: u32,
}

struct State {
    turn: usize,
    failure: Option<String>,
}

pub(crate) struct TurnRunner<'w> {
    state: Mutex<State>,
    wake: Vec<Condvar>,
    rounds: Rounds,
    watch: &'w dyn Watch,
}

/// Runs a workload in turns on a fresh file system of an in-process target.
///
/// # Errors
/// What failed first, in words: the target, a worker's call, a wrong byte.
pub fn run_in_turns(
    config: &Config,
    target: &Target,
    workload: Workload,
    workers: usize,
    rounds: Rounds,
    watch: &dyn Watch,
) -> std::result::Result<(), String> {
    let Target::InProcess { open, .. } = target else {
        return Err(format!("target {} does not run in this process", target.name()));
    };
    let job = config.job(workload, workers);
    let Session { fs, close, .. } = open(&Need::of(&job)).map_err(|e| format!("cannot be opened: {e:#}"))?;
    let turns = TurnRunner {
        state: Mutex::new(State { turn: 0, failure: None }),
        wake: (0..workers).map(|_| Condvar::new()).collect(),
        rounds,
        watch,
    };
    thread::scope(|scope| {
        for me in 0..workers {
            let (turns, job, fs) = (&turns, &job, fs.clone());
            scope.spawn(move || turns.run_worker(fs, job, me));
        }
    });
    drop(fs);
    match turns.state.into_inner().unwrap_or_else(PoisonError::into_inner).failure {
        Some(failure) => Err(failure),
        None => close().map_err(|e| format!("cannot be closed: {e:#}")),
    }
}

/// Runs the worker of a workload in turns.
fn dispatch_worker<O: Ops>(worker: &WorkerContext<'_, O>, turns: &TurnRunner<'_>) -> Result<()> {
    dispatch!(worker.job, O, turns, run_parts, worker)
}

impl TurnRunner<'_> {
    fn run_worker(&self, fs: Arc<dyn FileSystem>, job: &Job, me: usize) {
        self.watch.worker_starts(me);
        let run = std::panic::AssertUnwindSafe(|| {
            dispatch_worker(&WorkerContext { ops: &Engine::new(fs), job, me }, self)
        });
        let failure = match std::panic::catch_unwind(run) {
            Ok(Ok(()) | Err(Failure::Aborted)) => return,
            Ok(Err(failure)) => failure.to_string(),
            Err(panic) => format!("panicked: {}", panic_text(&*panic)),
        };
        self.state().failure.get_or_insert_with(|| format!("worker {me}: {failure}"));
        self.wake.iter().for_each(Condvar::notify_one);
    }

    /// Runs a worker part by part, each in its turn.
    pub fn run_parts<O: Ops, B: Bench<O>>(&self, worker: &WorkerContext<'_, O>) -> Result<()> {
        let first = worker.me == 0;
        let mut bench = self.in_turn(worker.me, || {
            if first {
                B::lay_out(worker)?;
            }
            B::prepare(worker)
        })?;
        for pass in [Pass::First, Pass::Second] {
            self.in_turn(worker.me, || bench.age(worker, pass))?;
        }
        self.in_turn(worker.me, || if first { worker.ops.write_back() } else { Ok(()) })?;
        let mut recorder = Recorder::new();
        for round in 0..self.rounds.warm_up + self.rounds.counted {
            let counted = round >= self.rounds.warm_up;
            let next = self.in_turn(worker.me, || {
                self.watch.begins(worker.me, counted);
                let next = bench.step(worker, &mut recorder);
                self.watch.ends(worker.me);
                next
            })?;
            if next == Next::Exhausted {
                return Err(Failure::Other("the file system is full"));
            }
        }
        // In MRPM each worker would check the whole tree, which takes longer than the run: worker 0 alone does.
        let checks = first || worker.job.workload != Workload::MRPM;
        self.in_turn(worker.me, || if checks { bench.check(worker) } else { Ok(()) })?;
        self.in_turn(worker.me, || bench.prove(worker))
    }

    /// Does a part when it is this worker's turn, and hands the turn on.
    fn in_turn<T>(&self, me: usize, part: impl FnOnce() -> Result<T>) -> Result<T> {
        let workers = self.wake.len();
        let must_wait = |state: &mut State| state.turn % workers != me && state.failure.is_none();
        let state = self.wake[me].wait_while(self.state(), must_wait).unwrap_or_else(PoisonError::into_inner);
        if state.failure.is_some() {
            return Err(Failure::Aborted);
        }
        drop(state);
        let done = part()?;
        self.state().turn += 1;
        self.wake[(me + 1) % workers].notify_one();
        Ok(done)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
