//! What the running process and the one that watches it tell each other: a few words and the present input, in a file that both map.
//!
//! The input is there before it is tried, so that whatever becomes of the process, it is known what did it.

use std::fs::File;
use std::io::Result;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Longest input, in bytes.
pub const INPUT_MAX: usize = 1 << 16;

/// The words; see the methods.
#[repr(C)]
struct Header {
    inputs: AtomicU64,
    millis: AtomicU64,
    kept: AtomicU64,
    edges: AtomicU64,
    len: AtomicU64,
}

/// See the module.
pub struct SharedPage {
    header: &'static Header,
    input: *mut u8,
}

impl SharedPage {
    /// Maps the file, which is made longer if need be. It stays mapped.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(path: &Path) -> Result<SharedPage> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        let len = size_of::<Header>() + INPUT_MAX;
        file.set_len(len as u64)?;
        // SAFETY: a fresh shared mapping of a file that nobody makes shorter.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)?
        };
        // SAFETY: the mapping is page-aligned, long enough, never unmapped; both sides use atomics for the words.
        let header = unsafe { &*base.cast::<Header>() };
        // SAFETY: behind the words, inside the mapping.
        Ok(SharedPage { header, input: unsafe { base.cast::<u8>().add(size_of::<Header>()) } })
    }

    /// An input is about to be tried.
    pub fn begin(&self, input: &[u8]) {
        let len = input.len().min(INPUT_MAX);
        // SAFETY: `len` bytes of the mapping; the watcher reads them when this process stands still or is dead.
        unsafe { std::ptr::copy_nonoverlapping(input.as_ptr(), self.input, len) };
        self.header.len.store(len as u64, Relaxed); // ORDERING: Relaxed, before the Release below.
        self.header.inputs.fetch_add(1, Release); // ORDERING: Release, pairs with `inputs`.
    }

    /// Inputs that were begun, by all processes.
    pub fn inputs(&self) -> u64 {
        self.header.inputs.load(Acquire) // ORDERING: Acquire, pairs with `begin`.
    }

    /// The present input.
    pub fn input(&self) -> Vec<u8> {
        // ORDERING: Relaxed, behind `inputs`, or the writer is dead.
        let len = (self.header.len.load(Relaxed) as usize).min(INPUT_MAX);
        // SAFETY: inside the mapping.
        unsafe { std::slice::from_raw_parts(self.input, len) }.to_vec()
    }

    /// Says how far it is: processor time, inputs that are kept, edges.
    pub fn note(&self, millis: u64, kept: u64, edges: u64) {
        let words = [(&self.header.millis, millis), (&self.header.kept, kept), (&self.header.edges, edges)];
        words.into_iter().for_each(|(word, value)| word.store(value, Relaxed)); // ORDERING: Relaxed, figures for people.
    }

    /// What [`SharedPage::note`] said.
    pub fn noted(&self) -> [u64; 3] {
        [&self.header.millis, &self.header.kept, &self.header.edges].map(|word| word.load(Relaxed))
    }
}
