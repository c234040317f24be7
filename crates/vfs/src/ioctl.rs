//! Requests that programs may send to a mounted file by ioctl(2), besides the kernel's own.

/// `FS_IOC_SHUTDOWN`: the file system stops at once, as at a power cut. Only for an administrator
/// ([`crate::admin`]). The argument is ignored, because every call is durable when it returns.
pub const SHUTDOWN: u32 = 2 << 30 | 4 << 16 | (b'X' as u32) << 8 | 125;

/// Bytes of the argument of [`ATTACH`]: the question, then the answer.
pub const ATTACH_BYTES: usize = 128;

/// Asks for the address of the mount's attach socket. A program sends a number that no other process knows,
/// and gets the socket's address; at that socket the number identifies it. So the descriptor alone, and
/// neither a path nor a name, tells which mount is meant.
pub const ATTACH: u32 = 3 << 30 | (ATTACH_BYTES as u32) << 16 | (b'h' as u32) << 8 | 1;

/// Announces that this descriptor is about to be mapped. From now on the mount treats the file as one of
/// which the kernel keeps pages, as after the kernel's first read of a page. A program that works on the file
/// past the kernel sends it before mmap(2): the kernel would not see a change of size, and a mapping would
/// keep the old end of the file.
pub const MAPS: u32 = (b'h' as u32) << 8 | 2;

/// Announces that a library makes the calls on this descriptor past the kernel. The mount counts, for each file, the other descriptors:
/// the kernel serves their calls by the size that it has cached, and a library that changes the size keeps that up to date.
pub const PAST_KERNEL: u32 = (b'h' as u32) << 8 | 3;

/// Takes [`PAST_KERNEL`] back, for ever: a program without the library has this descriptor, or is about to get it.
pub const THROUGH_KERNEL: u32 = (b'h' as u32) << 8 | 4;

/// Answers [`ATTACH`].
pub trait AttachIoctl: Send + Sync {
    /// The answer to a request of a thread (as this process numbers it; 0: in another PID namespace).
    fn answer(&self, question: &[u8; ATTACH_BYTES], thread: u32) -> [u8; ATTACH_BYTES];
}
