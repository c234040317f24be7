//! Clients that do not speak as they should.

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use std::os::fd::OwnedFd;
use std::path::Path;

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
    let mut greeting = 0x6865_6464_6c65_5301_u64.to_ne_bytes().to_vec();
    greeting.resize(24, 7);
    packets.push(greeting);
    packets
}

/// Says it and goes.
pub fn say(path: &Path, packet: &[u8]) {
    if let Some(socket) = connection(path, SocketFlags::empty()) {
        let _ = send(&socket, packet, SendFlags::NOSIGNAL);
    }
}
