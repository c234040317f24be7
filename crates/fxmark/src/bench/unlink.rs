//! MWUL MWUM: unlink empty files; an empty set is made again with the clock stopped.

use super::names::{DirChoice, check_listing, check_presence, create_all, paths};
use super::{Bench, Next, WorkerContext};
use crate::Workload;
use crate::ops::{Ops, Result};
use crate::path::RelPath;
use crate::recorder::Recorder;

pub(crate) struct Unlink {
    place: DirChoice,
    paths: Vec<RelPath>,
    /// Removed files: `paths[..gone]`.
    gone: usize,
}

impl Unlink {
    fn make_all<O: Ops>(&mut self, ops: &O) -> Result<()> {
        create_all(ops, &self.paths[..std::mem::take(&mut self.gone)])
    }
}

impl<O: Ops> Bench<O> for Unlink {
    fn lay_out(worker: &WorkerContext<'_, O>) -> Result<()> {
        worker.ops.mkdir(&DirChoice::Shared.dir(0))
    }

    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        worker.ops.mkdir(&DirChoice::Own.dir(worker.me))?;
        let place = if worker.job.workload == Workload::MWUM { DirChoice::Shared } else { DirChoice::Own };
        let paths = paths(worker.job, place, worker.me);
        create_all(worker.ops, &paths)?;
        Ok(Unlink { place, paths, gone: 0 })
    }

    #[inline]
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        if self.gone == self.paths.len() {
            recorder.exclude(|| self.make_all(worker.ops))?;
        }
        match worker.job.faithful {
            false => worker.ops.unlink(&self.paths[self.gone])?,
            true => worker.ops.unlink(&self.place.file(worker.me, self.gone as u64))?,
        }
        self.gone += 1;
        recorder.writes += 1;
        Ok(Next::More)
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.paths[..self.gone].iter().try_for_each(|path| check_presence(worker.ops, path, false))?;
        check_listing(worker, self.place, |n| n >= self.gone as u64)
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        if self.gone == self.paths.len() {
            self.make_all(worker.ops)?;
        }
        let path = &self.paths[self.gone];
        check_presence(worker.ops, path, true)?;
        worker.ops.unlink(path)?;
        self.gone += 1;
        check_presence(worker.ops, path, false)
    }
}
