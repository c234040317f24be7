//! Takeover: a daemon that starts while clients of a dead daemon live takes over their arena, and recovers
//! nothing.
//!
//! The new daemon finds the arena among the descriptors of the clients, which the kernel lists in
//! `/proc/PID/fd`. The right one has the inode that the dead daemon has noted for this image's file
//! (`notes`), and was made by this user; any user could make one that looks like it. A daemon counts as dead
//! if two signs of life are missing. 1. The lock of the image, whose owner still has it open. 2. The process slot of
//! the process that mounted the image or took it over; the kernel frees it when the address space ends, in
//! any namespace. From another PID namespace nothing is taken over; there the lock of the note says whether the daemon lives.
//!
//! Invariants  I1  if two daemons take over at once, one succeeds: the process slot's tag is exchanged, from the dead one's to the
//!                 winner's.
//!             I2  processes that map through the new daemon's descriptor keep others from opening the image, as those of the old daemon
//!                 do: the descriptor is joined to the holders of the region first.

use super::image_id;
use super::notes::{self, Author, NoteError};
use crate::format::inode::CHUNK_INODES;
use crate::format::superblock::Superblock;
use crate::process::boot_id;
use crate::state::core::{Core, Identity, Parts, Root};
use crate::upkeep::settle::{self, HOOKS};
use crate::variant::Variant;
use crate::volume::{Volume, VolumeError, read_superblock};
use heddle_arena::{Arena, ProcessTag};
use heddle_pmem::{Durability, Region};
use heddle_vfs::unmapped::is_own_user;
use heddle_vfs::{Ino, procfs};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Why an arena was not taken over.
#[derive(thiserror::Error, Debug)]
pub enum AdoptError {
    /// The image.
    #[error("cannot look at {}: {source}", path.display())]
    Image {
        /// Image.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The content of the image.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The mapping of the image.
    #[error(transparent)]
    Region(#[from] heddle_pmem::Error),
    /// A daemon serves the image.
    #[error("{} is served by a living process", path.display())]
    Served {
        /// Image.
        path: PathBuf,
    },
    /// A daemon of another PID namespace serves the image.
    #[error("{} is mounted by a living process of another PID namespace: unmount it there (heddle umount DIR), then mount it again",
            path.display())]
    ServedElsewhere {
        /// Image.
        path: PathBuf,
    },
    /// No daemon of this user has noted the arena that it made.
    #[error("{} is in use, but what the processes that use it hold is not taken over: {why}. End them, then mount it again (it will be \
             recovered)", path.display())]
    NotNoted {
        /// Image.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// A heddle of another build made the arena. Its fields may be elsewhere.
    #[error("{} is in use by processes of another build of heddle: mount it with that build, or end them, then mount it again (it will be \
             recovered)", path.display())]
    OtherBuild {
        /// Image.
        path: PathBuf,
    },
    /// No process whose memory this user may read has it.
    #[error("{} is in use, but no process that you may look at holds its state: end the processes that use it, then mount it again \
             (it will be recovered)", path.display())]
    NotFound {
        /// Image.
        path: PathBuf,
    },
}

impl Volume {
    /// What stores to the region survive. A volume that was taken over keeps what its first mount had.
    pub fn durability(&self) -> Durability {
        self.fs().core.region.durability()
    }
}

/// Takes over the state that the clients of a dead daemon hold. Dead lanes are settled.
///
/// # Errors
/// One variant of [`AdoptError`] for each cause; nothing has changed then. [`AdoptError::Served`]
/// also if a living process has mounted the image for itself alone.
pub fn adopt(image: &Path) -> Result<Volume, AdoptError> {
    // A client may have scribbled over the memory that is read here. Then the state cannot be taken over.
    let adopted = catch_unwind(AssertUnwindSafe(|| take_over(image)));
    adopted.unwrap_or_else(|_| Err(AdoptError::NotFound { path: image.to_path_buf() }))
}

/// Returns true if only clients of a dead daemon use the image, and [`adopt`] would find their state. Nothing changes.
pub fn is_left_to_clients(image: &Path) -> bool {
    let found = catch_unwind(AssertUnwindSafe(|| Orphaned::find(image).is_ok_and(|it| it.has_no_daemon())));
    found.unwrap_or(false)
}

fn take_over(image: &Path) -> Result<Volume, AdoptError> {
    let fail = |source: io::Error| AdoptError::Image { path: image.to_path_buf(), source };
    let Orphaned { file, len_bytes, superblock, arena, durability } = Orphaned::find(image)?;
    let region = Region::attach(OwnedFd::from(file), Some(image), len_bytes, false, durability)?;
    let identity = Identity::of(&superblock, boot_id());
    let parts = Parts {
        region,
        arena: Arc::new(arena),
        variant: Variant::Heddle,
        locks: None,
        on_lock: None,
        hooks: HOOKS,
        read_only: false,
    };
    let core =
        Core::join(parts, &identity).ok_or_else(|| AdoptError::NotFound { path: image.to_path_buf() })?;
    let mine = core.process_slot().map_err(|e| fail(io::Error::other(e.to_string())))?.tag();
    // I1.
    if !core.root().succeed(mine, |last| core.lane_table().is_gone(&core.arena, last)) {
        return Err(AdoptError::Served { path: image.to_path_buf() });
    }
    settle::sweep(&core);
    forget_kernel_pages(&core);
    Ok(Volume::adopted(core, superblock))
}

/// An image whose daemon is dead, and what its clients hold of it.
struct Orphaned {
    /// The image, joined to the holders of the region (I2).
    file: File,
    len_bytes: u64,
    superblock: Superblock,
    arena: Arena,
    durability: Durability,
}

impl Orphaned {
    /// Finds it. If the image's lock says that the daemon lives, or no state is found, says why there is nothing to take over.
    fn find(image: &Path) -> Result<Orphaned, AdoptError> {
        let fail = |source: io::Error| AdoptError::Image { path: image.to_path_buf(), source };
        let served = || AdoptError::Served { path: image.to_path_buf() };
        if heddle_pmem::lock_holder(image).is_some_and(|owner| has_open(owner, image)) {
            return Err(served());
        }
        let file = File::options().read(true).write(true).open(image).map_err(fail)?;
        if !heddle_pmem::join_holders(&file) {
            return Err(served());
        }
        let noted = noted(image, &file)?;
        let len_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| fail(e.into()))?;
        let len_bytes = len_bytes & !(heddle_pmem::BLOCK_BYTES as u64 - 1);
        // Only to read: the durability of its stores is not known yet.
        let first_look = Region::attach(
            file.try_clone().map_err(fail)?.into(),
            Some(image),
            len_bytes,
            true,
            Durability::Power,
        )?;
        let superblock = read_superblock(&first_look)?;
        drop(first_look);
        let identity = Identity::of(&superblock, boot_id());
        let (arena, durability) = match find(&identity, noted) {
            Found::Arena(arena, durability) => (arena, durability),
            Found::OtherBuild => return Err(AdoptError::OtherBuild { path: image.to_path_buf() }),
            Found::Nothing => return Err(AdoptError::NotFound { path: image.to_path_buf() }),
        };
        Ok(Orphaned { file, len_bytes, superblock, arena, durability })
    }

    /// Returns true if the second sign of life is missing, too. After a takeover the first one is.
    fn has_no_daemon(&self) -> bool {
        let Some(root) = self.arena.try_get(self.arena.root::<Root>()) else { return false };
        let daemon = ProcessTag::from_word(root.daemon.load(SeqCst));
        root.lane_table_of(&self.arena).is_some_and(|lanes| lanes.is_gone(&self.arena, daemon))
    }
}

/// The kernel's pages and descriptors of files ended with the dead mount, which counted them. Nobody else would count them down: such
/// files would be served through the mount for ever.
fn forget_kernel_pages(core: &Core) {
    let chunks = (0..core.chunks().len() as u64).map(|chunk| chunk * CHUNK_INODES);
    for first in chunks.filter(|first| core.slot(Ino(*first)).is_some()) {
        let inodes = (first..first + CHUNK_INODES).filter_map(|ino| core.slot(Ino(ino)));
        inodes.for_each(|inode| inode.volatile.kernel.forget());
    }
}

/// Returns true if this process has the image open. Clients have closed it. A process whose descriptors may
/// not be read counts as one that has it open.
fn has_open(process: u32, image: &Path) -> bool {
    fs::metadata(image).is_ok_and(|image| procfs::has_open(process, &image))
}

/// The arena that a daemon of this user has noted for this image: its device and inode.
fn noted(image: &Path, file: &File) -> Result<[u64; 2], AdoptError> {
    let not_noted = |why: String| AdoptError::NotNoted { path: image.to_path_buf(), why };
    let id = image_id(file).map_err(|e| AdoptError::Image { path: image.to_path_buf(), source: e.into() })?;
    let noted = notes::read(id).map_err(|error: NoteError| not_noted(error.to_string()))?;
    let noted = noted.filter(|(noted, _)| noted.boot == boot_id());
    let (noted, author) = noted
        .ok_or_else(|| not_noted("no mount of this user has left a note of what it gave them".to_owned()))?;
    let is_here = noted.pid_namespace == notes::pid_namespace();
    let elsewhere =
        |way: &str| not_noted(format!("the mount that they use belongs to another PID namespace{way}"));
    match author {
        // Here the process slot of the daemon says more (I1): a fork of the daemon may hold the lock for some time.
        _ if is_here => Ok(noted.arena),
        Author::Lives => Err(AdoptError::ServedElsewhere { path: image.to_path_buf() }),
        Author::Ended => Err(elsewhere(", and its process has ended: mount it there")),
        Author::Unknown => {
            Err(elsewhere(". If its process lives, unmount it there; if that has ended, mount it there"))
        }
    }
}

/// The result of the search for an arena.
enum Found {
    /// It, and the durability of the stores of those processes.
    Arena(Arena, Durability),
    /// Another build made it.
    OtherBuild,
    /// No process has it, or it is not this mount's.
    Nothing,
}

/// Finds the arena of this mount, in any process that has it. A stranger's process may keep its reader waiting ([`procfs`]).
fn find(identity: &Identity, noted: [u64; 2]) -> Found {
    let Ok(processes) = fs::read_dir("/proc") else { return Found::Nothing };
    let numbers = processes.flatten().filter_map(|process| process.file_name().to_str()?.parse().ok());
    let files = procfs::limited::of_each(numbers, move |process| arena_of(process, noted));
    files
        .into_iter()
        .filter_map(|(_, file)| file)
        .find_map(|file| usable(file, identity))
        .unwrap_or(Found::Nothing)
}

/// The file that was noted, if this process has it open.
fn arena_of(process: u32, noted: [u64; 2]) -> Option<File> {
    let is_noted = |device: u64, inode: u64, uid: u32| [device, inode] == noted && is_own_user(uid);
    fs::read_dir(procfs::directory(process).join("fd")).ok()?.flatten().find_map(|fd| {
        let is_arena = fs::read_link(fd.path())
            .is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"/memfd:heddle-arena"));
        // Before it is opened: a lease on a stranger's file would hold up the open.
        let is_its = |file: procfs::Known| is_noted(file.device, file.inode, file.uid);
        if !is_arena || !procfs::known(&fd.path()).is_ok_and(is_its) {
            return None;
        }
        let file = File::options().read(true).write(true).open(fd.path()).ok()?;
        // Again: the descriptor may be another file's by now.
        file.metadata().is_ok_and(|file| is_noted(file.dev(), file.ino(), file.uid())).then_some(file)
    })
}

fn usable(file: File, identity: &Identity) -> Option<Found> {
    let arena = Arena::attach(OwnedFd::from(file)).ok()?;
    let root = arena.try_get(arena.root::<Root>())?;
    if !root.is_of_this_build() {
        return Some(Found::OtherBuild);
    }
    let durability = root.durability().filter(|_| root.is(identity) && root.ended.load(SeqCst) == 0)?;
    Some(Found::Arena(arena, durability))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::shared::notes::{Note, Noted};
    use crate::state::inode::KernelPages;
    use crate::volume::{MountOptions, format, mount};
    use heddle_vfs::FileSystem;
    use heddle_vfs::short::Short;
    use heddle_vfs::testkit::LockedMemory;
    use std::os::fd::AsRawFd;

    /// A daemon of another version took over an arena whose fields it looked for elsewhere.
    #[test]
    fn crash_an_arena_of_another_build_was_taken_over() {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let core = &volume.fs().core;
        let noted = image_id(core.arena.fd().unwrap()).unwrap();
        let look = || find(&core.identity(), noted);
        assert!(matches!(look(), Found::Arena(..)));
        core.root().forge_layout();
        assert!(matches!(look(), Found::OtherBuild));
        let parts = Parts {
            region: core.region.map_again().unwrap(),
            arena: core.arena.clone(),
            variant: Variant::Heddle,
            locks: None,
            on_lock: None,
            hooks: HOOKS,
            read_only: false,
        };
        assert!(Core::join(parts, &core.identity()).is_none());
        core.root().forge_layout();
        assert!(matches!(look(), Found::Arena(..)));
        let next = Identity { epoch: core.identity().epoch + 1, ..core.identity() };
        assert!(matches!(find(&next, noted), Found::Nothing), "it is of an earlier mount");
        core.root().ended.store(1, SeqCst);
        assert!(matches!(look(), Found::Nothing), "it has been unmounted");
        core.root().ended.store(0, SeqCst);
        crate::state::lease::leave(core);
        volume.unmount();
    }

    #[test]
    fn a_lease_on_a_strangers_arena_does_not_hold_up_a_takeover() {
        // SAFETY: takes no pointers. The kernel tells the holder of a lease by this signal, which would end the process.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let stranger = rustix::fs::memfd_create("heddle-arena", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let opened = File::open(format!("/proc/self/fd/{}", stranger.as_raw_fd())).unwrap();
        // SAFETY: takes no pointers.
        let leased = unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
        assert_eq!(leased, 0, "{}", io::Error::last_os_error());
        let [device, inode] = image_id(&stranger).unwrap();
        let identity = Identity { uuid: [1; 16], boot: boot_id(), epoch: 1, seed: 1 };
        let began = std::time::Instant::now();
        // No other test's arena has this number.
        assert!(matches!(find(&identity, [device, inode | 1 << 62]), Found::Nothing));
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }

    #[test]
    fn a_stranger_who_locks_his_mappings_delays_no_takeover() {
        let Some(locked) = LockedMemory::new() else { return };
        let (pid, (tell, told)) = (locked.pid(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let identity = Identity { uuid: [1; 16], boot: boot_id(), epoch: 1, seed: 1 };
            let is_found = !matches!(find(&identity, [0, 0]), Found::Nothing);
            let _either = has_open(pid, Path::new("/proc/self/ns/pid"));
            tell.send(is_found).unwrap();
        });
        assert_eq!(told.recv_timeout(std::time::Duration::from_secs(30)), Ok(false));
    }

    #[test]
    fn kernel_pages_of_a_dead_mount_are_forgotten_in_each_chunk() {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let fs = volume.fs();
        (0..70).for_each(|n| fs.release(fs.new_file(Ino::ROOT, &n.to_string())));
        let core = &fs.core;
        let numbers = 1..core.chunks().len() as u64 * CHUNK_INODES;
        let all: Vec<_> = numbers.filter_map(|ino| core.slot(Ino(ino))).collect();
        assert!(all.len() > 70 && all[70].ino.0 >= CHUNK_INODES, "they are in several chunks");
        all.iter().for_each(|inode| inode.volatile.kernel.count_pages(true));
        forget_kernel_pages(core);
        assert!(all.iter().all(|inode| !KernelPages::of(inode.volatile).are_kept()));
        crate::state::lease::leave(core);
        drop(fs);
        volume.unmount();
    }

    #[test]
    fn a_process_has_open_what_its_descriptors_name() {
        let (me, dir) = (std::process::id(), tempfile::tempdir().unwrap());
        let [open, closed, missing] = ["open", "closed", "missing"].map(|name| dir.path().join(name));
        std::fs::write(&closed, "").unwrap();
        let _open = File::create(&open).unwrap();
        assert!(has_open(me, &open));
        assert!(!has_open(me, &closed) && !has_open(me, &missing));
        // Larger than any process's number.
        assert!(!has_open(1 << 30, &open));
    }

    #[test]
    fn an_arena_is_noted_for_this_boot_and_this_number_space() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let image = File::create(&path).unwrap();
        let look = |boot: [u8; 16], pid_namespace: u64| {
            let said = Noted { boot, arena: [3, 4], pid_namespace, path: path.clone() };
            let _daemon = Note::leave(image_id(&image).unwrap(), &said).unwrap();
            noted(&path, &image)
        };
        let here = notes::pid_namespace();
        assert_eq!(look(boot_id(), here).unwrap(), [3, 4]);
        assert!(matches!(look(boot_id(), here + 1), Err(AdoptError::ServedElsewhere { .. })));
        assert!(matches!(look([1; 16], here), Err(AdoptError::NotNoted { .. })));
        assert!(matches!(noted(&path, &image), Err(AdoptError::NotNoted { .. })), "the daemon has ended");
    }
}
