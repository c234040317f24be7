//! Runs a workload and cuts the power.
//!
//! The workload runs on a simulated region and on the model. At every fence of a watched step, and when the
//! step returns, a [`Cut`] is taken. (If processes die and memory stays, a cut stands for all moments since
//! the one before, and the return is a fence too.) Once the step has returned and its result is known, the
//! images of its cuts are formed and checked. Each must hold what the model held before or after the step; an
//! image taken after the return must hold the latter.

use crate::coverage::{Coverage, Part};
use crate::cut::{Bounds, Choice, Cut, Looked, Random, choice_text, explore, read_choice};
use crate::judge::{Allowed, Judge, mounted};
use crate::op::{Op, Step, Workload};
use crate::play::Player;
use heddle_nvmfs::{NvmFs, Variant, Volume, format_region, look_first_at};
use heddle_pmem::{CrashPoint, Model, Pos, Region, Simulator};
use heddle_vfs::model::ModelFs;
use heddle_vfs::tree::Tree;
use heddle_vfs::{Cred, Error, FileSystem, Ino, SetAttr, Time};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Size of an image in bytes, unless a workload wants more: the smallest possible file system.
pub const IMAGE_BYTES: u64 = 4 << 20;
/// A run ends after so many findings: further ones repeat the same.
const FAILURES_MAX: usize = 20;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The system under test.
    pub variant: Variant,
    /// Effects of a power cut on stores that no fence covers.
    pub model: Model,
    /// Limits on images per cut.
    pub bounds: Bounds,
    /// Only this image of this cut.
    pub only: Option<Only>,
}

/// One image, as a report names it so that it can be made again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Only {
    /// Watched step, from 0.
    pub step: usize,
    /// Fence of the step, from 1; 0 after its return.
    pub fence: u64,
    /// The stores that arrived, as in [`choice_text`].
    pub arrived: String,
}

impl Config {
    /// A thorough run of one workload.
    pub fn new(variant: Variant) -> Config {
        let bounds = Bounds { ordered: 1 << 10, random: 64, seed: 1 };
        Config { variant, model: Model::Ordered, bounds, only: None }
    }
}

/// An image that breaks a promise, or a call whose result differs from the model's.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The workload's name.
    pub workload: String,
    /// The system.
    pub variant: Variant,
    /// Watched step, from 0, and its text.
    pub step: usize,
    /// The step's text.
    pub op: String,
    /// The call had returned.
    pub returned: bool,
    /// Fence of the step, from 1; 0 after its return. `None` if no power was cut.
    pub fence: Option<u64>,
    /// The pending stores that arrived.
    pub arrived: String,
    /// The broken promise.
    pub text: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Failure { workload, step, op, text, .. } = self;
        write!(f, "{}, workload \"{workload}\", ", self.variant.name())?;
        match (self.fence, self.returned) {
            (None, _) => write!(f, "without any power cut, step {} ({op}): {text}", step + 1),
            (Some(_), true) => {
                write!(f, "power cut after step {} ({op}), stores {}: {text}", step + 1, self.arrived)
            }
            (Some(fence), false) => {
                write!(
                    f,
                    "power cut in step {} ({op}) at fence {fence}, stores {}: {text}",
                    step + 1,
                    self.arrived
                )
            }
        }
    }
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of power cuts.
    pub cuts: u64,
    /// Number of different images formed.
    pub states: u64,
    /// Number of images checked; each other state behaves as one of these. One that equals an earlier one is not mounted again.
    pub images: u64,
    /// Number of recoveries that were cut.
    pub nested: u64,
    /// The findings.
    pub failures: Vec<Failure>,
    /// The coverage.
    pub coverage: Coverage,
}

impl Report {
    /// Adds the results of another run.
    pub fn add(&mut self, other: Report) {
        self.cuts += other.cuts;
        self.states += other.states;
        self.images += other.images;
        self.nested += other.nested;
        self.failures.extend(other.failures);
        self.coverage.add(other.coverage);
    }
}

/// A checked image, for an observer.
pub struct Judged<'a> {
    /// Watched steps that had returned.
    pub returned: usize,
    /// The step that was running, from 0.
    pub running: Option<usize>,
    /// Fence of that step, from 1; 0 after its return.
    pub fence: u64,
    /// The pending stores that arrived.
    pub choice: &'a Choice,
    /// The memory as the program saw it.
    pub memory: &'a [u8],
    /// The words in which the image differs from it.
    pub words: &'a [(Pos, u64)],
    /// The broken promise, if any.
    pub failure: Option<&'a str>,
}

/// Observes each returned step and each checked image.
pub trait Observer {
    /// Called when a watched step has returned.
    fn returned(&mut self, _step: usize, _result: &Result<(), Error>) {}
    /// Called when an image was checked.
    fn judged(&mut self, _image: &Judged<'_>) {}
}

/// An observer that does nothing.
pub struct Nobody;

impl Observer for Nobody {}

/// A run that could not start.
#[derive(Clone, Debug)]
pub struct CannotRun(pub String);

impl std::fmt::Display for CannotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CannotRun {}

/// Runs a workload.
///
/// # Errors
/// [`CannotRun`]: the image cannot be made.
pub fn run(workload: &Workload, config: &Config, observer: &mut dyn Observer) -> Result<Report, CannotRun> {
    let len_bytes = workload.image_bytes.max(IMAGE_BYTES) & !4095;
    look_first_at(first_lane(config.bounds.seed, 0));
    let (region, simulator) = Region::simulated(len_bytes);
    simulator.set_model(config.model);
    let text = |e: &dyn std::fmt::Display| CannotRun(e.to_string());
    format_region(&region, config.variant).map_err(|e| text(&e))?;
    let again = region.map_again().map_err(|e| text(&e))?;
    let volume = mounted(region, workload.logs).map_err(|e| text(&e))?;
    let mut run = Run {
        workload,
        config,
        observer,
        simulator,
        region: again,
        volume: Some(volume),
        judge: Judge::new(len_bytes, config.model, workload.logs),
        report: Report::default(),
        cuts: 0,
        number: 0,
    };
    let model = model_like(&run.fs()?);
    run.all(&model);
    run.simulator.stop_watching();
    if let Some(volume) = run.volume.take() {
        volume.abandon();
    }
    run.report.nested = run.judge.nested;
    run.report.coverage.add_sites(&run.simulator);
    run.report.coverage.add(std::mem::take(&mut run.judge.coverage));
    Ok(run.report)
}

/// The lane at which a thread of the workload starts its search. Blocks of a lane have a place of their own,
/// so a run is repeatable only if its lanes are; different seeds try different places.
pub(crate) fn first_lane(seed: u64, thread: u32) -> u32 {
    (Random::new(seed).number() as u32).wrapping_add(thread)
}

/// A model whose root is the engine's.
pub fn model_like(engine: &NvmFs) -> ModelFs {
    let model = ModelFs::with_clock(|| Time::from_parts(1_000_000_000, 0));
    if let Ok(top) = engine.getattr(Ino::ROOT) {
        let owner = SetAttr { uid: Some(top.uid), gid: Some(top.gid), ..SetAttr::default() };
        let _set = model.setattr(&Cred::root(), Ino::ROOT, None, &owner);
    }
    model
}

struct Run<'a> {
    workload: &'a Workload,
    config: &'a Config,
    observer: &'a mut dyn Observer,
    simulator: Simulator,
    region: Region,
    volume: Option<Volume>,
    judge: Judge,
    report: Report,
    cuts: u64,
    number: usize,
}

/// The engine did not exist any more.
const GONE: &str = "a remount failed before";

impl Run<'_> {
    fn fs(&self) -> Result<NvmFs, CannotRun> {
        self.volume.as_ref().map(Volume::fs).ok_or_else(|| CannotRun(GONE.into()))
    }

    fn all(&mut self, model: &ModelFs) {
        let (setup, watched) = (&self.workload.setup, &self.workload.watched);
        let steps: Vec<&Step> = setup.iter().chain(watched).collect();
        // A remount ends all descriptors and their engine, so the steps between two remounts have their own
        // players.
        let mut first = 0;
        let mut model_player = Player::new(model);
        while first < steps.len() && self.report.failures.is_empty() {
            let end = (first..steps.len()).find(|i| steps[*i].op == Op::Remount).unwrap_or(steps.len());
            if let Ok(fs) = self.fs() {
                let part = &steps[first..end];
                let coverage = Mutex::new(Coverage::default());
                on_threads(&fs, self.config.bounds.seed, part, (setup.len(), &coverage), |play| {
                    part.iter().all(|step| self.one(step, &mut model_player, model, play))
                });
                self.report.coverage.add(coverage.into_inner().unwrap_or_else(PoisonError::into_inner));
            }
            if end < steps.len() && self.report.failures.is_empty() {
                model_player.close_all();
                let watched = self.number >= setup.len();
                self.remount(watched, model);
                self.number += 1;
            }
            first = end + 1;
        }
        model_player.close_all();
    }

    /// Runs one step on both sides. Returns false to end the run.
    fn one(
        &mut self,
        step: &Step,
        model_player: &mut Player<'_>,
        model: &ModelFs,
        play: PlayOne<'_>,
    ) -> bool {
        let number = self.number + 1;
        let watched = self.number.checked_sub(self.workload.setup.len());
        self.number += 1;
        let before = watched.map(|_| tree_of(model));
        let cuts = watched.map(|at| self.watch(at));
        let is = play(number, step);
        self.returned();
        self.simulator.stop_watching();
        let should = match &is {
            // The model never runs out of space.
            Err(Error::NoSpace | Error::NoInodes | Error::NoMemory) => is.clone(),
            _ => model_player.play(number, &step.op),
        };
        if is.as_ref().map_err(Error::errno) != should.as_ref().map_err(Error::errno) {
            let text = format!("it gave {}, should give {}", shown(&is), shown(&should));
            self.fail(watched.unwrap_or(0), step, None, false, "none".into(), text);
            return false;
        }
        let (Some(at), Some(before), Some(cuts)) = (watched, before, cuts) else { return true };
        self.observer.returned(at, &is);
        let point = self.simulator.crash_point();
        self.judge_step(at, step, cuts, point, before, tree_of(model));
        self.report.failures.len() < FAILURES_MAX
    }

    fn remount(&mut self, watched: bool, model: &ModelFs) {
        let step = Step { op: Op::Remount, thread: 0, line: 0 };
        let at = self.number.saturating_sub(self.workload.setup.len());
        let cuts = watched.then(|| self.watch(at));
        if let Some(volume) = self.volume.take() {
            volume.unmount();
        }
        let mounted = self
            .region
            .map_again()
            .map_err(|e| e.to_string())
            .and_then(|region| mounted(region, self.workload.logs).map_err(|e| e.to_string()));
        self.report.coverage.add_thread(if watched { Part::All } else { Part::Nothing });
        self.returned();
        self.simulator.stop_watching();
        match mounted {
            Ok(volume) => self.volume = Some(volume),
            Err(text) => return self.fail(at, &step, None, false, "none".into(), text),
        }
        if let Some(cuts) = cuts {
            self.observer.returned(at, &Ok(()));
            let point = self.simulator.crash_point();
            let tree = tree_of(model);
            self.judge_step(at, &step, cuts, point, tree.clone(), tree);
        }
    }

    /// Records that a call has returned. If processes die and memory stays, its stores are there with or
    /// without a fence. A fence on its behalf takes the last cut inside the call, and leaves no store
    /// pending.
    fn returned(&self) {
        if self.config.model == Model::Process {
            // PERSIST: for the simulated machine only; see above.
            self.region.fence();
        }
    }

    fn watch(&mut self, step: usize) -> Cuts {
        let cuts = Cuts::default();
        let (list, mut fence) = (cuts.clone(), 0);
        self.simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            fence += 1;
            let cut = Cut { step, returned: false, fence, point: point.clone().into_owned(), id: 0 };
            list.lock().unwrap_or_else(PoisonError::into_inner).push(cut);
        }));
        cuts
    }

    fn judge_step(
        &mut self,
        at: usize,
        step: &Step,
        cuts: Cuts,
        point: CrashPoint<'static>,
        before: Arc<Tree>,
        after: Arc<Tree>,
    ) {
        let mut cuts = std::mem::take(&mut *cuts.lock().unwrap_or_else(PoisonError::into_inner));
        cuts.push(Cut { step: at, returned: true, fence: 0, point, id: 0 });
        let same = before == after;
        let both = [before, after];
        for mut cut in cuts {
            self.cuts += 1;
            cut.id = self.cuts;
            let trees = if cut.returned || same { &both[1..] } else { &both[..] };
            // The allowed trees are the same for all cuts of a step before its return; a step that changes
            // nothing is like a return.
            let allowed = Allowed { trees, id: at as u64 * 2 + u64::from(cut.returned || same) };
            self.judge_cut(&cut, step, &allowed);
            self.report.cuts += 1;
        }
    }

    fn judge_cut(&mut self, cut: &Cut, step: &Step, allowed: &Allowed<'_>) {
        let mut bounds = self.config.bounds;
        let mut wanted = None;
        if let Some(only) = &self.config.only {
            if (only.step, only.fence) != (cut.step, cut.fence) {
                return;
            }
            match read_choice(&only.arrived, cut.point.pending_units()) {
                Ok(choice) => wanted = Some(choice),
                Err(text) => return self.fail(cut.step, step, None, false, only.arrived.clone(), text),
            }
            bounds = Bounds { ordered: 0, random: 0, ..bounds };
        }
        if let Some(choice) = wanted {
            let choice = cut.point.choose(|unit| choice[unit]);
            let words = cut.point.words(&choice);
            self.report.states += 1;
            self.report.images += 1;
            self.judge_one(cut, step, allowed, &choice, &words);
            return;
        }
        let explored = explore(cut, bounds, &mut |choice, words| {
            let looked = self.judge_one(cut, step, allowed, choice, words);
            (self.report.failures.len() < FAILURES_MAX).then_some(looked)
        });
        self.report.states += explored.states;
        self.report.images += explored.images;
    }

    fn judge_one(
        &mut self,
        cut: &Cut,
        step: &Step,
        allowed: &Allowed<'_>,
        choice: &Choice,
        words: &[(Pos, u64)],
    ) -> Looked {
        let verdict = self.judge.judge(cut, choice, words, allowed);
        if !verdict.known {
            self.observer.judged(&Judged {
                returned: cut.step + usize::from(cut.returned),
                running: (!cut.returned).then_some(cut.step),
                fence: cut.fence,
                choice,
                memory: cut.point.memory(),
                words,
                failure: verdict.failure.as_deref(),
            });
        }
        if let Some(text) = verdict.failure {
            self.fail(cut.step, step, Some(cut.fence), cut.returned, choice_text(choice), text);
        }
        verdict.looked
    }

    fn fail(
        &mut self,
        at: usize,
        step: &Step,
        fence: Option<u64>,
        returned: bool,
        arrived: String,
        text: String,
    ) {
        self.report.failures.push(Failure {
            workload: self.workload.name.clone(),
            variant: self.config.variant,
            step: at,
            op: step.to_string(),
            returned,
            fence,
            arrived,
            text,
        });
    }
}

type Cuts = Arc<Mutex<Vec<Cut>>>;

fn tree_of(model: &ModelFs) -> Arc<Tree> {
    // The model does not fail.
    Arc::new(Tree::of(model).unwrap_or_default())
}

fn shown(result: &Result<(), Error>) -> String {
    result.as_ref().map_or_else(ToString::to_string, |()| "success".into())
}

/// Runs one step on the engine.
pub type PlayOne<'a> = &'a mut dyn FnMut(usize, &Step) -> Result<(), Error>;

/// Gives `work` a function to run steps, each on the thread that it names. Those threads, and what the engine
/// gave them, stay until `work` has ended. The coverage of steps after the first `setup` is added to
/// `coverage`.
fn on_threads<R>(
    fs: &NvmFs,
    seed: u64,
    steps: &[&Step],
    (setup, coverage): (usize, &Mutex<Coverage>),
    work: impl FnOnce(PlayOne<'_>) -> R,
) -> R {
    let player = Mutex::new(Player::new(fs));
    let play = |number: usize, op: &Op| {
        let mut coverage = coverage.lock().unwrap_or_else(PoisonError::into_inner);
        coverage.add_thread(Part::Nothing);
        let played = crate::judge::without_panic(|| {
            Ok(player.lock().unwrap_or_else(PoisonError::into_inner).play(number, op))
        })
        .unwrap_or_else(|panic| Err(Error::Io(panic)));
        coverage.add_thread(if number > setup { Part::All } else { Part::Nothing });
        played
    };
    let mut threads: Vec<u32> = steps.iter().map(|s| s.thread).filter(|t| *t != 0).collect();
    threads.sort_unstable();
    threads.dedup();
    let result = std::thread::scope(|scope| {
        let mut hands = std::collections::HashMap::new();
        for thread in threads {
            let (ask, asked) = channel::<(usize, Op, Sender<Result<(), Error>>)>();
            let play = &play;
            // The thread ends when its sender is dropped.
            scope.spawn(move || {
                look_first_at(first_lane(seed, thread));
                for (number, op, answer) in asked {
                    let _ = answer.send(play(number, &op));
                }
            });
            hands.insert(thread, ask);
        }
        work(&mut |number, step| match hands.get(&step.thread) {
            None => play(number, &step.op),
            Some(ask) => {
                let (answer, answered) = channel();
                let _ = ask.send((number, step.op.clone(), answer));
                answered.recv().unwrap_or_else(|_| Err(Error::Io("a thread of the workload ended".into())))
            }
        })
    });
    player.into_inner().unwrap_or_else(PoisonError::into_inner).close_all();
    result
}
