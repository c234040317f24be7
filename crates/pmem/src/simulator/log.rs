//! The stores that are not yet durable.
//!
//! State       memory     has every store applied: as the program sees it.
//!             pending    units in the order of their stores: parts of one aligned word, each whole or absent.
//!             durable    for every word with a pending unit, its value that is certainly on media.
//! Invariants  I1  a word without a pending unit is durable as it is in memory. So an image is memory, with the
//!                 words in `durable` put back and any admissible choice of units applied on top, in order.
//!             I2  when a unit becomes durable, older units lose the bytes it covers: because of coherence, no older value
//!                 of a byte reaches the media after a newer one.

use super::{CrashPoint, Model, line_of};
use crate::mapping::Mapping;
use crate::{BLOCK_BYTES, Pos, cpu};
use std::borrow::Cow;
use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;
use std::thread::{self, ThreadId};

/// How a store reaches the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// Through the cache: needs a flush of its line and then a fence, both by one thread.
    Cached,
    /// Past the cache: needs a fence of its own thread.
    NonTemporal,
}

/// A store of some bytes of one aligned word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) word: Pos,
    /// The word's bytes that were stored, all ones each.
    pub(super) mask: u64,
    pub(super) value: u64,
    pub(super) kind: StoreKind,
    /// Number of the store operation that it is part of; it grows along `pending`.
    pub(super) store: u64,
    thread: ThreadId,
}

impl Unit {
    pub(super) fn applied_to(&self, word: u64) -> u64 {
        word & !self.mask | self.value & self.mask
    }
}

pub(super) type Words = HashMap<Pos, u64>;

pub(super) struct Log {
    memory: Arc<Mapping>,
    model: Model,
    pending: Vec<Unit>,
    durable: Words,
    /// For each thread the lines it flushed since its last fence, and the number of stores there were then.
    flushed: HashMap<ThreadId, HashMap<u64, u64>>,
    stores: u64,
    fences: u64,
    /// For each block: true if it was stored to since the region began, or since its image was loaded.
    touched: Vec<bool>,
}

impl Log {
    pub(super) fn new(memory: Arc<Mapping>) -> Log {
        let blocks = memory.len_bytes() as usize / BLOCK_BYTES;
        Log {
            touched: vec![false; blocks],
            memory,
            model: Model::default(),
            pending: Vec::new(),
            durable: Words::new(),
            flushed: HashMap::new(),
            stores: 0,
            fences: 0,
        }
    }

    pub(super) fn load_image(&mut self, image: &[u8]) {
        assert!(image.len() as u64 <= self.memory.len_bytes());
        for (number, block) in image.chunks(BLOCK_BYTES).enumerate() {
            // Compared as slices: byte by byte, this took four fifths of the tests that flip bits.
            if block != &[0; BLOCK_BYTES][..block.len()] {
                let to = self.memory.base().wrapping_add(number * BLOCK_BYTES);
                // SAFETY: inside the mapping, which no other thread has seen yet.
                unsafe { to.copy_from_nonoverlapping(block.as_ptr(), block.len()) };
            }
        }
    }

    pub(super) fn set_model(&mut self, model: Model) {
        assert!(self.pending.is_empty(), "the model is chosen while nothing is pending");
        self.model = model;
    }

    pub(super) fn stores(&self) -> u64 {
        self.stores
    }

    pub(super) fn fences(&self) -> u64 {
        self.fences
    }

    pub(super) fn record(&mut self, kind: StoreKind, at: u64, len_bytes: usize, store: &dyn Fn()) {
        let first = at & !7;
        let words = || (first..at + len_bytes as u64).step_by(8).map(Pos);
        let before: Vec<u64> = words().map(|word| self.word(word)).collect();
        store();
        self.stores += 1;
        if len_bytes > 0 {
            let last = (at as usize + len_bytes - 1) / BLOCK_BYTES;
            self.touched[at as usize / BLOCK_BYTES..=last].fill(true);
        }
        for (offset, bytes) in cpu::pieces(at, len_bytes) {
            let piece = at + offset as u64;
            let word = Pos(piece & !7);
            let mask = (u64::MAX >> (64 - 8 * bytes)) << (8 * (piece & 7));
            let (old, value) = (before[((word.0 - first) / 8) as usize], self.word(word));
            if let Entry::Vacant(unsure) = self.durable.entry(word) {
                if old & mask == value & mask {
                    continue;
                }
                unsure.insert(old);
            }
            let thread = thread::current().id();
            self.pending.push(Unit { word, mask, value, kind, store: self.stores, thread });
        }
    }

    pub(super) fn flush(&mut self, thread: ThreadId, lines: impl Iterator<Item = u64>) {
        let flushed = self.flushed.entry(thread).or_default();
        flushed.extend(lines.map(|line| (line, self.stores)));
    }

    /// Makes durable all stores that this thread's fence covers.
    pub(super) fn fence(&mut self, thread: ThreadId) {
        self.fences += 1;
        let flushed = self.flushed.remove(&thread).unwrap_or_default();
        if self.pending.is_empty() {
            return;
        }
        let model = self.model;
        let settles = |unit: &Unit| {
            model.keeps_order()
                || match unit.kind {
                    StoreKind::NonTemporal => unit.thread == thread,
                    StoreKind::Cached => {
                        flushed.get(&line_of(unit.word)).is_some_and(|until| unit.store <= *until)
                    }
                }
        };
        let mut newer: Words = Words::new();
        for unit in self.pending.iter_mut().rev() {
            let covered = newer.entry(unit.word).or_default();
            unit.mask &= !*covered;
            if unit.mask != 0 && settles(unit) {
                *covered |= unit.mask;
                let word = self.durable.get_mut(&unit.word).expect("I1");
                *word = unit.applied_to(*word);
                unit.mask = 0;
            }
        }
        self.pending.retain(|unit| unit.mask != 0);
        let still: HashSet<Pos> = self.pending.iter().map(|unit| unit.word).collect();
        let memory = &self.memory;
        self.durable.retain(|word, value| {
            debug_assert!(still.contains(word) || *value == load(memory, *word), "I1 at {word:?}");
            still.contains(word)
        });
    }

    pub(super) fn crash_point(&self) -> CrashPoint<'_> {
        // SAFETY: the mapping lives longer than the borrow of `self`, and every thread that stores to it
        // holds the lock around this.
        let memory =
            unsafe { std::slice::from_raw_parts(self.memory.base(), self.memory.len_bytes() as usize) };
        CrashPoint::new(
            self.model,
            Cow::Borrowed(memory),
            Cow::Borrowed(&self.pending),
            Cow::Borrowed(&self.durable),
            Cow::Borrowed(&self.touched),
        )
    }

    fn word(&self, at: Pos) -> u64 {
        load(&self.memory, at)
    }
}

fn load(memory: &Mapping, word: Pos) -> u64 {
    assert!(word.0 + 8 <= memory.len_bytes());
    // SAFETY: inside the mapping and aligned; every thread that stores to it holds the lock around this.
    unsafe { memory.base().wrapping_add(word.0 as usize).cast::<u64>().read_volatile() }
}
