//! MRDL MRDM: list a directory, one entry per operation, from the start again at its end.
//!
//! `.` and `..`, which engines do not have, are not counted. The number of entries of every pass is checked, and names
//! once after the loop. The original never rewinds and counts its calls at the end of the directory.

use super::names::{DirChoice, check_listing, create_all, paths};
use super::{Bench, Next, WorkerContext};
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
    fn rewind(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        Failure::wrong("number of entries", self.seen, self.entries)?;
        self.seen = 0;
        worker.ops.rewind(&mut self.dir)
    }
}

impl<O: Ops> Bench<O> for List<O> {
    fn lay_out(worker: &WorkerContext<'_, O>) -> Result<()> {
        let place = place(worker.job.workload);
        if place == DirChoice::Shared { worker.ops.mkdir(&place.dir(0)) } else { Ok(()) }
    }

    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let place = place(worker.job.workload);
        if place == DirChoice::Own {
            worker.ops.mkdir(&place.dir(worker.me))?;
        }
        create_all(worker.ops, &paths(worker.job, place, worker.me))?;
        let dirs = if place == DirChoice::Shared { worker.job.workers as u64 } else { 1 };
        let entries = dirs * u64::from(worker.job.files);
        Ok(List { dir: worker.ops.open_dir(&place.dir(worker.me))?, place, seen: 0, entries, begun: false })
    }

    #[inline]
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        if !self.begun {
            self.begun = true;
            worker.ops.rewind(&mut self.dir)?;
        }
        loop {
            match worker.ops.next_name(&mut self.dir)? {
                Some(name) if name[0] == b'.' && !worker.job.faithful => continue,
                None if !worker.job.faithful => self.rewind(worker)?,
                name => {
                    self.seen += u64::from(name.is_some());
                    recorder.reads += 1;
                    return Ok(Next::More);
                }
            }
        }
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        check_listing(worker, self.place, |_| true)
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        worker.ops.rewind(&mut self.dir)?;
        let mut seen = 0;
        while let Some(name) = worker.ops.next_name(&mut self.dir)? {
            seen += u64::from(name[0] != b'.');
        }
        Failure::wrong("number of entries", seen, self.entries)
    }
}
