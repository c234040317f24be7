//! Any [`FileSystem`] as a FUSE mount.
//!
//! ```no_run
//! # fn main() -> Result<(), heddle_fuse::Error> {
//! let fs = std::sync::Arc::new(heddle_vfs::model::ModelFs::new());
//! let mounted = heddle_fuse::mount(fs, "/mnt/h".as_ref(), &heddle_fuse::MountOptions::default())?;
//! mounted.wait() // until someone unmounts it
//! # }
//! ```
//!
//! **Data** goes to the engine, never to the kernel's page cache: every file is opened for direct I/O with parallel
//! direct writes, else the kernel would serialise the writers of a file itself. It still does so for writes that extend
//! the file, for `O_APPEND`, and for a file with a shared mapping (until its descriptor is closed). A longer call than
//! 1 MiB (a page less if the caller's buffer does not start at a page border) arrives in pieces: that is the length up to
//! which reads and writes are atomic to each other here. A write through an `O_APPEND` descriptor goes to the engine's
//! end of file, whatever offset the kernel believes in.
//!
//! **Mappings** are the exception. Private ones (programs being executed, shared libraries) just work. Shared ones work
//! through the page cache, negotiated with `FUSE_DIRECT_IO_ALLOW_MMAP`: what they write reaches the engine at `msync`,
//! `munmap` or the kernel's leisure, page by page, and is not atomic. Reads and writes through the mount see it, because
//! the kernel writes dirty pages back before and drops clean ones after them. A page that comes back whole is compared with
//! what the kernel was given of it, where a call went around it meanwhile: what such a call wrote stays.
//!
//! **Permissions** are checked twice: by the kernel (`default_permissions`) and by the engine. A FUSE request carries a
//! user and a group but no supplementary groups. When the engine refuses a caller who is not root, they are read from
//! `/proc/PID/status` and the engine is asked again; a caller in another PID namespace has none. The umask is applied by
//! the engine, unless a default access list stands in its place. `POSIX` and `flock` locks are the kernel's own.
//! Set-user-id programs and device files have no effect, unless [`MountOptions::suid`] and [`MountOptions::dev`] say so.
//!
//! **Caches**: names and attributes are kept by the kernel for [`MountOptions::ttl`], those of a file that is open for writing
//! not at all: so sizes and times never go back, and what a program changes past the mount, through a descriptor of it, is seen
//! at once. A mapping shows itself by the kernel's first read for it; the engine is
//! told ([`FileSystem::note_kernel_pages`]), and such programs then use the mount for that file.
//!
//! **Failures**: should an engine panic, that request and every later one fail with `EIO`: after a broken invariant no
//! answer is better than a wrong one. When the process dies, callers get `ENOTCONN` until the mount is taken away, with
//! `heddle umount DIR`, `umount DIR` (root) or `fusermount3 -u DIR`.
//!
//! Mounting is done with `mount(2)` where the process may, else by the setuid helper `fusermount3` of libfuse; the
//! library itself is not needed.

mod adapter;
mod asked;
mod caller;
mod connect;
mod convert;
mod error;
mod handles;
mod modes;
mod mounts;
mod nameless;
mod options;
mod pages;
mod planted;
mod privileges;
mod remount;
mod requests;
mod session;
mod shared;
mod umount;
mod xattrs;

pub use asked::ask_in_time;
pub use error::{Error, Holder, is_plain, shown};
pub use mounts::{Mount, heddle_mounts, is_believed, is_served};
pub use options::MountOptions;
pub use remount::{Remount, remount};
pub use session::{MountPoint, Mounted, Unmounter, mount};
pub use umount::{Image, Leaving, umount};

#[doc(no_inline)]
pub use heddle_vfs::FileSystem;
