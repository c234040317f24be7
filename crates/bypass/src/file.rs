//! An open file: a real descriptor of the mount, and the engine's handle beside it.
//!
//! State       the engine's handle, opened at first use, and once more in a forked child; and the offset.
//!             The offset is ours until code that knows only the kernel's offset shares it (another program, stdio); then it is the
//!             kernel's for ever. After a fork it is the kernel's until only one of the sharing processes is left.
//!             `append` says whether writes append.
//! Invariants  F1  the kernel's descriptor is open while calls are served here: for it the mount's process keeps the inode, and gives
//!                 the kernel no attributes to keep of a file that is open for writing.
//!             F2  a call that uses the offset holds `lock`, as in the kernel; no lock is needed once the offset is the kernel's for
//!                 ever. What a thread's first call on a file needs of the heap, it has before (`offset`).
//!             F3  an offset comes back only while no fork is under way: an offset given away for a fork stays away until the child
//!                 exists.
//!             F4  no handle is opened if the inode's generation is not the one seen at open(2). Once the mount's process is killed, no
//!                 process keeps the inode for a descriptor of that mount, and another file may have its number.
//! Lock order  `lock` of one file, nothing else.

mod offset;
mod others;
#[cfg(test)]
mod tests;

use crate::append::Append;
use crate::args;
use crate::attach::{Attachment, Hold};
use crate::error::errno_of;
use crate::kernel_stat::KernelStat;
use crate::known_once::KnownOnce;
use crate::lock::Lock;
use crate::number::Number;
use crate::process::process;
use crate::words::StaysShared;
use heddle_nvmfs::{KernelPages, NvmFs};
use heddle_vfs::planted::{Bug, planted};
use heddle_vfs::{
    Cred, Error, FileSystem, Handle, Ino, OpenFlags, RangeOp, SeekTarget, SetAttr, Time, XattrName,
};
use others::Announced;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering::SeqCst};

/// The reason why a call goes to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Passed {
    /// The file is mapped through the mount.
    Mapped,
    /// The kernel has the offset: another process or program, or stdio, shares it.
    KernelOffset,
    /// The engine gave no answer: no lane was free, or it has panicked.
    Engine,
    /// The kernel always makes this call.
    Unserved,
    /// The call comes from a signal handler.
    InHandler,
    /// The kernel must check a limit of the process (`RLIMIT_FSIZE`).
    Limited,
}

/// The outcome of a call.
pub type Served<T> = Result<Result<T, Errno>, Passed>;

/// Set after a panic of the engine: this process does not call it again.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// The engine's handle, with the process that opened it.
struct Opened {
    /// The process that opened it: a forked child has only a copy, which it must not use.
    process: u32,
    handle: Handle,
    pages: KernelPages<'static>,
    at: &'static Attachment,
}

/// An open file (see the module).
pub struct File {
    at: &'static Attachment,
    kernel_stat: KernelStat,
    /// Generation of the inode at open(2) (F4); `None` if the engine could not tell it.
    generation: Option<u64>,
    flags: OpenFlags,
    append: Append,
    announced: Announced,
    opened: AtomicPtr<Opened>,
    lock: Lock,
    offset: AtomicU64,
    /// The side whose offset counts: changed under `lock`.
    whose_offset: AtomicU8,
    /// True if `stat` and the engine agree. They do not where the mount shows another owner.
    stat_is_engines: KnownOnce,
}

impl File {
    /// The file of a descriptor that was just opened with these flags of open(2), at offset 0.
    pub fn new(at: &'static Attachment, kernel_stat: KernelStat, posix_flags: i32) -> File {
        at.prefault();
        let flags = OpenFlags { truncate: false, ..OpenFlags::from_posix(posix_flags) };
        File {
            at,
            kernel_stat,
            generation: generation(at, Ino(kernel_stat.ino)),
            flags,
            append: Append::new(flags.append),
            announced: Announced::new(),
            opened: AtomicPtr::new(std::ptr::null_mut()),
            lock: Lock::new(),
            offset: AtomicU64::new(0),
            whose_offset: AtomicU8::new(offset::OURS),
            stat_is_engines: KnownOnce::new(),
        }
    }

    /// Waits until no thread holds the lock of the offset.
    pub fn wait_until_unlocked(&self) {
        drop(self.lock.hold());
    }

    /// Notes that this process is about to lock or map the file. Returns `None` if no lock through this descriptor keeps anybody out any
    /// more.
    pub fn begin_hold(&self) -> Option<Hold> {
        self.at.begin_hold()
    }

    /// Returns true if a write takes privileges away from the file (set-id bits, capabilities). The mount's
    /// path does that.
    pub fn loses_by_writes(&self) -> bool {
        const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;
        let capable = || {
            let name = XattrName::new(b"security.capability")?;
            self.at.fs().getxattr(&Cred::root(), Ino(self.kernel_stat.ino), name).map(drop)
        };
        self.flags.write
            && (self.kernel_stat.mode & SET_IDS != 0 || guarded(capable).is_ok_and(|found| found.is_ok()))
    }

    /// Reads at `offset`. Refuses, or cuts short where the buffer ends, as the kernel would.
    ///
    /// # Safety
    /// As for read(2): `buf` is valid for writes of `len` bytes.
    #[inline]
    pub unsafe fn read_at(
        &self,
        number: impl Number,
        buf: *mut u8,
        len: usize,
        offset: i64,
    ) -> Served<usize> {
        let Some((from, len)) = args::transfer(buf.addr(), len, offset).filter(|_| self.flags.read) else {
            return Err(Passed::Unserved);
        };
        if len == 0 {
            return args::nothing(buf.addr()).map(Ok).ok_or(Passed::Unserved);
        }
        // SAFETY: the caller's promise; `len` is at most what a slice may have.
        let buf = unsafe { std::slice::from_raw_parts_mut(buf, len) };
        match self.opened()? {
            Ok(opened) => {
                if opened.pages.concern_readers() {
                    self.looks_closer(opened, number)?;
                }
                opened.unless_holds_lost()?;
                self.call(opened, |fs, handle| fs.read(handle, from, buf))
            }
            Err(errno) => Ok(Err(errno)),
        }
    }

    #[cold]
    fn looks_closer(&self, opened: &Opened, number: impl Number) -> Result<(), Passed> {
        if opened.pages.are_asked() {
            self.announce(number);
        }
        if opened.pages.are_kept() { Err(Passed::Mapped) } else { Ok(()) }
    }

    /// Writes at `offset`, or at the end if the file appends. Returns the number of bytes written and the
    /// offset behind them.
    ///
    /// # Safety
    /// As for write(2): `buf` is valid for reads of `len` bytes.
    #[inline]
    pub unsafe fn write_at(
        &self,
        number: impl Number,
        buf: *const u8,
        len: usize,
        offset: i64,
        at_end: bool,
    ) -> Served<(usize, u64)> {
        let Some((to, len)) = args::transfer(buf.addr(), len, offset).filter(|_| self.flags.write) else {
            return Err(Passed::Unserved);
        };
        if len == 0 {
            return args::nothing(buf.addr()).map(|n| Ok((n, to))).ok_or(Passed::Unserved);
        }
        // SAFETY: the caller's promise; `len` is at most what a slice may have.
        let buf = unsafe { std::slice::from_raw_parts(buf, len) };
        let append = at_end || self.append.is_on(number).ok_or(Passed::Unserved)?;
        self.takes_no_rights()?;
        let done = self.engine(|fs, handle| {
            let (at, wrote) = match append {
                true => fs.append_part(handle, buf)?,
                false => (to, fs.write(handle, to, buf)?),
            };
            Ok((wrote, at + wrote as u64))
        })?;
        if let Ok((wrote, end)) = done {
            let buf = &buf[..wrote];
            // A process mapped the file meanwhile, and its pages may lack this write. Repeated through the
            // mount, the write reaches them.
            self.unless_mapped()
                .or_else(|_| self.write_again(number, buf, end - buf.len() as u64, append))?;
            self.tell_others(number, end);
        }
        Ok(done)
    }

    /// As read(2).
    ///
    /// # Safety
    /// As [`File::read_at`].
    pub unsafe fn read(&self, number: impl Number, buf: *mut u8, len: usize) -> Served<usize> {
        // SAFETY: the caller's promise.
        self.read_with(number, |offset| unsafe { self.read_at(number, buf, len, offset) })
    }

    /// As read(2), with a function that reads at an offset. The offset moves when the read has succeeded.
    pub fn read_with(
        &self,
        number: impl Number,
        read_at: impl FnOnce(i64) -> Served<usize>,
    ) -> Served<usize> {
        self.get_ready();
        self.with_offset(number, |offset| Ok(read_at(offset as i64)?.map(|n| (n, offset + n as u64))))
    }

    /// As write(2), or to the end, as with `RWF_APPEND`.
    ///
    /// # Safety
    /// As [`File::write_at`].
    pub unsafe fn write(
        &self,
        number: impl Number,
        buf: *const u8,
        len: usize,
        at_end: bool,
    ) -> Served<usize> {
        self.get_ready();
        let _held = self.lock.hold();
        let kernels = !self.has_offset(number);
        if kernels && !(at_end || self.append.is_on(number) == Some(true)) {
            return Err(Passed::KernelOffset);
        }
        let offset = if kernels { 0 } else { self.offset.load(SeqCst) };
        // Asked once: another process may clear `O_APPEND` at any time, and offset 0 is no place to write to.
        // SAFETY: the caller's promise.
        let done = unsafe { self.write_at(number, buf, len, offset as i64, at_end || kernels) }?;
        Ok(done.map(|(n, end)| {
            match n {
                0 => {}
                // Processes that share the offset find it behind the appended bytes.
                _ if kernels => {
                    let _gone =
                        number.while_ours(|fd| rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(end)));
                }
                _ => self.offset_moves(number, end),
            }
            n
        }))
    }

    /// As lseek(2).
    pub fn seek(&self, number: impl Number, offset: i64, whence: i32) -> Served<u64> {
        if !matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) {
            self.get_ready();
        }
        self.with_offset(number, |now| {
            let base = match whence {
                libc::SEEK_SET => 0,
                libc::SEEK_CUR => now,
                libc::SEEK_END => self.size()?,
                libc::SEEK_DATA | libc::SEEK_HOLE => return self.seek_data(offset, whence),
                _ => return Ok(Err(Errno::INVAL)),
            };
            Ok(args::seek_to(base, offset).map(|to| (to, to)))
        })
    }

    fn seek_data(&self, offset: i64, whence: i32) -> Served<(u64, u64)> {
        let Ok(from) = u64::try_from(offset) else { return Ok(Err(Errno::NXIO)) };
        let target = if whence == libc::SEEK_DATA { SeekTarget::Data } else { SeekTarget::Hole };
        let found = self.engine(|fs, handle| fs.seek(handle, target, from))?;
        Ok(found.map(|at| (at, at)))
    }

    fn size(&self) -> Result<u64, Passed> {
        let attr = self.engine_even_if_mapped(|fs, handle| fs.getattr(handle.ino))?;
        attr.map(|attr| attr.size_bytes).map_err(|_| Passed::Engine)
    }

    /// The attributes that the kernel gave when the file was opened.
    pub fn kernel_stat(&self) -> &KernelStat {
        &self.kernel_stat
    }

    /// Returns true if the file may be read.
    pub fn may_read(&self) -> bool {
        self.flags.read
    }

    /// Returns true if the file may be written.
    pub fn may_write(&self) -> bool {
        self.flags.write
    }

    /// Returns true if writes go to the end of the file.
    pub fn appends(&self, number: impl Number) -> bool {
        self.append.is_on(number) == Some(true)
    }

    /// As fsync(2) and fdatasync(2).
    pub fn sync(&self, data_only: bool) -> Served<()> {
        self.engine(|fs, handle| fs.fsync(handle, data_only))
    }

    /// Succeeds if the kernel keeps no pages of the file: for advice about such pages.
    pub fn unmapped(&self) -> Served<()> {
        self.unless_mapped().map(Ok)
    }

    /// As ftruncate(2).
    pub fn truncate(&self, fd: BorrowedFd<'_>, len: i64) -> Served<()> {
        let Some(size) = u64::try_from(len).ok().filter(|_| self.flags.write) else {
            return Err(Passed::Unserved);
        };
        let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
        self.takes_no_rights()?;
        let done =
            self.engine(|fs, handle| fs.setattr(&Cred::root(), handle.ino, Some(handle), &set).map(drop));
        done.inspect(|_| self.size_to_kernel(fd))
    }

    /// As fallocate(2).
    pub fn allocate(&self, fd: BorrowedFd<'_>, op: RangeOp, offset: i64, len: i64) -> Served<()> {
        let valid = offset >= 0 && len > 0 && offset.checked_add(len).is_some() && self.flags.write;
        let (Ok(offset), Ok(len), true) = (u64::try_from(offset), u64::try_from(len), valid) else {
            return Err(Passed::Unserved);
        };
        self.takes_no_rights()?;
        let done = self.engine(|fs, handle| fs.fallocate(handle, op, offset, len));
        done.inspect(|_| self.size_to_kernel(fd))
    }

    /// Refreshes the kernel's size if a process mapped the file while the size changed (the kernel may have
    /// asked for it before), or if others have the file open.
    fn size_to_kernel(&self, fd: BorrowedFd<'_>) {
        if self.unless_mapped().is_err() {
            KernelStat::refresh(fd);
        }
        self.tell_others_size(fd);
    }

    /// As fstat(2).
    pub fn stat(&self, fd: BorrowedFd<'_>) -> Served<libc::stat> {
        let attr = match self.engine_even_if_mapped(|fs, handle| fs.getattr(handle.ino))? {
            Ok(attr) => attr,
            Err(errno) => return Ok(Err(errno)),
        };
        let shown = || {
            KernelStat::of(fd)
                .is_ok_and(|kernel_stat| (kernel_stat.uid, kernel_stat.gid) == (attr.uid, attr.gid))
        };
        if !self.stat_is_engines.get_or_ask(shown) {
            return Err(Passed::Unserved);
        }
        // SAFETY: plain numbers, for which zero is valid.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        stat.st_dev = self.at.dev;
        stat.st_ino = attr.ino.0;
        stat.st_mode = attr.kind.mode_bits() | u32::from(attr.perm);
        stat.st_nlink = attr.nlink.into();
        stat.st_uid = attr.uid;
        stat.st_gid = attr.gid;
        stat.st_size = attr.size_bytes as i64;
        stat.st_blksize = 4096;
        stat.st_blocks = attr.blocks_512 as i64;
        let parts = |time: Time| (time.secs(), time.nanos().into());
        (stat.st_atime, stat.st_atime_nsec) = parts(attr.atime);
        (stat.st_mtime, stat.st_mtime_nsec) = parts(attr.mtime);
        (stat.st_ctime, stat.st_ctime_nsec) = parts(attr.ctime);
        Ok(Ok(stat))
    }

    /// Records that fcntl(2) has set or cleared `O_APPEND`.
    pub fn set_append(&self, append: bool) {
        self.append.set(append);
    }

    /// Resets the file in a forked child: the parent's threads do not exist here, and its handle is not the
    /// child's.
    ///
    /// # Safety
    /// No other thread exists.
    pub unsafe fn forked(&self) {
        self.lock.reset();
    }

    /// Keeps other processes that share the offset from taking it back until the result is dropped. The caller keeps this file open
    /// meanwhile.
    pub fn stays_shared(&self) -> Option<StaysShared> {
        self.append.stays_shared()
    }

    /// Lets other processes that share the offset have it: no thread uses the file, and the last descriptor of this process is closed.
    pub fn end_sharing(&self) {
        self.append.close();
    }

    /// Closes the file: the last descriptor of this process is closed.
    pub fn close(self) {
        self.end_sharing();
        let opened = self.opened.swap(std::ptr::null_mut(), SeqCst);
        let ours = |opened: &Opened| opened.process == process() || planted(Bug::ClosesForOthers);
        // SAFETY: null, or made by `open` and freed only here.
        if !unsafe { opened.as_ref() }.is_some_and(ours) {
            // The parent opened this handle, and closes it.
            return;
        }
        // SAFETY: the pointer came from `Box::into_raw` and was taken out above.
        let opened = unsafe { Box::from_raw(opened) };
        self.release(opened.handle);
    }

    /// Fails if a change would take privileges away that the file got since it was opened: the mount's path
    /// does that.
    #[inline]
    fn takes_no_rights(&self) -> Result<(), Passed> {
        match self.opened()? {
            Ok(opened) if opened.pages.changes_take_rights() => Err(Passed::Unserved),
            _ => Ok(()),
        }
    }

    fn unless_mapped(&self) -> Result<(), Passed> {
        self.opened()?.map_or(Ok(()), Opened::unless_mapped)
    }

    #[inline]
    fn engine<T>(&self, call: impl FnOnce(&NvmFs, &Handle) -> heddle_vfs::Result<T>) -> Served<T> {
        match self.opened()? {
            Ok(opened) => {
                opened.unless_mapped()?;
                self.call(opened, call)
            }
            Err(errno) => Ok(Err(errno)),
        }
    }

    fn engine_even_if_mapped<T>(
        &self,
        call: impl FnOnce(&NvmFs, &Handle) -> heddle_vfs::Result<T>,
    ) -> Served<T> {
        match self.opened()? {
            Ok(opened) => self.call(opened, call),
            Err(errno) => Ok(Err(errno)),
        }
    }

    #[inline]
    fn call<T>(
        &self,
        opened: &Opened,
        call: impl FnOnce(&NvmFs, &Handle) -> heddle_vfs::Result<T>,
    ) -> Served<T> {
        match guarded(|| call(self.at.fs(), &opened.handle))? {
            Ok(done) => Ok(Ok(done)),
            Err(error) => refused(&error),
        }
    }

    /// The handle that the engine gave this very process.
    #[inline]
    fn opened(&self) -> Served<&Opened> {
        match self.opened_here() {
            Some(opened) => Ok(Ok(opened)),
            None => self.open(),
        }
    }

    #[inline]
    fn opened_here(&self) -> Option<&Opened> {
        // SAFETY: null, or freed only by `close`, which takes the file by value.
        unsafe { self.opened.load(SeqCst).as_ref() }.filter(|opened| opened.process == process())
    }

    #[cold]
    fn open(&self) -> Served<&Opened> {
        self.at.prefault();
        // The kernel has checked the permission.
        let handle =
            match guarded(|| self.at.fs().open(&Cred::root(), Ino(self.kernel_stat.ino), self.flags))? {
                Ok(handle) => handle,
                Err(Error::NotPermitted | Error::AccessDenied) => return Ok(Err(Errno::ACCESS)),
                Err(_) => return Err(Passed::Engine),
            };
        // F4: while the handle is open, the number means this inode.
        if self.generation.is_none() || self.generation != generation(self.at, handle.ino) {
            self.release(handle);
            return Err(Passed::Engine);
        }
        let Ok(Ok(Some(pages))) = guarded(|| Ok(self.at.fs().kernel_pages(&handle))) else {
            self.release(handle);
            return Err(Passed::Engine);
        };
        let fresh = Box::into_raw(Box::new(Opened { process: process(), handle, pages, at: self.at }));
        loop {
            // A parent's handle stays in the parent: its box here is a copy, which is left alone.
            let old = self.opened.load(SeqCst);
            if let Some(opened) = self.opened_here() {
                // Another thread was first.
                // SAFETY: no other thread has seen this pointer.
                self.release(unsafe { Box::from_raw(fresh) }.handle);
                return Ok(Ok(opened));
            }
            if self.opened.compare_exchange(old, fresh, SeqCst, SeqCst).is_ok() {
                // SAFETY: freed only by `close`, which takes the file by value.
                return Ok(Ok(unsafe { &*fresh }));
            }
        }
    }

    fn release(&self, handle: Handle) {
        // A panic is recorded. The engine reclaims a handle that is not closed.
        let _given_back = guarded(|| {
            self.at.fs().release(handle);
            Ok(())
        });
    }

    /// Repeats a finished write through the mount, so that the kernel drops its pages of that range.
    fn write_again(
        &self,
        number: impl Number,
        mut buf: &[u8],
        mut at: u64,
        append: bool,
    ) -> Result<(), Passed> {
        let _gone = number.while_ours(|fd| {
            if append {
                // The mount would append. An appended write has no old page in the kernel but the rest of the last one.
                KernelStat::refresh(fd);
                return;
            }
            while let Ok(n @ 1..) = rustix::io::pwrite(fd, buf, at) {
                (buf, at) = (&buf[n..], at + n as u64);
            }
        });
        Ok(())
    }
}

impl Opened {
    #[inline]
    fn unless_mapped(&self) -> Result<(), Passed> {
        if self.pages.are_kept() { Err(Passed::Mapped) } else { self.unless_holds_lost() }
    }

    #[inline]
    fn unless_holds_lost(&self) -> Result<(), Passed> {
        if self.at.has_lost_holds() { Err(Passed::Engine) } else { Ok(()) }
    }
}

fn generation(at: &Attachment, ino: Ino) -> Option<u64> {
    guarded(|| at.fs().getattr(ino)).ok()?.ok().map(|attr| attr.generation)
}

#[cold]
fn refused<T>(error: &Error) -> Served<T> {
    match error {
        // No lane was free, or the handle is no longer valid: the kernel's answer counts. If there is no
        // space, the mount knows of space that is about to become free.
        Error::NoMemory | Error::Stale | Error::BadHandle | Error::NoSpace => Err(Passed::Engine),
        // Only the kernel knows how many bytes count of a buffer that is partly bad.
        Error::BadBuffer => Err(Passed::Unserved),
        error => Ok(Err(errno_of(error))),
    }
}

#[inline]
fn guarded<T>(call: impl FnOnce() -> heddle_vfs::Result<T>) -> Result<heddle_vfs::Result<T>, Passed> {
    if BROKEN.load(SeqCst) {
        return Err(Passed::Engine);
    }
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| {
        BROKEN.store(true, SeqCst);
        Passed::Engine
    })
}
