//! Processes that end in each step of each call, and settlers that end in each step of settling: what is left is before or after.

mod claims;
mod costs;
mod directories;
mod ending;
mod finished;
mod frozen;
mod handles;
mod in_place;
mod lanes;
mod lists;
mod mounts;
mod orphans;
mod others;
mod parts;
mod still;
mod times;

use crate::fs::NvmFs;
use crate::names::table;
use crate::state::lease;
use crate::steps::hook;
use crate::variant::Variant;
use crate::volume::{MountOptions, Volume, format, mount};
use heddle_pmem::Region;
use heddle_vfs::{Cred, Error, FileSystem, Handle, Ino, Name, OpenFlags, RangeOp, RenameMode, SetAttr};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

struct Bench {
    region: Region,
    volume: Volume,
    file: Handle,
}

/// A file of eleven pages and a bit, of which the first is in the log page that is nearly full.
fn bench() -> Bench {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount_again(&region);
    let file = make(&volume.fs());
    Bench { region, volume, file }
}

fn mount_again(region: &Region) -> Volume {
    let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
    mount(region.map_again().unwrap(), &options).unwrap()
}

fn make(fs: &NvmFs) -> Handle {
    let name = Name::new(b"f").unwrap();
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    for page in 0..11u8 {
        fs.write(&file, u64::from(page) * PAGE, &[page + 1; PAGE as usize]).unwrap();
    }
    fs.write(&file, 11 * PAGE, &[12; 100]).unwrap();
    file
}

/// What a call may change.
#[derive(PartialEq, Eq)]
struct State {
    bytes: Vec<u8>,
    perm: u16,
    holes: Vec<u64>,
}

/// A call that looks at the size does not wait for a dead lane; one that reads does: so it reads first.
fn state(fs: &NvmFs, file: &Handle) -> State {
    let mut all = vec![0; 60 * PAGE as usize];
    fs.read(file, 0, &mut all).unwrap();
    let attr = fs.getattr(file.ino).unwrap();
    let mut bytes = vec![0; attr.size_bytes as usize + 10];
    let n = fs.read(file, 0, &mut bytes).unwrap();
    bytes.truncate(n);
    let hole =
        |page: &u64| fs.seek(file, heddle_vfs::SeekTarget::Hole, page * PAGE).ok() == Some(page * PAGE);
    let holes = (0..n as u64 / PAGE).filter(hole).collect();
    State { bytes, perm: attr.perm, holes }
}

/// A call that is ended in the middle.
type Call = (&'static str, fn(&NvmFs, &Handle));

fn resize(fs: &NvmFs, file: &Handle, size: u64) {
    let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
    fs.setattr(&Cred::root(), file.ino, Some(file), &set).unwrap();
}

const CALLS: &[Call] = &[
    ("overwrites a page", |fs, file| {
        fs.write(file, 2 * PAGE, &[0xaa; PAGE as usize]).unwrap();
    }),
    ("overwrites a page for the second time", |fs, file| {
        // The chain is the lane's by now: the short way.
        fs.write(file, 2 * PAGE, &[0xaa; PAGE as usize]).unwrap();
        fs.write(file, 3 * PAGE, &[0xab; PAGE as usize]).unwrap();
    }),
    ("writes across pages", |fs, file| {
        fs.write(file, PAGE + 7, &[0xbb; 4 * PAGE as usize]).unwrap();
    }),
    ("writes beyond the end", |fs, file| {
        fs.write(file, 20 * PAGE + 5, &[0xcc; 9000]).unwrap();
    }),
    ("appends", |fs, file| {
        fs.append(file, &[0xdd; 5000]).unwrap();
    }),
    ("cuts in a page", |fs, file| resize(fs, file, 3 * PAGE + 10)),
    ("cuts all", |fs, file| resize(fs, file, 0)),
    ("grows", |fs, file| resize(fs, file, 100 * PAGE)),
    ("punches", |fs, file| fs.fallocate(file, RangeOp::Punch, PAGE + 5, 5 * PAGE).unwrap()),
    ("allocates", |fs, file| {
        fs.fallocate(file, RangeOp::Allocate { keep_size: false }, 12 * PAGE, 5 * PAGE).unwrap()
    }),
    ("changes the mode", |fs, file| {
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        fs.setattr(&Cred::root(), file.ino, None, &set).unwrap();
    }),
];

/// Runs `work` in a forked child that dies in its `nth` step; false if it came to its end before.
fn dies(nth: u32, work: impl FnOnce()) -> bool {
    // SAFETY: the child runs `work` and leaves by `_exit` or a signal; it touches no lock that another thread of this program may have
    // held at the fork, but the allocator's, which glibc keeps usable.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let left = Cell::new(nth);
        hook::set(Some(Arc::new(move |_| {
            left.set(left.get() - 1);
            if left.get() == 0 {
                // SAFETY: ends this process, at once.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
        })));
        work();
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    let status = ended(pid, 0);
    assert!(libc::WIFSIGNALED(status) || libc::WEXITSTATUS(status) == 0, "the child failed: {status}");
    libc::WIFSIGNALED(status)
}

/// Waits for a child: how it ended.
fn ended(pid: libc::pid_t, flags: libc::c_int) -> libc::c_int {
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, flags) }, pid);
    status
}

/// The states that may be found: before and after the call (of two calls also between).
fn allowed(call: &Call) -> Vec<State> {
    let twin = bench();
    let fs = twin.volume.fs();
    let mut states = vec![state(&fs, &twin.file)];
    if call.0.contains("second time") {
        CALLS[0].1(&fs, &twin.file);
        states.push(state(&fs, &twin.file));
    }
    call.1(&fs, &twin.file);
    states.push(state(&fs, &twin.file));
    fs.release(twin.file);
    lease::leave(&twin.volume.fs().core);
    twin.volume.unmount();
    states
}

/// Looks at everything, goes on working, mounts again and looks again.
fn verify(bench: Bench, allowed: &[State], what: &str) {
    let fs = bench.volume.fs();
    let began = Instant::now();
    let found = state(&fs, &bench.file);
    assert!(allowed.contains(&found), "{what}: neither before nor after: {} bytes", found.bytes.len());
    // Whatever the dead one held is in nobody's way.
    fs.write(&bench.file, 0, &found.bytes).unwrap();
    fs.append(&bench.file, b"x").unwrap();
    resize(&fs, &bench.file, found.bytes.len() as u64);
    fs.fallocate(&bench.file, RangeOp::Punch, 200 * PAGE, PAGE).unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{what}: held up for {:?}", began.elapsed());
    super::sweep(&fs.core);
    assert!(state(&fs, &bench.file).bytes == found.bytes, "{what}: changed since");
    let free = fs.statfs().unwrap().blocks_free;
    fs.release(bench.file);
    lease::leave(&bench.volume.fs().core);
    drop(fs);
    bench.volume.abandon();
    let volume = mount_again(&bench.region);
    let fs = volume.fs();
    let ino = fs.lookup(&Cred::root(), Ino::ROOT, Name::new(b"f").unwrap()).unwrap().ino;
    let file = fs.open(&Cred::root(), ino, OpenFlags::READ_WRITE).unwrap();
    assert!(state(&fs, &file).bytes == found.bytes, "{what}: mounted again, it is something else");
    let lost = fs.statfs().unwrap().blocks_free.saturating_sub(free);
    assert!(lost < 24, "{what}: {lost} blocks were lost");
    fs.release(file);
    lease::leave(&volume.fs().core);
    volume.unmount();
}

#[test]
fn a_process_killed_at_any_step_blocks_nobody_and_tears_no_call() {
    for call in CALLS {
        let states = allowed(call);
        for nth in 1.. {
            let bench = bench();
            let fs = bench.volume.fs();
            let died = dies(nth, || call.1(&fs, &bench.file));
            drop(fs);
            verify(bench, &states, &format!("{}, step {nth}", call.0));
            if !died {
                assert!(nth > 2, "{}: it has no steps", call.0);
                break;
            }
        }
    }
}

#[test]
fn a_settler_that_dies_is_followed_by_another() {
    for call in [&CALLS[2], &CALLS[3], &CALLS[5]] {
        let states = allowed(call);
        for (nth, then) in (1..9).flat_map(|nth| (1..9).map(move |then| (nth, then))) {
            let bench = bench();
            let fs = bench.volume.fs();
            let died = dies(nth, || call.1(&fs, &bench.file));
            dies(then, || {
                super::sweep(&fs.core);
            });
            drop(fs);
            verify(bench, &states, &format!("{}, step {nth}, settled as far as {then}", call.0));
            if !died {
                break;
            }
        }
    }
}

#[test]
fn a_reader_that_dies_with_a_pin_gives_it_back() {
    for nth in 1..3 {
        let bench = bench();
        let fs = bench.volume.fs();
        let core = &fs.core;
        let inode = core.inode(bench.file.ino).unwrap();
        let died = dies(nth, || {
            let mut guard = lease::enter(core).unwrap();
            let mut bytes = vec![0; 5 * PAGE as usize];
            crate::file::read::read_pinned(core, &mut guard, inode, 0, &mut bytes).unwrap();
        });
        assert!(died);
        super::sweep(core);
        assert!(inode.volatile.pins.now().none(), "step {nth}");
        let states = [state(&fs, &bench.file)];
        drop(fs);
        verify(bench, &states, &format!("a pinned read, step {nth}"));
    }
}

#[test]
fn a_forked_child_uses_no_lane_of_its_parent() {
    let bench = bench();
    let fs = bench.volume.fs();
    let lane = |fs: &NvmFs| lease::enter(&fs.core).unwrap().id;
    let parents = lane(&fs);
    let ended = dies(u32::MAX, || {
        assert_ne!(lane(&fs), parents, "the child works with its parent's lane");
        fs.write(&bench.file, 0, &[9; PAGE as usize]).unwrap();
        lease::leave(&fs.core);
    });
    assert!(!ended);
    assert_eq!(lane(&fs), parents, "the parent has lost its lane");
    let mut page = [0; PAGE as usize];
    fs.read(&bench.file, 0, &mut page).unwrap();
    assert_eq!(page, [9; PAGE as usize]);
    fs.release(bench.file);
    lease::leave(&bench.volume.fs().core);
    bench.volume.unmount();
}

#[test]
fn a_holder_that_is_stopped_is_killed_after_the_mounts_patience() {
    let bench = bench();
    let fs = bench.volume.fs();
    fs.core.root().patience_ms.store(200, std::sync::atomic::Ordering::Relaxed);
    // SAFETY: the child writes and stops itself while it holds a cell; it leaves by the signal that this is about.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        hook::set(Some(Arc::new(|step| {
            if step == crate::steps::Step::Held {
                // SAFETY: stops this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
            }
        })));
        fs.write(&bench.file, 0, &[1; PAGE as usize]).unwrap();
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    assert!(libc::WIFSTOPPED(ended(pid, libc::WUNTRACED)));
    let began = Instant::now();
    fs.write(&bench.file, 0, &[2; PAGE as usize]).unwrap();
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(200) && waited < Duration::from_secs(2), "waited {waited:?}");
    let status = ended(pid, 0);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL);
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "a stopped writer");
}

#[test]
fn a_lane_that_was_scribbled_over_harms_nobody_else() {
    for seed in 1..40u64 {
        let bench = bench();
        let fs = bench.volume.fs();
        let before = state(&fs, &bench.file);
        let died = dies(1, || {
            let guard = lease::enter(&fs.core).unwrap();
            let bytes = (std::ptr::from_ref(&guard.lane.intent)).cast_mut().cast::<u8>();
            let len = size_of::<crate::state::lane::Intent>() + size_of::<crate::state::lane::LaneLocal>();
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for at in (0..len).step_by(if seed % 2 == 0 { 8 } else { 1 }) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // SAFETY: within the lane's record, where any bytes are valid: this is what the test is about.
                unsafe { bytes.add(at).write_volatile((random >> 40) as u8) };
            }
            crate::steps::step(crate::steps::Step::Held);
        });
        assert!(died);
        super::sweep(&fs.core);
        assert!(state(&fs, &bench.file) == before, "seed {seed}: the file has changed");
        let refused = fs.write(&bench.file, 0, b"x").unwrap_err();
        assert!(matches!(refused, heddle_vfs::Error::Corrupt(_)), "seed {seed}: {refused}");
        fs.release(bench.file);
        lease::leave(&fs.core);
    }
}

/// It waited for half a minute, then noted damage, and nothing could be changed any more.
#[test]
fn a_handlers_call_never_waits_for_a_bucket_of_its_own_thread() {
    let bench = bench();
    let (fs, root) = (bench.volume.fs(), Cred::root());
    let [new, removed, renamed] =
        ["new", "removed", "renamed"].map(|name| Name::new(name.as_bytes()).unwrap());
    let make = |name| fs.create(&root, Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE);
    fs.release(make(removed).unwrap().1);
    fs.release(make(renamed).unwrap().1);
    {
        let _outer = lease::enter(&fs.core).unwrap();
        let dir = fs.core.inode(Ino::ROOT).unwrap();
        // A directory of few names has one.
        let bucket = table::lock(&fs.core, dir, table::key(&fs.core, b"outer").hash).unwrap();
        assert_eq!(make(new).unwrap_err(), Error::WouldDeadlock);
        assert_eq!(fs.unlink(&root, Ino::ROOT, removed).unwrap_err(), Error::WouldDeadlock);
        let inner = fs.rename(&root, Ino::ROOT, renamed, Ino::ROOT, new, RenameMode::Replace);
        assert_eq!(inner.unwrap_err(), Error::WouldDeadlock);
        // What needs no name goes on.
        fs.write(&bench.file, 0, b"x").unwrap();
        drop(bucket);
        fs.release(make(new).unwrap().1);
    }
    fs.unlink(&root, Ino::ROOT, removed).unwrap();
    fs.rename(&root, Ino::ROOT, renamed, Ino::ROOT, new, RenameMode::Replace).unwrap();
    fs.release(bench.file);
    lease::leave(&fs.core);
}

#[test]
fn a_signal_handlers_call_never_waits_for_its_own_thread() {
    let bench = bench();
    let fs = bench.volume.fs();
    let inode = fs.core.inode(bench.file.ino).unwrap();
    {
        let _outer = lease::enter(&fs.core).unwrap();
        let latched = inode.volatile.eof.lock();
        let inner = fs.append(&bench.file, b"x").unwrap_err();
        assert_eq!(inner, heddle_vfs::Error::WouldDeadlock);
        drop(latched);
        fs.append(&bench.file, b"x").unwrap();
    }
    fs.release(bench.file);
    lease::leave(&fs.core);
}
