//! The kernel's table of mounts, and unmounting by path. Nothing here touches the mounted file system itself: its
//! process may be dead or stuck.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;

use crate::{Error, Holder};

/// What `/proc/mounts` calls our mounts.
pub(crate) const FS_SUBTYPE: &str = "heddle";
const FS_TYPE: &str = "fuse.heddle";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mount {
    pub(crate) id: u64,
    pub(crate) dir: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: String,
}

impl Mount {
    pub(crate) fn is_ours(&self) -> bool {
        self.kind == FS_TYPE
    }
}

/// Unmounts a heddle file system, whichever process serves it, alive or dead.
///
/// # Errors
/// [`Error::NotMounted`], [`Error::NotOurs`], [`Error::Busy`], [`Error::Unmount`].
pub fn umount(dir: &Path) -> Result<(), Error> {
    let dir = place_of(dir);
    match mount_at(&dir) {
        None => Err(Error::NotMounted { dir }),
        Some(mount) if mount.is_ours() => take_away(&dir, UnmountFlags::empty()),
        Some(Mount { kind, source, .. }) => Err(Error::NotOurs { dir, kind, source_name: source }),
    }
}

/// Unmounts what is at `dir`, by ourselves or with the setuid helper.
pub(crate) fn take_away(dir: &Path, flags: UnmountFlags) -> Result<(), Error> {
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(Error::Busy { dir: dir.into(), holders: holders(dir) }),
        Err(rustix::io::Errno::PERM) => with_helper(dir, flags),
        Err(errno) => Err(Error::Unmount { dir: dir.into(), source: errno.into() }),
    }
}

fn with_helper(dir: &Path, flags: UnmountFlags) -> Result<(), Error> {
    let fail = |source| Error::Unmount { dir: dir.into(), source };
    let lazy = flags.contains(UnmountFlags::DETACH).then_some("-z");
    let output = Command::new("fusermount3").arg("-u").args(lazy).arg("--").arg(dir).output();
    let output =
        output.map_err(|error| fail(io::Error::new(error.kind(), format!("fusermount3: {error}"))))?;
    if output.status.success() {
        return Ok(());
    }
    let holders = holders(dir);
    if holders.is_empty() {
        Err(fail(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())))
    } else {
        Err(Error::Busy { dir: dir.into(), holders })
    }
}

/// The path the kernel's table would show: the directory above resolved, the last name as it is, because looking at
/// a mount point asks its process.
pub(crate) fn place_of(dir: &Path) -> PathBuf {
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
    let table = fs::read("/proc/thread-self/mountinfo").unwrap_or_default();
    parse(&table).into_iter().rfind(|mount| mount.dir == dir)
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `id parent major:minor root dir options [optional fields…] - type source super-options`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let dir = OsString::from_vec(unescaped(fields.nth(3)?)).into();
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    let text = |field: &[u8]| String::from_utf8_lossy(&unescaped(field)).into_owned();
    Some(Mount { id, dir, kind: text(after.next()?), source: text(after.next()?) })
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
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

/// Processes with a file, a working directory or a program below `dir`, as far as this user may look.
fn holders(dir: &Path) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| uses(*pid, dir))
        .map(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Holder { pid, name: name.trim_end().to_owned() }
        })
        .collect()
}

fn uses(pid: u32, dir: &Path) -> bool {
    let below = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    let process = PathBuf::from(format!("/proc/{pid}"));
    if ["cwd", "root", "exe"].iter().any(|link| below(process.join(link))) {
        return true;
    }
    let descriptors = fs::read_dir(process.join("fd"));
    if descriptors.is_ok_and(|entries| entries.flatten().any(|entry| below(entry.path()))) {
        return true;
    }
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let inside = [dir.as_os_str().as_bytes(), b"/"].concat();
    maps.split(|b| *b == b'\n').any(|line| {
        let path = line.iter().position(|b| *b == b'/').map(|at| &line[at..]);
        path.is_some_and(|path| path.starts_with(&inside))
    })
}

#[cfg(test)]
mod tests;
