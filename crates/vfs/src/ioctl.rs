//! What programs may ask of a mounted file by ioctl(2), besides the kernel's own numbers.

/// "I change this file past the mount from now on": until this descriptor is closed for good, `stat` and the like ask the
/// engine each time. No argument; 0 when it is done. Whoever works past the mount says this before the first change.
pub const CHANGES_PAST_THE_MOUNT: u32 = (b'h' as u32) << 8 | 1;

/// `FS_IOC_SHUTDOWN`: the file system stops at once, as at a power cut. Root's; the argument makes no difference, because
/// every call is durable when it returns.
pub const SHUTDOWN: u32 = 2 << 30 | 4 << 16 | (b'X' as u32) << 8 | 125;
