//! The appenders checker: threads append records of many lengths to one file; afterwards all are there, whole, where
//! the calls said.

use std::collections::BTreeMap;
use std::io;

use super::{AppendIo, PositionalIo};

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AppendReport {
    /// Records appended.
    pub records: u64,
    /// Appended, but not in the file.
    pub lost: u64,
    /// Bytes of the file that belong to no whole record.
    pub damaged_bytes: u64,
    /// Records that are somewhere else than their call said.
    pub misplaced: u64,
}

impl AppendReport {
    /// Nothing wrong was found.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.damaged_bytes == 0 && self.misplaced == 0
    }
}

/// Bytes before the filling: mark, thread, number, length.
const HEADER_BYTES: usize = 16;
const MARK: u32 = 0x4865_6164;

/// Appends `records` records in each of `threads` threads, each with its own `open`, to a file that was empty; then
/// reads it all back with `reader`.
///
/// # Errors
/// The first error of an append or of reading back.
pub fn check<'a>(
    threads: u32,
    records: u32,
    open: &(dyn Fn() -> io::Result<Box<dyn AppendIo + 'a>> + Sync),
    reader: &dyn PositionalIo,
) -> io::Result<AppendReport> {
    let mut places = BTreeMap::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let file = open()?;
                    (0..records)
                        .map(|number| Ok((file.append(&record(thread, number))?, (thread, number))))
                        .collect()
                })
            })
            .collect();
        for worker in workers {
            let placed: io::Result<Vec<(u64, (u32, u32))>> =
                worker.join().unwrap_or_else(|_| Err(io::Error::other("an appender panicked")));
            places.extend(placed?.into_iter().map(|(offset, id)| (id, offset)));
        }
        io::Result::Ok(())
    })?;
    Ok(verify(&read_all(reader)?, &places))
}

/// A record's bytes follow from its thread and number, its length too: 16 bytes to somewhat more than two pages.
fn record(thread: u32, number: u32) -> Vec<u8> {
    let mixed = thread.wrapping_mul(0x9e37_79b9) ^ number.wrapping_mul(0x85eb_ca6b);
    let len = HEADER_BYTES + (mixed >> 7) as usize % 9000;
    let mut bytes = Vec::with_capacity(len);
    for field in [MARK, thread, number, len as u32] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend((HEADER_BYTES..len).map(|at| (mixed as usize + at) as u8));
    bytes
}

fn read_all(reader: &dyn PositionalIo) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match reader.read_at(&mut piece, content.len() as u64)? {
            0 => return Ok(content),
            len => content.extend_from_slice(&piece[..len]),
        }
    }
}

fn verify(content: &[u8], places: &BTreeMap<(u32, u32), u64>) -> AppendReport {
    let mut found = BTreeMap::new();
    let mut report = AppendReport { records: places.len() as u64, ..AppendReport::default() };
    let mut at = 0;
    while at < content.len() {
        match record_at(&content[at..]) {
            Some((id, len)) => {
                found.insert(id, at as u64);
                at += len;
            }
            None => {
                report.damaged_bytes += 1;
                at += 1;
            }
        }
    }
    for (id, place) in places {
        match found.get(id) {
            None => report.lost += 1,
            Some(offset) if offset != place => report.misplaced += 1,
            Some(_) => {}
        }
    }
    report
}

fn record_at(bytes: &[u8]) -> Option<((u32, u32), usize)> {
    let field = |at: usize| Some(u32::from_le_bytes(*bytes.get(at * 4..)?.first_chunk()?));
    if field(0)? != MARK {
        return None;
    }
    let (thread, number) = (field(1)?, field(2)?);
    let wanted = record(thread, number);
    bytes.starts_with(&wanted).then_some(((thread, number), wanted.len()))
}
