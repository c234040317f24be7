//! MWUL MWUM: unlink empty files; an empty set is made again with the clock stopped.

use super::names::{DirChoice, create_all, is_listed, is_there, paths};
use super::{Bench, Next, Stage};
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
    fn lay_out(stage: &Stage<'_, O>) -> Result<()> {
        stage.ops.mkdir(&DirChoice::Shared.dir(0))
    }

    fn prepare(stage: &Stage<'_, O>) -> Result<Self> {
        stage.ops.mkdir(&DirChoice::Own.dir(stage.me))?;
        let place = if stage.job.workload == Workload::MWUM { DirChoice::Shared } else { DirChoice::Own };
        let paths = paths(stage.job, place, stage.me);
        create_all(stage.ops, &paths)?;
        Ok(Unlink { place, paths, gone: 0 })
    }

    #[inline]
    fn step(&mut self, stage: &Stage<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        if self.gone == self.paths.len() {
            recorder.exclude(|| self.make_all(stage.ops))?;
        }
        match stage.job.faithful {
            false => stage.ops.unlink(&self.paths[self.gone])?,
            true => stage.ops.unlink(&self.place.file(stage.me, self.gone as u64))?,
        }
        self.gone += 1;
        recorder.writes += 1;
        Ok(Next::More)
    }

    fn check(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        self.paths[..self.gone].iter().try_for_each(|path| is_there(stage.ops, path, false))?;
        is_listed(stage, self.place, |n| n >= self.gone as u64)
    }

    fn prove(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        if self.gone == self.paths.len() {
            self.make_all(stage.ops)?;
        }
        let path = &self.paths[self.gone];
        is_there(stage.ops, path, true)?;
        stage.ops.unlink(path)?;
        self.gone += 1;
        is_there(stage.ops, path, false)
    }
}
