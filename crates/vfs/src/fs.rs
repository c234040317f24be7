//! The interface between engines and front ends.

use crate::planted::{Breach, breaks};
use crate::{
    Attr, Cookie, Cred, DirEntry, Error, FileKind, Handle, Ino, Listing, Name, NewNode, OFFSET_MAX_BYTES,
    OpenFlags, Permission, Result, SetAttr, SetXattr, StatFs, XattrName, room_for,
};

/// The longest copy of one call of [`FileSystem::copy_range`] in bytes, unless an engine allows more.
const COPY_MAX_BYTES: usize = 1 << 20;

/// Bytes that [`FileSystem::each_entry`] reads at a time: the kernel asks a mount for one or two pages of
/// entries, so more would be wasted.
const LOOK_BYTES: usize = 8 << 10;

/// What rename(2) does if the new name exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// Replaces it.
    #[default]
    Replace,
    /// Fails with [`crate::Error::Exists`] (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchanges the two (`RENAME_EXCHANGE`).
    Exchange,
}

/// What fallocate(2) does to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeOp {
    /// Allocates; extends the size unless `keep_size`.
    Allocate {
        /// Leaves the size as it is.
        keep_size: bool,
    },
    /// Makes a hole, the size kept (`FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`).
    Punch,
    /// Makes it read as zeros (`FALLOC_FL_ZERO_RANGE`).
    Zero {
        /// Leaves the size as it is.
        keep_size: bool,
    },
    /// Cuts the range, of whole blocks, out (`FALLOC_FL_COLLAPSE_RANGE`).
    Collapse,
    /// Inserts a hole of whole blocks (`FALLOC_FL_INSERT_RANGE`).
    Insert,
}

/// What lseek(2) looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTarget {
    /// The next data at or after the offset.
    Data,
    /// The next hole at or after the offset; the end of the file counts as one.
    Hole,
}

/// The descriptors that a front end's kernel has of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Openers {
    /// All of them.
    pub open: u32,
    /// Those whose calls a library makes past the kernel.
    pub past_kernel: u32,
}

impl Openers {
    /// Returns true if there are several, and the kernel may serve the calls of one by the size that it has cached.
    pub fn are_others(self) -> bool {
        self.open > 1 && self.past_kernel < self.open
    }

    /// Returns true if a library would like to know whose the others are.
    pub fn are_asked(self) -> bool {
        self.past_kernel > 0 && self.past_kernel < self.open
    }
}

/// A mounted file system.
/// Every call is atomic: every other call, and a recovery after a crash, sees it completely or not at all. An
/// engine's documentation says when a call is durable. The engine checks permissions: on directories that are
/// searched or changed, on open, on attribute changes.
pub trait FileSystem: Send + Sync {
    /// Space and inodes.
    fn statfs(&self) -> Result<StatFs>;

    /// Finds a name in a directory.
    fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr>;

    /// One step of a path walk: the inode of a name, without its attributes, which a walk does not need.
    fn step(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<(Ino, FileKind)> {
        self.lookup(cred, parent, name).map(|attr| (attr.ino, attr.kind))
    }

    /// The parent of a directory; the root is its own parent.
    fn parent(&self, dir: Ino) -> Result<Ino>;

    /// Attributes, as `stat` shows them.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Checks whether the caller may access the inode, as access(2) does: mode and access list decide.
    fn access(&self, cred: &Cred, ino: Ino, want: Permission) -> Result<()> {
        cred.check(&self.getattr(ino)?, want)
    }

    /// Changes attributes. With a `handle` open for writing a change of size needs no write permission
    /// (`ftruncate`). With a handle that is not open for writing it fails with
    /// [`crate::Error::InvalidArgument`], even for root. The ctime changes in any case, even if nothing is
    /// set (chown(2) without an owner).
    fn setattr(&self, cred: &Cred, ino: Ino, handle: Option<&Handle>, set: &SetAttr) -> Result<Attr>;

    /// Makes any file but an open regular one: directories, symbolic links, device files, closed regular
    /// files.
    fn make(&self, cred: &Cred, parent: Ino, name: Name<'_>, node: NewNode<'_>) -> Result<Attr>;

    /// Makes a regular file and opens it; fails with [`crate::Error::Exists`] if the name exists. The new
    /// file is open as `flags` say, whatever `perm` allows. `perm` loses the caller's umask or, as for
    /// [`FileSystem::make`], the bits that the directory's default access list does not grant.
    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)>;

    /// Makes a regular file without a name in the file system of `dir`, and opens it (`O_TMPFILE`). It is
    /// freed with its last handle, unless [`FileSystem::link`] has given it a name; `linkable` tells whether
    /// that is allowed (not with `O_EXCL`). Owner, group and mode are as for a file made in `dir`.
    fn tmpfile(
        &self,
        cred: &Cred,
        dir: Ino,
        perm: u16,
        flags: OpenFlags,
        linkable: bool,
    ) -> Result<(Attr, Handle)> {
        let _ = (cred, dir, perm, flags, linkable);
        Err(Error::NotSupported("files without a name"))
    }

    /// Target of a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Gives an inode other than a directory one more name. An inode that has lost its last name is
    /// [`crate::Error::NotFound`].
    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: Name<'_>) -> Result<Attr>;

    /// Removes a name of an inode other than a directory.
    fn unlink(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()>;

    /// Renames a file or directory.
    fn rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()>;

    /// Opens a regular file or a directory (read only).
    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle>;

    /// Keeps the inode of a name, of any kind, as an open file is kept. The handle has no other use.
    fn hold(&self, parent: Ino, name: Name<'_>) -> Result<Handle> {
        let (ino, _) = self.step(&Cred::root(), parent, name)?;
        self.open(&Cred::root(), ino, OpenFlags::READ)
    }

    /// Closes an open file.
    fn release(&self, handle: Handle);

    /// Reads at `offset` into `buf`; short only at the end of the file.
    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `buf` (at most 2 GiB) at `offset`, or nothing and an error. At the largest file size it
    /// writes as much as fits. On a full image an engine may write a first part into space that the file has,
    /// and return its length. A front end that writes for a caller without privilege clears the set-id bits
    /// with `setattr`; an engine may do so on every write.
    fn write(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize>;

    /// Writes all of `buf` at the end of the file, or nothing and an error. Returns the offset of the write.
    fn append(&self, handle: &Handle, buf: &[u8]) -> Result<u64>;

    /// The same with the rule of write(2): at the largest file size it writes as much as fits. Returns offset
    /// and length.
    fn append_part(&self, handle: &Handle, buf: &[u8]) -> Result<(u64, usize)> {
        let mut part = buf;
        loop {
            match self.append(handle, part) {
                Err(Error::FileTooBig) => {
                    let (end, max) = (self.getattr(handle.ino)?.size_bytes, self.size_max_bytes(handle.ino)?);
                    let room = room_for(end, part.len(), max)?;
                    // Any other limit would be met again and again.
                    if room == part.len() {
                        return Err(Error::FileTooBig);
                    }
                    part = &part[..room];
                }
                done => return done.map(|at| (at, part.len())),
            }
        }
    }

    /// The largest size that this file can have.
    fn size_max_bytes(&self, _ino: Ino) -> Result<u64> {
        Ok(OFFSET_MAX_BYTES)
    }

    /// Makes all writes to this file durable. `data_only` is fdatasync(2).
    fn fsync(&self, handle: &Handle, data_only: bool) -> Result<()>;

    /// Tells the engine that the front end's kernel keeps pages of this file for a mapping from now on
    /// (`keeps`), or no more. Engines that let other processes in past the front end tell those.
    fn note_kernel_pages(&self, _handle: &Handle, _keeps: bool) {}

    /// Tells the engine which descriptors of this file the front end's kernel has, whenever that changes. Engines that let other
    /// processes in past the front end tell those.
    fn note_openers(&self, _handle: &Handle, _openers: Openers) {}

    /// Returns true if this thread, which asks through a mount, is inside a call of the engine that may hold locks of this
    /// inode. A signal handler has interrupted that call, and it goes on only after the request: so the request must not wait
    /// for those locks.
    fn has_interrupted_itself(&self, _thread: u32, _ino: Ino) -> bool {
        false
    }

    /// Tells the engine that the front end's kernel reads these bytes for a mapping to which the handle's
    /// owner may store. The kernel asks nothing when a store happens. If space is short, the engine reserves
    /// a block for each page now.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]: the program gets a signal instead of the page. Any other error concerns
    /// only stores.
    fn expect_stores(&self, _handle: &Handle, _offset: u64, _len_bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Makes all changes durable.
    fn sync(&self) -> Result<()>;

    /// Allocates, punches, zeroes, collapses, inserts.
    fn fallocate(&self, handle: &Handle, op: RangeOp, offset: u64, len_bytes: u64) -> Result<()>;

    /// Copies up to `len_bytes` from one open file to another, or within one. Returns how many. Fewer than
    /// requested is no error, and 0 is the end of the source. The copy is one write of the target and one
    /// read of the source.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] if the ranges overlap in one file; those of read and write.
    fn copy_range(
        &self,
        from: &Handle,
        offset_from: u64,
        to: &Handle,
        offset_to: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let source = self.getattr(from.ino)?;
        if source.kind == FileKind::Directory || self.getattr(to.ino)?.kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        if !from.flags.read || !to.flags.write {
            return Err(Error::BadHandle);
        }
        let len = len_bytes.min(source.size_bytes.saturating_sub(offset_from));
        let len = if breaks(Breach::CopiesShort) && len > 1 { len - 1 } else { len };
        if from.ino == to.ino && offset_from.abs_diff(offset_to) < len {
            return Err(Error::InvalidArgument("the ranges to copy from and to overlap"));
        }
        let mut bytes = vec![0; len.min(COPY_MAX_BYTES as u64) as usize];
        let read = self.read(from, offset_from, &mut bytes)?;
        if read == 0 {
            return Ok(0);
        }
        self.write(to, offset_to, &bytes[..read]).map(|written| written as u64)
    }

    /// Value of an extended attribute.
    fn getxattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let _ = (cred, ino, name);
        Err(Error::NotSupported("extended attributes"))
    }

    /// Sets an extended attribute. An access list also sets the mode; a list that expresses no more than a
    /// mode is not kept.
    fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let _ = (cred, ino, name, value, how);
        Err(Error::NotSupported("extended attributes"))
    }

    /// The names of the extended attributes, each with a NUL behind it; names of `trusted` only for root.
    fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        let _ = (cred, ino);
        Err(Error::NotSupported("extended attributes"))
    }

    /// Removes an extended attribute.
    fn removexattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<()> {
        let _ = (cred, ino, name);
        Err(Error::NotSupported("extended attributes"))
    }

    /// Next data or hole at or after `offset`.
    fn seek(&self, handle: &Handle, target: SeekTarget, offset: u64) -> Result<u64>;

    /// Replaces a listing's content by entries of an open directory from `from` on. It is empty only at the
    /// end of the directory. [`crate::Error::NotDirectory`] for a handle of any other file.
    fn readdir(&self, handle: &Handle, from: Cookie, listing: &mut Listing) -> Result<()>;

    /// Passes the entries of an open directory from `from` on to `each`, until that returns false. `each` may
    /// call the engine.
    fn each_entry(
        &self,
        handle: &Handle,
        mut from: Cookie,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut listing = Listing::with_room(LOOK_BYTES);
        loop {
            self.readdir(handle, from, &mut listing)?;
            if listing.is_empty() {
                return Ok(());
            }
            for entry in listing.entries() {
                from = entry.next;
                if !each(entry) {
                    return Ok(());
                }
            }
        }
    }
}
