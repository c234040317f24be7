//! Reading an undo file, checked as a whole before anything of it is used.

use crate::writer::Old;
use crate::{BLOCK_BYTES, Block, ENTRY_BYTES, FAMILY, HEAD_BYTES, Image, MAGIC, UNFINISHED, place};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Positions of the number of blocks, and of the number of the repair.
const COUNT_AT: usize = 56;
const REPAIR_AT: usize = 64;
const LEFT_AT: usize = 72;

/// An undo file that is whole.
#[derive(Debug)]
pub struct Undo {
    file: Arc<File>,
    /// The image.
    pub image: Image,
    /// The repair has ended.
    pub is_finished: bool,
    /// Checksum of the blocks as the repair left them.
    pub left: u32,
    blocks: Vec<u64>,
    /// Which ones of the file they are.
    places: Vec<u64>,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Fills `into`. Returns the number of bytes that were left in the file, at most that many.
fn fill(from: &mut impl Read, into: &mut [u8]) -> Result<usize, String> {
    let mut filled = 0;
    while filled < into.len() {
        match from.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(filled)
}

/// Opens regular files only: a FIFO waits for a writer, and a device may never end.
fn opened(path: &Path) -> Result<File, String> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(|error| error.to_string())?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if meta.is_file() { Ok(file) } else { Err("it is no file: name what a repair has kept".into()) }
}

/// What the head of an undo file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The image.
    pub image: Image,
    /// The repair has ended.
    pub is_finished: bool,
}

impl Head {
    fn of(head: &[u8; HEAD_BYTES]) -> Head {
        let uuid = head[16..].first_chunk().copied().unwrap_or_default();
        let [before, after, blocks, repair] = [32, 40, 48, REPAIR_AT].map(|at| number(head, at));
        let image = Image { uuid, epochs: [before, after], blocks, repair };
        Head { image, is_finished: number(head, COUNT_AT) != UNFINISHED }
    }
}

/// The head of a file, if it is an undo file. Nothing of it is checked.
pub fn head_of(path: &Path) -> Option<Head> {
    let mut head = [0; HEAD_BYTES];
    opened(path).ok()?.read_exact_at(&mut head, 0).ok()?;
    (head[..MAGIC.len()] == *MAGIC).then(|| Head::of(&head))
}

impl Undo {
    /// Reads a file, and checks it.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub fn open(path: &Path) -> Result<Undo, String> {
        let file = opened(path)?;
        let mut from = BufReader::with_capacity(1 << 20, &file);
        let mut head = [0; HEAD_BYTES];
        let got = fill(&mut from, &mut head)?;
        if got < MAGIC.len() || head[..MAGIC.len()] != *MAGIC {
            let is_other = head.starts_with(FAMILY);
            let what = if is_other {
                "another heddle made it: use that one"
            } else {
                "it is no undo file of heddle fsck"
            };
            return Err(what.into());
        }
        if got < HEAD_BYTES {
            return Err(damaged());
        }
        let Head { image, is_finished } = Head::of(&head);
        let entries = match is_finished {
            false => entries_so_far(&mut from, image.blocks, number(&head, LEFT_AT))?,
            true => all_entries(&mut from, &head, image.blocks, number(&head, COUNT_AT))?,
        };
        let (blocks, places): (Vec<u64>, Vec<u64>) = entries.into_iter().unzip();
        let is_once = blocks.iter().collect::<HashSet<_>>().len() == blocks.len();
        if !is_once {
            return Err(damaged());
        }
        drop(from);
        let left = if is_finished { number(&head, LEFT_AT) as u32 } else { 0 };
        Ok(Undo { file: Arc::new(file), image, is_finished, left, blocks, places })
    }

    /// Returns true if nobody writes it, and as long as this is there, nobody else is told so.
    pub fn is_left(&self) -> bool {
        self.file.try_lock().is_ok()
    }

    /// The old bytes of those of its blocks that count.
    pub fn old(&self, counts: impl Fn(u64) -> bool) -> Old {
        let places = self.blocks.iter().zip(&self.places).filter(|(block, _)| counts(**block));
        Old::of(&self.file, places.map(|(block, n)| (*block, *n)).collect())
    }

    /// Numbers of its blocks.
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// Reads its `n`th block.
    ///
    /// # Errors
    /// Those of the system.
    pub fn read(&self, n: usize, into: &mut Block) -> std::io::Result<()> {
        self.file.read_exact_at(into, place(self.places[n]) + 8)
    }
}

fn damaged() -> String {
    "it is cut short or damaged".into()
}

/// The number of the block, if the entry is whole, and of an image of so many blocks.
fn block_of(entry: &[u8; ENTRY_BYTES], blocks: u64) -> Option<u64> {
    let sum = u64::from(crc32c::crc32c(&entry[..8 + BLOCK_BYTES]));
    let block = number(entry, 0);
    (number(entry, 8 + BLOCK_BYTES) == sum && block < blocks).then_some(block)
}

/// Of a repair that has not ended: all that are whole, with their places. The first `durable` ones are.
fn entries_so_far(from: &mut impl Read, blocks: u64, durable: u64) -> Result<Vec<(u64, u64)>, String> {
    let (mut entries, mut entry, mut n) = (Vec::new(), [0; ENTRY_BYTES], 0);
    while fill(from, &mut entry)? == ENTRY_BYTES {
        match block_of(&entry, blocks) {
            Some(block) => entries.push((block, n)),
            None if n < durable => return Err(damaged()),
            None => {}
        }
        n += 1;
    }
    if n < durable { Err(damaged()) } else { Ok(entries) }
}

fn all_entries(
    from: &mut impl Read,
    head: &[u8; HEAD_BYTES],
    blocks: u64,
    count: u64,
) -> Result<Vec<(u64, u64)>, String> {
    let (mut entries, mut entry, mut sum) = (Vec::new(), [0; ENTRY_BYTES], crc32c::crc32c(head));
    for n in 0..count {
        if fill(from, &mut entry)? < ENTRY_BYTES {
            return Err(damaged());
        }
        entries.push((block_of(&entry, blocks).ok_or_else(damaged)?, n));
        sum = crc32c::crc32c_append(sum, &entry);
    }
    let mut said = [0; 5];
    if fill(from, &mut said)? != 4 || said[..4] != sum.to_le_bytes() {
        return Err(damaged());
    }
    Ok(entries)
}
