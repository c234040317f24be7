//! The processes in which writers live: of threads, of forked children, in namespaces of their own, in containers, that execute
//! themselves anew.

use super::ledger::{CROWD, Ledger, Random, WORKERS};
use super::writer::{Writer, make_files, verify};
use crate::children::{Mounted, command_for, socket};
use crate::common::Short;
use heddle_nvmfs::adopt::AdoptError;
use heddle_nvmfs::server::ServerOptions;
use heddle_nvmfs::{NvmFs, client};
use heddle_vfs::{Error, FileSystem, Ino};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Writers of a tree.
pub const WRITERS_A_TREE: u64 = 8;
/// Trees of workers.
pub const TREES: u64 = WORKERS / WRITERS_A_TREE;
/// Processes of the crowd.
pub const CROWDS: u64 = 4;
/// Steps after which a thread ends and another takes its writer over.
const STEPS: u64 = 300;
/// Within this time a daemon listens again.
const DAEMON_MAX: Duration = Duration::from_secs(60);
/// Exit code of a process that found something wrong.
const WRONG: i32 = 86;

/// In what processes a tree's writers live.
const SHAPES: &[&str] = &["threads", "forks", "spaces", "executes", CONTAINER, "user"];
const CONTAINER: &str = "container";
/// A user who may attach by a group alone.
const USER: u32 = 65534;

/// `SHAPE TREE SEED`: the root of a tree.
pub fn lives(shape: &str, tree: u64, seed: u64) {
    // A test that is killed itself takes its children along.
    die_with_parent();
    let place = socket().parent().unwrap().to_path_buf();
    // Held by all of the tree, also over fork and exec: when nobody has it the tree is dead.
    hold_for_good(&place, tree);
    if shape == CONTAINER {
        return in_container(tree, seed);
    }
    let ledger = Ledger::at(&place);
    let writers = tree * WRITERS_A_TREE..(tree + 1) * WRITERS_A_TREE;
    if shape != "crowd" {
        // After an exec the calls of the threads before it are nobody's.
        writers.clone().for_each(|writer| ledger.call(writer).since_ms.store(0, SeqCst));
    }
    match shape {
        "forks" => forks(&attached(), ledger, writers, seed),
        "spaces" => in_spaces(ledger, writers, seed),
        "user" => as_another_user(ledger, writers, seed),
        "executes" => executes(ledger, tree, seed),
        "crowd" => crowd(ledger, tree - TREES, seed),
        _ => threads(&attached(), ledger, writers, seed),
    }
}

pub fn lock_of(place: &Path, tree: u64) -> std::path::PathBuf {
    place.join(format!("tree-{tree}"))
}

fn hold_for_good(place: &Path, tree: u64) {
    let lock = std::fs::File::create(lock_of(place, tree)).unwrap();
    // SAFETY: plain system calls on a descriptor of ours.
    unsafe {
        assert_eq!(libc::flock(lock.as_raw_fd(), libc::LOCK_SH), 0);
        assert_eq!(libc::fcntl(lock.as_raw_fd(), libc::F_SETFD, 0), 0);
    }
    let _kept = lock.into_raw_fd();
}

fn die_with_parent() {
    // SAFETY: a setting of this process.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Attaches; a daemon that was killed is followed by another.
fn attached() -> NvmFs {
    let began = Instant::now();
    loop {
        match client::attach(&socket()) {
            Ok(fs) => return fs,
            Err(error) if began.elapsed() > DAEMON_MAX => wrong(&format!("{DAEMON_MAX:?}: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The process has found something wrong, or cannot do its part.
fn wrong(why: &str) -> ! {
    eprintln!("{why}");
    // SAFETY: ends this process, all threads of it at once.
    unsafe { libc::_exit(WRONG) }
}

fn or_wrong(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        wrong("found by a writer of the rig: see above");
    }
}

/// A thread for each writer; each ends after some steps, and another follows.
fn threads(fs: &NvmFs, ledger: Ledger, writers: std::ops::Range<u64>, seed: u64) {
    std::thread::scope(|scope| {
        for number in writers {
            scope.spawn(move || {
                for life in 0u64.. {
                    if ledger.stops() {
                        break;
                    }
                    let once = move || or_wrong(|| one_life(fs, ledger, number, seed ^ life << 32));
                    // None is to be had where the first process of a namespace has just been killed, and all with it.
                    std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, once) {
                        Ok(thread) => thread.join().unwrap(),
                        Err(_) => std::thread::sleep(Duration::from_millis(10)),
                    });
                }
            });
        }
    });
}

fn one_life(fs: &NvmFs, ledger: Ledger, number: u64, seed: u64) {
    let mut writer = Writer::new(fs, ledger, number, seed.wrapping_add(number << 8));
    writer.comes_back();
    writer.works(STEPS);
}

/// Children with two threads each, forked anew when they die; what the parent has open they use.
fn forks(fs: &NvmFs, ledger: Ledger, writers: std::ops::Range<u64>, seed: u64) {
    let mut random = Random(seed);
    let mut children: Vec<(libc::pid_t, u64)> = Vec::new();
    let of_child = |first: u64| first..(first + 2).min(writers.end);
    let start = |first: u64, random: &mut Random| {
        let seed = random.below(u64::MAX);
        (forked(|| threads(fs, ledger, of_child(first), seed)), first)
    };
    for first in writers.clone().step_by(2) {
        children.push(start(first, &mut random));
    }
    while !children.is_empty() {
        let mut status = 0;
        // SAFETY: room for the answer.
        let ended = unsafe { libc::wait(&mut status) };
        let Some(at) = children.iter().position(|child| child.0 == ended) else { continue };
        let (_, first) = children.swap_remove(at);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 0 {
            wrong("a forked child has found something wrong");
        }
        if !ledger.stops() {
            children.push(start(first, &mut random));
        }
    }
}

/// A child that does this.
fn forked(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child calls the file system alone and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        die_with_parent();
        or_wrong(work);
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    pid
}

/// Namespaces of several kinds, entered before or after it attached; forks below them.
fn in_spaces(ledger: Ledger, writers: std::ops::Range<u64>, seed: u64) {
    let mut random = Random(seed);
    let kinds =
        [libc::CLONE_NEWPID, libc::CLONE_NEWNS, libc::CLONE_NEWTIME, libc::CLONE_NEWIPC, libc::CLONE_NEWUTS];
    let mut flags = kinds.into_iter().filter(|_| random.below(2) == 0).fold(libc::CLONE_NEWPID, |a, b| a | b);
    if random.below(3) == 0 {
        flags |= libc::CLONE_NEWUSER;
    }
    // In a user namespace without the daemon's user nobody trusts the daemon.
    let early = (random.below(2) == 0 || flags & libc::CLONE_NEWUSER != 0).then(attached);
    // A user namespace is for processes of one thread: a forked one.
    let middle = forked(|| {
        // SAFETY: changes this process alone.
        if unsafe { libc::unshare(flags) } != 0 {
            wrong(&format!("unshare {flags:x}: {}", std::io::Error::last_os_error()));
        }
        let seed = random.below(u64::MAX);
        let first = forked(|| forks(&early.unwrap_or_else(attached), ledger, writers, seed));
        passes_on(first);
    });
    passes_on(middle);
}

/// A user who may neither look at others' processes nor signal them.
fn as_another_user(ledger: Ledger, writers: std::ops::Range<u64>, seed: u64) {
    passes_on(forked(|| {
        // SAFETY: changes this process alone, which has one thread.
        let changed = unsafe {
            libc::setgroups(0, std::ptr::null()) == 0
                && libc::setresgid(USER, USER, USER) == 0
                && libc::setresuid(USER, USER, USER) == 0
                // As a program has it that this user has started.
                && libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0
        };
        if !changed {
            wrong(&format!("another user: {}", std::io::Error::last_os_error()));
        }
        die_with_parent();
        forks(&attached(), ledger, writers, seed);
    }));
}

/// Waits for a child, and ends as it did.
fn passes_on(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: room for the answer.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {}
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == WRONG {
        wrong("a process below has found something wrong");
    }
    if !libc::WIFEXITED(status) {
        // SAFETY: ends this process: the one below was killed, and its writers need another tree.
        unsafe { libc::_exit(0) };
    }
}

/// Threads, one of which executes this program anew after a while, in the midst of the others' calls.
fn executes(ledger: Ledger, tree: u64, seed: u64) {
    let mut random = Random(seed);
    let lasts = Duration::from_millis(50 + random.below(1500));
    let next = random.below(1 << 40);
    std::thread::spawn(move || {
        std::thread::sleep(lasts);
        if !ledger.stops() {
            let error = execute_anew(&format!("executes {tree} {next}"));
            wrong(&format!("exec: {error}"));
        }
    });
    let writers = tree * WRITERS_A_TREE..(tree + 1) * WRITERS_A_TREE;
    threads(&attached(), ledger, writers, seed);
}

fn execute_anew(role: &str) -> std::io::Error {
    use std::os::unix::process::CommandExt;
    command_for(&socket(), role).exec()
}

/// The shapes that this machine can have; it says which it cannot.
pub static SHAPES_HERE: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut probe = std::process::Command::new("bwrap");
    probe.args(["--dev-bind", "/", "/", "--proc", "/proc", "--unshare-user", "--unshare-pid", "--", "true"]);
    let can = probe.stdin(std::process::Stdio::null()).output().is_ok_and(|output| output.status.success());
    if !can {
        eprintln!(
            "SKIPPED, NOT TESTED: processes in containers: bwrap (package bubblewrap) is missing or may not work"
        );
    }
    SHAPES.iter().copied().filter(|shape| can || *shape != CONTAINER).collect()
});

/// In a container of bubblewrap's: other processes' numbers, users, mounts and names, the same network.
fn in_container(tree: u64, seed: u64) {
    use std::os::unix::process::CommandExt;
    let shape = if seed.is_multiple_of(2) { "forks" } else { "threads" };
    let inner = command_for(&socket(), &format!("{shape} {tree} {seed}"));
    let mut command = std::process::Command::new("bwrap");
    command.args([
        "--die-with-parent",
        "--dev-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--unshare-user",
        "--unshare-pid",
    ]);
    command.args(["--unshare-ipc", "--unshare-uts", "--"]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let error = command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null()).exec();
    wrong(&format!("bwrap: {error}"));
}

/// Hundreds of threads that do little.
fn crowd(ledger: Ledger, nth: u64, seed: u64) {
    let fs = attached();
    let each = CROWD / CROWDS;
    std::thread::scope(|scope| {
        for number in WORKERS + nth * each..WORKERS + (nth + 1) * each {
            let fs = &fs;
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            let begun = thread.spawn_scoped(scope, move || {
                or_wrong(|| {
                    let mut writer = Writer::new(fs, ledger, number, seed ^ number);
                    writer.comes_back();
                    writer.works_little();
                });
            });
            begun.unwrap_or_else(|error| wrong(&format!("no thread: {error}")));
        }
    });
}

/// A daemon, until it is killed.
pub fn serves(take_over: bool, patience_ms: u64) {
    die_with_parent();
    let place = socket().parent().unwrap().to_path_buf();
    let patience = Some(Duration::from_millis(patience_ms));
    let how = || ServerOptions { patience, group: Some(USER), ..ServerOptions::default() };
    let _house = match take_over {
        false => Mounted::of(&place, how()),
        true => match Mounted::taken_over(&place, how()) {
            Ok(mounted) => mounted,
            // The last client has died, too.
            Err(AdoptError::NotFound { .. }) => Mounted::of(&place, how()),
            Err(error) => wrong(&error.to_string()),
        },
    };
    // Other users reach the attach socket; who may come in it says itself.
    for (path, mode) in [(place.clone(), 0o711), (socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::write(place.join(format!("serves-{}", std::process::id())), "").unwrap();
    loop {
        std::thread::park();
    }
}

/// Makes the files, and fills the image up to so many free blocks.
pub fn fills(leave_blocks: u64) {
    let fs = attached();
    make_files(&fs);
    let ballast = fs.new_file(Ino::ROOT, "ballast");
    let chunk = vec![0x5a; 64 << 12];
    let free = || fs.statfs().unwrap().blocks_available;
    while free() > leave_blocks + 70 {
        match fs.append(&ballast, &chunk) {
            Ok(_) => {}
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error:?}"),
        }
    }
    fs.release(ballast);
}

/// Looks at all units through an attached process, and says how many blocks there are to be had.
pub fn looks(file: &Path) {
    let fs = attached();
    or_wrong(|| {
        let ledger = Ledger::at(socket().parent().unwrap());
        verify(&fs, ledger).unwrap_or_else(|why| panic!("mounted still: {why}"));
    });
    std::fs::write(file, fs.statfs().unwrap().blocks_available.to_string()).unwrap();
}
