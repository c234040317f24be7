//! Reading records: one at a line, and the node that a chain of them describes.

use super::{DEPTH_MAX, Located, NodeLog, runs};
use crate::format::{CHUNK_BYTES, LOG_CHUNKS_BYTES, LOG_LINE_BYTES, NodeBlock, RecordHead, record_flag};
use crate::ids::Nid;
use heddle_pmem::Pos;
use heddle_vfs::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::{FromBytes, IntoBytes};

impl NodeLog {
    /// The node that a record describes; calls `base` for the base checkpoint's node, if the record changes
    /// that.
    pub(crate) fn load(
        &self,
        nid: Nid,
        place: Located,
        base: impl FnOnce() -> Result<NodeBlock>,
    ) -> Result<NodeBlock> {
        let mut payloads = Vec::new();
        let mut line = place.line;
        let mut node = loop {
            let found = self.record(line).or_else(|| self.mended(line, &mut 1));
            let (head, payload) =
                found.ok_or_else(|| damaged(nid, line, "makes no sense, or cannot be read"))?;
            if head.nid.get() != nid.0 || head.flags & record_flag::DELETED != 0 {
                return Err(damaged(nid, line, "is another one's"));
            }
            payloads.push(payload);
            match (head.flags & record_flag::WHOLE != 0, head.before.get()) {
                (true, _) => break runs::empty(),
                (false, 0) => break base()?,
                (false, _) if payloads.len() >= usize::from(DEPTH_MAX) => {
                    return Err(damaged(nid, line, "needs too many others"));
                }
                (false, before) => line = before,
            }
        };
        for payload in payloads.iter().rev() {
            if !runs::apply(payload, &mut node) {
                return Err(damaged(nid, place.line, "says words beyond the node"));
            }
        }
        Ok(node)
    }

    /// The record at a line, if it is whole and of this generation.
    pub(super) fn record(&self, line: u32) -> Option<(RecordHead, Vec<u8>)> {
        let (at, room) = self.place_of(line)?;
        let head = self.head(at)?;
        // ORDERING: Relaxed, it changes with nobody inside.
        if head.generation.get() != self.generation.load(Relaxed) {
            return None;
        }
        let payload = self.payload(at, &head, room)?;
        (head.crc.get() == crc_of(&head, &payload)).then_some((head, payload))
    }

    /// Mends the record at a line by flipping one bit back, if that makes it a record of this generation. The
    /// search takes milliseconds, whether it succeeds or not, and uses one of `tries`.
    pub(super) fn mended(&self, line: u32, tries: &mut u32) -> Option<(RecordHead, Vec<u8>)> {
        let (at, room) = self.place_of(line)?;
        let head = self.head(at)?;
        let generation = self.generation.load(Relaxed); // ORDERING: Relaxed, it changes with nobody inside.
        let payload = |head: &RecordHead| self.payload(at, head, room);
        let is_whole = || payload(&head).is_some_and(|payload| head.crc.get() == crc_of(&head, &payload));
        // A whole record of an earlier generation is no damage.
        if (head.generation.get() ^ generation).count_ones() > 1 || is_whole() || *tries == 0 {
            return None;
        }
        *tries -= 1;
        mended(&head, payload).filter(|(head, _)| head.generation.get() == generation)
    }

    /// Position of a line, and the length of its chunk from there on; `None`: it is in no chunk.
    pub(super) fn place_of(&self, line: u32) -> Option<(u64, usize)> {
        let at = u64::from(line) * LOG_LINE_BYTES;
        let in_chunk = at.checked_sub(LOG_CHUNKS_BYTES)?;
        let room = (CHUNK_BYTES - in_chunk % CHUNK_BYTES) as usize;
        (in_chunk / CHUNK_BYTES < self.chunks).then_some((at, room))
    }

    fn head(&self, at: u64) -> Option<RecordHead> {
        let mut bytes = [0; size_of::<RecordHead>()];
        self.region.read(Pos(at), &mut bytes);
        RecordHead::read_from_bytes(&bytes).ok()
    }

    fn payload(&self, at: u64, head: &RecordHead, room: usize) -> Option<Vec<u8>> {
        let (start, len) = (size_of::<RecordHead>(), usize::from(head.payload_bytes.get()));
        if len > runs::RUNS_BYTES_MAX || start + len > room {
            return None;
        }
        let mut payload = vec![0; len];
        self.region.read(Pos(at).plus(start as u64), &mut payload);
        (!self.region.lost(Pos(at), (start + len) as u64)).then_some(payload)
    }
}

/// The correct checksum of a record.
pub(super) fn crc_of(head: &RecordHead, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head.as_bytes()[size_of::<u32>()..]);
    hasher.update(payload);
    hasher.finalize()
}

/// Mends a head and its payload by flipping one bit back. No whole record is so similar to another one, and a
/// torn record may count or not.
fn mended(
    found: &RecordHead,
    payload: impl Fn(&RecordHead) -> Option<Vec<u8>>,
) -> Option<(RecordHead, Vec<u8>)> {
    for bit in 0..8 * size_of::<RecordHead>() {
        let mut head = found.clone();
        head.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
        if let Some(payload) = payload(&head)
            && head.crc.get() == crc_of(&head, &payload)
        {
            return Some((head, payload));
        }
    }
    let mut payload = payload(found)?;
    for bit in 0..8 * payload.len() {
        payload[bit / 8] ^= 1 << (bit % 8);
        if found.crc.get() == crc_of(found, &payload) {
            return Some((found.clone(), payload));
        }
        payload[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

fn damaged(nid: Nid, line: u32, what: &str) -> Error {
    Error::Corrupt(format!(
        "the node log: node {} should be at byte {}, and the record there {what}",
        nid.0,
        u64::from(line) * LOG_LINE_BYTES
    ))
}
