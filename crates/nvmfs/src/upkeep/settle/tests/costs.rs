//! What each death and each stop costs those who go on: how long the next call takes that needs what the dead or stopped one has. Printed
//! as the table that docs/results.md has, and held to what docs/processes.md says.
//!
//! `HEDDLE_COSTS_ROUNDS` (1), `HEDDLE_COSTS_PATIENCE_MS` (200).

use super::frozen::{Group, groups};
use super::{Bench, PAGE, bench, ended};
use crate::file::read::read_pinned;
use crate::fs::NvmFs;
use crate::state::lane::Freeing;
use crate::state::{lease, opens};
use crate::steps::{Step, hook};
use crate::upkeep::settle::{Rounds, sweep};
use heddle_arena::sync::atomic::AtomicU64;
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, OpenFlags};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// Of a call that waits for nobody but the machine, or for a dead holder: as in `tests/processes/deaths.rs`.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Beyond patience (docs/processes.md).
const SLACK: Duration = Duration::from_secs(5);
/// How often the daemon looks (`shared/server.rs`).
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// Users that may not signal each other.
const HOLDER_USER: u32 = 12_346;
const WAITER_USER: u32 = 12_345;

/// What comes over a process.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Killed,
    Stopped,
    /// Its control group is frozen.
    Frozen,
}

/// Who holds something, what comes over it, and where; and what another does then, who says how long its longest call took.
struct Case {
    who: &'static str,
    fate: Fate,
    /// In the first such step; `None`: when it has returned, and is idle.
    at: Option<Step>,
    does: fn(&NvmFs, &Handle),
    other: &'static str,
    goes_on: fn(&NvmFs, &Handle) -> Duration,
    /// The other waits for the patience.
    waits: bool,
}

fn writes(fs: &NvmFs, file: &Handle) {
    fs.write(file, 0, &[1; PAGE as usize]).unwrap();
}

fn creates(fs: &NvmFs, _: &Handle) {
    let name = Name::new(b"new").unwrap();
    fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
}

fn reads(fs: &NvmFs, file: &Handle) {
    let mut guard = lease::enter(&fs.core).unwrap();
    let inode = fs.core.inode(file.ino).unwrap();
    read_pinned(&fs.core, &mut guard, inode, 0, &mut [0; 5 * PAGE as usize]).unwrap();
}

/// A close of a shared file without a name, as far as its claim on the file's end.
fn closes(fs: &NvmFs, file: &Handle) {
    fs.unlink(&Cred::root(), Ino::ROOT, Name::new(b"f").unwrap()).unwrap();
    let guard = lease::enter(&fs.core).unwrap();
    let inode = fs.core.slot(file.ino).unwrap();
    guard.lane.intent.note_freeing(inode.ino.0, Freeing::Asked);
    assert!(inode.volatile.claim(opens::claims_as(&fs.core, guard.id)));
    crate::steps::step(Step::LetGo);
}

fn settles(fs: &NvmFs, file: &Handle) {
    let (dead, _) = fated(Fate::Killed, Some(Step::Held), || writes(fs, file));
    ended(dead, 0);
    sweep(&fs.core);
}

fn one(call: impl FnOnce()) -> Duration {
    let began = Instant::now();
    call();
    began.elapsed()
}

fn overwrites(fs: &NvmFs, file: &Handle) -> Duration {
    one(|| _ = fs.write(file, 0, &[2; PAGE as usize]).unwrap())
}

/// As often as it takes to replace more blocks than may wait for readers.
fn overwrites_much(fs: &NvmFs, file: &Handle) -> Duration {
    (0..30).map(|_| one(|| _ = fs.write(file, 0, &[2; 11 * PAGE as usize]).unwrap())).max().unwrap()
}

fn makes_a_name(fs: &NvmFs, _: &Handle) -> Duration {
    let name = Name::new(b"another").unwrap();
    one(|| fs.release(fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap().1))
}

fn looks(fs: &NvmFs, file: &Handle) -> Duration {
    one(|| _ = fs.getattr(file.ino).unwrap())
}

const CASES: &[Case] = {
    use Fate::{Frozen, Killed, Stopped};
    const fn case(
        who: &'static str,
        fate: Fate,
        at: Option<Step>,
        does: fn(&NvmFs, &Handle),
        other: &'static str,
        goes_on: fn(&NvmFs, &Handle) -> Duration,
        waits: bool,
    ) -> Case {
        Case { who, fate, at, does, other, goes_on, waits }
    }
    &[
        case("idle", Killed, None, writes, "overwrites the page", overwrites, false),
        case(
            "inside a write, nothing logged",
            Killed,
            Some(Step::Held),
            writes,
            "the same",
            overwrites,
            false,
        ),
        case("inside a write, logged", Killed, Some(Step::Durable), writes, "the same", overwrites, false),
        case(
            "inside a creation, logged",
            Killed,
            Some(Step::Stored),
            creates,
            "creates there",
            makes_a_name,
            false,
        ),
        case(
            "inside a pinned read",
            Killed,
            Some(Step::Pinned),
            reads,
            "overwrites all, 30 times",
            overwrites_much,
            false,
        ),
        case("inside the last but one close", Killed, Some(Step::LetGo), closes, "fstat", looks, false),
        case(
            "settling a dead writer",
            Killed,
            Some(Step::Settling),
            settles,
            "overwrites the page",
            overwrites,
            false,
        ),
        case("idle", Stopped, None, writes, "overwrites the page", overwrites, false),
        case(
            "inside a pinned read",
            Stopped,
            Some(Step::Pinned),
            reads,
            "overwrites a page",
            overwrites,
            false,
        ),
        case(
            "inside a pinned read",
            Stopped,
            Some(Step::Pinned),
            reads,
            "overwrites all, 30 times",
            overwrites_much,
            true,
        ),
        case("inside a write", Stopped, Some(Step::Held), writes, "overwrites the page", overwrites, true),
        case("inside a creation", Stopped, Some(Step::Stored), creates, "creates there", makes_a_name, true),
        case("inside the last but one close", Stopped, Some(Step::LetGo), closes, "fstat", looks, true),
        case(
            "settling a dead writer",
            Stopped,
            Some(Step::Settling),
            settles,
            "overwrites the page",
            overwrites,
            true,
        ),
        case("inside a write", Frozen, Some(Step::Held), writes, "overwrites the page", overwrites, true),
    ]
};

/// Starts a process that does it, and meets its fate. It is there, dead, stopped, or (to be frozen) standing still, when this returns.
fn fated(fate: Fate, at: Option<Step>, does: impl FnOnce()) -> (libc::pid_t, Option<Group>) {
    let (ready, is_there) = std::io::pipe().unwrap();
    // SAFETY: the child works and leaves by `_exit` or a signal; it touches no lock that another thread may have held at the fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let meets = move || {
            use std::io::Write;
            match fate {
                // SAFETY: ends, or stops, this process.
                Fate::Killed => unsafe { _ = libc::kill(libc::getpid(), libc::SIGKILL) },
                // SAFETY: as above.
                Fate::Stopped => unsafe { _ = libc::kill(libc::getpid(), libc::SIGSTOP) },
                Fate::Frozen => {
                    (&is_there).write_all(&[1]).unwrap();
                    std::thread::sleep(Duration::from_secs(600));
                }
            }
        };
        match at {
            None => {
                does();
                meets();
            }
            Some(at) => {
                hook::set(Some(Arc::new(move |step| {
                    if step == at {
                        meets();
                    }
                })));
                does();
            }
        }
        // SAFETY: ends this process.
        unsafe { libc::_exit(7) };
    }
    drop(is_there);
    let group = match fate {
        Fate::Killed => {
            // It is waited for by who started it, later: here only until it is dead.
            // SAFETY: plain numbers, for which zero is valid; room for the answer.
            unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                libc::waitid(libc::P_PID, pid as u32, &mut info, libc::WEXITED | libc::WNOWAIT);
            }
            None
        }
        Fate::Stopped => {
            assert!(libc::WIFSTOPPED(ended(pid, libc::WUNTRACED)));
            None
        }
        Fate::Frozen => {
            std::io::Read::read_exact(&mut &ready, &mut [0]).unwrap();
            let (group, file, freeze) = groups().pop().unwrap();
            std::fs::write(group.dir.join("cgroup.procs"), pid.to_string()).unwrap();
            std::fs::write(group.dir.join(file), freeze).unwrap();
            Some(group)
        }
    };
    (pid, group)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn patience() -> Duration {
    Duration::from_millis(setting("HEDDLE_COSTS_PATIENCE_MS", 200))
}

/// A bench whose mount has this patience.
fn patient_bench() -> Bench {
    let bench = bench();
    bench.volume.fs().core.root().patience_ms.store(patience().as_millis() as u32, Relaxed);
    bench
}

fn finish(bench: Bench, pid: libc::pid_t) {
    // SAFETY: a child that was not waited for; one that stands idle goes on to its end by this alone.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    let status = ended(pid, 0);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{status}");
    bench.volume.fs().release(bench.file);
    lease::leave(&bench.volume.fs().core);
    bench.volume.unmount();
}

/// Prints a row, and holds it to what the page says.
fn row(who: &str, fate: &str, other: &str, waits: bool, mut took: Vec<Duration>) {
    took.sort_unstable();
    let ms = |d: Duration| format!("{:.2}", d.as_secs_f64() * 1e3);
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("| {who} | {fate} | {other} | {} | {} |", ms(median), ms(longest));
    match waits {
        false => assert!(longest < PAUSE_MAX, "{who}, {fate}: waited {longest:?}"),
        true => {
            assert!(took[0] >= patience(), "{who}, {fate}: killed after {:?}", took[0]);
            assert!(longest < patience() + SLACK, "{who}, {fate}: waited {longest:?}");
        }
    }
}

fn measure(case: &Case) -> Duration {
    let bench = patient_bench();
    let fs = bench.volume.fs();
    // The waiter's first call, which leases a lane, is not what is measured.
    fs.write(&bench.file, 10 * PAGE, &[9]).unwrap();
    let (pid, group) = fated(case.fate, case.at, || (case.does)(&fs, &bench.file));
    let took = (case.goes_on)(&fs, &bench.file);
    drop(fs);
    finish(bench, pid);
    drop(group);
    took
}

#[test]
fn a_death_costs_milliseconds_and_a_stop_costs_the_patience() {
    let rounds = setting("HEDDLE_COSTS_ROUNDS", 1);
    println!("patience {:?}, {rounds} rounds; median and longest in ms", patience());
    for case in CASES {
        let fate = match case.fate {
            Fate::Killed => "killed",
            Fate::Stopped => "SIGSTOP",
            Fate::Frozen if groups().is_empty() => {
                println!("not tried here: no control group can be frozen");
                continue;
            }
            Fate::Frozen => "frozen cgroup",
        };
        row(case.who, fate, case.other, case.waits, (0..rounds).map(|_| measure(case)).collect());
    }
    if rustix::process::geteuid().is_root() {
        let took = (0..rounds).map(|_| measure_another_users()).collect();
        row("inside a write, another user's", "SIGSTOP", "overwrites the page", true, took);
    } else {
        println!("not tried here: processes of other users need root");
    }
}

/// From here on this process is another user's, who may still look at himself.
fn become_user(user: u32) {
    // SAFETY: plain system calls, in a forked child.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresuid(user, user, user), 0);
        assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
    }
}

/// Holder and waiter are of two users; the daemon's round, which may kill both, is this process's.
fn measure_another_users() -> Duration {
    let bench = patient_bench();
    let fs = bench.volume.fs();
    // Both users' processes stay in this process's group, whose members may attach.
    let group = rustix::process::getegid().as_raw();
    fs.core.root().attach_group.store(group, SeqCst);
    let took = fs.core.arena.get(fs.core.arena.alloc(AtomicU64::new(0)).unwrap());
    let (holder, _) = fated(Fate::Stopped, Some(Step::Held), || {
        become_user(HOLDER_USER);
        writes(&fs, &bench.file);
    });
    // SAFETY: as in `fated`.
    let waiter = unsafe { libc::fork() };
    if waiter == 0 {
        become_user(WAITER_USER);
        fs.write(&bench.file, 10 * PAGE, &[9]).unwrap();
        took.store(overwrites(&fs, &bench.file).as_nanos() as u64, SeqCst);
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rounds = Rounds::default();
            while !done.load(SeqCst) {
                rounds.go(&fs.core);
                std::thread::sleep(SWEEP_EVERY);
            }
            lease::leave(&fs.core);
        });
        let status = ended(waiter, 0);
        done.store(true, SeqCst);
        assert_eq!(status, 0, "the waiter failed");
    });
    let took = Duration::from_nanos(took.load(SeqCst));
    drop(fs);
    finish(bench, holder);
    took
}
