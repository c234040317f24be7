//! DWAL: appends to the worker's own file.
//!
//! The file is truncated when it has grown to the window. The truncation is timed but not counted: a workload
//! that goes on for ever must free space, on every target alike. The original appends until the device is
//! full.

use super::{Bench, Next, WorkerContext};
use crate::ops::{Failure, Mode, Ops, Result};
use crate::page_pattern::{Fill, Owner, PAGE_BYTES, POISON, Page};
use crate::recorder::Recorder;
use zerocopy::IntoBytes;

pub(crate) struct Append<O: Ops> {
    file: O::File,
    fill: Fill,
    owner: Owner,
    /// Pages in the file now; page `k` is write number `seq - pages + k + 1`.
    pages: u64,
    seq: u64,
    window_pages: u64,
    out: Box<Page>,
    back: Box<Page>,
}

impl<O: Ops> Append<O> {
    #[inline]
    fn append(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        if self.pages == self.window_pages {
            worker.ops.truncate(&self.file, 0)?;
            self.pages = 0;
        }
        self.fill.stamp(&mut self.out, self.owner, self.pages, self.seq + 1);
        let at = worker.ops.append(&self.file, self.out.as_bytes())?;
        if let Some(offset) = at {
            Failure::wrong("offset of an append", offset, self.pages * PAGE_BYTES)?;
        }
        self.seq += 1;
        self.pages += 1;
        Ok(())
    }

    fn read_back(&mut self, worker: &WorkerContext<'_, O>, page: u64) -> Result<()> {
        self.back.words.fill(POISON);
        worker.ops.read(&self.file, page * PAGE_BYTES, self.back.as_mut_bytes())?;
        self.fill.check(&self.back, self.owner, page, self.seq - self.pages + page + 1)
    }
}

impl<O: Ops> Bench<O> for Append<O> {
    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let path = worker.make_own_file()?;
        let owner = Owner(worker.me as u64);
        let fill = if worker.job.faithful { Fill::Zeros } else { Fill::Stamped };
        Ok(Append {
            file: worker.ops.open(&path, Mode::Append, false)?,
            fill,
            owner,
            pages: 0,
            seq: 0,
            window_pages: if worker.job.faithful { u64::MAX } else { worker.job.window_pages },
            out: fill.blank(owner),
            back: Page::filled(POISON),
        })
    }

    #[inline]
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        match self.append(worker) {
            Ok(()) => {
                recorder.writes += 1;
                Ok(Next::More)
            }
            Err(failure) if worker.job.faithful && failure.errno() == Some(libc::ENOSPC) => {
                Ok(Next::Exhausted)
            }
            Err(failure) => Err(failure),
        }
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        Failure::wrong("file size", worker.ops.size(&self.file)?, self.pages * PAGE_BYTES)?;
        (0..self.pages).try_for_each(|page| self.read_back(worker, page))?;
        if worker.job.faithful {
            // The device may be full: this makes room for the proof.
            worker.ops.truncate(&self.file, 0)?;
            self.pages = 0;
        }
        Ok(())
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.append(worker)?;
        Failure::wrong("file size", worker.ops.size(&self.file)?, self.pages * PAGE_BYTES)?;
        self.read_back(worker, self.pages - 1)
    }
}
