//! MWCL MWCM: create empty files.
//!
//! When the worker's set is complete, it is removed with the clock stopped. So a run needs bounded space, and
//! no directory grows with the speed of its file system. The original formats the name inside the loop, and
//! MWCM writes 4 KiB.

use super::names::{DirChoice, check_listing, check_presence, create_all, paths};
use super::{Bench, Next, Pass, WorkerContext};
use crate::Workload;
use crate::ops::{Ops, Result};
use crate::page_pattern::Page;
use crate::path::RelPath;
use crate::recorder::Recorder;
use zerocopy::IntoBytes;

pub(crate) struct Create {
    place: DirChoice,
    paths: Vec<RelPath>,
    /// Files that exist: `paths[..made]`.
    made: usize,
    zeros: Box<Page>,
}

impl Create {
    fn remove_all<O: Ops>(&mut self, ops: &O) -> Result<()> {
        self.paths[..std::mem::take(&mut self.made)].iter().try_for_each(|path| ops.unlink(path))
    }
}

impl<O: Ops> Bench<O> for Create {
    fn lay_out(worker: &WorkerContext<'_, O>) -> Result<()> {
        worker.ops.mkdir(&DirChoice::Shared.dir(0))
    }

    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        worker.ops.mkdir(&DirChoice::Own.dir(worker.me))?;
        let place = if worker.job.workload == Workload::MWCM { DirChoice::Shared } else { DirChoice::Own };
        Ok(Create { place, paths: paths(worker.job, place, worker.me), made: 0, zeros: Page::filled(0) })
    }

    #[inline]
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        if self.made == self.paths.len() {
            recorder.exclude(|| self.remove_all(worker.ops))?;
        }
        if !worker.job.faithful {
            worker.ops.close(worker.ops.create(&self.paths[self.made])?)?;
        } else {
            let file = worker.ops.create(&self.place.file(worker.me, self.made as u64))?;
            if self.place == DirChoice::Shared {
                worker.ops.write(&file, 0, self.zeros.as_bytes())?;
            }
            worker.ops.close(file)?;
        }
        self.made += 1;
        recorder.writes += 1;
        Ok(Next::More)
    }

    fn age(&mut self, worker: &WorkerContext<'_, O>, pass: Pass) -> Result<()> {
        match pass {
            Pass::First => {
                create_all(worker.ops, &self.paths)?;
                self.made = self.paths.len();
                Ok(())
            }
            Pass::Second => self.remove_all(worker.ops),
        }
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.paths[..self.made].iter().try_for_each(|path| check_presence(worker.ops, path, true))?;
        check_listing(worker, self.place, |n| n < self.made as u64)
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        if self.made == self.paths.len() {
            self.remove_all(worker.ops)?;
        }
        let path = &self.paths[self.made];
        check_presence(worker.ops, path, false)?;
        worker.ops.close(worker.ops.create(path)?)?;
        self.made += 1;
        check_presence(worker.ops, path, true)
    }
}
