//! Processes of a test: it starts itself again as each of them, at an ignored test of its own called `the_process_that_plays_a_role`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "HEDDLE_TEST_ROLE";
const FILE: &str = "HEDDLE_TEST_FILE";

/// What this process is to do: a name, its numbers, and a file. `None` where nobody has started it as one.
pub fn role() -> Option<(String, Vec<u64>, PathBuf)> {
    let role = std::env::var(ROLE).ok()?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let mut words = role.split(' ');
    let name = words.next().unwrap().to_owned();
    Some((name, words.map(|word| word.parse().unwrap()).collect(), std::env::var_os(FILE).unwrap().into()))
}

/// A process that does not outlive the test.
pub struct Role(Child, String);

impl Role {
    /// `bypass`: it skips the kernel.
    pub fn start(role: &str, file: &Path, bypass: bool) -> Role {
        let me = std::env::current_exe().unwrap();
        let mut command = Command::new(if bypass { Path::new(env!("CARGO_BIN_EXE_heddle")) } else { &me });
        if bypass {
            command.args(["run", "--"]).arg(&me);
        }
        command.args(["--exact", "the_process_that_plays_a_role", "--ignored", "--nocapture"]);
        // To write one out takes a second of a debug build, during which all other threads that panic wait.
        command.args(["--test-threads=1"]).env(ROLE, role).env(FILE, file).env("RUST_BACKTRACE", "0");
        Role(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap(), role.to_owned())
    }

    pub fn succeeds(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{} failed ({status}): its own output says why", self.1);
    }
}

impl Role {
    /// How it ends, if it does so within that time.
    pub fn ends_within(&mut self, time: Duration) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match self.0.try_wait().unwrap() {
                None if began.elapsed() < time => std::thread::sleep(Duration::from_millis(2)),
                ended => return ended,
            }
        }
    }

    /// Where its threads are, as far as the kernel says.
    pub fn stacks(&self) -> String {
        stacks(self.0.id())
    }
}

/// Where a process's threads are: what they are called, and the system calls that they wait in; where there is gdb, how they got there.
pub fn stacks(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let read =
        |task: &Path, what| std::fs::read_to_string(task.join(what)).unwrap_or_default().trim().to_owned();
    let said =
        |task: &Path| format!("{} {} {}", read(task, "comm"), read(task, "wchan"), read(task, "syscall"));
    let waits: Vec<String> = tasks.map(|task| said(&task.path())).collect();
    format!("{}\n{}", waits.join("\n"), backtraces(pid))
}

fn backtraces(pid: u32) -> String {
    let mut gdb = Command::new("timeout");
    gdb.args(["-s", "KILL", "60", "gdb", "-nx", "-batch", "-p", &pid.to_string()]);
    gdb.args(["-ex", "set print frame-arguments none", "-ex", "thread apply all bt 25"]);
    let said = gdb.stdin(Stdio::null()).output().map(|said| said.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    said.lines().filter(|line| line.starts_with(['#', 'T'])).collect::<Vec<_>>().join("\n")
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
