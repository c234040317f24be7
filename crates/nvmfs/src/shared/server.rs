//! Handing a mounted file system to other processes: opening and closing the attach socket.
//!
//! Which processes are accepted, and what they get, is in `attach_socket`. An ordinary attach socket is an abstract socket with
//! a random name: it cannot be planted, needs no lock, and is not left behind.
//!
//! A server has two threads: that of the socket, which other users may hold up, and that of the rounds (`rounds`). Both work on the mount
//! inside one gate ([`heddle_vfs::workers`]), so the end of the server can say whether the image may be closed.

use super::attach_ioctl::{ADDRESS_BYTES_MAX, AttachToken, AttachTokens};
use super::attach_socket::{AttachSocket, SharedMount};
use super::image_id;
use super::notes::{self, Note, NoteError, Noted};
use super::{rounds, wire};
use crate::counters::Counters;
use crate::process::boot_id;
use crate::state::core::Core;
use crate::state::papers::one_process;
use crate::volume::Volume;
use heddle_vfs::ioctl::AttachIoctl;
use heddle_vfs::workers::{self, Ended, Gate, Worker};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Why no attach socket can be opened.
#[derive(thiserror::Error, Debug)]
pub enum ServerError {
    /// Another daemon uses the name.
    #[error("cannot listen at {}: another daemon listens there", at.display())]
    Taken {
        /// The socket.
        at: PathBuf,
    },
    /// A system call failed.
    #[error("cannot listen{}: {source}", at.as_ref().map_or(String::new(), |at| format!(" at {}", at.display())))]
    System {
        /// The socket, if it has a path.
        at: Option<PathBuf>,
        /// The system's error.
        source: io::Error,
    },
}

/// Why processes cannot attach to a file system, although they can read its counters.
pub(super) fn refusal(core: &Core, options: &ServerOptions) -> Option<String> {
    if options.no_attach {
        return Some("it is mounted with -o no_attach. Use the mount".to_owned());
    }
    if one_process(core) {
        return Some(format!(
            "{} works in one process only: its locks cannot be taken from the dead. Other processes use the mount; \
             many processes need an image of variant heddle",
            core.variant.name()
        ));
    }
    let shared = core.region.fd().is_some() && core.arena.fd().is_some();
    (!shared).then(|| "this region cannot be handed to other processes: it is a simulated one".to_owned())
}

/// Options of an attach socket.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Let no process attach; offer only counters.
    pub no_attach: bool,
    /// Members of this group may attach too.
    pub group: Option<u32>,
    /// Listen at this path, in a directory that restricts access: for a program that has no mount to ask.
    /// Such an attach socket accepts every process that can reach it.
    pub socket: Option<PathBuf>,
    /// How long a stopped process may hold up others before it is killed; `None`: 30 s; zero: for ever.
    pub patience: Option<Duration>,
}

/// An attach socket. It listens until it is dropped.
pub struct Server {
    tokens: Arc<AttachTokens>,
    /// The path of an attach socket that has one, and the device and inode of the socket made there.
    socket: Option<(PathBuf, [u64; 2])>,
    stop: Arc<OwnedFd>,
    gate: Arc<Gate>,
    threads: Vec<Worker>,
    note: Option<Result<Note, NoteError>>,
}

impl Server {
    /// Starts listening.
    ///
    /// # Errors
    /// One variant of [`ServerError`] for each cause.
    pub fn start(volume: &Volume, options: &ServerOptions) -> Result<Server, ServerError> {
        let core = volume.fs().core;
        if let Some(patience) = options.patience {
            let ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
            // ORDERING: Relaxed, a setting.
            core.root().patience_ms.store(ms, Relaxed);
        }
        // After a takeover without a group, clients of the old one may still be attached, and must be found.
        if let Some(group) = options.group {
            // ORDERING: Relaxed, a setting, too. No process has attached by this server yet.
            core.root().attach_group.store(group, Relaxed);
        }
        let no_attach = refusal(&core, options);
        let path = core.region.path().map(whole);
        let image = core.region.fd().and_then(|file| image_id(file).ok()).unwrap_or_default();
        let note = (no_attach.is_none() && !core.read_only)
            .then(|| note_of(&core, image, path.as_deref()))
            .flatten();
        let reader = Arc::clone(&core);
        let reading = Box::new(move || Counters::read(&reader));
        let mount = SharedMount { core: Some(core), reading, no_attach, image, path };
        let mut server = Server::open(mount, options)?;
        server.note = note;
        Ok(server)
    }

    /// Offers the counters of an engine to which no process can attach. `why`: the reason for that.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_for_counters(
        reading: impl Fn() -> Counters + Send + 'static,
        image: &Path,
        why: &str,
        options: &ServerOptions,
    ) -> Result<Server, ServerError> {
        let opened = rustix::fs::open(image, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let id = opened.and_then(image_id).unwrap_or_default();
        let (no_attach, path) = (Some(why.to_owned()), Some(whole(image)));
        Server::open(
            SharedMount { core: None, reading: Box::new(reading), no_attach, image: id, path },
            options,
        )
    }

    fn open(mount: SharedMount, options: &ServerOptions) -> Result<Server, ServerError> {
        let at = options.socket.clone();
        let fail = |source: io::Error| ServerError::System { at: at.clone(), source };
        let (listener, address) = match &at {
            None => abstract_socket().map_err(fail)?,
            Some(path) => (socket_at(path)?, path.as_os_str().as_bytes().to_vec()),
        };
        let made = |path: PathBuf| {
            let there =
                rustix::fs::open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
            let id = there.and_then(image_id).unwrap_or_default();
            (path, id)
        };
        let socket = at.clone().map(made);
        let tokens = Arc::new(AttachTokens::of(&address));
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| fail(e.into()))?);
        let attach_socket = AttachSocket {
            mount,
            listener,
            stop,
            gate: Arc::default(),
            group: options.group,
            tokens: at.is_none().then(|| Arc::clone(&tokens)),
            connections: Vec::new(),
        };
        Server::listening(attach_socket, tokens, socket).map_err(fail)
    }

    fn listening(
        attach_socket: AttachSocket,
        tokens: Arc<AttachTokens>,
        socket: Option<(PathBuf, [u64; 2])>,
    ) -> io::Result<Server> {
        let (stop, gate) = (Arc::clone(&attach_socket.stop), Arc::clone(&attach_socket.gate));
        let shared = attach_socket.mount.core.clone().filter(|_| attach_socket.mount.no_attach.is_none());
        let mut server = Server { tokens, socket, stop, gate, threads: Vec::new(), note: None };
        if let Some(core) = shared {
            let (stop, gate) = (Arc::clone(&server.stop), Arc::clone(&server.gate));
            server.threads.push(Worker::start("heddle-rounds", move || rounds::go(&core, &stop, &gate))?);
        }
        server.threads.push(Worker::start("heddle-attach", || attach_socket.listen())?);
        Ok(server)
    }

    /// The mount's answer to the question for its attach socket.
    pub fn attach_ioctl(&self) -> Arc<dyn AttachIoctl> {
        Arc::clone(&self.tokens) as _
    }

    /// The path, if it was told to listen at one.
    pub fn socket(&self) -> &Path {
        self.socket.as_ref().map_or(Path::new(""), |(path, _)| path)
    }

    /// Why no daemon could take over from this one after its death.
    pub fn no_note(&self) -> Option<&NoteError> {
        self.note.as_ref()?.as_ref().err()
    }

    /// Stops listening. After [`Ended::AtWork`] the mount must not be closed; a successor may take it over, as after
    /// [`Server::abandon`].
    pub fn close(mut self) -> Ended {
        let ended = self.end();
        if ended == Ended::AtWork {
            self.keep_note();
        }
        ended
    }

    /// Stops listening as a dying daemon does: its clients' state can be taken over.
    pub fn abandon(mut self) -> Ended {
        self.keep_note();
        self.end()
    }

    fn keep_note(&mut self) {
        if let Some(Ok(note)) = self.note.take() {
            note.keep();
        }
    }

    fn end(&mut self) -> Ended {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        workers::end(std::mem::take(&mut self.threads), &self.gate)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        if let Some((path, made)) = &self.socket {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let there = rustix::fs::open(path, flags, Mode::empty()).and_then(image_id);
            if there == Ok(*made) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

fn whole(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

/// A note of the arena that this daemon offers.
fn note_of(core: &Core, image: [u64; 2], path: Option<&Path>) -> Option<Result<Note, NoteError>> {
    let arena = image_id(core.arena.fd()?).ok()?;
    let (boot, pid_namespace) = (boot_id(), notes::pid_namespace());
    Some(Note::leave(image, &Noted { boot, arena, pid_namespace, path: path?.to_path_buf() }))
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A socket to listen at.
fn listener() -> rustix::io::Result<OwnedFd> {
    seqpacket().inspect(|socket| wire::refuse_descriptors(socket))
}

/// A socket without a name in any directory, and its address.
pub(super) fn abstract_socket() -> io::Result<(OwnedFd, Vec<u8>)> {
    let socket = listener()?;
    let number: String = fresh_token().iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("heddle-{number}");
    debug_assert!(name.len() <= ADDRESS_BYTES_MAX);
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&socket, 1024)?;
    Ok((socket, name.into_bytes()))
}

/// A random number that no other process knows.
pub(super) fn fresh_token() -> AttachToken {
    let mut number = AttachToken::default();
    // SAFETY: the buffer has room for as many bytes as the argument says.
    let got = unsafe { libc::getrandom(number.as_mut_ptr().cast(), number.len(), 0) };
    // getrandom returns sixteen bytes as a whole on every Linux that has statx.
    assert_eq!(got, number.len() as isize, "the kernel gives no random numbers");
    number
}

/// Binds a path, and replaces a socket that a dead daemon left. Its mode follows the umask.
fn socket_at(path: &Path) -> Result<OwnedFd, ServerError> {
    let fail = |e: Errno| ServerError::System { at: Some(path.to_path_buf()), source: e.into() };
    let socket = listener().map_err(fail)?;
    let address = SocketAddrUnix::new(path).map_err(fail)?;
    let bound = bind(&socket, &address);
    if bound == Err(Errno::ADDRINUSE) {
        match connect(&seqpacket().map_err(fail)?, &address) {
            Err(Errno::CONNREFUSED) => std::fs::remove_file(path)
                .map_err(|source| ServerError::System { at: Some(path.to_path_buf()), source })?,
            Err(Errno::PROTOTYPE) | Ok(()) | Err(Errno::AGAIN) => {
                return Err(ServerError::Taken { at: path.to_path_buf() });
            }
            Err(other) => return Err(fail(other)),
        }
        bind(&socket, &address).map_err(fail)?;
    } else {
        bound.map_err(fail)?;
    }
    listen(&socket, 1024).map_err(fail)?;
    Ok(socket)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
