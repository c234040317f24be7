//! RAM disks: they work, and whatever happens, nothing of them stays. Needs root and mkfs; skipped, and said so, else.

use super::{directory, measured, quick};
use crate::environment::Environment;
use crate::target::{Kernel, Need};
use crate::worker_pool::processes::Home;
use crate::*;
use std::io::Write;
use std::time::{Duration, Instant};

/// RAM disks are counted by these tests, so one at a time.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Is there everything that a RAM disk needs here? If not, says what is missing.
fn possible(kernel: Kernel) -> bool {
    let need = Need { bytes: 0, files: 0, workers: 1, direct: false };
    match Environment::ram_disk(kernel, &need) {
        Ok(_) => true,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            false
        }
    }
}

/// Loop devices over our memory files.
fn devices() -> usize {
    let backing =
        |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok();
    let all = std::fs::read_dir("/sys/block").into_iter().flatten().flatten().filter_map(backing);
    all.filter(|file| file.contains("heddle-fxmark")).count()
}

fn mounts() -> usize {
    std::fs::read_to_string("/proc/self/mounts").unwrap().lines().count()
}

/// Waits for the kernel, which takes a device down a moment after its last user has gone.
fn all_gone() {
    let end = Instant::now() + Duration::from_secs(10);
    while devices() > 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(devices(), 0, "loop devices were left");
}

#[test]
fn ram_disks_are_measured_and_leave_nothing() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    for kernel in Kernel::ALL {
        if possible(kernel) {
            let before = mounts();
            let workloads = [Workload::DWOM, Workload::DWSL, Workload::MWRM];
            measured(&quick(workloads, vec![Target::Kernel(kernel)]));
            assert_eq!(mounts(), before);
            all_gone();
        }
    }
}

#[test]
fn direct_reads_and_writes_are_measured_on_a_device() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    if possible(Kernel::Ext4) {
        let workloads = Workload::all().filter(|w| w.takes_direct());
        measured(&Config { direct: true, ..quick(workloads, vec![Target::Kernel(Kernel::Ext4)]) });
    }
}

#[test]
fn a_full_device_ends_the_originals_append_early_and_fails_ours() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    if !possible(Kernel::Tmpfs) {
        return;
    }
    let tmpfs = vec![Target::Kernel(Kernel::Tmpfs)];
    let run = |faithful| {
        let job =
            Config { faithful, secs: 0.2, ..quick([Workload::DWAL], tmpfs.clone()) }.job(Workload::DWAL, 1);
        let small = Need { bytes: 0, files: 0, workers: 1, direct: false };
        let job = crate::config::Job { window_pages: 1 << 30, ..job };
        let home = Home::Environment(Environment::ram_disk(Kernel::Tmpfs, &small).unwrap());
        let job = crate::config::Job { secs: 5.0, ..job };
        let board = crate::worker_pool::processes::run(&home, &job, &machine::allowed_cpus()).unwrap();
        Run::measured(&Target::Kernel(Kernel::Tmpfs), &job, 0, &board)
    };
    let faithful = run(true);
    assert_eq!(faithful.error, None);
    assert!(faithful.ops > 10_000 && faithful.secs < 5.0, "64 MiB are 16384 blocks: {faithful}");
    let ours = run(false);
    assert!(ours.error.unwrap().contains("write failed: No space left"));
}

/// Runs `target` in a forked child, and kills the child in mid-run, as a user or the system may.
fn killed(signal: libc::c_int, target: &Target) {
    let config = Config { secs: 30.0, ..quick([Workload::DWOM], vec![target.clone()]) };
    // SAFETY: the child runs a benchmark and exits; see `worker_pool::processes`, I2.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: in a child of one thread. A shell that started the tests in the background has had SIGINT ignored.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        let report = run(&config, &mut ());
        // Past the harness, which keeps what a test prints to itself, in the parent.
        let _ = writeln!(std::io::stderr(), "ended before it was killed: {report:?}");
        // SAFETY: leaves without running anything of the test's.
        unsafe { libc::_exit(0) };
    }
    std::thread::sleep(Duration::from_millis(1500));
    // SAFETY: our own child, not reaped yet.
    unsafe {
        assert_eq!(libc::kill(pid, signal), 0);
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        assert!(libc::WIFSIGNALED(status), "it was in the middle of its run");
    }
}

#[test]
fn a_killed_run_leaves_no_ram_disk() {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    if possible(Kernel::Ext4) {
        let before = mounts();
        for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGINT] {
            killed(signal, &Target::Kernel(Kernel::Ext4));
            all_gone();
        }
        assert_eq!(mounts(), before);
    }
}

/// Processes that work below a directory, with their parents.
fn processes_in(dir: &std::path::Path) -> Vec<(libc::pid_t, libc::pid_t)> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let inside =
        all.filter(|e| std::fs::read_link(e.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir)));
    let pair = |entry: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, parent))
    };
    inside.filter_map(pair).collect()
}

#[test]
fn a_worker_that_dies_fails_the_run_at_once() {
    let dir = directory();
    let target = Target::find(&format!("here={}", dir.path().display()), &[]).unwrap();
    let config = Config { secs: 60.0, ..quick([Workload::DWOM], vec![target]) };
    let start = Instant::now();
    let report = std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&config, &mut ()).unwrap());
        let worker = loop {
            let all = processes_in(dir.path());
            if let Some((worker, _)) = all.iter().find(|(_, parent)| all.iter().any(|(pid, _)| pid == parent))
            {
                break *worker;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no worker in sight");
            std::thread::sleep(Duration::from_millis(10));
        };
        // SAFETY: a worker of this test's run: it works in this test's directory.
        unsafe { libc::kill(worker, libc::SIGKILL) };
        running.join().unwrap()
    });
    assert!(report.runs[0].error.as_ref().unwrap().contains("was killed by signal 9"), "{}", report.runs[0]);
    assert!(start.elapsed() < Duration::from_secs(90));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_killed_run_leaves_nothing_in_a_directory() {
    let dir = directory();
    let target = Target::find(&format!("here={}", dir.path().display()), &[]).unwrap();
    let left = || std::fs::read_dir(dir.path()).unwrap().count();
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        killed(signal, &target);
        let end = Instant::now() + Duration::from_secs(10);
        while left() > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(left(), 0);
    }
}
