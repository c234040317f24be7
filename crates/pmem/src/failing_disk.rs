//! A disk below a region, for tests: its write-backs succeed or fail as a test says, and it has only what they wrote.
//!
//! Invariants  I1  a page whose write-back failed is lost: the memory has it, and the disk does not, until a later write-back of it.

use crate::BLOCK_BYTES;
use crate::mapping::Mapping;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How one write-back ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteBackResult {
    /// The pages are on the disk.
    Done,
    /// The pages are lost, and the caller gets EIO.
    Failed,
    /// The pages are lost, and another caller gets the error: the kernel tells it once.
    LostUntold,
}

type Decision = Arc<dyn Fn(u64) -> WriteBackResult + Send + Sync>;

/// The disk of a region that [`Region::on_failing_disk`](crate::Region::on_failing_disk) made.
#[derive(Clone, Debug)]
pub struct FailingDisk {
    pub(crate) disk: Arc<Disk>,
}

pub(crate) struct Disk {
    memory: Arc<Mapping>,
    media: Mutex<Media>,
    decide: Mutex<Decision>,
    /// Write-backs so far.
    count: AtomicU64,
}

struct Media {
    bytes: Vec<u8>,
    /// Offsets of the pages of I1.
    lost: BTreeSet<u64>,
}

impl FailingDisk {
    /// Asks `decide` at each write-back from now on, with its number from 1. It may make the caller wait.
    pub fn on_write_back(&self, decide: impl Fn(u64) -> WriteBackResult + Send + Sync + 'static) {
        *lock(&self.disk.decide) = Arc::new(decide);
        self.disk.count.store(0, Ordering::SeqCst);
    }

    /// Number of write-backs since [`FailingDisk::on_write_back`].
    pub fn write_backs(&self) -> u64 {
        self.disk.count.load(Ordering::SeqCst)
    }

    /// The bytes that write-backs have brought to the disk.
    pub fn media(&self) -> Vec<u8> {
        lock(&self.disk.media).bytes.clone()
    }

    /// As [`FailingDisk::media`], if the kernel has also written, by itself, every page that it still knows as changed.
    pub fn media_at_last(&self) -> Vec<u8> {
        let media = lock(&self.disk.media);
        let mut bytes = media.bytes.clone();
        let pages = (0..bytes.len() as u64).step_by(BLOCK_BYTES).filter(|page| !media.lost.contains(page));
        pages.for_each(|page| self.disk.copy_page(page, &mut bytes));
        bytes
    }
}

impl Disk {
    pub(crate) fn new(memory: Arc<Mapping>) -> Disk {
        let bytes = vec![0; memory.len_bytes() as usize];
        Disk {
            memory,
            media: Mutex::new(Media { bytes, lost: BTreeSet::new() }),
            decide: Mutex::new(Arc::new(|_| WriteBackResult::Done)),
            count: AtomicU64::new(0),
        }
    }

    /// The `msync` of this disk.
    pub(crate) fn write_back(&self, range: Range<u64>) -> Result<(), Errno> {
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let decide = lock(&self.decide).clone();
        let result = decide(number);
        let mut media = lock(&self.media);
        let Media { bytes, lost } = &mut *media;
        for page in range.step_by(BLOCK_BYTES) {
            if result == WriteBackResult::Done {
                self.copy_page(page, bytes);
                lost.remove(&page);
            } else {
                lost.insert(page);
            }
        }
        if result == WriteBackResult::Failed { Err(Errno::IO) } else { Ok(()) }
    }

    fn copy_page(&self, page: u64, bytes: &mut [u8]) {
        for at in (page..page + BLOCK_BYTES as u64).step_by(8) {
            // SAFETY: whole aligned words inside the mapping. Other threads may store meanwhile, as words or as atomics.
            let word = unsafe { self.memory.base().add(at as usize).cast::<u64>().read_volatile() };
            bytes[at as usize..at as usize + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Disk {{ {} write-backs }}", self.count.load(Ordering::SeqCst))
    }
}
