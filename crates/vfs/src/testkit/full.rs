//! Programs on images that are full, beside a model that has room for everything.
//!
//! A call that the engine refuses for lack of space is not made on the model: the refusal has changed nothing. Calls that need no
//! space are never refused ([`needs_no_space`]). A crash within a call leaves the state before or after it.

use std::collections::BTreeMap;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::differential::seek_is_right;
use super::{Act, Calls, OpenFiles, Outcome, Step, Tree, Who, play, random_steps};
use crate::model::ModelFs;
use crate::{Cred, Error, FileKind, FileSystem, Ino, OpenFlags, Result, SetAttr, Time, path};

/// Numbers that a seed gives again.
pub struct Random(TestRunner);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Random {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Random(TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)))
    }

    /// One below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        (0..end).new_tree(&mut self.0).expect("a range has values").current()
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Up to so many random calls.
    pub fn steps(&mut self, calls: Calls, count_max: usize) -> Vec<Step> {
        random_steps(calls, count_max, false).new_tree(&mut self.0).expect("steps have values").current()
    }
}

/// Looks, gives back handles, or takes a name away: a full image never refuses it.
pub fn needs_no_space(act: &Act) -> bool {
    match act {
        Act::Unlink { .. } | Act::Rmdir { .. } | Act::Release { .. } | Act::Fsync { .. } => true,
        Act::Read { .. }
        | Act::Seek { .. }
        | Act::Stat { .. }
        | Act::ReadDir { .. }
        | Act::ReadLink { .. } => true,
        Act::GetXattr { .. } | Act::ListXattrs { .. } => true,
        Act::Open { flags, .. } => !flags.truncate,
        _ => false,
    }
}

/// An engine whose image may be full, and the model.
pub struct Full<E> {
    engine: Option<E>,
    engine_files: OpenFiles,
    model: ModelFs,
    model_files: OpenFiles,
    /// How often each kind of call was refused.
    pub refused: BTreeMap<String, u64>,
}

impl<E: FileSystem> Full<E> {
    /// Beside an empty model. The root directory belongs to root on both sides.
    ///
    /// # Panics
    /// If the engine cannot change its root.
    pub fn new(engine: E) -> Full<E> {
        let model = ModelFs::with_clock(|| Time::from_parts(1_000_000_000, 0));
        let owner = SetAttr { uid: Some(0), gid: Some(0), perm: Some(0o755), ..SetAttr::default() };
        engine.setattr(&Cred::root(), Ino::ROOT, None, &owner).unwrap();
        Full {
            engine: Some(engine),
            engine_files: OpenFiles::default(),
            model,
            model_files: OpenFiles::default(),
            refused: BTreeMap::new(),
        }
    }

    /// The engine.
    ///
    /// # Panics
    /// Between [`Full::take`] and [`Full::put`].
    pub fn engine(&self) -> &E {
        self.engine.as_ref().expect("it came back")
    }

    /// The model.
    pub fn model(&self) -> &ModelFs {
        &self.model
    }

    /// The times of a directory go back when its last change was a removal for which there was no block: they are not compared.
    pub fn sets_times_of_a_directory(&self, step: &Step) -> bool {
        let Act::SetTimes { path, .. } = &step.act else { return false };
        path::resolve_nofollow(&self.model, &Cred::root(), path)
            .is_ok_and(|attr| attr.kind == FileKind::Directory)
    }

    /// A call on the engine alone.
    pub fn play(&mut self, step: &Step) -> Outcome {
        play(self.engine.as_ref().expect("it came back"), &mut self.engine_files, step)
    }

    /// A call on both.
    ///
    /// # Panics
    /// If they differ.
    pub fn step(&mut self, step: &Step) {
        let is = self.play(step);
        self.answer(step, &is);
    }

    /// What a call gave on the engine is what it gives on the model, or a refusal that has changed nothing.
    ///
    /// # Panics
    /// If it is neither.
    pub fn answer(&mut self, step: &Step, is: &Outcome) {
        if self.was_refused(step, is) {
            self.trees_agree(&format!("{step:?} was refused"));
            return;
        }
        let wanted = play(&self.model, &mut self.model_files, step);
        match &step.act {
            Act::Seek { file, target, offset } => {
                let Some(handle) = self.model_files.get(*file) else { return };
                let right = seek_is_right(&self.model, handle, *target, *offset, is);
                assert_eq!(right, Ok(()), "{step:?}, the model gives {wanted:?}");
            }
            _ => assert_eq!(*is, wanted, "{step:?}"),
        }
    }

    fn was_refused(&mut self, step: &Step, is: &Outcome) -> bool {
        if *is != Outcome::Failed(libc::ENOSPC) {
            return false;
        }
        assert!(!needs_no_space(&step.act), "{step:?} was refused for want of space");
        let kind: String = format!("{:?}", step.act).chars().take_while(|c| c.is_alphanumeric()).collect();
        *self.refused.entry(kind).or_default() += 1;
        true
    }

    /// All names, attributes and contents are those of the model.
    ///
    /// # Panics
    /// With the first difference.
    pub fn trees_agree(&self, when: &str) {
        let is = Tree::of(self.engine()).unwrap_or_else(|error| panic!("{when}: {error}"));
        let wanted = Tree::of(&self.model).expect("the model does not fail");
        if let Some(difference) = is.difference(&wanted) {
            panic!("{when}: {difference}");
        }
    }

    /// Closes all files of both sides; the engine goes down.
    ///
    /// # Panics
    /// If it is down.
    pub fn take(&mut self) -> E {
        let engine = self.engine.take().expect("it came back");
        self.engine_files.close_all(&engine);
        self.model_files.close_all(&self.model);
        engine
    }

    /// As [`Full::take`], after a crash within a call. The model has not made that call, and may have to make it in [`Full::put_cut`].
    ///
    /// # Panics
    /// If it is down.
    pub fn take_cut(&mut self) -> E {
        let engine = self.engine.take().expect("it came back");
        self.engine_files.close_all(&engine);
        engine
    }

    /// The engine is up again, with all that there was.
    ///
    /// # Panics
    /// With the first difference.
    pub fn put(&mut self, engine: E, when: &str) {
        self.engine = Some(engine);
        self.trees_agree(when);
    }

    /// The engine is up again after a crash within `step`: the call has happened, or it has not. `is` is the result that the caller did not
    /// get.
    ///
    /// # Panics
    /// With the first difference.
    pub fn put_cut(&mut self, engine: E, step: &Step, is: &Outcome, when: &str) {
        let tree = Tree::of(&engine).unwrap_or_else(|error| panic!("{when}: {error}"));
        let before = Tree::of(&self.model).expect("the model does not fail");
        self.engine = Some(engine);
        let differs = tree.difference(&before);
        if differs.is_some() && !self.was_refused(step, is) {
            let wanted = play(&self.model, &mut self.model_files, step);
            assert_eq!(*is, wanted, "{step:?}");
            let after = Tree::of(&self.model).expect("the model does not fail");
            if let Some(text) = tree.difference(&after) {
                panic!(
                    "{when}: it is not what was before: {}; nor after: {text}",
                    differs.unwrap_or_default()
                );
            }
        } else if let Some(text) = differs {
            panic!("{when}, which was refused: {text}");
        }
        self.model_files.close_all(&self.model);
    }

    /// Does the same on both sides; false if there was no space for it.
    ///
    /// # Panics
    /// With any other error.
    pub fn both(&self, work: impl Fn(&dyn FileSystem) -> Result<()>) -> bool {
        match work(self.engine()) {
            Ok(()) => work(&self.model).map(|()| true).expect("the model has room"),
            Err(Error::NoSpace | Error::NoInodes) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Appends to a file, which is made if it is not there; false if there was no space.
    ///
    /// # Panics
    /// With any other error.
    pub fn append(&self, path: &str, bytes: &[u8]) -> bool {
        let root = Cred::root();
        self.both(|fs| {
            let (dir, name) = path::resolve_parent(fs, &root, path)?;
            if fs.lookup(&root, dir, name).is_err() {
                let handle = fs.create(&root, dir, name, 0o600, OpenFlags::READ_WRITE)?.1;
                fs.release(handle);
            }
            Ok(())
        }) && self.both(|fs| {
            let handle = fs.open(&root, path::resolve(fs, &root, path)?.ino, OpenFlags::READ_WRITE)?;
            let put = fs.append(&handle, bytes).map(|_| ());
            fs.release(handle);
            put
        })
    }

    /// The removals that empty it, in random order, a directory after what is in it.
    ///
    /// # Panics
    /// If the model fails.
    pub fn removals(&self, random: &mut Random) -> Vec<Step> {
        let tree = Tree::of(&self.model).expect("the model does not fail");
        let mut left: BTreeMap<Vec<u8>, FileKind> =
            tree.nodes.into_iter().map(|(path, node)| (path, node.kind)).collect();
        left.remove(&b"/"[..]);
        let mut steps = Vec::new();
        while !left.is_empty() {
            let chosen =
                left.keys().nth(random.below(left.len() as u64) as usize).cloned().unwrap_or_default();
            let below = [&chosen[..], b"/"].concat();
            let inside = left.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
            let mut paths: Vec<_> = inside.map(|(path, _)| path.clone()).collect();
            paths.insert(0, chosen);
            for path in paths.into_iter().rev() {
                let kind = left.remove(&path);
                let path = String::from_utf8(path).expect("tests give such names");
                let act = match kind {
                    Some(FileKind::Directory) => Act::Rmdir { path },
                    _ => Act::Unlink { path },
                };
                steps.push(Step { who: Who::Root, act });
            }
        }
        steps
    }
}
