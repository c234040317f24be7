//! The nouns of the interface: inode numbers, names, attributes, times, open files.

use crate::{Error, Result};

/// Largest file offset plus one: 48 bits, as the media format's page numbers (36 bits of 4 KiB pages) allow.
pub const OFFSET_MAX_BYTES: u64 = 1 << 48;

/// How many of `len` bytes at `offset` go into a file of at most `max_bytes`, as write(2) has it: as many as there is room for.
///
/// # Errors
/// [`Error::FileTooBig`] if that is none.
pub fn room_for(offset: u64, len: usize, max_bytes: u64) -> Result<usize> {
    match max_bytes.checked_sub(offset) {
        None | Some(0) => Err(Error::FileTooBig),
        Some(room) => Ok(room.min(len as u64) as usize),
    }
}

/// An inode number. 0 is never a file; 1 is the root directory of every engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

/// Nanoseconds since 1970-01-01 UTC, negative before it (years 1677 to 2262).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(pub i64);

impl Time {
    /// From seconds and nanoseconds; saturates outside the range.
    pub fn from_parts(secs: i64, nanos: u32) -> Time {
        Time(secs.saturating_mul(1_000_000_000).saturating_add(i64::from(nanos)))
    }

    /// Whole seconds, rounded down.
    pub fn secs(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Nanoseconds within the second, 0 to 999,999,999.
    pub fn nanos(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }
}

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A Unix socket.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

impl FileKind {
    /// The `S_IFMT` bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => libc::S_IFREG,
            FileKind::Directory => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Fifo => libc::S_IFIFO,
            FileKind::Socket => libc::S_IFSOCK,
            FileKind::CharDevice => libc::S_IFCHR,
            FileKind::BlockDevice => libc::S_IFBLK,
        }
    }

    /// The kind whose discriminant is `raw`, as media and directory entries store it.
    #[inline]
    pub fn from_raw(raw: u8) -> Option<FileKind> {
        use FileKind::*;
        Some(match raw {
            _ if raw == Regular as u8 => Regular,
            _ if raw == Directory as u8 => Directory,
            _ if raw == Symlink as u8 => Symlink,
            _ if raw == Fifo as u8 => Fifo,
            _ if raw == Socket as u8 => Socket,
            _ if raw == CharDevice as u8 => CharDevice,
            _ if raw == BlockDevice as u8 => BlockDevice,
            _ => return None,
        })
    }
}

/// What `stat` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Unique among all inodes that ever had this number.
    pub generation: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits (07777).
    pub perm: u16,
    /// Names of this inode; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device files (Linux' encoding), else 0.
    pub rdev: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated space in units of 512 bytes, as `st_blocks`.
    pub blocks_512: u64,
    /// Last access (kept lazily; engines may never move it on reads).
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of content or attributes.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
}

/// A time to set. Setting times needs ownership; both to [`SetTime::Now`] at once only the right to write; and with a
/// size in the same call `Now` needs nothing beyond what the size needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The engine's clock when it carries out the call.
    Now,
    /// This time.
    At(Time),
}

/// Attributes to change; `None` leaves one as it is. Engines apply all or nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission, set-id and sticky bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates or extends with zeros.
    pub size_bytes: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
}

/// What a new inode is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNode<'a> {
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits before the caller's umask.
    pub perm: u16,
    /// Device number of a device file, else 0.
    pub rdev: u32,
    /// Target of a symbolic link, else empty.
    pub target: &'a [u8],
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Reading is allowed.
    pub read: bool,
    /// Writing is allowed.
    pub write: bool,
    /// Cut to zero length on open (`O_TRUNC`).
    pub truncate: bool,
    /// Every write goes to the end (`O_APPEND`): front ends call [`crate::FileSystem::append`].
    pub append: bool,
    /// Whole pages go to the device at once (`O_DIRECT`), where an engine keeps pages in memory; they are no more durable for it. Others
    /// take it and have nothing to do for it.
    pub direct: bool,
    /// Each change of the content is durable when its call returns (`O_DSYNC`, `O_SYNC`). Front ends call [`crate::FileSystem::fsync`].
    pub sync: bool,
}

impl OpenFlags {
    const NONE: OpenFlags =
        OpenFlags { read: false, write: false, truncate: false, append: false, direct: false, sync: false };
    /// Reading alone.
    pub const READ: OpenFlags = OpenFlags { read: true, ..OpenFlags::NONE };
    /// Writing alone.
    pub const WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::NONE };
    /// Reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::READ };

    /// From the flags of open(2).
    pub fn from_posix(flags: i32) -> OpenFlags {
        let access = flags & libc::O_ACCMODE;
        OpenFlags {
            read: access != libc::O_WRONLY,
            write: access != libc::O_RDONLY,
            truncate: flags & libc::O_TRUNC != 0,
            append: flags & libc::O_APPEND != 0,
            direct: flags & libc::O_DIRECT != 0,
            sync: flags & libc::O_DSYNC != 0,
        }
    }
}

/// An open file or directory. Not cloneable: each one is given back once, with [`crate::FileSystem::release`].
/// It keeps an unlinked inode alive; all calls on it take it by reference and from any thread.
#[derive(Debug)]
pub struct Handle {
    /// The inode.
    pub ino: Ino,
    /// How it was opened.
    pub flags: OpenFlags,
    /// The engine's own word; front ends only carry it.
    pub token: u64,
}

/// A place in a directory, stable while entries come and go and across restarts. 0 is the start; those of entries are
/// at most [`Cookie::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Cookie(pub u64);

impl Cookie {
    /// The largest: the kernel keeps places as signed 64-bit offsets, and the mount needs two of them for `.` and `..`.
    pub const MAX: Cookie = Cookie(i64::MAX as u64 - 2);
}

/// What `statfs` tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Size of a block in bytes.
    pub block_size_bytes: u32,
    /// Blocks in all.
    pub blocks_total: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Blocks free to those without privilege.
    pub blocks_available: u64,
    /// Inodes in all (an upper bound where they are made on demand).
    pub inodes_total: u64,
    /// Inodes free.
    pub inodes_free: u64,
    /// Longest name in bytes.
    pub name_max_bytes: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_before_1970_is_rounded_down_to_its_second() {
        for (secs, nanos) in [(0, 0), (0, 999_999_999), (-1, 999_999_999), (-5, 1), (9_000_000_000, 7)] {
            let time = Time::from_parts(secs, nanos);
            assert_eq!((time.secs(), time.nanos()), (secs, nanos));
        }
        assert_eq!(Time(-1), Time::from_parts(-1, 999_999_999));
        assert_eq!(
            (Time::from_parts(i64::MAX, 5), Time::from_parts(i64::MIN, 0)),
            (Time(i64::MAX), Time(i64::MIN))
        );
    }

    #[test]
    fn kinds_have_numbers_and_bits_of_their_own() {
        let kinds: Vec<FileKind> = (0..=255).filter_map(FileKind::from_raw).collect();
        assert_eq!(kinds.iter().map(|kind| *kind as u8).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
        let bits: Vec<u32> = kinds.into_iter().map(FileKind::mode_bits).collect();
        assert_eq!(bits, [0o100_000, 0o040_000, 0o120_000, 0o010_000, 0o140_000, 0o020_000, 0o060_000]);
    }

    #[test]
    fn flags_of_open_are_read_one_by_one() {
        assert_eq!(OpenFlags::from_posix(libc::O_RDONLY | libc::O_CREAT), OpenFlags::READ);
        assert_eq!(OpenFlags::from_posix(libc::O_RDWR), OpenFlags::READ_WRITE);
        assert_eq!(OpenFlags::from_posix(libc::O_WRONLY | libc::O_EXCL), OpenFlags::WRITE);
        let sync = OpenFlags { sync: true, ..OpenFlags::READ_WRITE };
        assert_eq!(OpenFlags::from_posix(libc::O_RDWR | libc::O_SYNC), sync);
        assert_eq!(OpenFlags::from_posix(libc::O_RDWR | libc::O_DSYNC), sync);
        let truncated = OpenFlags { truncate: true, ..OpenFlags::WRITE };
        assert_eq!(OpenFlags::from_posix(libc::O_WRONLY | libc::O_TRUNC), truncated);
        let appended = OpenFlags { append: true, ..OpenFlags::READ };
        assert_eq!(OpenFlags::from_posix(libc::O_APPEND), appended);
        let direct = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
        assert_eq!(OpenFlags::from_posix(libc::O_RDWR | libc::O_DIRECT), direct);
    }
}
