//! Files that all threads write at once, each in a range of its own that begins and ends inside a page.

use super::worker::put;
use crate::common::Short;
use heddle_nvmfs::NvmFs;
use heddle_vfs::{Error, FileSystem, Ino};

const FILES: u64 = 2;
/// Bytes of a thread's range: no multiple of a page.
const RANGE_BYTES: u64 = 150_001;

/// See the module.
pub struct Shared {
    inos: Vec<Ino>,
    /// What each range holds, by file and thread.
    content: Vec<Vec<Vec<u8>>>,
}

/// A thread's range of one file.
pub struct Range<'a> {
    ino: Ino,
    start: u64,
    content: &'a mut Vec<u8>,
}

fn text(file: u64) -> String {
    format!("shared{file}")
}

impl Shared {
    pub fn new(fs: &NvmFs, threads: u64) -> Shared {
        let inos = (0..FILES).map(|file| {
            let handle = fs.new_file(Ino::ROOT, &text(file));
            fs.resize(&handle, threads * RANGE_BYTES).unwrap();
            let ino = handle.ino;
            fs.release(handle);
            ino
        });
        let empty = vec![vec![0; RANGE_BYTES as usize]; threads as usize];
        Shared { inos: inos.collect(), content: vec![empty; FILES as usize] }
    }

    /// The ranges, by thread.
    pub fn ranges(&mut self) -> Vec<Vec<Range<'_>>> {
        let threads = self.content[0].len();
        let mut all: Vec<Vec<Range<'_>>> = (0..threads).map(|_| Vec::new()).collect();
        for (ino, ranges) in self.inos.iter().zip(&mut self.content) {
            for (thread, content) in ranges.iter_mut().enumerate() {
                all[thread].push(Range { ino: *ino, start: thread as u64 * RANGE_BYTES, content });
            }
        }
        all
    }

    /// What is not as its owner left it.
    pub fn differs(&self, fs: &NvmFs) -> Option<String> {
        for (file, ranges) in self.content.iter().enumerate() {
            let wanted: Vec<u8> = ranges.concat();
            let handle = fs.open_file(Ino::ROOT, &text(file as u64));
            let seen = fs.read_vec(&handle, 0, wanted.len() + 1);
            fs.release(handle);
            if seen != wanted {
                let at = seen.iter().zip(&wanted).position(|(a, b)| a != b);
                let owner = at.map(|at| at as u64 / RANGE_BYTES);
                return Some(format!(
                    "shared file {file} has {} bytes and differs at {at:?}, in the range of thread {owner:?}",
                    seen.len()
                ));
            }
        }
        None
    }
}

impl Range<'_> {
    /// Writes somewhere in the range, and reads around it what is this thread's.
    pub fn write(&mut self, fs: &NvmFs, at: u64, len: u64, value: u8) -> Result<(), Error> {
        let at = at % RANGE_BYTES;
        let data = vec![value; len.min(RANGE_BYTES - at) as usize];
        let handle = fs.open(&crate::common::root(), self.ino, heddle_vfs::OpenFlags::READ_WRITE)?;
        let written = fs.write(&handle, self.start + at, &data);
        if written.is_ok() {
            put(self.content, at, &data);
        }
        let from = at.saturating_sub(3000);
        let until = (at + len + 3000).min(RANGE_BYTES);
        let seen = fs.read_vec(&handle, self.start + from, (until - from) as usize);
        fs.release(handle);
        assert!(
            seen == self.content[from as usize..until as usize],
            "a range of a shared file, {} bytes at {}, is not what its owner wrote",
            until - from,
            self.start + from
        );
        written.map(|_| ())
    }
}
