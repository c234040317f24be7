//! Runs a workload and cuts the power.
//!
//! The workload runs on a simulated region and, beside it, on the model. At every fence of a watched step, and when it returns, a
//! [`Cut`] is taken (where processes die and memory stays it stands for all moments since the one before, and the return is a fence
//! too); when the step has returned, and what it came to is known, the images of its cuts are formed and judged: what they hold must be
//! what the model held before or after the step; after it, once it has returned.

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

/// Bytes of an image, unless a workload wants more: the fewest a file system can have.
pub const IMAGE_BYTES: u64 = 4 << 20;
/// A run ends after so many findings: more say the same again.
const FAILURES_MAX: usize = 20;

/// How a workload is run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The system under test.
    pub variant: Variant,
    /// What a power cut may do to stores that no fence covers.
    pub model: Model,
    /// Images a cut.
    pub bounds: Bounds,
    /// This image of this cut alone.
    pub only: Option<Only>,
}

/// One image: what a report names so that it can be made again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Only {
    /// Watched step, from 0.
    pub step: usize,
    /// Fence of it, from 1; 0: after its return.
    pub fence: u64,
    /// Which stores arrived, as [`choice_text`] has it.
    pub arrived: String,
}

impl Config {
    /// A thorough run of a single workload.
    pub fn new(variant: Variant) -> Config {
        let bounds = Bounds { ordered: 1 << 10, random: 64, seed: 1 };
        Config { variant, model: Model::Ordered, bounds, only: None }
    }
}

/// An image that is not as promised, or a call that did not do what the model does.
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
    /// Fence of the step, from 1; 0 after its return. `None`: no power was cut.
    pub fence: Option<u64>,
    /// Which pending stores arrived.
    pub arrived: String,
    /// What is wrong.
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

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Moments at which the power was cut.
    pub cuts: u64,
    /// Different images that were formed.
    pub states: u64,
    /// Those that were mounted and judged; the others behave as one of these.
    pub images: u64,
    /// Recoveries that were cut themselves.
    pub nested: u64,
    /// What was found.
    pub failures: Vec<Failure>,
    /// What was met.
    pub coverage: Coverage,
}

impl Report {
    /// Adds another run's.
    pub fn add(&mut self, other: Report) {
        self.cuts += other.cuts;
        self.states += other.states;
        self.images += other.images;
        self.nested += other.nested;
        self.failures.extend(other.failures);
        self.coverage.add(other.coverage);
    }
}

/// A judged image, for who keeps them.
pub struct Judged<'a> {
    /// Watched steps that had returned.
    pub returned: usize,
    /// The one that was running, from 0.
    pub running: Option<usize>,
    /// Fence of it, from 1; 0 after its return.
    pub fence: u64,
    /// Which pending stores arrived.
    pub choice: &'a Choice,
    /// What the program saw.
    pub memory: &'a [u8],
    /// Where the image differs from that.
    pub words: &'a [(Pos, u64)],
    /// What is wrong with it.
    pub failure: Option<&'a str>,
}

/// Told of each step that returned and of each image that was judged.
pub trait Observer {
    /// A watched step returned.
    fn returned(&mut self, _step: usize, _result: &Result<(), Error>) {}
    /// An image was judged.
    fn judged(&mut self, _image: &Judged<'_>) {}
}

/// Nobody listens.
pub struct Nobody;

impl Observer for Nobody {}

/// A run that could not be made.
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

/// Where a thread of the workload looks for a lane: a lane's blocks lie at a place of their own, so that a run is the same each time
/// only if its lanes are, and different seeds try different places.
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

/// The engine was not there any more.
const GONE: &str = "a remount failed before";

impl Run<'_> {
    fn fs(&self) -> Result<NvmFs, CannotRun> {
        self.volume.as_ref().map(Volume::fs).ok_or_else(|| CannotRun(GONE.into()))
    }

    fn all(&mut self, model: &ModelFs) {
        let (setup, watched) = (&self.workload.setup, &self.workload.watched);
        let steps: Vec<&Step> = setup.iter().chain(watched).collect();
        // A remount ends all descriptors, and the engine they are of: runs between two remounts have players of their own.
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

    /// One step on both sides; false ends the run.
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
            // The model has room for ever.
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

    /// A call has returned. Where processes die and memory stays, what it stored is there, whether it fenced or not: a fence for it
    /// takes the last cut inside the call, and leaves nothing undecided.
    fn returned(&self) {
        if self.config.model == Model::Process {
            // PERSIST: of the rig's own machine; see above.
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
            // What is allowed is the same for all cuts of a step before its return; one that changes nothing is like a return.
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

/// Plays one step on the engine.
pub type PlayOne<'a> = &'a mut dyn FnMut(usize, &Step) -> Result<(), Error>;

/// Gives `work` the means to play steps, each by the thread it names. Those threads stay until `work` has ended, and what the engine
/// gave them with them.
/// Of steps behind the first `setup`, what they meet is added to `coverage`.
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
            // Ends when its sender is dropped.
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
