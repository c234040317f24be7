//! Power cuts while several threads are in calls.
//!
//! A few threads work on one file and one directory. At every store, flush and fence a seed decides which
//! thread runs (`turns`). At fences the power is cut. An image must hold a durable-linearizable cut of the
//! history (`history`): all calls that had returned, and any of those that were running, each completely.
//! Their order must respect which call had returned before which began, and the results that they returned.
//!
//! Why not shuttle: this build of the engine waits on futexes in shared memory and leases its lanes to kernel
//! threads, and shuttle's scheduler does not see either. This rig sees every store to the region. Between two
//! steps threads run as the machine schedules them. So a seed repeats a run nearly, not exactly; the report
//! has the history of each finding.

mod history;
mod turns;

use crate::cut::{Bounds, Cut, Random, choice_text, explore};
use crate::judge::{Allowed, Judge, mounted, without_panic};
use crate::op::{File, Logs, Op, Step};
use crate::play::Player;
use crate::rig::{Failure, IMAGE_BYTES, Report, first_lane, model_like};
use crate::text;
use heddle_nvmfs::{NvmFs, Variant, format_region, look_first_at};
use heddle_pmem::{CrashPoint, Model, Region};
use heddle_vfs::RangeOp;
use history::{Call, Clock, History};
use std::sync::{Arc, Mutex, PoisonError};
use turns::Turns;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The system under test.
    pub variant: Variant,
    /// Effects of a power cut.
    pub model: Model,
    /// Number of threads.
    pub threads: usize,
    /// Calls per thread.
    pub calls: usize,
    /// Seed of calls, turns, fences and images.
    pub seed: u64,
    /// Most power cuts.
    pub cuts: usize,
    /// Limits on images per cut.
    pub bounds: Bounds,
}

/// A cut, and the progress of each thread.
type Taken = (Cut, Vec<history::Progress>);

const SETUP: &str = "\
create /f
write /f 0 13000
mkdir /d
create /a
create /d/b
";

/// The descriptor that each thread opens.
const OPEN: &str = "f";

/// Calls of one thread: on one shared file through its descriptor, and on names of two directories. Each is a
/// single call of the interface, so each must be atomic.
fn calls(random: &mut Random, count: usize) -> Vec<Op> {
    let names = ["/a", "/b", "/d/a", "/d/b"];
    let file = || File::Descriptor(OPEN.into());
    (0..count)
        .map(|_| {
            let path = names[random.below(4) as usize].to_string();
            let other = names[random.below(4) as usize].to_string();
            let offset = random.below(4) * 4096 + [0, 0, 100, 4000][random.below(4) as usize];
            let len = [4096, 4096, 200, 8192, 9000][random.below(5) as usize];
            match random.below(16) {
                0..=4 => Op::Write { file: file(), offset, len },
                5 | 6 => Op::Append { file: file(), len: len.min(5000) },
                7 => Op::Truncate { file: file(), size: offset },
                8 => Op::Fallocate { file: file(), mode: RangeOp::Punch, offset, len },
                9 | 10 => Op::Create { path },
                11 | 12 => Op::Unlink { path },
                13 | 14 => Op::Rename { from: path, to: other },
                _ => Op::Link { from: "/f".into(), to: path },
            }
        })
        .collect()
}

/// One run of a round: two threads, or three with fewer calls.
pub fn one(variant: Variant, model: Model, bounds: Bounds, round: u64) -> Report {
    let threads = 2 + (round % 2) as usize;
    let calls = if threads == 2 { 6 } else { 4 };
    let config = Config { variant, model, threads, calls, seed: bounds.seed, cuts: 12, bounds };
    run(&config).unwrap_or_else(|text| {
        let failure = Failure {
            workload: "threads".into(),
            variant,
            step: 0,
            op: String::new(),
            returned: false,
            fence: None,
            arrived: String::new(),
            text: format!("it cannot run: {text}"),
        };
        Report { failures: vec![failure], ..Report::default() }
    })
}

/// One run.
///
/// # Errors
/// The image cannot be made.
pub fn run(config: &Config) -> Result<Report, String> {
    let mut random = Random::new(config.seed);
    let setup = text::parse("threads", SETUP).map_err(|e| e.to_string())?.watched;
    let lists: Vec<Vec<Op>> = (0..config.threads).map(|_| calls(&mut random, config.calls)).collect();
    look_first_at(first_lane(config.seed, 0));
    let (region, simulator) = Region::simulated(IMAGE_BYTES);
    simulator.set_model(config.model);
    format_region(&region, config.variant).map_err(|e| e.to_string())?;
    let logs = if config.seed % 2 == 1 { Logs::Short } else { Logs::Usual };
    let volume = mounted(region, logs).map_err(|e| e.to_string())?;
    let fs = volume.fs();
    let mut first = Player::new(&fs);
    for (i, step) in setup.iter().enumerate() {
        first.play(i + 1, &step.op).map_err(|e| format!("{step}: {e}"))?;
    }
    let clock = Arc::new(Clock::new(config.threads));
    let turns = Arc::new(Turns::new(config.threads, random.number()));
    let cuts: Arc<Mutex<Vec<Taken>>> = Arc::default();
    let (at_step, at_fence) = (turns.clone(), clock.clone());
    simulator.on_step(move || at_step.step());
    let (list, mut fence, mut fences, most) = (cuts.clone(), 0, Random::new(random.number()), config.cuts);
    simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
        fence += 1;
        let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() < most && fences.below(2) == 0 {
            let point = point.clone().into_owned();
            list.push((Cut { step: 0, returned: false, fence, point, id: fence }, at_fence.progress()));
        }
    }));
    let calls = play_all(&fs, config.seed, &lists, &clock, &turns);
    simulator.stop_stepping();
    simulator.stop_watching();
    let mut cuts = std::mem::take(&mut *cuts.lock().unwrap_or_else(PoisonError::into_inner));
    let end = Cut { step: 0, returned: true, fence: 0, point: simulator.crash_point(), id: u64::MAX };
    cuts.push((end, clock.progress()));
    let mut report = Report::default();
    report.coverage.add_sites(&simulator);
    let history = History::explore(&calls, |model_calls| replay(&fs, &setup, model_calls));
    volume.abandon();
    judge_all(config, cuts, &history, &calls, &mut report);
    Ok(report)
}

/// Runs the lists, each in its own thread. Returns the result and the times of each call.
fn play_all(fs: &NvmFs, seed: u64, lists: &[Vec<Op>], clock: &Clock, turns: &Turns) -> Vec<Vec<Call>> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = lists
            .iter()
            .enumerate()
            .map(|(thread, list)| {
                scope.spawn(move || {
                    look_first_at(first_lane(seed, thread as u32 + 1));
                    let mut player = Player::new(fs);
                    let opened = player.play(0, &Op::Open { path: "/f".into(), name: OPEN.into() });
                    turns.enter(thread);
                    let mut done = Vec::new();
                    for (i, op) in list.iter().enumerate() {
                        let number = (thread + 1) * 40 + i;
                        let invoked = clock.invoke(thread);
                        let result = opened.clone().and_then(|()| {
                            without_panic(|| Ok(player.play(number, op)))
                                .unwrap_or_else(|p| Err(heddle_vfs::Error::Io(p)))
                        });
                        let returned = clock.returned(thread);
                        done.push(Call {
                            number,
                            op: op.clone(),
                            errno: result.err().map(|e| e.errno()),
                            invoked,
                            returned,
                        });
                    }
                    turns.leave(thread);
                    player.close_all();
                    done
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_default()).collect()
    })
}

/// The model's tree after these calls in this order. Returns `None` if one of them returns another result
/// than it did.
fn replay(fs: &NvmFs, setup: &[Step], calls: &[&Call]) -> Option<heddle_vfs::tree::Tree> {
    let model = model_like(fs);
    let mut player = Player::new(&model);
    for (i, step) in setup.iter().enumerate() {
        player.play(i + 1, &step.op).ok()?;
    }
    player.play(0, &Op::Open { path: "/f".into(), name: OPEN.into() }).ok()?;
    for call in calls {
        let errno = player.play(call.number, &call.op).err().map(|e| e.errno());
        if errno != call.errno {
            return None;
        }
    }
    player.close_all();
    heddle_vfs::tree::Tree::of(&model).ok()
}

fn judge_all(config: &Config, cuts: Vec<Taken>, history: &History, calls: &[Vec<Call>], report: &mut Report) {
    let mut judge = Judge::new(IMAGE_BYTES, config.model, Logs::Usual);
    for (cut, progress) in &cuts {
        let trees = history.allowed(progress);
        report.cuts += 1;
        if trees.is_empty() {
            let text = "no order of the calls gives what they returned".to_string();
            report.failures.push(failure(config, calls, progress, cut, "none".into(), text));
            return;
        }
        let allowed = Allowed { trees: &trees, id: cut.id };
        let mut found = None;
        let explored = explore(cut, config.bounds, &mut |choice, words| {
            let verdict = judge.judge(cut, choice, words, &allowed);
            if let Some(text) = verdict.failure {
                found = Some((choice_text(choice), text));
                return None;
            }
            Some(verdict.looked)
        });
        report.states += explored.states;
        report.images += explored.images;
        if let Some((arrived, text)) = found {
            report.failures.push(failure(config, calls, progress, cut, arrived, text));
            break;
        }
    }
    report.nested = judge.nested;
}

fn failure(
    config: &Config,
    calls: &[Vec<Call>],
    progress: &[history::Progress],
    cut: &Cut,
    arrived: String,
    text: String,
) -> Failure {
    let mut story = text;
    for (thread, (list, at)) in calls.iter().zip(progress).enumerate() {
        for (i, call) in list.iter().enumerate().take(at.invoked) {
            let state = if i < at.returned { "returned" } else { "running" };
            let (from, to) = (call.invoked, call.returned);
            story += &format!(
                "\n  thread {thread}: {} ({state}, {from} to {to}, errno {:?})",
                call.op, call.errno
            );
        }
    }
    Failure {
        workload: format!("{} threads, seed {}", config.threads, config.seed),
        variant: config.variant,
        step: 0,
        op: "several".into(),
        returned: cut.returned,
        fence: Some(cut.fence),
        arrived,
        text: story,
    }
}
