//! The log of a mount in the background.

use heddle_console::output::talk;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Opens the log for appending. If that fails, reports it: the mount works without a log.
pub fn open(asked: Option<&Path>) -> Option<File> {
    let path = asked.map(Path::to_path_buf).or_else(usual)?;
    if asked.is_none()
        && let Some(above) = path.parent()
    {
        // An error here makes the open below fail, with a reason.
        let _ = std::fs::create_dir_all(above);
    }
    // Does not block: a pipe without a reader is refused.
    let opened = File::options().append(true).create(true).custom_flags(libc::O_NONBLOCK).open(&path);
    opened
        .map_err(|error| {
            talk(&format!(
                "heddle: no log of this mount: cannot write {}: {error}. Choose another with -o log=FILE",
                path.display()
            ));
        })
        .ok()
}

fn usual() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/log/heddle.log".into());
    }
    let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    Some(state.join("heddle.log"))
}
