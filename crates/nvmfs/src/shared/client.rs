//! Attaching to a file system that another process has mounted.

use super::attach_address::{AttachAddress, trusts};
use super::attach_ioctl::{self, AttachToken};
use super::attach_socket::READING_SEALS;
use super::image_id;
use super::server::fresh_token;
use super::wire::{self, Answer, Hello, Packet, Want};
use crate::counters::Counters;
use crate::format::layout::REGION_BYTES_MIN;
use crate::fs::NvmFs;
use crate::process::{self, boot_id};
use crate::state::core::{Core, Identity, Parts};
use crate::upkeep::settle::HOOKS;
use crate::variant::Variant;
use crate::volume::read_superblock;
use heddle_arena::Arena;
use heddle_pmem::{BLOCK_BYTES, Durability, Region};
use heddle_vfs::ioctl::{ATTACH, ATTACH_BYTES};
use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Longest time that the daemon may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Most bytes of a reading.
const READING_BYTES_MAX: u64 = 16 << 20;

/// Why a process cannot attach.
#[derive(thiserror::Error, Debug)]
pub enum AttachError {
    /// The descriptor is not in a heddle mount, or in one without an attach socket.
    #[error("no heddle file system is mounted there. Mount one with: heddle mount IMAGE DIR")]
    NotMounted,
    /// The mount cannot be asked.
    #[error(
        "cannot ask this mount for its attach socket: {source}. If its process has died: heddle umount DIR, then mount it again"
    )]
    Mount {
        /// The system's error.
        source: io::Error,
    },
    /// No process has the socket open.
    #[error(
        "cannot attach through {at}: no daemon listens there ({source}). From another network namespace than the daemon's the socket \
             cannot be reached: use the mount. Otherwise the daemon has died: heddle mount IMAGE DIR takes its place"
    )]
    NoDaemon {
        /// The address.
        at: String,
        /// The system's error.
        source: io::Error,
    },
    /// The socket does not accept this user.
    #[error(
        "cannot attach through {at}: permission denied. Only the user who mounted the image (or the group named with -o \
             attach-group=) may; \
             others use the mount"
    )]
    Permission {
        /// The address.
        at: String,
    },
    /// The daemon's user is not trusted by this process.
    #[error(
        "cannot attach through {at}: its daemon is of user {uid}, who could spoil the memory of a process that attaches. Use the mount. \
             To trust that user with your programs, set HEDDLE_TRUST={uid}. Daemons of root and of your own user are always trusted"
    )]
    Stranger {
        /// The address.
        at: String,
        /// The daemon's user.
        uid: u32,
    },
    /// The daemon refuses.
    #[error("cannot attach through {at}: {why}")]
    Refused {
        /// The address.
        at: String,
        /// The daemon's reason.
        why: String,
    },
    /// The process at the socket gave no valid answer.
    #[error(
        "cannot attach through {at}: the process at this socket gave no proper answer ({what}). Is it a heddle daemon of this build?"
    )]
    Rubbish {
        /// The address.
        at: String,
        /// The fault of the answer.
        what: String,
    },
    /// The process may not have as many addresses as region and arena take.
    #[error(
        "cannot attach through {at}: this process may have {limit_kib} KiB of addresses in all (ulimit -v), and the memory of the mount \
             takes {wanted_kib} KiB of them. Raise that limit, or use the mount"
    )]
    Addresses {
        /// The address.
        at: String,
        /// The addresses that the memory of the mount takes, in the units of `ulimit -v`.
        wanted_kib: u64,
        /// The limit of the process.
        limit_kib: u64,
    },
    /// Region or arena cannot be mapped.
    #[error("cannot attach through {at}: {why}")]
    Map {
        /// The address.
        at: String,
        /// The system's error.
        why: String,
    },
}

/// Attaches to the file system of a mount, or of a socket (see [`super::attach_address`], also for the users whose
/// daemons are trusted). The result works as in the process that mounted it. When its last clone is dropped,
/// its memory is unmapped as soon as the threads that used it have ended or use another mount.
///
/// # Errors
/// One variant of [`AttachError`] for each cause.
pub fn attach<'a>(at: impl Into<AttachAddress<'a>>) -> Result<NvmFs, AttachError> {
    let at = at.into();
    let (answer, [region, arena]) = ask(at, Want::Attach)?;
    // Another client may have scribbled over the memory that is read here, and the caller may be a program
    // that cannot handle a panic.
    let joined = catch_unwind(AssertUnwindSafe(|| join(at, &answer, region, arena)));
    joined.unwrap_or_else(|_| {
        Err(AttachError::Rubbish { at: at.to_string(), what: "its memory has invalid contents".to_owned() })
    })
}

fn join(
    at: AttachAddress<'_>,
    answer: &Answer,
    region: OwnedFd,
    arena: OwnedFd,
) -> Result<NvmFs, AttachError> {
    if answer.boot != boot_id() {
        return Err(rubbish(at, "it speaks of another boot of this machine"));
    }
    let (region, seed) = image(at, answer, region)?;
    volatile_state(at, answer, region, seed, arena)
}

fn rubbish(at: AttachAddress<'_>, what: &str) -> AttachError {
    AttachError::Rubbish { at: at.to_string(), what: what.to_owned() }
}

fn unmappable(at: AttachAddress<'_>, why: impl Display) -> AttachError {
    AttachError::Map { at: at.to_string(), why: why.to_string() }
}

/// The refusal of the kernel to map region or arena. Under a limit on addresses the kernel says only that there is no memory.
#[cold]
fn not_mapped(
    at: AttachAddress<'_>,
    answer: &Answer,
    refused: Option<Errno>,
    why: impl Display,
) -> AttachError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    match limit.filter(|_| refused == Some(Errno::NOMEM)) {
        Some(limit_bytes) => AttachError::Addresses {
            at: at.to_string(),
            wanted_kib: answer.region_bytes.saturating_add(answer.arena_bytes).div_ceil(1024),
            limit_kib: limit_bytes / 1024,
        },
        None => unmappable(at, why),
    }
}

fn region_refused(error: &heddle_pmem::Error) -> Option<Errno> {
    if let heddle_pmem::Error::System { errno, .. } = error { Some(*errno) } else { None }
}

fn arena_refused(error: &heddle_arena::MapError) -> Option<Errno> {
    if let heddle_arena::MapError::Existing { source, .. } = error {
        Errno::from_io_error(source)
    } else {
        None
    }
}

/// Maps the image. Returns it and its seed. This is a separate function because its locals and the next one's
/// together would not fit a program's smallest stack.
#[inline(never)]
fn image(at: AttachAddress<'_>, answer: &Answer, region: OwnedFd) -> Result<(Region, u64), AttachError> {
    if answer.region_bytes < REGION_BYTES_MIN || !answer.region_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(rubbish(at, "the length of the region"));
    }
    let path = Some(Path::new(OsStr::from_bytes(answer.text()))).filter(|p| !p.as_os_str().is_empty());
    let durability = Durability::from_raw(answer.durability).ok_or_else(|| rubbish(at, "the durability"))?;
    let mut region = Region::attach(region, path, answer.region_bytes, answer.read_only != 0, durability)
        .map_err(|e| not_mapped(at, answer, region_refused(&e), e))?;
    region.close_file();
    // The superblock of the mount; its seed never changes.
    let seed = read_superblock(&region).map_err(|_| rubbish(at, "the superblock"))?.seed().into();
    Ok((region, seed))
}

#[inline(never)]
fn volatile_state(
    at: AttachAddress<'_>,
    answer: &Answer,
    region: Region,
    seed: u64,
    arena: OwnedFd,
) -> Result<NvmFs, AttachError> {
    let variant = Variant::from_raw(answer.variant).filter(|v| v.lock().is_none());
    let variant = variant.ok_or_else(|| rubbish(at, "the variant"))?;
    let arena = Arena::attach(arena).map_err(|e| not_mapped(at, answer, arena_refused(&e), e))?;
    if arena.capacity_bytes() != answer.arena_bytes {
        return Err(rubbish(at, "the length of the arena"));
    }
    let identity = Identity { uuid: answer.uuid, boot: answer.boot, epoch: answer.epoch, seed };
    let parts = Parts {
        region,
        arena: Arc::new(arena),
        variant,
        locks: None,
        on_lock: None,
        hooks: HOOKS,
        read_only: answer.read_only != 0,
    };
    let core = Core::join(parts, &identity);
    let core = Arc::new(core.ok_or_else(|| rubbish(at, "the arena is not that of this mount"))?);
    core.process_slot().map_err(|e| unmappable(at, e))?;
    Ok(NvmFs { core })
}

/// Unmaps all memory of these mounts by system calls alone. For a signal handler, where nothing may be freed.
/// Returns false if nothing was done, and nothing can be done.
///
/// # Safety
/// These are all mounts of this process. No thread uses or drops one of them any more, nor anything
/// that was opened in it.
pub unsafe fn unmap_without_freeing<'f>(all: impl Iterator<Item = &'f NvmFs>) -> bool {
    if !process::may_begin_anew() {
        return false;
    }
    // SAFETY: the caller's promise.
    all.for_each(|fs| unsafe { fs.core.unmap_without_freeing() });
    process::begin_anew();
    true
}

/// Takes a reading of that file system's counters, and returns the file of its image (device and inode, or
/// `u64::MAX` and the number of a device). It works on a mount of any variant.
///
/// # Errors
/// As [`attach`].
pub fn counters_and_image<'a>(at: impl Into<AttachAddress<'a>>) -> Result<(Counters, [u64; 2]), AttachError> {
    let at = at.into();
    let (answer, [file]) = ask(at, Want::Counters)?;
    let rubbish = |what: String| AttachError::Rubbish { at: at.to_string(), what };
    // The memory must be sealed, whichever user runs the daemon; a pipe, for instance, might never end.
    if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(READING_SEALS)) {
        return Err(rubbish("the reading is not sealed".to_owned()));
    }
    let mut bytes = Vec::new();
    // The daemon's descriptor is positioned at the end of what it has written.
    let mut file = File::from(file);
    let read = file.rewind().and_then(|()| file.take(READING_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|e| rubbish(e.to_string()))?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let counters = Counters::from_words(&words);
    counters
        .map(|counters| (counters, answer.image))
        .ok_or_else(|| rubbish("a reading of another layout".to_owned()))
}

/// Takes a reading of that file system's counters. It works on a mount of any variant.
///
/// # Errors
/// As [`attach`].
pub fn counters<'a>(at: impl Into<AttachAddress<'a>>) -> Result<Counters, AttachError> {
    counters_and_image(at).map(|(counters, _)| counters)
}

/// Identifies a file as [`counters_and_image`] identifies an image.
///
/// # Errors
/// Those of fstat(2).
pub fn identity_of(file: impl AsFd) -> io::Result<[u64; 2]> {
    Ok(image_id(file)?)
}

/// Asks the mount of this descriptor for the address of its attach socket, with a token.
fn ask_mount(file: BorrowedFd<'_>, token: &AttachToken) -> Result<SocketAddrUnix, AttachError> {
    let mut said = attach_ioctl::question(token);
    // SAFETY: the request's number encodes that so many bytes go in and out.
    let asked = unsafe { ioctl(file, Updater::<ATTACH, [u8; ATTACH_BYTES]>::new(&mut said)) };
    match asked {
        Ok(()) => {
            let address = attach_ioctl::address(&said).ok_or(AttachError::NotMounted)?;
            SocketAddrUnix::new_abstract_name(address).map_err(|_| AttachError::NotMounted)
        }
        // Not a mount, or not a heddle mount, or one without an attach socket.
        Err(Errno::NOTTY | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::BADF) => {
            Err(AttachError::NotMounted)
        }
        Err(e) => Err(AttachError::Mount { source: e.into() }),
    }
}

/// Connects, sends the question, and receives the answer.
fn ask<const FDS: usize>(
    attach_address: AttachAddress<'_>,
    want: Want,
) -> Result<(Box<Answer>, [OwnedFd; FDS]), AttachError> {
    let at = || attach_address.to_string();
    let rubbish = |what: String| AttachError::Rubbish { at: at(), what };
    let no_daemon = |e: Errno| match e {
        Errno::ACCESS | Errno::PERM => AttachError::Permission { at: at() },
        other => AttachError::NoDaemon { at: at(), source: other.into() },
    };
    let (address, token) = match attach_address {
        AttachAddress::Mount(file) => {
            let token = fresh_token();
            (ask_mount(file, &token)?, token)
        }
        AttachAddress::Socket(path) => {
            (SocketAddrUnix::new(path).map_err(no_daemon)?, AttachToken::default())
        }
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(no_daemon)?;
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, which, Some(ANSWER_MAX)).map_err(no_daemon)?;
    }
    connect(&socket, &address).map_err(no_daemon)?;
    // The daemon's user, according to the kernel; the name and its directory prove nothing.
    let uid = wire::peer(&socket).map_err(no_daemon)?.uid;
    if want == Want::Attach && !trusts(uid) {
        return Err(AttachError::Stranger { at: at(), uid });
    }
    let mut packet = Packet::default();
    // A refusal may arrive before the question is sent. It explains more than the error of sending.
    let sent = wire::send(&socket, Hello::new(want, token).as_bytes(), &[]);
    let (len, fds) = wire::receive(&socket, packet.bytes(), RecvFlags::empty())
        .map_err(|e| rubbish(sent.err().unwrap_or(e).to_string()))?;
    match Answer::parse(&packet.bytes()[..len]) {
        None => Err(rubbish(format!("a packet of {len} bytes"))),
        Some(Err(why)) => Err(AttachError::Refused { at: at(), why }),
        Some(Ok(answer)) if answer.token != token => Err(rubbish("it does not know our token".to_owned())),
        Some(Ok(answer)) => {
            let fds = fds.try_into().map_err(|_| rubbish("the descriptors are missing".to_owned()))?;
            Ok((answer, fds))
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
