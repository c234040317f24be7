//! Writing records: a group counts as a whole, when the fence after it is done.
//!
//! A group needs no commit mark: each of its records contains their number, and if one is missing or torn,
//! none of them counts. So an fsync costs one fence. Lanes keep writers of different files apart: a thread
//! that finds a lane taken tries the next.

use super::record::crc_of;
use super::{DEPTH_MAX, Deleted, Located, NodeLog, runs};
use crate::format::{CHUNK_BYTES, LOG_CHUNKS_BYTES, LOG_LINE_BYTES, NodeBlock, RecordHead, record_flag};
use crate::ids::Nid;
use heddle_pmem::Pos;
use heddle_vfs::Result;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use zerocopy::IntoBytes;

/// The range in which a lane writes next; empty if it has no chunk.
#[derive(Default)]
pub(super) struct Lane {
    at: u64,
    end: u64,
    /// A record under construction.
    buffer: Vec<u8>,
}

/// The change of a node.
pub(crate) enum Content<'a> {
    /// Its content is `now`. `before` is the content of its last record, or the base's node; `None`: it is
    /// new.
    Node { now: &'a NodeBlock, before: Option<&'a NodeBlock> },
    /// Its number is free.
    Deleted,
}

/// The contents of a record.
pub(crate) struct Member<'a> {
    pub(crate) nid: Nid,
    pub(crate) ino: Nid,
    /// Version of the number.
    pub(crate) version: u8,
    /// True: its name must be recovered too.
    pub(crate) named: bool,
    pub(crate) content: Content<'a>,
}

impl Member<'_> {
    /// The record of a freed number.
    pub(crate) fn deleted(ino: Nid, gone: Deleted) -> Member<'static> {
        let Deleted { nid, version } = gone;
        Member { nid, ino, version, named: false, content: Content::Deleted }
    }
}

/// Records that count together once [`Group::finish`] has returned. If it is dropped before, none of them
/// counts.
pub(crate) struct Group<'l> {
    log: &'l NodeLog,
    lane: MutexGuard<'l, Lane>,
    pub(super) number: u64,
    members: u32,
    flags: u8,
    put: Vec<(Nid, Option<Located>)>,
    is_durable: bool,
}

thread_local! {
    /// The lane that this thread tries first.
    static FIRST: Cell<Option<usize>> = const { Cell::new(None) };
}
static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

impl NodeLog {
    /// Begins a group of so many records. For a log checkpoint, no call is inside.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::Io`] if the head cannot be made active.
    pub(crate) fn begin(&self, members: usize, log_checkpoint: bool) -> Result<Group<'_>> {
        self.make_active()?;
        let lane = self.lane();
        Ok(Group {
            log: self,
            // ORDERING: Relaxed, it is unique; the numbers of one inode are ordered by its lock (O1).
            number: self.next_group.fetch_add(1, Relaxed),
            lane,
            members: members as u32,
            flags: if log_checkpoint { record_flag::LOG_CHECKPOINT } else { 0 },
            put: Vec::with_capacity(members),
            is_durable: false,
        })
    }

    fn lane(&self) -> MutexGuard<'_, Lane> {
        let first = FIRST.with(|first| {
            // ORDERING: Relaxed, any distribution will do.
            let mine = first.get().unwrap_or_else(|| NEXT_THREAD.fetch_add(1, Relaxed));
            first.set(Some(mine));
            mine % self.lanes.len()
        });
        for n in 0..self.lanes.len() {
            match self.lanes[(first + n) % self.lanes.len()].try_lock() {
                Ok(lane) => return lane,
                Err(TryLockError::Poisoned(lane)) => return lane.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.lanes[first].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a free chunk; `None`: all are taken.
    fn chunk(&self) -> Option<u64> {
        let more = |next: u64| (next < self.chunks).then_some(next + 1);
        // ORDERING: Relaxed, it only decides which lane has the chunk.
        let taken = self.next_chunk.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(LOG_CHUNKS_BYTES + taken * CHUNK_BYTES)
    }

    /// All lanes drop their chunks. No call is inside.
    pub(super) fn leave_chunks(&self) {
        for lane in &self.lanes {
            let mut lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
            (lane.at, lane.end) = (0, 0);
        }
    }
}

impl Group<'_> {
    /// Writes a record. Returns false if the log has no room.
    pub(crate) fn put(&mut self, member: &Member<'_>) -> bool {
        let log = self.log;
        let mut buffer = std::mem::take(&mut self.lane.buffer);
        buffer.clear();
        buffer.resize(size_of::<RecordHead>(), 0);
        let mut flags = self.flags | if member.named { record_flag::NAMED } else { 0 };
        let (mut line, mut depth) = (0, 1);
        match member.content {
            Content::Deleted => flags |= record_flag::DELETED,
            Content::Node { now, before } => {
                let last = log.find(member.nid);
                // L5: chains of records stay short.
                let before = before.filter(|_| last.is_none_or(|last| last.depth < DEPTH_MAX));
                match (before, last) {
                    (None, _) => flags |= record_flag::WHOLE,
                    (Some(_), Some(last)) => (line, depth) = (last.line, last.depth + 1),
                    (Some(_), None) => {}
                }
                runs::encode(before, now, &mut buffer);
            }
        }
        let payload_bytes = buffer.len() - size_of::<RecordHead>();
        let mut head = RecordHead {
            crc: 0.into(),
            // ORDERING: Relaxed, it changes only while no call is inside.
            generation: log.generation.load(Relaxed).into(),
            group: self.number.into(),
            members: self.members.into(),
            nid: member.nid.0.into(),
            ino: member.ino.0.into(),
            before: line.into(),
            payload_bytes: (payload_bytes as u16).into(),
            flags,
            version: member.version,
            depth,
            rest: [0; 3],
        };
        head.crc.set(crc_of(&head, &buffer[size_of::<RecordHead>()..]));
        buffer[..size_of::<RecordHead>()].copy_from_slice(head.as_bytes());
        buffer.resize(buffer.len().next_multiple_of(LOG_LINE_BYTES as usize), 0);
        let at = self.room(buffer.len() as u64);
        if let Some(at) = at {
            log.region.nt_write(Pos(at), &buffer);
            let is_node = flags & record_flag::DELETED == 0;
            let place = Located { line: (at / LOG_LINE_BYTES) as u32, depth };
            self.put.push((member.nid, is_node.then_some(place)));
        }
        self.lane.buffer = buffer;
        at.is_some()
    }

    fn room(&mut self, len_bytes: u64) -> Option<u64> {
        let lane = &mut *self.lane;
        if lane.end - lane.at < len_bytes {
            let chunk = self.log.chunk()?;
            (lane.at, lane.end) = (chunk, chunk + CHUNK_BYTES);
        }
        let at = lane.at;
        lane.at += len_bytes;
        Some(at)
    }

    /// Makes all records durable. They count from now on.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::Io`] if they may not be durable.
    pub(crate) fn finish(mut self) -> Result<()> {
        assert_eq!(self.put.len(), self.members as usize, "a group of another size than its records say");
        // PERSIST: the records. The pages that they lead to were flushed before. One fence covers all of them
        // (L2).
        self.log.region.fence();
        self.is_durable = true;
        self.log.check_media()?;
        for (nid, place) in std::mem::take(&mut self.put) {
            if let Some(place) = place {
                self.log.locate(nid, place);
            }
        }
        Ok(())
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if !self.is_durable && !self.put.is_empty() {
            // PERSIST: records that do not count are cleared; a torn one would look like damage (L3).
            self.log.region.fence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_log::head::{CheckpointId, Heads};
    use heddle_pmem::Region;

    fn log_in(region: Region) -> NodeLog {
        let base = CheckpointId { version: 5, crc: 50 };
        let mut heads = Heads::new(&region, [7; 16], base, 3);
        heads.write_pending(&region);
        NodeLog::new(region, heads)
    }

    fn gone(nid: u32) -> Member<'static> {
        Member::deleted(Nid(4), Deleted { nid: Nid(nid), version: 1 })
    }

    #[test]
    fn groups_at_a_time_are_in_lanes_and_chunks_of_their_own() {
        let log = log_in(Region::anonymous(crate::node_log::LOG_BYTES_MIN).unwrap());
        let is_free = || [0, 1].map(|lane: usize| log.lanes[lane].try_lock().is_ok());
        for (thread, first) in [(6, 0), (7, 1)] {
            FIRST.with(|own| own.set(Some(thread)));
            let mut one = log.begin(1, false).unwrap();
            assert_eq!(is_free(), [first != 0, first != 1], "thread {thread}");
            let mut two = log.begin(1, false).unwrap();
            assert_eq!(is_free(), [false; 2]);
            assert!(one.put(&gone(10)) && two.put(&gone(11)));
            two.finish().unwrap();
            one.finish().unwrap();
            assert_eq!(is_free(), [true; 2]);
        }
        assert_eq!(log.next_chunk.load(Relaxed), 2);
        let nids: Vec<u32> = [128, 129, 1152, 1153].map(|line| log.record(line).unwrap().0.nid.get()).into();
        assert_eq!(nids, [10, 11, 11, 10]);
    }

    #[test]
    fn a_group_that_is_given_up_leaves_no_store_pending() {
        let len_bytes = crate::node_log::LOG_BYTES_MIN;
        let (region, nvm) = Region::simulated(len_bytes);
        let log = log_in(region);
        log.begin(0, false).unwrap().finish().unwrap();
        let fences = nvm.fences();
        drop(log.begin(1, false).unwrap());
        assert_eq!(nvm.fences(), fences, "it has stored nothing");
        let mut group = log.begin(2, false).unwrap();
        assert!(group.put(&gone(10)));
        drop(group);
        assert_eq!(nvm.fences(), fences + 1);
        let mut group = log.begin(1, false).unwrap();
        assert!(group.put(&gone(10)));
        group.finish().unwrap();
        assert_eq!(nvm.fences(), fences + 2, "one covers all of it");
    }
}
