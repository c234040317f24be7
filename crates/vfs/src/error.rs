//! Errors: one variant per cause, with its errno.

/// An error of an engine.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("the name exists already")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY
    #[error("the directory is not empty")]
    NotEmpty,
    /// EACCES
    #[error("permission denied by the file's mode")]
    AccessDenied,
    /// EPERM
    #[error("operation not permitted to this user")]
    NotPermitted,
    /// EROFS
    #[error("the file system is mounted read-only")]
    ReadOnly,
    /// ENOSPC
    #[error("no space left: delete files or make a larger image")]
    NoSpace,
    /// ENOSPC
    #[error("no inodes left: delete files or make a larger image")]
    NoInodes,
    /// ENOMEM
    #[error("no volatile memory left: close files or raise the arena's size")]
    NoMemory,
    /// EFBIG
    #[error("beyond the largest file size of this engine")]
    FileTooBig,
    /// EFAULT
    #[error("the caller's buffer is no memory that can be stored to")]
    BadBuffer,
    /// EINVAL
    #[error("invalid argument: {0}")]
    InvalidArgument(&'static str),
    /// EINVAL
    #[error("not a file name")]
    InvalidName,
    /// ENAMETOOLONG
    #[error("a name is longer than 255 bytes")]
    NameTooLong,
    /// EBADF
    #[error("the file is not open for this")]
    BadHandle,
    /// ESTALE
    #[error("the inode is gone")]
    Stale,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// ELOOP
    #[error("too many symbolic links in the path, or one where none may be")]
    Loop,
    /// EXDEV
    #[error("not on the same file system")]
    CrossDevice,
    /// EBUSY
    #[error("in use")]
    Busy,
    /// EDEADLK: a signal handler calls into a file system that its own thread is changing.
    #[error("the call that this signal interrupted holds what this one needs")]
    WouldDeadlock,
    /// ENODEV: the process that mounted the file system has unmounted it.
    #[error("the file system was unmounted")]
    Unmounted,
    /// ENXIO
    #[error("no data or hole beyond this offset")]
    NoSuchOffset,
    /// ENODATA
    #[error("no such attribute")]
    NoAttribute,
    /// ERANGE
    #[error("the buffer is too small")]
    Range,
    /// E2BIG
    #[error("an attribute's value is longer than 64 KiB")]
    TooBig,
    /// EOPNOTSUPP
    #[error("not supported by this engine: {0}")]
    NotSupported(&'static str),
    /// EUCLEAN: the media contradicts itself; the text names the structure.
    #[error("the image is damaged: {0}; run: heddle fsck IMAGE")]
    Corrupt(String),
    /// EIO
    #[error("input/output error: {0}")]
    Io(String),
}

/// Result of an engine's call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno a POSIX caller sees.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound => libc::ENOENT,
            Error::Exists => libc::EEXIST,
            Error::NotDirectory => libc::ENOTDIR,
            Error::IsDirectory => libc::EISDIR,
            Error::NotEmpty => libc::ENOTEMPTY,
            Error::AccessDenied => libc::EACCES,
            Error::NotPermitted => libc::EPERM,
            Error::ReadOnly => libc::EROFS,
            Error::NoSpace | Error::NoInodes => libc::ENOSPC,
            Error::NoMemory => libc::ENOMEM,
            Error::FileTooBig => libc::EFBIG,
            Error::BadBuffer => libc::EFAULT,
            Error::InvalidArgument(_) | Error::InvalidName => libc::EINVAL,
            Error::NameTooLong => libc::ENAMETOOLONG,
            Error::BadHandle => libc::EBADF,
            Error::Stale => libc::ESTALE,
            Error::TooManyLinks => libc::EMLINK,
            Error::Loop => libc::ELOOP,
            Error::CrossDevice => libc::EXDEV,
            Error::Busy => libc::EBUSY,
            Error::WouldDeadlock => libc::EDEADLK,
            Error::Unmounted => libc::ENODEV,
            Error::NoSuchOffset => libc::ENXIO,
            Error::NoAttribute => libc::ENODATA,
            Error::Range => libc::ERANGE,
            Error::TooBig => libc::E2BIG,
            Error::NotSupported(_) => libc::EOPNOTSUPP,
            Error::Corrupt(_) => libc::EUCLEAN,
            Error::Io(_) => libc::EIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn each_cause_has_the_number_that_posix_gives_it() {
        let numbers = [
            (Error::NotFound, libc::ENOENT),
            (Error::Exists, libc::EEXIST),
            (Error::NotDirectory, libc::ENOTDIR),
            (Error::IsDirectory, libc::EISDIR),
            (Error::NotEmpty, libc::ENOTEMPTY),
            (Error::AccessDenied, libc::EACCES),
            (Error::NotPermitted, libc::EPERM),
            (Error::ReadOnly, libc::EROFS),
            (Error::NoSpace, libc::ENOSPC),
            (Error::NoInodes, libc::ENOSPC),
            (Error::NoMemory, libc::ENOMEM),
            (Error::FileTooBig, libc::EFBIG),
            (Error::BadBuffer, libc::EFAULT),
            (Error::InvalidArgument("x"), libc::EINVAL),
            (Error::NameTooLong, libc::ENAMETOOLONG),
            (Error::BadHandle, libc::EBADF),
            (Error::Stale, libc::ESTALE),
            (Error::TooManyLinks, libc::EMLINK),
            (Error::Loop, libc::ELOOP),
            (Error::CrossDevice, libc::EXDEV),
            (Error::Busy, libc::EBUSY),
            (Error::WouldDeadlock, libc::EDEADLK),
            (Error::Unmounted, libc::ENODEV),
            (Error::NoSuchOffset, libc::ENXIO),
            (Error::NoAttribute, libc::ENODATA),
            (Error::Range, libc::ERANGE),
            (Error::TooBig, libc::E2BIG),
            (Error::NotSupported("x"), libc::EOPNOTSUPP),
            (Error::Corrupt("x".into()), libc::EUCLEAN),
            (Error::Io("x".into()), libc::EIO),
        ];
        for (error, number) in numbers {
            assert_eq!(error.errno(), number, "{error}");
        }
    }
}
