//! The world of processes: C library calls on paths below the working directory.
//!
//! Calls go through the C library's symbols and never past them, so that a preloaded library can take them.

use super::{Failure, Mode, Ops, Result, whole};
use crate::path::RelPath;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;

/// The working directory is the root of what is measured.
pub(crate) struct Posix;

/// A descriptor, closed by `close` alone: a worker that fails exits.
pub(crate) struct Fd(libc::c_int);

/// A directory stream.
pub(crate) struct Stream(*mut libc::DIR);

fn checked(call: &'static str, rc: impl Into<i64>) -> Result<i64> {
    let rc = rc.into();
    if rc >= 0 { Ok(rc) } else { Err(Failure::Posix { call, source: io::Error::last_os_error() }) }
}

fn open_raw(path: &RelPath, flags: libc::c_int) -> Result<Fd> {
    // SAFETY: a NUL-terminated path.
    let fd = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o644 as libc::c_uint) };
    checked("open", fd).map(|_| Fd(fd))
}

impl Ops for Posix {
    type File = Fd;
    type Dir = Stream;

    fn mkdir(&self, path: &RelPath) -> Result<()> {
        // SAFETY: a NUL-terminated path.
        checked("mkdir", unsafe { libc::mkdir(path.as_ptr(), 0o755) }).map(drop)
    }

    fn create(&self, path: &RelPath) -> Result<Fd> {
        open_raw(path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)
    }

    fn open(&self, path: &RelPath, mode: Mode, direct: bool) -> Result<Fd> {
        let access = match mode {
            Mode::Read => libc::O_RDONLY,
            Mode::ReadWrite => libc::O_RDWR,
            Mode::Append => libc::O_RDWR | libc::O_APPEND,
        };
        open_raw(path, access | if direct { libc::O_DIRECT } else { 0 })
    }

    fn close(&self, file: Fd) -> Result<()> {
        // SAFETY: `Fd` is handed out by `open_raw` alone and taken by value here.
        checked("close", unsafe { libc::close(file.0) }).map(drop)
    }

    fn stat(&self, path: &RelPath) -> Result<Option<u64>> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: a NUL-terminated path and room for the answer.
        match checked("stat", unsafe { libc::stat(path.as_ptr(), stat.as_mut_ptr()) }) {
            // SAFETY: the call succeeded, so it filled the answer.
            Ok(_) => Ok(Some(unsafe { stat.assume_init() }.st_size as u64)),
            Err(failure) if failure.errno() == Some(libc::ENOENT) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn unlink(&self, path: &RelPath) -> Result<()> {
        // SAFETY: a NUL-terminated path.
        checked("unlink", unsafe { libc::unlink(path.as_ptr()) }).map(drop)
    }

    fn rename(&self, from: &RelPath, to: &RelPath) -> Result<()> {
        // SAFETY: NUL-terminated paths.
        checked("rename", unsafe { libc::rename(from.as_ptr(), to.as_ptr()) }).map(drop)
    }

    #[inline]
    fn read(&self, file: &Fd, offset: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the buffer is valid for its length.
        let rc = unsafe { libc::pread64(file.0, bytes.as_mut_ptr().cast(), bytes.len(), offset as i64) };
        whole("pread", checked("pread", rc as i64)? as usize, bytes.len())
    }

    #[inline]
    fn write(&self, file: &Fd, offset: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the buffer is valid for its length.
        let rc = unsafe { libc::pwrite64(file.0, bytes.as_ptr().cast(), bytes.len(), offset as i64) };
        whole("pwrite", checked("pwrite", rc as i64)? as usize, bytes.len())
    }

    #[inline]
    fn append(&self, file: &Fd, bytes: &[u8]) -> Result<Option<u64>> {
        // SAFETY: the buffer is valid for its length.
        let rc = unsafe { libc::write(file.0, bytes.as_ptr().cast(), bytes.len()) };
        whole("write", checked("write", rc as i64)? as usize, bytes.len())?;
        Ok(None)
    }

    fn truncate(&self, file: &Fd, size_bytes: u64) -> Result<()> {
        // SAFETY: no pointers.
        checked("ftruncate", unsafe { libc::ftruncate64(file.0, size_bytes as i64) }).map(drop)
    }

    fn fsync(&self, file: &Fd) -> Result<()> {
        // SAFETY: no pointers.
        checked("fsync", unsafe { libc::fsync(file.0) }).map(drop)
    }

    fn size(&self, file: &Fd) -> Result<u64> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: room for the answer.
        checked("fstat", unsafe { libc::fstat(file.0, stat.as_mut_ptr()) })?;
        // SAFETY: the call succeeded, so it filled the answer.
        Ok(unsafe { stat.assume_init() }.st_size as u64)
    }

    fn open_dir(&self, path: &RelPath) -> Result<Stream> {
        // SAFETY: a NUL-terminated path.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        checked("opendir", if stream.is_null() { -1 } else { 0 }).map(|_| Stream(stream))
    }

    #[inline]
    fn next_name<'d>(&self, dir: &'d mut Stream) -> Result<Option<&'d [u8]>> {
        // SAFETY: errno is this thread's; the stream is open until `close_dir` takes it; the name in the entry is
        // NUL-terminated and stays until the next call on this stream, which the borrow of `dir` forbids meanwhile.
        unsafe {
            *libc::__errno_location() = 0;
            let entry = libc::readdir64(dir.0);
            if !entry.is_null() {
                return Ok(Some(CStr::from_ptr((&raw const (*entry).d_name).cast()).to_bytes()));
            }
            let failed = *libc::__errno_location() != 0;
            checked("readdir", if failed { -1 } else { 0 }).map(|_| None)
        }
    }

    fn rewind(&self, dir: &mut Stream) -> Result<()> {
        // SAFETY: the stream is open.
        unsafe { libc::rewinddir(dir.0) };
        Ok(())
    }

    fn close_dir(&self, dir: Stream) -> Result<()> {
        // SAFETY: the stream is open and taken by value here.
        checked("closedir", unsafe { libc::closedir(dir.0) }).map(drop)
    }

    fn write_back(&self) -> Result<()> {
        let here = open_raw(&RelPath::new(format_args!(".")), libc::O_RDONLY | libc::O_DIRECTORY)?;
        // SAFETY: no pointers.
        checked("syncfs", unsafe { libc::syncfs(here.0) })?;
        self.close(here)
    }
}
