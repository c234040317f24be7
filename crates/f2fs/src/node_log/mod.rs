//! The node log: changes of nodes by fsyncs and log checkpoints are written to NVM as records, and not to the device.
//!
//! The device's last checkpoint is the *base*. A node that has records is in the state of its newest one,
//! until the next checkpoint of the device (*fold*) has taken over all of them. An *fsync* writes the records
//! of a file. A *log checkpoint* writes those of all changed nodes, after all pages are on the device, at one
//! instant. A record contains its node, inode, version and the record that it changes. So it is its own entry
//! of the node table, in the same lines, and nothing else of that table is written ("pin-point update").
//!
//! State       in NVM: two heads, of which the later whole one counts, and chunks of records. In memory: the position of each node's
//!             newest record (`index`), the free chunks of 64 KiB, the chunk in which each lane appends (one writer at a time),
//!             freed numbers that are not recorded yet.
//! Invariants  L1  at every instant the device alone is the file system of the base: no block of it is overwritten before the next
//!                 checkpoint counts (G2 of `segments`), and only a fold writes nodes.
//!             L2  a record counts if all records of its group are present and whole. Groups of one node have ascending numbers.
//!             L3  in a chunk, a group's records are written when those before them are durable. So behind an unreadable record lies
//!                 nothing, or the rest of one group that does not count. Anything else is damage.
//!             L4  a generation of records is never continued: a mount applies the records, folds them, and begins another generation.
//!             L5  a record that changes another one names it; such a chain ends in a whole record, or in the base's node.
//! Lock order  the locks of calls (`call_gate`), a lane, the locks of the tables (`node`, `nat`), a shard of the index.
//! Pairing     which image a log belongs to, and the steps before its first record: `mark`.
//! Crash order pages, a flush of the device, records, a fence: durable. A fold: the head names the next checkpoint, a fence; that
//!             checkpoint's tail; the head begins a generation on top of it, a fence.
//! Orderings   O1  the group's number is taken under the lane; those of one inode are ordered by that inode's lock.
//! Source      F2FS range-lock paper (SYSTOR '19) sections 3.3 to 3.5. There all nodes are in the log; here it extends an image
//!             that Linux can mount.

mod group;
mod head;
pub(crate) mod mark;
mod record;
mod runs;
mod scan;
#[cfg(test)]
mod tests;

pub(crate) use group::{Content, Group, Member};
pub(crate) use head::CheckpointId;
pub(crate) use scan::{Found, Newest};

use crate::device::Device;
use crate::format::{CHUNK_BYTES, LOG_CHUNKS_BYTES, LOG_LINE_BYTES};
use crate::ids::{ByNid, Nid};
use crate::planted::{Breach, breaks};
use crate::times::now;
use head::{Heads, MAKE_ANOTHER, Validity};
use heddle_pmem::Region;
use heddle_vfs::{Error, Result};
use mark::Pairing;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SHARDS: usize = 64;
/// Most lanes. A lane takes a chunk, so a small log has fewer.
const LANES_MAX: usize = 64;
/// Least bytes of a log: eight chunks.
pub const LOG_BYTES_MIN: u64 = LOG_CHUNKS_BYTES + 8 * CHUNK_BYTES;
/// Most bytes of a log in a region of any size: line numbers have 32 bits.
pub const LOG_BYTES_MAX: u64 = LOG_LINE_BYTES << 32;
/// Most records for one node: reading the node costs as many loads.
const DEPTH_MAX: u8 = 8;
/// Share of the used chunks, in tenths, at which a log checkpoint becomes a fold.
const FULL_TENTHS: u64 = 7;

/// Why a log is not used with an image.
#[derive(Debug)]
pub(crate) enum Refused {
    /// It is not the log of this image.
    Log(String),
    /// The image is not the one with which the log was written, or is a copy of it.
    Image(String),
}

const ANOTHER: &str = "the image was last mounted with another log, and not unmounted: give that log. If the image is a copy from before \
                       that, put back the newest one. To lose the fsyncs that only the log has: heddle mount -o discard-nvm";
/// The same, where the content of the place of the log is given up too.
const ANOTHER_FORCED: &str = "the image was last mounted with another log, and not unmounted: give that log. To lose the fsyncs that only \
                              that log has, and the content here: heddle mount -o force-nvm,discard-nvm";
const OF_ANOTHER: &str = "it was made later, or the log is another image's: the fsyncs of that image are only in the log. Put that image \
                          back, or mount it with the log first. To lose the fsyncs in the log: heddle mount -o force-nvm";
/// The same of an image that needs its own log.
const BOTH_NEED: &str = "the log is another image's, and has fsyncs of that image; the fsyncs that only this image's log has are not in \
                         it. Give that log. To lose the fsyncs in both logs: heddle mount -o force-nvm,discard-nvm";
const OLDER: &str = "it is a copy from before: the later changes are in the image that was used with the log since. Put that one back. \
                     To go on from this copy: heddle mount -o discard-nvm";

/// The position of a node's newest record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    pub(crate) line: u32,
    depth: u8,
}

/// A freed number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deleted {
    pub(crate) nid: Nid,
    pub(crate) version: u8,
}

/// The contents of a region for a node log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogState {
    /// A node log, empty or of whichever image: opening it tells.
    HoldsLog,
    /// Nothing of value: a log is made in it.
    Free,
    /// What its owner gives up: a log is made over it.
    GivenUp,
}

/// The node log of an image.
pub(crate) struct NodeLog {
    region: Region,
    heads: Mutex<Heads>,
    /// True: the head is active.
    is_active: AtomicBool,
    /// True: the image is marked. It never is when it has just been opened (P2 of `mark`).
    is_marked: AtomicBool,
    generation: AtomicU32,
    chunks: u64,
    /// The next free chunk.
    next_chunk: AtomicU64,
    next_group: AtomicU64,
    lanes: Vec<Mutex<group::Lane>>,
    index: [RwLock<ByNid<Located>>; SHARDS],
    nodes: AtomicUsize,
    /// By inode.
    deleted: Mutex<ByNid<Vec<Deleted>>>,
}

impl NodeLog {
    /// The log of an image with this checkpoint, in this region, and its records. `mark`: the image's mark;
    /// `discard`: the log's records do not count. The region is not changed before [`NodeLog::write_heads`].
    ///
    /// # Errors
    /// Why it cannot be this image's log.
    pub(crate) fn open(
        (region, state): (Region, LogState),
        (uuid, image): ([u8; 16], CheckpointId),
        mark: Option<Pairing>,
        discard: bool,
    ) -> std::result::Result<(NodeLog, Found), Refused> {
        let log_refused = |what: &str| Err(Refused::Log(what.to_owned()));
        let image_refused = |what: &str| Err(Refused::Image(what.to_owned()));
        if region.len_bytes() < LOG_BYTES_MIN {
            let has = format!("it has {} bytes, and a node log at least {LOG_BYTES_MIN}", region.len_bytes());
            return log_refused(&match state {
                LogState::Free | LogState::GivenUp => format!("{has}: make it larger"),
                LogState::HoldsLog => {
                    format!("{has}: it was cut short, and what only it had is lost. {MAKE_ANOTHER}")
                }
            });
        }
        let heads = match state {
            LogState::HoldsLog => Some(Heads::read(&region).map_err(Refused::Log)?),
            LogState::Free | LogState::GivenUp => None,
        };
        // If the image is marked, this must be the log it is marked for.
        let is_of = |heads: &Heads, mark| heads.is_of(uuid, image, mark);
        let is_paired = mark.is_some_and(|mark| heads.as_ref().is_some_and(|heads| is_of(heads, mark)));
        let is_right = mark.is_none() || discard || breaks(Breach::AnyLogTaken) || is_paired;
        let Some(mut heads) = heads else {
            if !is_right {
                return log_refused(if state == LogState::GivenUp { ANOTHER_FORCED } else { ANOTHER });
            }
            // The generation differs, almost certainly, from that of any old bytes in the region.
            let heads = Heads::new(&region, uuid, image, now().nanos() ^ now().secs() as u32);
            return Ok((NodeLog::new(region, heads), Found::default()));
        };
        let validity = heads.validity(image);
        let (base, owner, pairing) = (heads.base(), heads.uuid(), heads.pairing());
        if validity == Validity::Clean && !is_right {
            return if mark == Some(pairing) { image_refused(OLDER) } else { log_refused(ANOTHER) };
        }
        // Records of another image must not be discarded here.
        if discard && owner == uuid {
            heads.give_up(&region, uuid, image);
            return Ok((NodeLog::new(region, heads), Found::default()));
        }
        if validity == Validity::Clean {
            heads.begin_anew(&region, uuid, image);
            return Ok((NodeLog::new(region, heads), Found::default()));
        }
        let log = NodeLog::new(region, heads);
        let of_another = if mark.is_some() { BOTH_NEED } else { OF_ANOTHER };
        let found = match log.scan() {
            Err(_) if owner != uuid => return image_refused(of_another),
            found => found.map_err(Refused::Log)?,
        };
        match validity {
            _ if found.is_empty() && is_right => log.lock_heads().begin_anew(&log.region, uuid, image),
            _ if is_paired || breaks(Breach::AnyLogTaken) => return Ok((log, found)),
            _ if owner != uuid => return image_refused(of_another),
            // Of two logs of an image the other one is newer, or the image is a copy.
            _ if mark.is_some_and(|mark| mark != pairing) => return log_refused(ANOTHER),
            _ => {
                return image_refused(&format!(
                    "it was copied, or put back, or changed without the log since. It has checkpoint {}, and the log has the fsyncs \
                     after checkpoint {}. Put back the image that was used with the log. To lose the fsyncs that only the log has: \
                     heddle mount -o discard-nvm",
                    image.version, base.version
                ));
            }
        }
        log.generation.store(log.lock_heads().generation(), Relaxed); // ORDERING: Relaxed, no other thread knows the log.
        Ok((log, found))
    }

    /// The image is open and recovered. The heads, which so far were changed in memory alone, are written to the region, and from now on
    /// each change of them is.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn write_heads(&self) -> Result<()> {
        self.lock_heads().write_pending(&self.region);
        self.check_media()
    }

    fn new(region: Region, heads: Heads) -> NodeLog {
        let chunks = region.len_bytes().min(LOG_BYTES_MAX).saturating_sub(LOG_CHUNKS_BYTES) / CHUNK_BYTES;
        let lanes = (chunks as usize / 4).clamp(1, LANES_MAX);
        NodeLog {
            generation: AtomicU32::new(heads.generation()),
            heads: Mutex::new(heads),
            is_active: AtomicBool::new(false),
            is_marked: AtomicBool::new(false),
            chunks,
            next_chunk: AtomicU64::new(0),
            next_group: AtomicU64::new(1),
            lanes: (0..lanes).map(|_| Mutex::default()).collect(),
            index: std::array::from_fn(|_| RwLock::default()),
            nodes: AtomicUsize::new(0),
            deleted: Mutex::default(),
            region,
        }
    }

    fn shard(&self, nid: Nid) -> RwLockReadGuard<'_, ByNid<Located>> {
        self.index[nid.0 as usize % SHARDS].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_mut(&self, nid: Nid) -> RwLockWriteGuard<'_, ByNid<Located>> {
        self.index[nid.0 as usize % SHARDS].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Position of a node's newest record, if it has one.
    pub(crate) fn find(&self, nid: Nid) -> Option<Located> {
        self.shard(nid).get(&nid).copied()
    }

    /// Notes the position of its newest record.
    pub(crate) fn locate(&self, nid: Nid, place: Located) {
        if self.shard_mut(nid).insert(nid, place).is_none() {
            self.nodes.fetch_add(1, Relaxed); // ORDERING: Relaxed, an estimate.
        }
    }

    /// Number of nodes that have records, all of which a fold writes.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.load(Relaxed) // ORDERING: Relaxed, an estimate, to decide when to fold.
    }

    /// The nodes that have records.
    pub(crate) fn nids(&self) -> Vec<Nid> {
        let of_shard = |shard: &RwLock<ByNid<Located>>| {
            shard.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect::<Vec<_>>()
        };
        self.index.iter().flat_map(of_shard).collect()
    }

    /// Notes that the log does not have the newest content of a node any more. Returns true if it had.
    pub(crate) fn forget(&self, nid: Nid) -> bool {
        let was = self.shard_mut(nid).remove(&nid).is_some();
        if was {
            self.nodes.fetch_sub(1, Relaxed); // ORDERING: Relaxed, an estimate.
        }
        was
    }

    /// Notes a freed node whose number was durably in use: `durable`, or it has a record. The next fsync of
    /// its inode, or the next log checkpoint, records that.
    pub(crate) fn free(&self, ino: Nid, gone: Deleted, durable: bool) {
        if self.forget(gone.nid) || durable {
            self.deleted().entry(ino).or_default().push(gone);
        }
    }

    fn deleted(&self) -> MutexGuard<'_, ByNid<Vec<Deleted>>> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Freed numbers of an inode that are not recorded yet.
    pub(crate) fn deleted_of(&self, ino: Nid) -> Vec<Deleted> {
        self.deleted().get(&ino).cloned().unwrap_or_default()
    }

    /// Notes that they are recorded.
    pub(crate) fn deletion_recorded(&self, ino: Nid) {
        self.deleted().remove(&ino);
    }

    /// The same numbers for all inodes.
    pub(crate) fn all_deleted(&self) -> Vec<(Nid, Deleted)> {
        let deleted = self.deleted();
        deleted.iter().flat_map(|(ino, gone)| gone.iter().map(|gone| (*ino, *gone))).collect()
    }

    /// Marks the image before the first record.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn mark(&self, device: &Device) -> Result<()> {
        // ORDERING: Acquire, pairs with the Release below: a thread that sees the mark noted has it durable before its records.
        if self.is_marked.load(Acquire) {
            return Ok(());
        }
        let mut heads = self.lock_heads();
        // ORDERING: Acquire, pairs with the Release below: another thread may have marked it first.
        if !self.is_marked.load(Acquire) {
            heads.pair_anew(&self.region);
            self.check_media()?;
            mark::write(device, Some(heads.pairing()))?;
            self.is_marked.store(true, Release); // ORDERING: Release, pairs with the Acquire above.
        }
        Ok(())
    }

    /// Removes the image's mark: the log has nothing that the image lacks. No call is inside.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn unmark(&self, device: &Device) -> Result<()> {
        // ORDERING: Relaxed, no thread inside begins records.
        if self.is_marked.load(Relaxed) {
            mark::write(device, None)?;
            self.is_marked.store(false, Relaxed);
        }
        Ok(())
    }

    /// Makes records count from now on.
    fn make_active(&self) -> Result<()> {
        // ORDERING: Acquire, pairs with the Release below: a thread that sees it has the head durable before its records.
        if !self.is_active.load(Acquire) {
            self.lock_heads().make_active(&self.region);
            self.check_media()?;
            self.is_active.store(true, Release); // ORDERING: Release, pairs with the Acquire above.
        }
        Ok(())
    }

    /// Announces the next checkpoint, which will include all records.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn will_fold(&self, next: CheckpointId) -> Result<()> {
        self.lock_heads().make_folding(&self.region, next);
        self.check_media()
    }

    /// Makes no record count any more, whether or not the image has their contents: a bug for the rig to
    /// detect.
    pub(crate) fn end_records(&self) {
        let mut heads = self.lock_heads();
        let (uuid, base) = (heads.uuid(), heads.base());
        heads.begin_anew(&self.region, uuid, base);
    }

    /// Begins a new generation after a fold: the checkpoint is valid. No call is inside.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn folded(&self, base: CheckpointId) -> Result<()> {
        let mut heads = self.lock_heads();
        let uuid = heads.uuid();
        heads.begin_anew(&self.region, uuid, base);
        // ORDERING: Relaxed throughout, no call is inside.
        self.generation.store(heads.generation(), Relaxed);
        self.is_active.store(false, Relaxed);
        self.next_chunk.store(0, Relaxed);
        self.nodes.store(0, Relaxed);
        self.leave_chunks();
        for shard in &self.index {
            shard.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
        self.deleted().clear();
        self.check_media()
    }

    fn lock_heads(&self) -> MutexGuard<'_, Heads> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if freed numbers are not recorded, or it is time to fold.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_filling() || !self.deleted().is_empty()
    }

    /// Returns true if the log has nothing that the device's checkpoint lacks.
    pub(crate) fn is_empty(&self) -> bool {
        self.next_chunk.load(Relaxed) == 0 // ORDERING: Relaxed, loaded while no call is inside, or as an estimate.
    }

    /// Returns true if it is time to fold.
    pub(crate) fn is_filling(&self) -> bool {
        // ORDERING: Relaxed, an estimate.
        self.next_chunk.load(Relaxed) * 10 >= self.chunks * FULL_TENTHS
    }

    /// Checks the region for failures.
    ///
    /// # Errors
    /// [`Error::Io`] if what was stored may not be durable.
    fn check_media(&self) -> Result<()> {
        match self.region.failed() {
            None => Ok(()),
            Some(error) => Err(Error::Io(format!("the node log: {error}"))),
        }
    }
}
