//! The measured system: an engine in this process, a kernel file system on a fresh RAM disk, or any
//! directory.

use crate::bench::{hacc, lookup, oltp, varmail};
use crate::config::Job;
use crate::page_pattern::PAGE_BYTES;
use crate::{ConfigError, Run, Workload};
use heddle_vfs::FileSystem;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Space that a run needs in a fresh file system: what the workload keeps at once. An engine adds its own
/// needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// File data in bytes.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
    /// Workers that call at the same time.
    pub workers: usize,
    /// True if files are to be opened past the page cache. Engines without one may ignore it.
    pub direct: bool,
}

/// The kind of a run's workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkersAs {
    /// Threads of this process.
    Threads,
    /// Forked processes, as in the original.
    Processes,
}

impl fmt::Display for WorkersAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            WorkersAs::Threads => "threads",
            WorkersAs::Processes => "processes",
        })
    }
}

/// A mounted temporary image.
pub struct Session {
    /// The file system; workers that are threads hold clones of it until the run is over.
    pub fs: Arc<dyn FileSystem>,
    /// How a worker process attaches to it; `None` if the engine works in one process only.
    pub attach: Option<Attach>,
    /// Unmounts and deletes the image; an error fails the run. Called when no worker holds the file system
    /// any more.
    pub close: Box<dyn FnOnce() -> anyhow::Result<()> + Send>,
}

/// Gives a forked worker a file system of its own. It is called in the worker, and takes no lock that another thread of the program may
/// have held at the fork.
pub type Attach = Box<dyn Fn() -> anyhow::Result<Attached> + Send + Sync>;

/// A session's file system in a worker process.
pub struct Attached {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// Takes the page faults in advance: called once the files exist, before anything is timed.
    pub map: Box<dyn Fn()>,
    /// Detaches cleanly: called when `fs` and its handles are not used any more, before the process ends.
    pub leave: Box<dyn FnOnce()>,
}

/// Makes and mounts a temporary image that is large enough.
pub type Opener = Arc<dyn Fn(&Need) -> anyhow::Result<Session> + Send + Sync>;

/// Makes a run with so many workers in a separate program. The error is the reason why there is no result.
pub type Elsewhere = Arc<dyn Fn(Workload, usize) -> Result<Run, String> + Send + Sync>;

/// A system to measure.
#[derive(Clone)]
pub enum Target {
    /// An engine, opened in this process.
    InProcess {
        /// Its name in reports.
        name: String,
        /// The kind of its workers.
        workers_as: WorkersAs,
        /// Makes a fresh one for each run.
        open: Opener,
    },
    /// A file system of the kernel, on a RAM disk made for each run, used by forked processes.
    Kernel(Kernel),
    /// Any directory, used by forked processes.
    Directory {
        /// Its name in reports.
        label: String,
        /// Each run works in a new directory inside, and removes it.
        path: PathBuf,
    },
    /// A system that only a separately started program can measure.
    Elsewhere {
        /// Its name in reports.
        name: String,
        /// Makes a run.
        run: Elsewhere,
    },
}

/// A file system of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Kernel {
    Tmpfs,
    Ext4,
    /// ext4 without a journal, as in FxMark.
    Ext4NoJournal,
    Xfs,
    Btrfs,
    F2fs,
}

impl Kernel {
    pub(crate) const ALL: [Kernel; 6] =
        [Kernel::Tmpfs, Kernel::Ext4, Kernel::Ext4NoJournal, Kernel::Xfs, Kernel::Btrfs, Kernel::F2fs];

    /// Its name as a target.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Tmpfs => "tmpfs",
            Kernel::Ext4 => "ext4",
            Kernel::Ext4NoJournal => "ext4-nj",
            Kernel::Xfs => "xfs",
            Kernel::Btrfs => "btrfs",
            Kernel::F2fs => "f2fs-kernel",
        }
    }
}

impl Target {
    /// Its name in reports.
    pub fn name(&self) -> &str {
        match self {
            Target::InProcess { name, .. } | Target::Elsewhere { name, .. } => name,
            Target::Kernel(kernel) => kernel.name(),
            Target::Directory { label, .. } => label,
        }
    }

    /// The kind of its workers.
    pub fn workers_as(&self) -> WorkersAs {
        match self {
            Target::InProcess { workers_as, .. } => *workers_as,
            Target::Kernel(_) | Target::Directory { .. } | Target::Elsewhere { .. } => WorkersAs::Processes,
        }
    }

    /// Finds the target: one of `engines` with this name, a kernel file system, or `LABEL=PATH`.
    ///
    /// # Errors
    /// [`ConfigError::UnknownTarget`], which lists the known names; [`ConfigError::NotDirectory`].
    pub fn find(name: &str, engines: &[Target]) -> Result<Target, ConfigError> {
        if let Some((label, path)) =
            name.split_once('=').filter(|(label, path)| !label.is_empty() && !path.is_empty())
        {
            return match std::fs::canonicalize(path).ok().filter(|p| p.is_dir()) {
                Some(path) => Ok(Target::Directory { label: label.to_owned(), path }),
                None => Err(ConfigError::NotDirectory { name: label.to_owned(), path: path.to_owned() }),
            };
        }
        let kernel = || Kernel::ALL.into_iter().find(|k| k.name() == name).map(Target::Kernel);
        engines.iter().find(|t| t.name() == name).cloned().or_else(kernel).ok_or_else(|| {
            let known: Vec<&str> =
                engines.iter().map(Target::name).chain(Kernel::ALL.map(Kernel::name)).collect();
            ConfigError::UnknownTarget { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Returns true for a kernel file system that others are compared with. With `direct`, tmpfs is none: it
    /// accepts the flag and ignores it.
    pub(crate) fn is_peer(&self, direct: bool) -> bool {
        matches!(self, Target::Kernel(kernel) if !direct || *kernel != Kernel::Tmpfs)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.name())
    }
}

impl Need {
    /// The space that a run needs at once.
    pub(crate) fn of(job: &Job) -> Need {
        use Workload::*;
        let workers = job.workers as u64;
        let dirs = workers + 2;
        let (pages, files) = match job.workload {
            DRBL | DWOL | DWSL | DRBM | DWOM | MIX50 | MIX75 | MIX25 => (workers * job.share_pages, workers),
            DRBH => (1, 1),
            DWAL if job.faithful => (workers * FAITHFUL_APPEND_PAGES, workers),
            DWAL => (workers * job.window_pages, workers),
            DWTL if job.faithful => (workers * job.window_pages, workers),
            DWTL => (2 * workers, workers),
            MRPL | MRPH => (0, 5 * workers),
            MRPM => (0, lookup::TREE_NODES),
            MWCM if job.faithful => (workers * u64::from(job.files), workers * u64::from(job.files)),
            MRDL | MRDM | MWCL | MWCM | MWUL | MWUM | MWRL | MWRM => (0, workers * u64::from(job.files)),
            HACC => (hacc::file_bytes(job).div_ceil(PAGE_BYTES), 1),
            OLTP => (oltp::files_bytes(job).div_ceil(PAGE_BYTES), oltp::FILES),
            VARMAIL => {
                let mails = workers * varmail::mails(job) as u64;
                (mails * varmail::MAIL_PAGES, mails)
            }
        };
        Need { bytes: pages * PAGE_BYTES, files: files + dirs, workers: job.workers, direct: job.direct }
    }
}

/// The faithful DWAL appends until the device is full: this much a worker.
const FAITHFUL_APPEND_PAGES: u64 = (1 << 30) / PAGE_BYTES;
