//! DWTL: frees blocks of the worker's own file.
//!
//! One operation is a pair, a write of the second block and a truncation to the first, so that every operation frees a
//! block that was written, the loop never runs out, and nothing is left out of the clock. File systems that allocate
//! late never give the block a place on disk: that favours them. `--faithful` shrinks a file of real, synced blocks by
//! one an operation; when it is down to one block it is filled anew outside the clock.

use super::{Bench, Next, WorkerContext};
use crate::ops::{Failure, Mode, Ops, Result};
use crate::page_pattern::{Fill, Owner, PAGE_BYTES, POISON, Page};
use crate::recorder::Recorder;
use zerocopy::IntoBytes;

pub(crate) struct Truncate<O: Ops> {
    file: O::File,
    fill: Fill,
    owner: Owner,
    /// Pages in the file between operations.
    pages: u64,
    seq: u64,
    out: Box<Page>,
    back: Box<Page>,
}

impl<O: Ops> Truncate<O> {
    #[inline]
    fn extend(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.seq += 1;
        self.fill.stamp(&mut self.out, self.owner, 1, self.seq);
        worker.ops.write(&self.file, PAGE_BYTES, self.out.as_bytes())
    }

    #[inline]
    fn shrink(&mut self, worker: &WorkerContext<'_, O>, pages: u64) -> Result<()> {
        self.pages = pages;
        worker.ops.truncate(&self.file, pages * PAGE_BYTES)
    }

    /// Real blocks up to the window, page `k` stamped with sequence 0.
    fn fill(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        for page in self.pages..worker.job.window_pages {
            self.fill.stamp(&mut self.out, self.owner, page, 0);
            worker.ops.write(&self.file, page * PAGE_BYTES, self.out.as_bytes())?;
        }
        self.pages = worker.job.window_pages;
        worker.ops.fsync(&self.file)
    }

    fn check_page(&mut self, worker: &WorkerContext<'_, O>, page: u64, seq: u64) -> Result<()> {
        self.back.words.fill(POISON);
        worker.ops.read(&self.file, page * PAGE_BYTES, self.back.as_mut_bytes())?;
        self.fill.check(&self.back, self.owner, page, seq)
    }

    fn check_size(&self, worker: &WorkerContext<'_, O>, pages: u64) -> Result<()> {
        Failure::wrong("file size", worker.ops.size(&self.file)?, pages * PAGE_BYTES)
    }
}

impl<O: Ops> Bench<O> for Truncate<O> {
    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let path = worker.make_own_file()?;
        let owner = Owner(worker.me as u64);
        let fill = if worker.job.faithful { Fill::Zeros } else { Fill::Stamped };
        let mut bench = Truncate {
            file: worker.ops.open(&path, Mode::ReadWrite, false)?,
            fill,
            owner,
            pages: 1,
            seq: 0,
            out: fill.blank(owner),
            back: Page::filled(POISON),
        };
        fill.stamp(&mut bench.out, owner, 0, 0);
        worker.ops.write(&bench.file, 0, bench.out.as_bytes())?;
        if worker.job.faithful {
            bench.fill(worker)?;
        }
        Ok(bench)
    }

    #[inline]
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        if !worker.job.faithful {
            self.extend(worker)?;
            self.shrink(worker, 1)?;
        } else {
            if self.pages == 1 {
                recorder.exclude(|| self.fill(worker))?;
            }
            self.shrink(worker, self.pages - 1)?;
        }
        recorder.writes += 1;
        Ok(Next::More)
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.check_size(worker, self.pages)?;
        (0..self.pages).try_for_each(|page| self.check_page(worker, page, 0))?;
        self.shrink(worker, 1)
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.extend(worker)?;
        self.check_size(worker, 2)?;
        self.check_page(worker, 1, self.seq)?;
        self.shrink(worker, 1)?;
        self.check_size(worker, 1)?;
        // The truncated block must not reappear when the file grows over it.
        worker.ops.truncate(&self.file, 2 * PAGE_BYTES)?;
        self.back.words.fill(POISON);
        worker.ops.read(&self.file, PAGE_BYTES, self.back.as_mut_bytes())?;
        Fill::Zeros.check(&self.back, self.owner, 1, self.seq)?;
        self.shrink(worker, 1)?;
        self.check_page(worker, 0, 0)
    }
}
