//! The interface between engines and front ends.

use crate::planted::{Breach, breaks};
use crate::{
    Attr, Cookie, Cred, DirEntry, Error, FileKind, Handle, Ino, Listing, Name, NewNode, OFFSET_MAX_BYTES,
    OpenFlags, Permission, Result, SetAttr, SetXattr, StatFs, XattrName, room_for,
};

/// Most that one call of [`FileSystem::copy_range`] copies unless an engine does better, in bytes.
const COPY_MAX_BYTES: usize = 1 << 20;

/// What [`FileSystem::each_entry`] reads at a time: the kernel asks a mount for one or two pages of entries, so more would be for nothing.
const LOOK_BYTES: usize = 8 << 10;

/// What rename(2) does when the new name exists.
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

/// A mounted file system.
///
/// Every call is atomic: it is seen whole or not at all by every other call, and after a crash. An engine says in its own
/// documentation when a call is durable; those of `nvmfs` are when it returns. Permission checks are the engine's: on
/// directories that are searched or changed, on open, on attribute changes.
pub trait FileSystem: Send + Sync {
    /// Space and inodes.
    fn statfs(&self) -> Result<StatFs>;

    /// Finds a name in a directory.
    fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr>;

    /// One step of a path walk: what a name means, without its attributes, which a walk does not ask for.
    fn step(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<(Ino, FileKind)> {
        self.lookup(cred, parent, name).map(|attr| (attr.ino, attr.kind))
    }

    /// The directory above this one; the root's is itself.
    fn parent(&self, dir: Ino) -> Result<Ino>;

    /// What `stat` tells.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// May the caller do this to the inode? What access(2) asks; mode and access list decide.
    fn access(&self, cred: &Cred, ino: Ino, want: Permission) -> Result<()> {
        cred.check(&self.getattr(ino)?, want)
    }

    /// Changes attributes. With a `handle` open for writing a size change needs no write permission (`ftruncate`); with
    /// one that is not, it is [`crate::Error::InvalidArgument`], even for root. ctime
    /// changes whatever is set, also if that is nothing (chown(2) to nobody).
    fn setattr(&self, cred: &Cred, ino: Ino, handle: Option<&Handle>, set: &SetAttr) -> Result<Attr>;

    /// Makes anything but an open regular file: directories, symbolic links, device files, closed regular files.
    fn make(&self, cred: &Cred, parent: Ino, name: Name<'_>, node: NewNode<'_>) -> Result<Attr>;

    /// Makes a regular file and opens it; fails with [`crate::Error::Exists`] if the name is taken. The new file is
    /// open as `flags` say, whatever `perm` allows. The caller's umask is taken from `perm`, or, as for
    /// [`FileSystem::make`], what the directory's default access list does not grant.
    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)>;

    /// Makes a regular file without a name in the file system of `dir`, and opens it (`O_TMPFILE`). It is gone with its
    /// last handle, unless [`FileSystem::link`] has given it a name; `linkable` says whether that may be (not with
    /// `O_EXCL`). Owner, group and mode are as if it was made in `dir`.
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

    /// Gives an inode that is not a directory one more name; one that lost its last is [`crate::Error::NotFound`].
    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: Name<'_>) -> Result<Attr>;

    /// Takes a name away from what is not a directory.
    fn unlink(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()>;

    /// Moves a name.
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

    /// Keeps what a name means, of whatever kind, as an open file is kept, with a handle that is good for nothing else.
    fn hold(&self, parent: Ino, name: Name<'_>) -> Result<Handle> {
        let (ino, _) = self.step(&Cred::root(), parent, name)?;
        self.open(&Cred::root(), ino, OpenFlags::READ)
    }

    /// Gives an open file back.
    fn release(&self, handle: Handle);

    /// Reads at `offset` into `buf`; short only at the end of the file.
    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `buf` (at most 2 GiB) at `offset`, or nothing and an error; across the largest size as much as there is room for. On
    /// a full image an engine may write a first part into space that the file has, and say how much. A front end that writes for someone
    /// without privilege takes the set-id bits away with `setattr`; an engine may do so on every write.
    fn write(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize>;

    /// Writes all of `buf` at the end of the file, or nothing and an error; returns the offset it went to.
    fn append(&self, handle: &Handle, buf: &[u8]) -> Result<u64>;

    /// The same as write(2) has it: across the largest size as much as there is room for. Where it went, and how much.
    fn append_part(&self, handle: &Handle, buf: &[u8]) -> Result<(u64, usize)> {
        let mut part = buf;
        loop {
            match self.append(handle, part) {
                Err(Error::FileTooBig) => {
                    let (end, max) = (self.getattr(handle.ino)?.size_bytes, self.size_max_bytes(handle.ino)?);
                    let room = room_for(end, part.len(), max)?;
                    // Another limit than that of the size would be met for ever.
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

    /// Makes what was written to this file durable. `data_only` is fdatasync(2).
    fn fsync(&self, handle: &Handle, data_only: bool) -> Result<()>;

    /// The front end's kernel keeps pages of this file for a mapping from now on (`keeps`), or no more. Engines that let other
    /// processes in past the front end tell them.
    fn note_kernel_pages(&self, _handle: &Handle, _keeps: bool) {}

    /// The front end's kernel reads these bytes for a mapping through which the handle's owner may store to them; the kernel asks nobody
    /// when that happens. Where space is short, the engine makes sure of a block for each page now.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`]: the program gets a signal instead of the page. Another error concerns stores alone.
    fn expect_stores(&self, _handle: &Handle, _offset: u64, _len_bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Makes everything durable.
    fn sync(&self) -> Result<()>;

    /// Allocates, punches, zeroes, collapses, inserts.
    fn fallocate(&self, handle: &Handle, op: RangeOp, offset: u64, len_bytes: u64) -> Result<()>;

    /// Copies up to `len_bytes` from one open file to another, or within one; returns how many. Fewer than asked for is no
    /// error, 0 is the end of the source. What is copied is one write of the target, and one read of the source.
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

    /// Sets an extended attribute. An access list sets the mode with it; one that says no more than a mode is not kept.
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

    /// The names of the extended attributes, each with a NUL behind it; those of `trusted` for root alone.
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

    /// Fills a listing, whatever it held, with entries of an open directory from `from` on; it is empty at the end of the directory, and
    /// there alone. [`crate::Error::NotDirectory`] for a handle of anything else.
    fn readdir(&self, handle: &Handle, from: Cookie, listing: &mut Listing) -> Result<()>;

    /// Gives the entries of an open directory from `from` on to `each` until that returns false. `each` may call the engine.
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
