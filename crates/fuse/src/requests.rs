//! The kernel's requests, one by one, as calls of the engine. Every request is answered once: fuser answers
//! `EIO` for a reply that is dropped.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags as KernelOpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use heddle_vfs::admin::is_administrator;
use heddle_vfs::{Cred, Error, FileKind, Handle, Ino, Name, NewNode, SetAttr, ioctl};

use crate::adapter::{Adapter, Added, Opening, answer_empty, place, sets_group_id, shown_ino, with_a_name};
use crate::convert::{errno, file_type, kind_of_mode, range_op, rename_mode, set_time};
use crate::xattrs::answer_xattr;

/// The longest read or write of one request: the kernel's limit at its default settings.
const REQUEST_MAX_BYTES: u32 = 1 << 20;

/// How many asynchronous requests (I/O and write-back) the kernel may have under way.
const BACKGROUND_MAX: u16 = 256;

const MODE_BITS: u32 = 0o7777;

thread_local! {
    /// The buffer into which a thread reads: it grows to the longest request and is never cleared.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// No page cache, and parallel writers of one file.
const FILE_OPEN: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Not `FUSE_ATOMIC_O_TRUNC`: after a read-only open the kernel checks whether a program runs from the file (ETXTBSY).
        // That check must precede the truncation, so the kernel truncates by a request of its own.
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_EXPORT_SUPPORT,
            // The kernel checks access lists, too. A default access list replaces the umask, so we apply the umask.
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ];
        for flag in wanted {
            // An older kernel lacks some of these: each only makes calls faster or, for mappings and access lists, possible.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(REQUEST_MAX_BYTES);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        let _ = self.guarded(|| {
            self.handles.drain().for_each(|open| self.give_back(open));
            self.orphans.drain().into_iter().for_each(|handle| self.fs.release(handle));
            Ok(())
        });
        self.pages.end();
        let _ = self.guarded(|| self.fs.sync());
    }

    fn forget(&self, _request: &Request, ino: INodeNo, times: u64) {
        self.kernel_forgets(ino, times);
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let asked = self.writers.asked();
        let found = self.guarded(|| {
            // The kernel asks for these when it has only a file handle (open_by_handle_at(2), NFS).
            match name.as_bytes() {
                b"." => return self.fs.getattr(Ino(parent.0)).and_then(with_a_name),
                b".." => return self.fs.getattr(self.fs.parent(Ino(parent.0))?),
                _ => {}
            }
            let name = Name::new(name.as_bytes())?;
            self.as_caller(request, false, |cred| self.fs.lookup(cred, Ino(parent.0), name))
        });
        self.answer_entry(asked, found, reply);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let asked = self.writers.asked();
        match self.guarded(|| self.fs.getattr(Ino(ino.0))) {
            Ok(attr) => {
                let (ttl, told) = self.attr(asked, &attr);
                reply.attr(&ttl, &told);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut set = SetAttr {
            perm: mode.map(|mode| (mode & MODE_BITS) as u16),
            uid,
            gid,
            size_bytes: size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        // No system call sets size and mode: the kernel clears the set-id bits here, of a file that its
        // caller may write but does not own. So the mode is not set in the caller's name.
        let kept_bits = set.perm.take_if(|_| size.is_some());
        let groups_matter = set.perm.is_some_and(sets_group_id);
        let strange = |to: Option<u32>, shown: Option<u32>| to.is_some() && shown.is_some() && to != shown;
        if strange(uid, self.owner.uid) || strange(gid, self.owner.gid) {
            return reply.error(Errno::EPERM);
        }
        let apply = |handle: Option<&Handle>| {
            let ino = Ino(ino.0);
            self.refuse_if_interrupted(request, ino)?;
            if self.only_drops_set_ids(ino, &set)? {
                return self.fs.setattr(&Cred::root(), ino, None, &set);
            }
            let changes = size.is_some() || uid.is_some() || gid.is_some();
            let gone = if changes { self.set_ids_that_go(request, ino)? } else { 0 };
            let attr =
                self.as_caller(request, groups_matter, |cred| self.fs.setattr(cred, ino, handle, &set))?;
            match kept_bits.unwrap_or(attr.perm) & !gone {
                perm if perm == attr.perm => Ok(attr),
                perm => {
                    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
                    self.fs.setattr(&Cred::root(), ino, None, &set)
                }
            }
        };
        let asked = self.writers.asked();
        let result = match fh {
            // A descriptor that is open read-only is truncated in its caller's name: `O_RDONLY | O_TRUNC`.
            Some(fh) if size.is_some() => {
                self.with_handle(fh, |handle| apply(handle.flags.write.then_some(handle)))
            }
            _ => self.guarded(|| apply(None)),
        };
        match result {
            Ok(attr) => {
                let (ttl, told) = self.attr(asked, &attr);
                reply.attr(&ttl, &told);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.guarded(|| self.fs.readlink(Ino(ino.0))) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let asked = self.writers.asked();
        let made = kind_of_mode(mode).and_then(|kind| {
            let node = NewNode { kind, perm: (mode & MODE_BITS) as u16, rdev, target: &[] };
            self.make(request, parent, name, node, umask)
        });
        self.answer_entry(asked, made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let asked = self.writers.asked();
        let node =
            NewNode { kind: FileKind::Directory, perm: (mode & MODE_BITS) as u16, rdev: 0, target: &[] };
        self.answer_entry(asked, self.make(request, parent, name, node, umask), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let asked = self.writers.asked();
        let target = target.as_os_str().as_bytes();
        let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target };
        self.answer_entry(asked, self.make(request, parent, name, node, 0), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let unlink = |cred: &Cred, parent, name: Name<'_>| self.fs.unlink(cred, parent, name);
        answer_empty(self.remove(request, parent, name, unlink), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let rmdir = |cred: &Cred, parent, name: Name<'_>| self.fs.rmdir(cred, parent, name);
        answer_empty(self.remove(request, parent, name, rmdir), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = Name::new(name.as_bytes()).and_then(|name| {
            let mode = rename_mode(flags)?;
            self.remove(request, new_parent, new_name, |cred, new_parent, new_name| {
                self.fs.rename(cred, Ino(parent.0), name, new_parent, new_name, mode)
            })
        });
        answer_empty(renamed, reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let asked = self.writers.asked();
        let linked = self.guarded(|| {
            let name = Name::new(name.as_bytes())?;
            self.as_caller(request, false, |cred| self.fs.link(cred, Ino(ino.0), Ino(parent.0), name))
        });
        self.answer_entry(asked, linked, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let asked = self.writers.asked();
        let created = self.guarded(|| {
            let (name, perm) = (Name::new(name.as_bytes())?, (mode & MODE_BITS) as u16);
            let (attr, handle, made) =
                self.create_or_open(request, Ino(parent.0), name, (perm, umask), flags)?;
            Ok((attr, self.keep(handle, if made { Opening::New } else { Opening::File })?))
        });
        match created {
            Ok((attr, fh)) => {
                let (ttl, told) = self.attr(asked, &attr);
                self.orphans.count_lookup(attr.ino);
                reply.created(&ttl, &told, Generation(attr.generation), fh, FILE_OPEN);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: KernelOpenFlags, reply: ReplyOpen) {
        match self.open_as(request, ino, flags.0, Opening::File) {
            Ok(fh) => reply.opened(fh, FILE_OPEN),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: KernelOpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.release_handle(fh, reply);
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: KernelOpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let len = size as usize;
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            // Calls have a lock owner, pages have none.
            let read = match owner {
                Some(_) => self.read_call(request, fh, offset, &mut buffer[..len]),
                None => self.read_pages(fh, offset, &mut buffer[..len]),
            };
            match read {
                Ok(read) => reply.data(&buffer[..read.min(len)]),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: KernelOpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let from_page_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let written = self.with_open(fh, |open| {
            let handle = &open.handle;
            self.before_write(request, open, write_flags)?;
            let written = match flags.0 & libc::O_APPEND != 0 {
                _ if from_page_cache => self.write_back(handle, offset, data)?,
                true => self.append_past_kernel_pages(handle, data)?,
                false => self.write_past_kernel_pages(handle, offset, data)?,
            };
            // The kernel sets this flag for the file, this call (RWF_DSYNC) or the mount, and sends no fsync afterwards.
            if flags.0 & libc::O_DSYNC != 0 {
                self.fs.fsync(handle, flags.0 & libc::O_SYNC != libc::O_SYNC)?;
            }
            Ok(written)
        });
        match written {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// No write is held back here that a close could report; after this answer the kernel asks no more.
    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, fh: FileHandle, data_only: bool, reply: ReplyEmpty) {
        answer_empty(self.with_handle(fh, |handle| self.fs.fsync(handle, data_only)), reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, flags: KernelOpenFlags, reply: ReplyOpen) {
        match self.open_as(request, ino, flags.0, Opening::Directory) {
            Ok(fh) => reply.opened(fh, FopenFlags::empty()),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.with_handle(fh, |dir| {
            let add = |reply: &mut ReplyDirectory, ino: Ino, at, name: &str| {
                reply.add(INodeNo(ino.0), at, file_type(FileKind::Directory), name)
            };
            let full = offset == 0 && add(&mut reply, dir.ino, 1, ".")
                || offset <= 1 && add(&mut reply, self.above(dir.ino), 2, "..");
            if full {
                return Ok(());
            }
            self.each_entry_until_damage(dir, offset, &mut |entry| {
                let name = OsStr::from_bytes(entry.name.bytes());
                let (ino, at) = (INodeNo(shown_ino(entry.ino).0), place(entry.next));
                Added::unless(reply.add(ino, at, file_type(entry.kind), name))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let asked = self.writers.asked();
        let mut told = Vec::new();
        let listed = self.with_handle(fh, |dir| {
            self.entries_with_attributes(dir, offset, &mut |name, at, attr| {
                let (ino, generation) = (INodeNo(attr.ino.0), Generation(attr.generation));
                let (ttl, shown) = self.attr(asked, attr);
                let full = reply.add(ino, at, OsStr::from_bytes(name), &ttl, &shown, generation);
                told.extend((!full && at > 2).then_some(attr.ino));
                full
            })
        });
        match listed.map(|()| told.into_iter().for_each(|ino| self.orphans.count_lookup(ino))) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: KernelOpenFlags,
        reply: ReplyEmpty,
    ) {
        self.release_handle(fh, reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        answer_empty(self.with_handle(fh, |handle| self.fs.fsync(handle, data_only)), reply);
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.orphans.wait_for_forgets();
        match self.guarded(|| self.fs.statfs()) {
            Ok(s) => reply.statfs(
                s.blocks_total,
                s.blocks_free,
                s.blocks_available,
                s.inodes_total,
                s.inodes_free,
                s.block_size_bytes,
                s.name_max_bytes,
                s.block_size_bytes,
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        input: &[u8],
        _output_size: u32,
        reply: ReplyIoctl,
    ) {
        if command == ioctl::ATTACH {
            return match (&self.attach_ioctl, input.first_chunk()) {
                (Some(attach_ioctl), Some(question)) => {
                    reply.ioctl(0, &attach_ioctl.answer(question, request.pid()))
                }
                _ => reply.error(Errno::ENOTTY),
            };
        }
        let done = match command {
            ioctl::SHUTDOWN if !is_administrator(request.pid()) => Err(Error::NotPermitted),
            ioctl::SHUTDOWN => self.guarded(|| Ok(()).inspect(|()| self.shared.shut_down())),
            ioctl::MAPS => self.maps(Ino(ino.0), fh),
            ioctl::PAST_KERNEL | ioctl::THROUGH_KERNEL => self.announced(command, fh),
            _ => return reply.error(Errno::ENOTTY),
        };
        match done {
            Ok(()) => reply.ioctl(0, &[]),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = range_op(mode).and_then(|op| {
            self.with_open(fh, |open| {
                self.before_content_change(request, open)?;
                self.fallocate_past_kernel_pages(&open.handle, op, offset, length)?;
                self.synced(&open.handle)
            })
        });
        answer_empty(done, reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.seek(fh, offset, whence) {
            Ok(offset) => reply.offset(offset as i64),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        match self.copy(request, (fh_in, offset_in), (fh_out, offset_out), len) {
            Ok(copied) => reply.written(copied),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer_xattr(self.xattr(request, ino, name), size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        answer_xattr(self.xattrs(request, ino), size, reply);
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        answer_empty(self.set_xattr(request, ino, name, value, flags), reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(self.remove_xattr(request, ino, name), reply);
    }
}
