//! Runs a chore in mount and PID namespaces of its own: its mounts stay invisible to others, and its processes end with it.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;

/// A PID namespace too: daemons that an interrupted run leaves behind end with it.
const APART: [&str; 8] =
    ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];
/// Set for the second start.
const INSIDE: &str = "HEDDLE_XTASK_INSIDE";

/// Is this process in the namespaces that [`enter`] makes?
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// `None`: this process is inside; go on. Else the chore has been run inside, and this is how it ended.
///
/// # Errors
/// No root, no unshare(1), or the limit.
pub fn enter(root: &Path, args: &[&str], limit: Duration) -> Result<Option<bool>> {
    if is_inside() {
        return Ok(None);
    }
    if let Some(why) = lacking() {
        bail!("{why}");
    }
    // Handed on as a descriptor: a build of all tests may have replaced the file meanwhile.
    let program = File::open("/proc/self/exe").context("cannot open this program")?;
    let mut command = Command::new("unshare");
    command.args(APART);
    // Process 1 of the new namespace buries what others have left: a shell that waits does.
    command
        .args(["sh", "-c", "exec 3<&0 </dev/null; /proc/self/fd/3 \"$@\" & wait \"$!\"", "sh"])
        .stdin(program)
        .args(args)
        .env(INSIDE, "1")
        .current_dir(root);
    let ended = process::status(&mut command, limit)?;
    Ok(Some(ended.success()))
}

/// A command that runs a program in such namespaces, or as it is where there are none.
pub fn around(program: &Path) -> Command {
    if lacking().is_some() {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args(APART).args(["sh", "-c", "\"$@\" & wait \"$!\"", "sh"]).arg(program);
    command
}

/// Why there can be no such namespaces here.
pub fn lacking() -> Option<String> {
    if !process::is_root() {
        return Some("mounting takes root: run it with sudo".to_owned());
    }
    if process::find_program("unshare").is_none() {
        return Some("no unshare (install util-linux)".to_owned());
    }
    (!Path::new("/dev/fuse").exists()).then(|| "no /dev/fuse (try: modprobe fuse)".to_owned())
}
