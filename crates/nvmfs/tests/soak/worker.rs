//! A thread that knows what it did: a directory of its own, byte by byte.

use super::shared::Range;
use crate::common::{Short, name, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{Cookie, Error, FileSystem, Handle, Ino, OpenFlags, RangeOp};
use std::collections::BTreeMap;
use std::time::Instant;

/// Files of a thread at most.
const FILES: u64 = 40;
/// Length of a file at most, in bytes.
const FILE_BYTES: u64 = 700 << 10;
/// Blocks that threads try to leave free: below, they remove more than they make.
const SCARCE_BLOCKS: u64 = 100;

const BLOCK_BYTES: u64 = 4096;

/// See the module.
pub struct Worker {
    me: u64,
    dice: u64,
    /// Two directories: its own and one in it.
    dirs: [Ino; 2],
    /// What is in them.
    files: BTreeMap<(usize, String), Vec<u8>>,
    /// Calls made.
    pub calls: u64,
    /// Calls refused because the image was full.
    pub refused: u64,
    serial: u64,
}

impl Worker {
    pub fn new(fs: &NvmFs, me: u64, seed: u64) -> Worker {
        let own = fs.new_dir(Ino::ROOT, &format!("t{me}"));
        let inner = fs.new_dir(own, "inner");
        let dice = (seed << 8 | me).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Worker { me, dice, dirs: [own, inner], files: BTreeMap::new(), calls: 0, refused: 0, serial: 0 }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    /// Works until then, in its directories and in its ranges of the shared files.
    pub fn work(&mut self, fs: &NvmFs, mut ranges: Vec<Range<'_>>, until: Instant) {
        while Instant::now() < until {
            self.calls += 1;
            let scarce = self.calls.is_multiple_of(16) && fs.statfs().unwrap().blocks_free < SCARCE_BLOCKS;
            let done = match self.below(21) {
                _ if scarce => self.remove(fs),
                0..2 => self.create(fs),
                2 => self.rename(fs),
                3 => self.remove(fs),
                4..6 => {
                    let n = self.below(ranges.len() as u64) as usize;
                    let (at, len, value) =
                        (self.below(1 << 20), 1 + self.below(20_000), self.below(255) as u8);
                    ranges[n].write(fs, at, len, value)
                }
                6 => self.list(fs),
                kind => self.change(fs, kind),
            };
            match done {
                Ok(()) => {}
                Err(Error::NoSpace | Error::NoInodes) => {
                    // Nothing has happened; what makes room must work.
                    self.refused += 1;
                    self.remove(fs).expect("removing a file from a full image");
                }
                Err(error) => panic!("thread {}, call {}: {error:?}", self.me, self.calls),
            }
        }
    }

    fn pick(&mut self) -> Option<(usize, String)> {
        let count = self.files.len() as u64;
        if count == 0 {
            return None;
        }
        let n = self.below(count) as usize;
        self.files.keys().nth(n).cloned()
    }

    fn fresh(&mut self) -> (usize, String) {
        self.serial += 1;
        (self.below(2) as usize, format!("f{}", self.serial))
    }

    fn create(&mut self, fs: &NvmFs) -> Result<(), Error> {
        if self.files.len() as u64 >= FILES {
            return self.remove(fs);
        }
        let key = self.fresh();
        fs.release(fs.try_file(self.dirs[key.0], &key.1)?);
        self.files.insert(key, Vec::new());
        Ok(())
    }

    fn remove(&mut self, fs: &NvmFs) -> Result<(), Error> {
        let Some(key) = self.pick() else { return Ok(()) };
        fs.remove(self.dirs[key.0], &key.1)?;
        self.files.remove(&key);
        Ok(())
    }

    /// To a new name, or over another file.
    fn rename(&mut self, fs: &NvmFs) -> Result<(), Error> {
        let Some(from) = self.pick() else { return Ok(()) };
        let to = if self.below(3) == 0 { self.pick().unwrap_or(from.clone()) } else { self.fresh() };
        fs.replace((self.dirs[from.0], &from.1), (self.dirs[to.0], &to.1))?;
        if let Some(content) = self.files.remove(&from) {
            self.files.insert(to, content);
        }
        Ok(())
    }

    fn list(&mut self, fs: &NvmFs) -> Result<(), Error> {
        let dir = self.below(2) as usize;
        let handle = fs.open(&root(), self.dirs[dir], OpenFlags::READ)?;
        let mut names = Vec::new();
        let listed = fs.each_entry(&handle, Cookie::default(), &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name.bytes()).into_owned());
            true
        });
        fs.release(handle);
        listed?;
        names.retain(|name| name != "inner");
        names.sort();
        let mut wanted: Vec<_> = self.files.keys().filter(|k| k.0 == dir).map(|k| k.1.clone()).collect();
        wanted.sort();
        assert_eq!(names, wanted, "thread {}: names of directory {dir}", self.me);
        Ok(())
    }

    /// Writes, appends, cuts, punches, allocates, shifts or reads.
    fn change(&mut self, fs: &NvmFs, kind: u64) -> Result<(), Error> {
        let Some(key) = self.pick() else { return Ok(()) };
        let mut content = self.files.remove(&key).unwrap_or_default();
        let handle = fs.open_file(self.dirs[key.0], &key.1);
        let done = self.change_content(fs, &handle, &mut content, kind);
        fs.release(handle);
        self.files.insert(key, content);
        done
    }

    fn change_content(
        &mut self,
        fs: &NvmFs,
        handle: &Handle,
        content: &mut Vec<u8>,
        kind: u64,
    ) -> Result<(), Error> {
        let long = self.below(8) == 0;
        let len = 1 + self.below(if long { 200_000 } else { 12_000 });
        let at = self.below(content.len() as u64 + 5000).min(FILE_BYTES - len);
        let value = self.below(255) as u8 + 1;
        match kind {
            7..12 => {
                let data = vec![value; len as usize];
                assert_eq!(fs.write(handle, at, &data)? as u64, len);
                put(content, at, &data);
            }
            12..14 if content.len() as u64 + len < FILE_BYTES => {
                let data = vec![value; len as usize];
                assert_eq!(fs.append(handle, &data)?, content.len() as u64, "where an append went");
                content.extend(data);
            }
            14 => {
                let size = self.below(content.len() as u64 + 3000);
                fs.resize(handle, size)?;
                content.resize(size as usize, 0);
            }
            15 => {
                fs.fallocate(handle, RangeOp::Punch, at, len)?;
                let end = ((at + len) as usize).min(content.len());
                content[(at as usize).min(end)..end].fill(0);
            }
            16 => fs.fallocate(handle, RangeOp::Allocate { keep_size: true }, at, len.min(20_000))?,
            17 => self.shift(fs, handle, content)?,
            _ => {
                let seen = fs.read_vec(handle, at, len as usize);
                let end = ((at + len) as usize).min(content.len());
                let wanted = &content[(at as usize).min(end)..end];
                assert!(
                    seen == wanted,
                    "thread {}: {} bytes at {at} are not what was written",
                    self.me,
                    seen.len()
                );
                assert_eq!(fs.size(handle), content.len() as u64);
            }
        }
        Ok(())
    }

    /// Cuts whole blocks out, or inserts a hole of some.
    fn shift(&mut self, fs: &NvmFs, handle: &Handle, content: &mut Vec<u8>) -> Result<(), Error> {
        let blocks = content.len() as u64 / BLOCK_BYTES;
        if blocks < 2 {
            return Ok(());
        }
        let first = self.below(blocks - 1) * BLOCK_BYTES;
        let len = (1 + self.below(8)) * BLOCK_BYTES;
        let (from, until) = (first as usize, (first + len) as usize);
        if self.below(2) == 0 && until < content.len() {
            fs.fallocate(handle, RangeOp::Collapse, first, len)?;
            content.drain(from..until);
        } else if content.len() as u64 + len < FILE_BYTES {
            fs.fallocate(handle, RangeOp::Insert, first, len)?;
            content.splice(from..from, vec![0; len as usize]);
        }
        Ok(())
    }

    /// What is not as this thread left it.
    pub fn differs(&self, fs: &NvmFs) -> Option<String> {
        for ((dir, file), content) in &self.files {
            let attr = match fs.lookup(&root(), self.dirs[*dir], name(file)) {
                Ok(attr) => attr,
                Err(error) => return Some(format!("thread {}: {file}: {error:?}", self.me)),
            };
            let handle = fs.open(&root(), attr.ino, OpenFlags::READ_WRITE).ok()?;
            let seen = fs.read_vec(&handle, 0, content.len() + 1);
            fs.release(handle);
            if seen != *content {
                let at = seen.iter().zip(content).position(|(a, b)| a != b);
                return Some(format!(
                    "thread {}: {file} of {} bytes has {} and differs at {at:?}",
                    self.me,
                    content.len(),
                    seen.len()
                ));
            }
        }
        for dir in 0..2 {
            let mut count = 0;
            let handle = fs.open(&root(), self.dirs[dir], OpenFlags::READ).ok()?;
            let listed = fs.each_entry(&handle, Cookie::default(), &mut |_| {
                count += 1;
                true
            });
            fs.release(handle);
            let wanted = self.files.keys().filter(|k| k.0 == dir).count() + usize::from(dir == 0);
            if listed.is_err() || count != wanted {
                return Some(format!("thread {}: directory {dir} lists {count} names of {wanted}", self.me));
            }
        }
        None
    }
}

/// Writes into a model of a file.
pub fn put(content: &mut Vec<u8>, at: u64, data: &[u8]) {
    let end = at as usize + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at as usize..end].copy_from_slice(data);
}
