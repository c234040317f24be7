//! Names of the metadata workloads: `WORKER/N` in the worker's own directory, `share/WORKER.N` in the shared one.

use super::WorkerContext;
use crate::config::Job;
use crate::ops::{Failure, Ops, Result};
use crate::path::RelPath;

/// The shared directory.
pub(crate) const SHARED: &str = "share";

/// The directory of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DirChoice {
    Own,
    Shared,
}

impl DirChoice {
    /// Path of file `n` of worker `me`.
    #[inline]
    pub fn file(self, me: usize, n: u64) -> RelPath {
        match self {
            DirChoice::Own => RelPath::new(format_args!("{me}/{n}")),
            DirChoice::Shared => RelPath::new(format_args!("{SHARED}/{me}.{n}")),
        }
    }

    pub fn dir(self, me: usize) -> RelPath {
        match self {
            DirChoice::Own => RelPath::new(format_args!("{me}")),
            DirChoice::Shared => RelPath::new(format_args!("{SHARED}")),
        }
    }

    /// The number of worker `me`'s file that has this name, without its directory; `None` if it belongs to another worker.
    pub fn number(self, me: usize, name: &[u8]) -> Option<u64> {
        let name = std::str::from_utf8(name).ok()?;
        let number = match self {
            DirChoice::Own => name,
            DirChoice::Shared => name.strip_prefix(&format!("{me}."))?,
        };
        number.parse().ok()
    }
}

/// The paths of all files of a worker, built before the clock starts.
pub(crate) fn paths(job: &Job, place: DirChoice, me: usize) -> Vec<RelPath> {
    (0..u64::from(job.files)).map(|n| place.file(me, n)).collect()
}

/// Makes empty files.
pub(crate) fn create_all<O: Ops>(ops: &O, paths: &[RelPath]) -> Result<()> {
    paths.iter().try_for_each(|path| ops.close(ops.create(path)?))
}

/// Fails unless `path` names a file, or nothing, as `expected` says.
pub(crate) fn check_presence<O: Ops>(ops: &O, path: &RelPath, expected: bool) -> Result<()> {
    if ops.stat(path)?.is_some() == expected {
        return Ok(());
    }
    let detail = format!("{path} {}", if expected { "is missing" } else { "is still there" });
    Err(Failure::Wrong { what: "names", detail })
}

/// Fails unless exactly the `expected` files of this worker are listed, each once.
pub(crate) fn check_listing<O: Ops>(
    worker: &WorkerContext<'_, O>,
    place: DirChoice,
    expected: impl Fn(u64) -> bool,
) -> Result<()> {
    let mut seen = vec![false; worker.job.files as usize];
    let mut dir = worker.ops.open_dir(&place.dir(worker.me))?;
    while let Some(name) = worker.ops.next_name(&mut dir)? {
        let Some(n) = place.number(worker.me, name) else { continue };
        let wrong = |problem| Failure::Wrong {
            what: "listing",
            detail: format!("{} {problem}", place.file(worker.me, n)),
        };
        let slot = seen.get_mut(n as usize).ok_or_else(|| wrong("was never made"))?;
        if std::mem::replace(slot, true) {
            return Err(wrong("is listed twice"));
        }
    }
    worker.ops.close_dir(dir)?;
    match seen.iter().enumerate().find(|(n, seen)| **seen != expected(*n as u64)) {
        None => Ok(()),
        Some((n, seen)) => {
            let problem = if *seen { "is listed, but is gone" } else { "is not listed" };
            Err(Failure::Wrong {
                what: "listing",
                detail: format!("{} {problem}", place.file(worker.me, n as u64)),
            })
        }
    }
}
