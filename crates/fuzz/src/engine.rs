//! The loop: take an input that was worth keeping, change it, try it, keep what reached something new.
//!
//! Everything follows from the seed and from what the code under test does: no clock decides.

use crate::coverage::Coverage;
use crate::shared_page::{INPUT_MAX, SharedPage};
use crate::targets::Target;
use heddle_crash::cut::Random;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Inputs that are kept at most: beyond, an old one makes room.
const CORPUS_MAX: usize = 20_000;
/// Inputs between two notes in the shared page.
const NOTE_EVERY: u64 = 32;

/// How long.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Inputs at most.
    pub inputs: u64,
    /// Processor time at most.
    pub time: Duration,
}

/// Processor time of this process.
pub fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

struct Loop<'a> {
    target: &'a mut dyn Target,
    shared_page: &'a SharedPage,
    dir: PathBuf,
    coverage: Coverage,
    signals: HashSet<u64>,
    corpus: Vec<Vec<u8>>,
    dice: Random,
}

/// Tries inputs. One that breaks a promise ends the process.
pub fn run(target: &mut dyn Target, shared_page: &SharedPage, dir: &Path, seed: u64, bounds: Bounds) {
    let mut this = Loop {
        shared_page,
        dir: dir.to_path_buf(),
        coverage: Coverage::new(),
        signals: HashSet::new(),
        corpus: Vec::new(),
        dice: Random::new(seed),
        target,
    };
    let mut left = bounds.inputs;
    for input in this.target.seeds().into_iter().chain(kept(dir)) {
        if left == 0 {
            return;
        }
        left -= 1;
        this.attempt(&input, false);
    }
    while left > 0 && processor_time() < bounds.time {
        left -= 1;
        let input = this.mutant();
        this.attempt(&input, true);
        if left.is_multiple_of(NOTE_EVERY) {
            this.note();
        }
    }
    this.note();
}

/// Inputs that an earlier run kept, in the order of their names.
fn kept(dir: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
}

/// A name for an input.
pub fn hash(input: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    hasher.finish()
}

impl Loop<'_> {
    fn attempt(&mut self, input: &[u8], keep: bool) {
        self.shared_page.begin(input);
        self.coverage.reset();
        let signal = self.target.run(input).unwrap_or_else(|broken| panic!("{broken}"));
        let new = if self.coverage.has_counters() {
            self.coverage.merge_and_is_new()
        } else {
            self.signals.insert(signal)
        };
        if !new && !self.corpus.is_empty() {
            return;
        }
        match self.corpus.len() {
            CORPUS_MAX => {
                let old = self.dice.below(CORPUS_MAX as u64) as usize;
                self.corpus[old] = input.to_vec();
            }
            _ => self.corpus.push(input.to_vec()),
        }
        if keep {
            // A corpus that cannot be kept costs time at the next run, no more.
            let _ = std::fs::write(self.dir.join(format!("{:016x}", hash(input))), input);
        }
    }

    fn note(&self) {
        let millis = processor_time().as_millis() as u64;
        self.shared_page.note(millis, self.corpus.len() as u64, self.coverage.edges as u64);
    }

    /// An input of the corpus, changed in a few places. New ones are taken more often than old ones.
    fn mutant(&mut self) -> Vec<u8> {
        let dice = &mut self.dice;
        let len = self.corpus.len() as u64;
        let newest = dice.below(3) == 0;
        let from = if newest { len - 1 - dice.below(len.min(20)) } else { dice.below(len) };
        let mut input = self.corpus[from as usize].clone();
        for _ in 0..1 << dice.below(4) {
            let other = &self.corpus[dice.below(len) as usize];
            change(dice, &mut input, other, self.target.unit(), self.target.words());
        }
        input.truncate(INPUT_MAX);
        input
    }
}

/// Makes one change. Pieces are cut and put at multiples of `unit` bytes.
fn change(dice: &mut Random, input: &mut Vec<u8>, other: &[u8], unit: usize, words: &[&str]) {
    let place = |dice: &mut Random, len: usize| dice.below((len / unit + 1) as u64) as usize * unit;
    let piece = |dice: &mut Random, from: &[u8]| {
        let start = place(dice, from.len()).min(from.len());
        let end = (start + unit * (1 + dice.below(4) as usize)).min(from.len());
        from[start..end].to_vec()
    };
    match dice.below(12) {
        0..6 if !input.is_empty() => {
            let at = dice.below(input.len() as u64) as usize;
            let byte = &mut input[at];
            *byte = match dice.below(5) {
                0 => *byte ^ 1 << dice.below(8),
                1 => byte.wrapping_add(1 + dice.below(16) as u8),
                2 => byte.wrapping_sub(1 + dice.below(16) as u8),
                3 => [0, 1, 0x7f, 0x80, 0xff][dice.below(5) as usize],
                _ => dice.number() as u8,
            };
        }
        0..7 => {
            let fresh: Vec<u8> = (0..unit).map(|_| dice.number() as u8).collect();
            let at = place(dice, input.len()).min(input.len());
            input.splice(at..at, fresh);
        }
        7 if input.len() > unit => {
            let start = place(dice, input.len()).min(input.len() - unit);
            let end = (start + unit * (1 + dice.below(3) as usize)).min(input.len());
            input.drain(start..end);
        }
        8 => {
            let copy = piece(dice, input);
            let at = place(dice, input.len()).min(input.len());
            input.splice(at..at, copy);
        }
        9 => {
            let copy = piece(dice, other);
            let at = place(dice, input.len()).min(input.len());
            input.splice(at..at, copy);
        }
        10 if !words.is_empty() => {
            let word = words[dice.below(words.len() as u64) as usize].as_bytes();
            let at = dice.below(input.len() as u64 + 1) as usize;
            let end = if dice.below(2) == 0 { at } else { (at + word.len()).min(input.len()) };
            input.splice(at..end, word.iter().copied());
        }
        _ => {
            let copy = piece(dice, other);
            let at = place(dice, input.len()).min(input.len());
            let end = (at + copy.len()).min(input.len());
            input.splice(at..end, copy);
        }
    }
}
