//! Counters of a lane: written by its holder, read by any process.
//!
//! State       words of the lane alone: a [`Tally`] for each kind of call, waits for locks, and spans of timed calls. `before` holds the
//!             values at the time when the present holder leased the lane, so that one client's share can be computed.
//! Invariants  I1  only the lease holder writes, with plain stores to lines of its own: counting shares nothing. Readers see each word
//!                 whole, but several words only at about the same time.
//!             I2  words only grow, for all holders of the lane: sums over all lanes never fall.
//! Cost        three loads, two adds and two stores a call, in one or two lines. The clock is read in one call of [`SAMPLED_EVERY`] of a
//!             kind.
//!             A signal handler that counts in the middle of a count may lose one.
//!
//! In a model the words are the standard library's too: they decide nothing, and would only enlarge the state
//! space.

use crate::clock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// One call of this many of a kind is timed, beginning with the first.
pub const SAMPLED_EVERY: u64 = 64;

/// Number of kinds of calls.
pub const KINDS: usize = 12;

/// Kinds of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Kind {
    /// Read of a file or a symbolic link.
    Read,
    /// Write or append.
    Write,
    /// Open of an existing file.
    Open,
    /// Last close of a handle.
    Close,
    /// Look-up of a name, or reading attributes.
    Look,
    /// Reading a directory.
    List,
    /// A new file, directory, link or node.
    Create,
    /// Unlink or rmdir.
    Remove,
    /// Rename.
    Rename,
    /// Change of attributes, size or extended attributes.
    Change,
    /// Allocating, punching, zeroing, shifting.
    Allocate,
    /// Fsync.
    Sync,
}

impl Kind {
    /// All, in the order of their numbers.
    pub const ALL: [Kind; KINDS] = [
        Kind::Read,
        Kind::Write,
        Kind::Open,
        Kind::Close,
        Kind::Look,
        Kind::List,
        Kind::Create,
        Kind::Remove,
        Kind::Rename,
        Kind::Change,
        Kind::Allocate,
        Kind::Sync,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Open => "open",
            Kind::Close => "close",
            Kind::Look => "look",
            Kind::List => "list",
            Kind::Create => "create",
            Kind::Remove => "remove",
            Kind::Rename => "rename",
            Kind::Change => "change",
            Kind::Allocate => "allocate",
            Kind::Sync => "sync",
        }
    }
}

/// Calls of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Calls, failed ones included.
    pub calls: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Calls that were timed.
    pub timed: u64,
    /// Their total time, in ns.
    pub timed_ns: u64,
}

const TALLY_WORDS: usize = 4;
/// Number of words of all tallies, and of the waits behind them.
pub const WORDS: usize = KINDS * TALLY_WORDS + 2;

/// All counters of a lane, a client or a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Totals(pub [u64; WORDS]);

impl Default for Totals {
    fn default() -> Totals {
        Totals([0; WORDS])
    }
}

impl Totals {
    /// The tally of one kind.
    pub fn of(&self, kind: Kind) -> Tally {
        let at = kind as usize * TALLY_WORDS;
        let [calls, bytes, timed, timed_ns] = [0, 1, 2, 3].map(|i| self.0[at + i]);
        Tally { calls, bytes, timed, timed_ns }
    }

    /// Calls of all kinds.
    pub fn calls(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.of(*kind).calls).sum()
    }

    /// Number of times that a call slept for a lock of another lane.
    pub fn waits(&self) -> u64 {
        self.0[WORDS - 2]
    }

    /// Total time of these waits, in ns.
    pub fn wait_ns(&self) -> u64 {
        self.0[WORDS - 1]
    }

    /// Adds other counters.
    pub fn add(&mut self, other: &Totals) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
    }

    /// The difference to `earlier`; zero where `earlier` is larger (another mount, or a lane that was reset).
    pub fn since(&self, earlier: &Totals) -> Totals {
        let mut since = *self;
        since.0.iter_mut().zip(earlier.0).for_each(|(now, then)| *now = now.saturating_sub(then));
        since
    }
}

/// Number of spans into which timed calls are sorted: four to each doubling of time, from `SPAN_FIRST_NS` on.
pub const SPANS: usize = 96;
const SPANS_A_DOUBLING: u32 = 4;
/// End of the first span, in ns.
pub const SPAN_FIRST_NS: u64 = 64;

/// The span of a time.
pub fn span_of(ns: u64) -> usize {
    let Some(octave) = ns.max(1).ilog2().checked_sub(SPAN_FIRST_NS.ilog2()) else { return 0 };
    let quarter = (ns >> (octave + SPAN_FIRST_NS.ilog2() - 2)) & 3;
    ((octave * SPANS_A_DOUBLING) as usize + quarter as usize + 1).min(SPANS - 1)
}

/// End of a span, in ns; the last one has no end.
pub fn span_end_ns(span: usize) -> u64 {
    let (octave, quarter) = (span as u64 / 4, span as u64 % 4);
    (SPAN_FIRST_NS * (4 + quarter) / 4) << octave
}

/// Number of timed calls of each kind in each span.
pub type Spans = [[u64; SPANS]; KINDS];

/// The counters of a lane.
#[repr(C, align(64))]
pub struct Counts {
    words: [AtomicU64; WORDS],
    before: [AtomicU64; WORDS],
    /// Start of the present call, in ns, with its kind in the low bits; 0: the call is not timed.
    timing: AtomicU64,
    spans: [[AtomicU64; SPANS]; KINDS],
}

impl Counts {
    /// Counters at zero.
    pub fn new() -> Counts {
        let words = || std::array::from_fn(|_| AtomicU64::new(0));
        Counts {
            words: words(),
            before: words(),
            spans: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            timing: AtomicU64::new(0),
        }
    }

    /// Counts the start of a call of this kind. The call keeps its state only here: more state in the caller
    /// would slow it down.
    #[inline]
    pub fn begins(&self, kind: Kind) {
        let calls = &self.words[kind as usize * TALLY_WORDS];
        // ORDERING: Relaxed here and below, I1.
        let before = calls.load(Relaxed);
        calls.store(before.wrapping_add(1), Relaxed);
        if before.is_multiple_of(SAMPLED_EVERY) {
            self.times(kind);
        }
    }

    #[cold]
    #[inline(never)]
    fn times(&self, kind: Kind) {
        self.timing.store(now_ns() << KIND_BITS | kind as u64, Relaxed); // ORDERING: Relaxed, I1.
    }

    /// Returns true if the present call is timed.
    #[inline]
    pub fn is_timing(&self) -> bool {
        // ORDERING: Relaxed, I1.
        self.timing.load(Relaxed) != 0
    }

    /// Adds bytes moved by a call of this kind.
    #[inline]
    pub fn moved(&self, kind: Kind, bytes: u64) {
        grow(&self.words[kind as usize * TALLY_WORDS + 1], bytes);
    }

    /// Counts the end of the present call.
    #[inline]
    pub fn ends(&self) {
        if self.is_timing() {
            self.timed();
        }
    }

    #[cold]
    #[inline(never)]
    fn timed(&self) {
        // ORDERING: Relaxed, I1.
        let timing = self.timing.load(Relaxed);
        self.timing.store(0, Relaxed);
        let kind = (timing & ((1 << KIND_BITS) - 1)) as usize % KINDS;
        let ns = now_ns().saturating_sub(timing >> KIND_BITS);
        grow(&self.words[kind * TALLY_WORDS + 2], 1);
        grow(&self.words[kind * TALLY_WORDS + 3], ns);
        grow(&self.spans[kind][span_of(ns)], 1);
    }

    /// Counts a call that slept for a lock; `calls` is the number of calls that it stands for.
    #[cold]
    pub fn waited(&self, calls: u64, took: Duration) {
        grow(&self.words[WORDS - 2], calls);
        grow(&self.words[WORDS - 1], in_ns(took).saturating_mul(calls));
    }

    /// Notes that a new holder has leased the lane.
    pub fn comes(&self) {
        for (before, now) in self.before.iter().zip(&self.words) {
            // ORDERING: Relaxed, I1.
            before.store(now.load(Relaxed), Relaxed);
        }
    }

    /// All counts since the mount, and those at the time when the present holder leased the lane.
    pub fn totals(&self) -> (Totals, Totals) {
        // ORDERING: Relaxed, I1.
        let read = |words: &[AtomicU64; WORDS]| Totals(std::array::from_fn(|i| words[i].load(Relaxed)));
        let before = read(&self.before);
        (read(&self.words), before)
    }

    /// Adds the spans of this lane to `sum`.
    pub fn add_spans(&self, sum: &mut Spans) {
        for (sums, spans) in sum.iter_mut().zip(&self.spans) {
            for (sum, span) in sums.iter_mut().zip(spans) {
                // ORDERING: Relaxed, I1.
                *sum += span.load(Relaxed);
            }
        }
    }
}

const KIND_BITS: u32 = 4;
const _: () = assert!(KINDS <= 1 << KIND_BITS);

/// 60 bits are 36 years.
fn now_ns() -> u64 {
    clock::monotonic_ns()
}

fn in_ns(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

#[inline]
fn grow(word: &AtomicU64, by: u64) {
    // ORDERING: Relaxed, I1: only this thread writes it.
    word.store(word.load(Relaxed).wrapping_add(by), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};

    #[test]
    fn every_time_lies_in_its_span() {
        for ns in (0..5000).chain([1 << 20, 12_345_678, u64::MAX]) {
            let span = span_of(ns);
            assert!(span == SPANS - 1 || ns < span_end_ns(span), "{ns} ns in span {span}");
            assert!(span == 0 || ns >= span_end_ns(span - 1), "{ns} ns in span {span}");
        }
        assert!(span_end_ns(SPANS - 2) > 500_000_000, "half a second is still told apart");
    }

    #[test]
    fn a_client_is_shown_what_came_with_it_and_the_mount_all() {
        let counts = Counts::new();
        let write = |bytes| {
            counts.begins(Kind::Write);
            counts.moved(Kind::Write, bytes);
            counts.ends();
        };
        write(4096);
        counts.comes();
        (0..SAMPLED_EVERY).for_each(|_| write(10));
        let (all, before) = counts.totals();
        let own = all.since(&before).of(Kind::Write);
        assert_eq!((own.calls, own.bytes, own.timed), (SAMPLED_EVERY, 10 * SAMPLED_EVERY, 1));
        assert_eq!(all.of(Kind::Write).calls, SAMPLED_EVERY + 1);
        assert_eq!(all.of(Kind::Write).timed, 2, "the first call is timed, and the 65th");
        let mut spans = [[0; SPANS]; KINDS];
        counts.add_spans(&mut spans);
        assert_eq!(spans[Kind::Write as usize].iter().sum::<u64>(), 2);
    }

    #[test]
    fn sums_are_of_all_kinds_and_waits_stand_behind_them() {
        let counts = Counts::new();
        for (n, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, n);
            (0..=n).for_each(|_| counts.begins(kind));
            counts.ends();
        }
        assert!(!counts.is_timing());
        counts.waited(2, Duration::from_nanos(5));
        counts.waited(1, Duration::from_nanos(7));
        let (mut all, before) = counts.totals();
        assert_eq!(all.0[12 * 4..], [3, 17], "behind four words a kind");
        assert_eq!((all.calls(), all.waits(), all.wait_ns()), (78, 3, 17));
        assert_eq!((before, all.since(&all)), (Totals::default(), Totals::default()));
        assert_eq!(before.since(&all), before, "less than nothing is nothing");
        all.add(&counts.totals().0);
        assert_eq!((all.calls(), all.of(Kind::Sync).calls, all.waits()), (156, 24, 6));
        let names: std::collections::BTreeSet<_> = Kind::ALL.into_iter().map(Kind::name).collect();
        assert_eq!(names.len(), KINDS);
    }

    #[test]
    fn a_timed_call_takes_as_long_as_it_did() {
        let counts = Counts::new();
        counts.begins(Kind::Rename);
        assert!(counts.is_timing());
        std::thread::sleep(Duration::from_millis(20));
        counts.ends();
        let tally = counts.totals().0.of(Kind::Rename);
        assert_eq!((tally.timed, counts.is_timing()), (1, false));
        assert!((20_000_000..10_000_000_000).contains(&tally.timed_ns), "{} ns", tally.timed_ns);
        counts.ends();
        assert_eq!(counts.totals().0.of(Kind::Rename), tally, "a call ends once");
    }

    #[test]
    fn calls_are_timed_by_the_monotonic_clock() {
        let exact = || {
            let now = clock_gettime(ClockId::Monotonic);
            Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos() as u64
        };
        let before = exact();
        let now = now_ns();
        assert!((before..=exact()).contains(&now), "{now} ns, and it was {before}");
    }
}
