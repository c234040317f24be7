//! `-o metrics=`: serves a mount's statistics to Prometheus, at a Unix socket or at a port that only this
//! machine can reach.
//!
//! State       one thread and its clients, each of which has a few seconds in all. A slow client delays no other: if all places are
//!             taken, a new client takes the place of the oldest.
//! Invariants  M1  a socket's name is removed only while it names the socket that was made here.
//!             M2  a client may hold the thread up: before Linux 6.16 the thread closes the descriptors that a client sends, which may
//!                 take for ever. So the end waits for the thread with a limit, and a reading is taken only inside the gate.

use super::covers;
use crate::counters::prometheus;
use anyhow::{Context, Result, bail};
use heddle_console::failure::usage;
use heddle_nvmfs::counters::Counters;
use heddle_nvmfs::wire::refuse_descriptors;
use heddle_vfs::unmapped::is_own_user;
use heddle_vfs::workers::{self, Ended, Gate, Worker};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, chownat, fstat, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, socket_with,
};
use rustix::process::umask;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client may take, from its first byte to the last byte of the answer.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(5);
/// Most clients at once.
const CONNECTIONS_MAX: usize = 64;
/// The longest request.
const QUESTION_BYTES_MAX: usize = 8 << 10;
const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The address that is served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MetricsAddress {
    /// A socket with this path.
    Path(PathBuf),
    /// A port of the loopback device.
    Port(SocketAddr),
}

impl MetricsAddress {
    /// Parses a path (with a slash in it), a port, or a loopback address and a port.
    pub fn parse(text: &str) -> Result<MetricsAddress, String> {
        if text.contains('/') {
            // A mount in the background changes its working directory.
            let path = std::path::absolute(text).map_err(|error| format!("no such place: {error}"))?;
            return Ok(MetricsAddress::Path(path));
        }
        let wrong =
            || "a port of this machine (9100, 127.0.0.1:9100, [::1]:9100) or the path of a socket is wanted";
        let at = match text.parse::<u16>() {
            Ok(port) => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            Err(_) => text.parse().map_err(|_| wrong().to_owned())?,
        };
        if !at.ip().is_loopback() {
            return Err(format!("{}: other machines could ask; {}", at.ip(), wrong()));
        }
        match at.port() {
            0 => Err(format!("port 0 means any free port, which no client could know; {}", wrong())),
            _ => Ok(MetricsAddress::Port(at)),
        }
    }

    /// Refuses a socket below the mount point: the mount would cover it, and no client could reach it.
    pub fn refuse_below(&self, dir: &Path) -> Result<()> {
        if let MetricsAddress::Path(socket) = self
            && covers(dir, socket)
        {
            return Err(usage(format!(
                "-o metrics={}: the mount at {} would cover this socket; choose a path outside of it",
                socket.display(),
                dir.display()
            )));
        }
        Ok(())
    }
}

/// Serves requests while it lives; dropping it removes the socket.
pub struct Metrics {
    /// The socket's name, and the file that it names.
    socket: Option<(PathBuf, (u64, u64))>,
    stop: Arc<OwnedFd>,
    gate: Arc<Gate>,
    thread: Option<Worker>,
}

impl Metrics {
    /// Stops to serve.
    pub fn close(mut self) -> Ended {
        self.end()
    }

    /// M2.
    fn end(&mut self) -> Ended {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        workers::end(self.thread.take().into_iter().collect(), &self.gate)
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.end();
        // M1.
        if let Some((path, made)) = &self.socket
            && fs::symlink_metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == *made)
        {
            // The name may be gone already; no one depends on it.
            let _ = fs::remove_file(path);
        }
    }
}

/// Checks that the address can be served, before anything is changed for the mount.
pub fn check(address: &MetricsAddress, group: Option<u32>) -> Result<()> {
    open_at(address, group).map(drop)
}

/// Opens the address, if no process serves it yet.
fn open_at(address: &MetricsAddress, group: Option<u32>) -> Result<(OwnedFd, Metrics)> {
    let (listener, socket) = match address {
        MetricsAddress::Path(path) => {
            let (listener, made) = bind(path, group)?;
            (OwnedFd::from(listener), Some((path.clone(), made)))
        }
        MetricsAddress::Port(at) => {
            let listener =
                TcpListener::bind(at).with_context(|| format!("cannot answer at {at} (-o metrics=)"))?;
            (OwnedFd::from(listener), None)
        }
    };
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    Ok((listener, Metrics { socket, stop, gate: Arc::default(), thread: None }))
}

/// Starts to serve. Members of `group` may use a socket, too.
pub fn start(
    reading: impl Fn() -> Counters + Send + 'static,
    address: &MetricsAddress,
    group: Option<u32>,
) -> Result<Metrics> {
    let (listener, metrics) = open_at(address, group)?;
    serve(reading, listener, metrics)
}

fn serve(
    reading: impl Fn() -> Counters + Send + 'static,
    listener: OwnedFd,
    mut metrics: Metrics,
) -> Result<Metrics> {
    let (stop, gate) = (Arc::clone(&metrics.stop), Arc::clone(&metrics.gate));
    rustix::io::ioctl_fionbio(&listener, true)?;
    let server = MetricsServer { listener, stop, gate, reading: Box::new(reading), connections: Vec::new() };
    let thread = Worker::start("heddle-metrics", move || server.serve());
    metrics.thread = Some(thread.context("cannot start a thread")?);
    Ok(metrics)
}

/// Binds a socket. A socket without a server is replaced; any other file stays.
fn bind(path: &Path, group: Option<u32>) -> Result<(UnixListener, (u64, u64))> {
    let shown = path.display();
    let is_socket = fs::symlink_metadata(path).map(|meta| meta.file_type().is_socket());
    match is_socket {
        // Each other refusal, as of a socket of datagrams or with a long queue, is one of a living program.
        Ok(true) => match try_to_connect(path) {
            Err(Errno::CONNREFUSED) => {
                fs::remove_file(path).with_context(|| format!("cannot replace {shown}"))?;
            }
            Err(Errno::NOENT) => {}
            Err(error) => {
                bail!("cannot answer at {shown} (-o metrics=): another program may use it: {error}")
            }
            Ok(_) => bail!("cannot answer at {shown} (-o metrics=): another program answers there"),
        },
        Ok(false) => bail!("cannot answer at {shown} (-o metrics=): it exists and is no socket"),
        Err(_) => {}
    }
    let listener = listen(path).with_context(|| format!("cannot answer at {shown} (-o metrics=)"))?;
    let made = restrict(path, group).with_context(|| format!("cannot restrict {shown} to its owner"))?;
    Ok((listener, made))
}

/// Does not wait for a program that accepts no connection.
fn try_to_connect(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

/// A socket that only its owner may use from the first moment on, whatever the caller's umask.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let callers = umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    umask(callers);
    listener.inspect(|listener| refuse_descriptors(listener))
}

/// Restricts the socket to its owner, or also to the group. Returns its identity. It uses a descriptor: the
/// name may mean another file by now.
fn restrict(path: &Path, group: Option<u32>) -> Result<(u64, u64)> {
    let socket = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&socket)?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFSOCK || !is_own_user(stat.st_uid) {
        bail!("another process took its name");
    }
    let by_number = format!("/proc/self/fd/{}", socket.as_raw_fd());
    if let Some(group) = group {
        chownat(CWD, &*by_number, None, Some(Gid::from_raw(group)), AtFlags::empty())?;
    }
    fs::set_permissions(by_number, fs::Permissions::from_mode(if group.is_some() { 0o660 } else { 0o600 }))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A client and its request.
struct Connection {
    socket: OwnedFd,
    question: Vec<u8>,
    /// The rest of the answer.
    answer: Option<Vec<u8>>,
    until: Instant,
}

/// The server's state.
struct MetricsServer {
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    gate: Arc<Gate>,
    reading: Box<dyn Fn() -> Counters + Send>,
    connections: Vec<Connection>,
}

impl MetricsServer {
    fn serve(mut self) {
        while let Some((called, ready)) = self.wait() {
            for at in ready.into_iter().rev() {
                if !self.goes_on(at) {
                    self.connections.remove(at);
                }
            }
            let now = Instant::now();
            self.connections.retain(|connection| connection.until > now);
            // At most as many as there are places; then these clients are served.
            for _ in 0..if called { CONNECTIONS_MAX } else { 0 } {
                let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
                else {
                    break;
                };
                if self.connections.len() == CONNECTIONS_MAX {
                    self.connections.remove(0);
                }
                let until = Instant::now() + CONNECTION_TIME_MAX;
                self.connections.push(Connection { socket, question: Vec::new(), answer: None, until });
            }
        }
    }

    /// Waits. Returns whether a new client has come, and the clients that can go on. Returns `None` if the
    /// thread is to end.
    fn wait(&self) -> Option<(bool, Vec<usize>)> {
        let mut fds =
            vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(self.connections.iter().map(|connection| {
            let what = if connection.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&connection.socket, what)
        }));
        let until =
            self.connections.first().map(|oldest| oldest.until.saturating_duration_since(Instant::now()));
        let timeout = until.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Some((false, Vec::new()));
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let connections = (0..self.connections.len()).filter(|at| ready(at + 2)).collect();
        (!ready(0)).then(|| (ready(1), connections))
    }

    /// Reads the request, or writes the answer, as far as possible now. Returns false if the client is
    /// finished.
    fn goes_on(&mut self, at: usize) -> bool {
        let connection = &mut self.connections[at];
        let Some(answer) = &mut connection.answer else {
            let mut some = [0; 1024];
            match rustix::io::read(&connection.socket, &mut some) {
                Ok(n) if n > 0 => connection.question.extend_from_slice(&some[..n]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                _ => return false,
            }
            if is_whole(&connection.question) {
                let Some(_inside) = self.gate.enter() else { return false };
                connection.answer = Some(answer(&connection.question, &self.reading));
            }
            return connection.question.len() < QUESTION_BYTES_MAX;
        };
        match rustix::net::send(&connection.socket, answer, rustix::net::SendFlags::NOSIGNAL) {
            Ok(n) => drop(answer.drain(..n)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return false,
        }
        !answer.is_empty()
    }
}

fn answer(question: &[u8], reading: &dyn Fn() -> Counters) -> Vec<u8> {
    let (status, body) = match path_of(question) {
        Some("/metrics" | "/") => ("200 OK", prometheus::page(&reading())),
        Some(_) => ("404 Not Found", "there is /metrics\n".to_owned()),
        None => ("400 Bad Request", "GET /metrics is understood\n".to_owned()),
    };
    let len = body.len();
    format!("HTTP/1.0 {status}\r\nContent-Type: {TYPE}\r\nContent-Length: {len}\r\n\r\n{body}").into_bytes()
}

/// An empty line ends a request.
fn is_whole(question: &[u8]) -> bool {
    question.windows(4).any(|end| end == b"\r\n\r\n") || question.windows(2).any(|end| end == b"\n\n")
}

/// `GET PATH[?…] HTTP/…`
fn path_of(question: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(question.split(|byte| *byte == b'\n').next()?).ok()?;
    let mut words = line.split_ascii_whitespace();
    let path = (words.next()? == "GET").then(|| words.next()).flatten()?;
    words.next()?.starts_with("HTTP/").then(|| path.split('?').next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::net::TcpStream;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::{Mutex, PoisonError};

    /// The process has one umask: of the tests that bind a socket one runs at a time.
    static UMASK: Mutex<()> = Mutex::new(());

    #[test]
    fn a_metrics_address_is_a_path_or_a_local_port() {
        assert_eq!(MetricsAddress::parse("/run/h.sock"), Ok(MetricsAddress::Path("/run/h.sock".into())));
        let here = std::env::current_dir().unwrap();
        assert_eq!(MetricsAddress::parse("./x"), Ok(MetricsAddress::Path(here.join("x"))));
        assert_eq!(
            MetricsAddress::parse("9100"),
            Ok(MetricsAddress::Port("127.0.0.1:9100".parse().unwrap()))
        );
        assert_eq!(
            MetricsAddress::parse("[::1]:9100"),
            Ok(MetricsAddress::Port("[::1]:9100".parse().unwrap()))
        );
        for wrong in ["0.0.0.0:9100", "10.0.0.1:80", "metrics", "", "99999"] {
            assert!(MetricsAddress::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_metrics_socket_is_never_open_to_others_not_for_a_moment() {
        let _umask = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let callers = umask(Mode::empty());
        let listener = listen(&path);
        let kept = umask(callers);
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(kept, Mode::empty(), "the caller's umask is not given back");
        drop(listener.unwrap());
    }

    #[test]
    fn a_socket_of_a_living_program_stays_whatever_its_type() {
        let _umask = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let living = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let why = format!("{:#}", bind(&path, None).unwrap_err());
        assert!(why.contains("another program may use it") && why.contains("rong type"), "{why}");
        living.send_to(b"here", &path).unwrap();
        assert_eq!(living.recv(&mut [0; 8]).unwrap(), 4, "its name is gone");
        drop(living);
        bind(&path, None).expect("it is a dead program's");
    }

    #[test]
    fn a_program_that_accepts_nobody_does_not_hold_up_a_mount() {
        let _umask = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let full = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&full, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let _waits = UnixStream::connect(&path).unwrap();
        let began = Instant::now();
        // It lets the mount go on, should that wait.
        let freed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(20));
            drop(full);
        });
        let why = format!("{:#}", bind(&path, None).unwrap_err());
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert!(why.contains("another program may use it"), "{why}");
        drop(freed);
    }

    /// Sends a byte and a descriptor.
    fn send_with(to: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    }

    #[test]
    fn a_kernel_that_can_refuses_descriptors_at_the_metrics_socket() {
        const SO_PASSRIGHTS: libc::c_int = 83;
        let _umask = UMASK.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (listener, _) = bind(&path, None).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let _accepted = listener.accept().unwrap();
        let (mut value, mut len) = (0u32, size_of::<u32>() as libc::socklen_t);
        let fd = client.as_raw_fd();
        // SAFETY: the value has `len` bytes.
        let known = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw mut value).cast(), &mut len)
        };
        if known != 0 {
            eprintln!("SKIPPED: Linux before 6.16 lets descriptors through");
            return;
        }
        assert_eq!(send_with(&client, b"G", client.as_fd()), Err(Errno::PERM));
    }

    /// A client sends a TCP socket that lingers: the thread that closes it waits for the other end.
    #[test]
    fn a_client_that_holds_up_the_thread_delays_no_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        // As before Linux 6.16.
        let listener = UnixListener::bind(&path).unwrap();
        let far = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lingers = TcpStream::connect(far.local_addr().unwrap()).unwrap();
        let (far, _) = far.accept().unwrap();
        lingers.set_nonblocking(true).unwrap();
        while lingers.write(&[0; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&lingers, Some(Duration::from_secs(100))).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        // Sent before anybody listens, so that the thread's descriptor of the TCP socket is the last one.
        send_with(&client, b"GET /metrics HTTP/1.0\r\n\r\n", lingers.as_fd()).unwrap();
        drop(lingers);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let metrics = Metrics { socket: None, stop, gate: Arc::default(), thread: None };
        let metrics = serve(|| panic!("the mount has ended"), listener.into(), metrics).unwrap();
        let (gate, began) = (Arc::clone(&metrics.gate), Instant::now());
        // It has come as far as the descriptor.
        while unread(&client) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(metrics.close(), Ended::HeldUp, "nothing held it up: this tests nothing");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        // The thread goes on, and finds that all has ended.
        drop(far);
        let began = Instant::now();
        while Arc::strong_count(&gate) > 1 {
            assert!(began.elapsed() < Duration::from_secs(60), "the thread never ends");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The bytes of memory of what the other end has not read.
    fn unread(socket: &UnixStream) -> libc::c_int {
        let mut len = 0;
        // SAFETY: the call writes one number.
        assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut len) }, 0);
        len
    }

    #[test]
    fn only_a_question_for_a_page_has_a_path() {
        assert_eq!(path_of(b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n"), Some("/metrics"));
        for wrong in [&b"POST /metrics HTTP/1.1\r\n\r\n"[..], b"GET /metrics", b"\xff\xfe\n\n", b""] {
            assert_eq!(path_of(wrong), None);
        }
    }
}
