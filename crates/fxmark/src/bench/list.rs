//! MRDL MRDM: list a directory, one entry per operation, from the start again at its end.
//!
//! `.` and `..`, which engines do not have, are not counted. The number of entries of every pass is checked, and names
//! once after the loop. The original never rewinds and counts its calls at the end of the directory.

use super::names::{DirChoice, create_all, is_listed, paths};
use super::{Bench, Next, Stage};
use crate::Workload;
use crate::ops::{Failure, Ops, Result};
use crate::recorder::Recorder;

pub(crate) struct List<O: Ops> {
    dir: O::Dir,
    place: DirChoice,
    /// Entries seen in this pass, and in a complete one.
    seen: u64,
    entries: u64,
    /// True once it has listed an entry. A directory opened while another worker filled it may not show later
    /// entries (btrfs).
    begun: bool,
}

fn place(workload: Workload) -> DirChoice {
    if workload == Workload::MRDM { DirChoice::Shared } else { DirChoice::Own }
}

impl<O: Ops> List<O> {
    fn rewind(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        Failure::wrong("number of entries", self.seen, self.entries)?;
        self.seen = 0;
        stage.ops.rewind(&mut self.dir)
    }
}

impl<O: Ops> Bench<O> for List<O> {
    fn lay_out(stage: &Stage<'_, O>) -> Result<()> {
        let place = place(stage.job.workload);
        if place == DirChoice::Shared { stage.ops.mkdir(&place.dir(0)) } else { Ok(()) }
    }

    fn prepare(stage: &Stage<'_, O>) -> Result<Self> {
        let place = place(stage.job.workload);
        if place == DirChoice::Own {
            stage.ops.mkdir(&place.dir(stage.me))?;
        }
        create_all(stage.ops, &paths(stage.job, place, stage.me))?;
        let dirs = if place == DirChoice::Shared { stage.job.workers as u64 } else { 1 };
        let entries = dirs * u64::from(stage.job.files);
        Ok(List { dir: stage.ops.open_dir(&place.dir(stage.me))?, place, seen: 0, entries, begun: false })
    }

    #[inline]
    fn step(&mut self, stage: &Stage<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        if !self.begun {
            self.begun = true;
            stage.ops.rewind(&mut self.dir)?;
        }
        loop {
            match stage.ops.next_name(&mut self.dir)? {
                Some(name) if name[0] == b'.' && !stage.job.faithful => continue,
                None if !stage.job.faithful => self.rewind(stage)?,
                name => {
                    self.seen += u64::from(name.is_some());
                    recorder.reads += 1;
                    return Ok(Next::More);
                }
            }
        }
    }

    fn check(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        is_listed(stage, self.place, |_| true)
    }

    fn prove(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        stage.ops.rewind(&mut self.dir)?;
        let mut seen = 0;
        while let Some(name) = stage.ops.next_name(&mut self.dir)? {
            seen += u64::from(name[0] != b'.');
        }
        Failure::wrong("number of entries", seen, self.entries)
    }
}
