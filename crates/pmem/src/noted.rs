//! The pages to which a thread has stored since its last fence.
//!
//! State       for each thread a table of ranges, of all its regions, and for each region whether a range was refused; and the numbers
//!             of the regions that live.
//! Invariants  I1  neither lock nor heap, and no destructor: a forked child finds nothing locked, and the last calls of a thread that
//!                 ends find their table.
//!             I2  a range in a table is written back by its thread's next fence of its region. A range that finds no room is refused:
//!                 that fence writes back all of the region, and later ones do not.
//!             I3  no two regions in this line of forks have one number. Each fence of a region without a number writes back all of it.
//!             I4  a forked child begins with an empty table: its parent's stores are its parent's duty.
//!             I5  a signal handler may come in between: while its thread changes the table, it is refused its ranges, and takes none out.
//!                 The thread asks for what was refused after it has taken its ranges out, so it misses no handler that came meanwhile.
//! What stays  Ranges of a thread that ends before its fence go with it. No one was promised its stores: survivors that need them flush
//!             them anew (`Region::flush_unfenced`).

use crate::process;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, compiler_fence};

/// More are widened over what lies between them.
const RANGES_MAX: usize = 32;
/// Regions in files of one process with fences as narrow as their stores.
const REGIONS_MAX: usize = 256;

/// The numbers of those that live, each at its own rest modulo [`REGIONS_MAX`]; 0: free.
static LIVE: [AtomicU64; REGIONS_MAX] = [const { AtomicU64::new(0) }; REGIONS_MAX];
static REGIONS_SO_FAR: AtomicU64 = AtomicU64::new(1);

/// The number of a region, until dropped; 0: it has none.
#[derive(Debug)]
pub(crate) struct RegionNumber(u64);

impl RegionNumber {
    pub(crate) fn new() -> RegionNumber {
        let nth = REGIONS_SO_FAR.fetch_add(1, SeqCst) * REGIONS_MAX as u64;
        let claimed = |(place, of): (u64, &AtomicU64)| {
            of.compare_exchange(0, nth + place, SeqCst, SeqCst).is_ok().then_some(nth + place)
        };
        RegionNumber((0..).zip(&LIVE).find_map(claimed).unwrap_or(0))
    }

    /// Notes that this thread has stored to a range of pages.
    pub(crate) fn note(&self, range: Range<u64>) {
        let noted = Noted { region: self.0, start: range.start, end: range.end };
        TABLE.with(|table| {
            if self.0 != 0 && table.change(|| table.note(noted)) != Some(true) {
                table.refused[place_of(self.0)].set(true);
            }
        });
    }

    /// Takes what this thread has noted of this region out of the table.
    pub(crate) fn take(&self) -> Taken {
        TABLE.with(|table| {
            let taken = table.change(|| table.take(self.0)).unwrap_or_default();
            // For handlers of this thread (I5).
            compiler_fence(SeqCst);
            let is_whole = self.0 == 0 || table.refused[place_of(self.0)].replace(false);
            Taken { is_whole, ..taken }
        })
    }
}

impl Drop for RegionNumber {
    fn drop(&mut self) {
        if self.0 != 0 {
            LIVE[place_of(self.0)].store(0, SeqCst);
        }
    }
}

fn place_of(region: u64) -> usize {
    region as usize % REGIONS_MAX
}

#[derive(Clone, Copy)]
struct Noted {
    region: u64,
    start: u64,
    end: u64,
}

impl Noted {
    const NONE: Noted = Noted { region: 0, start: 0, end: 0 };

    /// Bytes between two ranges; 0 if they touch.
    fn gap(&self, other: &Noted) -> u64 {
        self.start.max(other.start).saturating_sub(self.end.min(other.end))
    }

    fn with(&self, other: &Noted) -> Noted {
        Noted { start: self.start.min(other.start), end: self.end.max(other.end), ..*self }
    }

    fn of_a_live_region(&self) -> bool {
        LIVE[place_of(self.region)].load(SeqCst) == self.region
    }
}

struct Table {
    /// The process whose stores these are (I4).
    process: Cell<u32>,
    /// A change is under way (I5).
    busy: Cell<bool>,
    len: Cell<usize>,
    ranges: [Cell<Noted>; RANGES_MAX],
    /// A range of the region in this place was refused (I2).
    refused: [Cell<bool>; REGIONS_MAX],
}

thread_local! {
    static TABLE: Table = const {
        Table {
            process: Cell::new(0),
            busy: Cell::new(false),
            len: Cell::new(0),
            ranges: [const { Cell::new(Noted::NONE) }; RANGES_MAX],
            refused: [const { Cell::new(false) }; REGIONS_MAX],
        }
    };
}

impl Table {
    /// `None`: this is a signal handler, in the middle of another change.
    #[inline]
    fn change<T>(&self, change: impl FnOnce() -> T) -> Option<T> {
        let process = process::generation();
        if self.process.get() != process {
            self.len.set(0);
            self.refused.iter().for_each(|refused| refused.set(false));
            self.busy.set(false);
            self.process.set(process);
        }
        if self.busy.replace(true) {
            return None;
        }
        // For handlers of this thread, in the order of the program.
        compiler_fence(SeqCst);
        let changed = change();
        compiler_fence(SeqCst);
        self.busy.set(false);
        Some(changed)
    }

    fn filled(&self) -> &[Cell<Noted>] {
        &self.ranges[..self.len.get()]
    }

    fn note(&self, new: Noted) -> bool {
        let of_region = |at: &&Cell<Noted>| at.get().region == new.region;
        // The newest first: most stores follow their predecessor.
        let touched = self.filled().iter().rev().find(|at| of_region(at) && at.get().gap(&new) == 0);
        if let Some(at) = touched {
            at.set(at.get().with(&new));
            return true;
        }
        if self.len.get() == RANGES_MAX {
            self.keep(Noted::of_a_live_region);
        }
        if self.len.get() < RANGES_MAX {
            self.ranges[self.len.get()].set(new);
            self.len.set(self.len.get() + 1);
            return true;
        }
        let nearest = self.filled().iter().filter(of_region).min_by_key(|at| at.get().gap(&new));
        nearest.inspect(|at| at.set(at.get().with(&new))).is_some()
    }

    fn take(&self, region: u64) -> Taken {
        let mut taken = Taken::default();
        self.keep(|noted| {
            if noted.region == region {
                taken.ranges[taken.len] = *noted;
                taken.len += 1;
            }
            noted.region != region
        });
        taken
    }

    fn keep(&self, mut keeps: impl FnMut(&Noted) -> bool) {
        let mut kept = 0;
        for at in self.filled() {
            if keeps(&at.get()) {
                self.ranges[kept].set(at.get());
                kept += 1;
            }
        }
        self.len.set(kept);
    }
}

/// What was noted of one region, taken out of the table.
pub(crate) struct Taken {
    ranges: [Noted; RANGES_MAX],
    len: usize,
    /// All of the region is to be written back.
    pub(crate) is_whole: bool,
}

impl Default for Taken {
    fn default() -> Taken {
        Taken { ranges: [Noted::NONE; RANGES_MAX], len: 0, is_whole: false }
    }
}

impl Taken {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 && !self.is_whole
    }

    /// The ranges in ascending order, those that touch as one.
    pub(crate) fn merged(&mut self) -> impl Iterator<Item = Range<u64>> {
        let ranges = &mut self.ranges[..self.len];
        ranges.sort_unstable_by_key(|noted| noted.start);
        let mut rest = ranges.iter().peekable();
        std::iter::from_fn(move || {
            let mut range = *rest.next()?;
            while let Some(next) = rest.next_if(|next| range.gap(next) == 0) {
                range = range.with(next);
            }
            Some(range.start..range.end)
        })
    }
}

#[cfg(test)]
mod tests;
