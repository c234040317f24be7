//! Handles of processes whose threads open and close for each other, that fork, and that end: a file ends with its last handle, not before,
//! and not later than the next round.

use super::super::sweep;
use super::{Bench, PAGE, bench, dies, ended};
use crate::fs::NvmFs;
use crate::state::lease;
use crate::volume::bench::child;
use heddle_arena::sync::atomic::AtomicU32;
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, OpenFlags};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const BLOCKS: u64 = 16;
/// Looks at a file that others close: some hundred thousand find a claim between its two steps.
const LOOKS: u32 = 1_000_000;

fn unnamed(fs: &NvmFs, name: &[u8]) -> Handle {
    let name = Name::new(name).unwrap();
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).unwrap();
    fs.write(&file, 0, &vec![7; (BLOCKS * PAGE) as usize]).unwrap();
    fs.unlink(&Cred::root(), Ino::ROOT, name).unwrap();
    file
}

fn open(fs: &NvmFs, ino: Ino) -> Handle {
    fs.open(&Cred::root(), ino, OpenFlags::READ_WRITE).unwrap()
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

fn is_alive(bench: &Bench, file: &Handle) -> bool {
    bench.volume.fs().core.slot(file.ino).unwrap().id().generation == file.token
}

fn end(bench: Bench) {
    bench.volume.fs().release(bench.file);
    lease::leave(&bench.volume.fs().core);
    bench.volume.unmount();
}

/// Two children whose second thread had opened what their first one closed took the parent's file away.
#[test]
fn crash_children_that_close_in_another_thread_leave_their_parents_handle_alone() {
    for thread_ends in [true, false] {
        let bench = bench();
        let fs = bench.volume.fs();
        let file = unnamed(&fs, b"u");
        for _ in 0..2 {
            let pid = child(|| {
                std::thread::scope(|scope| {
                    let (sender, receiver) = std::sync::mpsc::channel();
                    let fs = &fs;
                    let opener = scope.spawn(move || {
                        sender.send(open(fs, file.ino)).unwrap();
                        if !thread_ends {
                            sleep_for_ever();
                        }
                    });
                    let handle = receiver.recv().unwrap();
                    if thread_ends {
                        opener.join().unwrap();
                    }
                    fs.release(handle);
                    // SAFETY: ends this process, the other thread with it.
                    unsafe { libc::_exit(0) }
                })
            });
            assert_eq!(ended(pid, 0), 0);
        }
        sweep(&fs.core);
        let mut page = [0; PAGE as usize];
        assert_eq!(fs.read(&file, 0, &mut page), Ok(PAGE as usize), "the file ended under an open handle");
        assert!(is_alive(&bench, &file));
        let (ino, generation) = (file.ino, file.token);
        fs.release(file);
        let inode = fs.core.slot(ino).unwrap();
        assert_ne!(inode.id().generation, generation, "somebody's handle is counted for ever");
        drop(fs);
        end(bench);
    }
}

/// A program that followed another one on a full image had to wait for the daemon's next round.
#[test]
fn space_of_the_dead_is_there_for_a_call_that_finds_none() {
    let bench = bench();
    let fs = bench.volume.fs();
    let pid = child(|| {
        let file = unnamed(&fs, b"u");
        let mut at = BLOCKS * PAGE;
        while let Ok(len) = fs.write(&file, at, &[7; 16 * PAGE as usize]) {
            at += len as u64;
        }
        // SAFETY: ends this process, with the file open.
        unsafe { libc::_exit(3) };
    });
    assert_eq!(libc::WEXITSTATUS(ended(pid, 0)), 3);
    let available = fs.core.free_map().count_for_data();
    assert!(available < 64, "{available} blocks are left");
    assert_eq!(fs.write(&bench.file, 0, &[8; 256 * PAGE as usize]), Ok(256 * PAGE as usize));
    end(bench);
}

#[test]
fn an_unlinked_file_of_an_exited_process_is_freed_next_round() {
    // The thread that opened it ends before the process; or leaves its lane as a normal exit does; or does neither.
    for way in 0..3 {
        let bench = bench();
        let fs = bench.volume.fs();
        let free = || {
            lease::leave(&fs.core);
            fs.core.free_map().count()
        };
        // What a lane takes when it is leased first.
        assert_eq!(ended(child(|| drop(lease::enter(&fs.core).unwrap())), 0), 0);
        sweep(&fs.core);
        let before = free();
        let pid = child(|| match way {
            0 => {
                std::thread::scope(|scope| {
                    scope
                        .spawn(|| {
                            let _open = unnamed(&fs, b"u");
                        })
                        .join()
                        .unwrap()
                });
                lease::leave(&fs.core);
            }
            1 => {
                let _open = unnamed(&fs, b"u");
                lease::leave(&fs.core);
            }
            _ => {
                let _open = unnamed(&fs, b"u");
            }
        });
        assert_eq!(ended(pid, 0), 0);
        assert!(free() < before, "it had no blocks");
        sweep(&fs.core);
        // A page of the directory's log or two.
        assert!(free() + 4 > before, "way {way}: {} blocks are held by nobody", before - free());
        drop(fs);
        end(bench);
    }
}

/// The counts of all were gone before the first of them was ended.
#[test]
fn files_of_the_dead_end_though_a_settler_dies_among_them() {
    for then in 1.. {
        let bench = bench();
        let fs = bench.volume.fs();
        // What a lane takes when it is leased first.
        assert_eq!(ended(child(|| drop(lease::enter(&fs.core).unwrap())), 0), 0);
        sweep(&fs.core);
        lease::leave(&fs.core);
        let before = fs.core.free_map().count();
        let pid = child(|| _ = [b"u", b"v", b"w"].map(|name| unnamed(&fs, name)));
        assert_eq!(ended(pid, 0), 0);
        let settler_died = dies(then, || _ = sweep(&fs.core));
        sweep(&fs.core);
        lease::leave(&fs.core);
        let now = fs.core.free_map().count();
        // Some pages of the directory's log.
        assert!(
            now + BLOCKS > before,
            "settled as far as {then}: {} blocks are held by nobody",
            before - now
        );
        drop(fs);
        end(bench);
        if !settler_died {
            break;
        }
    }
}

/// The one who looked had no lane, and took a claim that was given up at that very moment for its own.
#[test]
fn crash_an_open_file_was_stale_after_a_claim_was_given_up() {
    let bench = bench();
    let fs = bench.volume.fs();
    let (file, over) = (unnamed(&fs, b"looked at"), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while over.load(SeqCst) == 0 {
                fs.release(open(&fs, file.ino));
            }
            lease::leave(&fs.core);
        });
        let found = (0..LOOKS).all(|_| fs.getattr(file.ino).is_ok());
        over.store(1, SeqCst);
        assert!(found, "it is open");
    });
    fs.release(file);
    end(bench);
}

#[test]
fn handles_of_ended_threads_share_a_lane() {
    let bench = bench();
    let fs = bench.volume.fs();
    let files: Vec<Handle> = (0..20u8)
        .map(|n| std::thread::scope(|scope| scope.spawn(|| unnamed(&fs, &[b'A' + n])).join().unwrap()))
        .collect();
    let held = lease::lanes(&fs.core)
        .filter(|lane| fs.core.lane_table().holder(&fs.core.arena, heddle_arena::LaneId(*lane)).is_some())
        .count();
    assert!(held <= 2, "{held} lanes are held for handles");
    assert!(files.iter().all(|file| is_alive(&bench, file)));
    let inos: Vec<_> = files.iter().map(|file| (file.ino, file.token)).collect();
    files.into_iter().for_each(|file| fs.release(file));
    let living = inos.iter().filter(|(ino, of)| fs.core.slot(*ino).unwrap().id().generation == *of).count();
    assert_eq!(living, 0, "of 20 files that nobody has open");
    drop(fs);
    end(bench);
}

/// What happens to a file that A opened, then forked B, which opened it too.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Event {
    /// Another thread of B than the one that opened it closes it.
    CloseInB,
    DeathOfB,
    /// Another thread of A than the one that opened it closes it.
    CloseInA,
    DeathOfA,
}

#[test]
fn an_unlinked_file_lives_until_its_last_process_closes_or_dies() {
    let orders = orders();
    // 4! orders of all four events, less those in which a dead process closes; and those in which A, B or both never close.
    assert_eq!(orders.len(), 6 + 3 + 3 + 2);
    for order in orders {
        run(&order);
    }
}

/// Both die; each closes before, or never.
fn orders() -> Vec<Vec<Event>> {
    use Event::{CloseInA, CloseInB, DeathOfA, DeathOfB};
    let mut all = vec![vec![]];
    let mut ended = Vec::new();
    while let Some(order) = all.pop() {
        let has = |event: &Event| order.contains(event);
        if has(&DeathOfA) && has(&DeathOfB) {
            ended.push(order);
            continue;
        }
        let can_be_next = |event: &Event| match event {
            CloseInA => !has(&CloseInA) && !has(&DeathOfA),
            CloseInB => !has(&CloseInB) && !has(&DeathOfB),
            death => !has(death),
        };
        let nexts = [CloseInA, CloseInB, DeathOfA, DeathOfB].into_iter().filter(can_be_next);
        all.extend(nexts.map(|next| [order.as_slice(), &[next]].concat()));
    }
    ended
}

/// One process of the two: opens, says so in `ready`, and closes in another thread when `close` says so.
fn take_part(fs: &NvmFs, ino: Ino, [ready, close]: [&AtomicU32; 2]) {
    let handle = open(fs, ino);
    ready.store(1, SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until(|| close.load(SeqCst) == 1);
            fs.release(handle);
            close.store(2, SeqCst);
            sleep_for_ever();
        });
    });
}

fn until(done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing happens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn run(order: &[Event]) {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let words = core.arena.alloc_slice(5, |_| AtomicU32::new(0)).unwrap();
    let [a_ready, a_close, b_ready, b_close, b_pid] = core.arena.slice(words, 5) else { unreachable!() };
    let file = unnamed(&fs, b"u");
    let id = (file.ino, file.token);
    let a = child(|| {
        let b = child(|| {
            until(|| a_ready.load(SeqCst) == 1);
            take_part(&fs, id.0, [b_ready, b_close]);
        });
        b_pid.store(b as u32, SeqCst);
        take_part(&fs, id.0, [a_ready, a_close]);
    });
    until(|| b_ready.load(SeqCst) == 1 && b_pid.load(SeqCst) != 0);
    fs.release(file);
    let mut open = [true, true];
    for event in order {
        let lives = core.slot(id.0).unwrap().id().generation == id.1;
        assert_eq!(lives, open != [false, false], "{order:?}, before {event:?}");
        match event {
            Event::CloseInA | Event::CloseInB => {
                let word = if *event == Event::CloseInA { a_close } else { b_close };
                word.store(1, SeqCst);
                until(|| word.load(SeqCst) == 2);
            }
            Event::DeathOfA => {
                // SAFETY: a child of this process, reaped below.
                unsafe { libc::kill(a, libc::SIGKILL) };
                ended(a, 0);
            }
            Event::DeathOfB => {
                // SAFETY: the grandchild of this test, which ends by this alone.
                unsafe { libc::kill(b_pid.load(SeqCst) as i32, libc::SIGKILL) };
            }
        }
        let of_a = matches!(event, Event::CloseInA | Event::DeathOfA);
        open[usize::from(!of_a)] = false;
        // The kernel frees a dead process's slot a moment after the signal.
        let ended = || core.slot(id.0).unwrap().id().generation != id.1;
        if open == [false, false] {
            until(|| {
                sweep(core);
                ended()
            });
        } else {
            sweep(core);
        }
    }
    drop(fs);
    end(bench);
}
