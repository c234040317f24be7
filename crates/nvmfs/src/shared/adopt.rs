//! A daemon that starts while clients of a dead one live: it takes their arena over, and recovers nothing.
//!
//! Where the arena is: among the descriptors of the clients, which the kernel lists in `/proc/PID/fd`. Whether its daemon is dead: the
//! daemon's door thread holds a lane of its own (`Root::keeper`), which the kernel marks like any other.

use super::boot_id;
use crate::core::{Core, Identity, Parts, Root};
use crate::settle;
use crate::variant::Variant;
use crate::volume::{Volume, VolumeError, read_superblock};
use heddle_arena::{Arena, LaneId};
use heddle_pmem::Region;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
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
/// One variant of [`AdoptError`] a cause; nothing has changed then.
pub fn adopt(image: &Path) -> Result<Volume, AdoptError> {
    let fail = |source: io::Error| AdoptError::Image { path: image.to_path_buf(), source };
    let file = File::options().read(true).write(true).open(image).map_err(fail)?;
    let len_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| fail(e.into()))?;
    let len_bytes = len_bytes & !(heddle_pmem::BLOCK_BYTES as u64 - 1);
    let region = Region::attach(OwnedFd::from(file), Some(image), len_bytes, false)?;
    let superblock = read_superblock(&region)?;
    let identity = Identity { uuid: superblock.uuid, boot: boot_id(), epoch: superblock.epoch.get() };
    let arena = find(&identity).ok_or_else(|| AdoptError::NotFound { path: image.to_path_buf() })?;
    let parts = Parts {
        region,
        arena: Arc::new(arena),
        variant: Variant::Heddle,
        locks: None,
        on_lock: None,
        read_only: false,
    };
    let core =
        Core::join(parts, &identity).ok_or_else(|| AdoptError::NotFound { path: image.to_path_buf() })?;
    match core.keeper().lease_lane(&core.arena, LaneId(1)) {
        None => return Err(AdoptError::Served { path: image.to_path_buf() }),
        Some(lease) => {
            let _ours = core.keeper().release(&core.arena, lease.lane);
        }
    }
    settle::sweep(&core);
    Ok(Volume::adopted(core, superblock))
}

/// The arena of this mount, in whichever process has it.
fn find(identity: &Identity) -> Option<Arena> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut places = processes
        .filter_map(|process| fs::read_dir(process.path().join("fd")).ok())
        .flat_map(|fds| fds.flatten());
    places.find_map(|fd| {
        let is_arena = fs::read_link(fd.path())
            .is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"/memfd:heddle-arena"));
        let file = is_arena.then(|| File::options().read(true).write(true).open(fd.path()).ok()).flatten()?;
        let arena = Arena::attach(OwnedFd::from(file)).ok()?;
        let is_it = arena
            .try_get(arena.root::<Root>())
            .is_some_and(|root| root.is(identity) && root.ended.load(SeqCst) == 0);
        is_it.then_some(arena)
    })
}
