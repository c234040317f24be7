//! What comes over the processes of a tree: they are killed, stopped, frozen.

use super::ledger::now_ms;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A process and all below it. One that has just been forked may be missing.
pub fn with_children(root: u32) -> Vec<u32> {
    let (mut found, mut at) = (vec![root], 0);
    while at < found.len() {
        let tasks = fs::read_dir(format!("/proc/{}/task", found[at]));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        at += 1;
    }
    found.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// The root of the tree is ours and was not waited for, so its number means nobody else; those below were looked up just now.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: a plain system call.
    unsafe { libc::kill(pid as i32, signal) };
}

/// A control group that can be frozen, of the first or the second version.
pub struct Freezer {
    dir: PathBuf,
    second: bool,
}

impl Freezer {
    /// One of each version that this machine has, and this user may make.
    pub fn all() -> Vec<Freezer> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = std::process::id();
        let groups = mounts.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let second = fields[2] == "cgroup2";
            let first = fields[2] == "cgroup" && fields[3].split(',').any(|option| option == "freezer");
            (first || second).then(|| (PathBuf::from(fields[1]), second))
        });
        let made = groups.filter_map(|(at, second)| {
            let dir = at.join(format!("heddle-living-{own}"));
            fs::create_dir(&dir).ok()?;
            let there = dir.join(if second { "cgroup.freeze" } else { "freezer.state" }).exists();
            there.then_some(Freezer { dir, second })
        });
        made.collect()
    }

    pub fn freeze(&self, pids: &[u32]) {
        self.set("1", "FROZEN");
        self.take(pids);
    }

    fn take(&self, pids: &[u32]) {
        for pid in pids {
            let _gone = fs::write(self.dir.join("cgroup.procs"), pid.to_string());
        }
    }

    pub fn thaw(&self) {
        self.set("0", "THAWED");
    }

    fn set(&self, second: &str, first: &str) {
        let (file, word) = if self.second { ("cgroup.freeze", second) } else { ("freezer.state", first) };
        fs::write(self.dir.join(file), word).unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        // Those that are left are moved to the topmost group.
        let left = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        for pid in left.lines() {
            let _gone = fs::write(self.dir.parent().unwrap().join("cgroup.procs"), pid);
        }
        let _left = fs::remove_dir(&self.dir);
    }
}

/// Processes that stand still until a moment.
pub struct Stopped {
    pub tree: usize,
    pids: Vec<u32>,
    freezer: Option<usize>,
    until_ms: u64,
}

impl Stopped {
    /// By a signal, or by one of the freezers.
    pub fn stop(
        tree: usize,
        pids: Vec<u32>,
        freezer: Option<usize>,
        freezers: &[Freezer],
        for_ms: u64,
    ) -> Stopped {
        match freezer {
            Some(at) => freezers[at].freeze(&pids),
            None => pids.iter().for_each(|pid| signal(*pid, libc::SIGSTOP)),
        }
        Stopped { tree, pids, freezer, until_ms: now_ms() + for_ms }
    }

    pub fn is_over(&self) -> bool {
        now_ms() >= self.until_ms
    }

    /// They go on, those that live.
    pub fn go_on(&self, root: Option<u32>, freezers: &[Freezer]) {
        if let Some(at) = self.freezer {
            freezers[at].thaw();
        } else {
            let living = root.map(with_children).unwrap_or_default();
            self.pids.iter().filter(|pid| living.contains(pid)).for_each(|pid| signal(*pid, libc::SIGCONT));
        }
    }
}

/// Does anybody of the tree live?
pub fn is_dead(lock: &Path) -> bool {
    use std::os::fd::AsRawFd;
    let Ok(lock) = fs::File::open(lock) else { return true };
    // SAFETY: a plain system call; closing the descriptor unlocks it.
    unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// Processes that have this file open.
pub fn holders_of(file: &Path) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|path| path == file)
    };
    pids.filter(|pid| *pid != std::process::id()).filter(holds).collect()
}

/// What the kernel says of the threads of processes: who stands where.
pub fn describe(pids: &[u32]) -> String {
    let line = |pid: &u32, task: &Path| {
        let read = |what: &str| fs::read_to_string(task.join(what)).unwrap_or_default();
        let status = read("status");
        let of =
            |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        format!(
            "{pid} {}: {} {} {} {}",
            task.display(),
            of("State"),
            of("NSpid"),
            read("wchan"),
            read("syscall").trim()
        )
    };
    let lines = pids.iter().flat_map(|pid| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks.map(move |task| line(pid, &task.path()))
    });
    lines.collect::<Vec<_>>().join("\n")
}
