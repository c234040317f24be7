//! What programs may ask of a mounted file by ioctl(2), besides the kernel's own numbers.

/// `FS_IOC_SHUTDOWN`: the file system stops at once, as at a power cut. Root's; the argument makes no difference, because
/// every call is durable when it returns.
pub const SHUTDOWN: u32 = 2 << 30 | 4 << 16 | (b'X' as u32) << 8 | 125;
