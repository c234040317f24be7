//! Random calls to an engine and to the model, compared one by one.

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use super::{Act, Calls, OpenFiles, Outcome, Step, Tree, play, random_steps};
use crate::model::ModelFs;
use crate::{Cred, FileKind, FileSystem, Handle, OpenFlags, SeekTarget, Time};

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Differential {
    /// Calls that are made.
    pub calls: Calls,
    /// Sequences of calls, each on a fresh file system.
    pub cases: u32,
    /// Longest sequence.
    pub steps_max: usize,
}

impl Default for Differential {
    fn default() -> Self {
        Differential { calls: Calls::ALL, cases: 200, steps_max: 80 }
    }
}

/// Compares the engine that `make` makes with the model: each result, and after a remount and at the end all names,
/// attributes and contents. `remount` takes an engine whose files are all closed down and brings it up again.
///
/// # Panics
/// With the shortest sequence found that shows a difference.
pub fn agrees_with_model<E: FileSystem>(
    how: Differential,
    make: impl Fn() -> E,
    remount: Option<&dyn Fn(E) -> E>,
) {
    let config =
        Config { cases: how.cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let strategy = random_steps(how.calls, how.steps_max, remount.is_some());
    let result = TestRunner::new(config)
        .run(&strategy, |steps| compare(make(), &steps, remount).map_err(TestCaseError::fail));
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, steps)) => {
            let list: Vec<String> = steps.iter().enumerate().map(|(i, s)| format!("{i:4} {s:?}")).collect();
            panic!("the engine and the model differ: {reason}\nafter:\n{}", list.join("\n"));
        }
        Err(TestError::Abort(reason)) => panic!("no verdict: {reason}"),
    }
}

struct Pair<E> {
    engine: Option<E>,
    engine_files: OpenFiles,
    model: ModelFs,
    model_files: OpenFiles,
}

fn compare<E: FileSystem>(engine: E, steps: &[Step], remount: Option<&dyn Fn(E) -> E>) -> Result<(), String> {
    // A clock that gives no time a step could set: see `time_if_set_by_test`.
    let model = ModelFs::with_clock(|| Time::from_parts(1_000_000_000, 0));
    let mut pair = Pair {
        engine: Some(engine),
        engine_files: OpenFiles::default(),
        model,
        model_files: OpenFiles::default(),
    };
    for (at, step) in steps.iter().enumerate() {
        pair.step(step, remount).map_err(|text| format!("step {at}: {text}"))?;
    }
    pair.trees_agree()?;
    let Pair { engine, mut engine_files, .. } = pair;
    if let Some(engine) = engine {
        engine_files.close_all(&engine);
    }
    Ok(())
}

impl<E: FileSystem> Pair<E> {
    fn step(&mut self, step: &Step, remount: Option<&dyn Fn(E) -> E>) -> Result<(), String> {
        let engine = self.engine.as_ref().ok_or("the engine did not come back")?;
        let is = play(engine, &mut self.engine_files, step);
        let wanted = play(&self.model, &mut self.model_files, step);
        match (&step.act, remount) {
            (Act::Seek { file, target, offset }, _) => match self.model_files.get(*file) {
                Some(handle) => seek_is_right(&self.model, handle, *target, *offset, &is),
                None => Ok(()),
            },
            (Act::Remount, Some(remount)) => {
                self.engine = self.engine.take().map(remount);
                self.trees_agree()
            }
            _ if is == wanted => Ok(()),
            _ => Err(format!("{step:?}\n  gave {}\n  want {}", shown(&is), shown(&wanted))),
        }
    }

    fn trees_agree(&self) -> Result<(), String> {
        let engine = self.engine.as_ref().ok_or("the engine did not come back")?;
        let is = Tree::of(engine).map_err(|error| format!("the tree cannot be read: {error}"))?;
        let wanted = Tree::of(&self.model).map_err(|error| format!("the model cannot be read: {error}"))?;
        is.difference(&wanted).map_or(Ok(()), Err)
    }
}

/// An engine may keep holes in other grains than the model, and allocated pages that were never written are holes to it: what it calls
/// a hole must be zeros, what it skips too.
pub(super) fn seek_is_right(
    model: &ModelFs,
    handle: &Handle,
    target: SeekTarget,
    offset: u64,
    is: &Outcome,
) -> Result<(), String> {
    let attr = model.getattr(handle.ino).map_err(|error| error.to_string())?;
    if attr.kind != FileKind::Regular {
        return Ok(());
    }
    let size_bytes = attr.size_bytes;
    let is_zero = |from: u64, to: u64| {
        let mut bytes = vec![0; to.saturating_sub(from) as usize];
        let reader =
            model.open(&Cred::root(), handle.ino, OpenFlags::READ).map_err(|error| error.to_string())?;
        let read = model.read(&reader, from, &mut bytes);
        model.release(reader);
        read.map_err(|error| error.to_string())?;
        Ok::<bool, String>(bytes.iter().all(|b| *b == 0))
    };
    let right = match (target, is) {
        (_, Outcome::Failed(libc::ENXIO)) if offset >= size_bytes => true,
        (SeekTarget::Data, Outcome::Failed(libc::ENXIO)) => is_zero(offset, size_bytes)?,
        (SeekTarget::Data, Outcome::Number(at)) => (offset..size_bytes).contains(at) && is_zero(offset, *at)?,
        (SeekTarget::Hole, Outcome::Number(at)) if *at == size_bytes => offset < size_bytes,
        (SeekTarget::Hole, Outcome::Number(at)) => (offset..size_bytes).contains(at) && is_zero(*at, at + 1)?,
        _ => model.seek(handle, target, offset).is_err_and(|error| *is == Outcome::Failed(error.errno())),
    };
    if right {
        Ok(())
    } else {
        Err(format!("seek {target:?} from {offset} of {size_bytes} bytes gave {}", shown(is)))
    }
}

/// Outcomes with long contents cut short.
fn shown(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Bytes(bytes) if bytes.len() > 32 => {
            let zeros = bytes.iter().take_while(|b| **b == 0).count();
            format!(
                "{} bytes, {zeros} zeros first, then {:?}…",
                bytes.len(),
                &bytes[zeros..bytes.len().min(zeros + 16)]
            )
        }
        Outcome::Failed(errno) => format!("{}", std::io::Error::from_raw_os_error(*errno)),
        other => format!("{other:?}"),
    }
}
