//! DRBL and DWOL by calls of another length than a page (`--call`): pieces of the worker's own file, read or overwritten.
//!
//! State      for each piece, the sequence number of its last write (0: the set-up's). A piece is whole pages as [`Fill`] stamps them, or
//!            the beginning of one: its first word is a stamp in any case.
//! Invariants I1  no two workers write the same file, so a piece always holds its owner's last write.
//!            I2  the buffer is poisoned where it will be checked before each read: a read that moves nothing is seen.

use super::{Bench, Next, WorkerContext};
use crate::Workload;
use crate::config::{Access, Job};
use crate::ops::{Failure, Mode, Ops, Result};
use crate::page_pattern::{Fill, Owner, PAGE_BYTES, POISON, Page, WORDS};
use crate::random::Random;
use crate::recorder::Recorder;
use zerocopy::IntoBytes;

/// Returns true if this run uses such calls.
pub(crate) fn are_of(job: &Job) -> bool {
    job.call_bytes != PAGE_BYTES && matches!(job.workload, Workload::DRBL | Workload::DWOL)
}

/// Pieces of a worker's file.
fn pieces(job: &Job) -> u64 {
    match job.access {
        Access::Random => (job.share_pages * PAGE_BYTES / job.call_bytes).max(1),
        Access::Fixed => 1,
    }
}

pub(crate) struct Calls<O: Ops> {
    file: O::File,
    call_bytes: usize,
    owner: Owner,
    writes: bool,
    last: Vec<u64>,
    seq: u64,
    random: Random,
    probe: usize,
    out: Box<[Page]>,
    back: Box<[Page]>,
}

impl<O: Ops> Calls<O> {
    /// The expected word of a piece at this place, after its last write.
    #[inline]
    fn word(&self, piece: u64, at: usize) -> u64 {
        let page = piece * self.out.len() as u64 + (at / WORDS) as u64;
        Fill::Stamped.word(self.owner, page, self.last[piece as usize], at % WORDS)
    }

    #[inline]
    fn found(&self, at: usize) -> u64 {
        self.back[at / WORDS].words[at % WORDS]
    }

    #[inline]
    fn choose(&mut self) -> u64 {
        self.random.below(self.last.len() as u64)
    }

    #[inline]
    fn write(&mut self, worker: &WorkerContext<'_, O>, piece: u64) -> Result<()> {
        self.seq += 1;
        self.write_as(worker, piece, self.seq)
    }

    #[inline]
    fn write_as(&mut self, worker: &WorkerContext<'_, O>, piece: u64, seq: u64) -> Result<()> {
        let first = piece * self.out.len() as u64;
        for (page, number) in self.out.iter_mut().zip(first..) {
            Fill::Stamped.stamp(page, self.owner, number, seq);
        }
        let bytes = &self.out.as_bytes()[..self.call_bytes];
        worker.ops.write(&self.file, piece * self.call_bytes as u64, bytes)?;
        self.last[piece as usize] = seq;
        Ok(())
    }

    fn load(&mut self, worker: &WorkerContext<'_, O>, piece: u64) -> Result<()> {
        let bytes = &mut self.back.as_mut_bytes()[..self.call_bytes];
        worker.ops.read(&self.file, piece * self.call_bytes as u64, bytes)
    }

    #[inline]
    fn read(&mut self, worker: &WorkerContext<'_, O>, piece: u64) -> Result<()> {
        // An odd step visits every word before it visits one again: their number is a power of two.
        self.probe = (self.probe + 197) % (self.call_bytes / 8);
        self.back[self.probe / WORDS].words[self.probe % WORDS] = POISON;
        self.load(worker, piece)?;
        if self.found(self.probe) == self.word(piece, self.probe) {
            return Ok(());
        }
        self.compare(piece)
    }

    fn read_whole(&mut self, worker: &WorkerContext<'_, O>, piece: u64) -> Result<()> {
        self.back.iter_mut().for_each(|page| page.words.fill(POISON));
        self.load(worker, piece)?;
        self.compare(piece)
    }

    fn compare(&self, piece: u64) -> Result<()> {
        let wrong = (0..self.call_bytes / 8).find(|at| self.found(*at) != self.word(piece, *at));
        let Some(at) = wrong else { return Ok(()) };
        let (found, want) = (self.found(at), self.word(piece, at));
        let detail = format!("piece {piece}, byte {}: {found:#018x} instead of {want:#018x}", at * 8);
        Err(Failure::Wrong { what: "data", detail })
    }
}

impl<O: Ops> Bench<O> for Calls<O> {
    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let (job, ops) = (worker.job, worker.ops);
        let owner = Owner(worker.me as u64);
        let path = worker.make_own_file()?;
        let pages =
            || (0..job.call_bytes.div_ceil(PAGE_BYTES)).map(|_| *Fill::Stamped.blank(owner)).collect();
        let mut bench = Calls {
            file: ops.open(&path, Mode::ReadWrite, false)?,
            call_bytes: job.call_bytes as usize,
            owner,
            writes: job.workload == Workload::DWOL,
            last: vec![0; pieces(job) as usize],
            seq: 0,
            random: Random::of_worker(worker.me),
            probe: 0,
            out: pages(),
            back: pages(),
        };
        (0..pieces(job)).try_for_each(|piece| bench.write_as(worker, piece, 0))?;
        Ok(bench)
    }

    #[inline]
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        let piece = self.choose();
        if self.writes {
            self.write(worker, piece)?;
            recorder.writes += 1;
        } else {
            self.read(worker, piece)?;
            recorder.reads += 1;
        }
        Ok(Next::More)
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        let pieces = self.last.len() as u64;
        Failure::wrong("file size", worker.ops.size(&self.file)?, pieces * self.call_bytes as u64)?;
        (0..pieces).try_for_each(|piece| self.read_whole(worker, piece))
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        let piece = self.choose();
        if self.writes {
            self.write(worker, piece)?;
        }
        self.read_whole(worker, piece)
    }
}
