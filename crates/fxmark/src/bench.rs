//! The workloads' loops: one source for both worlds (C library calls and engine calls).

pub(crate) mod append;
pub(crate) mod blocks;
pub(crate) mod calls;
pub(crate) mod create;
pub(crate) mod hacc;
pub(crate) mod list;
pub(crate) mod lookup;
pub(crate) mod names;
pub(crate) mod oltp;
pub(crate) mod rename;
pub(crate) mod truncate;
pub(crate) mod unlink;
pub(crate) mod varmail;

use crate::config::Job;
use crate::ops::{Ops, Result};
use crate::path::RelPath;
use crate::recorder::Recorder;

/// A worker's context: the interface of the file system, the job, and the worker's number.
pub(crate) struct WorkerContext<'a, O> {
    pub ops: &'a O,
    pub job: &'a Job,
    pub me: usize,
}

impl<O: Ops> WorkerContext<'_, O> {
    /// Makes the worker's own directory, and an empty file in it. Returns the file's path.
    pub(crate) fn make_own_file(&self) -> Result<RelPath> {
        self.ops.mkdir(&RelPath::new(format_args!("{}", self.me)))?;
        let path = RelPath::new(format_args!("{}/data", self.me));
        self.ops.close(self.ops.create(&path)?)?;
        Ok(path)
    }
}

/// What to do after one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    More,
    /// The device is full: the original program stops here.
    Exhausted,
}

/// A pass of [`Bench::age`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    First,
    Second,
}

/// One kind of loop, for one worker.
pub(crate) trait Bench<O: Ops>: Sized {
    /// Worker 0 makes the files that all workers share.
    fn lay_out(_worker: &WorkerContext<'_, O>) -> Result<()> {
        Ok(())
    }

    /// Makes this worker's own files; after `lay_out`.
    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self>;

    /// One operation, counted in the recorder. All else here is the harness' own cost: keep it short.
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next>;

    /// Brings a short run to the state that a timed run reaches after a while: all candidates of an operation
    /// were used, and a directory has had all its names. It has two passes; all workers finish the first
    /// before any starts the second. The files are as before.
    fn age(&mut self, _worker: &WorkerContext<'_, O>, _pass: Pass) -> Result<()> {
        Ok(())
    }

    /// Compares the file system's content with the content that the operations imply.
    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()>;

    /// Runs one more operation and checks its effect at once.
    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()>;
}

/// Runs a worker of any workload: `$with::<Bench>(…)` with its kind of loop.
macro_rules! dispatch {
    ($job:expr, $ops:ty, $on:expr, $with:ident, $($argument:expr),*) => {{
        use $crate::Workload::*;
        use $crate::bench::{append, blocks, calls, create, hacc, list, lookup, oltp, rename, truncate, unlink, varmail};
        match $job.workload {
            _ if calls::are_of($job) => $on.$with::<$ops, calls::Calls<$ops>>($($argument),*),
            DRBL | DRBM | DRBH | DWOL | DWOM | DWSL | MIX50 | MIX75 | MIX25 => {
                $on.$with::<$ops, blocks::Blocks<$ops>>($($argument),*)
            }
            DWAL => $on.$with::<$ops, append::Append<$ops>>($($argument),*),
            DWTL => $on.$with::<$ops, truncate::Truncate<$ops>>($($argument),*),
            MRPL | MRPM | MRPH => $on.$with::<$ops, lookup::Lookup>($($argument),*),
            MRDL | MRDM => $on.$with::<$ops, list::List<$ops>>($($argument),*),
            MWCL | MWCM => $on.$with::<$ops, create::Create>($($argument),*),
            MWUL | MWUM => $on.$with::<$ops, unlink::Unlink>($($argument),*),
            MWRL | MWRM => $on.$with::<$ops, rename::Rename>($($argument),*),
            HACC => $on.$with::<$ops, hacc::Hacc>($($argument),*),
            OLTP => $on.$with::<$ops, oltp::Oltp<$ops>>($($argument),*),
            VARMAIL => $on.$with::<$ops, varmail::Varmail>($($argument),*),
        }
    }};
}
pub(crate) use dispatch;
