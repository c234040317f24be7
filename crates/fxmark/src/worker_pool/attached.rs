//! The life of a worker that is a process and calls an engine: it comes in, works, and leaves.
//!
//! What a fork copies is of no use to it. Threads of an engine have things of their own (which part of its state they work with, who they
//! are to the others), and a forked worker finds its parent's in its memory: two that work with one would spoil it. So each worker has
//! the engine give it a file system of its own, and is to the engine one more process, whose death can be told and settled.
//!
//! Invariants I1  the leader does not attach: it calls no engine, and has nothing that could be left behind.
//!            I2  a worker leaves the file system before it ends: a worker that is still attached when the run is over has died.
//! Clock      a worker's own mappings are empty at first. The files are made meanwhile; then, before anything is timed, all pages are
//!            mapped (`Ops::ready`), as they are in a process that has mounted the image itself.

use crate::bench::Stage;
use crate::config::Job;
use crate::ops::engine::Engine;
use crate::result_board::ResultBoard;
use crate::target::Attach;
use crate::worker;

pub(super) fn live(attach: &Attach, job: &Job, me: usize, board: &ResultBoard) {
    let attached = match attach() {
        Ok(attached) => attached,
        Err(error) => return board.fail(me, &format!("cannot attach: {error:#}")),
    };
    let ops = Engine::attached(attached.fs, attached.map);
    worker::live(&Stage { ops: &ops, job, me }, board);
    drop(ops);
    (attached.leave)();
}
