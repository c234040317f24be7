//! Random programs over all calls on images that are 90 to 100 % full, each result beside the model; mounts, unmounts, kills and power
//! cuts, also within calls and mounts. At the end unlinks empty the image, and as much is free as in the beginning.
//!
//! `HEDDLE_FULL_SECONDS`: how long; `HEDDLE_FULL_SEED`: the first program; `HEDDLE_FULL_VARIANT`: of one system
//! (`cargo xtask full`).

use crate::common::{env, name, options, sound};
use heddle_nvmfs::fsck::{Code, Issue, Severity, Survey, examine, survey};
use heddle_nvmfs::{NvmFs, Variant, Volume, format_region, look_first_at, mount};
use heddle_pmem::{CrashPoint, Region, Simulator};
use heddle_vfs::testkit::{Act, Calls, Full, Outcome, Random, Step, Who};
use heddle_vfs::{Cookie, Cred, DirEntry, FileKind, FileSystem, Ino, OpenFlags, RangeOp, path};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const IMAGE_BYTES: u64 = 4 << 20;
const PAGE: usize = 4096;
const ROUNDS: u64 = 3;
const STEPS_MAX: usize = 60;

const SUPERBLOCK_COPY: Code = Code(1);

/// How an image is left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Unmounted,
    /// All stores up to some moment have arrived.
    Killed,
    /// So has what was fenced, and of the rest anything.
    PowerCut,
}

impl End {
    fn any(random: &mut Random) -> End {
        [End::Unmounted, End::Killed, End::PowerCut][random.below(3) as usize]
    }

    /// The image that this leaves at a moment.
    fn image(self, point: &CrashPoint<'_>, random: &mut Random) -> Vec<u8> {
        let pending = point.pending_units() as u64;
        match (self, random.below(3)) {
            (End::Unmounted, _) => point.full_image(),
            (End::Killed, _) => {
                let arrived = random.below(pending + 1) as usize;
                point.image(|unit| unit < arrived)
            }
            (End::PowerCut, 0) => point.durable_image(),
            (End::PowerCut, _) => point.image(|_| random.once_in(2)),
        }
    }
}

/// Memory that can lose its power, and the volume on it.
struct Machine {
    region: Region,
    simulator: Simulator,
    volume: Option<Volume>,
}

impl Machine {
    fn new(variant: Variant) -> Machine {
        let (region, simulator) = Region::simulated(IMAGE_BYTES);
        format_region(&region, variant).unwrap();
        let mut machine = Machine { region, simulator, volume: None };
        machine.mount();
        machine
    }

    fn mount(&mut self) -> NvmFs {
        let volume = mount(self.region.map_again().unwrap(), &options()).unwrap();
        let fs = volume.fs();
        self.volume = Some(volume);
        fs
    }

    /// What the image is at some moment of `work`, if it came to that moment.
    fn cut_within(&self, end: End, random: &mut Random, work: impl FnOnce()) -> Option<Vec<u8>> {
        let mut fences = random.below(12);
        let mut chance = Random::new(random.below(u64::MAX));
        let image = Arc::new(Mutex::new(None));
        let cut = image.clone();
        self.simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            if fences == 0 {
                *cut.lock().unwrap() = Some(end.image(point, &mut chance));
            }
            fences = fences.wrapping_sub(1);
        }));
        work();
        self.simulator.stop_watching();
        image.lock().unwrap().take()
    }

    /// The machine of this image.
    fn become_of(&mut self, image: &[u8]) {
        if let Some(volume) = self.volume.take() {
            volume.abandon();
        }
        (self.region, self.simulator) = Region::simulated_from(image);
        sound_after_a_cut(&self.region);
    }

    /// Leaves the image and mounts it again; that may be cut too.
    fn again(&mut self, end: End, random: &mut Random) -> NvmFs {
        match end {
            End::Unmounted => {
                let volume = self.volume.take().unwrap();
                let image = self.cut_within(End::PowerCut, random, || volume.unmount());
                sound(&self.region).unwrap_or_else(|text| panic!("after an unmount: {text}"));
                if let Some(image) = image.filter(|_| random.once_in(4)) {
                    self.become_of(&image);
                }
            }
            _ => {
                let image = end.image(&self.simulator.crash_point(), random);
                self.become_of(&image);
            }
        }
        if random.once_in(4) {
            let mut volume = None;
            let image = self.cut_within(End::PowerCut, random, || {
                volume = Some(mount(self.region.map_again().unwrap(), &options()).unwrap());
            });
            self.volume = volume;
            match image {
                Some(image) => self.become_of(&image),
                None => self.volume.take().unwrap().abandon(),
            }
        }
        self.mount()
    }
}

/// As [`sound`], where a cut may have torn one of the two superblocks while it was written: the next mount writes it again.
fn sound_after_a_cut(region: &Region) {
    let verdict = examine("test", region).unwrap();
    let torn = |issue: &Issue| issue.code == SUPERBLOCK_COPY;
    let bad = verdict.issues.iter().map(|(issue, _)| issue);
    let bad: Vec<_> = bad.filter(|issue| issue.severity() > Severity::Note && !torn(issue)).collect();
    assert!(bad.is_empty(), "after a cut fsck finds {bad:#?}");
}

/// One image from its making to its end.
struct Program {
    machine: Machine,
    full: Full<NvmFs>,
    random: Random,
    /// In the root.
    names_max: u64,
}

impl Program {
    fn new(seed: u64, variant: Variant) -> Program {
        let mut random = Random::new(seed);
        look_first_at(random.below(1000) as u32);
        let mut machine = Machine::new(variant);
        machine.volume.take().unwrap().unmount();
        let full = Full::new(machine.mount());
        Program { machine, full, random, names_max: 0 }
    }

    fn free(&self) -> u64 {
        self.full.engine().statfs().unwrap().blocks_free
    }

    fn survey(&self) -> Survey {
        survey("test", &self.machine.region).unwrap().unwrap()
    }

    fn count(&mut self) {
        let (root, mut names) = (Cred::root(), 0);
        let handle = self.full.model().open(&root, Ino::ROOT, OpenFlags::READ).unwrap();
        let count = &mut |_: DirEntry<'_>| {
            names += 1;
            true
        };
        self.full.model().each_entry(&handle, Cookie::default(), count).unwrap();
        self.full.model().release(handle);
        self.names_max = self.names_max.max(names);
    }

    /// Takes all blocks but some, in one of the ways in which images get full.
    fn fill(&mut self) {
        let all = self.full.engine().statfs().unwrap().blocks_total;
        let left = [0, 0, 0, 3, all / 10][self.random.below(5) as usize];
        match self.random.below(4) {
            0 => self.fill_with_directories(left),
            1 => self.fill_with_names(left),
            2 => self.fill_with_holes(left),
            _ => {}
        }
        for len in [64 * PAGE, PAGE, 1] {
            while self.free() > left + len as u64 / PAGE as u64 && self.full.append("ballast", &vec![7; len])
            {
            }
        }
        self.count();
    }

    /// Takes from the reserve, by calls that may.
    fn drain(&mut self) {
        for n in 0..self.random.below(120) {
            let path = ["ballast", "linked", "holes", "a/c"][self.random.below(4) as usize].to_string();
            let offset = self.random.below(60) * 2048;
            let act = match self.random.below(5) {
                0 => Act::SetMode { path, perm: 0o600 + n as u16 % 8 },
                1 => Act::Truncate { path, size_bytes: (1 << 18) - offset },
                2 => Act::Open { path, flags: OpenFlags::READ_WRITE },
                3 => Act::Write { file: n as usize, offset, len: PAGE, fill: n as u8 },
                _ => Act::Fallocate { file: n as usize, op: RangeOp::Punch, offset, len_bytes: 100 },
            };
            self.full.step(&Step { who: Who::Root, act });
        }
        for file in (0..8).rev() {
            self.full.step(&Step { who: Who::Root, act: Act::Release { file } });
        }
    }

    /// Each inode takes a log page or two.
    fn fill_with_directories(&mut self, left: u64) {
        let made = self.random.below(1 << 30);
        for n in 0..200 {
            let dir = format!("d{made}-{n}");
            let step = Step {
                who: Who::Root,
                act: Act::Make { path: dir.clone(), kind: FileKind::Directory, perm: 0o777 },
            };
            self.full.step(&step);
            let made = path::resolve(self.full.model(), &Cred::root(), &dir).is_ok();
            let more = made && ["f", "g"].iter().all(|file| self.full.append(&format!("{dir}/{file}"), b"x"));
            if !more || self.free() <= left {
                break;
            }
        }
    }

    /// The log of the root grows until its last page is full.
    fn fill_with_names(&mut self, left: u64) {
        let root = Cred::root();
        let made = self.random.below(1 << 30);
        if !self.full.append("linked", b"x") {
            return;
        }
        for n in 0..400 {
            let link = |fs: &dyn FileSystem| {
                let ino = fs.lookup(&root, Ino::ROOT, name("linked"))?.ino;
                fs.link(&root, ino, Ino::ROOT, name(&format!("l{made}-{n}"))).map(|_| ())
            };
            if !self.full.both(link) || self.free() <= left {
                break;
            }
        }
    }

    /// Free space in single blocks.
    fn fill_with_holes(&mut self, left: u64) {
        while self.free() > left + 16 && self.full.append("holes", &[9; 16 * PAGE]) {}
        let open = Act::Open { path: "holes".into(), flags: OpenFlags::READ_WRITE };
        self.full.step(&Step { who: Who::Root, act: open });
        for page in (0..60).step_by(2) {
            let op = RangeOp::Punch;
            let offset = page * PAGE as u64;
            let act = Act::Fallocate { file: usize::MAX, op, offset, len_bytes: PAGE as u64 };
            self.full.step(&Step { who: Who::Root, act });
        }
    }

    fn run(&mut self, step: &Step) {
        if self.full.sets_times_of_a_directory(step) {
            return;
        }
        if self.random.once_in(25) {
            return self.cut(step);
        }
        // By another thread, at times: it has another lane.
        let is = if self.random.once_in(8) {
            let lane = self.random.below(1000) as u32;
            std::thread::scope(|scope| {
                let play = || {
                    look_first_at(lane);
                    self.full.play(step)
                };
                scope.spawn(play).join().unwrap()
            })
        } else {
            self.full.play(step)
        };
        self.full.answer(step, &is);
    }

    /// The machine ends within this call, or right after it.
    fn cut(&mut self, step: &Step) {
        let end = [End::Killed, End::PowerCut][self.random.below(2) as usize];
        let mut is = Outcome::Skipped;
        let image = self.machine.cut_within(end, &mut self.random, || is = self.full.play(step));
        let Some(image) = image else {
            self.full.answer(step, &is);
            return self.remount(end);
        };
        drop(self.full.take_cut());
        self.machine.become_of(&image);
        let fs = self.machine.again(End::Killed, &mut self.random);
        self.full.put_cut(fs, step, &is, &format!("{end:?} within {step:?}"));
    }

    fn remount(&mut self, end: End) {
        self.count();
        drop(self.full.take());
        let fs = self.machine.again(end, &mut self.random);
        self.full.put(fs, &format!("{end:?}, mounted again"));
    }

    /// Removes all, a name at a time; full again and down in between.
    fn empty(&mut self) {
        loop {
            let removals = self.full.removals(&mut self.random);
            if removals.is_empty() {
                break;
            }
            for step in removals {
                match self.random.below(60) {
                    // It may not have happened.
                    0 => self.cut(&step),
                    1 => {
                        self.full.append("ballast", &[7; PAGE]);
                        self.full.step(&step);
                    }
                    _ => self.full.step(&step),
                }
            }
        }
        self.full.trees_agree("emptied");
    }
}

/// As much is free as was, but for what is known to stay: the root's log.
fn is_free(when: &str, program: &Program, before: &Survey) {
    let after = program.survey();
    assert_eq!(
        (after.blocks_data, after.orphans, after.inodes.len()),
        (0, 0, 1),
        "{when}: data, orphans, inodes"
    );
    assert_eq!(program.free(), after.blocks_free, "{when}: what is free, as the mount and as fsck count");
    assert_eq!(after.blocks_inodes, before.blocks_inodes, "{when}: blocks of inodes");
    // The root's log is as long as its names have made it.
    let (log, names) = (after.blocks_logs, program.names_max);
    assert!(log <= 16 + names / 8, "{when}: a log of {log} blocks for at most {names} names");
}

fn program(seed: u64, variant: Variant) -> u64 {
    let mut program = Program::new(seed, variant);
    let before = program.survey();
    for _ in 0..ROUNDS {
        program.fill();
        if program.random.once_in(2) {
            program.drain();
        }
        for step in program.random.steps(Calls::ALL, STEPS_MAX) {
            program.run(&step);
        }
        let end = End::any(&mut program.random);
        program.remount(end);
    }
    program.empty();
    is_free("emptied", &program, &before);
    program.remount(End::Unmounted);
    is_free("mounted again", &program, &before);
    let refused = program.full.refused.values().sum();
    println!("program {seed}, {}: refused {:?}", variant.name(), program.full.refused);
    drop(program.full.take());
    refused
}

#[test]
fn programs_on_full_images_do_what_the_model_does_and_leave_nothing() {
    let (seconds, first) = (env("HEDDLE_FULL_SECONDS", 8), env("HEDDLE_FULL_SEED", 1));
    let one = std::env::var("HEDDLE_FULL_VARIANT").ok();
    let known = |one: &String| Variant::ALL.iter().any(|variant| variant.name() == one);
    assert!(one.as_ref().is_none_or(known), "there is no system called {one:?}");
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut programs, mut refused) = (0, 0);
    for seed in first.. {
        let variant = Variant::ALL[seed as usize % Variant::ALL.len()];
        if one.as_ref().is_some_and(|one| one != variant.name()) {
            continue;
        }
        println!("program {seed}, {}: HEDDLE_FULL_SEED={seed}", variant.name());
        refused += program(seed, variant);
        programs += 1;
        if Instant::now() > end && programs >= 5 {
            break;
        }
    }
    println!("{programs} programs, {refused} calls refused");
    assert!(refused > 0, "no image was full");
}
