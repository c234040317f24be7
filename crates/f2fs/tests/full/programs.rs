//! Random programs over all calls on images that are 95 to 100 % full. The model has room for everything: a call that the engine refuses
//! for lack of space is not made there. All of both is compared after each refusal, and after each remount, as behind a power cut and as
//! behind an unmount by turns; fsck.f2fs looks at what each mount leaves.

use crate::common::{Image, Source, fsck_is_clean, open_as};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::model::ModelFs;
use heddle_vfs::testkit::{Act, Calls, OpenFiles, Outcome, Step, Tree, Who, play, steps};
use heddle_vfs::{Cred, Error, FileSystem, Ino, Name, OpenFlags, RangeOp, SetAttr, Time};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::time::{Duration, Instant};

/// What the model does not compare with an engine that may refuse: a copy that ends early says how far it came.
const CALLS: Calls = Calls::ALL.without(Calls::LARGE_XATTR).without(Calls::COPY).without(Calls::SEEK);

struct Pair {
    engine: Option<F2fs>,
    engine_files: OpenFiles,
    model: ModelFs,
    model_files: OpenFiles,
    refused: u64,
}

impl Pair {
    fn engine(&self) -> &F2fs {
        self.engine.as_ref().expect("it came back")
    }

    fn step(&mut self, step: &Step) {
        let engine = self.engine.as_ref().expect("it came back");
        let is = play(engine, &mut self.engine_files, step);
        if is == Outcome::Failed(libc::ENOSPC) {
            self.refused += 1;
            // What was refused has changed nothing: the model does not make the call.
            self.trees_agree(&format!("{step:?} was refused"));
            return;
        }
        let wanted = play(&self.model, &mut self.model_files, step);
        assert_eq!(is, wanted, "{step:?}");
        assert!(!engine.has_failed(), "{step:?}: it failed half-way");
    }

    fn trees_agree(&self, when: &str) {
        let is = Tree::of(self.engine()).unwrap_or_else(|error| panic!("{when}: {error}"));
        let wanted = Tree::of(&self.model).unwrap();
        if let Some(difference) = is.difference(&wanted) {
            panic!("{when}: {difference}");
        }
    }

    fn remount(&mut self, image: &Image, n: usize) {
        let engine = self.engine.take().expect("it came back");
        self.engine_files.close_all(&engine);
        self.model_files.close_all(&self.model);
        if n.is_multiple_of(2) {
            engine.sync().unwrap()
        } else {
            engine.unmount().unwrap()
        }
        let variant = if n.is_multiple_of(2) { n } else { n + 1 };
        drop(engine);
        fsck_is_clean(&image.path);
        self.engine = Some(open_as(&image.path, Variant::ALL[variant / 2 % 4]).unwrap());
        self.trees_agree(&format!("after remount {n}"));
    }
}

/// Takes all blocks but some `left`: reserved ones behind the end of a file, or, `written`, with bytes.
fn fill(pair: &Pair, left: u64, written: bool) {
    let (engine, model, root) = (pair.engine(), &pair.model, Cred::root());
    let name = Name::new(b"ballast").unwrap();
    let open = |fs: &dyn FileSystem| match fs.lookup(&root, Ino::ROOT, name) {
        Ok(attr) => fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap(),
        Err(_) => fs.create(&root, Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).unwrap().1,
    };
    let handles = (open(engine), open(model));
    let free = || engine.statfs().unwrap().blocks_free.saturating_sub(left);
    while written && free() > 64 {
        let piece = [7; 64 * 4096];
        if engine.append(&handles.0, &piece) == Err(Error::NoSpace) {
            break;
        }
        model.append(&handles.1, &piece).unwrap();
    }
    let mut pages = free();
    while pages > 0 {
        // Behind what it has; nodes come on top.
        let from = engine.getattr(handles.0.ino).unwrap().blocks_512 / 8 * 4096 + (64 << 20);
        match engine.fallocate(&handles.0, RangeOp::Allocate { keep_size: true }, from, pages * 4096) {
            Ok(()) => pages = free().min(1),
            Err(Error::NoSpace) => pages = pages * 99 / 100,
            Err(error) => panic!("{error}"),
        }
    }
    engine.release(handles.0);
    model.release(handles.1);
}

/// One program: an image, filled as `seed` says, and so many steps.
fn program(seed: u64, source: &Source, count: usize) -> u64 {
    // By turns one of our own, and one that f2fs-tools made, with content and entries inline.
    let image = if seed.is_multiple_of(2) {
        Image::made(64)
    } else {
        match Image::sized_of(source, 64, &[]) {
            Some(image) => image,
            None => return 0,
        }
    };
    let engine = open_as(&image.path, Variant::ALL[seed as usize / 2 % 4]).unwrap();
    let model = ModelFs::with_clock(|| Time::from_parts(1_000_000_000, 0));
    let owner = SetAttr { uid: Some(0), gid: Some(0), perm: Some(0o755), ..SetAttr::default() };
    engine.setattr(&Cred::root(), Ino::ROOT, None, &owner).unwrap();
    source.make_in(&model);
    let mut pair = Pair {
        engine: Some(engine),
        engine_files: OpenFiles::default(),
        model,
        model_files: OpenFiles::default(),
        refused: 0,
    };
    if seed.is_multiple_of(2) {
        source.make_in(pair.engine());
    }
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let all = steps(CALLS, 60, false);
    let mut remounts = 0;
    for round in 0..count {
        fill(&pair, [0, 3, 60, 0, 600][(seed as usize + round) % 5], seed.is_multiple_of(3));
        for step in all.new_tree(&mut runner).unwrap().current() {
            pair.step(&step);
        }
        // On files that stand inline, where some do.
        for (n, path) in ["inline", "inline2", "dir/inline"].into_iter().enumerate() {
            pair.step(&Step {
                who: Who::Root,
                act: Act::Open { path: path.into(), flags: OpenFlags::READ_WRITE },
            });
            let at = (seed + round as u64 * 37) % 300;
            let act = match (seed as usize + round + n) % 4 {
                0 => Act::Truncate { path: path.into(), size_bytes: at },
                1 => Act::Write { file: usize::MAX, offset: at, len: 3, fill: 7 },
                2 => Act::Fallocate { file: usize::MAX, op: RangeOp::Punch, offset: at, len_bytes: 50 },
                _ => Act::Append { file: usize::MAX, len: 5, fill: 8 },
            };
            pair.step(&Step { who: Who::Root, act });
        }
        remounts += 1;
        pair.remount(&image, remounts);
    }
    // It can be emptied.
    let engine = pair.engine.take().expect("it came back");
    pair.engine_files.close_all(&engine);
    empty(&engine, Ino::ROOT);
    engine.unmount().unwrap();
    drop(engine);
    fsck_is_clean(&image.path);
    pair.refused
}

fn empty(fs: &F2fs, dir: Ino) {
    let root = Cred::root();
    let handle = fs.open(&root, dir, OpenFlags::READ).unwrap();
    let mut names = Vec::new();
    fs.each_entry(&handle, Default::default(), &mut |entry| {
        names.push((entry.name.bytes().to_vec(), entry.ino, entry.kind));
        true
    })
    .unwrap();
    fs.release(handle);
    for (name, ino, kind) in names {
        let name = Name::new(&name).unwrap();
        if kind == heddle_vfs::FileKind::Directory {
            empty(fs, ino);
            fs.rmdir(&root, dir, name).unwrap();
        } else {
            fs.unlink(&root, dir, name).unwrap();
        }
    }
}

#[test]
fn a_refused_call_on_a_full_image_has_changed_nothing() {
    if !Image::has_tools() {
        return;
    }
    let seconds = std::env::var("HEDDLE_F2FS_FULL_SECONDS").map_or(8, |text| text.parse().unwrap());
    let first = std::env::var("HEDDLE_F2FS_FULL_SEED").map_or(1, |text| text.parse().unwrap());
    let source = Source::of_inline_files();
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut programs, mut refused) = (0, 0);
    for seed in first.. {
        println!("program {seed}: HEDDLE_F2FS_FULL_SEED={seed}");
        refused += program(seed, &source, 4);
        programs += 1;
        if Instant::now() > end && programs >= 2 {
            break;
        }
    }
    println!("{programs} programs, {refused} calls refused");
    assert!(refused > 0, "no image was full");
}
