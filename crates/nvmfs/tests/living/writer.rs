//! What one writer does, again and again, in whatever process it lives: writes, punches, cuts, names, reads, all checked.

use super::ledger::{
    CROWD, DOUBTFUL, Ledger, NAMES, Random, SHARED, UNIT, UNITS, WORKERS, content, now_ms, own_file, whose,
};
use crate::common::{Short, name, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{Error, FileSystem, Handle, Ino, OpenFlags, RangeOp};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// The name space's files in the ledger's numbering: content of names is by this number.
const NAMED: u64 = 1 << 20;
/// Of threads of the crowd, so many share a file.
const CROWD_A_FILE: u64 = 250;
/// Units that one of the crowd has: a page.
const CROWD_UNITS: u64 = 4;

/// A thread that is this writer.
pub struct Writer<'a> {
    fs: &'a NvmFs,
    ledger: Ledger,
    number: u64,
    random: Random,
    files: Vec<Handle>,
}

/// Where the units of a file of the ledger's lie: name of the file, and its first unit there.
pub fn place_of(file: u64) -> (String, u64) {
    match file.checked_sub(SHARED) {
        None => (format!("shared-{file}"), 0),
        Some(writer) if writer < WORKERS => (format!("own-{writer}"), 0),
        Some(writer) => {
            let nth = writer - WORKERS;
            (format!("crowd-{}", nth / CROWD_A_FILE), nth % CROWD_A_FILE * CROWD_UNITS)
        }
    }
}

/// Every file of the rig, empty.
pub fn make_files(fs: &NvmFs) {
    let firsts =
        (0..SHARED + WORKERS).chain((0..CROWD).step_by(CROWD_A_FILE as usize).map(|n| own_file(WORKERS + n)));
    for file in firsts {
        fs.release(fs.new_file(Ino::ROOT, &place_of(file).0));
    }
    fs.new_dir(Ino::ROOT, "names");
}

/// Units of a file, as read: what is behind its end is zero.
pub fn read_units(fs: &NvmFs, handle: &Handle, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
    let read = fs.read(handle, at * UNIT as u64, bytes)?;
    bytes[read..].fill(0);
    Ok(())
}

impl<'a> Writer<'a> {
    pub fn new(fs: &'a NvmFs, ledger: Ledger, number: u64, seed: u64) -> Writer<'a> {
        let files = if number < WORKERS {
            (0..SHARED).chain([own_file(number)]).collect()
        } else {
            vec![own_file(number)]
        };
        let mut writer = Writer { fs, ledger, number, random: Random(seed), files: Vec::new() };
        writer.files = files.into_iter().map(|file| writer.open(&place_of(file).0)).collect();
        writer
    }

    fn open(&self, text: &str) -> Handle {
        let ino = self.timed(|| self.fs.find(Ino::ROOT, text)).unwrap().ino;
        self.timed(|| self.fs.open(&root(), ino, OpenFlags::READ_WRITE)).unwrap()
    }

    /// Makes a call, and again while there is no lane for it.
    fn timed<T>(&self, mut work: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let call = self.ledger.call(self.number);
        loop {
            let began = now_ms();
            call.since_ms.store(began, SeqCst);
            let done = work();
            call.since_ms.store(0, SeqCst);
            call.longest_ms.fetch_max(now_ms().saturating_sub(began), SeqCst);
            call.done.fetch_add(1, SeqCst);
            match done {
                Err(Error::NoMemory) => {
                    call.no_lane.fetch_add(1, SeqCst);
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(Error::NoSpace) => {
                    call.no_space.fetch_add(1, SeqCst);
                    return done;
                }
                _ => return done,
            }
        }
    }

    fn closes(&self, handle: Handle) {
        let mut handle = Some(handle);
        let closed = self.timed(|| {
            handle.take().into_iter().for_each(|handle| self.fs.release(handle));
            Ok(())
        });
        closed.unwrap();
    }

    /// Which of the handles is of this file.
    fn handle(&self, file: u64) -> &Handle {
        if file < SHARED { &self.files[file as usize] } else { self.files.last().unwrap() }
    }

    fn write(&self, file: u64, first: u64, count: u64) -> bool {
        let number = self.ledger.begins(self.number, (file, first, count), false);
        let bytes: Vec<u8> =
            (first..first + count).flat_map(|unit| content(file, unit, self.number, number)).collect();
        let at = (place_of(file).1 + first) * UNIT as u64;
        let put = self.timed(|| self.fs.write(self.handle(file), at, &bytes));
        self.returned(
            put.map(|len| assert_eq!(len, bytes.len())),
            &format!("write of {count} units at {first} of file {file}"),
        )
    }

    fn returned(&self, done: Result<(), Error>, what: &str) -> bool {
        match done {
            Ok(()) => self.ledger.ends(self.number),
            Err(Error::NoSpace) => self.ledger.was_refused(self.number),
            Err(error) => panic!("writer {}: {what}: {error:?}", self.number),
        }
        done.is_ok()
    }

    /// Makes zeros of a range of its own file, or of all behind a point.
    fn zeros(&mut self) {
        let file = own_file(self.number);
        let first = self.random.below(UNITS);
        let cuts = self.random.below(2) == 0;
        let count = if cuts { UNITS - first } else { 1 + self.random.below(UNITS - first) };
        self.ledger.begins(self.number, (file, first, count), true);
        let (at, len) = (first * UNIT as u64, count * UNIT as u64);
        let handle = self.handle(file);
        let done = self.timed(|| match cuts {
            true => self.fs.resize(handle, at),
            false => self.fs.fallocate(handle, RangeOp::Punch, at, len),
        });
        self.returned(done, "zeros");
    }

    /// Reads units, and finds in each what may be there.
    fn check(&self, file: u64, first: u64, count: u64) {
        let known: Vec<_> = (first..first + count).map(|unit| self.ledger.known(file, unit)).collect();
        let mut bytes = vec![0; count as usize * UNIT];
        let at = place_of(file).1 + first;
        self.timed(|| read_units(self.fs, self.handle(file), at, &mut bytes)).unwrap();
        for ((unit, bytes), known) in (first..).zip(bytes.chunks(UNIT)).zip(&known) {
            let checked = self.ledger.check((file, unit), bytes, known, false);
            checked.unwrap_or_else(|why| panic!("writer {} reads: {why}", self.number));
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let first = self.random.below(UNITS);
        let longest = if self.random.below(8) == 0 { UNITS } else { 8 };
        (first, 1 + self.random.below(longest.min(UNITS - first)))
    }

    /// Sees what has become of the last call, if its thread was killed inside, and removes the doubt.
    pub fn comes_back(&mut self) {
        let cut = self.ledger.comes_back(self.number);
        if let Some(cut) = cut {
            self.sees_all_or_nothing(cut.file, cut.first, cut.count, cut.number);
        }
        let slots = if self.number < WORKERS { NAMES } else { 0 };
        for slot in (0..slots).filter(|slot| self.name(*slot).load(SeqCst) == DOUBTFUL) {
            self.remove(slot, true);
        }
        if self.number < WORKERS {
            self.check(own_file(self.number), 0, UNITS);
        }
    }

    /// A write to the first page of the cut one settles it; then the rest of it is there or is not.
    fn sees_all_or_nothing(&mut self, file: u64, first: u64, count: u64, number: u64) {
        if !self.write(file, first, 1) {
            return;
        }
        if file >= SHARED && count > 1 {
            let mut bytes = vec![0; (count as usize - 1) * UNIT];
            read_units(self.fs, self.handle(file), place_of(file).1 + first + 1, &mut bytes).unwrap();
            let zeros = number & super::ledger::ZEROS != 0;
            let is_new = |bytes: &&[u8]| {
                if zeros { whose(bytes).is_none() } else { whose(bytes) == Some((self.number, number)) }
            };
            let new = bytes.chunks(UNIT).filter(is_new).count() as u64;
            // Of zeros there may have been some before.
            let whole = new == count - 1 || new == 0 || zeros;
            assert!(whole, "writer {}: {new} of {} units of a cut write are there", self.number, count - 1);
        }
        self.write(file, first, count);
    }

    fn name(&self, slot: u64) -> &'static std::sync::atomic::AtomicU64 {
        &self.ledger.call(self.number).names[slot as usize]
    }

    fn remove(&self, slot: u64, doubtful: bool) {
        let held = self.name(slot).load(SeqCst);
        if held == 0 {
            return;
        }
        let text = format!("{}-{slot}", self.number);
        let dir = self.timed(|| self.fs.find(Ino::ROOT, "names")).unwrap().ino;
        if doubtful {
            // What the dead one was about to do it may still have done: not any more when the name's bucket was locked by another.
            match self.timed(|| self.fs.try_file(dir, &text)) {
                Ok(handle) => self.closes(handle),
                Err(Error::Exists) => {}
                Err(Error::NoSpace | Error::NoInodes) => return,
                Err(error) => panic!("writer {}: create of {text}: {error:?}", self.number),
            }
        } else {
            self.check_name(dir, slot, held);
        }
        self.name(slot).store(DOUBTFUL, SeqCst);
        match self.timed(|| self.fs.unlink(&root(), dir, name(&text))) {
            Ok(()) => self.name(slot).store(0, SeqCst),
            Err(Error::NoSpace) if doubtful => {}
            Err(Error::NoSpace) => self.name(slot).store(held, SeqCst),
            Err(error) => panic!("writer {}: unlink of {text}: {error:?}", self.number),
        }
    }

    fn check_name(&self, dir: Ino, slot: u64, held: u64) {
        let text = format!("{}-{slot}", self.number);
        let found = self.timed(|| self.fs.find(dir, &text));
        let ino = found.unwrap_or_else(|error| panic!("name {text} was lost: {error:?}")).ino;
        let handle = self.timed(|| self.fs.open(&root(), ino, OpenFlags::READ_WRITE)).unwrap();
        let bytes = self.fs.read_vec(&handle, 0, 2 * UNIT);
        assert!(
            bytes == content(NAMED, 0, self.number, held),
            "name {text} holds something else: {:x?}",
            bytes.get(..16)
        );
        self.closes(handle);
    }

    /// Makes, moves or removes a name.
    fn names(&mut self) {
        let (from, to) = (self.random.below(NAMES), self.random.below(NAMES));
        let held = self.name(from).load(SeqCst);
        match self.random.below(3) {
            _ if held == DOUBTFUL || self.name(to).load(SeqCst) == DOUBTFUL => {
                self.remove(if held == DOUBTFUL { from } else { to }, true);
            }
            _ if held == 0 => self.make(from),
            0 if from != to => self.moves(from, to, held),
            _ => self.remove(from, false),
        }
    }

    fn make(&mut self, slot: u64) {
        let dir = self.timed(|| self.fs.find(Ino::ROOT, "names")).unwrap().ino;
        let number = 1 + self.random.below(1 << 40);
        self.name(slot).store(DOUBTFUL, SeqCst);
        let made = self.timed(|| self.fs.try_file(dir, &format!("{}-{slot}", self.number)));
        let handle = match made {
            Ok(handle) => handle,
            Err(Error::NoSpace | Error::NoInodes) => return,
            Err(error) => panic!("writer {}: create: {error:?}", self.number),
        };
        let bytes = content(NAMED, 0, self.number, number);
        let put = self.timed(|| self.fs.write(&handle, 0, &bytes));
        self.closes(handle);
        match put {
            Ok(_) => self.name(slot).store(number, SeqCst),
            Err(Error::NoSpace) => {}
            Err(error) => panic!("writer {}: {error:?}", self.number),
        }
    }

    fn moves(&self, from: u64, to: u64, held: u64) {
        let dir = self.timed(|| self.fs.find(Ino::ROOT, "names")).unwrap().ino;
        let before = self.name(to).load(SeqCst);
        self.name(to).store(DOUBTFUL, SeqCst);
        self.name(from).store(DOUBTFUL, SeqCst);
        let [old, new] = [from, to].map(|slot| format!("{}-{slot}", self.number));
        let (from_value, to_value) = match self.timed(|| self.fs.replace((dir, &old), (dir, &new))) {
            Ok(()) => (0, held),
            Err(Error::NoSpace) => (held, before),
            Err(error) => panic!("writer {}: rename of {old}: {error:?}", self.number),
        };
        self.name(to).store(to_value, SeqCst);
        self.name(from).store(from_value, SeqCst);
    }

    /// A file without a name, written and read and left to its handle's end.
    fn nameless(&mut self) {
        let slot = self.random.below(NAMES);
        if self.name(slot).load(SeqCst) != 0 {
            return self.names();
        }
        let dir = self.timed(|| self.fs.find(Ino::ROOT, "names")).unwrap().ino;
        let text = format!("{}-{slot}", self.number);
        self.name(slot).store(DOUBTFUL, SeqCst);
        let Ok(handle) = self.timed(|| self.fs.try_file(dir, &text)) else { return };
        let gone = self.timed(|| self.fs.unlink(&root(), dir, name(&text)));
        if gone.is_ok() {
            self.name(slot).store(0, SeqCst);
        }
        let bytes = content(NAMED, 1, self.number, 7);
        if self.timed(|| self.fs.write(&handle, 0, &bytes)).is_ok() {
            let attr = self.timed(|| self.fs.getattr(handle.ino)).unwrap();
            assert_eq!(attr.size_bytes, UNIT as u64, "an open file without a name");
            assert!(self.fs.read_vec(&handle, 0, UNIT) == bytes, "an open file without a name");
        }
        self.closes(handle);
    }

    /// So many steps, or until the round ends.
    pub fn works(&mut self, steps: u64) {
        for _ in 0..steps {
            if self.ledger.stops() {
                break;
            }
            let own = own_file(self.number);
            let (first, count) = self.range();
            let shared = self.random.below(SHARED);
            match self.random.below(32) {
                0..=9 => drop(self.write(own, first, count)),
                10..=15 => drop(self.write(shared, first, count)),
                16..=19 => self.check(own, first, count),
                20..=24 => self.check(shared, first, count),
                25 => self.zeros(),
                26..=30 => self.names(),
                _ => self.nameless(),
            }
            if self.random.below(16) == 0 {
                std::thread::sleep(Duration::from_micros(self.random.below(2000)));
            }
        }
        self.leaves();
    }

    /// One of the crowd: a little, and then for long nothing.
    pub fn works_little(&mut self) {
        while !self.ledger.stops() {
            let own = own_file(self.number);
            let count = 1 + self.random.below(CROWD_UNITS);
            self.write(own, 0, count);
            self.check(own, 0, CROWD_UNITS);
            let until = now_ms() + 200 + self.random.below(4000);
            while now_ms() < until && !self.ledger.stops() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        self.leaves();
    }

    fn leaves(&mut self) {
        while let Some(handle) = self.files.pop() {
            self.closes(handle);
        }
    }
}

/// Every unit of every file is what it may be; the writers have come back.
///
/// # Errors
/// The first that is not.
pub fn verify(fs: &NvmFs, ledger: Ledger) -> Result<u64, String> {
    let mut checked = 0;
    for file in 0..SHARED + WORKERS + CROWD {
        let (text, first) = place_of(file);
        let handle = fs.open_file(Ino::ROOT, &text);
        let units = if file < SHARED + WORKERS { UNITS } else { CROWD_UNITS };
        let mut bytes = vec![0; units as usize * UNIT];
        read_units(fs, &handle, first, &mut bytes).map_err(|error| format!("{text}: {error:?}"))?;
        for (unit, bytes) in (0..).zip(bytes.chunks(UNIT)) {
            ledger.check((file, unit), bytes, &ledger.known(file, unit), true)?;
            checked += 1;
        }
        fs.release(handle);
    }
    let dir = fs.find(Ino::ROOT, "names").map_err(|error| format!("names: {error:?}"))?.ino;
    for (writer, slot) in (0..WORKERS).flat_map(|writer| (0..NAMES).map(move |slot| (writer, slot))) {
        let held = ledger.call(writer).names[slot as usize].load(SeqCst);
        let text = format!("{writer}-{slot}");
        match (held, fs.find(dir, &text)) {
            (DOUBTFUL, _) | (0, Err(Error::NotFound)) => {}
            (0, found) => return Err(format!("name {text} was removed: {found:?}")),
            (_, Err(error)) => return Err(format!("name {text} was lost: {error:?}")),
            (_, Ok(_)) => {
                let handle = fs.open_file(dir, &text);
                if fs.read_vec(&handle, 0, 2 * UNIT) != content(NAMED, 0, writer, held) {
                    return Err(format!("name {text} holds something else"));
                }
                fs.release(handle);
            }
        }
    }
    Ok(checked)
}
