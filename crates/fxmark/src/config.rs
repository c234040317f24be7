//! The parameters of a benchmark: the options of `heddle fxmark`, checked before anything starts.

use crate::{Need, Target, Workload, machine, page_pattern::PAGE_BYTES, workload};
use serde::Serialize;

/// The page of its own part that a worker takes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Always the same page, as in FxMark.
    #[default]
    Fixed,
    /// A random page of the worker's own set, as in SRL's Fig. 15.
    Random,
}

/// How the workers' pages lie in the shared file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub enum Stride {
    /// Neighbours: page 0 is worker 0's, page 1 is worker 1's (the paper's Table 2).
    #[serde(rename = "4K")]
    Page,
    /// Each worker has one contiguous part, 8 MiB unless the file's size says otherwise (the paper's program).
    #[default]
    #[serde(rename = "8M")]
    Segment,
}

/// The default number of repeats of a run with slow cache lines: on a machine that stays slow, the slow
/// figure is the right one.
const RETAKES: u32 = 4;

/// A whole benchmark: every workload on every number of cores against every target.
#[derive(Clone, Debug)]
pub struct Config {
    /// Workloads, in this order.
    pub workloads: Vec<Workload>,
    /// Targets; their labels differ.
    pub targets: Vec<Target>,
    /// Numbers of workers, each pinned to a CPU of its own.
    pub cores: Vec<usize>,
    /// Timed seconds of one run.
    pub secs: f64,
    /// Runs of each cell.
    pub repeat: u32,
    /// Most repeats of a run of several workers, if cache lines were slow between their CPUs meanwhile.
    pub retakes: u32,
    /// The choice of the next page.
    pub access: Access,
    /// Bytes of a call of DRBL and DWOL.
    pub call_bytes: u64,
    /// Size of the shared file, or of all private files together, in bytes; `None`: 8 MiB a worker.
    pub file_size_bytes: Option<u64>,
    /// How pages lie in the shared file.
    pub stride: Stride,
    /// `O_DIRECT`, on POSIX targets and on F2FS engines.
    pub direct: bool,
    /// The original program's loops.
    pub faithful: bool,
    /// Blocks a worker of DWAL (and of the faithful DWTL) holds before it starts over, in bytes.
    pub window_bytes: u64,
    /// Files per worker of the metadata workloads.
    pub files: u32,
    /// What writes that returned survive in the engines, for the report.
    pub durability: &'static str,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            workloads: Workload::nineteen().collect(),
            targets: Vec::new(),
            cores: vec![1],
            secs: 2.0,
            repeat: 3,
            retakes: RETAKES,
            access: Access::Fixed,
            call_bytes: PAGE_BYTES,
            file_size_bytes: None,
            stride: Stride::Segment,
            direct: false,
            faithful: false,
            window_bytes: 64 << 20,
            files: 8192,
            durability: "process",
        }
    }
}

/// The reason why a benchmark cannot start: always a usage error.
#[derive(thiserror::Error, Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each text says it")]
pub enum ConfigError {
    #[error("no workload is called '{name}'; there are: {}", workload::names())]
    UnknownWorkload { name: String },
    #[error("no target is called '{name}'; there are: {known}, and LABEL=PATH for any directory")]
    UnknownTarget { name: String, known: String },
    #[error("target '{name}': {path} is not a directory that can be entered; make it first: mkdir -p {path}")]
    NotDirectory { name: String, path: String },
    #[error("target '{name}' is named twice; give each directory a label of its own: LABEL=PATH")]
    TwiceTarget { name: String },
    #[error("nothing to run: name at least one {what}")]
    Nothing { what: &'static str },
    #[error(
        "{asked} workers need as many CPUs, but this process may use {allowed}: choose --cores 1 to {allowed}"
    )]
    TooManyCores { asked: usize, allowed: usize },
    #[error("{name} cannot be {value}: {remedy}")]
    Value { name: &'static str, value: String, remedy: &'static str },
    #[error("--direct is measured with DRBL DRBM DWOL DWOM, not with {workload}: leave that out")]
    NotDirect { workload: Workload },
    #[error(
        "--call is about DRBL and DWOL, without --direct and --faithful, not about {workload}: leave that out"
    )]
    NotByCalls { workload: Workload },
    #[error("--faithful is about FxMark's own loops, which {workload} is none of: leave that out")]
    NotFaithful { workload: Workload },
}

impl Config {
    /// Finds usage errors.
    ///
    /// # Errors
    /// The first one found.
    pub fn check(&self) -> Result<(), ConfigError> {
        let nothing = [
            (self.workloads.is_empty(), "workload"),
            (self.targets.is_empty(), "target"),
            (self.cores.is_empty(), "number of cores"),
        ];
        if let Some((_, what)) = nothing.into_iter().find(|(empty, _)| *empty) {
            return Err(ConfigError::Nothing { what });
        }
        let allowed = machine::allowed_cpus().len();
        if let Some(&asked) = self.cores.iter().find(|&&n| n > allowed) {
            return Err(ConfigError::TooManyCores { asked, allowed });
        }
        for (at, target) in self.targets.iter().enumerate() {
            if self.targets[..at].iter().any(|t| t.name() == target.name()) {
                return Err(ConfigError::TwiceTarget { name: target.name().to_owned() });
            }
        }
        if let Some(&workload) = self.workloads.iter().find(|w| self.direct && !w.takes_direct()) {
            return Err(ConfigError::NotDirect { workload });
        }
        if let Some(&workload) = self.workloads.iter().find(|w| self.faithful && w.is_application()) {
            return Err(ConfigError::NotFaithful { workload });
        }
        let by_calls =
            |w: Workload| matches!(w, Workload::DRBL | Workload::DWOL) && !self.direct && !self.faithful;
        match self.workloads.iter().find(|w| self.call_bytes != PAGE_BYTES && !by_calls(**w)) {
            Some(&workload) => Err(ConfigError::NotByCalls { workload }),
            None => self.check_values(),
        }
    }

    fn check_values(&self) -> Result<(), ConfigError> {
        let bad = |name, value: String, remedy| Err(ConfigError::Value { name, value, remedy });
        let workers_max = self.cores.iter().copied().max().unwrap_or(1) as u64;
        if self.cores.contains(&0) {
            return bad("--cores", "0".into(), "a run has at least one worker");
        }
        if !(0.001..=3600.0).contains(&self.secs) {
            return bad("--secs", self.secs.to_string(), "choose 0.001 to 3600 seconds");
        }
        if self.repeat == 0 {
            return bad("--repeat", "0".into(), "each cell runs at least once");
        }
        if let Some(bytes) = self.file_size_bytes.filter(|b| b / workers_max < PAGE_BYTES) {
            return bad("--file-size", bytes.to_string(), "each worker needs a page of 4 KiB");
        }
        let share_bytes = self.job(Workload::DRBL, workers_max as usize).share_pages * PAGE_BYTES;
        if !self.call_bytes.is_power_of_two() || !(64..=share_bytes.min(1 << 24)).contains(&self.call_bytes) {
            let remedy = "it is a power of two, from 64 up to 16M and to a worker's part of --file-size";
            return bad("--call", self.call_bytes.to_string(), remedy);
        }
        if self.window_bytes < 2 * PAGE_BYTES {
            return bad("the window", self.window_bytes.to_string(), "it holds at least two blocks of 4 KiB");
        }
        if self.files == 0 {
            return bad("the number of files", "0".into(), "each worker needs at least one");
        }
        Ok(())
    }

    /// The largest need of any run, for a file system that serves them all.
    pub fn need_max(&self) -> Need {
        let cells =
            self.workloads.iter().flat_map(|w| self.cores.iter().map(|n| Need::of(&self.job(*w, *n))));
        let most = |a: Need, b: Need| Need {
            bytes: a.bytes.max(b.bytes),
            files: a.files.max(b.files),
            workers: a.workers.max(b.workers),
            direct: a.direct,
        };
        cells.reduce(most).unwrap_or(Need { bytes: 0, files: 0, workers: 0, direct: self.direct })
    }

    /// The parameters of one run.
    pub(crate) fn job(&self, workload: Workload, workers: usize) -> Job {
        let share_bytes = self.file_size_bytes.map_or(8 << 20, |total| total / workers as u64);
        Job {
            workload,
            workers,
            secs: self.secs,
            access: self.access,
            call_bytes: self.call_bytes,
            stride: self.stride,
            share_pages: share_bytes / PAGE_BYTES,
            direct: self.direct,
            faithful: self.faithful,
            window_pages: self.window_bytes / PAGE_BYTES,
            files: self.files,
        }
    }
}

/// One run: a workload on a number of workers.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub workload: Workload,
    pub workers: usize,
    pub secs: f64,
    pub access: Access,
    pub call_bytes: u64,
    pub stride: Stride,
    /// Pages of one worker in the shared file.
    pub share_pages: u64,
    pub direct: bool,
    pub faithful: bool,
    pub window_pages: u64,
    pub files: u32,
}
