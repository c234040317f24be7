//! The device: a file or a block device, read and written in whole blocks.
//!
//! It is locked (flock(2)) as long as it is open: shared for reading, so that there may be several readers
//! but no writer, and exclusively for writing. A block device is opened for writing only if it is not
//! mounted. A repair by another program is the exception: that program opens the device exclusively, and this
//! one holds it so before and behind.
//!
//! Invariants  D1  [`Device::begin_writing`] is called before a block changes, and before a superblock is read to be changed.
//!             D2  when a write or a flush has failed, each write and each flush that begins after its return fails. So nothing is
//!                 acknowledged that lies behind a lost block, or whose own loss was reported to another call.

mod flushes;

use crate::error::OpenError;
use crate::format::{BLOCK_BYTES, Block};
use crate::ids::BlockAddr;
use crate::planted::{Breach, breaks};
use flushes::{Description, Flushes};
use heddle_signatures::{Claim, ClaimMode, Content, claim, discard};
use heddle_undo::Old;
use heddle_vfs::{Error, Result};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, PoisonError};

/// The purpose of opening an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    /// Writing beside a program that opens a device exclusively itself.
    Repair,
}

/// What tells that a descriptor leads to an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// A file: device and inode.
    File(u64, u64),
    /// A block device, by its number.
    Device(u64),
}

impl Identity {
    /// That of what has this metadata.
    pub fn of(meta: &std::fs::Metadata) -> Identity {
        match meta.file_type().is_block_device() {
            true => Identity::Device(meta.rdev()),
            false => Identity::File(meta.dev(), meta.ino()),
        }
    }
}

/// A request to a device.
#[cfg(feature = "testkit")]
#[derive(Clone, Debug)]
pub enum Traffic {
    /// Bytes written from this block on.
    Write(BlockAddr, Vec<u8>),
    /// All earlier requests are durable.
    Flush,
    /// A failed write: the blocks may have got these bytes, or some of them, and may lose them again.
    FailedWrite(BlockAddr, Vec<u8>),
    /// A failed flush: all requests since the last flush may be lost for ever.
    FailedFlush,
    /// Discarded blocks, from this one on, which may contain anything from now on.
    Discard(BlockAddr, u32),
    /// All earlier stores to the node log are durable; the observer in tests notes this.
    Fence,
}

/// Faults of a device, for tests.
#[cfg(feature = "testkit")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Number of calls that still succeed; then ...
    pub served: u64,
    /// ... this number of calls fails.
    pub failing: u64,
    /// True: no call fails or is counted for now.
    pub paused: bool,
    /// Reads of blocks from the first of these up to the second fail.
    pub unreadable: [u32; 2],
    /// Number of flushes that have failed. Each description of the device reports that once, as in Linux.
    pub flushes_failed: u64,
}

/// A change that has to be durable before all others. It writes by [`Device::write_unprepared`].
type Preparation = fn(&Device) -> Result<()>;

/// An open image.
#[derive(Debug)]
pub(crate) struct Device {
    file: File,
    /// Other names of the image, locked too.
    _claim: Claim,
    path: PathBuf,
    blocks: u64,
    is_block_device: bool,
    /// True: it is told of unused blocks.
    discards: AtomicBool,
    flushes: Flushes,
    /// True: a write or a flush has failed (D2).
    lost: AtomicBool,
    /// What the first change of a block waits for.
    before_writing: Mutex<Option<Preparation>>,
    /// True: nothing is left of that.
    is_prepared: AtomicBool,
    /// Blocks that are read as they were.
    old: Option<Old>,
    /// True: another one has the lock.
    is_view: bool,
    #[cfg(feature = "testkit")]
    pub(crate) traffic: std::sync::Arc<Mutex<Vec<Traffic>>>,
    #[cfg(feature = "testkit")]
    pub(crate) faults: Mutex<Faults>,
}

impl Drop for Device {
    /// Releases the lock explicitly. Closing is not enough: a child that another thread is just starting has
    /// a copy of the descriptor until it executes another program, and would keep the image locked until
    /// then.
    fn drop(&mut self) {
        // The next user of a block device opens it exclusively as soon as it is unlocked.
        self.flushes.close();
        // If it cannot be unlocked, it stays locked until the last copy is closed.
        if !self.is_view {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// The error for an image in use.
fn in_use(path: &Path) -> OpenError {
    let by = rustix::fs::stat(path).ok().and_then(|stat| heddle_signatures::user_of(&stat));
    let by = by.unwrap_or_else(|| "another program, or the system".into());
    OpenError::InUse { image: path.into(), by: format!("is in use by {by}") }
}

impl Device {
    /// Opens an image.
    pub(crate) fn open(path: &Path, access: Access) -> std::result::Result<Device, OpenError> {
        let fail = |what| move |source| OpenError::System { image: path.into(), what, source };
        let writes = access != Access::Read;
        // The kernel knows whether a device is mounted or in use: a writer opens it exclusively.
        let is_device = path.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
        if writes && heddle_signatures::is_write_protected(path) {
            return Err(OpenError::WriteProtected { image: path.into() });
        }
        let alone = if access == Access::Write && is_device { OFlags::EXCL } else { OFlags::empty() };
        let opened = File::options().read(true).write(writes).custom_flags(alone.bits() as i32).open(path);
        let file = opened.map_err(|source| match Errno::from_io_error(&source) {
            Some(Errno::BUSY) => in_use(path),
            _ => fail("open")(source),
        })?;
        let lock = match access {
            Access::Read => FlockOperation::NonBlockingLockShared,
            Access::Write | Access::Repair => FlockOperation::NonBlockingLockExclusive,
        };
        match flock(&file, lock) {
            Err(Errno::WOULDBLOCK) => return Err(in_use(path)),
            done => done.map_err(|errno| fail("lock")(errno.into()))?,
        }
        let claimed = match breaks(Breach::OtherPathsUnchecked) {
            true => Ok(Claim::default()),
            false => claim(&file, if writes { ClaimMode::Write } else { ClaimMode::Read }),
        };
        let claim = claimed.map_err(|by| OpenError::InUse { image: path.into(), by })?;
        let mut device = Device::of(file, claim, path)?;
        // PERSIST: before the first write: a description reports what fails after it was opened.
        if access == Access::Write
            && let Ok(path) = device.path_by_number()
        {
            device.flushes = Flushes::side_by_side(&path);
        }
        Ok(device)
    }

    /// Hands the lock to programs that are started from now on: it is held until the last of them has ended, also if
    /// this process is killed before.
    pub(crate) fn share_lock(&self) -> std::io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.file, rustix::io::FdFlags::empty())?)
    }

    /// A path by which programs that are started from now on reach this image, whatever its own path leads to by then. They inherit the
    /// descriptor, and the lock, which they hold until the last of them has ended.
    pub(crate) fn path_for_programs(&self) -> std::io::Result<PathBuf> {
        self.share_lock()?;
        self.path_by_number()
    }

    /// A path by which this process reaches the image, whatever its own path leads to.
    fn path_by_number(&self) -> std::io::Result<PathBuf> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        match Identity::of(&path.metadata()?) == self.identity()? {
            true => Ok(path),
            false => Err(std::io::Error::other("/proc does not tell which file a descriptor leads to")),
        }
    }

    /// A device for a file that is open and locked.
    pub(crate) fn of(mut file: File, claim: Claim, path: &Path) -> std::result::Result<Device, OpenError> {
        let fail = |what| move |source| OpenError::System { image: path.into(), what, source };
        let is_device = file.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
        // Also works for block devices, whose inode has no size.
        let bytes = file.seek(SeekFrom::End(0)).map_err(fail("find the size of"))?;
        Ok(Device {
            file,
            _claim: claim,
            path: path.into(),
            blocks: bytes / BLOCK_BYTES as u64,
            is_block_device: is_device,
            discards: AtomicBool::new(false),
            flushes: Flushes::one_by_one(),
            lost: AtomicBool::new(false),
            before_writing: Mutex::default(),
            is_prepared: AtomicBool::new(true),
            old: None,
            is_view: false,
            #[cfg(feature = "testkit")]
            traffic: std::sync::Arc::default(),
            #[cfg(feature = "testkit")]
            faults: Mutex::default(),
        })
    }

    /// The same bytes, for reading: with `old`, as they were where it has blocks. This one keeps the lock.
    pub(crate) fn view(&self, old: Option<Old>) -> std::result::Result<Device, OpenError> {
        let file = self.file.try_clone();
        let file =
            file.map_err(|source| OpenError::System { image: self.path.clone(), what: "open", source })?;
        let mut view = Device::of(file, Claim::default(), &self.path)?;
        (view.old, view.is_view) = (old, true);
        Ok(view)
    }

    /// Device and inode of a file, or the number of a block device.
    pub(crate) fn identity(&self) -> std::io::Result<Identity> {
        let meta = self.file.metadata()?;
        Ok(Identity::of(&meta))
    }

    /// Keeps a block device from being mounted, until this is closed. Of a file it says nothing.
    pub(crate) fn hold(&self) -> std::result::Result<Option<File>, OpenError> {
        if !self.is_block_device() {
            return Ok(None);
        }
        let alone = |path| File::options().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(path);
        self.path_by_number().and_then(alone).map(Some).map_err(|source| {
            match Errno::from_io_error(&source) {
                Some(Errno::BUSY) => in_use(&self.path),
                _ => OpenError::System { image: self.path.clone(), what: "open", source },
            }
        })
    }

    /// Returns true if it is no file.
    pub(crate) fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// What it holds, F2FS or not.
    pub(crate) fn content(&self) -> Content {
        heddle_signatures::detect(self.blocks * BLOCK_BYTES as u64, &|at, into| {
            // What cannot be read stays zero.
            let _ = self.file.read_exact_at(into, at);
        })
    }

    /// Number of whole blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Its path, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads from byte `skip_bytes` of a block on.
    pub(crate) fn read(&self, addr: BlockAddr, skip_bytes: usize, into: &mut [u8]) -> Result<()> {
        #[cfg(feature = "testkit")]
        self.may_be_unreadable(addr, skip_bytes + into.len())?;
        let at = u64::from(addr.0) * BLOCK_BYTES as u64 + skip_bytes as u64;
        let failed =
            |error| Error::Io(format!("block {} of {} cannot be read: {error}", addr.0, self.path.display()));
        self.file.read_exact_at(into, at).map_err(failed)?;
        if let Some(old) = &self.old {
            self.read_old(old, at, into).map_err(failed)?;
        }
        Ok(())
    }

    /// Puts old blocks over what was read from this byte of the device on.
    fn read_old(&self, old: &Old, at: u64, into: &mut [u8]) -> std::io::Result<()> {
        let mut block = [0; BLOCK_BYTES];
        let mut done = 0;
        while done < into.len() {
            let here = at + done as u64;
            let within = (here % BLOCK_BYTES as u64) as usize;
            let len = (BLOCK_BYTES - within).min(into.len() - done);
            if old.read(here / BLOCK_BYTES as u64, &mut block)? {
                into[done..done + len].copy_from_slice(&block[within..within + len]);
            }
            done += len;
        }
        Ok(())
    }

    /// Sets what is done once, when the first block is about to change.
    pub(crate) fn prepare_by(&self, preparation: Preparation) {
        *self.before_writing.lock().unwrap_or_else(PoisonError::into_inner) = Some(preparation);
        self.is_prepared.store(false, Relaxed); // ORDERING: Relaxed, set before the first write.
    }

    /// Blocks may change when this returns. If it fails, the next call tries again, unless a write was lost.
    pub(crate) fn begin_writing(&self) -> Result<()> {
        // ORDERING: Acquire, pairs with the Release below: the preparation is durable for all who see true.
        if self.is_prepared.load(Acquire) {
            return Ok(());
        }
        let mut before = self.before_writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(preparation) = *before {
            preparation(self)?;
            *before = None;
        }
        self.is_prepared.store(true, Release); // ORDERING: Release, pairs with the Acquire above.
        Ok(())
    }

    /// Writes blocks that follow each other; durable after the next [`Device::flush`].
    pub(crate) fn write(&self, addr: BlockAddr, bytes: &[u8]) -> Result<()> {
        self.begin_writing()?;
        self.write_unprepared(addr, bytes)
    }

    /// The same, for the preparation itself.
    pub(crate) fn write_unprepared(&self, addr: BlockAddr, bytes: &[u8]) -> Result<()> {
        self.not_lost()?;
        self.noting_loss(self.write_now(addr, bytes))
    }

    fn write_now(&self, addr: BlockAddr, bytes: &[u8]) -> Result<()> {
        #[cfg(feature = "testkit")]
        {
            // Gives another thread the chance to be first.
            std::thread::yield_now();
            self.may_fail(Some(Traffic::FailedWrite(addr, bytes.to_vec())))?;
            self.note(Traffic::Write(addr, bytes.to_vec()));
        }
        let at = u64::from(addr.0) * BLOCK_BYTES as u64;
        self.file.write_all_at(bytes, at).map_err(|error| {
            Error::Io(format!("block {} of {} cannot be written: {error}", addr.0, self.path.display()))
        })
    }

    /// Fails if a write or a flush has failed (D2).
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn not_lost(&self) -> Result<()> {
        // ORDERING: Relaxed. A thread that goes on behind a lost block takes a lock which the other one released after the store: the
        // fsync chain, the call gate, or the description.
        match self.lost.load(Relaxed) {
            true => Err(Error::Io(format!(
                "an earlier write to {} failed: nothing is written any more",
                self.path.display()
            ))),
            false => Ok(()),
        }
    }

    /// Notes that a write or a flush has failed, before its caller gives back a lock.
    fn noting_loss(&self, done: Result<()>) -> Result<()> {
        if done.is_err() {
            self.lost.store(true, Relaxed); // ORDERING: Relaxed, see `not_lost`.
        }
        done
    }

    /// Lets a repair write again that goes back: it compares and writes all blocks that it has changed.
    pub(crate) fn forget_loss(&self) {
        self.lost.store(false, Relaxed); // ORDERING: Relaxed, a repair has one thread.
    }

    /// Checks that a file was not truncated: its data would be lost, and a write behind its end would leave
    /// holes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn check_size(&self) -> Result<()> {
        match self.file.metadata() {
            Ok(meta) if meta.is_file() && meta.len() < self.blocks * BLOCK_BYTES as u64 => {
                Err(Error::Io(format!(
                    "{} was cut short while it was in use: it had {} blocks, and has {} bytes",
                    self.path.display(),
                    self.blocks,
                    meta.len()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Flushes the device: all earlier writes are durable when this returns.
    pub(crate) fn flush(&self) -> Result<()> {
        self.flush_by(&mut self.flushes.begin())
    }

    fn flush_by(&self, own: &mut Description) -> Result<()> {
        // With the description: its last user may have had the report that this one needs.
        self.not_lost()?;
        self.noting_loss(self.flush_now(own))?;
        // A loop device may tell one flush of several that its file has lost blocks.
        self.not_lost()
    }

    fn flush_now(&self, own: &mut Description) -> Result<()> {
        #[cfg(feature = "testkit")]
        let _reported_below = self.may_fail(Some(Traffic::FailedFlush));
        // Another flush may fail just now.
        #[cfg(feature = "testkit")]
        std::thread::sleep(std::time::Duration::from_micros(50));
        let done = own.file.as_ref().unwrap_or(&self.file).sync_data();
        done.map_err(|error| Error::Io(format!("{} cannot be flushed: {error}", self.path.display())))?;
        self.check_size()?;
        #[cfg(feature = "testkit")]
        self.report(own)?;
        Ok(())
    }

    /// Fails if a flush has failed since this description reported one, and notes a flush otherwise.
    #[cfg(feature = "testkit")]
    fn report(&self, own: &mut Description) -> Result<()> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut own.reported, faults.flushes_failed) != faults.flushes_failed {
            return Err(Error::Io("the device fails, as a test told it to".into()));
        }
        self.note(Traffic::Flush);
        Ok(())
    }

    /// Sets whether the device is told of unused blocks. At first it is not.
    pub(crate) fn set_discards(&self, discards: bool) {
        self.discards.store(discards, Relaxed); // ORDERING: Relaxed, either way is right.
    }

    /// Tells the device that no reader will read these blocks before they are written: a file frees the
    /// space, flash can erase them. Their content is undefined from now on. If the request fails, nothing is
    /// lost, and it is not repeated.
    pub(crate) fn discard(&self, addr: BlockAddr, blocks: u32) {
        // ORDERING: Relaxed, either way is right.
        if !self.discards.load(Relaxed) || self.begin_writing().is_err() {
            return;
        }
        #[cfg(feature = "testkit")]
        self.note(Traffic::Discard(addr, blocks));
        let [at, len] = [addr.0, blocks].map(|n| u64::from(n) * BLOCK_BYTES as u64);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let done = match self.is_block_device {
            true => discard(&self.file, at, len).is_ok(),
            false => fallocate(&self.file, punch, at, len).is_ok(),
        };
        if !done {
            self.set_discards(false);
        }
    }

    /// Fails if a fault is due for a read of so many bytes.
    #[cfg(feature = "testkit")]
    fn may_be_unreadable(&self, addr: BlockAddr, len_bytes: usize) -> Result<()> {
        let [from, to] = self.faults.lock().unwrap_or_else(PoisonError::into_inner).unreadable;
        let blocks = len_bytes.div_ceil(BLOCK_BYTES) as u32;
        if addr.0 < to && from < addr.0 + blocks {
            return Err(Error::Io(format!("block {} cannot be read, as a test told it", addr.0)));
        }
        self.may_fail(None)
    }

    /// Fails if a fault is due, and notes `trace`.
    #[cfg(feature = "testkit")]
    fn may_fail(&self, trace: Option<Traffic>) -> Result<()> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *faults {
            Faults { paused: true, .. } => Ok(()),
            Faults { served: served @ 1.., .. } => {
                *served -= 1;
                Ok(())
            }
            Faults { failing: failing @ 1.., .. } => {
                *failing -= 1;
                faults.flushes_failed += u64::from(matches!(trace, Some(Traffic::FailedFlush)));
                trace.into_iter().for_each(|trace| self.note(trace));
                Err(Error::Io("the device fails, as a test told it to".into()))
            }
            _ => Ok(()),
        }
    }

    #[cfg(feature = "testkit")]
    fn note(&self, traffic: Traffic) {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner).push(traffic);
    }

    /// Reads a block.
    pub(crate) fn block(&self, addr: BlockAddr) -> Result<Box<Block>> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        self.read(addr, 0, &mut block[..])?;
        Ok(block)
    }
}

#[cfg(test)]
mod tests;
