//! The rounds: an image, a daemon, trees of writers; fates; an end; and the count.

use super::fate::{Freezer, Stopped, describe, holders_of, is_dead, signal, with_children};
use super::ledger::{CROWD, Ledger, Random, WORKERS, WRITERS, now_ms};
use super::tree::{CROWDS, SHAPES_HERE, TREES, WRITERS_A_TREE, lock_of};
use super::writer::verify;
use crate::children::{Role, SharedMount, image, start_at};
use crate::common::{env, options, sound};
use heddle_vfs::FileSystem;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The mount's.
const PATIENCE_MS: u64 = 1000;
/// Longer than patience by so much no call may take.
const SLACK_MS: u64 = 5000;
/// Of an image, what is left when it is filled.
const LEFT_PERCENT: u64 = 10;
/// What writers come to use after that: their files, logs and names.
const BLOCKS_A_WORKER: u64 = 56;
/// A death leaks one operation's blocks at most (docs/processes.md).
const BLOCKS_A_DEATH: u64 = 32;

#[test]
fn the_living_are_right_whoever_is_killed_stopped_or_frozen() {
    let seconds = env("HEDDLE_LIVING_SECONDS", 8);
    let mut random = Random(env("HEDDLE_LIVING_SEED", now_ms()));
    println!("HEDDLE_LIVING_SEED={}", random.0);
    let freezers = Freezer::all();
    let (began, mut sum) = (Instant::now(), Tally::default());
    for round in 1.. {
        let lasts = Duration::from_millis(if seconds < 60 { 1500 } else { 2000 + random.below(6000) });
        let crowded = if seconds < 60 { round == 2 } else { random.below(4) == 0 };
        let tally = Round::begin(&mut random, &freezers, crowded).goes(lasts).ends();
        sum.add(&tally);
        println!("round {round}, {:?}: {tally:?}", began.elapsed());
        if began.elapsed() + lasts + Duration::from_secs(1) >= Duration::from_secs(seconds) && round >= 2 {
            break;
        }
    }
    println!("in all: {sum:?}");
    assert!(sum.killed > 0 && sum.stopped > 0 && sum.calls > 1000, "it did not do its work");
}

/// What a round has seen.
#[derive(Default, Debug)]
struct Tally {
    calls: u64,
    killed: u64,
    stopped: u64,
    daemons: u64,
    no_lane: u64,
    longest_ms: u64,
    leaked: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.calls += other.calls;
        self.killed += other.killed;
        self.stopped += other.stopped;
        self.daemons += other.daemons;
        self.no_lane += other.no_lane;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        self.leaked = self.leaked.max(other.leaked);
    }
}

/// A tree of processes, and whose stops its calls are excused for.
struct Tree {
    root: Option<Role>,
    shape: &'static str,
    /// It was killed, and did not grow again yet.
    felled: bool,
    fell: Instant,
    went_on_ms: u64,
}

struct Round<'r> {
    random: &'r mut Random,
    freezers: &'r [Freezer],
    shared: SharedMount,
    ledger: Ledger,
    daemon: Option<Role>,
    trees: Vec<Tree>,
    stopped: Option<Stopped>,
    /// When the stopped daemon goes on; 0: it runs.
    daemon_stands_until_ms: u64,
    tally: Tally,
}

impl<'r> Round<'r> {
    fn begin(random: &'r mut Random, freezers: &'r [Freezer], crowded: bool) -> Round<'r> {
        let mib = 48 + random.below(4) * 16 + if crowded { 32 } else { 0 };
        let shared = SharedMount::unmounted(mib << 20);
        let ledger = Ledger::at(shared.place());
        let mut daemon = start_at(shared.socket(), &format!("serves {PATIENCE_MS}"));
        daemon.is_ready(shared.place());
        let crowd = if crowded { CROWD * 2 } else { 0 };
        let left = (mib << 8) * LEFT_PERCENT / 100 + WORKERS * BLOCKS_A_WORKER + crowd;
        start_at(shared.socket(), &format!("fills {left}")).succeeds();
        let crowds = if crowded { CROWDS } else { 0 };
        let tree = |n: u64, random: &mut Random| {
            let shape = match n {
                0..TREES => SHAPES_HERE[random.below(SHAPES_HERE.len() as u64) as usize],
                _ => "crowd",
            };
            Tree { root: None, shape, felled: false, fell: Instant::now(), went_on_ms: now_ms() }
        };
        let trees = (0..TREES + crowds).map(|n| tree(n, random)).collect();
        Round {
            random,
            freezers,
            shared,
            ledger,
            daemon: Some(daemon),
            trees,
            stopped: None,
            daemon_stands_until_ms: 0,
            tally: Tally::default(),
        }
    }

    fn writers_of(tree: usize) -> std::ops::Range<u64> {
        let tree = tree as u64;
        if tree < TREES {
            return tree * WRITERS_A_TREE..(tree + 1) * WRITERS_A_TREE;
        }
        let each = CROWD / CROWDS;
        WORKERS + (tree - TREES) * each..WORKERS + (tree - TREES + 1) * each
    }

    /// Trees that have fallen are grown again.
    fn grow(&mut self) {
        for n in 0..self.trees.len() {
            let status = self.trees[n].root.as_mut().and_then(|root| root.0.try_wait().unwrap());
            if let Some(status) = status {
                assert!(
                    is_fine(status),
                    "tree {n} ({}) ended with {status}: its own output says why",
                    self.trees[n].shape
                );
                self.trees[n].root = None;
                self.trees[n].fell = Instant::now();
            }
            if self.trees[n].root.is_none() && self.is_gone(n) {
                self.plant(n);
            }
        }
    }

    fn is_gone(&mut self, n: usize) -> bool {
        if is_dead(&lock_of(self.shared.place(), n as u64)) {
            return true;
        }
        let fell = self.trees[n].fell.elapsed();
        // One that was forked while its parent was killed.
        let left = || holders_of(&lock_of(self.shared.place(), n as u64));
        if fell > Duration::from_secs(1) {
            left().iter().for_each(|pid| signal(*pid, libc::SIGKILL));
        }
        assert!(fell < Duration::from_secs(30), "processes of tree {n} do not die:\n{}", describe(&left()));
        false
    }

    fn plant(&mut self, n: usize) {
        Self::writers_of(n).for_each(|writer| self.ledger.call(writer).since_ms.store(0, SeqCst));
        let seed = self.random.below(1 << 40);
        let tree = &mut self.trees[n];
        tree.root = Some(start_at(self.shared.socket(), &format!("{} {n} {seed}", tree.shape)));
        tree.felled = false;
        tree.went_on_ms = now_ms();
    }

    fn goes(mut self, lasts: Duration) -> Self {
        let began = Instant::now();
        while began.elapsed() < lasts {
            self.grow();
            self.go_on(false);
            self.watch();
            self.strike();
            std::thread::sleep(Duration::from_millis(2 + self.random.below(60)));
        }
        self
    }

    fn some_tree(&mut self) -> usize {
        self.random.below(self.trees.len() as u64) as usize
    }

    /// One process of a tree.
    fn some_process(&mut self, tree: usize) -> Option<u32> {
        let all = with_children(self.trees[tree].root.as_ref()?.pid());
        Some(all[self.random.below(all.len() as u64) as usize])
    }

    fn strike(&mut self) {
        let tree = self.some_tree();
        match self.random.below(20) {
            0..=5 => self.kill(tree),
            // One, and then one that may be settling it.
            6..=8 => {
                self.kill(tree);
                std::thread::sleep(Duration::from_micros(self.random.below(15_000)));
                let other = self.some_tree();
                self.kill(other);
            }
            9 => self.fell(tree),
            10..=13 => self.stop(tree),
            14 => self.replace_daemon(),
            15 => self.stop_daemon(),
            _ => {}
        }
    }

    fn kill(&mut self, tree: usize) {
        let Some(pid) = self.some_process(tree) else { return };
        let root = self.trees[tree].root.as_ref().unwrap().pid();
        if pid == root {
            return self.fell(tree);
        }
        signal(pid, libc::SIGKILL);
        self.tally.killed += 1;
    }

    /// Kills the root, and with it all.
    fn fell(&mut self, n: usize) {
        let Some(root) = &mut self.trees[n].root else { return };
        let fallen = with_children(root.pid());
        root.0.kill().unwrap();
        self.trees[n].felled = true;
        fallen.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
        self.tally.killed += 1;
    }

    fn stop(&mut self, tree: usize) {
        if self.stopped.is_some() {
            return;
        }
        let long = self.random.below(3) == 0;
        let for_ms = if long { PATIENCE_MS + 2000 } else { 5 + self.random.below(400) };
        let freezer = (!self.freezers.is_empty() && self.random.below(2) == 0)
            .then(|| self.random.below(self.freezers.len() as u64) as usize);
        let pids = match freezer {
            Some(_) => self.trees[tree].root.as_ref().map(|root| with_children(root.pid())),
            None => self.some_process(tree).map(|pid| vec![pid]),
        };
        let Some(pids) = pids else { return };
        self.stopped = Some(Stopped::stop(tree, pids, freezer, self.freezers, for_ms));
        self.tally.stopped += 1;
    }

    fn stop_daemon(&mut self) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.daemon_stands_until_ms == 0) else { return };
        let long = self.random.below(3) == 0;
        let for_ms = if long { PATIENCE_MS + 1000 } else { 5 + self.random.below(400) };
        signal(daemon.pid(), libc::SIGSTOP);
        self.daemon_stands_until_ms = now_ms() + for_ms;
        self.tally.stopped += 1;
    }

    /// A daemon that others wait for while it stands is killed as anybody is.
    fn daemon_goes_on(&mut self, now: bool) {
        let until_ms = self.daemon_stands_until_ms;
        if until_ms != 0 && (now || now_ms() > until_ms) {
            self.daemon_stands_until_ms = 0;
            signal(self.daemon.as_ref().unwrap().pid(), libc::SIGCONT);
        }
        let status = self.daemon.as_mut().and_then(|daemon| daemon.0.try_wait().unwrap());
        if let Some(status) = status {
            assert_eq!(status.signal(), Some(libc::SIGKILL), "the daemon ended: its own output says why");
            self.replace_daemon();
        }
    }

    /// What was stopped for long enough goes on.
    fn go_on(&mut self, now: bool) {
        self.daemon_goes_on(now);
        let Some(stopped) = self.stopped.take_if(|stopped| now || stopped.is_over()) else { return };
        let root = self.trees[stopped.tree].root.as_ref().map(Role::pid);
        stopped.go_on(root, self.freezers);
        self.trees[stopped.tree].went_on_ms = now_ms();
    }

    fn replace_daemon(&mut self) {
        drop(self.daemon.take());
        self.daemon_stands_until_ms = 0;
        self.tally.daemons += 1;
        std::thread::sleep(Duration::from_millis(self.random.below(100)));
        if self.random.below(4) == 0 {
            // One that dies in the midst of taking over.
            let taker = self.taker();
            std::thread::sleep(Duration::from_micros(self.random.below(30_000)));
            drop(taker);
        }
        let mut taker = self.taker();
        taker.is_ready(self.shared.place());
        self.daemon = Some(taker);
    }

    fn taker(&self) -> Role {
        start_at(self.shared.socket(), &format!("takes-over {PATIENCE_MS}"))
    }

    /// No call takes too long.
    fn watch(&mut self) {
        let busy = threads_a_processor();
        for n in 0..self.trees.len() {
            let tree = &self.trees[n];
            let excused =
                tree.root.is_none() || self.stopped.as_ref().is_some_and(|stopped| stopped.tree == n);
            for writer in Self::writers_of(n) {
                let call = self.ledger.call(writer);
                let since = call.since_ms.load(SeqCst);
                let waits = now_ms().saturating_sub(since.max(tree.went_on_ms));
                let too_long = since != 0 && !excused && waits > PATIENCE_MS + SLACK_MS * busy;
                assert!(
                    !too_long,
                    "writer {writer} of tree {n} ({}) waits for {waits} ms\n{}",
                    tree.shape,
                    self.all()
                );
            }
        }
    }

    fn all(&self) -> String {
        let trees = self.trees.iter().enumerate().filter(|(n, _)| (*n as u64) < TREES);
        let stopped = self.stopped.as_ref().map(|stopped| stopped.tree);
        let each = trees.map(|(n, tree)| {
            let pids = tree.root.as_ref().map(|root| with_children(root.pid())).unwrap_or_default();
            format!("tree {n} ({}):\n{}", tree.shape, describe(&pids))
        });
        format!("stopped: {stopped:?}\n{}", each.collect::<Vec<_>>().join("\n"))
    }

    /// All end, or are killed; then the image must be what the ledger says.
    fn ends(mut self) -> Tally {
        self.go_on(true);
        if self.random.below(2) == 0 {
            (0..self.trees.len()).for_each(|n| self.fell(n));
        }
        self.ledger.stop(true);
        let began = Instant::now();
        while !(0..self.trees.len()).all(|n| self.has_ended(n)) {
            self.watch();
            assert!(began.elapsed() < Duration::from_secs(60), "trees do not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        (0..WRITERS).for_each(|writer| _ = self.ledger.comes_back(writer));
        let calls = (0..WRITERS).map(|writer| self.ledger.call(writer));
        for call in calls {
            self.tally.calls += call.done.load(SeqCst);
            self.tally.no_lane += call.no_lane.load(SeqCst);
            self.tally.longest_ms = self.tally.longest_ms.max(call.longest_ms.load(SeqCst));
        }
        let no_space: u64 = (0..WRITERS).map(|writer| self.ledger.call(writer).no_space.load(SeqCst)).sum();
        let live = self.looks();
        drop(self.daemon.take());
        let counted = self.recount();
        self.tally.leaked = counted.saturating_sub(live);
        assert!(
            no_space == 0,
            "{no_space} calls found no space, {live} blocks were free, a recount finds {counted}"
        );
        let may_leak = (self.tally.killed + self.tally.stopped + 1) * BLOCKS_A_DEATH;
        assert!(self.tally.leaked <= may_leak, "{live} of {counted} blocks came back after {:?}", self.tally);
        self.tally
    }

    fn has_ended(&mut self, n: usize) -> bool {
        let Some(root) = &mut self.trees[n].root else { return self.is_gone(n) };
        let Some(status) = root.0.try_wait().unwrap() else { return false };
        assert!(
            is_fine(status),
            "tree {n} ({}) ended with {status}: its own output says why",
            self.trees[n].shape
        );
        self.trees[n].root = None;
        self.trees[n].fell = Instant::now();
        false
    }

    /// What an attached process finds, when the daemon has settled the dead; blocks that can be had.
    fn looks(&self) -> u64 {
        self.shared.sweeps();
        let at = self.shared.place().join("free");
        start_at(self.shared.socket(), &format!("looks {}", at.display())).succeeds();
        std::fs::read_to_string(at).unwrap().parse().unwrap()
    }

    /// As after a crash, and again after a clean unmount: fsck, each unit, and the free blocks.
    fn recount(&self) -> u64 {
        let mut counted = 0;
        for time in ["crash", "clean"] {
            let region = image(self.shared.place());
            sound(&region).unwrap_or_else(|finding| panic!("{time}: {finding}"));
            let volume = heddle_nvmfs::mount(region, &options()).unwrap();
            verify(&volume.fs(), self.ledger).unwrap_or_else(|why| panic!("{time}: {why}"));
            counted = volume.fs().statfs().unwrap().blocks_available;
            volume.unmount();
        }
        counted
    }
}

/// It has ended, or was killed; a container says the latter as a shell does.
fn is_fine(status: ExitStatus) -> bool {
    status.success() || status.signal() == Some(libc::SIGKILL) || status.code() == Some(128 + libc::SIGKILL)
}

/// Threads that want to run, for each processor: so much longer everything takes, and it is nobody's fault.
fn threads_a_processor() -> u64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split(['.', ' ']).next().and_then(|load| load.parse::<u64>().ok()).unwrap_or(0);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    1 + load / processors
}
