//! The calls a workload makes, so that one loop serves both worlds: `posix` (C library calls of a process) and
//! `engine` (the `FileSystem` trait, paths walked name by name as the kernel does).

pub(crate) mod engine;
pub(crate) mod posix;

use crate::path::RelPath;

/// The reason why a worker gave up. Each fails the run.
#[derive(thiserror::Error, Debug)]
pub(crate) enum Failure {
    #[error("{call} failed: {source}")]
    Posix { call: &'static str, source: std::io::Error },
    #[error("{call} failed: {source}")]
    Engine { call: &'static str, source: heddle_vfs::Error },
    #[error("{call} moved {got} bytes instead of {want}")]
    Short { call: &'static str, got: usize, want: usize },
    #[error("verification failed: wrong {what}: {detail}")]
    Wrong { what: &'static str, detail: String },
    /// Any other reason, in words.
    #[error("{0}")]
    Other(&'static str),
    /// Another worker failed; its text is reported.
    #[error("stopped because another worker failed")]
    Aborted,
}

impl Failure {
    pub fn errno(&self) -> Option<i32> {
        match self {
            Failure::Posix { source, .. } => source.raw_os_error(),
            Failure::Engine { source, .. } => Some(source.errno()),
            _ => None,
        }
    }

    /// Verification found `got` where `want` belongs.
    pub fn wrong<T: PartialEq + std::fmt::Display>(what: &'static str, got: T, want: T) -> Result<()> {
        if got == want {
            return Ok(());
        }
        Err(Failure::Wrong { what, detail: format!("{got} instead of {want}") })
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// How a workload opens a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Read,
    ReadWrite,
    Append,
}

/// One of the two worlds.
pub(crate) trait Ops {
    type File;
    type Dir;

    fn mkdir(&self, path: &RelPath) -> Result<()>;
    /// Makes a file that does not exist and opens it for reading and writing.
    fn create(&self, path: &RelPath) -> Result<Self::File>;
    /// Opens a file; `direct`: past the page cache, if there is one.
    fn open(&self, path: &RelPath, mode: Mode, direct: bool) -> Result<Self::File>;
    fn close(&self, file: Self::File) -> Result<()>;
    /// Size in bytes of the file at a path; `None` if there is none.
    fn stat(&self, path: &RelPath) -> Result<Option<u64>>;
    fn unlink(&self, path: &RelPath) -> Result<()>;
    fn rename(&self, from: &RelPath, to: &RelPath) -> Result<()>;

    /// Reads all bytes in one call, or fails.
    fn read(&self, file: &Self::File, offset: u64, bytes: &mut [u8]) -> Result<()>;
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Appends. Returns the offset, if the world tells it.
    fn append(&self, file: &Self::File, bytes: &[u8]) -> Result<Option<u64>>;
    fn truncate(&self, file: &Self::File, size_bytes: u64) -> Result<()>;
    fn fsync(&self, file: &Self::File) -> Result<()>;
    fn size(&self, file: &Self::File) -> Result<u64>;

    fn open_dir(&self, path: &RelPath) -> Result<Self::Dir>;
    /// The next name, including `.` and `..` if the world has them; `None` at the end, also when repeated.
    fn next_name<'d>(&self, dir: &'d mut Self::Dir) -> Result<Option<&'d [u8]>>;
    fn rewind(&self, dir: &mut Self::Dir) -> Result<()>;
    fn close_dir(&self, dir: Self::Dir) -> Result<()>;

    /// Writes back the set-up's data, so that it is not written back in the timed loop.
    fn write_back(&self) -> Result<()>;

    /// All workers' files exist now: takes the page faults that this world would otherwise take in the timed
    /// loop.
    fn ready(&self) {}
}

pub(crate) fn whole(call: &'static str, got: usize, want: usize) -> Result<()> {
    if got == want { Ok(()) } else { Err(Failure::Short { call, got, want }) }
}
