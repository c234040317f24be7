//! Handing a mounted file system to forked children: they inherit the descriptors that the attach socket sends to
//! other clients.
//!
//! State       [`ForkHandle`]: the mount, kept by the process that is going to fork. A child that joins maps region and arena again, from
//!             the inherited descriptors. From then on it is a client like any other: same code, lanes of its own, and
//!             its death is settled.
//! Invariants  I1  a child is a process of its own. It is counted in `attached` before its first call, so that an unmount waits for it
//!                 and settles it. It leases its own lanes, and does not use its parent's: the leases that it finds in its thread's
//!                 memory name the parent (I3 of `lease`).
//!             I2  joining takes no lock that another thread of the parent may have held at the fork. It uses only system calls, the
//!                 C library's allocator (which a fork leaves usable), and atomics.
//! Why so      The attach socket needs a name in a directory, a thread, and a process that removes the one and ends the other in any case.
//!             Here nothing has a name: a mapping ends with the last process that has it. The mappings that a fork copies would do for
//!             the calls, but a child has none of their pages mapped, and could not map them all at once ([`NvmFs::map_all`]).
//!             Without an attach socket no daemon looks for dead lanes: a thread that waits for one settles it, and an unmount settles the
//!             rest.

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
    /// The file system is for one process only.
    #[error("{why}")]
    OneProcess {
        /// The reason.
        why: String,
    },
    /// Region or arena cannot be mapped.
    #[error("cannot map the file system that the parent has mounted: {why}")]
    Map {
        /// The system's error.
        why: String,
    },
}

/// What a forked child joins.
pub struct ForkHandle {
    core: Arc<Core>,
}

impl ForkHandle {
    /// The handle for children of this process.
    ///
    /// # Errors
    /// [`ForkError::OneProcess`] for the papers' variants, and where the region is simulated.
    pub fn of(volume: &Volume) -> Result<ForkHandle, ForkError> {
        let core = volume.fs().core;
        match refusal(&core, &ServerOptions::default()) {
            Some(why) => Err(ForkError::OneProcess { why }),
            None => {
                // The page is created once in each process, under a lock. So it is created before any child
                // needs it (I2).
                process::generation();
                Ok(ForkHandle { core })
            }
        }
    }

    /// Joins the mount; to be called in the child. The result works as in the process that mounted it. The
    /// child ends with [`NvmFs::leave`].
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
        core.process_slot().map_err(|e| map(&e))?;
        Ok(NvmFs { core: Arc::new(core) })
    }

    /// Other processes that have a lane: they are working, or have died and are not settled yet.
    pub fn others(&self) -> Vec<u32> {
        let clients = Counters::read(&self.core).clients;
        clients.into_iter().map(|client| client.pid).filter(|pid| *pid != std::process::id()).collect()
    }
}

impl NvmFs {
    /// Returns the calling thread's lanes, for a process that ends by `_exit`. That runs no thread's
    /// clean-up, and the lanes would have to be settled as dead ones.
    pub fn leave(self) {
        lease::leave(&self.core);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::upkeep::settle::sweep;
    use crate::variant::Variant;
    use crate::volume::{MountOptions, format, mount};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_child_that_has_not_left_is_named_until_it_is_settled() {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        let volume =
            mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
        let core = volume.fs().core;
        drop(lease::enter(&core).unwrap());
        let handle = ForkHandle::of(&volume).unwrap();
        // SAFETY: the child joins and leaves by `_exit`; it touches no lock that another thread may have held at the fork.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let joined = catch_unwind(AssertUnwindSafe(|| {
                let core = handle.join().unwrap().core;
                drop(lease::enter(&core).unwrap());
            }));
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(joined.is_err())) };
        }
        let mut status = 0;
        // SAFETY: room for the answer.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!((status, core.root().attached.load(SeqCst)), (0, 1));
        assert_eq!(handle.others(), [pid as u32]);
        sweep(&core);
        assert_eq!(handle.others(), []);
        lease::leave(&core);
        drop((handle, core));
        volume.unmount();
    }
}
