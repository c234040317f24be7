//! The region the engine works on: `heddle_pmem`'s, or under loom a model of one.
//!
//! The model keeps the bytes of data, for which threads race, as loom's atomics, two words a block. So half
//! of a page's bytes may be older than the other half. Stores of data order nothing, and a fence orders only
//! stores (`sfence`), which is weaker than any real processor. Records and pointers are read back only by
//! cleaning and recovery, never by another thread's look-up. So they are plain words here, except lines that
//! a model names (`race`). Such a line is one of loom's atomics, whose value stands for all eight words.

#[cfg(not(loom))]
pub use heddle_pmem::Region;
#[cfg(loom)]
pub use model::Region;

#[cfg(loom)]
mod model {
    use heddle_arena::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use heddle_arena::sync::atomic::{AtomicU64, fence};
    use heddle_pmem::{BLOCK_BYTES, BadBuffer, Error, Pos};
    use std::collections::HashMap;
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    const BLOCK: u64 = BLOCK_BYTES as u64;
    /// Number of bytes that one word of the model stands for.
    const GRAIN: u64 = BLOCK / 2;

    /// The model of a region.
    pub struct Region {
        len_bytes: u64,
        /// Data, by grain: each value stands for all words of the grain.
        data: Mutex<HashMap<u64, Arc<AtomicU64>>>,
        /// Records and pointers.
        words: Mutex<HashMap<u64, u64>>,
        /// Lines that threads race for: the index into `texts` of each one's content.
        lines: Mutex<HashMap<u64, Arc<AtomicU64>>>,
        texts: Mutex<Vec<[u64; 8]>>,
    }

    impl Region {
        /// A region of zeros.
        pub fn anonymous(len_bytes: u64) -> Region {
            Region {
                len_bytes,
                data: Mutex::default(),
                words: Mutex::default(),
                lines: Mutex::default(),
                texts: Mutex::default(),
            }
        }

        /// A model has nothing mapped.
        ///
        /// # Safety
        /// As of the region that it stands for.
        pub unsafe fn unmap_without_freeing(&self) {}

        fn grain(&self, at: u64) -> Arc<AtomicU64> {
            let mut data = self.data.lock().unwrap();
            data.entry(at / GRAIN).or_insert_with(|| Arc::new(AtomicU64::new(0))).clone()
        }

        /// Creates the model of a block's bytes, so that no thread is the first to do so.
        pub fn touch(&self, at: Pos) {
            self.grain(at.0);
            self.grain(at.0 + GRAIN);
        }

        /// Grains that begin in a range, with their distance from its start.
        fn grains(at: Pos, len: u64) -> impl Iterator<Item = (u64, usize)> {
            let first = at.0.next_multiple_of(GRAIN);
            (first..at.0 + len).step_by(GRAIN as usize).map(move |g| (g, (g - at.0) as usize))
        }

        /// From now on other threads may read this line while it is stored. Its content stays.
        pub fn race(&self, at: Pos) {
            let words = self.line(at);
            let text = self.text(words);
            self.lines.lock().unwrap().insert(at.0, Arc::new(AtomicU64::new(text)));
        }

        fn text(&self, words: [u64; 8]) -> u64 {
            let mut texts = self.texts.lock().unwrap();
            texts.push(words);
            texts.len() as u64 - 1
        }

        fn raced(&self, at: u64) -> Option<Arc<AtomicU64>> {
            self.lines.lock().unwrap().get(&(at / 64 * 64)).cloned()
        }

        pub fn base_address(&self) -> usize {
            0
        }

        pub fn len_bytes(&self) -> u64 {
            self.len_bytes
        }

        pub fn path(&self) -> Option<&Path> {
            None
        }

        pub fn is_read_only(&self) -> bool {
            false
        }

        pub fn failed(&self) -> Option<Error> {
            None
        }

        /// As above.
        pub fn on_failed_fence(&self, _hear: impl Fn() + Send + Sync + 'static) {}

        /// As above.
        pub fn failed_fence(&self) -> Option<Error> {
            None
        }

        /// The model's media does not fail.
        pub fn lost(&self, _at: Pos, _len_bytes: u64) -> bool {
            false
        }

        pub fn nt_write(&self, at: Pos, bytes: &[u8]) {
            for (grain, behind) in Self::grains(at, bytes.len() as u64) {
                let mut word = [0; 8];
                let n = (bytes.len() - behind).min(8);
                word[..n].copy_from_slice(&bytes[behind..behind + n]);
                // ORDERING: Relaxed: bytes of data order nothing.
                self.grain(grain).store(u64::from_le_bytes(word), Relaxed);
            }
        }

        /// A model's buffers are always mapped.
        pub fn nt_write_user(&self, at: Pos, bytes: &[u8], _whole_bytes: usize) -> Result<(), BadBuffer> {
            self.nt_write(at, bytes);
            Ok(())
        }

        /// A model's memory loses nothing.
        pub fn durability(&self) -> heddle_pmem::Durability {
            heddle_pmem::Durability::Process
        }

        pub fn nt_copy(&self, to: Pos, from: Pos, len_bytes: u64) {
            for (grain, behind) in Self::grains(to, len_bytes) {
                // ORDERING: Relaxed: bytes of data order nothing.
                let word = self.grain(from.0 + behind as u64).load(Relaxed);
                self.grain(grain).store(word, Relaxed);
            }
        }

        pub fn nt_zero(&self, at: Pos, len_bytes: u64) {
            // A block that was never data is a log page, an inode chunk or a list: threads do not race for
            // it.
            self.words.lock().unwrap().retain(|pos, _| !(at.0..at.0 + len_bytes).contains(pos));
            let range = at.0..at.0 + len_bytes;
            let raced: Vec<_> =
                self.lines.lock().unwrap().iter().map(|(at, line)| (*at, line.clone())).collect();
            for (_, line) in raced.into_iter().filter(|(at, _)| range.contains(at)) {
                line.store(self.text([0; 8]), Relaxed); // ORDERING: Relaxed: stores past the cache order nothing.
            }
            for (grain, _) in Self::grains(at, len_bytes) {
                let known = self.data.lock().unwrap().get(&(grain / GRAIN)).cloned();
                if let Some(word) = known {
                    word.store(0, Relaxed);
                }
            }
        }

        pub fn nt_line(&self, at: Pos, words: &[u64; 8]) {
            if let Some(line) = self.raced(at.0) {
                // ORDERING: Relaxed: stores past the cache order nothing.
                return line.store(self.text(*words), Relaxed);
            }
            let mut all = self.words.lock().unwrap();
            words.iter().enumerate().for_each(|(i, word)| {
                all.insert(at.0 + i as u64 * 8, *word);
            });
        }

        pub fn store_line(&self, at: Pos, words: &[u64; 8]) {
            self.nt_line(at, words);
        }

        pub fn store_u64(&self, at: Pos, value: u64) {
            if let Some(line) = self.raced(at.0) {
                let mut words = self.line(Pos(at.0 / 64 * 64));
                words[(at.0 % 64 / 8) as usize] = value;
                // ORDERING: Release, as the region's own.
                return line.store(self.text(words), Release);
            }
            self.words.lock().unwrap().insert(at.0, value);
        }

        /// A store is complete at once: a model has no caches to write back.
        pub fn flush_unfenced(&self, _at: Pos, _len_bytes: u64) {}

        /// No other process has it.
        pub fn unlock(&self) {}

        pub fn load_u64(&self, at: Pos) -> u64 {
            if let Some(line) = self.raced(at.0) {
                // ORDERING: Acquire, as the region's own.
                let text = line.load(Acquire);
                return self.texts.lock().unwrap()[text as usize][(at.0 % 64 / 8) as usize];
            }
            self.words.lock().unwrap().get(&at.0).copied().unwrap_or(0)
        }

        pub fn line(&self, at: Pos) -> [u64; 8] {
            if let Some(line) = self.raced(at.0) {
                let text = line.load(Relaxed); // ORDERING: Relaxed, as the region's own.
                return self.texts.lock().unwrap()[text as usize];
            }
            std::array::from_fn(|i| self.load_u64(at.plus(i as u64 * 8)))
        }

        #[track_caller]
        pub fn fence(&self) {
            // ORDERING: Release: it orders earlier stores before later ones, and nothing else.
            fence(Release);
        }

        #[track_caller]
        pub fn fence_and_wait(&self) {
            // PERSIST: the caller states the reason.
            self.fence();
        }

        /// A model has no pages.
        pub fn huge_bytes(&self) -> Option<u64> {
            None
        }

        /// A model has no pages.
        pub fn expect_stores(&self, _at: Pos, _len_bytes: u64) {}

        /// A model has no pages.
        pub fn map_all(&self) {}

        /// A model's buffers are always mapped.
        pub fn read_out(&self, at: Pos, into: &mut [u8]) -> Result<(), BadBuffer> {
            self.read(at, into);
            Ok(())
        }

        pub fn zero_out(&self, into: &mut [u8]) -> Result<(), BadBuffer> {
            into.fill(0);
            Ok(())
        }

        pub fn read(&self, at: Pos, into: &mut [u8]) {
            let end = at.0 + into.len() as u64;
            let mut from = at.0;
            while from < end {
                let to = ((from / GRAIN + 1) * GRAIN).min(end);
                // ORDERING: Relaxed: bytes of data order nothing.
                let word = self.grain(from).load(Relaxed).to_le_bytes();
                let part = &mut into[(from - at.0) as usize..(to - at.0) as usize];
                part.iter_mut().zip(word.iter().cycle()).for_each(|(to, from)| *to = *from);
                from = to;
            }
        }
    }
}
