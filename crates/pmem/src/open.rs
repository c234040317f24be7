//! Making and opening regions.
//!
//! Invariants  I1  a region is locked before a byte of it is changed, and while any mapping of it made here lives (see `backing_file`).
//!             I2  a file that `create` has made is removed again if `create` fails (see `locked_file`).

use crate::backing_file::{
    NAMELESS, OpenOptions, SizeInUse, is_regular, lock, map, map_as_durably_as_possible, not_opened,
    open_file, reserve_all, size_and_reserve, size_of_media, system, whole_blocks,
};
use crate::dirty::Failure;
use crate::domain::{self, Backend};
use crate::durability::Durability;
use crate::locked_file::LockedFile;
use crate::mapping::Mapping;
use crate::region::{Region, Source};
use crate::{BLOCK_BYTES, Error, Pos, Result, presence};
use rustix::fs::{self, FlockOperation, MemfdFlags, OFlags, flock, fstat};
use rustix::io::{Errno, pread};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

impl Region {
    /// Makes a file of `len_bytes`, rounded down to whole blocks, full of zeros and with its blocks reserved,
    /// and maps it. On a device, uses its first `len_bytes`, with their present content.
    ///
    /// Errors: [`Error::Exists`], [`Error::InUse`], [`Error::TooSmall`], [`Error::TooLarge`], [`Error::NoSpace`],
    /// [`Error::NotMappable`], [`Error::System`].
    pub fn create(path: impl AsRef<Path>, len_bytes: u64, options: &OpenOptions<'_>) -> Result<Region> {
        let path = path.as_ref();
        whole_blocks(path, len_bytes)?;
        let locked_file = LockedFile::new(path)?;
        match locked_file.is_new() || options.overwrite {
            true => locked_file.create(len_bytes, options),
            false => Err(Error::Exists { path: path.into() }),
        }
    }

    /// Maps all of an existing file or device.
    ///
    /// Holes in the part of a file that is in use are given blocks first, unless it is opened for reading
    /// only.
    ///
    /// Errors: [`Error::InUse`], [`Error::TooSmall`], [`Error::NoSpace`], [`Error::NotMappable`], [`Error::System`].
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions<'_>) -> Result<Region> {
        let path = path.as_ref();
        let (how, lock_how) = match options.read_only {
            true => (OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
            false => (OFlags::RDWR, FlockOperation::NonBlockingLockExclusive),
        };
        // NONBLOCK: a pipe must be refused, not waited for.
        let how = how | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = open_file(path, how).map_err(not_opened(path))?;
        let (stat, claim) = lock(&file, path, lock_how)?;
        let len_bytes = whole_blocks(path, size_of_media(&file, &stat, path)?)?;
        let used_bytes = match options.size_in_use.filter(|_| is_regular(&stat)) {
            Some(size_in_use) => used(&file, size_in_use, len_bytes).min(len_bytes),
            None => len_bytes,
        };
        if is_regular(&stat) && !options.read_only {
            reserve_all(&file, path, used_bytes, false, options.progress)?;
        }
        map((file, claim), path, [used_bytes, len_bytes], options)
    }

    /// A region without a name: gone when its last mapping is dropped. For tests and temporary file systems.
    /// Its stores survive the death of processes.
    ///
    /// Errors: [`Error::TooSmall`], [`Error::NoSpace`], [`Error::System`].
    pub fn anonymous(len_bytes: u64) -> Result<Region> {
        Region::anonymous_as(len_bytes, Durability::Process)
    }

    /// As [`Region::anonymous`], with the instructions for this durability.
    ///
    /// Errors: as [`Region::anonymous`].
    pub fn anonymous_as(len_bytes: u64, durability: Durability) -> Result<Region> {
        let path = Path::new(NAMELESS);
        let len_bytes = whole_blocks(path, len_bytes)?;
        let file = fs::memfd_create("heddle-region", MemfdFlags::CLOEXEC).map_err(system("create", path))?;
        size_and_reserve(&file, path, len_bytes, None)?;
        let mapping = Mapping::of_memory(file.as_fd(), len_bytes, false).map_err(system("map", path))?;
        let failure = Failure::default();
        let source = Source {
            backend: Backend::Memory,
            durability,
            read_only: false,
            file: Some(file),
            path: None,
            failure,
            claim: None,
        };
        Ok(Region::new(mapping, source))
    }

    /// Another mapping of the same region, at another address; both keep the region locked. A simulated
    /// region has only one memory: the result is another handle on it.
    ///
    /// Errors: [`Error::System`].
    pub fn map_again(&self) -> Result<Region> {
        let &Source { backend, durability, read_only, ref file, ref path, ref failure, ref claim } =
            self.source();
        let Some(file) = file else {
            return Ok(self.simulated_again().expect("a region without a file is simulated"));
        };
        let name = path.as_deref().unwrap_or(Path::new(NAMELESS));
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0).map_err(system("open again", name))?;
        let (mapping, _) = map_as_durably_as_possible(file.as_fd(), self.len_bytes(), read_only)
            .map_err(system("map", name))?;
        let (path, failure, claim) = (path.clone(), failure.clone(), claim.clone());
        Ok(Region::new(
            mapping,
            Source { backend, durability, read_only, file: Some(file), path, failure, claim },
        ))
    }

    /// Maps a file that another process has opened, locked, and handed over: the lock stays until the last
    /// process that maps it is gone. `path` is its name in errors; `durability` is that process's choice.
    ///
    /// Errors: [`Error::TooSmall`] if the file is shorter than `len_bytes`, [`Error::Lasting`], [`Error::System`].
    pub fn attach(
        file: OwnedFd,
        path: Option<&Path>,
        len_bytes: u64,
        read_only: bool,
        durability: Durability,
    ) -> Result<Region> {
        let name = path.unwrap_or(Path::new(NAMELESS));
        let stat = fstat(&file).map_err(system("examine", name))?;
        // In a file that is too short, the first access behind its end would be a SIGBUS.
        let have_bytes = if is_regular(&stat) { stat.st_size as u64 } else { len_bytes };
        if have_bytes < len_bytes || len_bytes == 0 || !len_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(Error::TooSmall {
                path: name.into(),
                len_bytes: have_bytes,
                least_bytes: len_bytes.max(BLOCK_BYTES as u64),
            });
        }
        let (mapping, backend) =
            map_as_durably_as_possible(file.as_fd(), len_bytes, read_only).map_err(system("map", name))?;
        let durability = domain::promise(backend, Some(durability), name)?;
        let (path, failure) = (path.map(Path::to_path_buf), Failure::default());
        let source = Source { backend, durability, read_only, file: Some(file), path, failure, claim: None };
        Ok(Region::new(mapping, source).untouched())
    }

    /// Drops the lock of the file for all its sharers: no store to the region follows.
    pub fn unlock(&self) {
        if let Some(file) = self.source().file.as_ref() {
            // If it cannot be unlocked, it stays locked until the last sharer has gone.
            let _ = flock(file, FlockOperation::Unlock);
            presence::leave(file);
        }
    }

    /// Tries to lock a file whose earlier holder may be gone: a region that was attached has no lock of its
    /// own. Returns true if it is locked now.
    pub fn lock_again(&self) -> bool {
        let how = match self.is_read_only() {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        self.source().file.as_ref().is_some_and(|file| flock(file, how).is_ok())
    }
}

fn used(file: &OwnedFd, size_in_use: SizeInUse<'_>, len_bytes: u64) -> u64 {
    let read = |at: Pos, mut into: &mut [u8]| {
        let mut at = at.0;
        while !into.is_empty() {
            match pread(file, &mut *into, at) {
                Ok(read @ 1..) => (at, into) = (at + read as u64, &mut into[read..]),
                Err(Errno::INTR) => {}
                // Bytes that cannot be read count as zero.
                _ => return into.fill(0),
            }
        }
    };
    size_in_use(len_bytes, &read).unwrap_or(0)
}
