//! The messages on the socket: one question, one answer, both of fixed length, and the descriptors of region
//! and arena.
//!
//! Both ends are on one machine, so numbers have its byte order. Packets (`SOCK_SEQPACKET`) keep their
//! boundaries: a packet of another length, or without the magic number, is invalid.

use super::attach_ioctl::AttachToken;
use crate::state::core::LAYOUT;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// "heddle", the same for all versions of the messages.
pub const NAME: u64 = 0x6865_6464_6c65_5300;
/// The same with the version of these messages.
const MAGIC: u64 = NAME | 3;

/// The refusal of a client whose sources are not the daemon's.
pub const OTHER_BUILD: &str = "client and daemon are of different builds: run both from one build";

/// Longest text of an answer, in bytes.
const TEXT_BYTES: usize = 1024;

/// A client's question.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Hello {
    magic: u64,
    /// The arena's layout in this build.
    layout: u64,
    want: u64,
    /// The token that it has sent through the mount (see `attach_ioctl`); zero for an attach socket at a path.
    pub token: AttachToken,
}

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// To attach: region and arena.
    Attach = 0,
    /// A reading of the counters, in a memory file.
    Counters = 1,
}

impl Hello {
    /// The question of this process.
    pub fn new(want: Want, token: AttachToken) -> Hello {
        Hello { magic: MAGIC, layout: LAYOUT, want: want as u64, token }
    }

    /// The request; `None` if it is unknown.
    pub fn want(&self) -> Option<Want> {
        [Want::Attach, Want::Counters].into_iter().find(|want| *want as u64 == self.want)
    }

    /// Decodes a question, or returns its fault.
    pub fn parse(bytes: &[u8]) -> Result<Hello, &'static str> {
        let strange = "it is no greeting of heddle's";
        let (head, _) = <[u64; 2]>::read_from_prefix(bytes).map_err(|_| strange)?;
        match head {
            [MAGIC, LAYOUT] => Hello::read_from_bytes(bytes).map_err(|_| strange),
            // A valid question of another build.
            [magic, _] if magic & !0xff == NAME && bytes.len() >= 24 => Err(OTHER_BUILD),
            _ => Err(strange),
        }
    }
}

/// The daemon's answer.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Answer {
    magic: u64,
    /// 1: accepted; 0: refused, and the text is the reason.
    welcome: u32,
    text_len: u32,
    /// The image.
    pub uuid: [u8; 16],
    /// The boot of the machine.
    pub boot: [u8; 16],
    /// The mount's epoch.
    pub epoch: u64,
    /// Length of the region, in bytes.
    pub region_bytes: u64,
    /// Length of the arena, in bytes.
    pub arena_bytes: u64,
    /// The variant that it is mounted as.
    pub variant: u32,
    /// 1 for a read-only mount.
    pub read_only: u32,
    /// Durability of stores ([`heddle_pmem::Durability::raw`]): the client's stores must be at least as
    /// durable.
    pub durability: u32,
    reserved: u32,
    /// The image: device and inode of its file, or `u64::MAX` and the number of a device; zero if it has
    /// neither.
    pub image: [u64; 2],
    /// The client's token, as proof that the daemon serves that mount. Zero: none was required.
    pub token: AttachToken,
    /// Path of the image, or the reason for a refusal.
    text: [u8; TEXT_BYTES],
}

impl Answer {
    /// An acceptance. `text`: the image's path, empty if it has none.
    pub fn welcome(text: &[u8]) -> Answer {
        let mut answer = Answer::new_zeroed();
        (answer.magic, answer.welcome) = (MAGIC, 1);
        answer.put(text);
        answer
    }

    /// A refusal.
    pub fn refusal(why: &str) -> Answer {
        let mut answer = Answer::new_zeroed();
        answer.magic = MAGIC;
        answer.put(why.as_bytes());
        answer
    }

    fn put(&mut self, text: &[u8]) {
        let len = text.len().min(TEXT_BYTES);
        self.text[..len].copy_from_slice(&text[..len]);
        self.text_len = len as u32;
    }

    /// The text.
    pub fn text(&self) -> &[u8] {
        &self.text[..(self.text_len as usize).min(TEXT_BYTES)]
    }

    /// Decodes an answer. `Some(Ok)`: an acceptance. `Some(Err)`: a refusal, with its reason. `None`: invalid.
    pub fn parse(bytes: &[u8]) -> Option<Result<Box<Answer>, String>> {
        let answer = Answer::ref_from_bytes(bytes).ok().filter(|answer| answer.magic == MAGIC)?;
        Some(match answer.welcome {
            1 => Ok(Box::new(*answer)),
            _ => Err(String::from_utf8_lossy(answer.text()).into_owned()),
        })
    }
}

/// Largest packet.
pub const PACKET_BYTES: usize = size_of::<Answer>();

/// A buffer for a packet. It is not on the stack, because the stack of an attaching program may be small.
pub struct Packet(Box<[u64]>);

impl Default for Packet {
    fn default() -> Packet {
        Packet(vec![0; PACKET_BYTES.div_ceil(size_of::<u64>())].into())
    }
}

impl Packet {
    /// Its bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0.as_mut_bytes()[..PACKET_BYTES]
    }
}

/// The process at the other end.
pub struct Peer {
    /// Its number in this process's numbering; 0: it is not visible in this process's namespace.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// The process at the other end, according to the kernel.
pub fn peer(socket: impl AsFd) -> Result<Peer, Errno> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the buffer has room for `len` bytes.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &mut len) };
    if done != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(Peer { pid: who.pid as u32, uid: who.uid, gid: who.gid })
}

/// Sends a packet with descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    loop {
        // NOSIGNAL: a client that has gone must not end the daemon by SIGPIPE.
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            // The kernel sends a packet as a whole or not at all.
            other => return other.map(|_| ()),
        }
    }
}

/// Receives a packet without descriptors: the kernel gives this process none of those that came with it. To close one may take for
/// ever: its file may be of a file system that never answers.
pub fn receive_bytes(socket: impl AsFd, into: &mut [u8]) -> Result<usize, Errno> {
    loop {
        match recv(&socket, &mut *into, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            other => return other.map(|(len, _)| len),
        }
    }
}

/// Has the kernel refuse descriptors that others send to this socket, or to one accepted from it. Linux before 6.16 cannot.
pub fn refuse_descriptors(socket: impl AsFd) {
    pass_descriptors(socket, false);
}

/// Returns true if the kernel knows the option.
pub(super) fn pass_descriptors(socket: impl AsFd, pass: bool) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let (value, len) = (libc::c_int::from(pass), size_of::<libc::c_int>() as libc::socklen_t);
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the value has `len` bytes.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const value).cast(), len) == 0 }
}

/// Receives a packet: its length, and the descriptors that came with it (those beyond two are closed).
pub fn receive(socket: impl AsFd, into: &mut [u8], flags: RecvFlags) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(into)], &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((got.bytes, fds))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello::new(Want::Counters, FromZeros::new_zeroed())
    }

    #[test]
    fn a_greeting_says_what_is_wanted_and_which_build_asks() {
        let is_read = |hello: &Hello| Hello::parse(hello.as_bytes()).map(|hello| hello.want());
        assert_eq!(is_read(&hello()), Ok(Some(Want::Counters)));
        assert_eq!(is_read(&Hello { want: 0, ..hello() }), Ok(Some(Want::Attach)));
        assert_eq!(is_read(&Hello { want: 2, ..hello() }), Ok(None));
        let strange = "it is no greeting of heddle's";
        let whole = hello();
        let bytes = whole.as_bytes();
        // "heddle", then the version of the messages.
        assert_eq!(bytes[..8], 0x6865_6464_6c65_5303_u64.to_ne_bytes());
        for len in [0, 8, 15, 16, bytes.len() - 1] {
            assert_eq!(Hello::parse(&bytes[..len]).err(), Some(strange), "{len} bytes");
        }
        let long = [bytes, &[0]].concat();
        assert_eq!(Hello::parse(&long).err(), Some(strange));
        assert_eq!(is_read(&Hello { layout: LAYOUT ^ 1, ..hello() }), Err(OTHER_BUILD));
        assert_eq!(is_read(&Hello { magic: NAME | 0xff, ..hello() }), Err(OTHER_BUILD));
        assert_eq!(is_read(&Hello { magic: MAGIC ^ 0x100, ..hello() }), Err(strange));
        let older = Hello { magic: NAME | 1, ..hello() };
        assert_eq!(Hello::parse(&older.as_bytes()[..24]).err(), Some(OTHER_BUILD), "theirs may be shorter");
        assert_eq!(Hello::parse(&older.as_bytes()[..23]).err(), Some(strange));
    }

    #[test]
    fn an_answer_is_a_welcome_a_refusal_or_nothing() {
        let welcome = Answer::welcome(b"/a/b");
        assert_eq!(welcome.text(), b"/a/b");
        let read = |answer: &Answer| Answer::parse(answer.as_bytes());
        assert!(matches!(read(&welcome), Some(Ok(read)) if read.text() == b"/a/b"));
        assert!(matches!(read(&Answer::refusal("no")), Some(Err(why)) if why == "no"));
        let long = Answer::welcome(&[b'x'; TEXT_BYTES + 5]);
        assert_eq!(long.text().len(), TEXT_BYTES);
        assert_eq!(Answer { text_len: u32::MAX, ..long }.text().len(), TEXT_BYTES, "whatever it says");
        assert!(read(&Answer { magic: NAME, ..welcome }).is_none());
        assert!(Answer::parse(&welcome.as_bytes()[1..]).is_none());
    }

    #[test]
    fn a_packet_comes_whole_with_its_descriptors_and_its_sender() {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        send(&here, b"question", &[here.as_fd(), there.as_fd()]).unwrap();
        send(&here, b"more", &[]).unwrap();
        let mut into = [0; 100];
        let (len, fds) = receive(&there, &mut into, RecvFlags::empty()).unwrap();
        assert_eq!((&into[..len], fds.len()), (&b"question"[..], 2));
        let closes =
            |fd: &OwnedFd| rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC);
        assert!(fds.iter().all(closes), "a program that is executed would inherit them");
        let (len, fds) = receive(&there, &mut into, RecvFlags::empty()).unwrap();
        assert_eq!((&into[..len], fds.len()), (&b"more"[..], 0));
        let who = peer(&there).unwrap();
        let mine =
            (std::process::id(), rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        assert_eq!((who.pid, who.uid, who.gid), mine);
        assert!(peer(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
