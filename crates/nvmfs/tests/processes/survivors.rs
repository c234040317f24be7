//! A process is killed between two instructions of a call, and the one that cleans up after it too; others work on meanwhile.
//!
//! The victim is stepped with ptrace through so many instructions of one call, and killed there: every store to the region and to the
//! volatile memory, and every place between two of them, can be the last. What survivors see is what was before the call or after it, and
//! never goes back; what is settled stays so; and the region alone, mounted elsewhere, gives the same, with nothing for fsck to say (no
//! block has two owners).
//! `HEDDLE_SURVIVE_KILLS`: so many kills; `HEDDLE_SURVIVE_SEED`: which. `cargo xtask survive` sets them.

use super::children::{Role, SharedMount, start};
use super::roles::attached;
use crate::common::{Disk, Short, env, options, sound};
use crate::kill::history::History;
use heddle_nvmfs::{NvmFs, Variant, mount};
use heddle_pmem::Pos;
use heddle_vfs::{Cred, FileSystem, Handle, Ino, OpenFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CALLS: [&str; 5] = ["create", "write", "rename", "unlink", "truncate"];
const IMAGE_BYTES: u64 = 96 << 20;
/// What is settled is compared with a mount elsewhere after so many kills.
const BATCH: u64 = 20;
/// Of these kills one is followed by a kill of whoever settles.
const SETTLER_ONE_IN: u64 = 2;

/// What the two names of a kill's file hold.
type View = [Option<Vec<u8>>; 2];

fn names(number: u64) -> [String; 2] {
    [format!("f{number}"), format!("g{number}")]
}

/// What both names hold at one instant. A call that was recorded whole may be made visible between two lookups: so it is looked at until
/// two looks agree. What changes here changes once.
fn view(fs: &NvmFs, number: u64) -> View {
    let mut seen = look(fs, number);
    loop {
        let again = look(fs, number);
        if again == seen {
            break;
        }
        seen = again;
    }
    seen.map(|file| {
        let (bytes, size) = file?;
        assert_eq!(bytes.len() as u64, size, "kill {number}: read to the end and asked for the size");
        Some(bytes)
    })
}

/// What each name holds, and its size, one after the other.
fn look(fs: &NvmFs, number: u64) -> [Option<(Vec<u8>, u64)>; 2] {
    let other = fs.find(Ino::ROOT, "d").unwrap().ino;
    let [first, second] = names(number);
    [(Ino::ROOT, first), (other, second)].map(|(dir, name)| {
        // It may go between two calls: when its removal is made visible.
        let ino = fs.find(dir, &name).ok()?.ino;
        let file = fs.open(&Cred::root(), ino, OpenFlags::READ_WRITE).ok()?;
        let seen = (fs.read_vec(&file, 0, 20_000), fs.size(&file));
        fs.release(file);
        Some(seen)
    })
}

/// Bytes as lengths of equal ones.
fn runs(bytes: Vec<u8>) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

fn prepare(fs: &NvmFs, call: &str, number: u64) {
    if call != "create" {
        let file = fs.new_file(Ino::ROOT, &names(number)[0]);
        fs.write(&file, 0, &[1; 12_000]).unwrap();
        fs.release(file);
    }
}

fn act(fs: &NvmFs, call: &str, number: u64, dir: Ino, file: Option<&Handle>) {
    let [name, other] = names(number);
    match call {
        "create" => drop(fs.new_file(Ino::ROOT, &name)),
        "write" => drop(fs.write(file.unwrap(), 100, &[2; 9_000]).unwrap()),
        "rename" => fs.replace((Ino::ROOT, &name), (dir, &other)).unwrap(),
        "unlink" => fs.remove(Ino::ROOT, &name).unwrap(),
        _ => fs.resize(file.unwrap(), 5_000).unwrap(),
    }
}

/// A child: makes one call between two stops.
pub fn is_stepped(call: &str, number: u64) {
    let fs = attached();
    let dir = fs.find(Ino::ROOT, "d").unwrap().ino;
    let file = matches!(call, "write" | "truncate").then(|| fs.open_file(Ino::ROOT, &names(number)[0]));
    if !is_first(number) {
        warm_up(&fs, number);
    }
    let place = PathBuf::from(std::env::var_os(super::children::SOCKET).unwrap());
    // SAFETY: the parent, which started this process, traces this thread from here on.
    let thread = unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0), 0);
        libc::gettid()
    };
    std::fs::write(sign(place.parent().unwrap(), std::process::id()), format!("{thread}\n")).unwrap();
    stop();
    match call {
        "look" => drop(look(&fs, number)),
        call => act(&fs, call, number, dir, file.as_ref()),
    }
    stop();
    // SAFETY: ends the process, as it is.
    unsafe { libc::_exit(0) }
}

/// Is the call of this kill the first that its process makes? It leases a lane and maps memory, in tens of thousands of instructions.
fn is_first(number: u64) -> bool {
    number.is_multiple_of(8)
}
/// More than a first call takes.
const FIRST_CALL_INSTRUCTIONS: u64 = 70_000;

fn warm_up(fs: &NvmFs, number: u64) {
    let (first, second) = (format!("w{number}"), format!("v{number}"));
    let file = fs.new_file(Ino::ROOT, &first);
    fs.write(&file, 100, &[3; 9_000]).unwrap();
    fs.resize(&file, 5_000).unwrap();
    fs.release(file);
    fs.replace((Ino::ROOT, &first), (fs.find(Ino::ROOT, "d").unwrap().ino, &second)).unwrap();
    fs.remove(fs.find(Ino::ROOT, "d").unwrap().ino, &second).unwrap();
}

fn stop() {
    // SAFETY: a signal to this very thread, which its tracer sees.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGSTOP) };
}

fn sign(place: &Path, pid: u32) -> PathBuf {
    place.join(format!("thread-{pid}"))
}

/// A child that stands before its call, or in it.
struct Stepped {
    role: Role,
    thread: i32,
}

impl Stepped {
    fn start(shared: &SharedMount, call: &str, number: u64) -> Stepped {
        let mut role = start(shared, &format!("is-stepped {number} {call}"));
        let began = Instant::now();
        let thread = loop {
            let text = std::fs::read_to_string(sign(shared.place(), role.pid())).unwrap_or_default();
            if let Some(thread) = text.strip_suffix('\n') {
                // A later process may have the same number.
                std::fs::remove_file(sign(shared.place(), role.pid())).unwrap();
                break thread.parse().unwrap();
            }
            assert!(role.0.try_wait().unwrap().is_none(), "{call}: it ended: its own output says why");
            assert!(began.elapsed() < Duration::from_secs(60), "{call}: it does not begin");
            std::thread::sleep(Duration::from_micros(200));
        };
        assert_eq!(wait(thread), Some(libc::SIGSTOP));
        Stepped { role, thread }
    }

    /// Takes so many instructions, or all to the end of the call: how many.
    fn step(&self, most: u64) -> u64 {
        for done in 0..most {
            // SAFETY: the thread is stopped, and traced by this one.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.thread, 0, 0) }, 0);
            match wait(self.thread) {
                Some(libc::SIGTRAP) => {}
                Some(libc::SIGSTOP) => return done,
                other => panic!("it ended or stopped otherwise: {other:?}"),
            }
        }
        most
    }

    fn kill(mut self) {
        // SAFETY: this test's own child.
        unsafe { libc::kill(self.role.pid() as i32, libc::SIGKILL) };
        assert_eq!(wait(self.thread), None);
        if self.thread as u32 != self.role.pid() {
            self.role.0.wait().unwrap();
        }
    }
}

/// The signal that stopped a thread; `None` once it has ended.
fn wait(thread: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: a thread that this one traces, room for its status.
    assert_eq!(unsafe { libc::waitpid(thread, &mut status, libc::__WALL) }, thread);
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

/// What a call does when nobody is killed in it.
struct Whole {
    instructions: u64,
    before: View,
    after: View,
}

fn whole(shared: &SharedMount, call: &str, number: u64) -> Whole {
    let fs = shared.fs();
    prepare(&fs, call, number);
    let before = view(&fs, number);
    let child = Stepped::start(shared, call, number);
    let instructions = child.step(u64::MAX);
    let after = view(&fs, number);
    child.kill();
    assert_ne!(before, after, "{call}");
    clear(&fs, number);
    Whole { instructions, before, after }
}

fn clear(fs: &NvmFs, number: u64) {
    let other = fs.find(Ino::ROOT, "d").unwrap().ino;
    let [first, second] = names(number);
    let _ = (fs.remove(Ino::ROOT, &first), fs.remove(other, &second));
}

/// A kill whose outcome is still to be compared.
struct Killed {
    story: String,
    number: u64,
    seen: View,
    after: View,
}

/// All is settled: what was seen is still there, and is what a mount of the region alone gives.
fn compare(shared: &SharedMount, workers: &[Role], killed: &mut Vec<Killed>) {
    shared.sweeps();
    let fs = shared.fs();
    for kill in &mut *killed {
        let now = view(&fs, kill.number);
        // The one that settles completes a call that was recorded whole; nothing goes the other way.
        assert!(now == kill.seen || now == kill.after, "{}: it went back when it was settled", kill.story);
        kill.seen = now;
    }
    let signal = |signal| {
        let pid = |worker: &Role| Pid::from_raw(worker.pid() as i32).unwrap();
        workers.iter().for_each(|worker| kill_process(pid(worker), signal).unwrap());
    };
    signal(Signal::STOP);
    for worker in workers {
        let mut status = 0;
        // SAFETY: a child of this process, room for its status. The signal alone does not wait until all of it stands.
        unsafe { libc::waitpid(worker.pid() as i32, &mut status, libc::WUNTRACED) };
        assert!(libc::WIFSTOPPED(status), "a worker ended by itself: its own output says why");
    }
    let bytes = std::fs::read(shared.place().join("image")).unwrap();
    signal(Signal::CONT);
    let copy = Disk::new(Variant::Heddle, bytes.len() as u64);
    copy.region().nt_write(Pos(0), &bytes);
    let volume = mount(copy.region().map_again().unwrap(), &options()).unwrap();
    for kill in &*killed {
        assert!(view(&volume.fs(), kill.number) == kill.seen, "{}: mounted elsewhere it differs", kill.story);
    }
    volume.unmount();
    sound(copy.region()).unwrap_or_else(|found| panic!("{found}"));
    killed.drain(..).for_each(|kill| clear(&fs, kill.number));
}

#[test]
fn a_call_killed_at_any_instruction_is_done_or_undone() {
    let kills = env("HEDDLE_SURVIVE_KILLS", 20);
    let mut seed = env("HEDDLE_SURVIVE_SEED", u64::from(std::process::id()));
    println!("seed {seed}");
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut shared = SharedMount::new(IMAGE_BYTES);
    shared.fs().new_dir(Ino::ROOT, "d");
    let calls: Vec<Whole> = (1..).zip(CALLS).map(|(number, call)| whole(&shared, call, number)).collect();
    let instructions: Vec<String> =
        CALLS.iter().zip(&calls).map(|(call, it)| format!("{call} {}", it.instructions)).collect();
    println!("instructions of a call: {}", instructions.join(", "));
    let workers: Vec<Role> = (0..2).map(|who| start(&shared, &format!("works-on-data {who} 4"))).collect();
    let (fs, mut killed) = (shared.fs(), Vec::new());
    let (mut as_before, mut settlers) = (0, 0);
    for number in 100..100 + kills {
        let which = random(CALLS.len() as u64) as usize;
        let (call, whole) = (CALLS[which], &calls[which]);
        prepare(&fs, call, number);
        let victim = Stepped::start(&shared, call, number);
        // Stands ready before the victim dies: it must come before the daemon's next round.
        let settler = random(SETTLER_ONE_IN).eq(&0).then(|| Stepped::start(&shared, "look", number));
        let most = if is_first(number) { FIRST_CALL_INSTRUCTIONS } else { whole.instructions };
        let at = victim.step(random(most));
        let mut story = format!("kill {number}, {call}, instruction {at} of {most}");
        victim.kill();
        if let Some(settler) = settler {
            let most = 1 << (6 + random(8));
            let at = settler.step(random(most));
            settler.kill();
            settlers += 1;
            story += &format!(", its settler at {at}");
        }
        let seen = view(&fs, number);
        // A name is its number's; the content is the same for all.
        let known = seen == whole.before || seen == whole.after;
        assert!(known, "{story}: it is neither before nor after: {:?}", seen.map(|bytes| bytes.map(runs)));
        as_before += u64::from(seen == whole.before);
        killed.push(Killed { story, number, seen, after: whole.after.clone() });
        if killed.len() as u64 == BATCH {
            compare(&shared, &workers, &mut killed);
        }
    }
    compare(&shared, &workers, &mut killed);
    println!("{kills} kills, {as_before} as before, {settlers} settlers killed");
    assert!(
        kills < 20 || (as_before > 0 && as_before < kills && settlers > 0),
        "all were alike: {as_before}"
    );
    drop((workers, fs));
    shared.unmount_as(true);
    sound(&super::children::image(shared.place())).unwrap_or_else(|found| panic!("{found}"));
    shared.mount();
    let history = History::read(&shared.place().join("journal"));
    crate::kill::verify::verify_data(&shared.fs(), &history).unwrap_or_else(|found| panic!("{found}"));
}
