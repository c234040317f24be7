//! One file: writes, appends, truncations, punches, reads and looks at its size, all overlapping.

use crate::common::Short;
use crate::linear::{Machine, has_order};
use crate::rig::{Dice, Event, History, disk, together, told};
use heddle_nvmfs::{NvmFs, Variant};
use heddle_vfs::{Error, FileSystem, Handle, Ino, RangeOp};
use std::sync::Arc;

/// Bytes that move together: an eighth of a page.
const UNIT: u64 = 512;
/// Units of the file at most, appends aside: four pages whose cells lie in the inode, and one whose cell is made when it is written.
const UNITS: u64 = 5 * PAGE;
/// Units of a page.
const PAGE: u64 = 8;

/// Which calls.
#[derive(Clone, Copy)]
pub enum Mix {
    /// All of them, at any unit.
    All,
    /// Writes and reads of whole pages, few of which meet EOF: the paths without a lock.
    Pages,
    /// One thread reads the file, two overwrite its pages, one at a time: a block that is replaced under the reader's eyes is soon
    /// written again.
    Reuse,
    /// One thread reads the file, two overwrite several pages at a time, which change at once.
    Wide,
    /// Page 4 is written and cleared, and has no cell at first: who clears it cannot hold it. The clearing has a larger version than
    /// a first write would, because of page 3.
    NoCell,
    /// The first thread's log page is nearly full, and the page before it holds what was overwritten: its calls clean it away, while
    /// others write, cut, and shift pages.
    Cleaning,
}

/// A call; places and lengths in units.
#[derive(Clone, Debug)]
pub enum Op {
    Write { at: u64, len: u64, value: u8 },
    Append { len: u64, value: u8 },
    Truncate { len: u64 },
    Punch { at: u64, len: u64 },
    Insert { at: u64, len: u64 },
    Collapse { at: u64, len: u64 },
    Read { at: u64, len: u64 },
    Size,
}

/// What it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// A shift beyond the end.
    Refused,
    /// Where an append went, or the size, in bytes.
    Bytes(u64),
    /// What was read, a value a unit.
    Values(Vec<u8>),
}

/// A value a unit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Content(Vec<u8>);

impl Machine for Content {
    type Op = Op;
    type Outcome = Outcome;

    fn after(&self, op: &Op, outcome: &Outcome) -> Option<Content> {
        let units = &self.0;
        let mut next = self.clone();
        let mut fill = |at: u64, len: u64, value: u8| {
            let end = (at + len) as usize;
            if next.0.len() < end {
                next.0.resize(end, 0);
            }
            next.0[at as usize..end].fill(value);
        };
        let said = match *op {
            Op::Write { at, len, value } => {
                fill(at, len, value);
                Outcome::Done
            }
            Op::Append { len, value } => {
                fill(units.len() as u64, len, value);
                Outcome::Bytes(units.len() as u64 * UNIT)
            }
            Op::Truncate { len } => {
                next.0.resize(len as usize, 0);
                Outcome::Done
            }
            Op::Punch { at, len } => {
                let end = ((at + len) as usize).min(units.len());
                next.0[(at as usize).min(end)..end].fill(0);
                Outcome::Done
            }
            Op::Insert { at, .. } if at as usize >= units.len() => Outcome::Refused,
            Op::Insert { at, len } => {
                next.0.splice(at as usize..at as usize, vec![0; len as usize]);
                Outcome::Done
            }
            Op::Collapse { at, len } if (at + len) as usize >= units.len() => Outcome::Refused,
            Op::Collapse { at, len } => {
                next.0.drain(at as usize..(at + len) as usize);
                Outcome::Done
            }
            Op::Read { at, len } => {
                let end = ((at + len) as usize).min(units.len());
                Outcome::Values(units[(at as usize).min(end)..end].to_vec())
            }
            Op::Size => Outcome::Bytes(units.len() as u64 * UNIT),
        };
        (said == *outcome).then_some(next)
    }
}

fn op(dice: &mut Dice, mix: Mix, thread: usize, value: u8) -> Op {
    let (at, len) = match mix {
        Mix::All => (dice.below(UNITS - 1), 1 + dice.below(2 * PAGE)),
        Mix::Pages => (dice.below(4) * PAGE, PAGE * (1 + dice.below(3) / 2)),
        Mix::Reuse => (dice.below(5) * PAGE, PAGE),
        Mix::Wide => (dice.below(3) * PAGE, 3 * PAGE),
        Mix::NoCell => (4 * PAGE, PAGE),
        Mix::Cleaning => (dice.below(4) * PAGE, PAGE),
    };
    let len = len.min(UNITS - at);
    match (mix, dice.below(12)) {
        (Mix::Cleaning, _) if thread == 0 => Op::Write { at, len, value },
        (Mix::Cleaning, 0..2) => Op::Insert { at, len },
        (Mix::Cleaning, 2..4) => Op::Collapse { at, len },
        (Mix::Cleaning, 4..6) => Op::Truncate { len: dice.below(UNITS) },
        (Mix::Cleaning, 6..9) => Op::Write { at, len, value },
        (Mix::Cleaning, _) => Op::Read { at: 0, len: 2 * UNITS },
        (Mix::Reuse | Mix::Wide, _) if thread == 0 => Op::Read { at: 0, len: UNITS },
        (Mix::NoCell, 0..6) if thread == 0 => Op::Truncate { len: dice.below(3 * PAGE) },
        (Mix::NoCell, _) if thread == 0 => Op::Punch { at: dice.below(3 * PAGE), len: UNITS },
        (Mix::Pages, 0..6) | (Mix::All, 0..4) | (Mix::Reuse | Mix::Wide | Mix::NoCell, _) => {
            Op::Write { at, len, value }
        }
        (Mix::Pages, _) => Op::Read { at, len: len.max(dice.below(UNITS)) },
        (_, 4) => Op::Append { len: 1 + dice.below(PAGE + 2), value },
        (_, 5) => Op::Truncate { len: dice.below(UNITS) },
        (_, 6) => Op::Punch { at, len },
        (_, 7) => Op::Size,
        _ => Op::Read { at, len: 1 + dice.below(UNITS) },
    }
}

/// How many calls a thread makes; who writes beside a reader must come round to a block that it has freed.
fn calls(mix: Mix, thread: usize) -> usize {
    match (mix, thread) {
        (Mix::All | Mix::Pages, _) => 4,
        (Mix::Reuse | Mix::Wide, 0) => 3,
        (Mix::Reuse, _) => 5,
        (Mix::Wide, _) => 3,
        (Mix::NoCell, _) => 2,
        (Mix::Cleaning, 0) => 6,
        (Mix::Cleaning, _) => 3,
    }
}

/// What is in the file at first, a value a unit.
fn prepare(fs: &NvmFs, handle: &Handle, dice: &mut Dice, mix: Mix) -> Vec<u8> {
    let write = |page: u64, pages: u64| {
        let bytes = vec![1; (pages * PAGE * UNIT) as usize];
        fs.write(handle, page * PAGE * UNIT, &bytes).unwrap();
    };
    match mix {
        Mix::All => match dice.below(UNITS) / PAGE {
            0 => {}
            pages => write(0, pages),
        },
        Mix::Pages => write(0, UNITS / PAGE),
        // Page by page: neighbours in the file are none on the media, so each is a copy of its own.
        Mix::Reuse | Mix::Wide => [4, 1, 3, 0, 2].into_iter().for_each(|page| write(page, 1)),
        Mix::Cleaning => {
            // What is cleaned: the first page of the log, and from the second one on each call may do it.
            write(0, UNITS / PAGE);
            let nearly = 2 * heddle_nvmfs::format::page::SLOTS as u64 - 4 - dice.below(6);
            (0..nearly).for_each(|n| write(n % 4, 1));
        }
        Mix::NoCell => {
            (0..3).for_each(|_| write(3, 1));
            fs.resize(handle, UNITS * UNIT).unwrap();
        }
    }
    whole(fs)
}

fn make(fs: &NvmFs, handle: &Handle, op: &Op) -> Outcome {
    match *op {
        Op::Write { at, len, value } => {
            let written = fs.write(handle, at * UNIT, &vec![value; (len * UNIT) as usize]).unwrap();
            assert_eq!(written as u64, len * UNIT);
            Outcome::Done
        }
        Op::Append { len, value } => {
            Outcome::Bytes(fs.append(handle, &vec![value; (len * UNIT) as usize]).unwrap())
        }
        Op::Truncate { len } => {
            fs.resize(handle, len * UNIT).unwrap();
            Outcome::Done
        }
        Op::Punch { at, len } => {
            fs.fallocate(handle, RangeOp::Punch, at * UNIT, len * UNIT).unwrap();
            Outcome::Done
        }
        Op::Insert { at, len } => shift(fs, handle, RangeOp::Insert, at, len),
        Op::Collapse { at, len } => shift(fs, handle, RangeOp::Collapse, at, len),
        Op::Read { at, len } => {
            Outcome::Values(values(&fs.read_vec(handle, at * UNIT, (len * UNIT) as usize)))
        }
        Op::Size => Outcome::Bytes(fs.size(handle)),
    }
}

fn shift(fs: &NvmFs, handle: &Handle, how: RangeOp, at: u64, len: u64) -> Outcome {
    match fs.fallocate(handle, how, at * UNIT, len * UNIT) {
        Ok(()) => Outcome::Done,
        Err(Error::InvalidArgument(_)) => Outcome::Refused,
        Err(error) => panic!("{error:?}"),
    }
}

fn values(bytes: &[u8]) -> Vec<u8> {
    let one = |unit: &[u8]| {
        assert!(unit.iter().all(|b| *b == unit[0]), "a unit is torn: {} and others", unit[0]);
        unit[0]
    };
    bytes.chunks(UNIT as usize).map(one).collect()
}

/// All of a file.
fn whole(fs: &NvmFs) -> Vec<u8> {
    let handle = fs.open_file(Ino::ROOT, "f");
    let size = fs.size(&handle);
    let bytes = fs.read_vec(&handle, 0, size as usize + 1);
    assert_eq!(bytes.len() as u64, size);
    fs.release(handle);
    values(&bytes)
}

/// One program of three threads: what their calls say must have an order that ends in what is there afterwards, and after a power
/// cut. Then the file grows: nothing that was cut off may come back.
pub fn run(mut dice: Dice, mix: Mix) {
    let variant = match mix {
        Mix::All | Mix::Pages => dice.variant(),
        Mix::Reuse | Mix::Wide | Mix::NoCell | Mix::Cleaning => Variant::Heddle,
    };
    let (disk, volume) = disk(variant);
    let fs = volume.fs();
    let handle = Arc::new(fs.new_file(Ino::ROOT, "f"));
    let start = Content(prepare(&fs, &handle, &mut dice, mix));
    let mut value = 1;
    let programs: Vec<Vec<Op>> = (0..3)
        .map(|thread| {
            (0..calls(mix, thread))
                .map(|_| {
                    value += 1;
                    op(&mut dice, mix, thread, value)
                })
                .collect()
        })
        .collect();
    let history = History::new();
    let (calls, of, opened) = (history.clone(), fs.clone(), handle.clone());
    together(programs, move |thread, program| {
        program.iter().for_each(|op| calls.record(thread, op, || make(&of, &opened, op)));
    });
    let all = Op::Read { at: 0, len: 1000 };
    for last in [&all, &Op::Truncate { len: UNITS }, &all] {
        history.record(0, last, || make(&fs, &handle, last));
    }
    let events = history.events();
    assert!(
        has_order(start, &events),
        "{variant:?}: no order of these calls explains them:\n{}",
        told(&events)
    );
    let now = whole(&fs);
    fs.release(Arc::into_inner(handle).unwrap());
    drop(fs);
    if dice.below(2) == 0 {
        volume.abandon()
    } else {
        volume.unmount()
    }
    let volume = disk.mount();
    assert_eq!(whole(&volume.fs()), now, "{variant:?}: another file after the remount");
    volume.unmount();
}

fn event(call: u64, back: u64, op: Op, outcome: Outcome) -> Event<Op, Outcome> {
    Event { thread: 0, call, back, op, outcome }
}

pub fn refuses_a_read_of_half_a_write() {
    let write = event(0, 3, Op::Write { at: 0, len: 2, value: 7 }, Outcome::Done);
    let read = |values: &[u8]| event(1, 2, Op::Read { at: 0, len: 2 }, Outcome::Values(values.to_vec()));
    let start = Content(vec![1, 1]);
    assert!(has_order(start.clone(), &[write.clone(), read(&[7, 7])]));
    assert!(has_order(start.clone(), &[write.clone(), read(&[1, 1])]));
    assert!(!has_order(start, &[write, read(&[7, 1])]));
}

pub fn refuses_a_read_of_the_past() {
    let write = event(0, 1, Op::Write { at: 0, len: 1, value: 7 }, Outcome::Done);
    let read = |call, value| event(call, 9, Op::Read { at: 0, len: 1 }, Outcome::Values(vec![value]));
    let start = Content(vec![1]);
    assert!(has_order(start.clone(), &[write.clone(), read(2, 7)]));
    assert!(!has_order(start, &[write, read(2, 1)]));
}
