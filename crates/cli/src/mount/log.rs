//! The log of a mount in the background.

use anyhow::{Result, anyhow};
use heddle_console::output::talk;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Opens the log for appending. Without the usual one the mount works, and this is reported.
///
/// # Errors
/// The log that the user has named cannot be written.
pub fn open(asked: Option<&Path>) -> Result<Option<File>> {
    if let Some(path) = asked {
        let refused =
            |error| anyhow!("-o log: cannot write {}: {error}. Choose another file", path.display());
        return Ok(Some(append(path).map_err(refused)?));
    }
    let Some(path) = usual() else { return Ok(None) };
    if let Some(above) = path.parent() {
        // An error here makes the open below fail, with a reason.
        let _ = std::fs::create_dir_all(above);
    }
    let opened = append(&path).map_err(|error| {
        talk(&format!(
            "heddle: no log of this mount: cannot write {}: {error}. Choose another with -o log=FILE",
            path.display()
        ));
    });
    Ok(opened.ok())
}

/// Does not block: a pipe without a reader is refused.
fn append(path: &Path) -> std::io::Result<File> {
    File::options().append(true).create(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn usual() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/var/log/heddle.log".into());
    }
    let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    Some(state.join("heddle.log"))
}
