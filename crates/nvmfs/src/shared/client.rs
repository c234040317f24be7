//! Joining a file system that another process has mounted.

use super::boot_id;
use super::place::{Place, PlaceError};
use super::wire::{self, Answer, Hello, PACKET_BYTES, Want};
use crate::core::{Core, Identity, Parts};
use crate::counters::Counters;
use crate::format::layout::REGION_BYTES_MIN;
use crate::fs::NvmFs;
use crate::variant::Variant;
use heddle_arena::Arena;
use heddle_pmem::{BLOCK_BYTES, Durability, Region};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// How long the daemon may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// No reading is longer.
const READING_BYTES_MAX: u64 = 16 << 20;

/// Why a process cannot attach.
#[derive(thiserror::Error, Debug)]
pub enum AttachError {
    /// No socket was found.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Nobody listens.
    #[error("cannot attach through {}: no daemon listens there ({source}). Mount the image with: heddle mount IMAGE DIR", socket.display())]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The socket is not for this user.
    #[error("cannot attach through {}: permission denied. Only the user who mounted the image (or the group named with -o attach-group=) may; \
             others use the mount", socket.display())]
    Permission {
        /// The socket.
        socket: PathBuf,
    },
    /// Somebody else listens there.
    #[error("cannot attach through {}: who listens there is user {uid}. Memory is taken only from a daemon of root or of one's own user, or, \
             where HEDDLE_RUNTIME_DIR says where to look, of the image's owner. Use the mount, or let one of these mount the image",
            socket.display())]
    Stranger {
        /// The socket.
        socket: PathBuf,
        /// Whose daemon it is.
        uid: u32,
    },
    /// The daemon says no.
    #[error("cannot attach through {}: {why}", socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// In its words.
        why: String,
    },
    /// What listens there does not speak as it should.
    #[error("cannot attach through {}: what listens there gave no proper answer ({what}). Is it a heddle daemon of this build?", socket.display())]
    Rubbish {
        /// The socket.
        socket: PathBuf,
        /// What was wrong.
        what: String,
    },
    /// Region or arena cannot be mapped.
    #[error("cannot attach through {}: {why}", socket.display())]
    Map {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        why: String,
    },
}

/// Joins the file system behind a socket (see [`super::place`], also for who may answer there). What comes back works as in the process
/// that mounted it; when the
/// last clone of it is dropped, its memory is unmapped as soon as the threads that used it have ended or use another one.
///
/// # Errors
/// One variant of [`AttachError`] a cause.
pub fn attach(at: impl Into<Place>) -> Result<NvmFs, AttachError> {
    let at = at.into();
    let socket = &at.socket;
    let (answer, [region, arena]) = ask(&at, Want::Attach)?;
    let rubbish = |what: &str| AttachError::Rubbish { socket: socket.clone(), what: what.to_owned() };
    let map = |why: String| AttachError::Map { socket: socket.clone(), why };
    if answer.boot != boot_id() {
        return Err(rubbish("it speaks of another boot of this machine"));
    }
    if answer.region_bytes < REGION_BYTES_MIN || !answer.region_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(rubbish("the length of the region"));
    }
    let variant = Variant::from_raw(answer.variant).filter(|v| v.lock().is_none());
    let variant = variant.ok_or_else(|| rubbish("the variant"))?;
    let path = Some(Path::new(OsStr::from_bytes(answer.text()))).filter(|p| !p.as_os_str().is_empty());
    let read_only = answer.read_only != 0;
    let durability = Durability::from_raw(answer.durability).ok_or_else(|| rubbish("the durability"))?;
    let mut region = Region::attach(region, path, answer.region_bytes, read_only, durability)
        .map_err(|e| map(e.to_string()))?;
    region.close_file();
    let arena = Arena::attach(arena).map_err(|e| map(e.to_string()))?;
    if arena.capacity_bytes() != answer.arena_bytes {
        return Err(rubbish("the length of the arena"));
    }
    let identity = Identity { uuid: answer.uuid, boot: answer.boot, epoch: answer.epoch };
    let parts = Parts { region, arena: Arc::new(arena), variant, locks: None, on_lock: None, read_only };
    let core = Core::join(parts, &identity).ok_or_else(|| rubbish("the arena is not that of this mount"))?;
    Ok(NvmFs { core: Arc::new(core) })
}

/// Takes a reading of what the file system behind a socket has done. It works on a mount of any variant.
///
/// # Errors
/// As [`attach`].
pub fn counters(at: impl Into<Place>) -> Result<Counters, AttachError> {
    let at = at.into();
    let socket = &at.socket;
    let (_, [file]) = ask(&at, Want::Counters)?;
    let rubbish = |what: String| AttachError::Rubbish { socket: socket.clone(), what };
    let mut bytes = Vec::new();
    // The daemon's descriptor is at the end of what it has written.
    let mut file = File::from(file);
    let read = file.rewind().and_then(|()| file.take(READING_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|e| rubbish(e.to_string()))?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    Counters::from_words(&words).ok_or_else(|| rubbish("a reading of another layout".to_owned()))
}

/// Connects, greets, and takes the answer.
fn ask<const FDS: usize>(at: &Place, want: Want) -> Result<(Answer, [OwnedFd; FDS]), AttachError> {
    let path = &at.socket;
    let rubbish = |what: String| AttachError::Rubbish { socket: path.clone(), what };
    let no_daemon = |e: Errno| match e {
        Errno::ACCESS | Errno::PERM => AttachError::Permission { socket: path.clone() },
        other => AttachError::NoDaemon { socket: path.clone(), source: other.into() },
    };
    let address = SocketAddrUnix::new(path).map_err(no_daemon)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(no_daemon)?;
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, which, Some(ANSWER_MAX)).map_err(no_daemon)?;
    }
    connect(&socket, &address).map_err(no_daemon)?;
    // Who listens there, whatever the name and its directory say.
    let uid = socket_peercred(&socket).map_err(no_daemon)?.uid.as_raw();
    if !at.trusts(uid) {
        return Err(AttachError::Stranger { socket: path.clone(), uid });
    }
    let mut packet = [0; PACKET_BYTES];
    // A refusal may come before the greeting has gone; it says more than the error of sending.
    let sent = wire::send(&socket, Hello::new(want).as_bytes(), &[]);
    let (len, fds) = wire::receive(&socket, &mut packet, RecvFlags::empty())
        .map_err(|e| rubbish(sent.err().unwrap_or(e).to_string()))?;
    match Answer::parse(&packet[..len]) {
        None => Err(rubbish(format!("a packet of {len} bytes"))),
        Some(Err(why)) => Err(AttachError::Refused { socket: path.clone(), why }),
        Some(Ok(answer)) => {
            let fds = fds.try_into().map_err(|_| rubbish("the descriptors are missing".to_owned()))?;
            Ok((answer, fds))
        }
    }
}
