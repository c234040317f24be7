//! Mounting, serving, unmounting.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::Session;
use heddle_vfs::FileSystem;
use rustix::mount::UnmountFlags;

use crate::Error;
use crate::adapter::Adapter;
use crate::connect::{connect, connect_beneath};
use crate::error::shown;
use crate::guard;
use crate::handles::Handles;
use crate::mounts;
use crate::options::{MountOptions, ShownOwner};
use crate::shared::Shared;
use crate::umount::take_away;

/// How often a leaving mount checks whether files are open.
const LEAVE_LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the threads of a mount may take to start.
const START_MAX: Duration = Duration::from_secs(60);
/// The name that the protocol library gives to its threads.
const SERVING_THREAD: &[u8] = b"fuser-";

/// A directory to mount at, checked as far as possible before anything is changed.
#[derive(Clone, Debug)]
pub struct MountPoint {
    dir: PathBuf,
    /// A dead mount (its process has died) at this directory, which is to be replaced.
    dead: Option<mounts::Mount>,
}

impl MountPoint {
    /// Checks the directory and the needs of mounting. `source` as in [`MountOptions`]: a dead mount of the
    /// same source is replaced.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::MountPoint`], [`Error::AlreadyMounted`], [`Error::DeadMount`], [`Error::Refused`].
    pub fn check(dir: &Path, source: &Path) -> Result<MountPoint, Error> {
        let place = mounts::mount_point_path(dir);
        let dead = mounts::mount_at(&place).filter(mounts::Mount::is_heddle);
        let dir = match &dead {
            None => usable(dir)?,
            Some(mount) if mounts::life_of(&place) != mounts::Life::Dead => {
                return Err(Error::AlreadyMounted { dir: place, source_name: shown(&mount.source) });
            }
            Some(mount) if mount.source != source => {
                return Err(Error::DeadMount { dir: place, source_name: shown(&mount.source) });
            }
            Some(_) => place,
        };
        match File::options().read(true).write(true).open("/dev/fuse") {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Error::NoDevice { dir }),
            Err(source) => return Err(Error::Refused { dir, source }),
        }
        Ok(MountPoint { dir, dead })
    }

    /// Mounts `fs` there. Threads of this process serve it until it is unmounted. Returns when all threads
    /// serve.
    ///
    /// # Errors
    /// As [`MountPoint::check`].
    pub fn mount(self, fs: Arc<dyn FileSystem>, options: &MountOptions) -> Result<Mounted, Error> {
        let dir = self.dir;
        let refused = |source| Error::Refused { dir: dir.clone(), source };
        keep_standard_descriptors().map_err(refused)?;
        let shared = Arc::new(Shared::default());
        let handles = Arc::new(Handles::default());
        let owner = ShownOwner { uid: options.uid, gid: options.gid };
        let adapter = Adapter::new(
            fs,
            options.ttl,
            owner,
            options.attach_ioctl.clone(),
            Arc::clone(&shared),
            Arc::clone(&handles),
            options.threads(),
        );
        // Descriptors in reserve: a mount made with the last descriptor could be neither found in the table
        // nor unmounted.
        let spare = [spare_descriptor().map_err(refused)?, spare_descriptor().map_err(refused)?];
        let dead = self.dead.filter(|dead| mounts::mount_at(&dir).is_some_and(|mount| mount.is(dead)));
        // The dead mount goes, and the new one may get its numbers.
        let stays = |mount: &mounts::Mount| !dead.as_ref().is_some_and(|dead| dead.is(mount));
        let before: Vec<mounts::Mount> = mounts::all().into_iter().filter(stays).collect();
        let connection = match dead {
            Some(_) => in_place_of_the_dead(&dir, options)?,
            None => connect(&dir, options).map_err(refused)?,
        };
        drop(spare);
        let (tell, events) = mpsc::channel();
        let mount = own_mount(&before, mounts::all(), &dir, &options.source);
        let _first = mount.as_ref().map(|mount| shared.connection.set(mount.device.1));
        let unmounter =
            Unmounter { dir: dir.clone(), mount, events: tell.clone(), shared: Arc::clone(&shared) };
        let config = options.config();
        let session = Session::from_fd(adapter, connection, config.acl, config).map_err(|source| {
            unmounter.clear();
            refused(source)
        })?;
        let _first = shared.notifier.set(session.notifier());
        let ending = Arc::clone(&shared);
        let serve = std::thread::Builder::new().name("heddle-fuse".into()).spawn(move || {
            let served = session.run();
            ending.ended.store(true, SeqCst);
            // If this fails, no thread waits any more.
            let _ = tell.send(Event::Ended);
            served
        });
        let mut mounted = Mounted {
            unmounter,
            shared,
            handles,
            events: Mutex::new(events),
            serve: Some(serve.map_err(refused)?),
        };
        mounted.answers(options.threads())?;
        Ok(mounted)
    }
}

/// Mounts `fs` at the directory `dir`, as [`MountPoint::check`] and [`MountPoint::mount`].
///
/// # Errors
/// As those.
pub fn mount(fs: Arc<dyn FileSystem>, dir: &Path, options: &MountOptions) -> Result<Mounted, Error> {
    MountPoint::check(dir, &options.source)?.mount(fs, options)
}

/// The mount that this process has just made, by the table before and after that. Another program may have mounted over it since.
fn own_mount(
    before: &[mounts::Mount],
    now: Vec<mounts::Mount>,
    dir: &Path,
    source: &Path,
) -> Option<mounts::Mount> {
    let is_new = |mount: &mounts::Mount| !before.iter().any(|earlier| earlier.is(mount));
    now.into_iter()
        .find(|mount| mount.dir == dir && mount.is_heddle() && mount.source == source && is_new(mount))
}

/// Mounts in place of the dead mount there. Open files of the dead one stay open, but fail.
///
/// The new mount lies beneath the dead one before that is detached. So every call meets one of the two, and none makes a file in the
/// directory below, where nobody would find it again. Where the kernel cannot do that (before Linux 6.5, or for `fusermount3`), there is a
/// gap.
fn in_place_of_the_dead(dir: &Path, options: &MountOptions) -> Result<OwnedFd, Error> {
    let beneath = connect_beneath(dir, options);
    take_away(dir, UnmountFlags::DETACH)?;
    beneath.or_else(|_| connect(dir, options)).map_err(|source| Error::Refused { dir: dir.into(), source })
}

fn usable(dir: &Path) -> Result<PathBuf, Error> {
    let fail = |source| Error::MountPoint { dir: dir.into(), source };
    let whole = dir.canonicalize().map_err(fail)?;
    match whole.metadata().map_err(fail)?.is_dir() {
        true => Ok(whole),
        false => Err(fail(io::Error::from_raw_os_error(libc::ENOTDIR))),
    }
}

/// A process started without standard input or output would get the FUSE device as one of them, and fuser
/// then panics. So `/dev/null` takes the place of each that is missing.
fn keep_standard_descriptors() -> io::Result<()> {
    loop {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        if null.as_raw_fd() > 2 {
            return Ok(());
        }
        let _kept_open = null.into_raw_fd();
    }
}

/// A descriptor in reserve, dropped where another one is needed.
fn spare_descriptor() -> io::Result<File> {
    File::open("/dev/null")
}

/// A mounted file system, served by this process. Dropping it unmounts. If files are still open, the mount
/// leaves the tree at once and is served until they are closed.
#[derive(Debug)]
pub struct Mounted {
    unmounter: Unmounter,
    shared: Arc<Shared>,
    handles: Arc<Handles>,
    events: Mutex<mpsc::Receiver<Event>>,
    serve: Option<JoinHandle<io::Result<()>>>,
}

/// Events that a mount's owner waits for.
#[derive(Debug)]
enum Event {
    /// No thread serves the mount any more.
    Ended,
    /// The mount is to end when no file of it is open.
    Leave,
}

impl Mounted {
    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.unmounter.dir
    }

    /// A handle to unmount it with from another thread, while this one waits.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Returns a function that tells, even after the end, whether the file system was shut down
    /// (`FS_IOC_SHUTDOWN`). If so, nothing may be written to it any more, as after a power cut.
    pub fn shut_down(&self) -> impl Fn() -> bool + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.is_shut_down()
    }

    /// Waits until it is unmounted, or until [`Unmounter::leave`] was called and no file is open. When this
    /// returns, the mount does not use the engine any more.
    ///
    /// # Errors
    /// [`Error::Session`]; [`Error::Unmount`] if it could not be made to end: then it is still
    /// served.
    pub fn wait(mut self) -> Result<(), Error> {
        while let Ok(Event::Leave) = self.next_event(None) {
            while !self.handles.is_empty() {
                if let Ok(Event::Ended) = self.next_event(Some(LEAVE_LOOK_EVERY)) {
                    return self.join();
                }
            }
            // If the kernel does not know the connection any more, it has ended already.
            if let Err(source) = self.unmounter.abort()
                && source.kind() != io::ErrorKind::NotFound
            {
                return Err(Error::Unmount { dir: self.unmounter.dir.clone(), source });
            }
        }
        self.join()
    }

    fn next_event(&mut self, at_most: Option<Duration>) -> Result<Event, mpsc::RecvTimeoutError> {
        let events = self.events.get_mut().unwrap_or_else(PoisonError::into_inner);
        match at_most {
            Some(at_most) => events.recv_timeout(at_most),
            None => Ok(events.recv()?),
        }
    }

    /// Returns when all threads serve. The kernel and this process have agreed before, or there would be no
    /// session. This process sends no request to its own mount: if killed while it waits for its own answer,
    /// it would never end, and the mount would hang.
    fn answers(&mut self, threads: usize) -> Result<(), Error> {
        let began = Instant::now();
        let dir = self.unmounter.dir.clone();
        let refused = |source| Error::Refused { dir: dir.clone(), source };
        while serving_threads().map_err(refused)? < threads {
            if self.serve.as_ref().is_none_or(JoinHandle::is_finished) {
                return match self.join() {
                    Err(Error::Session { source, .. }) => Err(refused(source)),
                    _ => Err(refused(io::Error::other("it was unmounted at once"))),
                };
            }
            if began.elapsed() > START_MAX {
                return Err(refused(io::Error::from(io::ErrorKind::TimedOut)));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Unmounts and waits. A mount in use is detached, as by dropping it; to keep such a mount, call
    /// [`Mounted::unmounter`] first.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Unmount`].
    pub fn unmount(mut self) -> Result<(), Error> {
        self.unmounter.unmount()?;
        self.join()
    }

    fn join(&mut self) -> Result<(), Error> {
        let fail = |source| Error::Session { dir: self.unmounter.dir.clone(), source };
        let Some(serve) = self.serve.take() else { return Ok(()) };
        let served = serve.join().unwrap_or_else(|_| Err(io::Error::other("a serving thread panicked")));
        self.unmounter.clear();
        served.map_err(fail)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.serve.is_none() {
            return;
        }
        match self.unmounter.take_away(UnmountFlags::empty()) {
            Ok(Found::Unmounted) => {
                let _ = self.join();
            }
            // Another process has detached it: it may be in use for long.
            Ok(Found::Nothing) => {}
            // In use: it leaves the tree now, and is served until the last file is closed.
            Err(_) => {
                let _ = self.unmounter.detach();
            }
        }
    }
}

/// How many threads of this process serve a mount.
fn serving_threads() -> io::Result<usize> {
    let mut count = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        match std::fs::read(task?.path().join("comm")) {
            Ok(name) => count += usize::from(name.starts_with(SERVING_THREAD)),
            // A thread that has ended meanwhile.
            Err(gone) if matches!(gone.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// Unmounts one mount, from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    dir: PathBuf,
    mount: Option<mounts::Mount>,
    events: mpsc::Sender<Event>,
    shared: Arc<Shared>,
}

impl Unmounter {
    /// Unmounts it. Does nothing if that has happened already.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Unmount`].
    pub fn unmount(&self) -> Result<(), Error> {
        self.take_away(UnmountFlags::empty()).map(|_| ())
    }

    /// Detaches it even if it is in use; it is served until the last file is closed.
    ///
    /// # Errors
    /// [`Error::Unmount`].
    pub fn detach(&self) -> Result<(), Error> {
        self.take_away(UnmountFlags::DETACH).map(|_| ())
    }

    /// Makes [`Mounted::wait`] return when no file is open, even if another namespace has it mounted or
    /// another mount covers it.
    pub fn leave(&self) {
        // If this fails, no thread waits any more.
        let _ = self.events.send(Event::Leave);
    }

    /// The mount point of another mount that covers this one and so keeps it from being unmounted.
    pub fn covered_at(&self) -> Option<PathBuf> {
        let (place, is_top) = self.place()?;
        (!is_top).then_some(place)
    }

    fn take_away(&self, flags: UnmountFlags) -> Result<Found, Error> {
        // Another mount at the same place is not ours to unmount. After ours has ended, its numbers may be
        // another's.
        match self.place().filter(|_| !self.shared.ended.load(SeqCst)) {
            Some((dir, true)) => take_away(&dir, flags).map(|()| Found::Unmounted),
            _ => Ok(Found::Nothing),
        }
    }

    /// Where it is mounted now, and whether nothing covers it there.
    fn place(&self) -> Option<(PathBuf, bool)> {
        let mount = self.mount.as_ref()?;
        let table = mounts::all();
        let now = table.iter().find(|other| other.is(mount))?;
        let top = table.iter().rfind(|other| other.dir == now.dir)?;
        Some((now.dir.clone(), top.is(mount)))
    }

    /// Removes the rest of it from the tree when nothing serves it any more.
    fn clear(&self) {
        if let Some((dir, true)) = self.place()
            && mounts::life_of(&dir) == mounts::Life::Dead
        {
            // If this fails, it stays as a mount that answers nothing.
            let _ = take_away(&dir, UnmountFlags::DETACH);
        }
    }

    /// Ends the connection to the kernel: running calls finish, later ones fail with ENOTCONN.
    fn abort(&self) -> io::Result<()> {
        let Some(mount) = &self.mount else { return Err(io::ErrorKind::NotFound.into()) };
        guard::end(mount.device.1)
    }
}

/// The result of an unmount.
enum Found {
    Unmounted,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_made_over_ours_is_not_taken_for_it() {
        let table = |lines: &[&str]| mounts::parse(lines.join("\n").as_bytes());
        let lines = [
            "22 1 0:20 / / rw - ext4 /dev/vda rw",
            "40 22 0:33 / /d rw - fuse.heddle /i rw,user_id=0",
            "41 40 0:34 / /d rw - fuse.heddle /i rw,user_id=0",
            "42 41 0:35 / /d rw - tmpfs none rw",
            "43 42 0:36 / /d rw - fuse.heddle /other rw,user_id=5",
        ];
        let own = |before: &[&str], now: &[&str]| {
            let own = own_mount(&table(before), table(now), Path::new("/d"), Path::new("/i"));
            own.map(|mount| mount.id)
        };
        assert_eq!(own(&lines[..1], &lines[..2]), Some(40));
        assert_eq!(own(&lines[..2], &lines), Some(41), "the first is another's");
        assert_eq!(own(&lines[..1], &[lines[0], lines[3], lines[4]]), None, "ours has gone by now");
        // The numbers are given out again.
        assert_eq!(own(&["40 22 0:99 / /d rw - fuse.heddle /i rw"], &lines[..2]), Some(40));
    }
}
