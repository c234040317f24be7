//! MWRL MWRM: rename files to free names.
//!
//! MWRL renames the worker's files from `N` to `N.2`, and then back: both count. MWRM moves them to the
//! shared directory; they are moved back with the clock stopped. The original's MWRL has one file, which it
//! renames from number to number.

use super::names::{DirChoice, create_all, is_there, paths};
use super::{Bench, Next, Pass, Stage};
use crate::Workload;
use crate::ops::{Ops, Result};
use crate::path::RelPath;
use crate::recorder::Recorder;

pub(crate) struct Rename {
    from: Vec<RelPath>,
    to: Vec<RelPath>,
    /// Files that have moved: `..moved` are at `to`, the others at `from`.
    moved: usize,
    /// The number of the original's one file.
    walker: u64,
}

impl Rename {
    /// All files have moved: starts the way back (MWRL), or makes it here (MWRM).
    fn turn<O: Ops>(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        self.moved = 0;
        match stage.job.workload {
            Workload::MWRL => std::mem::swap(&mut self.from, &mut self.to),
            _ => self.from.iter().zip(&self.to).try_for_each(|(from, to)| stage.ops.rename(to, from))?,
        }
        Ok(())
    }
}

impl<O: Ops> Bench<O> for Rename {
    fn lay_out(stage: &Stage<'_, O>) -> Result<()> {
        stage.ops.mkdir(&DirChoice::Shared.dir(0))
    }

    fn prepare(stage: &Stage<'_, O>) -> Result<Self> {
        let (job, me) = (stage.job, stage.me);
        stage.ops.mkdir(&DirChoice::Own.dir(me))?;
        let (mut from, mut to) = (paths(job, DirChoice::Own, me), paths(job, DirChoice::Shared, me));
        if job.workload == Workload::MWRL {
            to = (0..job.files).map(|n| RelPath::new(format_args!("{me}/{n}.2"))).collect();
            if job.faithful {
                from.truncate(1);
                to.truncate(1);
            }
        }
        create_all(stage.ops, &from)?;
        Ok(Rename { from, to, moved: 0, walker: 0 })
    }

    #[inline]
    fn step(&mut self, stage: &Stage<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        let (me, faithful) = (stage.me, stage.job.faithful);
        if faithful && stage.job.workload == Workload::MWRL {
            stage
                .ops
                .rename(&DirChoice::Own.file(me, self.walker), &DirChoice::Own.file(me, self.walker + 1))?;
            self.walker += 1;
        } else {
            if self.moved == self.from.len() {
                recorder.exclude(|| self.turn(stage))?;
            }
            let at = self.moved;
            match faithful {
                false => stage.ops.rename(&self.from[at], &self.to[at])?,
                true => stage
                    .ops
                    .rename(&DirChoice::Own.file(me, at as u64), &DirChoice::Shared.file(me, at as u64))?,
            }
            self.moved += 1;
        }
        recorder.writes += 1;
        Ok(Next::More)
    }

    fn grow_old(&mut self, stage: &Stage<'_, O>, pass: Pass) -> Result<()> {
        let mut pairs = self.from.iter().zip(&self.to);
        match pass {
            Pass::There => pairs.try_for_each(|(from, to)| stage.ops.rename(from, to)),
            Pass::Back => pairs.try_for_each(|(from, to)| stage.ops.rename(to, from)),
        }
    }

    fn check(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        if stage.job.faithful && stage.job.workload == Workload::MWRL {
            let (now, start) = (DirChoice::Own.file(stage.me, self.walker), DirChoice::Own.file(stage.me, 0));
            is_there(stage.ops, &now, true)?;
            if self.walker > 0 {
                is_there(stage.ops, &start, false)?;
                stage.ops.rename(&now, &start)?;
                self.walker = 0;
            }
            return Ok(());
        }
        for (at, (from, to)) in self.from.iter().zip(&self.to).enumerate() {
            is_there(stage.ops, from, at >= self.moved)?;
            is_there(stage.ops, to, at < self.moved)?;
        }
        Ok(())
    }

    fn prove(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        if self.moved == self.from.len() {
            self.turn(stage)?;
        }
        let (from, to) = (&self.from[self.moved], &self.to[self.moved]);
        stage.ops.rename(from, to)?;
        self.moved += 1;
        is_there(stage.ops, from, false)?;
        is_there(stage.ops, to, true)
    }
}
