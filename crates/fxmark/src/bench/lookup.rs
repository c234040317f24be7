//! MRPL MRPM MRPH: open and close a path of five names.
//!
//! Each file of the tree has its own size (its number plus one, as a hole), so that the check sees whether a
//! path led to the right file. `--faithful` calls `stat`, formats the path inside the loop, and draws digits
//! from a generator whose low bits repeat after eight draws: it visits only eight files.

use super::{Bench, Next, Pass, WorkerContext};
use crate::Workload;
use crate::ops::{Failure, Mode, Ops, Result};
use crate::path::RelPath;
use crate::random::Random;
use crate::recorder::Recorder;

/// Names on each level, and levels.
const FAN_OUT: u64 = 8;
const DEPTH: u32 = 5;
const TREE_FILES: u64 = FAN_OUT.pow(DEPTH);
/// Files and directories of the tree.
pub(crate) const TREE_NODES: u64 = TREE_FILES + (TREE_FILES - FAN_OUT) / (FAN_OUT - 1);

pub(crate) struct Lookup {
    paths: Vec<RelPath>,
    /// Index of the next path.
    next: usize,
    /// Size of the file at `paths[0]`; they grow by one.
    first_size: u64,
    random: Random,
    /// State of the original's generator.
    lcg: u32,
}

/// Octal digits of `n`, `levels` of them, as a path.
fn tree_path(n: u64, levels: u32) -> RelPath {
    let digit = |level: u32| n / FAN_OUT.pow(levels - 1 - level) % FAN_OUT;
    match levels {
        1 => RelPath::new(format_args!("{}", digit(0))),
        2 => RelPath::new(format_args!("{}/{}", digit(0), digit(1))),
        3 => RelPath::new(format_args!("{}/{}/{}", digit(0), digit(1), digit(2))),
        4 => RelPath::new(format_args!("{}/{}/{}/{}", digit(0), digit(1), digit(2), digit(3))),
        _ => RelPath::new(format_args!("{}/{}/{}/{}/{}", digit(0), digit(1), digit(2), digit(3), digit(4))),
    }
}

fn make_file<O: Ops>(ops: &O, path: &RelPath, size_bytes: u64) -> Result<()> {
    let file = ops.create(path)?;
    ops.truncate(&file, size_bytes)?;
    ops.close(file)
}

impl Lookup {
    /// Chooses one path ahead and prefetches it: all paths of a tree are megabytes, and that cost is the
    /// workload's, not the file system's.
    #[inline]
    fn choose(&mut self) -> usize {
        if self.paths.len() == 1 {
            return 0;
        }
        let next = self.random.below(self.paths.len() as u64) as usize;
        self.paths[next].prefetch();
        std::mem::replace(&mut self.next, next)
    }

    fn faithful_path(&mut self, workload: Workload) -> RelPath {
        let mut digit = || match workload {
            Workload::MRPM => {
                self.lcg = self.lcg.wrapping_mul(1_103_515_245).wrapping_add(12345);
                u64::from(self.lcg) % FAN_OUT
            }
            _ => 0,
        };
        let n = (0..DEPTH).fold(0, |n, _| n * FAN_OUT + digit());
        tree_path(n, DEPTH)
    }

    fn check_file<O: Ops>(&self, ops: &O, at: usize) -> Result<()> {
        let file = ops.open(&self.paths[at], Mode::Read, false)?;
        let size = ops.size(&file)?;
        ops.close(file)?;
        Failure::wrong("file at the end of a path", size, self.first_size + at as u64)
    }
}

impl<O: Ops> Bench<O> for Lookup {
    fn lay_out(worker: &WorkerContext<'_, O>) -> Result<()> {
        if worker.job.workload == Workload::MRPL {
            return Ok(());
        }
        let fan_out = if worker.job.workload == Workload::MRPM { FAN_OUT } else { 1 };
        for levels in 1..DEPTH {
            (0..fan_out.pow(levels)).try_for_each(|n| worker.ops.mkdir(&tree_path(n, levels)))?;
        }
        (0..fan_out.pow(DEPTH)).try_for_each(|n| make_file(worker.ops, &tree_path(n, DEPTH), n + 1))
    }

    fn prepare(worker: &WorkerContext<'_, O>) -> Result<Self> {
        let me = worker.me;
        let (paths, first_size) = match worker.job.workload {
            Workload::MRPM => ((0..TREE_FILES).map(|n| tree_path(n, DEPTH)).collect(), 1),
            Workload::MRPH => (vec![tree_path(0, DEPTH)], 1),
            _ => {
                let path = RelPath::new(format_args!("{me}/0/0/0/0"));
                for dir in ["", "/0", "/0/0", "/0/0/0"] {
                    worker.ops.mkdir(&RelPath::new(format_args!("{me}{dir}")))?;
                }
                make_file(worker.ops, &path, me as u64 + 1)?;
                (vec![path], me as u64 + 1)
            }
        };
        Ok(Lookup { paths, next: 0, first_size, random: Random::of_worker(me), lcg: me as u32 })
    }

    #[inline]
    fn step(&mut self, worker: &WorkerContext<'_, O>, recorder: &mut Recorder) -> Result<Next> {
        if !worker.job.faithful {
            let at = self.choose();
            worker.ops.close(worker.ops.open(&self.paths[at], Mode::Read, false)?)?;
        } else {
            let path = match worker.job.workload {
                Workload::MRPL => self.paths[0],
                workload => self.faithful_path(workload),
            };
            worker.ops.stat(&path)?.ok_or(Failure::Other("a file of the tree is missing"))?;
        }
        recorder.reads += 1;
        Ok(Next::More)
    }

    fn age(&mut self, worker: &WorkerContext<'_, O>, pass: Pass) -> Result<()> {
        let met = if pass == Pass::First { &self.paths[..] } else { &[] };
        met.iter().try_for_each(|path| worker.ops.close(worker.ops.open(path, Mode::Read, false)?))
    }

    fn check(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        (0..self.paths.len()).try_for_each(|at| self.check_file(worker.ops, at))
    }

    fn prove(&mut self, worker: &WorkerContext<'_, O>) -> Result<()> {
        let at = self.choose();
        self.check_file(worker.ops, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn visited(mut draw: impl FnMut(&mut Lookup) -> RelPath) -> usize {
        let paths = (0..TREE_FILES).map(|n| tree_path(n, DEPTH)).collect();
        let mut lookup = Lookup { paths, next: 0, first_size: 1, random: Random::of_worker(0), lcg: 0 };
        (0..400_000).map(|_| draw(&mut lookup).to_string()).collect::<HashSet<_>>().len()
    }

    #[test]
    fn random_paths_visit_the_whole_tree_and_the_originals_eight_files() {
        assert_eq!(
            visited(|l| {
                let at = l.choose();
                l.paths[at]
            }),
            TREE_FILES as usize
        );
        assert_eq!(visited(|l| l.faithful_path(Workload::MRPM)), 8);
    }

    #[test]
    fn the_tree_is_counted_right() {
        assert_eq!(TREE_NODES, 32768 + 4096 + 512 + 64 + 8);
        assert_eq!(tree_path(0o12345, 5).to_string(), "1/2/3/4/5");
    }
}
