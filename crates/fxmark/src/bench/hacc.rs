//! HACC: ranks of a simulation write one checkpoint, each its own part of one shared file, over and over.
//!
//! A particle is nine variables, 38 bytes: x y z vx vy vz phi of 4, id of 8, mask of 2. The file begins with a header of 24 MiB, then
//! comes the part of each rank, in it one array a variable. So a rank makes nine writes in a row, large ones, and neither they nor the
//! parts begin at a page: neighbours share one.
//!
//! One operation is a rank's part of a checkpoint: open, nine writes, close. It goes over the part of the one before. The header, which
//! rank 0 writes in the original when all is done, is there before the clock starts; ranks do not wait for each other.
//!
//! Source      HACC-IO of the CORAL benchmarks, as SRL measures it (its Fig. 13): one shared file, POSIX calls.

use super::{Bench, Next, WorkerContext};
use crate::config::Job;
use crate::ops::{Failure, Mode, Ops, Result};
use crate::page_pattern::PAGE_BYTES;
use crate::path::RelPath;
use crate::recorder::Recorder;
use crate::string_pattern::{Pattern, Tag};

/// Bytes of a particle's variables.
const VARIABLES: [usize; 9] = [4, 4, 4, 4, 4, 4, 4, 8, 2];
const PARTICLE_BYTES: u64 = 38;
const HEADER_BYTES: u64 = 24 << 20;
/// The header is written in pieces of this size. It belongs to no rank and counts as file 0.
const HEADER_PIECE_BYTES: usize = 1 << 20;

/// Bytes of the whole file.
pub(crate) fn file_bytes(job: &Job) -> u64 {
    HEADER_BYTES + job.workers as u64 * particles(job) * PARTICLE_BYTES
}

fn particles(job: &Job) -> u64 {
    job.share_pages * PAGE_BYTES / PARTICLE_BYTES
}

fn path() -> RelPath {
    RelPath::new(format_args!("checkpoint"))
}

/// The pieces of the header, with their offsets.
fn header() -> impl Iterator<Item = (Tag, u64)> {
    let pieces = HEADER_BYTES / HEADER_PIECE_BYTES as u64;
    (0..pieces).map(|piece| (Tag::of(0, piece), piece * HEADER_PIECE_BYTES as u64))
}

pub(crate) struct Hacc {
    /// Offset and length of each array.
    arrays: [(u64, usize); 9],
    pattern: Pattern,
    /// Checkpoints written; the file has the last of them.
    written: u64,
    back: Vec<u8>,
}

impl Hacc {
    fn tag(&self, worker: &WorkerContext<'_, impl Ops>, variable: usize) -> Tag {
        Tag::of((worker.me * VARIABLES.len() + variable) as u64 + 1, self.written)
    }

    fn write<O: Ops>(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.written += 1;
        let file = worker.ops.open(&path(), Mode::ReadWrite, false)?;
        for (variable, (offset, len)) in self.arrays.into_iter().enumerate() {
            worker.ops.write(&file, offset, self.pattern.bytes(self.tag(worker, variable), 0, len))?;
        }
        worker.ops.close(file)
    }

    fn read_back<O: Ops>(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        let file = worker.ops.open(&path(), Mode::Read, false)?;
        Failure::wrong("file size", worker.ops.size(&file)?, file_bytes(worker.job))?;
        for (variable, (offset, len)) in self.arrays.into_iter().enumerate() {
            self.back.clear();
            self.back.resize(len, 0);
            worker.ops.read(&file, offset, &mut self.back)?;
            self.pattern.check(&self.back, self.tag(worker, variable))?;
        }
        worker.ops.close(file)
    }
}

impl<O: Ops> Bench<O> for Hacc {
    fn lay_out(worker: &WorkerContext<'_, O>) -> Result<()> {
        let file = worker.ops.create(&path())?;
        worker.ops.truncate(&file, file_bytes(worker.job))?;
        let pattern = Pattern::for_files_of(HEADER_PIECE_BYTES);
        for (piece, offset) in header() {
            worker.ops.write(&file, offset, pattern.bytes(piece, 0, HEADER_PIECE_BYTES))?;
        }
        worker.ops.close(file)
    }

    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let particles = particles(worker.job);
        let mut offset = HEADER_BYTES + worker.me as u64 * particles * PARTICLE_BYTES;
        let arrays = VARIABLES.map(|bytes| {
            let array = (offset, bytes * particles as usize);
            offset += array.1 as u64;
            array
        });
        let longest = arrays.iter().map(|(_, len)| *len).max().unwrap_or(0);
        let pattern = Pattern::for_files_of(longest);
        let mut hacc = Hacc { arrays, pattern, written: 0, back: Vec::with_capacity(longest) };
        hacc.write(worker)?;
        Ok(hacc)
    }

    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        self.write(worker)?;
        recorder.writes += 1;
        Ok(Next::More)
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        if worker.me == 0 {
            let file = worker.ops.open(&path(), Mode::Read, false)?;
            let pattern = Pattern::for_files_of(HEADER_PIECE_BYTES);
            for (piece, offset) in header() {
                let mut found = vec![0; HEADER_PIECE_BYTES];
                worker.ops.read(&file, offset, &mut found)?;
                pattern.check(&found, piece)?;
            }
            worker.ops.close(file)?;
        }
        self.read_back(worker)
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.write(worker)?;
        self.read_back(worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Workload};

    #[test]
    fn a_particle_has_38_bytes_and_the_parts_fill_the_file() {
        assert_eq!(VARIABLES.iter().sum::<usize>() as u64, PARTICLE_BYTES);
        let job = Config::default().job(Workload::HACC, 3);
        assert_eq!(particles(&job), 220_752);
        assert_eq!(file_bytes(&job), HEADER_BYTES + 3 * 220_752 * PARTICLE_BYTES);
    }
}
