//! The workloads' loops, written once for both worlds.

pub(crate) mod append;
pub(crate) mod blocks;
pub(crate) mod create;
pub(crate) mod list;
pub(crate) mod lookup;
pub(crate) mod names;
pub(crate) mod rename;
pub(crate) mod truncate;
pub(crate) mod unlink;

use crate::Workload;
use crate::board::Board;
use crate::meter::Meter;
use crate::ops::{Ops, Result};
use crate::worker::{self, Next, Stage};

/// One kind of loop, as one worker runs it.
pub(crate) trait Bench<O: Ops>: Sized {
    /// What all workers share, made by worker 0.
    fn lay_out(_stage: &Stage<'_, O>) -> Result<()> {
        Ok(())
    }

    /// What is this worker's own; after `lay_out`.
    fn prepare(stage: &Stage<'_, O>) -> Result<Self>;

    /// One operation, counted in the meter. The rest of what it does is the harness' own cost: keep it short.
    fn step(&mut self, stage: &Stage<'_, O>, meter: &mut Meter) -> Result<Next>;

    /// Compares what the file system holds with what the operations so far imply.
    fn check(&mut self, stage: &Stage<'_, O>) -> Result<()>;

    /// One operation more, its effect checked at once.
    fn prove(&mut self, stage: &Stage<'_, O>) -> Result<()>;
}

/// Runs the worker of a workload.
pub(crate) fn live<O: Ops>(stage: &Stage<'_, O>, board: &Board) {
    use Workload::*;
    match stage.job.workload {
        DRBL | DRBM | DRBH | DWOL | DWOM | DWSL | MIX50 | MIX75 | MIX25 => {
            worker::live::<O, blocks::Blocks<O>>(stage, board);
        }
        DWAL => worker::live::<O, append::Append<O>>(stage, board),
        DWTL => worker::live::<O, truncate::Truncate<O>>(stage, board),
        MRPL | MRPM | MRPH => worker::live::<O, lookup::Lookup>(stage, board),
        MRDL | MRDM => worker::live::<O, list::List<O>>(stage, board),
        MWCL | MWCM => worker::live::<O, create::Create>(stage, board),
        MWUL | MWUM => worker::live::<O, unlink::Unlink>(stage, board),
        MWRL | MWRM => worker::live::<O, rename::Rename>(stage, board),
    }
}
