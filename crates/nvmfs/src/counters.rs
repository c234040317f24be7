//! Counters of a mounted file system: the sums of its lanes' counters, and its free space.
//!
//! A process that has the arena mapped takes a reading by itself: it only reads words that others write.
//! Other processes get one from the daemon through its socket ([`crate::client::counters`]), as the words of
//! [`Counters::to_words`].

pub use crate::lane_counters::{
    KINDS, Kind, SAMPLED_EVERY, SPANS, Spans, Tally, Totals, WORDS, span_end_ns, span_of,
};

use crate::fs::NvmFs;
use crate::ids::LANES;
use crate::state::core::Core;
use heddle_vfs::{FileSystem, StatFs};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// One reading.
#[derive(Clone, PartialEq, Debug)]
pub struct Counters {
    /// Since the mount, including clients that are gone.
    pub totals: Totals,
    /// Times of timed calls since the mount, by kind.
    pub spans: Box<Spans>,
    /// Processes that have lanes now, including the mount's own.
    pub clients: Vec<Client>,
    /// Values of the moment.
    pub gauges: Gauges,
}

/// A process and its counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its number.
    pub pid: u32,
    /// Number of threads that have a lane.
    pub threads: u32,
    /// The counters of these threads' lanes.
    pub totals: Totals,
}

/// Values at the time of the reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Gauges {
    /// When the reading was taken, in ns since 1970.
    pub now_ns: u64,
    /// The process that serves the mount.
    pub daemon_pid: u64,
    /// Blocks of 4 KiB.
    pub blocks_total: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Most inodes that the image can have.
    pub inodes_total: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
    /// Processes that have ever attached to this mount.
    pub attached: u64,
    /// Lanes of dead processes that were settled.
    pub settled: u64,
    /// 1: damage was found, and the file system refuses changes.
    pub damaged: u64,
    /// The durability of a write that returned ([`heddle_pmem::Durability::raw`]).
    pub durability: u64,
    /// Bytes of the image that are mapped in pages of 2 MiB or more ([`heddle_pmem::Region::huge_bytes`]);
    /// `u64::MAX`: unknown.
    pub huge_bytes: u64,
}

const GAUGES: usize = size_of::<Gauges>() / size_of::<u64>();
const HEAD_WORDS: usize = 3;
/// First word of a reading: "heddle" and the version of its layout.
const MAGIC: u64 = 0x6865_6464_6c65_4302;

impl Counters {
    /// Takes a reading.
    pub(crate) fn read(core: &Arc<Core>) -> Counters {
        let mut counters = Counters {
            totals: Totals::default(),
            spans: Box::new([[0; SPANS]; KINDS]),
            clients: Vec::new(),
            gauges: gauges(core),
        };
        // ORDERING: Relaxed, the next reading sees a lane that is being leased at this moment.
        let used = (core.root().lanes_used.load(Relaxed) as u16).min(LANES);
        for lane in (1..=used).map(|number| core.lane(number)) {
            let (all, before) = lane.counts.totals();
            counters.totals.add(&all);
            lane.counts.add_spans(&mut counters.spans);
            let pid = (lane.intent.holder.load(Relaxed) >> 32) as u32;
            if pid != 0 {
                counters.note_client(pid, &all.since(&before));
            }
        }
        counters
    }

    fn note_client(&mut self, pid: u32, totals: &Totals) {
        match self.clients.iter_mut().find(|client| client.pid == pid) {
            Some(client) => {
                client.threads += 1;
                client.totals.add(totals);
            }
            None => self.clients.push(Client { pid, threads: 1, totals: *totals }),
        }
    }

    /// Encodes it as words, for another process of the same build.
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![MAGIC, WORDS as u64, self.clients.len() as u64];
        let gauges: [u64; GAUGES] = zerocopy::transmute!(self.gauges);
        words.extend(gauges);
        words.extend(self.totals.0);
        words.extend(self.spans.iter().flatten());
        for client in &self.clients {
            words.extend([u64::from(client.pid), u64::from(client.threads)]);
            words.extend(client.totals.0);
        }
        words
    }

    /// Decodes such words; `None` if they are no reading.
    pub fn from_words(words: &[u64]) -> Option<Counters> {
        let (head, rest) = words.split_first_chunk::<HEAD_WORDS>()?;
        let [magic, sorts, clients] = *head;
        if magic != MAGIC || sorts != WORDS as u64 || clients > u64::from(LANES) {
            return None;
        }
        let (gauges, rest) = rest.split_first_chunk::<GAUGES>()?;
        let (totals, mut rest) = rest.split_first_chunk::<WORDS>()?;
        let mut counters = Counters {
            totals: Totals(*totals),
            spans: Box::new([[0; SPANS]; KINDS]),
            clients: Vec::new(),
            gauges: zerocopy::transmute!(*gauges),
        };
        for kind in counters.spans.iter_mut() {
            (*kind, rest) = rest.split_first_chunk::<SPANS>().map(|(spans, rest)| (*spans, rest))?;
        }
        for _ in 0..clients {
            let ([pid, threads], after) = rest.split_first_chunk::<2>()?;
            let (totals, after) = after.split_first_chunk::<WORDS>()?;
            let (pid, threads) = (u32::try_from(*pid).ok()?, u32::try_from(*threads).ok()?);
            counters.clients.push(Client { pid, threads, totals: Totals(*totals) });
            rest = after;
        }
        rest.is_empty().then_some(counters)
    }
}

fn gauges(core: &Arc<Core>) -> Gauges {
    let space = NvmFs { core: core.clone() }.statfs().ok();
    let of = |what: fn(&StatFs) -> u64| space.as_ref().map_or(0, what);
    let root = core.root();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Gauges {
        now_ns: now.as_nanos() as u64,
        daemon_pid: u64::from(std::process::id()),
        blocks_total: of(|space| space.blocks_total),
        blocks_free: of(|space| space.blocks_free),
        inodes_total: of(|space| space.inodes_total),
        inodes_free: of(|space| space.inodes_free),
        // ORDERING: Relaxed, as in `Counters::read`.
        attached: root.attached.load(Relaxed).into(),
        settled: root.settled.load(Relaxed),
        damaged: core.damage_found().is_some().into(),
        durability: core.region.durability().raw().into(),
        huge_bytes: core.region.huge_bytes().unwrap_or(u64::MAX),
    }
}

impl NvmFs {
    /// Takes a reading of the file system's counters.
    pub fn counters(&self) -> Counters {
        Counters::read(&self.core)
    }
}

#[cfg(test)]
mod tests;
