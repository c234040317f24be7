//! Both ends of the daemon's socket.
//!
//! Promises    W1  a client that is told rubbish says so, and maps nothing that is not there; W2  a daemon that is told rubbish
//!             refuses, and goes on answering.

use super::Target;
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_nvmfs::wire::{Answer, Hello, PACKET_BYTES, Want, receive, send};
use heddle_nvmfs::{MountOptions, Variant, Volume, client, format_region, mount};
use heddle_pmem::{OpenOptions, Region};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, listen,
    socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use zerocopy::IntoBytes;

const IMAGE_BYTES: u64 = 4 << 20;
const ARENA_BYTES: usize = 16 << 20;

/// What the daemon of rubbish says: a packet, and lengths of the descriptors that come with it.
type Saying = (Vec<u8>, Vec<u64>);

pub struct Wire {
    volume: Option<Volume>,
    server: Option<Server>,
    rubbish: PathBuf,
    say: Sender<Saying>,
    _dir: tempfile::TempDir,
}

impl Wire {
    pub fn new() -> Wire {
        Wire::make().unwrap_or_else(|why| panic!("the daemons cannot be started: {why}"))
    }

    fn make() -> Result<Wire, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let dir = tempfile::tempdir().map_err(|e| text(&e))?;
        let image = dir.path().join("image");
        let region = Region::create(&image, IMAGE_BYTES, &OpenOptions::default()).map_err(|e| text(&e))?;
        format_region(&region, Variant::Heddle).map_err(|e| text(&e))?;
        let options = MountOptions { arena_bytes: ARENA_BYTES, ..MountOptions::default() };
        let volume = mount(region, &options).map_err(|e| text(&e))?;
        let options =
            ServerOptions { socket: Some(dir.path().join("daemon.sock")), ..ServerOptions::default() };
        let server = Server::start(&volume, &options).map_err(|e| text(&e))?;
        let rubbish = dir.path().join("rubbish.sock");
        let (say, said) = channel::<Saying>();
        let listener = seqpacket().map_err(|e| text(&e))?;
        bind(&listener, &address(&rubbish)).map_err(|e| text(&e))?;
        listen(&listener, 8).map_err(|e| text(&e))?;
        std::thread::spawn(move || {
            for (packet, lengths) in said {
                let Ok(socket) = accept(&listener) else { return };
                let mut greeting = [0; PACKET_BYTES];
                let _ = receive(&socket, &mut greeting, RecvFlags::empty());
                let files: Vec<OwnedFd> = lengths.iter().filter_map(|len| memory(*len)).collect();
                let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
                let _ = send(&socket, &packet, &files);
            }
        });
        Ok(Wire { volume: Some(volume), server: Some(server), rubbish, say, _dir: dir })
    }

    /// A true answer to begin with.
    fn answer(&self) -> Answer {
        let mut answer = Answer::welcome(b"/image");
        if let Some(server) = &self.server
            && let Ok(socket) = connected(server.socket())
        {
            let mut packet = [0; PACKET_BYTES];
            let _ = send(&socket, Hello::new(Want::Attach, [0; 16]).as_bytes(), &[]);
            if let Ok((len, _)) = receive(&socket, &mut packet, RecvFlags::empty())
                && let Some(Ok(true_one)) = Answer::parse(&packet[..len])
            {
                answer = *true_one;
            }
        }
        answer
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        drop(self.server.take());
        if let Some(volume) = self.volume.take() {
            volume.abandon();
        }
    }
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn address(path: &Path) -> SocketAddrUnix {
    SocketAddrUnix::new(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

fn connected(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = seqpacket()?;
    connect(&socket, &address(path))?;
    Ok(socket)
}

/// Descriptors that come with a welcome.
fn files_of(hello: &Hello) -> usize {
    match hello.want() {
        Some(Want::Attach) => 2,
        Some(Want::Counters) => 1,
        None => 0,
    }
}

/// A file in memory of this length, at most a little more than the true ones.
fn memory(len: u64) -> Option<OwnedFd> {
    let file = memfd_create("fuzz", MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&file, len % (2 * ARENA_BYTES as u64)).ok()?;
    Some(file)
}

impl Target for Wire {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let lengths = |region: u64, arena: u64| [region.to_le_bytes(), arena.to_le_bytes()].concat();
        vec![
            [&[0], Hello::new(Want::Attach, [0; 16]).as_bytes()].concat(),
            [&[1], &lengths(IMAGE_BYTES, ARENA_BYTES as u64)[..], self.answer().as_bytes()].concat(),
            [&[1], &lengths(0, 0)[..], Answer::refusal("no").as_bytes()].concat(),
        ]
    }

    fn run(&mut self, input: &[u8]) -> Result<u64, String> {
        let Some((which, bytes)) = input.split_first() else { return Ok(0) };
        if which % 2 == 0 {
            let Some(server) = &self.server else { return Ok(0) };
            let parsed = Hello::parse(bytes);
            let socket = connected(server.socket()).map_err(|e| format!("W2: the daemon has gone: {e}"))?;
            let _ = send(&socket, bytes, &[]);
            let mut packet = [0; PACKET_BYTES];
            let (len, files) = receive(&socket, &mut packet, RecvFlags::empty())
                .map_err(|e| format!("W2: the daemon does not answer: {e}"))?;
            let answer = Answer::parse(&packet[..len]);
            return match (parsed, answer, files.len()) {
                (Ok(hello), Some(Ok(_)), files) if files == files_of(&hello) => Ok(files as u64),
                (Ok(_), Some(Err(_)), 0) => Ok(3),
                (Err(why), Some(Err(said)), 0) if why == said => Ok(4 + why.len() as u64),
                // An empty packet is an end to its receiver.
                (Err(_), None, 0) if bytes.is_empty() => Ok(4),
                (parsed, _, files) => Err(format!(
                    "W2: {:?} was answered with {len} bytes and {files} files",
                    parsed.map(|_| "a greeting")
                )),
            };
        }
        let (lengths, packet) = bytes.split_at(bytes.len().min(16));
        let lengths =
            lengths.chunks(8).map(|len| len.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))).collect();
        self.say.send((packet.to_vec(), lengths)).map_err(|_| "the rubbish daemon has gone")?;
        match client::attach(&self.rubbish) {
            Ok(_) => Err("W1: it attached to nothing".into()),
            Err(why) => Ok(100 + why.to_string().chars().filter(char::is_ascii_alphabetic).count() as u64),
        }
    }
}
