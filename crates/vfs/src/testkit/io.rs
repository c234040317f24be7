//! Positional reads and writes, of an engine's file or of the kernel's: what the concurrent checks work on.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use crate::{Cred, FileSystem, Handle, path};

/// A file that is read and written at offsets.
pub trait PositionalIo: Send + Sync {
    /// Reads; the number of bytes.
    ///
    /// # Errors
    /// Those of the file system.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes; the number of bytes.
    ///
    /// # Errors
    /// Those of the file system.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;
}

/// A file that is written at its end.
pub trait AppendIo: Send + Sync {
    /// Writes all of `buf` at the end; the offset it went to.
    ///
    /// # Errors
    /// Those of the file system; [`io::ErrorKind::WriteZero`] if only a part was written.
    fn append(&self, buf: &[u8]) -> io::Result<u64>;
}

/// An open file of a [`FileSystem`]; closes it when dropped.
pub struct FsFile<'a> {
    fs: &'a dyn FileSystem,
    handle: Option<Handle>,
}

impl<'a> FsFile<'a> {
    /// Opens `path` as root, `flags` as open(2).
    ///
    /// # Errors
    /// Those of [`path::open_path`].
    pub fn open(fs: &'a dyn FileSystem, path: &str, flags: i32) -> io::Result<FsFile<'a>> {
        let handle = path::open_path(fs, &Cred::root(), path, flags, 0o644).map_err(to_io)?;
        Ok(FsFile { fs, handle: Some(handle) })
    }

    fn handle(&self) -> io::Result<&Handle> {
        self.handle.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }
}

impl Drop for FsFile<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.fs.release(handle);
        }
    }
}

fn to_io(error: crate::Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

impl PositionalIo for FsFile<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.fs.read(self.handle()?, offset, buf).map_err(to_io)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.fs.write(self.handle()?, offset, buf).map_err(to_io)
    }
}

impl AppendIo for FsFile<'_> {
    fn append(&self, buf: &[u8]) -> io::Result<u64> {
        self.fs.append(self.handle()?, buf).map_err(to_io)
    }
}

impl PositionalIo for File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, buf, offset)
    }
}

/// A kernel file opened with `O_APPEND` that no one else shares: after a write its position tells where that ended.
impl AppendIo for Mutex<File> {
    fn append(&self, buf: &[u8]) -> io::Result<u64> {
        use io::{Seek, Write};
        let mut file = self.lock().map_err(|_| io::Error::other("an earlier append panicked"))?;
        if file.write(buf)? != buf.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(file.stream_position()? - buf.len() as u64)
    }
}
