//! Workers as threads of this process, for engines opened in it.

use super::{WorkerPool, lead};
use crate::bench::WorkerContext;
use crate::config::Job;
use crate::machine::pin;
use crate::ops::engine::Engine;
use crate::result_board::ResultBoard;
use crate::worker;
use heddle_vfs::FileSystem;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long threads may take to leave after the run has failed, before what they hold is leaked.
const LEAVE: Duration = Duration::from_secs(5);

struct Threads(Vec<JoinHandle<()>>);

impl WorkerPool for Threads {
    fn nap(&mut self, time: Duration) -> Result<(), String> {
        thread::sleep(time);
        Ok(())
    }

    fn look(&mut self) -> Result<(), String> {
        // A thread cannot die alone: its panics are caught and put on the board.
        Ok(())
    }
}

/// Runs a job on an engine. The board carries results and failures; an `Err` is a run that could not be made, or
/// threads that did not come back and still hold the file system.
pub(crate) fn run(fs: Arc<dyn FileSystem>, job: &Job, cpus: &[usize]) -> Result<Arc<ResultBoard>, String> {
    let board =
        Arc::new(ResultBoard::new(job.workers).map_err(|e| format!("cannot map the shared page: {e}"))?);
    let mut pool = Threads(Vec::new());
    for (me, cpu) in cpus[..job.workers].iter().copied().enumerate() {
        let (shared, job, fs) = (board.clone(), job.clone(), fs.clone());
        let run = move || match pin(cpu) {
            Ok(()) => {
                worker::dispatch_worker(&WorkerContext { ops: &Engine::new(fs), job: &job, me }, &shared)
            }
            Err(error) => shared.fail(me, &format!("cannot be pinned to CPU {cpu}: {error}")),
        };
        let thread = thread::Builder::new().name(format!("fxmark-{me}")).spawn(run);
        match thread {
            Ok(thread) => pool.0.push(thread),
            Err(error) => board.fail(me, &format!("cannot be started: {error}")),
        }
    }
    drop(fs);
    let led = lead(&board, job, &mut pool);
    let start = Instant::now();
    while led.is_err() && start.elapsed() < LEAVE && !pool.0.iter().all(JoinHandle::is_finished) {
        thread::sleep(Duration::from_millis(5));
    }
    if led.is_err() && !pool.0.iter().all(JoinHandle::is_finished) {
        let text = board.failure().unwrap_or_default();
        return Err(format!(
            "{text}; a worker hangs inside the engine, so its image stays mounted until this program ends"
        ));
    }
    pool.0.into_iter().for_each(|thread| drop(thread.join()));
    Ok(board)
}
