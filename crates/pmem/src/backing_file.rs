//! The file or device behind a region: opened, locked, sized, given its blocks, mapped.
//!
//! Invariants  I1  it is locked before a byte of it is changed, and while any mapping of it made here lives (see `presence`).
//! Lock order  the file's lock is taken without waiting.

use crate::dirty::Failure;
use crate::domain::{self, Backend};
use crate::durability::Durability;
use crate::free_space::{free_space_bytes, is_in_memory};
use crate::huge;
use crate::mapping::{Mapping, Progress, reserve};
use crate::region::{Region, Source};
use crate::{BLOCK_BYTES, Error, Pos, Result, presence};
use heddle_signatures::{Claim, ClaimMode, claim, holder};
use rustix::fs::{
    self, CWD, FileType, FlockOperation, Mode, OFlags, SeekFrom, Stat, flock, fstat, ftruncate,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of a region without a path in errors.
pub(crate) const NAMELESS: &str = "(anonymous memory)";

/// Computes the size in use from the length and the bytes of a file, which it reads through a function.
/// `None`: no content will be used.
pub type SizeInUse<'a> = &'a dyn Fn(u64, &dyn Fn(Pos, &mut [u8])) -> Option<u64>;

/// Options for making or opening a region. The default is writable, not overwriting, pre-faulted, without
/// progress.
#[derive(Clone, Copy)]
pub struct OpenOptions<'a> {
    /// Map for reading only; any store panics. Other readers can share the file's lock.
    pub read_only: bool,
    /// `create` may replace an existing file. A device is never emptied: its old bytes stay.
    pub overwrite: bool,
    /// Take the page faults now, if stores go straight to the media (not for [`Backend::File`]).
    pub prefault: bool,
    /// The durability of stores; `None`: the death of processes if the region is volatile memory, a power cut
    /// otherwise.
    pub durability: Option<Durability>,
    /// Called before `open` reserves blocks and faults pages in. Only that part of the file gets them, and no byte behind it may be stored
    /// to. `None`: all of the file.
    pub size_in_use: Option<SizeInUse<'a>>,
    /// Called with (bytes done, bytes in total) every 64 MiB: while a new file in memory gets large pages,
    /// then while blocks are reserved, then while pages are faulted in.
    pub progress: Progress<'a>,
}

impl Default for OpenOptions<'_> {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            overwrite: false,
            prefault: true,
            durability: None,
            size_in_use: None,
            progress: None,
        }
    }
}

pub(crate) fn whole_blocks(path: &Path, len_bytes: u64) -> Result<u64> {
    let block = BLOCK_BYTES as u64;
    if len_bytes < block {
        return Err(Error::TooSmall { path: path.into(), len_bytes, least_bytes: block });
    }
    Ok(len_bytes & !(block - 1))
}

pub(crate) fn lock(file: &OwnedFd, path: &Path, how: FlockOperation) -> Result<(Stat, Claim)> {
    let stat = fstat(file).map_err(system("examine", path))?;
    #[cfg(feature = "planted")]
    if crate::planted::breaks(crate::planted::LOCK_UNCHECKED) {
        return Ok((stat, Claim::default()));
    }
    let free = || match how {
        FlockOperation::NonBlockingLockExclusive => presence::claim(file),
        _ => !presence::has_holders(file),
    };
    match flock(file, how) {
        Ok(()) if free() => {
            let whole = if how == FlockOperation::NonBlockingLockExclusive {
                ClaimMode::Write
            } else {
                ClaimMode::Read
            };
            let claimed = claim(file, whole);
            let claim = claimed.map_err(|what| Error::InUseThrough { path: path.into(), what })?;
            Ok((stat, claim))
        }
        Ok(()) | Err(Errno::WOULDBLOCK) => Err(in_use(&stat, path)),
        Err(errno) => Err(system("lock", path)(errno)),
    }
}

pub(crate) fn in_use(stat: &Stat, path: &Path) -> Error {
    let (pid, since) = holder(stat).map_or((None, None), |(pid, since)| (Some(pid), since));
    Error::InUse { path: path.into(), pid, since }
}

/// Opens an existing file or device. A block device is opened for writing exclusively: the kernel refuses
/// that while it, or a device on it, is mounted.
pub(crate) fn open_file(path: &Path, how: OFlags) -> rustix::io::Result<OwnedFd> {
    let stat = fs::stat(path);
    let is_device = stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    let writes = how.contains(OFlags::RDWR);
    if writes && is_device && heddle_signatures::is_write_protected(path) {
        return Err(Errno::ROFS);
    }
    let alone = if is_device && writes { OFlags::EXCL } else { OFlags::empty() };
    fs::openat(CWD, path, how | alone, Mode::empty())
}

/// The error for a path that cannot be opened.
pub(crate) fn not_opened(path: &Path) -> impl Fn(Errno) -> Error {
    move |errno| match (errno, fs::stat(path)) {
        (Errno::BUSY, Ok(stat)) => match (holder(&stat), heddle_signatures::user_of(&stat)) {
            (None, Some(user)) => {
                Error::InUseThrough { path: path.into(), what: format!("is in use by {user}") }
            }
            _ => in_use(&stat, path),
        },
        (Errno::ROFS, _) => Error::WriteProtected { path: path.into() },
        _ => system("open", path)(errno),
    }
}

pub(crate) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Sets a file's size and reserves its blocks; checks that a device is large enough. Returns the length to
/// map.
pub(crate) fn fill(
    file: &OwnedFd,
    stat: &Stat,
    path: &Path,
    len_bytes: u64,
    options: &OpenOptions<'_>,
) -> Result<u64> {
    if is_regular(stat) {
        // Checked before the old content is destroyed.
        fits(file, path, len_bytes)?;
        ftruncate(file, 0).map_err(system("empty", path))?;
        let reserved = size_and_reserve(file, path, len_bytes, options.progress);
        if reserved.is_err() {
            let _ = ftruncate(file, 0);
        }
        reserved?;
        fs::fsync(file).map_err(system("sync", path))?;
        return Ok(len_bytes);
    }
    let device_bytes = size_of_media(file, stat, path)?;
    if len_bytes > device_bytes {
        return Err(Error::TooLarge { path: path.into(), len_bytes, device_bytes });
    }
    // A device-DAX mapping consists of whole pages of the device's configured size.
    let unit = device_attribute(stat, "align").unwrap_or(BLOCK_BYTES as u64);
    match len_bytes - len_bytes % unit {
        0 => Err(Error::TooSmall { path: path.into(), len_bytes, least_bytes: unit }),
        whole => Ok(whole),
    }
}

pub(crate) fn size_and_reserve(
    file: &OwnedFd,
    path: &Path,
    len_bytes: u64,
    progress: Progress<'_>,
) -> Result<()> {
    match ftruncate(file, len_bytes) {
        Err(Errno::FBIG) => Err(no_space(file, path, len_bytes)),
        Err(errno) => Err(system("size", path)(errno)),
        Ok(()) => {
            if is_in_memory(file) {
                // Checked first: an operation that cannot fit must not be started.
                fits(file, path, len_bytes)?;
                huge::ask_for(file.as_fd(), len_bytes, progress);
            }
            reserve_all(file, path, len_bytes, true, progress)
        }
    }
}

pub(crate) fn reserve_all(
    file: &OwnedFd,
    path: &Path,
    len_bytes: u64,
    is_new: bool,
    progress: Progress<'_>,
) -> Result<()> {
    // A full disk reports that itself; its data may be compressed, and take fewer blocks than bytes.
    if is_in_memory(file) {
        fits(file, path, len_bytes)?;
    }
    match reserve(file.as_fd(), len_bytes, is_new, progress) {
        Err(Errno::NOSPC | Errno::FBIG | Errno::DQUOT) => Err(no_space(file, path, len_bytes)),
        done => done.map_err(system("reserve the blocks of", path)),
    }
}

/// Checks that the file can have so many bytes. Its present bytes count.
fn fits(file: &OwnedFd, path: &Path, len_bytes: u64) -> Result<()> {
    let have = fstat(file).map_or(0, |stat| stat.st_blocks as u64 * 512);
    match free_space_bytes(file).saturating_add(have) {
        room if room < len_bytes => Err(no_space(file, path, len_bytes)),
        _ => Ok(()),
    }
}

fn no_space(file: &OwnedFd, path: &Path, len_bytes: u64) -> Error {
    if let Some(max_bytes) = getrlimit(Resource::Fsize).current.filter(|max| *max < len_bytes) {
        return Error::Limited { path: path.into(), len_bytes, max_bytes };
    }
    let own = fstat(file).map_or(0, |stat| stat.st_blocks as u64 * 512);
    Error::NoSpace { path: path.into(), len_bytes, free_bytes: free_space_bytes(file).saturating_add(own) }
}

/// The directory of a path's file.
pub(crate) fn parent_dir(path: &Path) -> PathBuf {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    above.unwrap_or(Path::new(".")).to_path_buf()
}

/// A new file must keep its name after a power cut.
pub(crate) fn sync_directory_of(path: &Path) -> Result<()> {
    let parent = &parent_dir(path);
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = fs::openat(CWD, parent, how, Mode::empty()).map_err(system("open", parent))?;
    fs::fsync(directory).map_err(system("sync", parent))
}

pub(crate) fn size_of_media(file: &OwnedFd, stat: &Stat, path: &Path) -> Result<u64> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(stat.st_size as u64),
        FileType::BlockDevice => fs::seek(file, SeekFrom::End(0)).map_err(system("measure", path)),
        FileType::CharacterDevice => {
            let size = device_attribute(stat, "size");
            size.ok_or_else(|| Error::NotMappable { path: path.into() })
        }
        _ => Err(Error::NotMappable { path: path.into() }),
    }
}

/// A numeric attribute of a character device.
fn device_attribute(stat: &Stat, name: &str) -> Option<u64> {
    let (major, minor) = (fs::major(stat.st_rdev), fs::minor(stat.st_rdev));
    let text = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/{name}")).ok()?;
    text.trim().parse().ok()
}

pub(crate) fn map(
    (file, claim): (OwnedFd, Claim),
    path: &Path,
    [used_bytes, len_bytes]: [u64; 2],
    options: &OpenOptions<'_>,
) -> Result<Region> {
    let (mapping, backend) = map_as_durably_as_possible(file.as_fd(), len_bytes, options.read_only)
        .map_err(system("map", path))?;
    let durability = domain::promise(backend, options.durability, path)?;
    if options.prefault && backend != Backend::File {
        mapping
            .prefault(used_bytes, options.read_only, options.progress)
            .map_err(system("pre-fault", path))?;
    }
    let (path, failure) = (Some(path.into()), Failure::default());
    let source = Source {
        backend,
        durability,
        read_only: options.read_only,
        file: Some(file),
        path,
        failure,
        claim: Some(Arc::new(claim)),
    };
    Ok(Region::new(mapping, source))
}

pub(crate) fn map_as_durably_as_possible(
    file: BorrowedFd<'_>,
    len_bytes: u64,
    read_only: bool,
) -> std::result::Result<(Mapping, Backend), Errno> {
    if let Ok(mapping) = Mapping::of_file(file, len_bytes, read_only, true) {
        return Ok((mapping, domain::of_persistent_memory(&fstat(file)?)));
    }
    let backend = domain::of_file(file)?;
    let mapping = match backend {
        // hugetlbfs with pages of 1 GiB chooses a better address.
        Backend::Memory => Mapping::of_memory(file, len_bytes, read_only)
            .or_else(|_| Mapping::of_file(file, len_bytes, read_only, false))?,
        _ => Mapping::of_file(file, len_bytes, read_only, false)?,
    };
    Ok((mapping, backend))
}

pub(crate) fn system(action: &'static str, path: &Path) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { action, path: path.into(), errno }
}
