//! VARMAIL: a mail server's spool, small files that are written, synced, read and removed in one directory.
//!
//! One operation is a turn: remove a mail; write a new one, fsync it; read one, append to it, fsync it; read one. Which ones is drawn;
//! each worker has its own of all the mails, where the original has all threads choose among all and skip those in use.
//!
//! Source      Filebench's personality of this name: 1,000 mails, four fifths there at the start, sizes of a gamma distribution (mean
//!             16 KiB, shape 1.5), pieces of up to 16 KiB; the F2FS range-lock paper (SYSTOR '19), Tables 4, 6 and 8.

use super::names::{DirChoice, check_listing, paths};
use super::{Bench, Next, WorkerContext};
use crate::config::Job;
use crate::ops::{Failure, Mode, Ops, Result};
use crate::path::RelPath;
use crate::random::Random;
use crate::recorder::Recorder;
use crate::string_pattern::{Pattern, Tag};

/// Mails of all workers, present or not.
const MAILS: usize = 1000;
/// So many of ten mails are present at the start.
const THERE_OF_TEN: usize = 8;
const MEAN_BYTES: f64 = 16384.0;
const PIECE_BYTES_MAX: u64 = 16384;
/// No mail becomes so long: the next operation removes it as often as it appends to it.
const MAIL_BYTES_MAX: usize = 1 << 20;
/// Room for one: four times the mean.
pub(crate) const MAIL_PAGES: u64 = 16;

/// Mails of one worker.
pub(crate) fn mails(job: &Job) -> usize {
    (MAILS / job.workers).max(10).min(job.files as usize)
}

/// A mail's name and present content.
#[derive(Clone, Copy)]
struct Mail {
    path: RelPath,
    /// How often it was made.
    made: u64,
    len: usize,
}

pub(crate) struct Varmail {
    mails: Vec<Mail>,
    /// Indexes of present mails, and of absent ones.
    there: Vec<usize>,
    absent: Vec<usize>,
    random: Random,
    pattern: Pattern,
    back: Vec<u8>,
}

impl Varmail {
    fn tag(&self, worker: &WorkerContext<'_, impl Ops>, at: usize) -> Tag {
        Tag::of((at * worker.job.workers + worker.me) as u64 + 1, self.mails[at].made)
    }

    fn piece(&mut self) -> usize {
        self.random.below(PIECE_BYTES_MAX) as usize + 1
    }

    /// A present mail.
    fn any(&mut self) -> usize {
        self.there[self.random.below(self.there.len() as u64) as usize]
    }

    fn append<O: Ops>(
        &mut self,
        worker: &WorkerContext<'_, O>,
        file: &O::File,
        at: usize,
        len: usize,
    ) -> Result<()> {
        let (tag, old) = (self.tag(worker, at), self.mails[at].len);
        if old + len > MAIL_BYTES_MAX {
            return Err(Failure::Other("a mail grew beyond all chance"));
        }
        worker.ops.write(file, old as u64, self.pattern.bytes(tag, old, len))?;
        self.mails[at].len += len;
        Ok(())
    }

    /// Makes an absent mail. Returns it and its open file.
    fn make<O: Ops>(&mut self, worker: &WorkerContext<'_, O>, len: usize) -> Result<(usize, O::File)> {
        let drawn = self.random.below(self.absent.len() as u64) as usize;
        let at = self.absent.swap_remove(drawn);
        self.there.push(at);
        let mail = &mut self.mails[at];
        (mail.made, mail.len) = (mail.made + 1, 0);
        let file = worker.ops.create(&mail.path)?;
        self.append(worker, &file, at, len)?;
        Ok((at, file))
    }

    fn remove<O: Ops>(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        let drawn = self.random.below(self.there.len() as u64) as usize;
        let at = self.there.swap_remove(drawn);
        self.absent.push(at);
        worker.ops.unlink(&self.mails[at].path)
    }

    fn read<O: Ops>(&mut self, worker: &WorkerContext<'_, O>, file: &O::File, at: usize) -> Result<()> {
        self.back.clear();
        self.back.resize(self.mails[at].len, 0);
        worker.ops.read(file, 0, &mut self.back)?;
        self.pattern.check(&self.back, self.tag(worker, at))
    }

    /// Reads a mail, and checks its length, too.
    fn is_whole<O: Ops>(&mut self, worker: &WorkerContext<'_, O>, at: usize) -> Result<()> {
        let Mail { path, len, .. } = self.mails[at];
        let file = worker.ops.open(&path, Mode::Read, false)?;
        Failure::wrong("file size", worker.ops.size(&file)?, len as u64)?;
        self.read(worker, &file, at)?;
        worker.ops.close(file)
    }

    /// One operation. Returns the mails that it wrote.
    fn turn<O: Ops>(&mut self, worker: &WorkerContext<'_, O>) -> Result<[usize; 2]> {
        let ops = worker.ops;
        self.remove(worker)?;
        let len = self.piece();
        let (made, new) = self.make(worker, len)?;
        ops.fsync(&new)?;
        ops.close(new)?;

        let (answered, len) = (self.any(), self.piece());
        let file = ops.open(&self.mails[answered].path, Mode::ReadWrite, false)?;
        self.read(worker, &file, answered)?;
        self.append(worker, &file, answered, len)?;
        ops.fsync(&file)?;
        ops.close(file)?;

        let read = self.any();
        let file = ops.open(&self.mails[read].path, Mode::Read, false)?;
        self.read(worker, &file, read)?;
        ops.close(file)?;
        Ok([made, answered])
    }
}

/// A length from the distribution that the mails have at the start.
fn length(random: &mut Random) -> usize {
    // Three halves of a gamma variable: an exponential one, and half the square of a normal one (Box and Muller).
    let mut uniform = || (random.below(1 << 53) as f64 + 0.5) / (1_u64 << 53) as f64;
    let (one, two, angle) = (uniform(), uniform(), uniform());
    let gamma = -one.ln() - two.ln() * (std::f64::consts::TAU * angle).cos().powi(2);
    ((gamma * MEAN_BYTES / 1.5) as usize).clamp(1, MAIL_BYTES_MAX / 2)
}

impl<O: Ops> Bench<O> for Varmail {
    fn lay_out(worker: &WorkerContext<'_, O>) -> Result<()> {
        worker.ops.mkdir(&DirChoice::Shared.dir(0))
    }

    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let all = mails(worker.job);
        let paths = paths(worker.job, DirChoice::Shared, worker.me);
        let mut varmail = Varmail {
            mails: paths.into_iter().take(all).map(|path| Mail { path, made: 0, len: 0 }).collect(),
            there: Vec::with_capacity(all),
            absent: (0..all).collect(),
            random: Random::of_worker(worker.me),
            pattern: Pattern::for_files_of(MAIL_BYTES_MAX),
            back: Vec::with_capacity(MAIL_BYTES_MAX),
        };
        for _ in 0..(all * THERE_OF_TEN / 10).max(1) {
            let len = length(&mut varmail.random);
            let (_, file) = varmail.make(worker, len)?;
            worker.ops.close(file)?;
        }
        Ok(varmail)
    }

    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        self.turn(worker)?;
        recorder.writes += 1;
        Ok(Next::More)
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        let mut there = vec![false; self.mails.len()];
        for at in self.there.clone() {
            there[at] = true;
            self.is_whole(worker, at)?;
        }
        check_listing(worker, DirChoice::Shared, |n| there.get(n as usize).copied().unwrap_or(false))
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        self.turn(worker)?.into_iter().try_for_each(|at| self.is_whole(worker, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_their_mean_and_spread() {
        let mut random = Random::of_worker(1);
        let lengths: Vec<f64> = (0..100_000).map(|_| length(&mut random) as f64).collect();
        let mean = lengths.iter().sum::<f64>() / 1e5;
        let spread = (lengths.iter().map(|len| (len - mean).powi(2)).sum::<f64>() / 1e5).sqrt();
        assert!((mean / MEAN_BYTES - 1.0).abs() < 0.02, "{mean}");
        // Of a gamma distribution: the mean over the root of the shape.
        assert!((spread / (MEAN_BYTES / 1.5_f64.sqrt()) - 1.0).abs() < 0.03, "{spread}");
    }
}
