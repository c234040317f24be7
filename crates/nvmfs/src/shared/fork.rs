//! Handing a mounted file system to forked children: they inherit what the door hands to strangers.
//!
//! State       [`ForkHandle`]: the mount, kept by who is going to fork. A child that joins maps region and arena anew, from the descriptors
//!             it has inherited, and is a client like any that came through the door: same code, lanes of its own, a death that is settled.
//! Invariants  I1  a child is a process of its own: it is counted in `attached` before its first call, so that an unmount waits for it
//!                 and settles it; it leases its own lanes, since those of its parent, which it finds in its thread's memory, say whose
//!                 they are (I3 of `lease`).
//!             I2  joining takes no lock that another thread of the parent may have held at the fork: the kernel's calls, the C library's
//!                 allocator (which a fork leaves usable), atomics.
//! Why so      The door needs a name in a directory, a thread, and somebody who removes the one and ends the other whatever happens. Here
//!             nothing has a name: what is mapped goes with the last process that maps it. The mappings that a fork copies would do for
//!             the calls, but a child has none of their pages and could not have them all mapped at once ([`NvmFs::map_all`]).
//!             Without a door nobody looks for the dead twice a second: who waits for one settles it, and an unmount settles the rest.

use super::server::{ServerOptions, refusal};
use crate::counters::Counters;
use crate::fs::NvmFs;
use crate::process;
use crate::state::core::{Core, Parts};
use crate::state::lease;
use crate::upkeep::settle::HOOKS;
use crate::volume::Volume;
use heddle_arena::Arena;
use heddle_pmem::Region;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Why a child has no file system.
#[derive(thiserror::Error, Debug)]
pub enum ForkError {
    /// This one is for one process.
    #[error("{why}")]
    OneProcess {
        /// Why.
        why: String,
    },
    /// Region or arena cannot be mapped.
    #[error("cannot map what the parent has mounted: {why}")]
    Map {
        /// What the system said.
        why: String,
    },
}

/// What a forked child joins. See the module.
pub struct ForkHandle {
    core: Arc<Core>,
}

impl ForkHandle {
    /// For children of this process.
    ///
    /// # Errors
    /// [`ForkError::OneProcess`] for the papers' variants, and where the region is simulated.
    pub fn of(volume: &Volume) -> Result<ForkHandle, ForkError> {
        let core = volume.fs().core;
        match refusal(&core, &ServerOptions::default()) {
            Some(why) => Err(ForkError::OneProcess { why }),
            None => {
                // Made once a process, under a lock: before any child asks for it (I2).
                process::generation();
                Ok(ForkHandle { core })
            }
        }
    }

    /// Joins: to be called in the child. What comes back works as in the process that mounted it; the child ends with [`NvmFs::leave`].
    ///
    /// # Errors
    /// [`ForkError::Map`].
    pub fn join(&self) -> Result<NvmFs, ForkError> {
        let core = &self.core;
        let map = |why: &dyn std::fmt::Display| ForkError::Map { why: why.to_string() };
        let inherited = |fd: Option<BorrowedFd<'_>>| {
            fd.ok_or_else(|| map(&"its descriptors are closed"))?.try_clone_to_owned().map_err(|e| map(&e))
        };
        let (file, memory) = (inherited(core.region.fd())?, inherited(core.arena.fd())?);
        let (path, len_bytes) = (core.region.path(), core.region.len_bytes());
        let mut region = Region::attach(file, path, len_bytes, core.read_only, core.region.durability())
            .map_err(|e| map(&e))?;
        region.close_file();
        let arena = Arc::new(Arena::attach(memory).map_err(|e| map(&e))?);
        let variant = core.variant;
        let parts = Parts {
            region,
            arena,
            variant,
            locks: None,
            on_lock: None,
            hooks: HOOKS,
            read_only: core.read_only,
        };
        core.root().attached.fetch_add(1, SeqCst); // I1.
        let joined = Core::join(parts, &core.identity());
        let core = joined.ok_or_else(|| map(&"the arena is that of another mount"))?;
        core.seat().map_err(|e| map(&e))?;
        Ok(NvmFs { core: Arc::new(core) })
    }

    /// Other processes that have a lane: they work, or have died and are not settled yet.
    pub fn others(&self) -> Vec<u32> {
        let clients = Counters::read(&self.core).clients;
        clients.into_iter().map(|client| client.pid).filter(|pid| *pid != std::process::id()).collect()
    }
}

impl NvmFs {
    /// Gives the calling thread's lanes back, for a process that ends by `_exit`: that lets no thread give back what it has, and its lanes
    /// would be those of the dead.
    pub fn leave(self) {
        lease::leave(&self.core);
    }
}
