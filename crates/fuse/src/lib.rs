//! Serves any [`FileSystem`] as a FUSE mount.
//!
//! ```no_run
//! # fn main() -> Result<(), heddle_fuse::Error> {
//! let fs = std::sync::Arc::new(heddle_vfs::model::ModelFs::new());
//! let mounted = heddle_fuse::mount(fs, "/mnt/h".as_ref(), &heddle_fuse::MountOptions::default())?;
//! mounted.wait() // until it is unmounted
//! # }
//! ```
//!
//! **Data** goes to the engine, not to the kernel's page cache. Every file is opened for direct I/O with
//! parallel direct writes; otherwise the kernel would serialise the writers of a file. The kernel still does
//! so for writes that extend the file, for `O_APPEND`, and for a file with a shared mapping (until its
//! descriptor is closed). A call longer than 1 MiB arrives in pieces (a page less if the caller's buffer does
//! not start at a page border). So reads and writes up to that length are atomic to each other. A write
//! through an `O_APPEND` descriptor goes to the engine's end of file, whatever offset the kernel has.
//!
//! **Mappings** are the exception. Private ones (programs being executed, shared libraries) work. Shared ones
//! work through the page cache, negotiated with `FUSE_DIRECT_IO_ALLOW_MMAP`. Their stores reach the engine at
//! `msync`, at `munmap` or when the kernel writes back, page by page and not atomically. Reads and writes
//! through the mount see those stores, because the kernel writes dirty pages back before such a call and
//! drops clean ones after it. If a call has gone past the kernel's page meanwhile, a page that comes back is
//! compared with the bytes that the kernel was given: the call's bytes stay.
//!
//! **Permissions** are checked twice: by the kernel (`default_permissions`) and by the engine. A FUSE request
//! carries a user and a group but no supplementary groups. If the engine refuses a caller other than root,
//! the groups are read from `/proc/PID/status` and the engine is asked again. A caller in another PID
//! namespace has none. Capabilities of such a caller do not count. The engine applies the umask, unless a
//! default access list takes its place. `POSIX` and `flock` locks are the kernel's own. Set-user-id programs
//! and device files have no effect, unless [`MountOptions::suid`] and [`MountOptions::dev`] allow them.
//!
//! **Caches**: the kernel keeps names and attributes for [`MountOptions::ttl`], but keeps no attributes of a
//! file that is open for writing. So sizes and times never go back, and a program's changes past the mount,
//! through a descriptor of it, are seen at once. The kernel's first read for a mapping shows that there is
//! one. The engine is then told ([`FileSystem::note_kernel_pages`]), and such programs use the mount for that
//! file.
//!
//! **Failures**: if an engine panics, that request and every later one fail with `EIO`: after a broken
//! invariant no answer is better than a wrong one. When the process dies, callers get `ENOTCONN` until the
//! mount is removed, with `heddle umount DIR`, `umount DIR` (root) or `fusermount3 -u DIR`.
//!
//! Mounting uses `mount(2)` if the process may call it, else the setuid helper `fusermount3` of libfuse; the
//! library itself is not needed.

mod adapter;
mod caller;
mod connect;
mod convert;
mod damage;
mod end_mark;
mod error;
mod guard;
mod handles;
mod mappers;
mod mounts;
mod openers;
mod options;
mod orphans;
mod pages;
mod planted;
mod privileges;
mod remount;
mod requests;
mod session;
mod shared;
mod timed_request;
mod umount;
mod writers;
mod xattrs;

pub use damage::tell_of_damage;
pub use end_mark::EndMark;
pub use error::{Error, Holder, is_plain, shown};
pub use mappers::mappers;
pub use mounts::{Mount, heddle_mounts, is_served, is_trusted_user};
pub use options::MountOptions;
pub use remount::{Remount, remount};
pub use session::{MountPoint, Mounted, Unmounter, mount};
pub use timed_request::ask_with_timeout;
pub use umount::{Image, Leaving, umount};

#[doc(no_inline)]
pub use heddle_vfs::FileSystem;
