//! The kernel's table of mounts. Nothing here waits for a mounted file system: its process may be dead or
//! hang.

use crate::timed_request::ask_with_timeout;

use heddle_vfs::unmapped::is_own_user;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The type that `/proc/mounts` shows for heddle mounts.
pub(crate) const FS_SUBTYPE: &str = "heddle";
pub(crate) const FS_TYPE: &str = "fuse.heddle";
/// The most links that are followed to a mount point.
const LINKS_MAX: usize = 40;
/// How long a mount may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A mount, as the kernel's table shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    pub(crate) id: u64,
    /// Major and minor number of the file system: the same at every place where it is mounted.
    pub device: (u32, u32),
    /// The mount point.
    pub dir: PathBuf,
    pub(crate) kind: String,
    /// The source that the mount shows: for a heddle mount the path of the image.
    pub source: PathBuf,
    /// The user who mounted it, as the kernel tells for FUSE.
    pub user: Option<u32>,
}

impl Mount {
    /// Returns true if root or this user mounted it: its source can be trusted. Another user may name any source.
    pub fn has_trusted_user(&self) -> bool {
        self.user.is_some_and(is_trusted_user)
    }

    pub(crate) fn is_heddle(&self) -> bool {
        self.kind == FS_TYPE
    }

    /// Returns true for the same mount, perhaps at another place.
    pub(crate) fn is(&self, other: &Mount) -> bool {
        (self.id, self.device) == (other.id, other.device)
    }
}

/// Whether the process behind a mount answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// An answer came, or an error that only a living process causes.
    Serves,
    /// Its process has died: the kernel answers in its place.
    Dead,
    /// No answer came in time: its process is stopped or very busy.
    Silent,
}

/// Returns false if nothing is mounted at `dir`, or if the process behind the mount has died.
pub fn is_served(dir: &Path) -> bool {
    mount_at(dir).is_some() && life_of(dir) != Life::Dead
}

/// Asks the file system that is mounted at `dir`.
pub(crate) fn life_of(dir: &Path) -> Life {
    const DEAD: [u8; 1] = [1];
    // The connection was aborted, or its last descriptor is closed.
    let is_dead = |errno| matches!(errno, rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED);
    let asks = || if rustix::fs::statfs(dir).is_err_and(is_dead) { DEAD.to_vec() } else { Vec::new() };
    match ask_with_timeout(ANSWER_MAX, asks) {
        Ok(Some(said)) if said == DEAD => Life::Dead,
        Ok(Some(_)) => Life::Serves,
        // `Err`: pipe(2) or fork(2) failed, and nothing was asked.
        Ok(None) | Err(_) => Life::Silent,
    }
}

/// The mount point's path, as the kernel's table shows it. The parent is resolved. The last name stays as it is,
/// because a look at a mount point asks its process; if it is a link and no mount point, it is followed.
pub(crate) fn mount_point_path(dir: &Path) -> PathBuf {
    let mut place = with_resolved_parent(dir);
    for _ in 0..LINKS_MAX {
        let link = if mount_at(&place).is_some() { None } else { fs::read_link(&place).ok() };
        let Some(to) = link else { break };
        // Relative to the directory of the link.
        place = with_resolved_parent(&place.parent().unwrap_or(Path::new("/")).join(to));
    }
    place
}

fn with_resolved_parent(dir: &Path) -> PathBuf {
    match (dir.parent(), dir.file_name()) {
        (Some(above), Some(name)) => {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            above.canonicalize().unwrap_or_else(|_| above.into()).join(name)
        }
        _ => dir.canonicalize().unwrap_or_else(|_| dir.into()),
    }
}

/// The topmost mount at `dir`, in the mount namespace of this thread.
pub(crate) fn mount_at(dir: &Path) -> Option<Mount> {
    all().into_iter().rfind(|mount| mount.dir == dir)
}

/// All mounts of this thread's namespace, each after those that it may cover.
pub(crate) fn all() -> Vec<Mount> {
    parse(&fs::read("/proc/thread-self/mountinfo").unwrap_or_default())
}

/// The heddle mounts in the mount namespace of this thread, or in that of a process. Empty if its table cannot
/// be read.
pub fn heddle_mounts(of_process: Option<u32>) -> Vec<Mount> {
    let mounts = of_process.map_or_else(all, of_namespace);
    mounts.into_iter().filter(Mount::is_heddle).collect()
}

/// All mounts in the mount namespace of a process.
pub(crate) fn of_namespace(pid: u32) -> Vec<Mount> {
    parse(&fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default())
}

pub(crate) fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `id parent major:minor root dir options [optional fields…] - type source super-options`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let (major, minor) = std::str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let dir = OsString::from_vec(unescaped(fields.nth(1)?)).into();
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let text = |field: &[u8]| String::from_utf8_lossy(&unescaped(field)).into_owned();
    let kind = text(after.next()?);
    let source = OsString::from_vec(unescaped(after.next()?)).into();
    let user = user_of(after.next().unwrap_or_default());
    Some(Mount { id, device, dir, kind, source, user })
}

/// The user who mounted it, from the table's options.
fn user_of(options: &[u8]) -> Option<u32> {
    let user = options.split(|b| *b == b',').find_map(|option| option.strip_prefix(b"user_id="))?;
    std::str::from_utf8(user).ok()?.parse().ok()
}

/// Returns true if this process trusts what that user says of a mount: root, and its own user.
pub fn is_trusted_user(user: u32) -> bool {
    user == 0 || is_own_user(user)
}

/// Decodes a field: space, tab, newline and backslash are written as `\` and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'\\').then(|| after.first_chunk::<3>()).flatten();
        let code = code.and_then(|octal| u8::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests;
