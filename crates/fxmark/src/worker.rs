//! The life of a worker, the same for a thread and for a forked process.
//!
//! set-up -> warm-up -> timed loop -> check of what it left -> proof -> end, with a barrier before each (`ResultBoard`).
//! The proof: the workload goes on for a moment, all workers at once, and every operation is read back before the next.
//! The timed loop alone cannot show a lost write that a later one covers.

use crate::bench::{Bench, Next, Stage, dispatch};
use crate::ops::{Ops, Result};
use crate::recorder::{Recorder, now_ns};
use crate::result_board::{Phase, ResultBoard};
use std::mem::MaybeUninit;

/// Operations proved at most by one worker, and for how long at most.
const PROOF_OPERATIONS: u32 = 2048;
const PROOF_NS: u64 = 200_000_000;

/// Runs the worker of a workload, timed.
pub(crate) fn live<O: Ops>(stage: &Stage<'_, O>, board: &ResultBoard) {
    dispatch!(stage.job, O, board, live, stage);
}

impl ResultBoard {
    /// Runs a worker to its end; a failure or a panic is put on the board.
    pub(crate) fn live<O: Ops, B: Bench<O>>(&self, stage: &Stage<'_, O>) {
        let life = std::panic::AssertUnwindSafe(|| work::<O, B>(stage, self));
        match std::panic::catch_unwind(life) {
            Ok(Ok(())) | Ok(Err(crate::ops::Failure::Aborted)) => {}
            Ok(Err(failure)) => self.fail(stage.me, &failure.to_string()),
            Err(panic) => self.fail(stage.me, &format!("panicked: {}", panic_text(&*panic))),
        }
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

fn work<O: Ops, B: Bench<O>>(stage: &Stage<'_, O>, board: &ResultBoard) -> Result<()> {
    let first = stage.me == 0;
    let arrive_and_wait = |phase| {
        board.arrive();
        board.wait(phase)
    };
    if first {
        B::lay_out(stage)?;
    }
    arrive_and_wait(Phase::Prepare)?;
    let mut bench = B::prepare(stage)?;
    arrive_and_wait(Phase::Settle)?;
    if first {
        stage.ops.settle()?;
    }
    stage.ops.ready();
    arrive_and_wait(Phase::WarmUp)?;
    drive(&mut bench, stage, board, Phase::WarmUp, &mut Recorder::new())?;

    let mut recorder = Recorder::new();
    arrive_and_wait(Phase::Measure)?;
    let (cpu, start_ns) = (cpu_ns(), now_ns());
    drive(&mut bench, stage, board, Phase::Measure, &mut recorder)?;
    let (wall_ns, cpu_end) = (now_ns() - start_ns, cpu_ns());
    board.report(stage.me, &recorder, wall_ns, (cpu_end.0 - cpu.0, cpu_end.1 - cpu.1));

    arrive_and_wait(Phase::Check)?;
    bench.check(stage)?;
    arrive_and_wait(Phase::Prove)?;
    let start_ns = now_ns();
    for _ in 0..PROOF_OPERATIONS {
        bench.prove(stage)?;
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
    stage: &Stage<'_, O>,
    board: &ResultBoard,
    phase: Phase,
    recorder: &mut Recorder,
) -> Result<()> {
    while board.is(phase) {
        if recorder.operation(|recorder| bench.step(stage, recorder))? == Next::Exhausted {
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
