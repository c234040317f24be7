//! A holder in a frozen control group is stopped as one that got SIGSTOP is, though its state does not say so.

use super::{PAGE, bench, ended, state, verify};
use crate::steps::{Step, hook};
use heddle_arena::sync::atomic::AtomicU32;
use heddle_vfs::FileSystem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// A control group of one test; when it is dropped it goes, and what still is in it.
pub struct Group {
    pub dir: PathBuf,
    thaw: (&'static str, &'static str),
}

impl Group {
    /// Makes it; `None`: this machine or this user has no such groups.
    fn make(parent: &str, file: &'static str, thawed: &'static str) -> Option<Group> {
        // Tests of one process run side by side, and each needs a group that no other removes.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("heddle-test-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let dir = Path::new(parent).join(name);
        std::fs::create_dir(&dir).ok()?;
        let group = Group { dir, thaw: (file, thawed) };
        group.dir.join(file).exists().then_some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let began = Instant::now();
        while std::fs::remove_dir(&self.dir).is_err() && began.elapsed() < Duration::from_secs(5) {
            // Here is only what a failed test has left: it would be frozen for ever.
            let left = std::fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
            for pid in left.lines().filter_map(|pid| pid.parse().ok()) {
                // SAFETY: a child of this test, which put it here.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            let _may_be_thawed = std::fs::write(self.dir.join(self.thaw.0), self.thaw.1);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Groups of either version that can be frozen, as far as this machine lets this user make them: the file that freezes, and what is
/// written to it. Of several, one each.
pub fn groups() -> Vec<(Group, &'static str, &'static str)> {
    let parents = [
        ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
        ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
        ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
    ];
    let made = parents.into_iter().filter_map(|(parent, file, freeze, thaw)| {
        Group::make(parent, file, thaw).map(|group| (group, file, freeze))
    });
    let made: Vec<_> = made.collect();
    if made.is_empty() {
        eprintln!("SKIPPED: frozen control groups, which this user may not make here");
    }
    made
}

#[test]
fn a_holder_in_a_frozen_cgroup_is_killed_after_the_patience() {
    for (group, file, freeze) in groups() {
        let bench = bench();
        let fs = bench.volume.fs();
        fs.core.root().patience_ms.store(200, Relaxed);
        let held = fs.core.arena.get(fs.core.arena.alloc(AtomicU32::new(0)).unwrap());
        // SAFETY: the child writes and waits while it holds a cell; it leaves by the signal that this is about.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let address = std::ptr::from_ref(held) as usize;
            hook::set(Some(Arc::new(move |step| {
                if step == Step::Held {
                    // SAFETY: in the arena, which is mapped.
                    unsafe { &*(address as *const AtomicU32) }.store(1, SeqCst);
                    std::thread::sleep(Duration::from_secs(60));
                }
            })));
            fs.write(&bench.file, 0, &[1; PAGE as usize]).unwrap();
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) };
        }
        while held.load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::write(group.dir.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(group.dir.join(file), freeze).unwrap();
        let began = Instant::now();
        fs.write(&bench.file, 0, &[2; PAGE as usize]).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "waited {:?}", began.elapsed());
        let status = ended(pid, 0);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "{file}");
        let states = [state(&fs, &bench.file)];
        drop(fs);
        verify(bench, &states, "a frozen writer");
    }
}

#[test]
fn a_holder_that_sleeps_is_not_taken_for_a_frozen_one() {
    let bench = bench();
    let fs = bench.volume.fs();
    fs.core.root().patience_ms.store(50, Relaxed);
    // SAFETY: the child writes, sleeps while it holds a cell, and ends.
    let pid = unsafe { libc::fork() };
    let held = |step| {
        if step == Step::Held {
            std::thread::sleep(Duration::from_millis(700));
        }
    };
    if pid == 0 {
        hook::set(Some(Arc::new(held)));
        fs.write(&bench.file, 0, &[1; PAGE as usize]).unwrap();
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    std::thread::sleep(Duration::from_millis(200));
    fs.write(&bench.file, 0, &[2; PAGE as usize]).unwrap();
    assert_eq!(ended(pid, 0), 0, "a process that was only slow was killed");
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "a slow writer");
}
