//! A [`FileSystem`] behind the kernel's requests: the parts that several requests share.
//!
//! Offsets in a directory are the engine's cookies plus 2; 0 is before `.`, 1 before `..`, 2 before the first
//! entry.

mod kernel_pages;
mod removal;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fuser::{FileAttr, FileHandle, Generation, INodeNo, ReplyEmpty, ReplyEntry, Request};
use heddle_vfs::ioctl::AttachIoctl;
use heddle_vfs::{
    Attr, Cookie, Cred, DirEntry, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, Result,
    Time,
};

use crate::convert::{errno, file_attr};
use crate::handles::{Handles, Marks, Open};
use crate::openers::Openers;
use crate::options::ShownOwner;
use crate::orphans::Orphans;
use crate::pages::Pages;
use crate::shared::Shared;
use crate::writers::{Asked, Writers};

/// Set in the flags of an open that execve(2) makes: the kernel has then checked the right to execute, not
/// the right to read.
const FMODE_EXEC: i32 = 0x20;
/// The size shown for an entry that cannot be looked up. No file has it: the kernel shows such an entry and
/// caches none of its attributes.
const NO_SIZE: u64 = u64::MAX;
/// The inode number shown where none is known. Programs skip entries with number 0, so it is another.
const NO_INO: Ino = Ino(u32::MAX as u64);
/// How often one call that creates or opens a file may find it created by another call and then removed
/// again.
const RACES_MAX: u32 = 10_000;

pub(crate) struct Adapter {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) handles: Arc<Handles>,
    pub(crate) writers: Writers,
    pub(crate) openers: Openers,
    pub(crate) pages: Pages,
    pub(crate) orphans: Orphans,
    pub(crate) shared: Arc<Shared>,
    /// The owner that every file shows, if one is set.
    pub(crate) owner: ShownOwner,
    pub(crate) attach_ioctl: Option<Arc<dyn AttachIoctl>>,
    /// How often this mount has given capabilities to a file.
    pub(crate) capabilities_given: AtomicU64,
    ttl: Duration,
}

impl Adapter {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        ttl: Duration,
        owner: ShownOwner,
        attach_ioctl: Option<Arc<dyn AttachIoctl>>,
        shared: Arc<Shared>,
        handles: Arc<Handles>,
        threads: usize,
    ) -> Adapter {
        let (writers, openers) = (Writers::default(), Openers::default());
        let pages = Pages::new(Arc::clone(&fs), Arc::clone(&shared));
        let (orphans, capabilities_given) = (Orphans::new(threads), AtomicU64::new(0));
        Adapter {
            fs,
            handles,
            writers,
            openers,
            pages,
            orphans,
            shared,
            owner,
            attach_ioctl,
            capabilities_given,
            ttl,
        }
    }

    /// The attributes told to the kernel, and the time for which it may cache them.
    pub(crate) fn attr(&self, asked: Asked, attr: &Attr) -> (Duration, FileAttr) {
        let is_kept = attr.size_bytes != NO_SIZE && self.writers.may_be_kept(attr.ino, asked);
        let ttl = if is_kept { self.ttl } else { Duration::ZERO };
        let mut told = file_attr(attr);
        told.uid = self.owner.uid.unwrap_or(told.uid);
        told.gid = self.owner.gid.unwrap_or(told.gid);
        (ttl, told)
    }

    /// Calls the engine. An answer that cannot be given is an [`Error::Io`].
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.shared.guarded(work)
    }

    /// Fails if the caller's thread has interrupted a call of its own on this file: the request would wait for its locks for
    /// ever.
    pub(crate) fn refuse_if_interrupted(&self, request: &Request, ino: Ino) -> Result<()> {
        match self.fs.has_interrupted_itself(request.pid(), ino) {
            true => Err(Error::WouldDeadlock),
            false => Ok(()),
        }
    }

    pub(crate) fn with_handle<T>(
        &self,
        fh: FileHandle,
        mut work: impl FnMut(&Handle) -> Result<T>,
    ) -> Result<T> {
        self.with_open(fh, |open| work(&open.handle))
    }

    pub(crate) fn with_open<T>(&self, fh: FileHandle, mut work: impl FnMut(&Open) -> Result<T>) -> Result<T> {
        self.guarded(|| self.orphans.with_space(|| self.handles.with(fh.0, &mut work)))
    }

    /// Stores an open file or directory in the handle table.
    pub(crate) fn keep(&self, handle: Handle, what: Opening) -> Result<FileHandle> {
        let mut marks = Marks::default();
        if what != Opening::Directory {
            marks.calls = self.openers.opens(&*self.fs, &handle);
        }
        // Last: the attributes that the kernel gets from now on are those of a file with one more opener.
        if self.writers.opens(&handle) && what != Opening::New {
            self.shared.drop_attributes(handle.ino);
        }
        self.handles.insert(Open { handle, marks }).map(FileHandle).map_err(|open| {
            self.give_back(open);
            Error::NoMemory
        })
    }

    pub(crate) fn release_handle(&self, fh: FileHandle, reply: ReplyEmpty) {
        let done = self.guarded(|| {
            self.give_back(self.handles.remove(fh.0).ok_or(Error::BadHandle)?);
            Ok(())
        });
        answer_empty(done, reply);
    }

    pub(crate) fn give_back(&self, open: Open) {
        self.pages.closes(&open);
        self.writers.closes(&open.handle);
        self.openers.closes(&*self.fs, &open.handle, &open.marks.calls);
        self.fs.release(open.handle);
    }

    pub(crate) fn answer_entry(&self, asked: Asked, result: Result<Attr>, reply: ReplyEntry) {
        match result {
            Ok(attr) => {
                let (ttl, told) = self.attr(asked, &attr);
                self.orphans.count_lookup(attr.ino);
                reply.entry(&ttl, &told, Generation(attr.generation));
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    pub(crate) fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        node: NewNode<'_>,
        umask: u32,
    ) -> Result<Attr> {
        self.guarded(|| {
            let name = Name::new(name.as_bytes())?;
            let group_matters = sets_group_id(node.perm);
            let made = self.as_maker(request, umask, group_matters, |cred| {
                self.fs.make(cred, Ino(parent.0), name, node)
            })?;
            self.owned_as_shown(made)
        })
    }

    /// Creates a file that the kernel has not found. If another call has created it meanwhile and the caller
    /// does not insist on a new file, opens that one. Also returns whether the file was created.
    pub(crate) fn create_or_open(
        &self,
        request: &Request,
        parent: Ino,
        name: Name<'_>,
        (perm, umask): (u16, u32),
        flags: i32,
    ) -> Result<(Attr, Handle, bool)> {
        let open_flags = OpenFlags::from_posix(flags);
        self.as_maker(request, umask, sets_group_id(perm), |cred| {
            for _ in 0..RACES_MAX {
                match self.fs.create(cred, parent, name, perm, open_flags) {
                    Err(Error::Exists) if flags & libc::O_EXCL == 0 => {}
                    Ok((attr, handle)) => return Ok((self.owned_as_shown(attr)?, handle, true)),
                    Err(error) => return Err(error),
                }
                match self.fs.lookup(cred, parent, name) {
                    Ok(attr) => {
                        let handle = self.fs.open(cred, attr.ino, open_flags)?;
                        return Ok((self.fs.getattr(attr.ino)?, handle, false));
                    }
                    Err(Error::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(Error::Stale)
        })
    }

    pub(crate) fn open_as(
        &self,
        request: &Request,
        ino: INodeNo,
        flags: i32,
        what: Opening,
    ) -> Result<FileHandle> {
        self.guarded(|| {
            let open = |cred: &Cred| self.fs.open(cred, Ino(ino.0), OpenFlags::from_posix(flags));
            let handle = if flags & FMODE_EXEC != 0 {
                open(&Cred::root())
            } else {
                self.as_caller(request, false, open)
            };
            self.keep(handle?, what)
        })
    }

    /// The inode number of the parent directory, if it can be found.
    pub(crate) fn above(&self, dir: Ino) -> Ino {
        self.fs.parent(dir).unwrap_or(NO_INO)
    }

    /// Passes entries and attributes from offset `offset` on to `add`, which returns true when the answer is
    /// full. An entry that cannot be looked up is shown with an unknown size: a damaged inode hides no other
    /// name of its directory.
    pub(crate) fn entries_with_attributes(
        &self,
        handle: &Handle,
        offset: u64,
        add: &mut dyn FnMut(&[u8], u64, &Attr) -> bool,
    ) -> Result<()> {
        if offset == 0 && add(b".", 1, &self.fs.getattr(handle.ino)?) {
            return Ok(());
        }
        if offset <= 1 {
            let above = self.fs.parent(handle.ino).and_then(|above| self.fs.getattr(above));
            if add(b"..", 2, &above.unwrap_or_else(|_| unknown(NO_INO, FileKind::Directory))) {
                return Ok(());
            }
        }
        self.each_entry_until_damage(handle, offset, &mut |entry| {
            // By name, not by the entry's inode number: another file may have that number by now.
            let attr = match self.fs.lookup(&Cred::root(), handle.ino, entry.name) {
                Ok(attr) => attr,
                Err(Error::NotFound | Error::Stale) => return Added::Nothing,
                Err(_) => unknown(shown_ino(entry.ino), entry.kind),
            };
            Added::unless(add(entry.name.bytes(), place(entry.next), &attr))
        })
    }

    /// Passes entries from offset `offset` on to `each`. An error after the first entry is left to the next
    /// request, which meets it again: the kernel gives programs no entries of an answer that is an error.
    pub(crate) fn each_entry_until_damage(
        &self,
        handle: &Handle,
        offset: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> Added,
    ) -> Result<()> {
        let mut any = offset <= 1;
        let done = self.fs.each_entry(handle, Cookie(offset.saturating_sub(2)), &mut |entry| {
            let added = each(entry);
            any |= added == Added::Entry;
            added != Added::Full
        });
        if any { Ok(()) } else { done }
    }
}

/// What a call opens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A file that the call has created.
    New,
    /// A file that was there.
    File,
    Directory,
}

/// The effect of one entry on an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    Entry,
    Nothing,
    Full,
}

impl Added {
    pub(crate) fn unless(full: bool) -> Added {
        if full { Added::Full } else { Added::Entry }
    }
}

/// Attributes shown for an entry that cannot be looked up.
fn unknown(ino: Ino, kind: FileKind) -> Attr {
    let never = Time::from_parts(0, 0);
    Attr {
        ino,
        generation: 0,
        kind,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes: NO_SIZE,
        blocks_512: 0,
        atime: never,
        mtime: never,
        ctime: never,
        crtime: never,
    }
}

/// The inode number of an entry, as programs see it.
pub(crate) fn shown_ino(ino: Ino) -> Ino {
    if ino.0 == 0 { NO_INO } else { ino }
}

/// The kernel's offset for a cookie.
pub(crate) fn place(cookie: Cookie) -> u64 {
    cookie.0.min(Cookie::MAX.0) + 2
}

pub(crate) fn sets_group_id(perm: u16) -> bool {
    perm & 0o2000 != 0
}

/// The attributes of a file that a file handle names. A file without a name is stale: if a program had it
/// open, the kernel would know it and not ask.
pub(crate) fn with_a_name(attr: Attr) -> Result<Attr> {
    if attr.nlink == 0 { Err(Error::Stale) } else { Ok(attr) }
}

pub(crate) fn answer_empty(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}
