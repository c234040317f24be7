//! Clients that do not speak as they should.

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept, bind, connect, listen, recv, send, sendmsg, socket_with,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread::JoinHandle;

fn connection(path: &Path, flags: SocketFlags) -> Option<OwnedFd> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).ok().map(|()| socket)
}

/// Many that say nothing; as many as the kernel's queue takes.
pub fn connections(path: &Path, count: usize) -> Vec<OwnedFd> {
    (0..count).filter_map(|_| connection(path, SocketFlags::NONBLOCK)).collect()
}

/// Of every length, of zeros, ones and a greeting's beginning.
pub fn packets() -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0; 4096], vec![0xff; 60_000]];
    packets.extend((0..64).map(|len| vec![0x53; len]));
    packets.extend((0..64).map(|len| vec![0; len]));
    packets.push(0x6865_6464_6c65_5301_u64.to_ne_bytes().to_vec());
    packets.push(greeting());
    packets
}

/// Says it and goes.
pub fn say(path: &Path, packet: &[u8]) {
    if let Some(socket) = connection(path, SocketFlags::empty()) {
        let _ = send(&socket, packet, SendFlags::NOSIGNAL);
    }
}

/// A greeting of another build.
pub fn greeting() -> Vec<u8> {
    let mut greeting = 0x6865_6464_6c65_5301_u64.to_ne_bytes().to_vec();
    greeting.resize(24, 7);
    greeting
}

/// Says it, with so many descriptors, and hears the answer.
pub fn ask(path: &Path, packet: &[u8], descriptors: usize) -> Option<Vec<u8>> {
    let socket = connection(path, SocketFlags::empty())?;
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = vec![null.as_fd(); descriptors];
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors == 0 || control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).ok()?;
    let mut answer = vec![0; 8192];
    let (_, len) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty()).ok()?;
    answer.truncate(len);
    Some(answer)
}

/// Does the daemon's answer let the client in?
pub fn is_welcome(answer: &[u8]) -> bool {
    answer.get(8..12).is_none_or(|word| word == 1u32.to_ne_bytes())
}

/// Something that is no daemon: it answers the first who comes with this, and goes.
pub fn answers_once(path: &Path, answer: &'static [u8]) -> JoinHandle<()> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 1).unwrap();
    std::thread::spawn(move || {
        let client = accept(&socket).unwrap();
        let _ = recv(&client, &mut [0; 64][..], RecvFlags::empty());
        let _ = send(&client, answer, SendFlags::NOSIGNAL);
    })
}
