//! Scenes: cases that need several threads at certain places at once.
//!
//! - `stalled_writer`, the SRL paper's argument for commit marks (pNOVA, Fig. 3): one writer stalls with its
//!   place in the log taken, and another writer of another range returns. The returned write must survive.
//! - `heads`: a writer that stalls after it has linked a block of chain heads.
//! - `recopied`: a writer of part of a page, while another writer changes the rest.
//! - [`many_lanes`]: more writers in calls than an inode's slot has room for chain heads.

#[cfg(feature = "planted")]
pub mod heads;
#[cfg(feature = "planted")]
pub mod recopied;

#[cfg(feature = "planted")]
use crate::coverage::Coverage;
use crate::cut::{Bounds, Cut, choice_text, explore};
use crate::judge::{Allowed, Judge, options};
use crate::op::{File, Logs, Op};
use crate::play::Player;
#[cfg(feature = "planted")]
use crate::reformat;
use crate::rig::{Failure, IMAGE_BYTES, model_like};
#[cfg(feature = "planted")]
use heddle_nvmfs::NvmFs;
#[cfg(feature = "planted")]
use heddle_nvmfs::planted::{Step, on_step};
use heddle_nvmfs::{Variant, format_region, mount};
use heddle_pmem::{CrashPoint, Model, Region, Simulator};
use heddle_vfs::tree::Tree;
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A scene: returns the broken promise, if any, and the coverage.
#[cfg(feature = "planted")]
pub type Scene = fn(Model) -> Result<(Option<Failure>, Coverage), String>;

/// Scenes of `heddle`; without a planted bug they find nothing.
#[cfg(feature = "planted")]
pub const SCENES: [(&str, Scene); 3] = [
    ("mkfs over another file system", |model| reformat::reformatted(Variant::Heddle, model)),
    ("a block of heads", |model| heads::head_block_linked(Variant::Heddle, model)),
    ("an edge copied anew", |model| recopied::edge_copied_anew(Variant::Heddle, model)),
];

fn open() -> Op {
    Op::Open { path: "/f".into(), name: "f".into() }
}

fn write(page: u64) -> Op {
    Op::Write { file: File::Descriptor("f".into()), offset: page * 4096, len: 4096 }
}

fn machine(model: Model) -> (Region, Simulator) {
    let (region, simulator) = Region::simulated(IMAGE_BYTES);
    simulator.set_model(model);
    (region, simulator)
}

/// Cuts the power, or lets all processes die: then memory keeps all stores.
fn cut_now(simulator: &Simulator, region: &Region, model: Model) -> CrashPoint<'static> {
    if model == Model::Process {
        // PERSIST: no store stays pending.
        region.fence();
    }
    simulator.crash_point()
}

/// The state before a scene: a file with so many records in its log.
fn before(records: usize) -> impl Iterator<Item = Op> {
    let write = Op::Write { file: File::Path("/f".into()), offset: 0, len: 12_288 };
    std::iter::once(Op::Create { path: "/f".into() }).chain(std::iter::repeat_n(write, records))
}

/// The tree after these writes, given by number and page.
#[cfg(feature = "planted")]
fn tree_after(fs: &NvmFs, records: usize, writes: &[(usize, u64)]) -> Option<Arc<Tree>> {
    let model = model_like(fs);
    let mut player = Player::new(&model);
    before(records).enumerate().try_for_each(|(i, op)| player.play(i + 1, &op)).ok()?;
    player.play(0, &open()).ok()?;
    writes.iter().try_for_each(|(number, page)| player.play(*number, &write(*page))).ok()?;
    player.close_all();
    Tree::of(&model).ok().map(Arc::new)
}

/// Returns the first image that breaks a promise. `stall`: the step in which the first writer waits until the
/// power is cut. `records`: the number of records in the file's log before, so that a stall can happen at the
/// end of a log page.
///
/// # Errors
/// The scene cannot be played.
#[cfg(feature = "planted")]
pub fn stalled_writer(
    variant: Variant,
    stall: Step,
    records: usize,
    model: Model,
) -> Result<Option<Failure>, String> {
    use std::sync::mpsc::channel;
    let (region, simulator) = machine(model);
    let again = region.map_again().map_err(|e| e.to_string())?;
    format_region(&region, variant).map_err(|e| e.to_string())?;
    let volume = mount(region, &options()).map_err(|e| e.to_string())?;
    let fs = volume.fs();
    let mut first = Player::new(&fs);
    for (i, op) in before(records).enumerate() {
        first.play(i + 1, &op).map_err(|e| format!("{op}: {e}"))?;
    }
    let (stalled, is_stalled) = channel();
    let (go_on, goes_on) = channel::<()>();
    let point = std::thread::scope(|scope| {
        let fs = &fs;
        let one = scope.spawn(move || {
            let mut player = Player::new(fs);
            let opened = player.play(0, &open());
            let (stalled, goes_on) = (Mutex::new(Some(stalled)), Mutex::new(goes_on));
            on_step(Some(Arc::new(move |step| {
                let first = stalled.lock().ok().filter(|_| step == stall).and_then(|mut s| s.take());
                let (Some(stalled), Ok(goes_on)) = (first, goes_on.lock()) else { return };
                let _ = stalled.send(());
                let _ = goes_on.recv();
            })));
            let wrote = opened.and_then(|()| player.play(3, &write(0)));
            on_step(None);
            player.close_all();
            wrote.map_err(|e| e.to_string())
        });
        is_stalled.recv().map_err(|_| "the first writer never came to that step".to_string())?;
        let mut two = Player::new(fs);
        let wrote = two.play(0, &open()).and_then(|()| two.play(4, &write(1))).map_err(|e| e.to_string());
        two.close_all();
        let point = cut_now(&simulator, &again, model);
        let _ = go_on.send(());
        one.join().map_err(|_| "the first writer panicked".to_string())??;
        wrote.map(|()| point)
    })?;
    let trees = [tree_after(&fs, records, &[(4, 1)]), tree_after(&fs, records, &[(4, 1), (3, 0)])];
    volume.abandon();
    let trees: Vec<Arc<Tree>> = trees.into_iter().flatten().collect();
    let cut = Cut { step: 0, returned: false, fence: 0, point, id: 1 };
    Ok(judge(variant, model, &cut, &trees))
}

/// Numbers of records of which one makes the next record begin a log page.
#[cfg(feature = "planted")]
pub const PAGE_ENDS: std::ops::RangeInclusive<usize> = 60..=64;

/// Returns the first image that breaks a promise, for any step in which a writer of a commit-mark log stalls.
///
/// # Errors
/// The scene cannot be played.
#[cfg(feature = "planted")]
pub fn writer_stalled_anywhere(variant: Variant, model: Model) -> Result<Option<Failure>, String> {
    let in_a_page = [Step::DataWrite, Step::Unfenced, Step::Logged, Step::Marked].map(|stall| (stall, 1));
    let at_its_end =
        PAGE_ENDS.flat_map(|records| [Step::Unfenced, Step::Marked].map(|stall| (stall, records)));
    for (stall, records) in in_a_page.into_iter().chain(at_its_end) {
        if let Some(failure) = stalled_writer(variant, stall, records, model)? {
            return Ok(Some(failure));
        }
    }
    Ok(None)
}

/// Writers of [`many_lanes`].
const WRITERS: usize = 9;

thread_local! {
    static ARRIVED: Cell<bool> = const { Cell::new(true) };
}

/// Writers that wait for each other at their first store: each then has its own chain.
#[derive(Default)]
struct Meeting {
    there: Mutex<usize>,
    all: Condvar,
}

impl Meeting {
    /// A store of the calling thread. A writer that cannot come (the papers' variants log one at a time) is
    /// not waited for long.
    fn step(&self) {
        if ARRIVED.replace(true) {
            return;
        }
        let mut there = self.there.lock().unwrap_or_else(PoisonError::into_inner);
        *there += 1;
        self.all.notify_all();
        while *there < WRITERS {
            let (back, late) = self
                .all
                .wait_timeout(there, Duration::from_millis(500))
                .unwrap_or_else(PoisonError::into_inner);
            there = back;
            if late.timed_out() {
                return;
            }
        }
    }
}

/// All write in parallel, each its own page; then one by one, the last first, the same page. All have
/// returned when the power is cut.
///
/// # Errors
/// The scene cannot be played.
pub fn many_lanes(variant: Variant, model: Model) -> Result<Option<Failure>, String> {
    let (region, simulator) = machine(model);
    let again = region.map_again().map_err(|e| e.to_string())?;
    format_region(&region, variant).map_err(|e| e.to_string())?;
    let volume = mount(region, &options()).map_err(|e| e.to_string())?;
    let fs = volume.fs();
    let mut first = Player::new(&fs);
    for (i, op) in before(1).enumerate() {
        first.play(i + 1, &op).map_err(|e| format!("{op}: {e}"))?;
    }
    // Separate pages below EOF: a writer that moves EOF would run alone.
    first
        .play(0, &Op::Truncate { file: File::Path("/f".into()), size: 100 * 4096 })
        .map_err(|e| e.to_string())?;
    let meeting = Arc::new(Meeting::default());
    let at_step = meeting.clone();
    simulator.on_step(move || at_step.step());
    let turn = (Mutex::new(WRITERS), Condvar::new());
    let wrote: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let (fs, turn) = (&fs, &turn);
        let writers: Vec<_> = (0..WRITERS)
            .map(|me| {
                scope.spawn(move || {
                    let mut player = Player::new(fs);
                    let opened = player.play(0, &open());
                    ARRIVED.set(false);
                    let own = opened.and_then(|()| player.play(10 + me, &write(20 + me as u64)));
                    ARRIVED.set(true);
                    let mut left = turn.0.lock().unwrap_or_else(PoisonError::into_inner);
                    // The turn begins when all have written their own page: the last one starts it.
                    while *left != me + 1 {
                        left = turn.1.wait(left).unwrap_or_else(PoisonError::into_inner);
                    }
                    let shared = own.and_then(|()| player.play(30 + me, &write(0)));
                    *left = me;
                    turn.1.notify_all();
                    drop(left);
                    player.close_all();
                    shared.map_err(|e| e.to_string())
                })
            })
            .collect();
        writers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err("a writer panicked".into()))).collect()
    });
    simulator.stop_stepping();
    wrote.into_iter().collect::<Result<(), String>>()?;
    let expected = model_like(&fs);
    let mut player = Player::new(&expected);
    let mut all: Vec<(usize, Op)> = before(1).enumerate().map(|(i, op)| (i + 1, op)).collect();
    all.push((0, Op::Truncate { file: File::Path("/f".into()), size: 100 * 4096 }));
    all.push((0, open()));
    all.extend((0..WRITERS).map(|me| (10 + me, write(20 + me as u64))));
    all.extend((0..WRITERS).rev().map(|me| (30 + me, write(0))));
    all.iter().try_for_each(|(number, op)| player.play(*number, op)).map_err(|e| e.to_string())?;
    player.close_all();
    let tree = Arc::new(Tree::of(&expected).map_err(|e| e.to_string())?);
    let cut = Cut { step: 0, returned: true, fence: 0, point: cut_now(&simulator, &again, model), id: 1 };
    volume.abandon();
    Ok(judge(variant, model, &cut, &[tree]))
}

fn judge(variant: Variant, model: Model, cut: &Cut, trees: &[Arc<Tree>]) -> Option<Failure> {
    let mut judge = Judge::new(IMAGE_BYTES, model, Logs::Usual);
    let mut found = None;
    let bounds = Bounds { ordered: 1 << 10, random: 16, seed: 1 };
    explore(cut, bounds, &mut |choice, words| {
        let verdict = judge.judge(cut, choice, words, &Allowed { trees, id: 1 });
        if let Some(text) = verdict.failure {
            found = Some(Failure {
                workload: "scene".into(),
                variant,
                step: 0,
                op: "writers".into(),
                returned: false,
                fence: Some(0),
                arrived: choice_text(choice),
                text,
            });
            return None;
        }
        Some(verdict.looked)
    });
    found
}
