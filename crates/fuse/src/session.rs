//! Mounting, serving, unmounting.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{Config, INodeNo, MountOption, Notifier, Session, SessionACL};
use heddle_vfs::ioctl::Doorbell;
use heddle_vfs::{FileSystem, Ino};
use rustix::mount::UnmountFlags;

use crate::Error;
use crate::adapter::{Adapter, ShownOwner};
use crate::mounts::{self, FS_SUBTYPE};

/// How to mount.
#[derive(Clone)]
pub struct MountOptions {
    /// What the mount table shows as the source, usually the image's path.
    pub source: PathBuf,
    /// Answers programs that ask where they can attach.
    pub door: Option<Arc<dyn Doorbell>>,
    /// Threads that serve requests; one a core, and at least two, if not given.
    pub threads: Option<NonZeroUsize>,
    /// How long the kernel may keep names and attributes.
    pub ttl: Duration,
    /// No changes through this mount.
    pub read_only: bool,
    /// Other users may enter, as far as modes allow. Without it only the user who mounts, not even root.
    pub allow_other: bool,
    /// All files show this owner; new ones get it, and nobody can give one away.
    pub uid: Option<u32>,
    /// The same for the group.
    pub gid: Option<u32>,
    /// Programs may be executed.
    pub exec: bool,
    /// Set-user-id programs have their effect. Root's to allow.
    pub suid: bool,
    /// Device files can be opened. Root's to allow.
    pub dev: bool,
}

impl Default for MountOptions {
    /// A second's cache, open to others if root mounts.
    fn default() -> Self {
        MountOptions {
            source: FS_SUBTYPE.into(),
            door: None,
            threads: None,
            ttl: Duration::from_secs(1),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            uid: None,
            gid: None,
            exec: true,
            suid: false,
            dev: false,
        }
    }
}

impl MountOptions {
    fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(|| cores().max(2), NonZeroUsize::get)
    }

    /// mount(2), which root uses, takes the name as it is; fusermount3 takes it as one of its options, which end at a comma.
    fn source_name(&self) -> String {
        let name = shown_source(&self.source);
        match rustix::process::geteuid().is_root() {
            true => name,
            false => name.replace('\\', r"\\").replace(',', r"\,"),
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(self.source_name()),
            // Not `Subtype`, which fuser keeps from mount(2).
            MountOption::CUSTOM(format!("subtype={FS_SUBTYPE}")),
            MountOption::DefaultPermissions,
            if self.read_only { MountOption::RO } else { MountOption::RW },
            if self.exec { MountOption::Exec } else { MountOption::NoExec },
            if self.suid { MountOption::Suid } else { MountOption::NoSuid },
            if self.dev { MountOption::Dev } else { MountOption::NoDev },
        ];
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.threads());
        config.clone_fd = true;
        config
    }
}

/// How the mount table shows an image of this path. Of a name that is no UTF-8 it shows what can be read.
pub fn shown_source(image: &Path) -> String {
    image.to_string_lossy().into_owned()
}

/// Mounts `fs` at the directory `dir` and serves it from threads of this process until it is unmounted.
///
/// # Errors
/// [`Error::NoDevice`], [`Error::MountPoint`], [`Error::AlreadyMounted`], [`Error::Refused`].
pub fn mount(fs: Arc<dyn FileSystem>, dir: &Path, options: &MountOptions) -> Result<Mounted, Error> {
    if let Some(mount) = mounts::mount_at(&mounts::place_of(dir)).filter(mounts::Mount::is_ours) {
        return Err(Error::AlreadyMounted { dir: dir.into(), source_name: mount.source });
    }
    let dir = usable(dir)?;
    if !Path::new("/dev/fuse").exists() {
        return Err(Error::NoDevice { dir });
    }
    let refused = |source| Error::Refused { dir: dir.clone(), source };
    keep_standard_descriptors().map_err(refused)?;
    let shared = Arc::new(Shared::default());
    let owner = ShownOwner { uid: options.uid, gid: options.gid };
    let adapter = Adapter::new(fs, options.ttl, owner, options.door.clone(), Arc::clone(&shared));
    let session = Session::new(adapter, &dir, &options.config()).map_err(refused)?;
    let _first = shared.notifier.set(session.notifier());
    let id = mounts::mount_at(&dir).map(|mount| mount.id);
    let unmounter = Unmounter { dir: dir.clone(), id };
    let serve = std::thread::Builder::new().name("heddle-fuse".into()).spawn(move || session.run());
    Ok(Mounted { unmounter, shared, serve: Some(serve.map_err(refused)?) })
}

fn usable(dir: &Path) -> Result<PathBuf, Error> {
    let fail = |source| Error::MountPoint { dir: dir.into(), source };
    let whole = dir.canonicalize().map_err(fail)?;
    match whole.metadata().map_err(fail)?.is_dir() {
        true => Ok(whole),
        false => Err(fail(io::Error::from_raw_os_error(libc::ENOTDIR))),
    }
}

/// A process started without standard input or output would get the FUSE device as one of them, which fuser refuses by
/// a panic; what is missing becomes `/dev/null`.
fn keep_standard_descriptors() -> io::Result<()> {
    loop {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        if null.as_raw_fd() > 2 {
            return Ok(());
        }
        let _kept_open = null.into_raw_fd();
    }
}

/// A mounted file system, served by this process. Dropping it unmounts; if files are still open the mount disappears
/// from the tree at once and is served until they are closed.
#[derive(Debug)]
pub struct Mounted {
    unmounter: Unmounter,
    shared: Arc<Shared>,
    serve: Option<JoinHandle<io::Result<()>>>,
}

impl Mounted {
    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.unmounter.dir
    }

    /// Something to unmount it with from another thread, while this one waits.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Tells, also after the end, whether the file system was shut down (`FS_IOC_SHUTDOWN`): then nothing of it may be written
    /// any more, as after a power cut.
    pub fn shut_down(&self) -> impl Fn() -> bool + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.is_shut_down()
    }

    /// Waits until it is unmounted. When this returns, the engine is not in use by the mount any more.
    ///
    /// # Errors
    /// [`Error::Session`].
    pub fn wait(mut self) -> Result<(), Error> {
        self.join()
    }

    /// Unmounts and waits. One that is in use is detached, as when it is dropped; to keep it then, ask its
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
            // Someone has detached it: it may be in use for long.
            Ok(Found::Nothing) => {}
            // In use: gone from the tree now, served until the last file is closed.
            Err(_) => {
                let _ = self.unmounter.detach();
            }
        }
    }
}

/// Unmounts one mount, from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    dir: PathBuf,
    id: Option<u64>,
}

impl Unmounter {
    /// Unmounts it; does nothing if that has happened already.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Unmount`].
    pub fn unmount(&self) -> Result<(), Error> {
        self.take_away(UnmountFlags::empty()).map(|_| ())
    }

    /// Takes it out of the tree even if it is in use; it is served until the last file is closed.
    ///
    /// # Errors
    /// [`Error::Unmount`].
    pub fn detach(&self) -> Result<(), Error> {
        self.take_away(UnmountFlags::DETACH).map(|_| ())
    }

    fn take_away(&self, flags: UnmountFlags) -> Result<Found, Error> {
        // Another mount at the same place is not ours to take away.
        match mounts::mount_at(&self.dir) {
            Some(mount) if Some(mount.id) == self.id => {
                mounts::take_away(&self.dir, flags).map(|()| Found::Unmounted)
            }
            _ => Ok(Found::Nothing),
        }
    }
}

/// What there was to unmount.
enum Found {
    Unmounted,
    Nothing,
}

/// What the threads that serve a mount and its owner both know.
///
/// Invariant: after a panic of the engine it is not called again. A broken invariant gives no answers.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    notifier: OnceLock<Notifier>,
    shut_down: AtomicBool,
    broken: AtomicBool,
}

impl Shared {
    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(SeqCst)
    }

    /// Calls the engine, if it may be called.
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> heddle_vfs::Result<T>) -> heddle_vfs::Result<T> {
        let failed = || heddle_vfs::Error::Io("the engine panicked; the mount is out of service".into());
        // ORDERING: Relaxed: a flag alone, nothing is read behind it; a late sight of it costs one more call.
        if self.broken.load(Relaxed) {
            return Err(failed());
        }
        if self.is_shut_down() {
            return Err(heddle_vfs::Error::Io("the file system was shut down".into()));
        }
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            // ORDERING: Relaxed, as above.
            self.broken.store(true, Relaxed);
            Err(failed())
        })
    }

    pub(crate) fn shut_down(&self) {
        self.shut_down.store(true, SeqCst);
    }

    /// The kernel forgets what it was told of this inode, also what is on its way.
    pub(crate) fn drop_attributes(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            // It fails for an inode the kernel does not know (any more): then there is nothing to forget.
            let _ = notifier.inval_inode(INodeNo(ino.0), -1, 0);
        }
    }

    /// The kernel writes back and drops its pages of `len_bytes` bytes of this inode, of all behind if that is 0. It waits for threads that
    /// serve. False if it could not.
    pub(crate) fn drop_pages(&self, ino: Ino, offset: u64, len_bytes: u64) -> bool {
        let Some(notifier) = self.notifier.get() else { return true };
        // An inode that the kernel does not know has no pages, and is no error.
        notifier.inval_inode(INodeNo(ino.0), offset as i64, len_bytes as i64).is_ok()
    }
}
