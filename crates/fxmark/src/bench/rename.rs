//! MWRL MWRM: rename files to free names.
//!
//! MWRL renames the worker's files from `N` to `N.2`, and then back: both count. MWRM moves them to the
//! shared directory; they are moved back with the clock stopped. The original's MWRL has one file, which it
//! renames from number to number.

use super::names::{DirChoice, check_presence, create_all, paths};
use super::{Bench, Next, Pass, WorkerContext};
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
    fn turn<O: Ops>(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.moved = 0;
        match worker.job.workload {
            Workload::MWRL => std::mem::swap(&mut self.from, &mut self.to),
            _ => self.from.iter().zip(&self.to).try_for_each(|(from, to)| worker.ops.rename(to, from))?,
        }
        Ok(())
    }
}

impl<O: Ops> Bench<O> for Rename {
    fn lay_out(worker: &WorkerContext<'_, O>) -> Result<()> {
        worker.ops.mkdir(&DirChoice::Shared.dir(0))
    }

    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let (job, me) = (worker.job, worker.me);
        worker.ops.mkdir(&DirChoice::Own.dir(me))?;
        let (mut from, mut to) = (paths(job, DirChoice::Own, me), paths(job, DirChoice::Shared, me));
        if job.workload == Workload::MWRL {
            to = (0..job.files).map(|n| RelPath::new(format_args!("{me}/{n}.2"))).collect();
            if job.faithful {
                from.truncate(1);
                to.truncate(1);
            }
        }
        create_all(worker.ops, &from)?;
        Ok(Rename { from, to, moved: 0, walker: 0 })
    }

    #[inline]
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        let (me, faithful) = (worker.me, worker.job.faithful);
        if faithful && worker.job.workload == Workload::MWRL {
            worker
                .ops
                .rename(&DirChoice::Own.file(me, self.walker), &DirChoice::Own.file(me, self.walker + 1))?;
            self.walker += 1;
        } else {
            if self.moved == self.from.len() {
                recorder.exclude(|| self.turn(worker))?;
            }
            let at = self.moved;
            match faithful {
                false => worker.ops.rename(&self.from[at], &self.to[at])?,
                true => worker
                    .ops
                    .rename(&DirChoice::Own.file(me, at as u64), &DirChoice::Shared.file(me, at as u64))?,
            }
            self.moved += 1;
        }
        recorder.writes += 1;
        Ok(Next::More)
    }

    fn age(&mut self, worker: &WorkerContext<'_, O>, pass: Pass) -> Result<()> {
        let mut pairs = self.from.iter().zip(&self.to);
        match pass {
            Pass::First => pairs.try_for_each(|(from, to)| worker.ops.rename(from, to)),
            Pass::Second => pairs.try_for_each(|(from, to)| worker.ops.rename(to, from)),
        }
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        if worker.job.faithful && worker.job.workload == Workload::MWRL {
            let (now, start) =
                (DirChoice::Own.file(worker.me, self.walker), DirChoice::Own.file(worker.me, 0));
            check_presence(worker.ops, &now, true)?;
            if self.walker > 0 {
                check_presence(worker.ops, &start, false)?;
                worker.ops.rename(&now, &start)?;
                self.walker = 0;
            }
            return Ok(());
        }
        for (at, (from, to)) in self.from.iter().zip(&self.to).enumerate() {
            check_presence(worker.ops, from, at >= self.moved)?;
            check_presence(worker.ops, to, at < self.moved)?;
        }
        Ok(())
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        if self.moved == self.from.len() {
            self.turn(worker)?;
        }
        let (from, to) = (&self.from[self.moved], &self.to[self.moved]);
        worker.ops.rename(from, to)?;
        self.moved += 1;
        check_presence(worker.ops, from, false)?;
        check_presence(worker.ops, to, true)
    }
}
