//! DWAL: appends to the worker's own file.
//!
//! The file is truncated when it has grown to the window. The truncation is timed but not counted: a workload
//! that goes on for ever must free space, on every target alike. The original appends until the device is
//! full.

use super::{Bench, Next, Stage};
use crate::ops::{Failure, Mode, Ops, Result};
use crate::page_pattern::{Fill, Owner, PAGE_BYTES, POISON, Page};
use crate::path::RelPath;
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
    fn append(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        if self.pages == self.window_pages {
            stage.ops.truncate(&self.file, 0)?;
            self.pages = 0;
        }
        self.fill.stamp(&mut self.out, self.owner, self.pages, self.seq + 1);
        let at = stage.ops.append(&self.file, self.out.as_bytes())?;
        if let Some(offset) = at {
            Failure::wrong("offset of an append", offset, self.pages * PAGE_BYTES)?;
        }
        self.seq += 1;
        self.pages += 1;
        Ok(())
    }

    fn read_back(&mut self, stage: &Stage<'_, O>, page: u64) -> Result<()> {
        self.back.words.fill(POISON);
        stage.ops.read(&self.file, page * PAGE_BYTES, self.back.as_mut_bytes())?;
        self.fill.check(&self.back, self.owner, page, self.seq - self.pages + page + 1)
    }
}

impl<O: Ops> Bench<O> for Append<O> {
    fn prepare(stage: &Stage<'_, O>) -> Result<Self> {
        stage.ops.mkdir(&RelPath::new(format_args!("{}", stage.me)))?;
        let path = RelPath::new(format_args!("{}/data", stage.me));
        stage.ops.close(stage.ops.create(&path)?)?;
        let owner = Owner(stage.me as u64);
        let fill = if stage.job.faithful { Fill::Zeros } else { Fill::Stamped };
        Ok(Append {
            file: stage.ops.open(&path, Mode::Append, false)?,
            fill,
            owner,
            pages: 0,
            seq: 0,
            window_pages: if stage.job.faithful { u64::MAX } else { stage.job.window_pages },
            out: fill.blank(owner),
            back: Page::filled(POISON),
        })
    }

    #[inline]
    fn step(&mut self, stage: &Stage<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        match self.append(stage) {
            Ok(()) => {
                recorder.writes += 1;
                Ok(Next::More)
            }
            Err(failure) if stage.job.faithful && failure.errno() == Some(libc::ENOSPC) => {
                Ok(Next::Exhausted)
            }
            Err(failure) => Err(failure),
        }
    }

    fn check(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        Failure::wrong("file size", stage.ops.size(&self.file)?, self.pages * PAGE_BYTES)?;
        (0..self.pages).try_for_each(|page| self.read_back(stage, page))?;
        if stage.job.faithful {
            // The device may be full: this makes room for the proof.
            stage.ops.truncate(&self.file, 0)?;
            self.pages = 0;
        }
        Ok(())
    }

    fn prove(&mut self, stage: &Stage<'_, O>) -> Result<()> {
        self.append(stage)?;
        Failure::wrong("file size", stage.ops.size(&self.file)?, self.pages * PAGE_BYTES)?;
        self.read_back(stage, self.pages - 1)
    }
}
