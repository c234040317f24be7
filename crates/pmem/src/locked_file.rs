//! A file or device that is locked but not yet a region: its content is inspected before a byte of it is
//! changed.
//!
//! Invariants  I1  it is locked as a region is (see `backing_file`): no process that takes these locks can change the content between
//!                 inspection and overwrite.
//!             I2  a new file gets its name in `keep`. Before that, a failure or a kill leaves no file. Without O_TMPFILE the file has
//!                 the name at once, and a kill leaves it. If another process has used the name meanwhile, that process keeps it.
//!             I3  a symbolic link to a regular file is refused: the caller may not mean the target.

use crate::Pos;
use crate::backing_file::{self, OpenOptions, parent_dir, system};
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::region::Region;
use heddle_signatures::Claim;
use rustix::fs::{self, AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A locked file or device.
#[derive(Debug)]
pub struct LockedFile {
    file: OwnedFd,
    stat: Stat,
    /// Locks of other devices and files with the same bytes; `None`: the region, or the caller, has them.
    claim: Option<Claim>,
    path: PathBuf,
    name: NameState,
}

/// Whether the file has its final name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NameState {
    HasName,
    /// New: `keep` gives it the name.
    Nameless,
    /// New, and has the name before `keep`: the file system has no files without one.
    NamedEarly,
}

impl LockedFile {
    /// Makes the file, or locks the existing file or device.
    ///
    /// Errors: [`Error::InUse`], [`Error::IsLink`], [`Error::System`].
    pub fn new(path: impl AsRef<Path>) -> Result<LockedFile> {
        let path = path.as_ref();
        let how = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let (file, name) = match open_existing(path, how)? {
            Some(file) => (file, NameState::HasName),
            None => make(path, how)?,
        };
        let stat = backing_file::lock(&file, path, FlockOperation::NonBlockingLockExclusive);
        match stat {
            Ok((stat, claim)) => Ok(LockedFile { file, stat, claim: Some(claim), path: path.into(), name }),
            Err(error) => {
                if name == NameState::NamedEarly {
                    let _ = fs::unlink(path);
                }
                Err(error)
            }
        }
    }

    /// Its `stat`.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns true for a new file until [`LockedFile::keep`].
    pub fn is_new(&self) -> bool {
        self.name != NameState::HasName
    }

    /// Gives a new file its name, durably (I2).
    ///
    /// Errors: [`Error::Exists`], if another process has taken the name meanwhile; [`Error::System`].
    pub fn keep(&mut self) -> Result<()> {
        if self.name == NameState::Nameless {
            let from = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            match fs::linkat(CWD, from, CWD, &self.path, AtFlags::SYMLINK_FOLLOW) {
                Err(Errno::EXIST) => return Err(Error::Exists { path: self.path.clone() }),
                linked => linked.map_err(system("create", &self.path))?,
            }
        }
        if self.is_new() {
            self.name = NameState::HasName;
            backing_file::sync_directory_of(&self.path)?;
        }
        Ok(())
    }

    /// Returns true for a file, false for a device.
    pub fn is_file(&self) -> bool {
        backing_file::is_regular(&self.stat)
    }

    /// Size of the file or device in bytes.
    ///
    /// Errors: [`Error::NotMappable`], [`Error::System`].
    pub fn len_bytes(&self) -> Result<u64> {
        backing_file::size_of_media(&self.file, &self.stat, &self.path)
    }

    /// Changes the size of an existing file. The content up to it stays.
    ///
    /// Errors: [`Error::System`].
    pub fn resize(&mut self, len_bytes: u64) -> Result<()> {
        fs::ftruncate(&self.file, len_bytes).map_err(system("size", &self.path))?;
        self.stat = fs::fstat(&self.file).map_err(system("examine", &self.path))?;
        Ok(())
    }

    /// The kind of its content.
    ///
    /// Errors: as [`LockedFile::len_bytes`], and those of a mapping.
    pub fn content(&self) -> Result<heddle_signatures::Content> {
        let len_bytes = self.len_bytes()?;
        if let Some(region) = self.mapped(true)? {
            return Ok(heddle_signatures::detect(len_bytes, &|at, into| region.read(Pos(at), into)));
        }
        Ok(content_of(&self.as_file()?, len_bytes))
    }

    /// Returns true if its first `len_bytes`, or all if it has fewer, are zeros. Holes of a file are not
    /// read. `progress` gets bytes seen, and in total.
    ///
    /// Errors: [`Error::System`], and those of a mapping.
    pub fn is_zero(&self, len_bytes: u64, progress: &dyn Fn(u64, u64)) -> Result<bool> {
        let (file, mapped) = (self.as_file()?, self.mapped(true)?);
        let len_bytes = len_bytes.min(self.len_bytes()?);
        let (mut piece, mut at) = (vec![0; 1 << 20], 0);
        while at < len_bytes {
            progress(at, len_bytes);
            at = match fs::seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) if self.is_file() => return Ok(true),
                // A device has no holes.
                Err(_) => at,
            };
            let here = len_bytes.saturating_sub(at).min(piece.len() as u64) as usize;
            match &mapped {
                Some(region) => region.read(Pos(at), &mut piece[..here]),
                None => file.read_exact_at(&mut piece[..here], at).map_err(|error| {
                    system("read", &self.path)(Errno::from_io_error(&error).unwrap_or(Errno::IO))
                })?,
            }
            if piece[..here].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += here as u64;
        }
        Ok(true)
    }

    /// Erases the signatures of its content, durably.
    ///
    /// Errors: [`Error::System`], [`Error::NotDurable`].
    pub fn wipe(&self, content: &heddle_signatures::Content) -> Result<()> {
        if let Some(region) = self.mapped(false)? {
            let done: Result<()> = heddle_signatures::wipe(content, |at, zeros| {
                region.nt_write(Pos(at), zeros);
                Ok(())
            });
            // PERSIST: the old signatures are gone before anything is made.
            region.fence();
            return done.and_then(|()| region.failed().map_or(Ok(()), Err));
        }
        let file = self.as_file()?;
        let failed = |error: std::io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            system("write", &self.path)(errno)
        };
        heddle_signatures::wipe(content, |at, zeros| file.write_all_at(zeros, at)).map_err(failed)?;
        file.sync_all().map_err(failed)
    }

    fn as_file(&self) -> Result<File> {
        let file = rustix::io::fcntl_dupfd_cloexec(&self.file, 0);
        file.map(File::from).map_err(system("open again", &self.path))
    }

    /// A character device can only be mapped.
    fn mapped(&self, read_only: bool) -> Result<Option<Region>> {
        if FileType::from_raw_mode(self.stat.st_mode) != FileType::CharacterDevice {
            return Ok(None);
        }
        let len_bytes = self.len_bytes()?;
        let file = self.as_file()?.into();
        Region::attach(file, Some(&self.path), len_bytes, read_only, Durability::Power).map(Some)
    }

    /// As [`Region::create`], but replaces existing content.
    ///
    /// Errors: those of [`Region::create`].
    pub fn create(mut self, len_bytes: u64, options: &OpenOptions<'_>) -> Result<Region> {
        let region = self.create_unnamed(len_bytes, options)?;
        self.keep()?;
        Ok(region)
    }

    /// As [`LockedFile::create`], but without [`LockedFile::keep`].
    ///
    /// Errors: as [`LockedFile::create`].
    pub fn create_unnamed(&mut self, len_bytes: u64, options: &OpenOptions<'_>) -> Result<Region> {
        let len_bytes = backing_file::whole_blocks(&self.path, len_bytes)?;
        let len_bytes = backing_file::fill(&self.file, &self.stat, &self.path, len_bytes, options)?;
        let held = (self.as_file()?.into(), self.claim.take().unwrap_or_default());
        backing_file::map(held, &self.path, [len_bytes; 2], options)
    }

    /// As [`Region::open`], for writing.
    ///
    /// Errors: those of [`Region::open`].
    pub fn open(&mut self, options: &OpenOptions<'_>) -> Result<Region> {
        let len_bytes = backing_file::whole_blocks(&self.path, self.len_bytes()?)?;
        if self.is_file() {
            backing_file::reserve_all(&self.file, &self.path, len_bytes, false, options.progress)?;
        }
        let held = (self.as_file()?.into(), self.claim.take().unwrap_or_default());
        backing_file::map(held, &self.path, [len_bytes; 2], options)
    }

    /// Returns a duplicate of the descriptor, and the claim. The flock lasts while this value or the duplicate is open. A new file gets its
    /// name only in [`LockedFile::keep`].
    ///
    /// Errors: [`Error::System`].
    pub fn file_unnamed(&mut self) -> Result<(File, Claim)> {
        Ok((self.as_file()?, self.claim.take().unwrap_or_default()))
    }
}

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if self.name == NameState::NamedEarly {
            let _ = fs::unlink(&self.path);
        }
    }
}

/// The kind of content of a file or device, as far as it can be read.
pub(crate) fn content_of(file: &File, len_bytes: u64) -> heddle_signatures::Content {
    heddle_signatures::detect(len_bytes, &|at, into| {
        // Bytes that cannot be read count as zero.
        let _ = file.read_exact_at(into, at);
    })
}

/// Opens a path, if it exists.
fn open_existing(path: &Path, how: OFlags) -> Result<Option<OwnedFd>> {
    match backing_file::open_file(path, how | OFlags::NOFOLLOW) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP) => {
            let file = backing_file::open_file(path, how).map_err(backing_file::not_opened(path))?;
            let stat = fs::fstat(&file).map_err(system("examine", path))?;
            match backing_file::is_regular(&stat) {
                true => Err(Error::IsLink {
                    path: path.into(),
                    to: path.canonicalize().unwrap_or_else(|_| path.into()),
                }),
                false => Ok(Some(file)),
            }
        }
        Err(errno) => Err(backing_file::not_opened(path)(errno)),
    }
}

fn make(path: &Path, how: OFlags) -> Result<(OwnedFd, NameState)> {
    let mode = Mode::from_raw_mode(0o600);
    if let Ok(file) = fs::openat(CWD, parent_dir(path), how | OFlags::TMPFILE, mode) {
        return Ok((file, NameState::Nameless));
    }
    let made = fs::openat(CWD, path, how | OFlags::CREATE | OFlags::EXCL, mode);
    made.map(|file| (file, NameState::NamedEarly)).map_err(system("create", path))
}
