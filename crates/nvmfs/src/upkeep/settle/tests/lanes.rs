//! Settling beside others: a chain that another lane cleans meanwhile, a lane that is being reclaimed while its thread ends, a lane left by
//! exec, a bucket that has become another directory's.

use super::super::{Rounds, lanes, sweep};
use super::{PAGE, bench, dies, ended, state, verify};
use crate::log::chain;
use crate::names::table;
use crate::state::core::Core;
use crate::state::lease;
use crate::state::wait::holders;
use crate::steps::{Step, hook, step};
use crate::volume::bench::child;
use heddle_arena::sync::atomic::AtomicU32;
use heddle_arena::{Holder, LaneId};
use heddle_vfs::short::{Short, name, root};
use heddle_vfs::{FileSystem, Ino, procfs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Waits until it is so.
#[track_caller]
fn until(is_so: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "it does not come so far");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The lanes of other processes.
fn held_by_others(core: &Core) -> Vec<(LaneId, Holder)> {
    let (table, mine) = (core.lane_table(), core.process_slot().unwrap().tag());
    let all = lanes(core).filter_map(|lane| Some((LaneId(lane), table.holder(&core.arena, LaneId(lane))?)));
    all.filter(|(_, holder)| holder.process() != mine).collect()
}

/// Among clients that came and went beside others who wrote, settlers read logs whose pages others were freeing: "damage was found".
#[test]
fn crash_a_dead_lanes_chain_was_settled_during_anothers_cleaning() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = Arc::clone(&fs.core);
    assert!(!dies(u32::MAX, || drop(fs.write(&bench.file, 0, &[1; PAGE as usize]))));
    let ino = bench.file.ino;
    let kept = move |core: &Core| chain::existing(core, core.inode(ino).unwrap()).nth(1).map(|c| c.tail());
    let before = Some(kept(&core).expect("the dead one has made no chain of its own"));
    // The other one comes at the worst moment.
    let (other, taken) = (crate::ids::LANES, Arc::new(AtomicBool::new(false)));
    let (at, took) = (Arc::clone(&core), Arc::clone(&taken));
    hook::set(Some(Arc::new(move |step| {
        if step == crate::steps::Step::Repairing {
            let chain = chain::existing(&at, at.inode(ino).unwrap()).nth(1).unwrap();
            took.fetch_or(chain.claim_quiet(other), SeqCst);
        }
    })));
    sweep(&core);
    hook::set(None);
    assert!(taken.load(SeqCst), "nobody has settled the lane");
    let chain = chain::existing(&core, core.inode(ino).unwrap()).nth(1).unwrap();
    assert!(chain.is_busy_for(other), "the settler has taken the chain away");
    assert_eq!(kept(&core), before, "the settler has changed the other one's chain");
    chain.unclaim();
    let states = [state(&fs, &bench.file)];
    drop((fs, core));
    verify(bench, &states, "a chain that was kept");
}

#[test]
fn blocks_that_a_dead_threads_calls_had_freed_come_back() {
    let bench = bench();
    let fs = bench.volume.fs();
    let free = || fs.statfs().unwrap().blocks_free;
    let before = free();
    for _ in 0..30 {
        // The blocks that were there wait for the next fence of the lane.
        assert!(!dies(u32::MAX, || drop(fs.write(&bench.file, 0, &[1; 3 * PAGE as usize]))));
        sweep(&fs.core);
    }
    let missing = before.saturating_sub(free());
    assert!(missing < 24, "{missing} blocks were lost");
    fs.write(&bench.file, 0, &[1; 3 * PAGE as usize]).unwrap();
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "calls that had ended");
}

/// An ending thread's thread-locals of `state::wait` were destroyed before its lane was returned. Its wait for the reclaimer panicked: that
/// counted as damage, and nothing was written any more.
#[test]
fn a_thread_that_ends_waits_for_a_reclaimer_of_its_lane() {
    let bench = bench();
    let core = Arc::clone(&bench.volume.fs().core);
    // This thread is the reclaimer, in a call of its own.
    let guard = lease::enter(&core).unwrap();
    let reclaimer = guard.id;
    let (at, (tell, told)) = (Arc::clone(&core), std::sync::mpsc::channel());
    let ends = std::thread::spawn(move || {
        let lane = lease::enter(&at).unwrap().id;
        // It has waited for somebody before.
        crate::state::wait::held_up(&at, reclaimer, std::time::Duration::ZERO);
        at.lane(lane).intent.reclaimer.store(reclaimer.into(), SeqCst);
        tell.send(lane).unwrap();
    });
    let lane = core.lane(told.recv().unwrap());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(lane.intent.reclaimer.load(SeqCst) != 0, "the thread has not waited");
    lane.intent.reclaimer.store(0, SeqCst);
    ends.join().unwrap();
    drop(guard);
    assert_eq!(core.damage_found(), None);
}

#[test]
fn exec_leaves_a_lane_that_is_found_dead() {
    let bench = bench();
    let fs = bench.volume.fs();
    // SAFETY: the child starts one thread, which calls the file system and becomes another program.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fs.write(&bench.file, 0, &[9; PAGE as usize]).unwrap();
                // SAFETY: strings that end, and a list that does.
                unsafe { libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), std::ptr::null::<u8>()) };
            });
        });
        // SAFETY: ends this process.
        unsafe { libc::_exit(1) };
    }
    let status = ended(pid, 0);
    assert_eq!(status, 0, "/bin/true was not executed");
    let holders = || {
        let of_child = |lane: &u16| fs.core.lane(*lane).intent.holder.load(SeqCst) >> 32 == pid as u64;
        lanes(&fs.core).filter(of_child).count()
    };
    assert_eq!(holders(), 1);
    sweep(&fs.core);
    assert_eq!(holders(), 0, "its lane is lost");
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "a thread that executed something else");
}

/// It is locked by one who meant another directory, which has given its table up; the settler finds it all the same.
#[test]
fn a_dead_lockers_bucket_is_unlocked_though_another_directory_has_it() {
    let bench = bench();
    let fs = bench.volume.fs();
    let full = |text| {
        let dir = fs.new_dir(Ino::ROOT, text);
        (0..12).for_each(|n| fs.release(fs.new_file(dir, &format!("n{n}"))));
        let word = fs.core.inode(dir).unwrap().volatile.aux.load(SeqCst);
        (dir, word)
    };
    let (first, word) = full("first");
    (0..12).for_each(|n| fs.remove(first, &format!("n{n}")).unwrap());
    fs.rmdir(&root(), Ino::ROOT, name("first")).unwrap();
    let (second, its_word) = full("second");
    assert_eq!(its_word, word, "it has a table of its own");
    let core = &fs.core;
    let meant = core.inode(Ino::ROOT).unwrap();
    assert!(dies(1, || {
        let _guard = lease::enter(core).unwrap();
        table::lock_reused_table(core, meant, word);
        step(Step::Held);
    }));
    for n in 0..12 {
        fs.remove(second, &format!("n{n}")).unwrap();
    }
    fs.rmdir(&root(), Ino::ROOT, name("second")).unwrap();
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "a bucket of another directory");
}

/// The kernel shows its mappings below its other threads alone, and those of a child that it spawns as usual. Regression: living threads
/// lost their lanes, and blocks were freed twice.
#[test]
fn crash_a_process_whose_first_thread_had_ended_lost_its_lanes() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let ready = core.arena.get(core.arena.alloc(AtomicU32::new(0)).unwrap());
    let pid = child(|| {
        // SAFETY: the thread and its child only wait; they end with this process, and that with the test.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    drop(lease::enter(core).unwrap());
                    let shares_memory = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
                    if libc::syscall(libc::SYS_clone, shares_memory, 0, 0, 0, 0) == 0 {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        ready.store(1, SeqCst);
                        loop {
                            libc::pause();
                        }
                    }
                });
                libc::syscall(libc::SYS_exit, 0);
            });
        }
    });
    let has_ended = || std::fs::read(format!("/proc/{pid}/maps")).unwrap().is_empty();
    until(|| ready.load(SeqCst) != 0 && has_ended());
    let (table, held) = (core.lane_table(), || held_by_others(core));
    let before = held();
    let [(lane, holder)] = before[..] else { panic!("{before:?}") };
    let processes = holders::of(core, holder.process()).unwrap();
    let of_child = processes.iter().find(|process| process.pid == pid as u32).expect("it is not found");
    assert_eq!((of_child.task(holder.thread()), of_child.task(pid as u32)), (Some(holder.thread()), None));
    table.request_check(&core.arena, lane, holder);
    Rounds::default().go(core);
    assert_eq!(held(), before, "the lane of a living thread was taken");
    // SAFETY: a child of this test.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    ended(pid, 0);
    // Its own child holds the process slot until it ends, too.
    until(|| {
        sweep(core);
        held().is_empty()
    });
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "a process without its first thread");
}

/// It ends by a raw system call: nothing of the C library and of Rust has run. Its process lives on.
#[test]
fn a_silently_ended_threads_lane_is_found_when_somebody_waits() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let ready = core.arena.get(core.arena.alloc(AtomicU32::new(0)).unwrap());
    let pid = child(|| {
        // SAFETY: a plain system call. A test that fails leaves no child.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        drop(lease::enter(core).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(lease::enter(core).unwrap());
                // SAFETY: ends this thread, whose stack nobody uses any more.
                unsafe { libc::syscall(libc::SYS_exit, 0) };
            });
            // This one ends as it should. Its lane stays, for the file.
            let opener = scope.spawn(|| fs.new_file(Ino::ROOT, "opened"));
            let _opened = opener.join().unwrap();
            // The kernel's own list may lack one while another ends.
            until(|| procfs::threads(std::process::id()).unwrap().len() == 1);
            ready.store(1, SeqCst);
            loop {
                std::thread::park();
            }
        });
    });
    until(|| ready.load(SeqCst) != 0);
    let (table, held) = (core.lane_table(), || held_by_others(core));
    let before = held();
    assert_eq!(before.iter().filter(|(_, holder)| holder.thread() == 0).count(), 1, "of the opener");
    assert_eq!(before.len(), 3);
    let mut rounds = Rounds::default();
    rounds.go(core);
    assert_eq!(held().len(), 3, "nobody has waited for one of them");
    let settled = core.root().settled.load(SeqCst);
    let (lane, holder) = before[0];
    table.request_check(&core.arena, lane, holder);
    rounds.go(core);
    let after: Vec<u32> = held().iter().map(|(_, holder)| holder.thread()).collect();
    assert!(after.len() == 2 && after.contains(&0) && after.contains(&(pid as u32)), "{after:?}");
    assert_eq!(core.root().settled.load(SeqCst), settled + 1, "another lane was settled, too");
    // SAFETY: a child of this test.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    ended(pid, 0);
    sweep(core);
    assert_eq!(held().len(), 0);
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "a thread that ended silently");
}
