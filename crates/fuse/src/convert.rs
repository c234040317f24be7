//! Conversions between the kernel's types and the engine's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, RenameFlags, TimeOrNow};
use heddle_vfs::{Attr, Error, FileKind, RangeOp, RenameMode, Result, SeekTarget, SetTime, Time};

/// The preferred I/O size told to programs: a page of the engines.
const PREFERRED_IO_BYTES: u32 = 4096;

pub(crate) fn errno(error: &Error) -> fuser::Errno {
    if let Error::Corrupt(_) = error {
        crate::damage::met(error);
    }
    fuser::Errno::from_i32(error.errno())
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The file kind in a mode of mknod(2), where 0 means a regular file.
pub(crate) fn kind_of_mode(mode: u32) -> Result<FileKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(FileKind::Regular),
        libc::S_IFIFO => Ok(FileKind::Fifo),
        libc::S_IFSOCK => Ok(FileKind::Socket),
        libc::S_IFCHR => Ok(FileKind::CharDevice),
        libc::S_IFBLK => Ok(FileKind::BlockDevice),
        _ => Err(Error::InvalidArgument("mknod makes no such kind of file")),
    }
}

pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size_bytes,
        blocks: attr.blocks_512,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.crtime),
        kind: file_type(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let distance = Duration::from_nanos(time.0.unsigned_abs());
    if time.0 < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Time::from_parts(saturated(after.as_secs()), after.subsec_nanos()),
            // The kernel's seconds are rounded down and its nanoseconds count upwards; fuser subtracts both
            // from the epoch. The same steps backwards give the kernel's numbers again.
            Err(before) => {
                let before = before.duration();
                Time::from_parts(-saturated(before.as_secs()), before.subsec_nanos())
            }
        }),
    }
}

fn saturated(secs: u64) -> i64 {
    i64::try_from(secs).unwrap_or(i64::MAX)
}

pub(crate) fn rename_mode(flags: RenameFlags) -> Result<RenameMode> {
    match flags.bits() {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Error::InvalidArgument("these rename flags are not supported")),
    }
}

pub(crate) fn range_op(mode: i32) -> Result<RangeOp> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    match mode {
        0 => Ok(RangeOp::Allocate { keep_size: false }),
        libc::FALLOC_FL_KEEP_SIZE => Ok(RangeOp::Allocate { keep_size: true }),
        PUNCH => Ok(RangeOp::Punch),
        libc::FALLOC_FL_ZERO_RANGE => Ok(RangeOp::Zero { keep_size: false }),
        ZERO_KEEP => Ok(RangeOp::Zero { keep_size: true }),
        libc::FALLOC_FL_COLLAPSE_RANGE => Ok(RangeOp::Collapse),
        libc::FALLOC_FL_INSERT_RANGE => Ok(RangeOp::Insert),
        _ => Err(Error::NotSupported("this mode of fallocate")),
    }
}

pub(crate) fn seek_target(whence: i32) -> Result<SeekTarget> {
    match whence {
        libc::SEEK_DATA => Ok(SeekTarget::Data),
        libc::SEEK_HOLE => Ok(SeekTarget::Hole),
        _ => Err(Error::InvalidArgument("the kernel seeks by itself but for data and holes")),
    }
}
