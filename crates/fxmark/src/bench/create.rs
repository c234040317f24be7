//! MWCL MWCM: create empty files.
//!
//! When the worker's set is complete, it is removed with the clock stopped. So a run needs bounded space, and
//! no directory grows with the speed of its file system. The original formats the name inside the loop, and
//! MWCM writes 4 KiB.

use super::names::{DirChoice, create_all, is_listed, is_there, paths};
use super::{Bench, Next, Pass, Stage};
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
    fn lay_out(stage: &Stage<'_, O>) -> Result<()> {
        stage.ops.mkdir(&DirChoice::Shared.dir(0))
    }

    fn prepare(stage: &Stage<'_, O>) -> Result<Self> {
        stage.ops.mkdir(&DirChoice::Own.dir(stage.me))?;
        let place = if stage.job.workload == Workload::MWCM { DirChoice::Shared } else { DirChoice::Own };
        Ok(Create { place, paths: paths(stage.job, place, stage.me), made: 0, zeros: Page::filled(0) })
    }

    #[inline]
    fn step(&mut self, stage: &Stage<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        if self.made == self.paths.len() {
            recorder.exclude(|| self.remove_all(stage.ops))?;
        }
        if !stage.job.faithful {
            stage.ops.close(stage.ops.create(&self.paths[self.made])?)?;
        } else {
            let file = stage.ops.create(&self.place.file(stage.me, self.made as u64))?;
            if self.place == DirChoice::Shared {
                stage.ops.write(&file, 0, self.zeros.as_bytes())?;
            }
            stage.ops.close(file)?;
        }
        self.made += 1;
        recorder.writes += 1;
        Ok(Next::More)
    }

    fn grow_old(&mut self, stage: &Stage<'_, O>, pass: Pass) -> Result<()> {
        match pass {
            Pass::There => {
                create_all(stage.ops, &self.paths)?;
                self.made = self.paths.len();
                Ok(())
            }
            Pass::Back => self.remove_all(stage.ops),
        }
    }

    fn check(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        self.paths[..self.made].iter().try_for_each(|path| is_there(stage.ops, path, true))?;
        is_listed(stage, self.place, |n| n < self.made as u64)
    }

    fn prove(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        if self.made == self.paths.len() {
            self.remove_all(stage.ops)?;
        }
        let path = &self.paths[self.made];
        is_there(stage.ops, path, false)?;
        stage.ops.close(stage.ops.create(path)?)?;
        self.made += 1;
        is_there(stage.ops, path, true)
    }
}
