//! What a worker does, the same for a thread and for a forked process.
//!
//! set-up -> warm-up -> timed loop -> check of what it left -> proof -> end, with a barrier before each (`ResultBoard`).
//! The proof: the workload goes on for a moment, all workers at once, and every operation is read back before the next.
//! The timed loop alone cannot show a lost write that a later one covers.

use crate::bench::{Bench, Next, WorkerContext, dispatch};
use crate::ops::{Ops, Result};
use crate::recorder::{Recorder, now_ns};
use crate::result_board::{Phase, ResultBoard};
use std::mem::MaybeUninit;

/// Operations proved at most by one worker, and for how long at most.
const PROOF_OPERATIONS: u32 = 2048;
const PROOF_NS: u64 = 200_000_000;

/// Runs the worker of a workload, timed.
pub(crate) fn dispatch_worker<O: Ops>(worker: &WorkerContext<'_, O>, board: &ResultBoard) {
    dispatch!(worker.job, O, board, run_worker, worker);
}

impl ResultBoard {
    /// Runs a worker to its end; a failure or a panic is put on the board.
    pub(crate) fn run_worker<O: Ops, B: Bench<O>>(&self, worker: &WorkerContext<'_, O>) {
        let run = std::panic::AssertUnwindSafe(|| run_phases::<O, B>(worker, self));
        match std::panic::catch_unwind(run) {
            Ok(Ok(())) | Ok(Err(crate::ops::Failure::Aborted)) => {}
            Ok(Err(failure)) => self.fail(worker.me, &failure.to_string()),
            Err(panic) => self.fail(worker.me, &format!("panicked: {}", panic_text(&*panic))),
        }
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

fn run_phases<O: Ops, B: Bench<O>>(worker: &WorkerContext<'_, O>, board: &ResultBoard) -> Result<()> {
    let first = worker.me == 0;
    let arrive_and_wait = |phase| {
        board.arrive();
        board.wait(phase)
    };
    if first {
        B::lay_out(worker)?;
    }
    arrive_and_wait(Phase::Prepare)?;
    let mut bench = B::prepare(worker)?;
    arrive_and_wait(Phase::WriteBack)?;
    if first {
        worker.ops.write_back()?;
    }
    worker.ops.ready();
    arrive_and_wait(Phase::WarmUp)?;
    drive(&mut bench, worker, board, Phase::WarmUp, &mut Recorder::new())?;

    let mut recorder = Recorder::new();
    arrive_and_wait(Phase::Measure)?;
    let (cpu, start_ns) = (cpu_ns(), now_ns());
    drive(&mut bench, worker, board, Phase::Measure, &mut recorder)?;
    let (wall_ns, cpu_end) = (now_ns() - start_ns, cpu_ns());
    board.report(worker.me, &recorder, wall_ns, (cpu_end.0 - cpu.0, cpu_end.1 - cpu.1));

    arrive_and_wait(Phase::Check)?;
    bench.check(worker)?;
    arrive_and_wait(Phase::Prove)?;
    let start_ns = now_ns();
    for _ in 0..PROOF_OPERATIONS {
        bench.prove(worker)?;
        if now_ns() - start_ns > PROOF_NS {
            break;
        }
    }
    board.arrive();
    Ok(())
}

#[inline]
fn drive<O: Ops, B: Bench<O>>(
    bench: &mut B,
    worker: &WorkerContext<'_, O>,
    board: &ResultBoard,
    phase: Phase,
    recorder: &mut Recorder,
) -> Result<()> {
    while board.is(phase) {
        if recorder.operation(|recorder| bench.step(worker, recorder))? == Next::Exhausted {
            break;
        }
    }
    Ok(())
}

/// User and system time of the calling thread in ns. The workers' own, not `/proc/stat`: that counts the neighbours
/// too.
fn cpu_ns() -> (u64, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: room for the answer; zero bytes are a valid one should the call fail, which it cannot.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |at: libc::timeval| at.tv_sec as u64 * 1_000_000_000 + at.tv_usec as u64 * 1000;
    (ns(usage.ru_utime), ns(usage.ru_stime))
}
