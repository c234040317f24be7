//! Child processes with a time limit: a test that hangs is a failed test, not a lost evening.
//!
//! The children stay in the terminal's process group, so that Ctrl-C reaches them; at the limit the whole tree is
//! killed by walking `/proc` for descendants. If a signal ends the chore alone, the kernel ends its children.

mod clock;
mod kill;
#[cfg(test)]
mod tests;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use clock::{end_by, is_over};

/// Of all programs at once: another choice of packages would have other features, and compile the engine anew.
pub const RELEASE_BUILD: &[&str] =
    &["build", "--quiet", "--workspace", "--exclude", "xtask", "--exclude", "heddle-fuzz", "--release"];

/// Cargo in the workspace's root, the very one that runs this chore.
pub fn cargo(root: &Path, args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    // Nothing is built twice here with a small change in between: what would make that quick costs a fresh build a tenth.
    command.args(args).current_dir(root).stdin(Stdio::null()).env("CARGO_INCREMENTAL", "0");
    command
}

/// The crates of the workspace (their folder names, sorted) that hold this file or folder.
pub fn crates_with(root: &Path, path: &str) -> Result<Vec<String>> {
    let folder = root.join("crates");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.path().join(path).exists())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// `-p heddle-NAME` for each crate.
pub fn packages(crates: &[String]) -> Vec<String> {
    crates.iter().flat_map(|name| ["-p".to_string(), format!("heddle-{name}")]).collect()
}

/// Where cargo puts what it builds.
pub fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Where a program is, `/sbin` and its like included: users' PATHs leave them out, root's tools live there.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Runs to the end or to the limit.
///
/// # Errors
/// A program that cannot be started, fails, or is still running at the limit; the text names it.
pub fn run(command: &mut Command, limit: Duration) -> Result<()> {
    let status = status(command, limit)?;
    if !status.success() {
        bail!("{}: {status}", show(command));
    }
    Ok(())
}

/// Runs to the end or to the limit; how it ended.
///
/// # Errors
/// A program that cannot be started, or is still running at the limit.
pub fn status(command: &mut Command, limit: Duration) -> Result<ExitStatus> {
    let shown = show(command);
    let mut child = spawn(command)?;
    wait(&mut child, limit).with_context(|| format!("waiting for {shown}"))
}

/// Is this the superuser?
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| is_roots(&status))
}

/// The second number of the line `Uid:` is the effective user.
pub fn is_roots(status: &str) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}

/// Runs to the end, or until `look` has seen enough. It is asked some times a second, with the time that the program could use; then
/// the program is killed, and there is no status.
///
/// # Errors
/// A program that cannot be started, or cannot be ended.
pub fn watched(command: &mut Command, mut look: impl FnMut(Duration) -> bool) -> Result<Option<ExitStatus>> {
    let mut child = spawn(command)?;
    let mut used = clock::Used::new();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if look(used.up_to(Instant::now())) {
            kill::tree(&mut child)?;
            return Ok(None);
        }
        std::thread::sleep(clock::LOOK);
    }
}

/// Starts a child that ends with the thread that starts it, at the latest.
fn spawn(command: &mut Command) -> Result<Child> {
    // With --fork unshare(1) ignores SIGTERM. With --kill-child its own end, by any signal, ends what it has started.
    let signal = if command.get_program() == "unshare" { KILL } else { TERMINATE };
    let parent = std::process::id();
    // SAFETY: `prctl` gets no pointer. It and getppid(2) may be called between fork and exec, and no error made here needs the heap.
    unsafe {
        command.pre_exec(move || match prctl(SET_DEATH_SIGNAL, signal) {
            // A parent that ended before sends no signal.
            0 if std::os::unix::process::parent_id() == parent => Ok(()),
            0 => Err(std::io::ErrorKind::BrokenPipe.into()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command.spawn().with_context(|| format!("cannot start {}", show(command)))
}

/// `PR_SET_PDEATHSIG` (`linux/prctl.h`).
const SET_DEATH_SIGNAL: i32 = 1;
/// SIGKILL.
const KILL: std::ffi::c_ulong = 9;
/// SIGTERM.
const TERMINATE: std::ffi::c_ulong = 15;

unsafe extern "C" {
    fn prctl(option: i32, ...) -> i32;
}

fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let mut used = clock::Used::new();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let over = is_over();
        if over || used.up_to(Instant::now()) >= limit {
            kill::tree(child)?;
            let why = if over { "the whole command has had its time" } else { "killed" };
            bail!("still running after {} s: {why}", used.up_to(Instant::now()).as_secs());
        }
        std::thread::sleep(clock::LOOK);
    }
}

/// All processes below one.
pub fn descendants(ancestor: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| Some((pid, parent_of(pid)?)))
        .collect();
    let mut found = vec![ancestor];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// The fourth field of `/proc/PID/stat`; the second, the program's name, may hold blanks and parentheses.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

/// A command as a line.
pub fn show(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
    format!("{program} {}", args.join(" "))
}
