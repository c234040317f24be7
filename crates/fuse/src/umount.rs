//! Unmounting by path, and waiting until the process behind a mount has ended.
//!
//! A mount point may be one of several places of a file system: bind mounts and other mount namespaces keep
//! it, and its process goes on serving them. So unmounting names the processes that keep it, and waits for
//! the serving process by its pidfd. Once that has ended, all its locks and files are free.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use heddle_vfs::procfs;
use heddle_vfs::procfs::limited::{self, of_each};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::end_mark::SeenMark;
use crate::error::shown;
use crate::mounts::{self, Life, Mount, life_of, mount_at, mount_point_path};
use crate::{Error, Holder};

/// How often to check whether a process has ended, where the kernel has no pidfd.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A file system that was unmounted at one place.
#[derive(Debug)]
pub struct Leaving {
    dir: PathBuf,
    device: (u32, u32),
    source: PathBuf,
    server: Option<Server>,
    /// Its process had died before.
    pub was_dead: bool,
    /// Root or this user named the source of the mount. Any other user may have named any path, which must
    /// not be opened.
    pub has_trusted_user: bool,
}

/// The process behind a mount.
#[derive(Debug)]
pub(crate) struct Server {
    pid: u32,
    end: Option<OwnedFd>,
    image: Option<Image>,
    /// `None`: the process ended before it was found.
    end_mark: Option<SeenMark>,
}

/// The file or device that a mount serves. The path that the mount shows may mean another file by now.
#[derive(Debug)]
pub struct Image {
    /// Its present path, for texts.
    pub shown: PathBuf,
    /// True if it was mounted for writing.
    pub for_writing: bool,
    held: Option<OwnedFd>,
}

impl Image {
    /// A path that opens it while this value lives.
    pub fn path(&self) -> PathBuf {
        self.held.as_ref().map_or_else(
            || self.shown.clone(),
            |held| PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd())),
        )
    }
}

/// Unmounts a heddle file system, whether its process lives or is dead. A dead one is removed even if files
/// of it are open: they are of no use any more.
///
/// # Errors
/// [`Error::NotMounted`], [`Error::NotOurs`], [`Error::Busy`], [`Error::Unmount`].
pub fn umount(dir: &Path) -> Result<Leaving, Error> {
    let dir = mount_point_path(dir);
    let mount = match mount_at(&dir) {
        None => return Err(Error::NotMounted { dir }),
        Some(mount) if mount.is_heddle() => mount,
        Some(Mount { kind, source, .. }) => {
            return Err(Error::NotOurs { dir, kind, source_name: shown(&source) });
        }
    };
    let server = server_of(&mount);
    // A process that can be seen to live is not asked: it may be stopped.
    let was_dead = server.is_none() && life_of(&dir) == Life::Dead;
    take_away(&dir, if was_dead { UnmountFlags::DETACH } else { UnmountFlags::empty() })?;
    let has_trusted_user = mount.has_trusted_user();
    Ok(Leaving { dir, device: mount.device, source: mount.source, server, was_dead, has_trusted_user })
}

impl Leaving {
    /// Waits until the process behind the mount has ended. Returns `Ok(false)` if this user cannot see which
    /// process that is.
    ///
    /// # Errors
    /// [`Error::StillHeld`].
    pub fn wait(&self, limit: Duration) -> Result<bool, Error> {
        let Some(server) = &self.server else { return Ok(false) };
        let began = Instant::now();
        while !server.has_ended(limit.saturating_sub(began.elapsed())) {
            if began.elapsed() >= limit {
                return Err(Error::StillHeld { dir: self.dir.clone(), by: self.kept_by(server) });
            }
        }
        Ok(true)
    }

    /// Returns true if the process has closed the image in order, once it has ended; `None`: this user cannot see which process that
    /// is.
    pub fn is_closed_in_order(&self) -> Option<bool> {
        self.server.as_ref().map(|server| server.end_mark.as_ref().is_some_and(SeenMark::is_set))
    }

    /// The image: the file that the process had open, as far as this user may see, else the path that the
    /// mount showed.
    pub fn take_image(&mut self) -> Image {
        let held = self.server.as_mut().and_then(|server| server.image.take());
        held.unwrap_or_else(|| Image { shown: self.source.clone(), for_writing: true, held: None })
    }

    /// The reason why the process behind the mount goes on.
    fn kept_by(&self, server: &Server) -> String {
        let mut reasons: Vec<String> = other_places(self.device);
        let holder = Holder::of(server.pid);
        reasons.push(match state_of(server.pid) {
            Some('T' | 't') => format!("its process {holder} is stopped: kill -CONT {}", server.pid),
            _ => format!("its process {holder} goes on"),
        });
        reasons.join("; ")
    }
}

impl Server {
    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns true if the process has the image open for writing.
    pub(crate) fn writes(&self) -> bool {
        self.image.as_ref().is_some_and(|image| image.for_writing)
    }

    /// Waits at most so long for the process to end.
    fn has_ended(&self, at_most: Duration) -> bool {
        let Some(end) = &self.end else {
            std::thread::sleep(LOOK_EVERY.min(at_most));
            return !Path::new("/proc").join(self.pid.to_string()).exists();
        };
        let timeout = Timespec::try_from(at_most).ok();
        poll(&mut [PollFd::new(end, PollFlags::IN)], timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

/// The process that serves this file system, as far as this user may look. It is the process with its
/// connection (newer kernels tell). Else it is the only heddle process with any connection and the directory
/// in its table.
///
/// A connection's number is reused after its file system is gone. So a connection known to have ended does
/// not count. Among others the connection of a process that sees the file system comes first.
pub(crate) fn server_of(mount: &Mount) -> Option<Server> {
    let device = mount.device;
    let connection = format!("fuse_connection:\t{}", device.1);
    let sees_it = |pid: &u32| mounts::of_namespace(*pid).iter().any(|mount| mount.device == device);
    let (mut told, mut older) = (Vec::new(), Vec::new());
    for (pid, connections) in of_each(processes(), connections_of) {
        let its = |info: &str| info.lines().any(|line| line == connection);
        if connections.iter().any(|(fd, info)| its(info) && !has_ended(pid, *fd)) {
            told.push(pid);
        }
        if !connections.is_empty() && !connections.iter().any(|(_, info)| info.contains("fuse_connection:")) {
            older.push(pid);
        }
    }
    if let Some(pid) = told.iter().find(|pid| sees_it(pid)).or(told.first()) {
        return Some(server(*pid, &mount.source));
    }
    older.retain(|pid| Holder::of(*pid).name == "heddle" && sees_it(pid));
    match older[..] {
        [pid] => Some(server(pid, &mount.source)),
        _ => None,
    }
}

/// The descriptors of FUSE connections of a process, and what the kernel tells of them. This may wait ([`procfs`]).
fn connections_of(pid: u32) -> Vec<(i32, String)> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let device_files =
        descriptors.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new("/dev/fuse")));
    let info_of = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((number, fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?))
    };
    device_files.filter_map(info_of).collect()
}

/// Returns true if this descriptor belongs to a connection that has ended, as far as this user may ask.
fn has_ended(pid: u32, fd: i32) -> bool {
    let process = Pid::from_raw(pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let connection = process.and_then(|process| pidfd_getfd(process, fd, PidfdGetfdFlags::empty()).ok());
    connection.is_some_and(|connection| {
        let mut asked = [PollFd::new(&connection, PollFlags::empty())];
        poll(&mut asked, Some(&Timespec::default())).is_ok() && asked[0].revents().contains(PollFlags::ERR)
    })
}

fn server(pid: u32, source: &Path) -> Server {
    let end = Pid::from_raw(pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let (image, end_mark) = files_of(pid, source);
    Server { pid, end, image, end_mark }
}

/// The image that a process serves, and its end mark. The image is its open file under the name that the mount
/// shows. An image that was moved or removed has that name no more; then it is the first file that the process
/// has locked, for it locks the image before anything else.
fn files_of(pid: u32, source: &Path) -> (Option<Image>, Option<SeenMark>) {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> =
        descriptors.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let (mut named, mut locked, mut end_mark) = (None, None, None);
    for number in numbers {
        let link = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
        let Ok(shown) = fs::read_link(&link) else { continue };
        end_mark = end_mark.or_else(|| SeenMark::at(&link, &shown));
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
        if named.is_none() && shown == source {
            named = Some(image_at(&link, shown, &info));
        } else if locked.is_none() && info.lines().any(|line| line.starts_with("lock:")) {
            locked = Some(image_at(&link, shown, &info));
        }
    }
    (named.or(locked), end_mark)
}

fn image_at(link: &Path, shown: PathBuf, info: &str) -> Image {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    let for_writing = flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY);
    // O_PATH opens no device, triggers nothing, and takes no lock.
    let held = rustix::fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
    Image { shown, for_writing, held }
}

/// Other places of this file system: here or in other namespaces, each named by one process in it.
fn other_places(device: (u32, u32)) -> Vec<String> {
    let here = mounts::all().into_iter().filter(|mount| mount.device == device);
    let mut places: Vec<String> =
        here.map(|mount| format!("it is still mounted at {}", shown(&mount.dir))).collect();
    let namespace_of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen: BTreeSet<PathBuf> = namespace_of("thread-self").into_iter().collect();
    for (pid, namespace) in of_each(processes(), move |pid| namespace_of(&pid.to_string())) {
        let Some(namespace) = namespace else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        places.extend(mounts::of_namespace(pid).iter().filter(|mount| mount.device == device).map(|mount| {
            let holder = Holder::of(pid);
            format!("process {holder} has it in its mount namespace at {}", shown(&mount.dir))
        }));
    }
    places
}

pub(crate) fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The letter of the process state. The name before it may hold any character.
fn state_of(pid: u32) -> Option<char> {
    let stat = limited::of(pid, |pid| fs::read(format!("/proc/{pid}/stat")).ok())??;
    String::from_utf8_lossy(&stat).rsplit_once(") ")?.1.chars().next()
}

/// Unmounts the mount at `dir`, directly or through the setuid helper.
pub(crate) fn take_away(dir: &Path, flags: UnmountFlags) -> Result<(), Error> {
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(Error::Busy { dir: dir.into(), holders: holders(dir) }),
        Err(rustix::io::Errno::PERM) => with_helper(dir, flags),
        // Another process was first.
        Err(rustix::io::Errno::INVAL) if mount_at(dir).is_none() => {
            Err(Error::NotMounted { dir: dir.into() })
        }
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

/// Processes with a file, a working directory or a program below `dir`, as far as this user may look.
pub(crate) fn holders(dir: &Path) -> Vec<Holder> {
    let dir = dir.to_owned();
    let asked = of_each(processes(), move |pid| uses(pid, &dir));
    asked.into_iter().filter(|(_, uses)| *uses).map(|(pid, _)| Holder::of(pid)).collect()
}

/// This may wait ([`procfs`]).
fn uses(pid: u32, dir: &Path) -> bool {
    let below = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    let process = procfs::directory(pid);
    if ["cwd", "root", "exe"].iter().any(|link| below(process.join(link))) {
        return true;
    }
    let descriptors = fs::read_dir(process.join("fd"));
    if descriptors.is_ok_and(|entries| entries.flatten().any(|entry| below(entry.path()))) {
        return true;
    }
    let inside = [dir.as_os_str().as_bytes(), b"/"].concat();
    procfs::maps(pid).unwrap_or_default().split(|b| *b == b'\n').any(|line| {
        let path = line.iter().position(|b| *b == b'/').map(|at| &line[at..]);
        path.is_some_and(|path| path.starts_with(&inside))
    })
}
