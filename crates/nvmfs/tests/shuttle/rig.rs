//! Seeds, schedules, threads and their clock.

use crate::common::{Disk, env};
use heddle_nvmfs::{Variant, Volume};
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use shuttle::{Config, Runner};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Numbers that depend on a seed alone (SplitMix64).
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// 0 to `n` - 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    pub fn variant(&mut self) -> Variant {
        // Every second one is the default, whose readers take no lock.
        match self.below(8) {
            n @ 0..4 => Variant::ALL[n as usize],
            _ => Variant::Heddle,
        }
    }
}

/// Runs programs, each with its own seed and schedule.
pub fn under_shuttle(program: fn(Dice)) {
    let seeds = match std::env::var("HEDDLE_SHUTTLE_SEED") {
        Ok(_) => {
            let seed = env("HEDDLE_SHUTTLE_SEED", 0);
            seed..seed + 1
        }
        Err(_) => {
            let from = env("HEDDLE_SHUTTLE_FROM", 0);
            from..from + env("HEDDLE_SHUTTLE_SEEDS", 300)
        }
    };
    for seed in seeds {
        struct Tell(u64);
        impl Drop for Tell {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    println!("failed: run this one again with HEDDLE_SHUTTLE_SEED={}", self.0);
                }
            }
        }
        let _tell = Tell(seed);
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.silence_warnings = true;
        let run = |scheduler: Box<dyn Scheduler + Send>| {
            Runner::new(scheduler, config.clone()).run(move || program(Dice::new(seed)));
        };
        let burst = match seed % 5 {
            0 => Burst::Steps(1),
            1 => Burst::Steps(10),
            2 => Burst::Steps(50),
            3 => Burst::Steps(250),
            _ => Burst::Any,
        };
        run(Box::new(Bursts { dice: Dice::new(seed), burst, left: 0, begun: false }));
    }
}

/// How long a thread goes on before another does.
enum Burst {
    /// So many steps on average.
    Steps(u64),
    /// Now 1, now 1024, or a power of two between: what goes wrong often needs a thread that stands still in the wrong place while
    /// others get far, and a quick change before that.
    Any,
}

struct Bursts {
    dice: Dice,
    burst: Burst,
    /// Steps that the thread goes on.
    left: u64,
    begun: bool,
}

impl Bursts {
    fn ends(&mut self) -> bool {
        match self.burst {
            Burst::Steps(steps) => self.dice.below(steps) == 0,
            Burst::Any => {
                let ends = self.left == 0;
                self.left = if ends { 1 << self.dice.below(11) } else { self.left - 1 };
                ends
            }
        }
    }
}

impl Scheduler for Bursts {
    fn new_execution(&mut self) -> Option<Schedule> {
        (!std::mem::replace(&mut self.begun, true)).then(|| Schedule::new(self.dice.0))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        let goes_on = runnable.iter().map(|task| task.id()).find(|id| Some(*id) == current);
        match goes_on {
            Some(id) if !yields && !self.ends() => Some(id),
            _ => Some(runnable[self.dice.below(runnable.len() as u64) as usize].id()),
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.dice.below(u64::MAX)
    }
}

/// What a thread asked and got, and when by the rig's own clock.
#[derive(Clone, Debug)]
pub struct Event<Op, Outcome> {
    pub thread: usize,
    pub call: u64,
    pub back: u64,
    pub op: Op,
    pub outcome: Outcome,
}

/// For who reads a failure: a call a line.
pub fn told<Op: std::fmt::Debug, Outcome: std::fmt::Debug>(events: &[Event<Op, Outcome>]) -> String {
    let line = |e: &Event<Op, Outcome>| {
        format!("{:>3} to {:>3}, thread {}: {:?} -> {:?}\n", e.call, e.back, e.thread, e.op, e.outcome)
    };
    events.iter().map(line).collect()
}

/// All that was asked.
pub struct History<Op, Outcome> {
    clock: AtomicU64,
    events: Mutex<Vec<Event<Op, Outcome>>>,
}

impl<Op: Clone, Outcome> History<Op, Outcome> {
    pub fn new() -> Arc<Self> {
        Arc::new(History { clock: AtomicU64::new(0), events: Mutex::new(Vec::new()) })
    }

    /// Makes a call and notes it. The clock and the list are no places for a switch.
    pub fn record(&self, thread: usize, op: &Op, make: impl FnOnce() -> Outcome) {
        let call = self.clock.fetch_add(1, Relaxed);
        let outcome = make();
        let back = self.clock.fetch_add(1, Relaxed);
        let event = Event { thread, call, back, op: op.clone(), outcome };
        self.events.lock().unwrap().push(event);
    }

    pub fn events(&self) -> Vec<Event<Op, Outcome>> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }
}

/// A fresh file system of 4 MiB.
pub fn disk(variant: Variant) -> (Disk, Volume) {
    let disk = Disk::new(variant, 4 << 20);
    let volume = disk.mount();
    (disk, volume)
}

/// Runs one program a thread, the first in this thread.
pub fn together<P: Send + 'static>(programs: Vec<P>, run: impl Fn(usize, P) + Send + Sync + 'static) {
    let run = Arc::new(run);
    let mut programs = programs.into_iter().enumerate();
    let first = programs.next();
    let others: Vec<_> = programs
        .map(|(n, program)| {
            let run = run.clone();
            shuttle::thread::spawn(move || run(n, program))
        })
        .collect();
    if let Some((n, program)) = first {
        run(n, program);
    }
    others.into_iter().for_each(|thread| thread.join().unwrap());
}
