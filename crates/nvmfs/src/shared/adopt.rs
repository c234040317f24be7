//! A daemon that starts while clients of a dead one live: it takes their arena over, and recovers nothing.
//!
//! Where the arena is: among the descriptors of the clients, which the kernel lists in `/proc/PID/fd`. Which it is: the one whose inode
//! the dead daemon has noted for this image's file (`notes`), made by this user; anybody could make one that looks
//! like it. A daemon is dead if neither of two says that it lives: the lock of the image, whose owner still has it open; the seat
//! of who mounted the image, or took it over, which the kernel frees when its address space ends (whatever namespace it is in).
//!
//! Invariants  I1  of two that take over at once one wins: the seat's tag is exchanged, from the dead one's to the winner's.
//!             I2  whoever maps through the new daemon's descriptor keeps others from opening the image, as those of the old one do:
//!                 it is joined to the holders of the region first.

use super::image_id;
use super::notes::{self, NoteError};
use crate::process::boot_id;
use crate::state::core::{Core, Identity, Parts, Root};
use crate::upkeep::settle::{self, HOOKS};
use crate::variant::Variant;
use crate::volume::{Volume, VolumeError, read_superblock};
use heddle_arena::Arena;
use heddle_pmem::{Durability, Region};
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
        /// What the system said.
        source: io::Error,
    },
    /// Its content.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Its mapping.
    #[error(transparent)]
    Region(#[from] heddle_pmem::Error),
    /// A daemon serves it.
    #[error("{} is served by a living process", path.display())]
    Served {
        /// Image.
        path: PathBuf,
    },
    /// No daemon of this user has noted what it made.
    #[error("{} is in use, but what the processes that use it hold is not taken over: {why}. End them, then mount it again (it will be \
             recovered)", path.display())]
    NotNoted {
        /// Image.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Nobody whose memory this user may look at has it.
    #[error("{} is in use, but no process that you may look at holds its state: end the processes that use it, then mount it again \
             (it will be recovered)", path.display())]
    NotFound {
        /// Image.
        path: PathBuf,
    },
}

/// Takes over what the clients of a dead daemon hold. Lanes of the dead are settled.
///
/// # Errors
/// One variant of [`AdoptError`] a cause; nothing has changed then. [`AdoptError::Served`] also where a living process has it mounted for
/// itself alone.
pub fn adopt(image: &Path) -> Result<Volume, AdoptError> {
    // A client may have written over what is read here: then the state is nobody's to take over.
    let adopted = catch_unwind(AssertUnwindSafe(|| take_over(image)));
    adopted.unwrap_or_else(|_| Err(AdoptError::NotFound { path: image.to_path_buf() }))
}

fn take_over(image: &Path) -> Result<Volume, AdoptError> {
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
    // Only to read: what its stores survive is not known yet.
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
    let (arena, durability) =
        find(&identity, noted).ok_or_else(|| AdoptError::NotFound { path: image.to_path_buf() })?;
    let region = Region::attach(OwnedFd::from(file), Some(image), len_bytes, false, durability)?;
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
    let mine = core.seat().map_err(|e| fail(io::Error::other(e.to_string())))?.tag();
    // I1.
    if !core.root().succeed(mine, |last| core.lane_table().is_gone(&core.arena, last)) {
        return Err(served());
    }
    settle::sweep(&core);
    Ok(Volume::adopted(core, superblock))
}

/// Has this process the image open? Clients have closed it. One whose descriptors may not be looked at may have.
fn has_open(process: u32, image: &Path) -> bool {
    let Ok(image) = fs::metadata(image) else { return false };
    match fs::read_dir(format!("/proc/{process}/fd")) {
        Err(e) => e.kind() == io::ErrorKind::PermissionDenied,
        Ok(fds) => fds.flatten().any(|fd| {
            fs::metadata(fd.path()).is_ok_and(|file| (file.dev(), file.ino()) == (image.dev(), image.ino()))
        }),
    }
}

/// The arena that a daemon of this user has noted for this image: its device and inode.
fn noted(image: &Path, file: &File) -> Result<[u64; 2], AdoptError> {
    let not_noted = |why: String| AdoptError::NotNoted { path: image.to_path_buf(), why };
    let id = image_id(file).map_err(|e| AdoptError::Image { path: image.to_path_buf(), source: e.into() })?;
    let noted = notes::read(id).map_err(|error: NoteError| not_noted(error.to_string()))?;
    let noted = noted.filter(|noted| noted.boot == boot_id());
    let noted = noted
        .ok_or_else(|| not_noted("no mount of this user has left a note of what it gave them".to_owned()))?;
    match noted.pid_namespace == notes::pid_namespace() {
        true => Ok(noted.arena),
        false => Err(not_noted(
            "they and the mount that died belong to another PID namespace: mount it there".to_owned(),
        )),
    }
}

/// The arena of this mount, in whichever process has it, and what its processes' stores survive.
fn find(identity: &Identity, noted: [u64; 2]) -> Option<(Arena, Durability)> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut places = processes
        .filter_map(|process| fs::read_dir(process.path().join("fd")).ok())
        .flat_map(|fds| fds.flatten());
    places.find_map(|fd| {
        let is_arena = fs::read_link(fd.path())
            .is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"/memfd:heddle-arena"));
        let file = is_arena.then(|| File::options().read(true).write(true).open(fd.path()).ok()).flatten()?;
        let made_by = rustix::fs::fstat(&file).ok()?.st_uid;
        if image_id(&file) != Ok(noted) || made_by != rustix::process::geteuid().as_raw() {
            return None;
        }
        let arena = Arena::attach(OwnedFd::from(file)).ok()?;
        let root = arena.try_get(arena.root::<Root>());
        let root = root.filter(|root| root.is(identity) && root.ended.load(SeqCst) == 0);
        let durability = root.and_then(Root::durability)?;
        Some((arena, durability))
    })
}
