//! What programs may ask of a mounted file by ioctl(2), besides the kernel's own numbers.

/// `FS_IOC_SHUTDOWN`: the file system stops at once, as at a power cut. An administrator's ([`crate::admin`]); the argument makes no
/// difference, because every call is durable when it returns.
pub const SHUTDOWN: u32 = 2 << 30 | 4 << 16 | (b'X' as u32) << 8 | 125;

/// Bytes of the argument of [`ATTACH`]: the question, then the answer.
pub const ATTACH_BYTES: usize = 128;

/// Where other processes attach to the mount that this descriptor is of. A program sends a number that nobody else knows, and gets the
/// address of a socket; at that socket it is known by the number. So neither a path nor a name says which mount it is: the
/// descriptor does.
pub const ATTACH: u32 = 3 << 30 | (ATTACH_BYTES as u32) << 16 | (b'h' as u32) << 8 | 1;

/// This descriptor is about to be mapped: from now on the mount takes its file as one of which the kernel keeps pages, as it does
/// when the kernel reads a first page. A program that works on the file past the kernel sends it before mmap(2): a change of the size that
/// the kernel does not see is no end of the file to a mapping.
pub const MAPS: u32 = (b'h' as u32) << 8 | 2;

/// Answers [`ATTACH`].
pub trait AttachIoctl: Send + Sync {
    /// What a thread (as this process numbers it; 0: of another number space) has sent, and what it gets.
    fn answer(&self, question: &[u8; ATTACH_BYTES], thread: u32) -> [u8; ATTACH_BYTES];
}
