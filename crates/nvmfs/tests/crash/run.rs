//! Runs workloads and cuts the power.

use super::check::{Check, Expected};
use super::workloads::{Workload, workloads, workloads_of_threads};
use crate::common::options;
use heddle_nvmfs::{NvmFs, Variant, format_region, mount};
use heddle_pmem::{CrashPoint, Model, Region, Simulator};
use heddle_vfs::model::ModelFs;
use heddle_vfs::testkit::{Act, OpenFiles, Step, Tree, Who, play};
use heddle_vfs::{Cred, FileSystem, Ino, SetAttr, Time};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// Bytes of the regions: the fewest a file system can have.
pub const REGION_BYTES: u64 = 4 << 20;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Images a fence.
    pub images: usize,
    /// Which.
    pub seed: u64,
    /// What a power cut may do.
    pub model: Model,
}

/// An image a power cut could leave.
struct Cut {
    /// The call that was running, or had just returned.
    step: usize,
    returned: bool,
    fence: u64,
    image: Vec<u8>,
}

/// Runs all workloads on a variant.
///
/// # Panics
/// With the first image of each workload that is not as promised.
pub fn run(variant: Variant, effort: Effort) {
    let only = std::env::var("HEDDLE_CRASH_ONLY").ok();
    let (mut cuts, mut findings) = (0, Vec::new());
    let alone = workloads().into_iter().map(|workload| (workload, false));
    let apart = workloads_of_threads().into_iter().map(|workload| (workload, true));
    for (workload, apart) in alone.chain(apart) {
        if only.as_ref().is_none_or(|only| workload.name.contains(only.as_str())) {
            match run_one(variant, &workload, apart, effort) {
                Ok(count) => cuts += count,
                Err(finding) => findings.push(finding),
            }
        }
    }
    println!("{}: {cuts} images under {:?}", variant.name(), effort.model);
    assert!(findings.is_empty(), "{} workloads failed:\n{}", findings.len(), findings.join("\n"));
    assert!(only.is_some() || cuts > 1000, "only {cuts} images were looked at");
}

/// How many images were as promised, or what was found.
fn run_one(variant: Variant, workload: &Workload, apart: bool, effort: Effort) -> Result<u64, String> {
    let (region, simulator) = Region::simulated(REGION_BYTES);
    simulator.set_model(effort.model);
    format_region(&region, variant).unwrap();
    let volume = mount(region, &options()).unwrap();
    let fs = volume.fs();
    let mut both = Both::new(&fs);
    for act in &workload.prefix {
        both.step(variant, workload, act)?;
    }
    let expected = Expected { trees: both.clone_states(&workload.watched) };
    let check = Check { effort, expected: &expected };
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel::<Cut>(2);
        let checker = scope.spawn(move || {
            let mut cuts = 0;
            // Ends when the sender is dropped; a finding panics here, and the sender's side sees it at join.
            for cut in receive {
                let allowed = cut.step + usize::from(cut.returned)..cut.step + 2;
                if let Err(finding) = check.image(&cut.image, allowed, cuts) {
                    let act = &workload.watched[cut.step];
                    let when = if cut.returned { "after" } else { "in" };
                    return Err(format!(
                        "{}, workload \"{}\", power cut {when} call {} ({act:?}), fence {}: {finding}",
                        variant.name(),
                        workload.name,
                        cut.step,
                        cut.fence
                    ));
                }
                cuts += 1;
            }
            Ok(cuts)
        });
        let mut play = Player { variant, workload, both: &mut both };
        let watched = match apart {
            false => watch(&simulator, workload, send, effort, &mut |act| play.step(act)),
            true => in_threads(play, |step| watch(&simulator, workload, send, effort, step)),
        };
        simulator.stop_watching();
        volume.abandon();
        checker.join().unwrap().and_then(|cuts| watched.map(|()| cuts))
    })
}

/// Plays calls on the engine and the model.
struct Player<'a, 'b> {
    variant: Variant,
    workload: &'a Workload,
    both: &'a mut Both<'b>,
}

impl Player<'_, '_> {
    fn step(&mut self, act: &Act) -> Result<(), String> {
        self.both.step(self.variant, self.workload, act)
    }
}

type PlayOne<'a> = &'a mut dyn FnMut(&Act) -> Result<(), String>;

/// Plays each call in a thread of its own, one after the other; the threads end when `work` has.
fn in_threads<R>(player: Player<'_, '_>, work: impl FnOnce(PlayOne<'_>) -> R) -> R {
    let player = Mutex::new(player);
    std::thread::scope(|scope| {
        let mut stay = Vec::new();
        let mut play = |act: &Act| {
            let (done, is_done) = sync_channel(1);
            let (end, ended) = sync_channel::<()>(0);
            stay.push(end);
            let (player, act) = (&player, act.clone());
            scope.spawn(move || {
                let _ = done.send(player.lock().unwrap().step(&act));
                // Ends when the other side is dropped.
                let _ = ended.recv();
            });
            is_done.recv().unwrap_or_else(|_| Err("a call panicked".into()))
        };
        work(&mut play)
    })
}

/// Plays the watched calls and sends what power cuts would leave.
fn watch(
    simulator: &Simulator,
    workload: &Workload,
    send: SyncSender<Cut>,
    effort: Effort,
    play: PlayOne<'_>,
) -> Result<(), String> {
    let step = Arc::new(AtomicUsize::new(0));
    let mut seen = HashSet::new();
    let (at, sender, mut fence) = (step.clone(), send.clone(), 0);
    simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
        fence += 1;
        let step = at.load(SeqCst);
        for image in point.images(effort.images, effort.seed + fence) {
            if seen.insert((step, hash(&image))) {
                // The checker stops listening after its first finding.
                let _ = sender.send(Cut { step, returned: false, fence, image });
            }
        }
    }));
    for (number, act) in workload.watched.iter().enumerate() {
        step.store(number, SeqCst);
        play(act)?;
        let point = simulator.crash_point();
        for image in point.images(2, effort.seed) {
            let _ = send.send(Cut { step: number, returned: true, fence: simulator.fences(), image });
        }
    }
    Ok(())
}

fn hash(image: &[u8]) -> u64 {
    image.chunks_exact(8).fold(0, |sum: u64, word| {
        let word = u64::from_le_bytes(word.try_into().unwrap());
        (sum.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// The engine and the model, given the same calls.
struct Both<'a> {
    engine: &'a NvmFs,
    engine_files: OpenFiles,
    model: ModelFs,
    model_files: OpenFiles,
    history: Vec<Act>,
}

fn model_like(engine: &NvmFs) -> ModelFs {
    let model = ModelFs::with_clock(|| Time::from_parts(1_000_000_000, 0));
    let top = engine.getattr(Ino::ROOT).unwrap();
    let owner = SetAttr { uid: Some(top.uid), gid: Some(top.gid), ..SetAttr::default() };
    model.setattr(&Cred::root(), Ino::ROOT, None, &owner).unwrap();
    model
}

impl<'a> Both<'a> {
    fn new(engine: &'a NvmFs) -> Both<'a> {
        let (engine_files, model_files) = (OpenFiles::default(), OpenFiles::default());
        Both { engine, engine_files, model: model_like(engine), model_files, history: Vec::new() }
    }

    fn step(&mut self, variant: Variant, workload: &Workload, act: &Act) -> Result<(), String> {
        let step = Step { who: Who::Root, act: act.clone() };
        let is = play(self.engine, &mut self.engine_files, &step);
        let wanted = play(&self.model, &mut self.model_files, &step);
        self.history.push(act.clone());
        if is == wanted {
            return Ok(());
        }
        let (variant, workload) = (variant.name(), workload.name);
        Err(format!(
            "{variant}, workload \"{workload}\", without any power cut: {act:?} gave {is:?}, should give {wanted:?}"
        ))
    }

    /// What the model will hold before the first of these calls and after each.
    fn clone_states(&self, acts: &[Act]) -> Vec<Tree> {
        let (model, mut files) = (model_like(self.engine), OpenFiles::default());
        let mut play_one = |act: &Act| {
            play(&model, &mut files, &Step { who: Who::Root, act: act.clone() });
        };
        self.history.iter().for_each(&mut play_one);
        let mut trees = vec![Tree::of(&model).unwrap()];
        for act in acts {
            play_one(act);
            trees.push(Tree::of(&model).unwrap());
        }
        trees
    }
}
