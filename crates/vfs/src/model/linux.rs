//! The kernel's file system below a directory as a [`FileSystem`]: the judge of the model. For tests alone, needs root.
//!
//! An inode number is the kernel's, and an `O_PATH` descriptor is kept for each that was looked up. Calls in a user's
//! name run with that user's file-system credentials, which belong to the calling thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex};

use rustix::fs::{
    AtFlags, CWD, Dev, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags,
};

use crate::testkit::Calls;
use crate::*;

pub(super) struct LinuxFs {
    root: tempfile::TempDir,
    inodes: Mutex<BTreeMap<Ino, Arc<OwnedFd>>>,
    open: Mutex<BTreeMap<u64, Arc<File>>>,
}

fn from_errno(errno: i32) -> Error {
    use Error::*;
    let known = [
        NotFound,
        Exists,
        NotDirectory,
        IsDirectory,
        NotEmpty,
        AccessDenied,
        NotPermitted,
        NoSpace,
        FileTooBig,
        InvalidName,
        NameTooLong,
        BadHandle,
        Loop,
        NoSuchOffset,
        NotSupported(""),
        NoAttribute,
        Range,
        TooBig,
    ];
    known.into_iter().find(|error| error.errno() == errno).unwrap_or_else(|| Io(format!("errno {errno}")))
}

fn raw(errno: rustix::io::Errno) -> Error {
    from_errno(errno.raw_os_error())
}

fn std_error(error: io::Error) -> Error {
    from_errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Carries out `work` with the file-system credentials of `cred`.
fn as_user<T>(cred: &Cred, work: impl FnOnce() -> Result<T>) -> Result<T> {
    set_credentials(cred);
    let result = work();
    set_credentials(&Cred::root());
    result
}

fn set_credentials(cred: &Cred) {
    // SAFETY: plain system calls that change this thread alone; the group list is as long as said.
    unsafe {
        libc::syscall(libc::SYS_setgroups, cred.groups.len(), cred.groups.as_ptr());
        libc::syscall(libc::SYS_setfsgid, cred.gid);
        libc::syscall(libc::SYS_setfsuid, cred.uid);
        libc::umask(u32::from(cred.umask));
    }
    let mut sets = rustix::thread::capabilities(None).unwrap();
    // The kernel gives and takes the rights over files along with the user id, but not this one, which `trusted.*` asks for.
    let admin = rustix::thread::CapabilitySet::SYS_ADMIN;
    sets.effective.set(admin, cred.is_root() && sets.permitted.contains(admin));
    rustix::thread::set_capabilities(None, sets).unwrap();
}

fn kind_of(mode: u32) -> Option<FileKind> {
    (1..=7).filter_map(FileKind::from_raw).find(|kind| kind.mode_bits() == mode & libc::S_IFMT)
}

impl LinuxFs {
    pub(super) fn new() -> LinuxFs {
        // SAFETY: a plain system call: the umask is this thread's own from here on.
        unsafe { libc::unshare(libc::CLONE_FS) };
        rustix::process::umask(Mode::empty());
        let root = tempfile::tempdir().unwrap();
        let path = rustix::fs::open(root.path(), OFlags::PATH, Mode::empty()).unwrap();
        rustix::fs::chmod(root.path(), Mode::from_raw_mode(0o755)).unwrap();
        let inodes = Mutex::new(BTreeMap::from([(Ino::ROOT, Arc::new(path))]));
        LinuxFs { root, inodes, open: Mutex::default() }
    }

    /// Calls that this kernel's file system lacks, or bounds differently from ours.
    pub(super) fn lacks(&self) -> Calls {
        let handle =
            self.create(&Cred::root(), Ino::ROOT, Name::new(b"probe").unwrap(), 0o600, OpenFlags::READ_WRITE);
        let handle = handle.unwrap().1;
        let lacks = |op| matches!(self.fallocate(&handle, op, 0, 4096), Err(Error::NotSupported(_)));
        let mut calls = Calls::NONE;
        for (op, call) in [(RangeOp::Zero { keep_size: true }, Calls::ZERO), (RangeOp::Insert, Calls::SHIFT)]
        {
            calls = if lacks(op) { calls.with(call) } else { calls };
        }
        let beyond = SetAttr { size_bytes: Some(OFFSET_MAX_BYTES + 1), ..SetAttr::default() };
        let larger = self.setattr(&Cred::root(), handle.ino, Some(&handle), &beyond).is_ok();
        if larger { calls.with(Calls::TRUNCATE) } else { calls }
    }

    fn inode(&self, ino: Ino) -> Result<Arc<OwnedFd>> {
        self.inodes.lock().unwrap().get(&ino).cloned().ok_or(Error::Stale)
    }

    fn file(&self, handle: &Handle) -> Result<Arc<File>> {
        self.open.lock().unwrap().get(&handle.token).cloned().ok_or(Error::BadHandle)
    }

    /// The attributes of what `path` is open on, which is kept.
    fn learn(&self, path: OwnedFd) -> Result<Attr> {
        let file = File::from(path);
        let meta = file.metadata().map_err(std_error)?;
        let root = self.root.path().metadata().map_err(std_error)?;
        let is_root = (meta.dev(), meta.ino()) == (root.dev(), root.ino());
        let ino = if is_root { Ino::ROOT } else { Ino(meta.ino()) };
        self.inodes.lock().unwrap().entry(ino).or_insert_with(|| Arc::new(file.into()));
        self.getattr(ino)
    }

    fn keep(&self, ino: Ino, flags: OpenFlags, file: OwnedFd) -> Handle {
        let token = file.as_raw_fd() as u64;
        self.open.lock().unwrap().insert(token, Arc::new(File::from(file)));
        Handle { ino, flags, token }
    }
}

fn posix(flags: OpenFlags) -> OFlags {
    let access = match (flags.read, flags.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    if flags.truncate { access | OFlags::TRUNC } else { access }
}

fn link_to(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

impl FileSystem for LinuxFs {
    fn statfs(&self) -> Result<StatFs> {
        Err(Error::NotSupported("statfs"))
    }

    fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let dir = self.inode(parent)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let found =
            as_user(cred, || rustix::fs::openat(&*dir, name.bytes(), flags, Mode::empty()).map_err(raw))?;
        self.learn(found)
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        if dir == Ino::ROOT {
            return Ok(dir);
        }
        let above = rustix::fs::openat(&*self.inode(dir)?, "..", OFlags::PATH, Mode::empty()).map_err(raw)?;
        Ok(self.learn(above)?.ino)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let meta =
            File::from(self.inode(ino)?.try_clone().map_err(std_error)?).metadata().map_err(std_error)?;
        let time = |secs, nanos| Time::from_parts(secs, nanos as u32);
        Ok(Attr {
            ino,
            generation: 1,
            kind: kind_of(meta.mode()).ok_or(Error::Stale)?,
            perm: (meta.mode() & 0o7777) as u16,
            nlink: meta.nlink() as u32,
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: meta.rdev() as u32,
            size_bytes: meta.len(),
            blocks_512: meta.blocks(),
            atime: time(meta.atime(), meta.atime_nsec()),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            ctime: time(meta.ctime(), meta.ctime_nsec()),
            crtime: Time(0),
        })
    }

    fn setattr(&self, cred: &Cred, ino: Ino, handle: Option<&Handle>, set: &SetAttr) -> Result<Attr> {
        let inode = self.inode(ino)?;
        let open = handle.map(|handle| self.file(handle)).transpose()?;
        as_user(cred, || {
            if let Some(size) = set.size_bytes {
                let size = i64::try_from(size).unwrap_or(i64::MAX);
                // SAFETY: the path is a string with its NUL; the descriptor is open.
                let done = unsafe {
                    match &open {
                        Some(file) => libc::ftruncate(file.as_raw_fd(), size),
                        None => libc::truncate(format!("{}\0", link_to(&inode)).as_ptr().cast(), size),
                    }
                };
                if done != 0 {
                    return Err(std_error(io::Error::last_os_error()));
                }
            }
            if set.uid.is_some() || set.gid.is_some() {
                let (uid, gid) =
                    (set.uid.map(rustix::fs::Uid::from_raw), set.gid.map(rustix::fs::Gid::from_raw));
                rustix::fs::chownat(&*inode, "", uid, gid, AtFlags::EMPTY_PATH).map_err(raw)?;
            }
            if let Some(perm) = set.perm {
                if self.getattr(ino)?.kind == FileKind::Symlink {
                    return Err(Error::NotSupported("the mode of a symbolic link"));
                }
                rustix::fs::chmod(link_to(&inode), Mode::from_raw_mode(u32::from(perm))).map_err(raw)?;
            }
            if set.atime.is_some() || set.mtime.is_some() {
                let spec = |time| match time {
                    None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
                    Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
                    Some(SetTime::At(time)) => {
                        Timespec { tv_sec: time.secs(), tv_nsec: i64::from(time.nanos()) }
                    }
                };
                let times = Timestamps { last_access: spec(set.atime), last_modification: spec(set.mtime) };
                rustix::fs::utimensat(&*inode, "", &times, AtFlags::EMPTY_PATH).map_err(raw)?;
            }
            Ok(())
        })?;
        self.getattr(ino)
    }

    fn make(&self, cred: &Cred, parent: Ino, name: Name<'_>, node: NewNode<'_>) -> Result<Attr> {
        let dir = self.inode(parent)?;
        let mode = Mode::from_raw_mode(u32::from(node.perm));
        as_user(cred, || {
            let made = match node.kind {
                FileKind::Directory => rustix::fs::mkdirat(&*dir, name.bytes(), mode),
                FileKind::Symlink => rustix::fs::symlinkat(node.target, &*dir, name.bytes()),
                kind => {
                    let kind = FileType::from_raw_mode(kind.mode_bits());
                    rustix::fs::mknodat(&*dir, name.bytes(), kind, mode, Dev::from(node.rdev))
                }
            };
            made.map_err(raw)
        })?;
        self.lookup(&Cred::root(), parent, name)
    }

    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let dir = self.inode(parent)?;
        let how = posix(flags) | OFlags::CREATE | OFlags::EXCL;
        let file = as_user(cred, || {
            rustix::fs::openat(&*dir, name.bytes(), how, Mode::from_raw_mode(u32::from(perm))).map_err(raw)
        })?;
        let attr = self.lookup(&Cred::root(), parent, name)?;
        Ok((attr, self.keep(attr.ino, flags, file)))
    }

    fn access(&self, cred: &Cred, ino: Ino, want: Permission) -> Result<()> {
        let inode = self.inode(ino)?;
        let want = rustix::fs::Access::from_bits_truncate(u32::from(want.0));
        as_user(cred, || rustix::fs::accessat(CWD, link_to(&inode), want, AtFlags::EACCESS).map_err(raw))
    }

    fn tmpfile(
        &self,
        cred: &Cred,
        dir: Ino,
        perm: u16,
        flags: OpenFlags,
        linkable: bool,
    ) -> Result<(Attr, Handle)> {
        let dir = self.inode(dir)?;
        let exclusive = if linkable { OFlags::empty() } else { OFlags::EXCL };
        let how = posix(flags).difference(OFlags::TRUNC) | OFlags::TMPFILE | exclusive;
        let file = as_user(cred, || {
            rustix::fs::open(link_to(&dir), how, Mode::from_raw_mode(u32::from(perm))).map_err(raw)
        })?;
        let path = rustix::fs::open(link_to(&file), OFlags::PATH, Mode::empty()).map_err(raw)?;
        let attr = self.learn(path)?;
        Ok((attr, self.keep(attr.ino, flags, file)))
    }

    fn getxattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let mut value = vec![0; 65_536];
        let len = as_user(cred, || {
            rustix::fs::getxattr(link_to(&inode), name.bytes(), &mut value[..]).map_err(raw)
        })?;
        value.truncate(len);
        Ok(value)
    }

    fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        let flags = match how {
            SetXattr::Any => XattrFlags::empty(),
            SetXattr::Create => XattrFlags::CREATE,
            SetXattr::Replace => XattrFlags::REPLACE,
            SetXattr::Never => XattrFlags::CREATE | XattrFlags::REPLACE,
        };
        as_user(cred, || rustix::fs::setxattr(link_to(&inode), name.bytes(), value, flags).map_err(raw))
    }

    fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let mut list = vec![0; 65_536];
        let len = as_user(cred, || rustix::fs::listxattr(link_to(&inode), &mut list[..]).map_err(raw))?;
        list.truncate(len);
        Ok(list)
    }

    fn removexattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<()> {
        let inode = self.inode(ino)?;
        as_user(cred, || rustix::fs::removexattr(link_to(&inode), name.bytes()).map_err(raw))
    }

    fn copy_range(
        &self,
        from: &Handle,
        offset_from: u64,
        to: &Handle,
        offset_to: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let (mut at, mut at_to) = (offset_from, offset_to);
        let (from, to) = (self.file(from)?, self.file(to)?);
        let copied =
            rustix::fs::copy_file_range(&*from, Some(&mut at), &*to, Some(&mut at_to), len_bytes as usize);
        copied.map(|copied| copied as u64).map_err(raw)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if self.getattr(ino)?.kind != FileKind::Symlink {
            return Err(Error::InvalidArgument("not a symbolic link"));
        }
        rustix::fs::readlinkat(&*self.inode(ino)?, "", Vec::new()).map(|t| t.into_bytes()).map_err(raw)
    }

    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let (inode, dir) = (self.inode(ino)?, self.inode(parent)?);
        as_user(cred, || {
            let flags = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, link_to(&inode), &*dir, name.bytes(), flags).map_err(raw)
        })?;
        self.getattr(ino)
    }

    fn unlink(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        let dir = self.inode(parent)?;
        as_user(cred, || rustix::fs::unlinkat(&*dir, name.bytes(), AtFlags::empty()).map_err(raw))
    }

    fn rmdir(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        let dir = self.inode(parent)?;
        as_user(cred, || rustix::fs::unlinkat(&*dir, name.bytes(), AtFlags::REMOVEDIR).map_err(raw))
    }

    fn rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = (self.inode(parent)?, self.inode(new_parent)?);
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        as_user(cred, || {
            rustix::fs::renameat_with(&*from, name.bytes(), &*to, new_name.bytes(), flags).map_err(raw)
        })
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        if !matches!(self.getattr(ino)?.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
            return Err(Error::InvalidArgument("opening a pipe waits for its other end"));
        }
        let inode = self.inode(ino)?;
        let file =
            as_user(cred, || rustix::fs::open(link_to(&inode), posix(flags), Mode::empty()).map_err(raw))?;
        Ok(self.keep(ino, flags, file))
    }

    fn release(&self, handle: Handle) {
        self.open.lock().unwrap().remove(&handle.token);
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file(handle)?.read_at(buf, offset).map_err(std_error)
    }

    fn write(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        self.file(handle)?.write_at(buf, offset).map_err(std_error)
    }

    fn append(&self, handle: &Handle, buf: &[u8]) -> Result<u64> {
        let end = self.getattr(handle.ino)?.size_bytes;
        self.write(handle, end, buf).map(|_| end)
    }

    fn fsync(&self, handle: &Handle, _data_only: bool) -> Result<()> {
        self.file(handle).map(|_| ())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn fallocate(&self, handle: &Handle, op: RangeOp, offset: u64, len_bytes: u64) -> Result<()> {
        let keep = |keep| if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        let flags = match op {
            RangeOp::Allocate { keep_size } => keep(keep_size),
            RangeOp::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            RangeOp::Zero { keep_size } => FallocateFlags::ZERO_RANGE | keep(keep_size),
            RangeOp::Collapse => FallocateFlags::COLLAPSE_RANGE,
            RangeOp::Insert => FallocateFlags::INSERT_RANGE,
        };
        rustix::fs::fallocate(self.file(handle)?.as_fd(), flags, offset, len_bytes).map_err(raw)
    }

    fn seek(&self, handle: &Handle, target: SeekTarget, offset: u64) -> Result<u64> {
        let from = match target {
            SeekTarget::Data => rustix::fs::SeekFrom::Data(offset),
            SeekTarget::Hole => rustix::fs::SeekFrom::Hole(offset),
        };
        rustix::fs::seek(self.file(handle)?.as_fd(), from).map_err(raw)
    }

    fn readdir(&self, handle: &Handle, from: Cookie, listing: &mut Listing) -> Result<()> {
        let file = self.file(handle)?;
        if !file.metadata().map_err(std_error)?.is_dir() {
            return Err(Error::NotDirectory);
        }
        listing.clear();
        let entries = std::fs::read_dir(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(std_error)?;
        for (entry, next) in entries.zip(1..).skip(from.0 as usize) {
            let entry = entry.map_err(std_error)?;
            let meta = entry.metadata().map_err(std_error)?;
            let (name, kind) = (entry.file_name(), kind_of(meta.mode()).ok_or(Error::Stale)?);
            let name = Name::new(name.as_bytes())?;
            if !listing.push(&DirEntry { ino: Ino(meta.ino()), kind, name, next: Cookie(next) }) {
                break;
            }
        }
        Ok(())
    }
}
