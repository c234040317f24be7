//! Making and opening regions: lock, size, reserve, map, find out what makes a store durable.
//!
//! Invariants  I1  a region is locked before a byte of it is changed, and while any mapping of it made here lives (see `presence`).
//!             I2  whatever `create` made, it removes again when it fails (see `taken`).
//! Lock order  the file's lock is taken without waiting.

use crate::dirty::Failure;
use crate::domain;
use crate::durability::Durability;
use crate::mapping::{Mapping, reserve};
use crate::region::{Backend, Region, Source};
use crate::room::{folder_of, is_in_memory, room_bytes};
use crate::taken::Taken;
use crate::{BLOCK_BYTES, Error, Pos, Result, presence};
use heddle_media::{Claim, Use, claim, holder};
use rustix::fs::{
    self, CWD, FileType, FlockOperation, MemfdFlags, Mode, OFlags, SeekFrom, Stat, flock, fstat, ftruncate,
};
use rustix::io::{Errno, pread};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// What errors call a region without a path.
const NAMELESS: &str = "(anonymous memory)";

/// Called with bytes done and bytes in total.
pub(crate) type Progress<'a> = Option<&'a (dyn Fn(u64, u64) + Sync)>;

/// How many bytes of a file are in use, from its length and by a reader of its bytes; `None`: it holds nothing that will be used.
pub type Extent<'a> = &'a dyn Fn(u64, &dyn Fn(Pos, &mut [u8])) -> Option<u64>;

/// How to make or open a region. `..Default::default()` is: writable, not overwriting, pre-faulted, silent.
#[derive(Clone, Copy)]
pub struct OpenOptions<'a> {
    /// Map for reading only; any store panics. Shares the file's lock with other readers.
    pub read_only: bool,
    /// `create` may replace an existing file. A device is never emptied: its old bytes stay.
    pub overwrite: bool,
    /// Take the page faults now, where stores go straight to the media (not for [`Backend::File`]).
    pub prefault: bool,
    /// What stores must survive; `None`: the death of processes where the region is volatile memory, a power cut elsewhere.
    pub durability: Option<Durability>,
    /// Asked, before `open` gives a file blocks and faults pages in, which part of it needs them: no byte behind that may be stored to.
    /// Without it, all of the file.
    pub extent: Option<Extent<'a>>,
    /// Told (bytes done, bytes in total) every 64 MiB while blocks are reserved, then again while pages are faulted in.
    pub progress: Progress<'a>,
}

impl Default for OpenOptions<'_> {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            overwrite: false,
            prefault: true,
            durability: None,
            extent: None,
            progress: None,
        }
    }
}

impl Region {
    /// Makes a file of `len_bytes`, rounded down to whole blocks, full of zeros and with its blocks reserved, and
    /// maps it. On a device, uses its first `len_bytes`, with the bytes they have.
    ///
    /// Errors: [`Error::Exists`], [`Error::InUse`], [`Error::TooSmall`], [`Error::TooLarge`], [`Error::NoSpace`],
    /// [`Error::NotMappable`], [`Error::System`].
    pub fn create(path: impl AsRef<Path>, len_bytes: u64, options: &OpenOptions<'_>) -> Result<Region> {
        let path = path.as_ref();
        whole_blocks(path, len_bytes)?;
        let taken = Taken::new(path)?;
        match taken.is_new() || options.overwrite {
            true => taken.create(len_bytes, options),
            false => Err(Error::Exists { path: path.into() }),
        }
    }

    /// Maps an existing file or device whole.
    ///
    /// Holes of a file, as far as it is in use, are given blocks first, unless it is opened for reading only.
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
        let used_bytes = match options.extent.filter(|_| is_regular(&stat)) {
            Some(extent) => used(&file, extent, len_bytes).min(len_bytes),
            None => len_bytes,
        };
        if is_regular(&stat) && !options.read_only {
            reserve_all(&file, path, used_bytes, false, options.progress)?;
        }
        map((file, claim), path, [used_bytes, len_bytes], options)
    }

    /// A region without a name: gone when its last mapping is. For tests and throw-away file systems. Its stores survive the death of
    /// processes.
    ///
    /// Errors: [`Error::TooSmall`], [`Error::NoSpace`], [`Error::System`].
    pub fn anonymous(len_bytes: u64) -> Result<Region> {
        Region::anonymous_as(len_bytes, Durability::Process)
    }

    /// As [`Region::anonymous`], with the instructions that this durability would take.
    ///
    /// Errors: as [`Region::anonymous`].
    pub fn anonymous_as(len_bytes: u64, durability: Durability) -> Result<Region> {
        let path = Path::new(NAMELESS);
        let len_bytes = whole_blocks(path, len_bytes)?;
        let file = fs::memfd_create("heddle-region", MemfdFlags::CLOEXEC).map_err(system("create", path))?;
        size_and_reserve(&file, path, len_bytes, None)?;
        let mapping = Mapping::of_file(file.as_fd(), len_bytes, false, false).map_err(system("map", path))?;
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

    /// Another mapping of the same region, at another address; both keep the region locked.
    /// A simulated region has one memory: there it is another handle on that.
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

    /// Maps what another process has opened and locked, and handed over: the lock stays until the last process that maps it is gone.
    /// `path` is what errors call it; `durability` is what that process has chosen.
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
        // A file that is too short would end in SIGBUS at the first touch behind its end.
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

    /// Drops the lock of the file for all its sharers: no store to the region comes any more.
    pub fn unlock(&self) {
        if let Some(file) = self.source().file.as_ref() {
            // What cannot be unlocked stays locked until the last of them has gone.
            let _ = flock(file, FlockOperation::Unlock);
            presence::leave(file);
        }
    }

    /// Tries to take the lock of a file whose earlier holder may be gone: a region that was attached has none of its own.
    /// True: it is held now.
    pub fn lock_again(&self) -> bool {
        let how = match self.is_read_only() {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        self.source().file.as_ref().is_some_and(|file| flock(file, how).is_ok())
    }
}

fn used(file: &OwnedFd, extent: Extent<'_>, len_bytes: u64) -> u64 {
    let read = |at: Pos, mut into: &mut [u8]| {
        let mut at = at.0;
        while !into.is_empty() {
            match pread(file, &mut *into, at) {
                Ok(read @ 1..) => (at, into) = (at + read as u64, &mut into[read..]),
                Err(Errno::INTR) => {}
                // What cannot be read says nothing.
                _ => return into.fill(0),
            }
        }
    };
    extent(len_bytes, &read).unwrap_or(0)
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
    let free = || match how {
        FlockOperation::NonBlockingLockExclusive => presence::claim(file),
        _ => !presence::has_holders(file),
    };
    match flock(file, how) {
        Ok(()) if free() => {
            let whole = if how == FlockOperation::NonBlockingLockExclusive { Use::Write } else { Use::Read };
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

/// Opens what is there; a block device, to write to it, alone: the kernel refuses that while it, or what lies on it, is mounted.
pub(crate) fn open_file(path: &Path, how: OFlags) -> rustix::io::Result<OwnedFd> {
    let stat = fs::stat(path);
    let is_device = stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    let alone = if is_device && how.contains(OFlags::RDWR) { OFlags::EXCL } else { OFlags::empty() };
    fs::openat(CWD, path, how | alone, Mode::empty())
}

/// Why it could not be opened.
pub(crate) fn not_opened(path: &Path) -> impl Fn(Errno) -> Error {
    move |errno| match (errno, fs::stat(path)) {
        (Errno::BUSY, Ok(stat)) => match (holder(&stat), heddle_media::user_of(&stat)) {
            (None, Some(user)) => {
                Error::InUseThrough { path: path.into(), what: format!("is in use by {user}") }
            }
            _ => in_use(&stat, path),
        },
        _ => system("open", path)(errno),
    }
}

pub(crate) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Gives a file its size and blocks; for a device checks that it is large enough. Returns the length to map.
pub(crate) fn fill(
    file: &OwnedFd,
    stat: &Stat,
    path: &Path,
    len_bytes: u64,
    options: &OpenOptions<'_>,
) -> Result<u64> {
    if is_regular(stat) {
        // Asked while what is there is still whole.
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
    // A device-DAX mapping is whole pages of the size the device was set up for.
    let unit = device_attribute(stat, "align").unwrap_or(BLOCK_BYTES as u64);
    match len_bytes - len_bytes % unit {
        0 => Err(Error::TooSmall { path: path.into(), len_bytes, least_bytes: unit }),
        whole => Ok(whole),
    }
}

fn size_and_reserve(file: &OwnedFd, path: &Path, len_bytes: u64, progress: Progress<'_>) -> Result<()> {
    match ftruncate(file, len_bytes) {
        Err(Errno::FBIG) => Err(no_space(file, path, len_bytes)),
        Err(errno) => Err(system("size", path)(errno)),
        Ok(()) => reserve_all(file, path, len_bytes, true, progress),
    }
}

pub(crate) fn reserve_all(
    file: &OwnedFd,
    path: &Path,
    len_bytes: u64,
    is_new: bool,
    progress: Progress<'_>,
) -> Result<()> {
    // A disk that is full says so by itself; what lies there may be packed, and take fewer blocks than bytes.
    if is_in_memory(file) {
        fits(file, path, len_bytes)?;
    }
    match reserve(file.as_fd(), len_bytes, is_new, progress) {
        Err(Errno::NOSPC | Errno::FBIG | Errno::DQUOT) => Err(no_space(file, path, len_bytes)),
        done => done.map_err(system("reserve the blocks of", path)),
    }
}

/// Can the file have so many bytes? What it has already counts.
fn fits(file: &OwnedFd, path: &Path, len_bytes: u64) -> Result<()> {
    let have = fstat(file).map_or(0, |stat| stat.st_blocks as u64 * 512);
    match room_bytes(file).saturating_add(have) {
        room if room < len_bytes => Err(no_space(file, path, len_bytes)),
        _ => Ok(()),
    }
}

fn no_space(file: &OwnedFd, path: &Path, len_bytes: u64) -> Error {
    let own = fstat(file).map_or(0, |stat| stat.st_blocks as u64 * 512);
    Error::NoSpace { path: path.into(), len_bytes, free_bytes: room_bytes(file).saturating_add(own) }
}

/// A file that was made must still have its name after a power cut.
pub(crate) fn sync_directory_of(path: &Path) -> Result<()> {
    let parent = &folder_of(path);
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

/// A number the kernel tells of a character device.
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

fn map_as_durably_as_possible(
    file: BorrowedFd<'_>,
    len_bytes: u64,
    read_only: bool,
) -> std::result::Result<(Mapping, Backend), Errno> {
    if let Ok(mapping) = Mapping::of_file(file, len_bytes, read_only, true) {
        return Ok((mapping, domain::of_persistent_memory(&fstat(file)?)));
    }
    let mapping = Mapping::of_file(file, len_bytes, read_only, false)?;
    Ok((mapping, domain::of_file(file)?))
}

pub(crate) fn system(action: &'static str, path: &Path) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { action, path: path.into(), errno }
}
