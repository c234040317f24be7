//! DRBL DRBM DRBH DWOL DWOM DWSL and the mixes: pages of a file, read or overwritten.
//!
//! State      the worker's pages of the file and, for each, the sequence number of its last write (0: the set-up's).
//! Invariants I1  no two workers write the same page, so a page always holds its owner's last write.
//!            I2  the buffer is poisoned where it will be checked before each read: a read that moves nothing is seen.

use super::{Bench, Next, WorkerContext};
use crate::Workload;
use crate::config::{Access, Job, Stride};
use crate::ops::{Failure, Mode, Ops, Result};
use crate::page_pattern::{Fill, Owner, PAGE_BYTES, POISON, Page, WORDS};
use crate::path::RelPath;
use crate::random::Random;
use crate::recorder::Recorder;
use zerocopy::IntoBytes;

/// Pages `first + k * step`, `k < count`, of a file of `file_pages`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pages {
    first: u64,
    step: u64,
    count: u64,
    file_pages: u64,
}

impl Pages {
    /// The part of the file that belongs to this worker.
    fn of(job: &Job, me: usize) -> Pages {
        let (workers, me) = (job.workers as u64, me as u64);
        let count = job.share_pages;
        match (job.workload, job.stride) {
            (Workload::DRBH, _) => Pages { first: 0, step: 1, count: 1, file_pages: 1 },
            (Workload::DRBL | Workload::DWOL | Workload::DWSL, _) => {
                let count = if job.access == Access::Random { count } else { 1 };
                Pages { first: 0, step: 1, count, file_pages: count }
            }
            (_, Stride::Segment) => Pages { first: me * count, step: 1, count, file_pages: workers * count },
            (_, Stride::Page) => Pages { first: me, step: workers, count, file_pages: workers * count },
        }
    }

    fn page(&self, k: u64) -> u64 {
        self.first + k * self.step
    }
}

/// The percentage of a worker's operations that write, spread evenly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WritePercent(u64);

impl WritePercent {
    /// Workers times percent are writers; the worker with the fraction mixes reads and writes.
    fn of(job: &Job, me: usize) -> WritePercent {
        WritePercent(match job.workload.write_percent() {
            Some(percent) => (job.workers as u64 * percent).saturating_sub(me as u64 * 100).min(100),
            None if matches!(job.workload, Workload::DRBL | Workload::DRBM | Workload::DRBH) => 0,
            None => 100,
        })
    }

    #[inline]
    fn is_write(self, operation: u64) -> bool {
        match self.0 {
            0 => false,
            100 => true,
            percent => operation % 100 * percent % 100 < percent,
        }
    }
}

pub(crate) struct Blocks<O: Ops> {
    file: O::File,
    pages: Pages,
    /// Places in `pages` from which operations choose.
    choices: u64,
    owner: Owner,
    fill: Fill,
    writes: WritePercent,
    sync: bool,
    last: Vec<u64>,
    seq: u64,
    operations: u64,
    random: Random,
    probe: usize,
    out: Box<Page>,
    back: Box<Page>,
}

impl<O: Ops> Blocks<O> {
    #[inline]
    fn choose(&mut self) -> u64 {
        if self.choices == 1 { 0 } else { self.random.below(self.choices) }
    }

    #[inline]
    fn write(&mut self, worker: &WorkerContext<'_, O>, k: u64) -> Result<()> {
        self.seq += 1;
        let page = self.pages.page(k);
        self.fill.stamp(&mut self.out, self.owner, page, self.seq);
        worker.ops.write(&self.file, page * PAGE_BYTES, self.out.as_bytes())?;
        if self.sync {
            worker.ops.fsync(&self.file)?;
        }
        self.last[k as usize] = self.seq;
        Ok(())
    }

    #[inline]
    fn read(&mut self, worker: &WorkerContext<'_, O>, k: u64) -> Result<()> {
        let page = self.pages.page(k);
        // An odd step visits every word before it visits one again.
        self.probe = (self.probe + 197) % WORDS;
        self.back.words[self.probe] = POISON;
        worker.ops.read(&self.file, page * PAGE_BYTES, self.back.as_mut_bytes())?;
        let want = self.fill.word(self.owner, page, self.last[k as usize], self.probe);
        if self.back.words[self.probe] == want {
            return Ok(());
        }
        self.fill.check(&self.back, self.owner, page, self.last[k as usize])
    }

    fn read_whole(&mut self, worker: &WorkerContext<'_, O>, k: u64) -> Result<()> {
        let page = self.pages.page(k);
        self.back.words.fill(POISON);
        worker.ops.read(&self.file, page * PAGE_BYTES, self.back.as_mut_bytes())?;
        self.fill.check(&self.back, self.owner, page, self.last[k as usize])
    }
}

/// The file of workloads in which all workers share one.
fn shared_path() -> RelPath {
    RelPath::new(format_args!("share"))
}

fn is_private(job: &Job) -> bool {
    matches!(job.workload, Workload::DRBL | Workload::DWOL | Workload::DWSL)
}

impl<O: Ops> Bench<O> for Blocks<O> {
    fn lay_out(worker: &WorkerContext<'_, O>) -> Result<()> {
        if is_private(worker.job) { Ok(()) } else { worker.ops.close(worker.ops.create(&shared_path())?) }
    }

    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let (job, ops) = (worker.job, worker.ops);
        let path = if is_private(job) { worker.make_own_file()? } else { shared_path() };
        let high = job.workload == Workload::DRBH;
        let owner = Owner(if high { 0 } else { worker.me as u64 });
        let fill = if job.faithful { Fill::Zeros } else { Fill::Stamped };
        let pages = Pages::of(job, worker.me);
        let mut bench = Blocks {
            file: ops.open(&path, Mode::ReadWrite, job.direct)?,
            pages,
            choices: if job.access == Access::Random { pages.count } else { 1 },
            owner,
            fill,
            writes: WritePercent::of(job, worker.me),
            sync: job.workload == Workload::DWSL,
            last: vec![0; pages.count as usize],
            seq: 0,
            operations: 0,
            random: Random::of_worker(worker.me),
            probe: 0,
            out: fill.blank(owner),
            back: Page::filled(POISON),
        };
        if !high || worker.me == 0 {
            for k in 0..pages.count {
                let page = pages.page(k);
                fill.stamp(&mut bench.out, owner, page, 0);
                ops.write(&bench.file, page * PAGE_BYTES, bench.out.as_bytes())?;
            }
        }
        Ok(bench)
    }

    #[inline]
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        let k = self.choose();
        let writes = self.writes.is_write(self.operations);
        self.operations += 1;
        if writes {
            self.write(worker, k)?;
            recorder.writes += 1;
        } else {
            self.read(worker, k)?;
            recorder.reads += 1;
        }
        Ok(Next::More)
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        Failure::wrong("file size", worker.ops.size(&self.file)?, self.pages.file_pages * PAGE_BYTES)?;
        (0..self.pages.count).try_for_each(|k| self.read_whole(worker, k))
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        let k = self.choose();
        if self.writes.0 > 0 {
            self.write(worker, k)?;
        }
        self.read_whole(worker, k)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn writes(job: &Job, me: usize) -> usize {
        let percent = WritePercent::of(job, me);
        (0..100).filter(|n| percent.is_write(*n)).count()
    }

    #[test]
    fn a_mix_has_its_percentage_of_writers_on_any_number_of_cores() {
        for (workload, percent) in [(Workload::MIX25, 25), (Workload::MIX50, 50), (Workload::MIX75, 75)] {
            for workers in 1..=9 {
                let job = Config::default().job(workload, workers);
                let sum: usize = (0..workers).map(|me| writes(&job, me)).sum();
                assert_eq!(sum, workers * percent, "{workload} on {workers}");
            }
        }
    }

    #[test]
    fn at_whole_percentages_each_worker_only_reads_or_only_writes() {
        let job = Config::default().job(Workload::MIX75, 4);
        assert_eq!((0..4).map(|me| writes(&job, me)).collect::<Vec<_>>(), [100, 100, 100, 0]);
    }

    #[test]
    fn the_workers_parts_cover_the_file_and_do_not_overlap() {
        for stride in [Stride::Page, Stride::Segment] {
            let config = Config { stride, file_size_bytes: Some(6 * 40 * PAGE_BYTES), ..Config::default() };
            let job = config.job(Workload::DWOM, 6);
            let mut seen = vec![0; 240];
            for me in 0..6 {
                let pages = Pages::of(&job, me);
                assert_eq!(pages.file_pages, 240);
                (0..pages.count).for_each(|k| seen[pages.page(k) as usize] += 1);
            }
            assert!(seen.iter().all(|n| *n == 1), "{stride:?}: {seen:?}");
        }
    }
}
