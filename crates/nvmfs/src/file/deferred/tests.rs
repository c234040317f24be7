//! Readers whose pins overlap without end: what writers replace meanwhile is used again all the same.

mod waits;

use super::unpin;
use crate::MountOptions;
use crate::NvmFs;
use crate::Variant;
use crate::Volume;
use crate::format_region;
use crate::mount;
use crate::region::Region;
use crate::state::inode::Phase;
use crate::state::lease;
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, OpenFlags, SetAttr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const PAGE: usize = 4096;
const PAGES: usize = 64;

struct Bench {
    file: Handle,
    fs: NvmFs,
    _volume: Volume,
}

impl Bench {
    fn new() -> Bench {
        let region = Region::anonymous(4 << 20).unwrap();
        format_region(&region, Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 256 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let (fs, name) = (volume.fs(), Name::new(b"file").unwrap());
        let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
        let bench = Bench { file, fs, _volume: volume };
        bench.overwrite(1);
        bench
    }

    fn overwrite(&self, value: u8) {
        self.fs.write(&self.file, 0, &vec![value; PAGES * PAGE]).unwrap();
    }

    fn pin(&self) -> Phase {
        self.fs.core.inode(self.file.ino).unwrap().volatile.pins.pin()
    }

    fn unpin(&self, phase: Phase) {
        let core = &self.fs.core;
        let mut guard = lease::enter(core).unwrap();
        unpin(core, &mut guard, core.inode(self.file.ino).unwrap(), phase);
    }

    fn free(&self) -> u64 {
        self.fs.statfs().unwrap().blocks_free
    }
}

/// The image has room for the file some ten times.
#[test]
fn writers_find_space_while_readers_overlap_without_end() {
    let bench = Bench::new();
    let free = bench.free();
    let mut reader = bench.pin();
    for round in 0..200 {
        bench.overwrite(round);
        let next = bench.pin();
        bench.unpin(reader);
        reader = next;
    }
    bench.unpin(reader);
    assert!(bench.fs.core.inode(bench.file.ino).unwrap().volatile.pins.now().none());
    // A page of log may have come.
    assert!(bench.free() + 2 >= free, "{} of {free} blocks are free", bench.free());
}

/// What was replaced while a reader has its pin keeps its bytes, whatever other readers do.
#[test]
fn what_a_reader_has_pinned_is_not_used_again() {
    let bench = Bench::new();
    let core = &bench.fs.core;
    let inode = core.inode(bench.file.ino).unwrap();
    let free = bench.free();
    let reader = bench.pin();
    let block = inode.volatile.index().find(&core.arena, crate::ids::PageNo(0)).unwrap().cells[0]
        .map()
        .block()
        .unwrap();
    for round in 2..8 {
        let other = bench.pin();
        bench.overwrite(round);
        bench.unpin(other);
        let mut bytes = vec![0; PAGE];
        core.region.read(block.pos(), &mut bytes);
        assert_eq!(bytes, vec![1; PAGE], "round {round}");
    }
    assert!(bench.free() + PAGES as u64 <= free, "nothing waited");
    bench.unpin(reader);
    // A page of log may have come.
    assert!(bench.free() + 2 >= free, "what waited for the reader did not come back");
}

/// A process that has pinned the file, and has stopped.
fn stopped_reader(bench: &Bench) -> libc::pid_t {
    // SAFETY: the child takes a pin, stops, and leaves by a signal.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let core = &bench.fs.core;
        let guard = lease::enter(core).unwrap();
        super::pin(&guard, core.inode(bench.file.ino).unwrap());
        // SAFETY: stops and ends this process.
        unsafe {
            libc::kill(libc::getpid(), libc::SIGSTOP);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) }, pid);
    assert!(libc::WIFSTOPPED(status));
    pid
}

fn ends_by_a_kill(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL);
}

#[test]
fn a_stopped_reader_holds_no_space_beyond_the_patience() {
    let bench = Bench::new();
    bench.fs.core.root().patience_ms.store(300, Relaxed);
    let before = bench.free();
    let reader = stopped_reader(&bench);
    for round in 0..40 {
        bench.overwrite(round);
        let other = Name::new(b"other").unwrap();
        let made = bench.fs.create(&Cred::root(), Ino::ROOT, other, 0o644, OpenFlags::READ_WRITE);
        let (_, other) = made.unwrap_or_else(|e| panic!("round {round}: {e}"));
        bench.fs.write(&other, 0, &[1; 8 * PAGE]).unwrap();
        bench.fs.release(other);
        bench.fs.unlink(&Cred::root(), Ino::ROOT, Name::new(b"other").unwrap()).unwrap();
    }
    ends_by_a_kill(reader);
    assert!(bench.free() + 40 > before, "{} blocks were free, {} are", before, bench.free());
}

#[test]
fn blocks_deferred_for_a_killed_reader_are_free_once_settled() {
    let bench = Bench::new();
    let before = bench.free();
    let reader = stopped_reader(&bench);
    bench.overwrite(2);
    // SAFETY: this test's own child.
    unsafe { libc::kill(reader, libc::SIGKILL) };
    ends_by_a_kill(reader);
    crate::upkeep::settle::sweep(&bench.fs.core);
    assert!(bench.free() + 24 > before, "{} blocks were free, {} are", before, bench.free());
}

/// Longer than any call takes, on a loaded machine too; a tenth of the patience below.
const SOON: Duration = Duration::from_secs(6);

/// Runs `work` in one thread while another has pinned the file. `look` sees whether the work is at its end; behind it the pin goes.
fn beside_a_reader(bench: &Bench, work: impl FnOnce() + Send, look: impl FnOnce(&Receiver<()>)) {
    let core = &bench.fs.core;
    core.root().patience_ms.store(60_000, Relaxed);
    let inode = core.inode(bench.file.ino).unwrap();
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        let mut guard = lease::enter(core).unwrap();
        let phase = super::pin(&guard, inode);
        scope.spawn(move || {
            work();
            // The test may have ended by a failure.
            let _ = done.send(());
        });
        let looked = catch_unwind(AssertUnwindSafe(|| look(&is_done)));
        unpin(core, &mut guard, inode, phase);
        looked.unwrap_or_else(|failed| resume_unwind(failed));
    });
}

fn waiting(bench: &Bench) -> u64 {
    bench.fs.core.root().deferred.load(Relaxed)
}

fn share(bench: &Bench) -> usize {
    (bench.fs.core.layout.blocks_total / super::DEFERRED_SHARE) as usize
}

#[test]
fn a_writer_that_leaves_readers_more_than_their_share_waits() {
    let bench = Bench::new();
    let pages = share(&bench) + 1;
    let overwrite = || bench.fs.write(&bench.file, 0, &vec![2; pages * PAGE]).map(drop).unwrap();
    overwrite();
    beside_a_reader(&bench, overwrite, |is_done| {
        while waiting(&bench) < pages as u64 {
            std::thread::yield_now();
        }
        assert!(
            is_done.recv_timeout(super::LONGEST / 4).is_err(),
            "{pages} blocks wait, the writer does not"
        );
    });
    assert_eq!(waiting(&bench), 0);
}

#[test]
fn a_writer_that_leaves_readers_their_share_goes_on() {
    let bench = Bench::new();
    let pages = share(&bench);
    let overwrite = || bench.fs.write(&bench.file, 0, &vec![2; pages * PAGE]).map(drop).unwrap();
    overwrite();
    beside_a_reader(&bench, overwrite, |is_done| {
        is_done.recv_timeout(SOON).expect("the writer goes on");
        assert_eq!(waiting(&bench), pages as u64, "as many blocks as may wait");
    });
}

/// A truncation holds the latch of the file's end, which the reader may need.
#[test]
fn a_call_that_holds_a_latch_waits_for_no_reader() {
    let bench = Bench::new();
    let pages = share(&bench) + 1;
    bench.fs.write(&bench.file, 0, &vec![2; pages * PAGE]).unwrap();
    let size = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    let cut = || bench.fs.setattr(&Cred::root(), bench.file.ino, Some(&bench.file), &size).map(drop).unwrap();
    beside_a_reader(&bench, cut, |is_done| {
        is_done.recv_timeout(SOON).expect("the truncation goes on");
        assert_eq!(waiting(&bench), pages as u64);
    });
}

/// A thread that is held up within a call has blocks in its hands: who finds no space waits for it.
#[test]
fn what_a_thread_in_a_call_keeps_is_waited_for() {
    use crate::steps::{Step, hook};
    let region = Region::anonymous(64 << 20).unwrap();
    format_region(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions { arena_bytes: 256 << 20, ..MountOptions::default() }).unwrap();
    let fs = volume.fs();
    let create = |name: &[u8]| {
        let name = Name::new(name).unwrap();
        fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap().1
    };
    let (slow, all) = (create(b"slow"), create(b"all"));
    let (inside, is_inside) = channel();
    let (go_on, may_go_on) = channel::<()>();
    std::thread::scope(|scope| {
        let (fs, slow) = (&fs, &slow);
        scope.spawn(move || {
            // Its magazine is filled.
            fs.write(slow, 0, &[1; PAGE]).unwrap();
            let wait = std::cell::RefCell::new(Some(may_go_on));
            #[allow(clippy::arc_with_non_send_sync, reason = "a hook is of one thread")]
            let hook: hook::Hook = std::sync::Arc::new(move |step| {
                if step == Step::Held
                    && let Some(wait) = wait.borrow_mut().take()
                {
                    inside.send(()).unwrap();
                    wait.recv().unwrap();
                }
            });
            hook::set(Some(hook));
            fs.write(slow, 0, &[2; PAGE]).unwrap();
            hook::set(None);
        });
        is_inside.recv().unwrap();
        let held = || lease::lanes(&fs.core).map(|lane| fs.core.lane(lane).held()).sum::<u64>();
        scope.spawn(move || {
            while fs.core.free_map().count_for_data() > 0 {
                std::thread::yield_now();
            }
            // Now the one below finds no space, and waits.
            std::thread::sleep(super::LONGEST / 4);
            go_on.send(()).unwrap();
        });
        while fs.append(&all, &[7; 16 * PAGE]).is_ok() {}
        while fs.append(&all, &[7; PAGE]).is_ok() {}
        assert!(held() < 8, "{} blocks are in threads' hands, and a file cannot grow", held());
    });
    fs.release(slow);
    fs.release(all);
}

#[test]
fn a_call_without_space_waits_until_a_stopped_reader_is_killed() {
    for patience in [1, 200, 8_000, 30_000, 600_000].map(Duration::from_millis) {
        let killed = crate::state::wait::first_check(patience) + patience;
        assert!(super::longest(Some(patience), true) > killed + Duration::from_secs(1), "{patience:?}");
    }
    assert_eq!(super::longest(None, true), super::LONGEST, "nobody is killed");
    assert_eq!(super::longest(Some(Duration::from_secs(30)), false), super::LONGEST, "all run");
}
