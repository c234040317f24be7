//! How long a cache line takes from one CPU to another, measured beside the runs that depend on it.
//!
//! Two workers of one file pay for lines that pass between them. Where CPUs are a host's to place, that price changes by the moment:
//! a pair that shares a cache today may be far apart for the next second, and a run in that second says more about the host than about
//! the file system. So each run of several workers carries the price, taken right before and right after it; and a run in which it was
//! more than twice the least price seen is taken again, a few times, whatever its result was; until that has cost a benchmark two minutes.

use crate::machine::pin;
use crate::report::{Run, is_far};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// Crossings of one sample, and samples of one figure: about a millisecond altogether.
const CROSSINGS: u64 = 1000;
const SAMPLES: usize = 9;
/// Another program has a CPU: there is no figure.
const TIME_MAX: Duration = Duration::from_millis(200);

/// A slow spell before a run is waited out, for at most so long.
const SPELL_MAX: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(5) };
/// Most time for waiting and repeated runs in one benchmark: if CPUs are near only for moments, this machine
/// is slow as a rule.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 100 });

/// The latency of a cache line over a benchmark.
pub(crate) struct LineLatency<M> {
    measure: M,
    retakes: u32,
    least_ns: Option<f64>,
    /// The time left for waiting and repeats.
    patience: Duration,
}

impl<M: FnMut() -> Option<f64>> LineLatency<M> {
    /// Starts without a figure; `measure` gives the present latency (see [`between`]). A run is repeated at
    /// most `retakes` times, and never once repeats have cost two minutes in all.
    pub(crate) fn new(measure: M, retakes: u32) -> LineLatency<M> {
        LineLatency { measure, retakes, least_ns: None, patience: PATIENCE }
    }

    /// Makes a run of several workers, and repeats it if lines were slow in it. Records in the run how slow,
    /// and how often it was repeated.
    pub(crate) fn steady(&mut self, mut take: impl FnMut() -> Run) -> Run {
        let mut retaken = 0;
        loop {
            let before = self.wait_for_near();
            let began = Instant::now();
            let run = take();
            let after = self.look();
            let slower = before.zip(after).map(|(before, after)| before.max(after));
            let enough = retaken == self.retakes || self.patience.is_zero();
            if run.error.is_some() || enough || !slower.is_some_and(|ns| self.is_far(ns)) {
                return Run { line_crossing_ns: slower, retaken, ..run };
            }
            self.patience = self.patience.saturating_sub(began.elapsed());
            retaken += 1;
        }
    }

    fn wait_for_near(&mut self) -> Option<f64> {
        let began = Instant::now();
        let most = if self.retakes == 0 { Duration::ZERO } else { SPELL_MAX.min(self.patience) };
        loop {
            let seen = self.look();
            if !seen.is_some_and(|ns| self.is_far(ns)) || began.elapsed() >= most {
                self.patience = self.patience.saturating_sub(began.elapsed());
                return seen;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn look(&mut self) -> Option<f64> {
        let seen = (self.measure)();
        self.least_ns = seen.map(|ns| self.least_ns.map_or(ns, |least| least.min(ns))).or(self.least_ns);
        seen
    }

    fn is_far(&self, ns: f64) -> bool {
        self.least_ns.is_some_and(|least| is_far(ns, least))
    }
}

/// A cache line without a neighbour that is fetched with it.
#[repr(align(256))]
struct Ball(AtomicU64);

/// Median time in ns for a line to pass between the first two CPUs. Returns `None` if there are not two, or
/// one is taken.
pub(crate) fn between(cpus: &[usize]) -> Option<f64> {
    let &[here, there, ..] = cpus else { return None };
    let ball = Ball(AtomicU64::new(0));
    let end = Instant::now() + TIME_MAX;
    let mut samples = std::thread::scope(|scope| {
        // Separate threads: this one stays on its CPU.
        let server = scope.spawn(|| serve(&ball.0, here, end));
        scope.spawn(|| answer(&ball.0, there, end));
        server.join().unwrap_or_default()
    });
    samples.sort_by(f64::total_cmp);
    (samples.len() == SAMPLES).then(|| samples[SAMPLES / 2])
}

fn serve(ball: &AtomicU64, cpu: usize, end: Instant) -> Vec<f64> {
    let mut samples = Vec::new();
    if pin(cpu).is_ok() {
        for sample in 0..SAMPLES as u64 {
            let began = Instant::now();
            let first = sample * CROSSINGS;
            if !(first..first + CROSSINGS).step_by(2).all(|at| hit(ball, at, end)) {
                break;
            }
            samples.push(began.elapsed().as_nanos() as f64 / CROSSINGS as f64);
        }
    }
    samples
}

fn answer(ball: &AtomicU64, cpu: usize, end: Instant) {
    if pin(cpu).is_ok() {
        let _all = (1..SAMPLES as u64 * CROSSINGS).step_by(2).all(|at| hit(ball, at, end));
    }
}

/// Waits for the ball and returns it. Returns false if the time is over.
fn hit(ball: &AtomicU64, at: u64, end: Instant) -> bool {
    let mut looks = 0u32;
    // ORDERING: Acquire and Release: each side waits for the other's store.
    while ball.load(Acquire) != at {
        looks += 1;
        if looks.is_multiple_of(4096) && Instant::now() > end {
            return false;
        }
    }
    ball.store(at + 1, Release);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Workload;
    use crate::machine::allowed_cpus;

    const MOST: u32 = 4;

    /// The figures of a run whose lines were as slow as in this list: one measured before and one after each
    /// run.
    fn taken(measured: &[f64]) -> (Option<f64>, u32, u32) {
        taken_within(PATIENCE, measured)
    }

    fn taken_within(patience: Duration, measured: &[f64]) -> (Option<f64>, u32, u32) {
        let mut figures = measured.iter().copied();
        let mut crossings = LineLatency { patience, ..LineLatency::new(|| figures.next(), MOST) };
        let job = crate::Config::default().job(Workload::DWOM, 2);
        let mut takes = 0;
        let target = crate::Target::Kernel(crate::Kernel::Tmpfs);
        let run = crossings.steady(|| {
            takes += 1;
            Run { error: None, ..Run::failed(&target, &job, 0, String::new()) }
        });
        (run.line_crossing_ns, run.retaken, takes)
    }

    #[test]
    fn a_run_repeats_while_lines_are_slow_but_not_forever() {
        assert_eq!(taken(&[50.0, 90.0]), (Some(90.0), 0, 1));
        assert_eq!(taken(&[50.0, 210.0, 50.0, 55.0]), (Some(55.0), 1, 2), "slow after it");
        // A spell that does not end in time: the price before it counts too. (No waiting here: see SPELL_MAX.)
        let slow = [50.0; 1].into_iter().chain([210.0; 30]).collect::<Vec<_>>();
        assert_eq!(taken(&slow), (Some(210.0), MOST, MOST + 1));
        assert_eq!(taken(&[]), (None, 0, 1), "no figure, nothing to judge by");
        assert_eq!(taken_within(Duration::ZERO, &[50.0, 210.0]), (Some(210.0), 0, 1), "it has cost enough");
    }

    #[test]
    fn a_line_crosses_in_a_plausible_time() {
        let cpus = allowed_cpus();
        match between(&cpus) {
            Some(ns) => assert!((1.0..200_000.0).contains(&ns), "{ns} ns"),
            None => println!("SKIPPED: {} CPUs, or busy ones", cpus.len()),
        }
        assert_eq!(between(&cpus[..1]), None);
    }
}
