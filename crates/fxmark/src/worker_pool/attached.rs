//! The life of a worker process that calls an engine: it attaches, works, and detaches.
//!
//! A forked worker cannot use the engine state that fork copies. Each thread of an engine has its own state
//! there (its lane, its identity), and two processes that use one such state would corrupt it. So each worker
//! attaches to the file system itself. To the engine it is one more process, whose death can be detected and
//! settled.
//!
//! Invariants I1  the leader does not attach: it calls no engine, and has nothing that could be left behind.
//!            I2  a worker leaves the file system before it ends: a worker that is still attached when the run is over has died.
//! Clock      a worker's own mappings are empty at first. The files are made meanwhile; then, before anything is timed, all pages are
//!            mapped (`Ops::ready`), as they are in a process that has mounted the image itself.

use crate::bench::WorkerContext;
use crate::config::Job;
use crate::ops::engine::Engine;
use crate::result_board::ResultBoard;
use crate::target::Attach;
use crate::worker;

pub(super) fn run_worker(attach: &Attach, job: &Job, me: usize, board: &ResultBoard) {
    let attached = match attach() {
        Ok(attached) => attached,
        Err(error) => return board.fail(me, &format!("cannot attach: {error:#}")),
    };
    let ops = Engine::attached(attached.fs, attached.map);
    worker::dispatch_worker(&WorkerContext { ops: &ops, job, me }, board);
    drop(ops);
    (attached.leave)();
}
