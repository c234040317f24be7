//! What may stand in each place of each file, in memory that outlives every process of the rig.
//!
//! A file is a row of units of 1 KiB. A unit's bytes follow from file, place, writer and the number of the write, so that each byte can be
//! checked. The ledger keeps for each unit and writer: the last write that returned (when it began and ended, by one clock for all), and
//! the writes of which nobody knows the outcome, because their thread was killed inside.
//!
//! Invariants  I1  one thread at a time is a writer, and writes the writer's rows.
//!             I2  a call under way stands in the writer's `Call` from before it begins until its rows are written.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Writers of trees; each has a file of its own and writes the shared ones.
pub const WORKERS: u64 = 48;
/// Threads that write little and sleep: each has a page of a file.
pub const CROWD: u64 = 2000;
pub const WRITERS: u64 = WORKERS + CROWD;
/// Files that all workers write.
pub const SHARED: u64 = 3;
pub const UNIT: usize = 1024;
/// Units of a file.
pub const UNITS: u64 = 64;
/// Names that a worker makes, moves and removes.
pub const NAMES: u64 = 4;
/// Set in the number of a write that makes zeros.
pub const ZEROS: u64 = 1 << 47;
const MAYBES: usize = 4;
/// More writes are in doubt than a row can name: then any of the writer's may be there.
const ANY: u64 = u64::MAX;

/// A unit, as one writer knows it.
#[repr(C)]
pub struct Row {
    /// Odd: it is being changed.
    turn: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    number: AtomicU64,
    maybe: [AtomicU64; MAYBES],
}

/// What a row says at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub begun: u64,
    pub ended: u64,
    pub number: u64,
    maybe: [u64; MAYBES],
}

impl Known {
    fn may_be(&self, number: u64) -> bool {
        self.maybe[MAYBES - 1] == ANY || self.maybe.contains(&number)
    }
}

impl Row {
    /// `None`: it is being changed.
    fn read(&self) -> Option<Known> {
        let turn = self.turn.load(SeqCst);
        let known = Known {
            begun: self.begun.load(SeqCst),
            ended: self.ended.load(SeqCst),
            number: self.number.load(SeqCst),
            maybe: std::array::from_fn(|n| self.maybe[n].load(SeqCst)),
        };
        (turn.is_multiple_of(2) && self.turn.load(SeqCst) == turn).then_some(known)
    }

    fn write(&self, begun: u64, ended: u64, number: u64) {
        self.turn.fetch_or(1, SeqCst);
        self.begun.store(begun, SeqCst);
        self.ended.store(ended, SeqCst);
        self.number.store(number, SeqCst);
        self.maybe.iter().for_each(|maybe| maybe.store(0, SeqCst));
        self.turn.fetch_add(1, SeqCst);
    }

    fn doubt(&self, number: u64) {
        let free = self.maybe.iter().find(|maybe| maybe.load(SeqCst) == 0);
        match free {
            Some(free) => free.store(number, SeqCst),
            None => self.maybe[MAYBES - 1].store(ANY, SeqCst),
        }
    }
}

/// What a writer does just now.
#[repr(C)]
pub struct Call {
    /// Milliseconds of the wall clock at which the call began; 0: none is under way.
    pub since_ms: AtomicU64,
    /// The longest call, in milliseconds.
    pub longest_ms: AtomicU64,
    /// Calls that have returned.
    pub done: AtomicU64,
    /// The number of the last write.
    number: AtomicU64,
    /// 1: a write is under way, and the four words below say which.
    writing: AtomicU64,
    file: AtomicU64,
    first: AtomicU64,
    count: AtomicU64,
    begun: AtomicU64,
    /// The calls that found no space, and no lane.
    pub no_space: AtomicU64,
    pub no_lane: AtomicU64,
    /// Its names: what they hold, 0: nothing, [`DOUBTFUL`].
    pub names: [AtomicU64; NAMES as usize],
}

/// Nobody knows whether the name is there.
pub const DOUBTFUL: u64 = u64::MAX;

/// A write whose thread was killed inside.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub file: u64,
    pub first: u64,
    pub count: u64,
    pub number: u64,
}

#[repr(C)]
struct Table {
    clock: AtomicU64,
    /// 1: the writers end.
    stop: AtomicU64,
    calls: [Call; WRITERS as usize],
    own: [[Row; UNITS as usize]; WRITERS as usize],
    shared: [[[Row; WORKERS as usize]; UNITS as usize]; SHARED as usize],
}

/// The ledger, mapped into this process.
#[derive(Clone, Copy)]
pub struct Ledger(&'static Table);

/// The file of a writer's own.
pub fn own_file(writer: u64) -> u64 {
    SHARED + writer
}

/// Who may have written it: of a file of its own the writer alone.
fn owner(file: u64) -> Option<u64> {
    file.checked_sub(SHARED)
}

impl Ledger {
    /// Of the file at this place, made if there is none.
    pub fn at(place: &Path) -> Ledger {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(place.join("ledger"));
        let file = file.unwrap();
        file.set_len(size_of::<Table>() as u64).unwrap();
        use std::os::fd::AsRawFd;
        // SAFETY: a new mapping, shared with the rig's other processes; it stays for good.
        let at = unsafe {
            let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), size_of::<Table>(), access, shared, file.as_raw_fd(), 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: atomics only, for which all bytes are valid; as long as the file, which no one cuts.
        Ledger(unsafe { &*at.cast() })
    }

    pub fn call(&self, writer: u64) -> &'static Call {
        &self.0.calls[writer as usize]
    }

    pub fn stops(&self) -> bool {
        self.0.stop.load(SeqCst) != 0
    }

    pub fn stop(&self, stop: bool) {
        self.0.stop.store(stop.into(), SeqCst);
    }

    fn tick(&self) -> u64 {
        self.0.clock.fetch_add(1, SeqCst) + 1
    }

    fn row(&self, file: u64, unit: u64, writer: u64) -> &'static Row {
        match owner(file) {
            Some(owner) => &self.0.own[owner as usize][unit as usize],
            None => &self.0.shared[file as usize][unit as usize][writer as usize],
        }
    }

    /// A write begins: its number.
    pub fn begins(&self, writer: u64, (file, first, count): (u64, u64, u64), zeros: bool) -> u64 {
        let call = self.call(writer);
        let number = ((call.number.load(SeqCst) & !ZEROS) + 1) | if zeros { ZEROS } else { 0 };
        call.number.store(number, SeqCst);
        call.file.store(file, SeqCst);
        call.first.store(first, SeqCst);
        call.count.store(count, SeqCst);
        call.begun.store(self.tick(), SeqCst);
        call.writing.store(1, SeqCst);
        number
    }

    /// It has returned.
    pub fn ends(&self, writer: u64) {
        let call = self.call(writer);
        self.write_rows(writer, self.tick());
        call.writing.store(0, SeqCst);
    }

    fn write_rows(&self, writer: u64, ended: u64) {
        let call = self.call(writer);
        let (begun, number) = (call.begun.load(SeqCst), call.number.load(SeqCst));
        for row in self.rows_of_call(writer) {
            row.write(begun, ended, number);
        }
    }

    fn rows_of_call(&self, writer: u64) -> impl Iterator<Item = &'static Row> {
        let call = self.call(writer);
        let (file, first) = (call.file.load(SeqCst), call.first.load(SeqCst));
        let ledger = *self;
        (first..first + call.count.load(SeqCst)).map(move |unit| ledger.row(file, unit, writer))
    }

    /// It was refused, and has changed nothing.
    pub fn was_refused(&self, writer: u64) {
        self.call(writer).writing.store(0, SeqCst);
    }

    /// The writer comes back after a death: the write that was under way, which may have happened or may yet happen.
    pub fn comes_back(&self, writer: u64) -> Option<Cut> {
        let call = self.call(writer);
        call.since_ms.store(0, SeqCst);
        if call.writing.load(SeqCst) == 0 {
            return None;
        }
        let number = call.number.load(SeqCst);
        let noted = |row: &Row| row.turn.load(SeqCst) % 2 == 1 || row.number.load(SeqCst) == number;
        // It had returned, and its thread was killed while it wrote the rows.
        let returned = self.rows_of_call(writer).any(noted);
        if returned {
            self.write_rows(writer, self.tick());
        } else {
            self.rows_of_call(writer).for_each(|row| row.doubt(number));
        }
        call.writing.store(0, SeqCst);
        let cut = Cut {
            file: call.file.load(SeqCst),
            first: call.first.load(SeqCst),
            count: call.count.load(SeqCst),
            number,
        };
        (!returned).then_some(cut)
    }

    /// What is known of a unit, before it is read.
    pub fn known(&self, file: u64, unit: u64) -> Vec<(u64, Option<Known>)> {
        match owner(file) {
            Some(writer) => vec![(writer, self.row(file, unit, writer).read())],
            None => (0..WORKERS).map(|writer| (writer, self.row(file, unit, writer).read())).collect(),
        }
    }

    /// May a unit that was read after `known` was looked up hold these bytes? `quiet`: no writer is at work, and all have come back.
    ///
    /// # Errors
    /// Why not.
    pub fn check(
        &self,
        (file, unit): (u64, u64),
        bytes: &[u8],
        known: &[(u64, Option<Known>)],
        quiet: bool,
    ) -> Result<(), String> {
        let why = |text: String| format!("file {file}, unit {unit}: {text}; known: {:?}", interesting(known));
        let Some((writer, number)) = whose(bytes) else {
            return self.check_zeros(file, bytes, known, quiet).map_err(why);
        };
        if writer >= WRITERS || bytes != content(file, unit, writer, number) {
            return Err(why(format!("bytes of nobody, torn or foreign: {:x?}", &bytes[..16])));
        }
        let Some((_, before)) = known.iter().find(|known| known.0 == writer) else {
            return Err(why(format!("writer {writer} never writes there")));
        };
        if number > self.call(writer).number.load(SeqCst) & !ZEROS {
            return Err(why(format!("writer {writer} has not yet made write {number}")));
        }
        let Some(before) = before else { return Ok(()) };
        let plain = before.number & !ZEROS;
        if before.may_be(number) || (number > plain && !quiet) {
            return Ok(());
        }
        if number != plain || before.number & ZEROS != 0 {
            return Err(why(format!(
                "write {number} of writer {writer} is there, and not its last that returned"
            )));
        }
        let mut later = known.iter().filter_map(|(other, known)| Some((other, known.as_ref()?)));
        match later.rfind(|(other, known)| **other != writer && known.begun > before.ended) {
            Some((other, known)) => Err(why(format!(
                "write {number} of writer {writer} is there, and write {} of writer {other} was lost",
                known.number
            ))),
            None => Ok(()),
        }
    }

    fn check_zeros(
        &self,
        file: u64,
        bytes: &[u8],
        known: &[(u64, Option<Known>)],
        quiet: bool,
    ) -> Result<(), String> {
        if bytes.iter().any(|byte| *byte != 0) {
            return Err(format!("bytes of nobody: {:x?}", &bytes[..16]));
        }
        for (writer, known) in known.iter().filter_map(|(writer, known)| Some((writer, known.as_ref()?))) {
            let zeros =
                known.number == 0 || known.number & ZEROS != 0 || known.maybe.iter().any(|m| m & ZEROS != 0);
            // A call under way may make zeros.
            let call = self.call(*writer);
            let under_way = !quiet && owner(file).is_some() && call.number.load(SeqCst) & ZEROS != 0;
            if !zeros && !under_way {
                return Err(format!("zeros, where write {} of writer {writer} had returned", known.number));
            }
        }
        Ok(())
    }
}

fn interesting(known: &[(u64, Option<Known>)]) -> Vec<&(u64, Option<Known>)> {
    let some =
        |known: &&(u64, Option<Known>)| known.1.is_none_or(|known| known.number != 0 || known.maybe[0] != 0);
    known.iter().filter(some).collect()
}

/// Who wrote these bytes, and which of its writes it was; `None`: zeros.
pub fn whose(bytes: &[u8]) -> Option<(u64, u64)> {
    let tag = u64::from_le_bytes(*bytes.first_chunk()?);
    (tag != 0).then_some((tag & 0xffff, tag >> 16))
}

/// The bytes of a unit.
pub fn content(file: u64, unit: u64, writer: u64, number: u64) -> Vec<u8> {
    let tag = number << 16 | writer;
    if number & ZEROS != 0 {
        return vec![0; UNIT];
    }
    let seed = tag ^ (file << 8 | unit).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let word = |n: u64| if n == 0 { tag } else { mixed(seed.wrapping_add(n)) };
    (0..UNIT as u64 / 8).flat_map(|n| word(n).to_le_bytes()).collect()
}

/// A number that looks like none of its neighbours.
pub fn mixed(number: u64) -> u64 {
    let a = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let b = (a ^ a >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let c = (b ^ b >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    c ^ c >> 31
}

/// Random numbers that follow from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mixed(self.0) % bound
    }
}

/// The wall clock, which namespaces do not shift.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}
