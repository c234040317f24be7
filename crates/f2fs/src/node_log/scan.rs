//! Scanning a log at a mount: the newest valid record of each node.

use super::{Located, NodeLog};
use crate::format::{CHUNK_BYTES, LOG_CHUNKS_BYTES, LOG_LINE_BYTES, RecordHead, record_flag};
use crate::ids::Nid;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most records that are tried to be mended.
const TRIES_MAX: u32 = 64;

/// The newest record of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newest {
    pub(crate) place: Located,
    pub(crate) group: u64,
    pub(crate) version: u8,
    pub(crate) ino: Nid,
    pub(crate) deleted: bool,
    /// True: its name must be recovered, unless a log checkpoint followed.
    pub(crate) named: bool,
}

/// The valid records of a log.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) nodes: BTreeMap<Nid, Newest>,
    pub(super) last_log_checkpoint: u64,
}

impl Found {
    /// Returns true if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns true if there is a record of this node.
    pub(crate) fn has(&self, nid: Nid) -> bool {
        self.nodes.contains_key(&nid)
    }

    /// Number of files that were fsynced after the last log checkpoint.
    pub(crate) fn fsynced_inodes(&self) -> u64 {
        let fsynced = |(nid, newest): &(&Nid, &Newest)| {
            newest.ino == **nid && !newest.deleted && newest.group > self.last_log_checkpoint
        };
        self.nodes.iter().filter(fsynced).count() as u64
    }

    /// New files whose names are only in their inodes.
    pub(crate) fn named(&self) -> impl Iterator<Item = Nid> + '_ {
        let is_named =
            |newest: &Newest| newest.named && !newest.deleted && newest.group > self.last_log_checkpoint;
        self.nodes.iter().filter(move |(_, newest)| is_named(newest)).map(|(nid, _)| *nid)
    }
}

impl NodeLog {
    /// Scans all chunks, twice: first for whole groups, then for their contents.
    ///
    /// # Errors
    /// Why acknowledged records may be missing.
    pub(crate) fn scan(&self) -> Result<Found, String> {
        let mut groups: HashMap<u64, (u32, u32)> = HashMap::new();
        let mut gaps: Vec<(u64, BTreeSet<u64>)> = Vec::new();
        self.each_record(&mut |head, _, gap| {
            let group = head.group.get();
            let count = groups.entry(group).or_insert((head.members.get(), 0));
            count.1 += 1;
            match (gap, gaps.last_mut()) {
                (None, _) => {}
                (Some(at), Some((last, behind))) if at == *last => drop(behind.insert(group)),
                (Some(at), _) => gaps.push((at, BTreeSet::from([group]))),
            }
        });
        let is_whole = |group: &u64| groups.get(group).is_some_and(|(members, seen)| seen >= members);
        for (at, behind) in gaps {
            // L3: records behind a gap may only be those of one group that was cut off.
            if behind.len() > 1 || behind.iter().any(is_whole) {
                return Err(format!(
                    "the record at byte {at} is damaged: its fsync is lost, perhaps later ones too. To go back to the \
                     image's checkpoint: heddle mount -o discard-nvm"
                ));
            }
        }
        let mut found = Found::default();
        self.each_record(&mut |head, line, _| {
            // L2.
            if is_whole(&head.group.get()) {
                found.add(head.group.get(), head, line);
            }
        });
        Ok(found)
    }

    /// Calls `look` for all whole records, chunk by chunk, with their lines, and with the last gap before
    /// them in their chunk, if any.
    pub(super) fn each_record(&self, look: &mut dyn FnMut(&RecordHead, u32, Option<u64>)) {
        let mut tries = TRIES_MAX;
        for chunk in 0..self.chunks {
            let mut at = LOG_CHUNKS_BYTES + chunk * CHUNK_BYTES;
            let (end, mut gap) = (at + CHUNK_BYTES, None);
            while at < end {
                let line = (at / LOG_LINE_BYTES) as u32;
                let mut found = self.record(line);
                if found.is_none() && gap.is_none() {
                    found = self.mended(line, &mut tries);
                }
                at += match found {
                    Some((head, payload)) => {
                        look(&head, line, gap);
                        (size_of::<RecordHead>() as u64 + payload.len() as u64)
                            .next_multiple_of(LOG_LINE_BYTES)
                    }
                    None => {
                        gap = gap.or(Some(at));
                        LOG_LINE_BYTES
                    }
                };
            }
        }
    }
}

impl Found {
    fn add(&mut self, group: u64, head: &RecordHead, line: u32) {
        let flag = |flag| head.flags & flag != 0;
        if flag(record_flag::LOG_CHECKPOINT) {
            self.last_log_checkpoint = self.last_log_checkpoint.max(group);
        }
        let newest = Newest {
            place: Located { line, depth: head.depth },
            group,
            version: head.version,
            ino: Nid(head.ino.get()),
            deleted: flag(record_flag::DELETED),
            named: flag(record_flag::NAMED),
        };
        let kept = self.nodes.entry(Nid(head.nid.get())).or_insert(newest);
        if group >= kept.group {
            *kept = newest;
        }
    }
}
