//! OLTP: a database's files, read at random, written and synced in small pieces, with a log beside them.
//!
//! A step reads 2 KiB at a random place of the next of ten data files; every tenth writes 2 KiB besides and fsyncs; one in 3,200 writes
//! 256 KiB of the log and fsyncs. Each read and each write with its fsync is one operation. These are the rates at which the original's
//! 200 readers let its ten writers and its log writer go on; here each worker does all three, and computes nothing between. Blocks are
//! dealt out to the workers by turns, so two workers share each page of 4 KiB.
//!
//! Source      Filebench's personality of this name, which pNOVA (APSys '19, Table 2) and the F2FS range-lock paper (SYSTOR '19, Tables
//!             3, 5 and 7) measure; its data is 100 MB, here it is the size of the shared file.

use super::{Bench, Next, WorkerContext};
use crate::config::Job;
use crate::ops::{Failure, Mode, Ops, Result};
use crate::page_pattern::PAGE_BYTES;
use crate::path::RelPath;
use crate::random::Random;
use crate::recorder::Recorder;
use crate::string_pattern::{Pattern, Tag};

const DATA_FILES: usize = 10;
const BLOCK_BYTES: usize = 2048;
const RECORD_BYTES: usize = 256 << 10;
/// Records of the log, of all workers.
const RECORDS: u64 = 40;
/// Steps from one write of data, and of the log, to the next.
const WRITE_EVERY: u64 = 10;
const LOG_EVERY: u64 = 3200;

/// Pieces of one length in one file, dealt out by turns.
#[derive(Clone, Copy)]
struct Pieces {
    bytes: usize,
    /// Pieces of each worker.
    own: u64,
    workers: u64,
}

impl Pieces {
    fn of_data(job: &Job) -> Pieces {
        let blocks = job.share_pages * PAGE_BYTES / (DATA_FILES * BLOCK_BYTES) as u64;
        Pieces { bytes: BLOCK_BYTES, own: blocks.max(1), workers: job.workers as u64 }
    }

    fn of_log(job: &Job) -> Pieces {
        let workers = job.workers as u64;
        Pieces { bytes: RECORD_BYTES, own: (RECORDS / workers).max(1), workers }
    }

    fn count(self) -> u64 {
        self.own * self.workers
    }

    fn file_bytes(self) -> u64 {
        self.count() * self.bytes as u64
    }
}

/// Bytes of all files.
pub(crate) fn files_bytes(job: &Job) -> u64 {
    DATA_FILES as u64 * Pieces::of_data(job).file_bytes() + Pieces::of_log(job).file_bytes()
}

/// Number of files.
pub(crate) const FILES: u64 = DATA_FILES as u64 + 1;

/// The data files, and behind them the log.
fn files(job: &Job) -> impl Iterator<Item = (RelPath, Pieces)> {
    let (data, log) = (Pieces::of_data(job), Pieces::of_log(job));
    let path = |n| RelPath::new(format_args!("{n}.table"));
    (0..DATA_FILES).map(move |n| (path(n), data)).chain([(RelPath::new(format_args!("log")), log)])
}

/// A file, and how often this worker has written each of its pieces.
struct Table<O: Ops> {
    file: O::File,
    pieces: Pieces,
    written: Vec<u64>,
}

pub(crate) struct Oltp<O: Ops> {
    tables: Vec<Table<O>>,
    steps: u64,
    random: Random,
    pattern: Pattern,
    back: Vec<u8>,
}

/// The content of this piece of a file after so many writes.
fn tag(table: usize, piece: u64, written: u64) -> Tag {
    Tag::of((piece << 4 | table as u64) + 1, written)
}

impl<O: Ops> Oltp<O> {
    fn read(&mut self, worker: &WorkerContext<'_, O>, table: usize, nth: u64) -> Result<()> {
        let Table { file, pieces, written } = &self.tables[table];
        let piece = nth * pieces.workers + worker.me as u64;
        self.back.clear();
        self.back.resize(pieces.bytes, 0);
        worker.ops.read(file, piece * pieces.bytes as u64, &mut self.back)?;
        self.pattern.check(&self.back, tag(table, piece, written[nth as usize]))
    }

    fn write(&mut self, worker: &WorkerContext<'_, O>, table: usize, nth: u64) -> Result<()> {
        let Table { file, pieces, written } = &mut self.tables[table];
        let piece = nth * pieces.workers + worker.me as u64;
        written[nth as usize] += 1;
        let bytes = self.pattern.bytes(tag(table, piece, written[nth as usize]), 0, pieces.bytes);
        worker.ops.write(file, piece * pieces.bytes as u64, bytes)?;
        worker.ops.fsync(file)
    }

    /// Chooses one of the worker's own pieces.
    fn draw(&mut self, table: usize) -> u64 {
        self.random.below(self.tables[table].pieces.own)
    }
}

impl<O: Ops> Bench<O> for Oltp<O> {
    fn lay_out(worker: &WorkerContext<'_, O>) -> Result<()> {
        let pattern = Pattern::for_files_of(RECORD_BYTES);
        for (table, (path, pieces)) in files(worker.job).enumerate() {
            let file = worker.ops.create(&path)?;
            // Large writes: small ones belong to the measurement, not to the set-up.
            let together = (RECORD_BYTES / pieces.bytes) as u64;
            let mut first = 0;
            while first < pieces.count() {
                let last = (first + together).min(pieces.count());
                let bytes: Vec<u8> = (first..last)
                    .flat_map(|piece| pattern.bytes(tag(table, piece, 0), 0, pieces.bytes))
                    .copied()
                    .collect();
                worker.ops.write(&file, first * pieces.bytes as u64, &bytes)?;
                first = last;
            }
            worker.ops.close(file)?;
        }
        Ok(())
    }

    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let open = |(path, pieces): (RelPath, Pieces)| {
            let file = worker.ops.open(&path, Mode::ReadWrite, false)?;
            Ok(Table { file, pieces, written: vec![0; pieces.own as usize] })
        };
        Ok(Oltp {
            tables: files(worker.job).map(open).collect::<Result<_>>()?,
            steps: 0,
            random: Random::of_worker(worker.me),
            pattern: Pattern::for_files_of(RECORD_BYTES),
            back: Vec::with_capacity(RECORD_BYTES),
        })
    }

    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        self.steps += 1;
        let table = self.steps as usize % DATA_FILES;
        let nth = self.draw(table);
        self.read(worker, table, nth)?;
        recorder.reads += 1;
        if self.steps.is_multiple_of(WRITE_EVERY) {
            // Every tenth step is of the same file, so writes need their own rotation.
            let table = (self.steps / WRITE_EVERY) as usize % DATA_FILES;
            let nth = self.draw(table);
            self.write(worker, table, nth)?;
            recorder.writes += 1;
        }
        if self.steps.is_multiple_of(LOG_EVERY) {
            let nth = self.draw(DATA_FILES);
            self.write(worker, DATA_FILES, nth)?;
            recorder.writes += 1;
        }
        Ok(Next::More)
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        for table in 0..self.tables.len() {
            let Table { file, pieces, .. } = &self.tables[table];
            let pieces = *pieces;
            Failure::wrong("file size", worker.ops.size(file)?, pieces.file_bytes())?;
            (0..pieces.own).try_for_each(|nth| self.read(worker, table, nth))?;
        }
        Ok(())
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.steps += 1;
        let table = self.steps as usize % self.tables.len();
        let nth = self.draw(table);
        self.write(worker, table, nth)?;
        self.read(worker, table, nth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Workload};

    #[test]
    fn every_worker_has_pieces_of_every_file_whatever_its_size() {
        for (workers, bytes) in [(1, 100 << 20), (3, 3 * 4096), (64, 64 * 4096)] {
            let config = Config { file_size_bytes: Some(bytes), ..Config::default() };
            let job = config.job(Workload::OLTP, workers);
            assert!(files(&job).all(|(_, pieces)| pieces.own > 0), "{workers} workers, {bytes} bytes");
            assert_eq!(files(&job).count() as u64, FILES);
            let all: u64 = files(&job).map(|(_, pieces)| pieces.file_bytes()).sum();
            assert_eq!(all, files_bytes(&job));
        }
    }
}
