//! Random programs over all calls on images that are 95 to 100 % full. The model has room for everything: a call that the engine refuses
//! for lack of space is not made there. All of both is compared after each refusal, and after each remount, as after a power cut and as
//! after an unmount by turns; fsck.f2fs looks at what each mount leaves.

use crate::common::{Image, Source, fsck_is_clean, open_as};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::testkit::{Act, Calls, Full, Random, Step, Who};
use heddle_vfs::{Cred, Error, FileSystem, Ino, Name, OpenFlags, RangeOp};
use std::time::{Duration, Instant};

/// What the model does not compare with an engine that may refuse: a copy that ends early says how far it came.
const CALLS: Calls = Calls::ALL.without(Calls::LARGE_XATTR).without(Calls::COPY).without(Calls::SEEK);

struct Program {
    full: Full<F2fs>,
    random: Random,
    seed: u64,
}

impl Program {
    fn step(&mut self, step: &Step) {
        let is = self.full.play(step);
        assert!(!self.full.engine().has_failed(), "{step:?}: it failed half-way");
        self.full.answer(step, &is);
    }

    fn remount(&mut self, image: &Image, n: usize) {
        let engine = self.full.take();
        if n.is_multiple_of(2) {
            engine.sync().unwrap()
        } else {
            engine.unmount().unwrap()
        }
        drop(engine);
        fsck_is_clean(&image.path);
        // After an unmount as another system: a program is three of the four, and two programs are all.
        let engine = open_as(&image.path, system(self.seed, n.div_ceil(2))).unwrap();
        self.full.put(engine, &format!("after remount {n}"));
    }

    /// On files that stand inline, where some do.
    fn inline(&mut self, round: u64) {
        for (n, path) in ["inline", "inline2", "dir/inline"].into_iter().enumerate() {
            let open = Act::Open { path: path.into(), flags: OpenFlags::READ_WRITE };
            self.step(&Step { who: Who::Root, act: open });
            let at = (self.seed + round * 37) % 300;
            let act = match (self.seed + round + n as u64) % 4 {
                0 => Act::Truncate { path: path.into(), size_bytes: at },
                1 => Act::Write { file: usize::MAX, offset: at, len: 3, fill: 7 },
                2 => Act::Fallocate { file: usize::MAX, op: RangeOp::Punch, offset: at, len_bytes: 50 },
                _ => Act::Append { file: usize::MAX, len: 5, fill: 8 },
            };
            self.step(&Step { who: Who::Root, act });
        }
    }
}

/// The system of a program after so many unmounts.
fn system(seed: u64, unmounts: usize) -> Variant {
    Variant::ALL[((seed + seed / 4) as usize + unmounts) % 4]
}

/// Takes all blocks but some `left`: reserved ones behind the end of a file, or, `written`, with bytes.
fn fill(full: &Full<F2fs>, left: u64, written: bool) {
    let (engine, model, root) = (full.engine(), full.model(), Cred::root());
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
    let engine = open_as(&image.path, system(seed, 0)).unwrap();
    let full = Full::new(engine);
    let stat = full.engine().statfs().unwrap();
    let begin = [stat.inodes_free, stat.blocks_free];
    source.make_in(full.model());
    if seed.is_multiple_of(2) {
        source.make_in(full.engine());
    }
    let mut program = Program { full, random: Random::new(seed), seed };
    for round in 0..count {
        let left = [0, 3, 60, 0, 600][(seed as usize + round) % 5];
        fill(&program.full, left, seed.is_multiple_of(3));
        for step in program.random.steps(CALLS, 60) {
            program.step(&step);
        }
        program.inline(round as u64);
        program.remount(&image, round + 1);
    }
    for step in program.full.removals(&mut program.random) {
        program.step(&step);
    }
    program.full.trees_agree("emptied");
    program.remount(&image, 1);
    let stat = program.full.engine().statfs().unwrap();
    // Where it was made empty, and by us: as much is free as then.
    if seed.is_multiple_of(2) {
        assert_eq!(
            [stat.inodes_free, stat.blocks_free],
            begin,
            "program {seed}: inodes and blocks that are free"
        );
    }
    let engine = program.full.take();
    engine.unmount().unwrap();
    drop(engine);
    fsck_is_clean(&image.path);
    println!("program {seed}: refused {:?}", program.full.refused);
    program.full.refused.values().sum()
}

#[test]
fn a_refused_call_on_a_full_image_has_changed_nothing() {
    if !Image::has_tools() {
        return;
    }
    let seconds = std::env::var("HEDDLE_FULL_SECONDS").map_or(8, |text| text.parse().unwrap());
    let first = std::env::var("HEDDLE_FULL_SEED").map_or(1, |text| text.parse().unwrap());
    let source = Source::of_inline_files();
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut programs, mut refused) = (0, 0);
    for seed in first.. {
        println!("program {seed}: HEDDLE_FULL_SEED={seed}");
        refused += program(seed, &source, 4);
        programs += 1;
        if Instant::now() > end && programs >= 2 {
            break;
        }
    }
    println!("{programs} programs, {refused} calls refused");
    assert!(refused > 0, "no image was full");
}
