//! The torn checker: writers and readers of one range of one file, all at once.
//!
//! Every write fills the range with one 8-byte word: its writer and its number. A read must then show
//! - one word all over: parts of two writes are a **torn** read;
//! - a word that is not older than one seen before: a write that has been overwritten does not come back (**backwards**);
//! - of a writer at least the write that had returned before the read began (**stale**).
//!
//! Words are relative to the range's start, so that in a range at an odd offset they lie across page borders.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::PositionalIo;

/// A range of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Where it starts.
    pub offset: u64,
    /// Its length; a multiple of 8.
    pub len_bytes: usize,
}

/// The three shapes every engine is held to.
pub const SHAPES: [Shape; 3] = [
    Shape { offset: 0, len_bytes: 4 << 10 },
    Shape { offset: 100, len_bytes: 16 << 10 },
    Shape { offset: 1000, len_bytes: 256 << 10 },
];

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct TornConfig {
    /// The range.
    pub shape: Shape,
    /// Threads that write.
    pub writers: usize,
    /// Threads that read.
    pub readers: usize,
    /// Reads in all.
    pub reads: u64,
    /// Gives up with what it has after this long.
    pub limit: Duration,
}

impl TornConfig {
    /// Two writers, two readers, 10,000 reads, at most a minute.
    pub fn new(shape: Shape) -> TornConfig {
        TornConfig { shape, writers: 2, readers: 2, reads: 10_000, limit: Duration::from_secs(60) }
    }
}

/// What was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TornReport {
    /// Reads done.
    pub reads: u64,
    /// Writes done.
    pub writes: u64,
    /// Reads with parts of two writes, or short ones.
    pub torn: u64,
    /// Reads that showed an older write than an earlier read of the same reader.
    pub backwards: u64,
    /// Reads that showed an older write than one that had returned before the read began.
    pub stale: u64,
}

impl TornReport {
    /// Nothing wrong was seen.
    pub fn is_clean(&self) -> bool {
        self.torn == 0 && self.backwards == 0 && self.stale == 0
    }
}

/// Numbers of the last write of each writer that has returned. Plain atomics, so that they may lie in memory that
/// processes share.
pub type Returned = [AtomicU64];

/// Runs the check in threads; each opens the file anew with `open`, which must make it if it is missing.
///
/// # Errors
/// The first error of a read or write: a check that could not do its I/O has no result.
pub fn check<'a>(
    config: &TornConfig,
    open: &(dyn Fn() -> io::Result<Box<dyn PositionalIo + 'a>> + Sync),
) -> io::Result<TornReport> {
    let returned: Vec<AtomicU64> = (0..config.writers).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let end = Instant::now() + config.limit;
    write_once(&*open()?, config.shape, 0, 1, &returned)?;
    let share = config.reads.div_ceil(config.readers.max(1) as u64);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..config.writers)
            .map(|writer| {
                let (returned, stop) = (&returned[..], &stop);
                scope.spawn(move || write_until(&*open()?, config.shape, writer, returned, stop))
            })
            .collect();
        let readers: Vec<_> = (0..config.readers)
            .map(|_| {
                let returned = &returned[..];
                scope.spawn(move || read_share(&*open()?, config.shape, share, end, returned))
            })
            .collect();
        let mut report = TornReport::default();
        let mut failure = None;
        for reader in readers {
            match reader.join() {
                Ok(Ok(part)) => report.add(&part),
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(io::Error::other("a reader panicked")),
            }
        }
        stop.store(true, SeqCst);
        for writer in writers {
            match writer.join() {
                Ok(Ok(writes)) => report.writes += writes,
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(io::Error::other("a writer panicked")),
            }
        }
        failure.map_or(Ok(report), Err)
    })
}

impl TornReport {
    fn add(&mut self, part: &TornReport) {
        self.reads += part.reads;
        self.writes += part.writes;
        self.torn += part.torn;
        self.backwards += part.backwards;
        self.stale += part.stale;
    }
}

/// One writer: writes until told to stop, at least once; the number of writes. Writer 0 must have made its first write before.
///
/// # Errors
/// Those of the file; [`io::ErrorKind::WriteZero`] for a short write.
pub fn write_until(
    io: &dyn PositionalIo,
    shape: Shape,
    writer: usize,
    returned: &Returned,
    stop: &AtomicBool,
) -> io::Result<u64> {
    let mut writes = 0;
    loop {
        let number = returned[writer].load(SeqCst) + 1;
        write_once(io, shape, writer, number, returned)?;
        writes += 1;
        // Asked after the write: readers may be done before this thread was let run at all.
        if stop.load(SeqCst) {
            return Ok(writes);
        }
    }
}

fn write_once(
    io: &dyn PositionalIo,
    shape: Shape,
    writer: usize,
    number: u64,
    returned: &Returned,
) -> io::Result<()> {
    let word = Word { writer, number }.bytes();
    let buf = word.repeat(shape.len_bytes / word.len());
    if io.write_at(&buf, shape.offset)? != buf.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    returned[writer].store(number, SeqCst);
    Ok(())
}

/// One reader: its share of the reads.
///
/// # Errors
/// Those of the file.
pub fn read_share(
    io: &dyn PositionalIo,
    shape: Shape,
    reads: u64,
    end: Instant,
    returned: &Returned,
) -> io::Result<TornReport> {
    let mut report = TornReport::default();
    let mut seen = vec![0; returned.len()];
    let mut before = seen.clone();
    let mut last = None;
    let mut buf = vec![0; shape.len_bytes];
    while report.reads < reads && Instant::now() < end {
        for (number, returned) in before.iter_mut().zip(returned) {
            *number = returned.load(SeqCst);
        }
        let len = io.read_at(&mut buf, shape.offset)?;
        report.reads += 1;
        match Word::all_over(&buf[..len], shape.len_bytes).filter(|word| word.writer < seen.len()) {
            None => report.torn += 1,
            Some(word) => {
                if last != Some(word) && word.number <= seen[word.writer] {
                    report.backwards += 1;
                }
                if word.number < before[word.writer] {
                    report.stale += 1;
                }
                seen[word.writer] = seen[word.writer].max(word.number);
                last = Some(word);
            }
        }
    }
    Ok(report)
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Word {
    writer: usize,
    number: u64,
}

impl Word {
    const NUMBER_BITS: u32 = 48;

    fn bytes(self) -> [u8; 8] {
        ((self.writer as u64) << Word::NUMBER_BITS | self.number).to_le_bytes()
    }

    /// The word that fills `buf`, if one does and none is missing.
    fn all_over(buf: &[u8], len_wanted: usize) -> Option<Word> {
        let first: [u8; 8] = buf.first_chunk().copied()?;
        // Each word is as the one before.
        let whole = buf.len() == len_wanted && buf[8..] == buf[..buf.len() - 8];
        let raw = u64::from_le_bytes(first);
        let number = raw & ((1 << Word::NUMBER_BITS) - 1);
        whole.then_some(Word { writer: (raw >> Word::NUMBER_BITS) as usize, number })
    }
}
