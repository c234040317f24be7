//! The journal: which calls began and ended, in which order.

use std::collections::BTreeMap;
use std::path::Path;

/// A line of the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Begun,
    Done,
}

const LINE_BYTES: usize = 16;

impl Event {
    /// Its bytes: one write to a file opened for appending is whole, and in the order of all threads' writes.
    pub fn line(self, number: u64) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        line[..8].copy_from_slice(&number.to_le_bytes());
        line[8] = self as u8 + 1;
        line
    }
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub begun: usize,
    /// Where it had returned, or was killed.
    pub ended: usize,
    /// It returned.
    pub acknowledged: bool,
}

/// All calls by number.
#[derive(Default)]
pub struct History {
    pub calls: BTreeMap<u64, Call>,
    lines: usize,
}

impl History {
    /// Reads the journal as far as it goes. A call that has not returned ends where the journal ends.
    pub fn read(journal: &Path) -> History {
        let bytes = std::fs::read(journal).unwrap_or_default();
        let mut history = History { lines: bytes.len() / LINE_BYTES, ..History::default() };
        for (place, line) in bytes.chunks_exact(LINE_BYTES).enumerate() {
            let number = u64::from_le_bytes(*line.first_chunk().unwrap());
            match line[8] {
                1 => {
                    let call = Call { begun: place, ended: history.lines, acknowledged: false };
                    assert!(history.calls.insert(number, call).is_none(), "call {number} began twice");
                }
                _ => {
                    let call = history.calls.get_mut(&number).expect("a call that ended has begun");
                    (call.ended, call.acknowledged) = (place, true);
                }
            }
        }
        history
    }

    /// Takes the longer journal of a later round in. What was running when an earlier round was killed ended then.
    pub fn continued_by(&mut self, later: History) {
        let kill = self.lines;
        let cut = |call: &Call| !call.acknowledged;
        let old: Vec<(u64, usize)> =
            self.calls.iter().filter(|(_, c)| cut(c)).map(|(number, call)| (*number, call.ended.min(kill))).collect();
        *self = later;
        for (number, ended) in old {
            if let Some(call) = self.calls.get_mut(&number) {
                call.ended = ended;
            }
        }
    }

    /// A number that no call has had, for the first thread.
    pub fn next_number(&self) -> u64 {
        let last = self.calls.last_key_value().map_or(0, |(number, _)| *number);
        (last / super::operation::THREADS + 1) * super::operation::THREADS
    }

    pub fn len(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Was `first` over before `second` began?
    pub fn before(&self, first: u64, second: u64) -> bool {
        match (self.calls.get(&first), self.calls.get(&second)) {
            (Some(first), Some(second)) => first.ended < second.begun,
            _ => false,
        }
    }

    pub fn acknowledged(&self, number: u64) -> bool {
        self.calls.get(&number).is_some_and(|call| call.acknowledged)
    }
}
