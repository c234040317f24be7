//! Memory that clients can write is overwritten while all work: the daemon and programs of all kinds may refuse and fail calls, but
//! never crash, never hang, and are always unmounted.
//!
//! Rounds: an image is made and mounted, programs work in it, some past the kernel, and this process writes over the arena: word by word
//! in turn, at random, whole lines; and puts half of it back, so that what follows is reached too.
//!
//! `HEDDLE_SCRIBBLE_SECONDS`: so long; `HEDDLE_SCRIBBLE_SEED`: from this round on. `cargo xtask scribble`.

mod common;

use common::roles::{Role, role};
use common::{Place, build_preload, command, own_namespace};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// In the test command.
const SECONDS: u64 = 8;
/// A round that nothing has ended before.
const ROUND: Duration = Duration::from_millis(700);
/// The longest that a call, or an unmount, may take.
const HANGS_AFTER: Duration = Duration::from_secs(30);
const PATIENCE: &str = "patience=1";

#[test]
#[ignore = "run by the tests below"]
fn the_process_that_plays_a_role() {
    let Some((name, numbers, path)) = role() else { return };
    match (name.as_str(), numbers.as_slice()) {
        ("works", [who]) => works(&path, *who),
        other => panic!("no such role: {other:?}"),
    }
}

/// All kinds of calls until the file `stop` is there; none may fail the program.
fn works(dir: &Path, who: u64) {
    let stop = dir.parent().unwrap().join("stop");
    std::thread::scope(|threads| {
        for thread in 0..2 {
            let stop = &stop;
            threads.spawn(move || {
                let mut random = Random(who * 16 + thread + 1);
                while !stop.exists() {
                    for _ in 0..50 {
                        let _any = one_call(dir, &mut random);
                    }
                }
            });
        }
    });
}

fn one_call(dir: &Path, random: &mut Random) -> std::io::Result<()> {
    let name = |random: &mut Random| dir.join(format!("d{}/f{}", random.below(3), random.below(12)));
    let at = name(random);
    let offset = random.below(64) << 12;
    let open = || File::options().read(true).write(true).create(true).truncate(false).open(&at);
    match random.below(12) {
        0 => fs::create_dir_all(at.parent().unwrap())?,
        1 => fs::remove_file(&at)?,
        2 => fs::rename(&at, name(random))?,
        3 => drop(fs::read_dir(at.parent().unwrap())?.count()),
        4 => open()?.set_len(offset)?,
        5 => drop(fs::metadata(&at)?.len()),
        6 => fs::hard_link(&at, name(random))?,
        7 => open()?.sync_all()?,
        8 => drop(File::options().append(true).create(true).open(&at)?.write(&[3; 700])?),
        9 => {
            let (mut file, mut buf) = (open()?, vec![0; 20_000]);
            file.seek(SeekFrom::Start(offset))?;
            let _read = file.read(&mut buf)?;
        }
        _ => {
            let len = 1 + random.below(20_000) as usize;
            open()?.write_all_at(&vec![7; len], offset)?;
        }
    }
    Ok(())
}

/// Xorshift: the same numbers from the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

/// A mount's daemon, and its arena as anybody has it who may attach.
struct Victim {
    daemon: u32,
    words: &'static [AtomicU64],
    arena: File,
}

impl Victim {
    fn of(image: &Path) -> Victim {
        let image = fs::metadata(image).unwrap();
        let numbers = fs::read_dir("/proc").unwrap().flatten();
        let pids = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let found = pids.filter(|pid| is_heddle(*pid)).find_map(|pid| {
            let fds: Vec<PathBuf> =
                fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().map(|entry| entry.path()).collect();
            let ours = |fd: &PathBuf| {
                fs::metadata(fd).is_ok_and(|of| (of.dev(), of.ino()) == (image.dev(), image.ino()))
            };
            let arena = |fd: &&PathBuf| {
                fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:heddle-arena"))
            };
            fds.iter().any(ours).then(|| fds.iter().find(arena).cloned()).flatten().map(|fd| (pid, fd))
        });
        let (daemon, fd) = found.expect("the daemon has its arena open");
        let arena = File::options().read(true).write(true).open(fd).unwrap();
        let len_bytes = arena.metadata().unwrap().len() as usize;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes, of a file that is sealed against shrinking.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len_bytes, prot, flags, &arena, 0) };
        // SAFETY: that mapping, which stays until the victim is dropped; its words are used atomically.
        let words = unsafe { std::slice::from_raw_parts(at.unwrap().cast(), len_bytes / 8) };
        Victim { daemon, words, arena }
    }

    /// Words that were ever touched.
    fn used(&self) -> Vec<std::ops::Range<u64>> {
        let mut used = Vec::new();
        let mut from = 0;
        while let Ok(start) = rustix::fs::seek(&self.arena, rustix::fs::SeekFrom::Data(from)) {
            let Ok(end) = rustix::fs::seek(&self.arena, rustix::fs::SeekFrom::Hole(start)) else { break };
            used.push(start / 8..end / 8);
            from = end;
        }
        used
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // SAFETY: made by `of`; nothing uses it any more.
        unsafe {
            rustix::mm::munmap(self.words.as_ptr().cast_mut().cast(), size_of_val(self.words)).unwrap()
        };
    }
}

fn is_heddle(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("heddle"))
}

/// What a word becomes.
fn rubbish(random: &mut Random, was: u64, beside: u64) -> u64 {
    match random.below(10) {
        0 => 0,
        1 => u64::MAX,
        2 => was.wrapping_add(1),
        3 => was.wrapping_sub(1),
        4 => beside,
        5 => was ^ 1 << random.below(64),
        6 => random.below(1 << 20) << 4,
        7 => u64::from(u32::MAX) + random.below(64),
        8 => was << random.below(8),
        _ => random.next(),
    }
}

/// Writes over the arena for a round, or until the mount gives errors of its own.
fn scribble(victim: &Victim, out_of_service: &AtomicBool, random: &mut Random) {
    let manner = random.below(4);
    let began = Instant::now();
    let mut at = random.next();
    while began.elapsed() < ROUND {
        let used = victim.used();
        let len: u64 = used.iter().map(|range| range.end - range.start).sum();
        let place = |nth: u64| {
            let mut nth = nth % len;
            for range in &used {
                if nth < range.end - range.start {
                    return range.start + nth;
                }
                nth -= range.end - range.start;
            }
            0
        };
        for _ in 0..200 {
            at = if manner < 2 { at.wrapping_add(1) } else { random.next() };
            // Half of it where everything begins.
            let nth = if manner == 3 && random.below(2) == 0 { at % 4096 } else { place(at) };
            let words = if random.below(20) == 0 { 8 } else { 1 };
            for word in nth..(nth + words).min(victim.words.len() as u64 - 1) {
                let (cell, beside) = (&victim.words[word as usize], &victim.words[word as usize + 1]);
                let was = cell.load(SeqCst);
                let new = rubbish(random, was, beside.load(SeqCst));
                cell.store(new, SeqCst);
                if manner.is_multiple_of(2) || random.below(2) == 0 {
                    std::thread::yield_now();
                    let _changed = cell.compare_exchange(new, was, SeqCst, SeqCst);
                }
            }
        }
        if out_of_service.load(SeqCst) {
            return;
        }
    }
}

/// Says when the mount gives errors of its own. A thread, because a call may hang, and nothing waits for it but the kernel.
fn watch(mnt: PathBuf) -> Arc<AtomicBool> {
    let out_of_service = Arc::new(AtomicBool::new(false));
    let said = Arc::clone(&out_of_service);
    std::thread::spawn(move || {
        let gone = |e: std::io::Error| matches!(e.raw_os_error(), Some(libc::EIO | libc::ENOTCONN));
        while Arc::strong_count(&said) > 1 && !fs::metadata(mnt.join("d0")).is_err_and(gone) {
            std::thread::sleep(Duration::from_millis(5));
        }
        said.store(true, SeqCst);
    });
    out_of_service
}

fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// One round; what went wrong.
fn round(seed: u64) -> Result<(), String> {
    let place = Place::with_image_of("heddle", "64M");
    let mnt = place.path("mnt");
    let log = place.text("daemon.log");
    let options = format!("{PATIENCE},log={log}");
    let image = place.image();
    let said = command(&["mount", "-o", &options, &image, &place.mnt()])
        // Hundreds of panics are caught, and a backtrace of each would take the time within which nothing may hang.
        .env("RUST_BACKTRACE", "0")
        .stderr(File::create(place.path("said")).unwrap())
        .status()
        .unwrap();
    assert!(said.success(), "{}", fs::read_to_string(place.path("said")).unwrap());
    let victim = Victim::of(&place.path("image"));
    let daemon = victim.daemon;
    let mut programs: Vec<Role> = [true, true, false]
        .iter()
        .zip(0..)
        .map(|(bypass, who)| Role::start(&format!("works {who}"), &mnt, *bypass))
        .collect();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    std::thread::sleep(Duration::from_millis(100 + random.below(150)));
    scribble(&victim, &watch(mnt.clone()), &mut random);
    fs::write(place.path("stop"), "").unwrap();
    let mut wrong = Vec::new();
    let began = Instant::now();
    for program in &mut programs {
        match program.ends_within(HANGS_AFTER.saturating_sub(began.elapsed())) {
            None => wrong.push(format!("a program hangs:\n{}", program.stacks())),
            Some(status) if !status.success() => wrong.push(format!("a program ended with {status}")),
            Some(_) => {}
        }
    }
    if !alive(daemon) {
        wrong.push("the daemon died".into());
    }
    let kill = || {
        let pid = rustix::process::Pid::from_raw(daemon as i32).unwrap();
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    };
    if !wrong.is_empty() {
        wrong.push(format!("the daemon:\n{}", common::roles::stacks(daemon)));
        kill();
    }
    drop(programs);
    let began = Instant::now();
    let _any = command(&["umount", &place.mnt()]).stderr(File::create(place.path("said")).unwrap()).status();
    while alive(daemon) && began.elapsed() < HANGS_AFTER {
        std::thread::sleep(Duration::from_millis(5));
    }
    if alive(daemon) {
        wrong.push(format!("the daemon outlives the unmount:\n{}", common::roles::stacks(daemon)));
        kill();
        let _gone = rustix::mount::unmount(&mnt, rustix::mount::UnmountFlags::DETACH);
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let log = fs::read_to_string(&log).unwrap_or_default();
    Err(format!("round {seed}: {}\nthe daemon's log:\n{log}", wrong.join("\n")))
}

#[test]
fn whatever_is_written_over_the_arena_nobody_crashes_or_hangs() {
    if !own_namespace() {
        return;
    }
    build_preload();
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
    };
    let first = number("HEDDLE_SCRIBBLE_SEED").unwrap_or(1);
    let lasts = Duration::from_secs(number("HEDDLE_SCRIBBLE_SECONDS").unwrap_or(SECONDS));
    let (began, mut seed, mut findings) = (Instant::now(), first, Vec::new());
    while began.elapsed() < lasts {
        if let Err(wrong) = round(seed) {
            println!("{wrong}");
            findings.push(seed);
        }
        seed += 1;
    }
    println!("{} rounds from {first} on", seed - first);
    assert!(findings.is_empty(), "HEDDLE_SCRIBBLE_SEED={findings:?}");
}
