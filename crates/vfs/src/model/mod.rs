//! The in-memory model file system: slow, and obviously right. Tests compare every engine with it.
//!
//! State       one `State` under one mutex: inodes by number, open files by token. Inode numbers are never used twice.
//! Invariants  I1  every call runs whole under the mutex, so calls are atomic to each other.
//!             I2  an inode is in the table as long as it has a name or is open.
//!             I3  a file's bytes at and after its size are zero or absent, so that growing shows zeros.
//! Errors      where several apply, the order is Linux': the parent is a directory, it may be searched, the name is
//!             there (or not), the parent may be changed, the sticky bit, the kinds fit, a directory is empty.
//! Source      POSIX.1-2017 and, where it leaves a choice, what Linux does on ext4 and XFS.

mod attrs;
mod content;
mod inode;
#[cfg(test)]
mod linux;
mod names;
mod open;
#[cfg(test)]
mod tests;
mod xattrs;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{
    Attr, Cookie, Cred, Error, FileSystem, Handle, Ino, Listing, NAME_MAX_BYTES, Name, NewNode, OpenFlags,
    Permission, RangeOp, RenameMode, Result, SeekTarget, SetAttr, SetXattr, StatFs, Time, XattrName,
};
use inode::{Body, Directory, Inode};

type Clock = Box<dyn Fn() -> Time + Send + Sync>;

/// The model. Its root directory has mode 0755 and belongs to root.
pub struct ModelFs {
    state: Mutex<State>,
    clock: Clock,
}

struct State {
    inodes: BTreeMap<Ino, Inode>,
    open: BTreeMap<u64, Ino>,
    next_ino: u64,
    next_token: u64,
}

impl ModelFs {
    /// With the system's clock.
    pub fn new() -> ModelFs {
        ModelFs::with_clock(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Time::from_parts(since.as_secs() as i64, since.subsec_nanos())
        })
    }

    /// With a clock of the caller, asked once a call.
    pub fn with_clock(clock: impl Fn() -> Time + Send + Sync + 'static) -> ModelFs {
        let root = Inode::new(Ino::ROOT, Body::Directory(Directory::new(Ino::ROOT)), 0o755, 0, 0, clock());
        let state = State {
            inodes: BTreeMap::from([(Ino::ROOT, root)]),
            open: BTreeMap::new(),
            next_ino: Ino::ROOT.0 + 1,
            next_token: 1,
        };
        ModelFs { state: Mutex::new(state), clock: Box::new(clock) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        (self.clock)()
    }
}

impl Default for ModelFs {
    fn default() -> Self {
        ModelFs::new()
    }
}

impl State {
    fn inode(&self, ino: Ino) -> Result<&Inode> {
        self.inodes.get(&ino).ok_or(Error::Stale)
    }

    fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Error::Stale)
    }

    /// The inode of an open file.
    fn opened(&self, handle: &Handle) -> Result<Ino> {
        self.open.get(&handle.token).copied().filter(|ino| *ino == handle.ino).ok_or(Error::BadHandle)
    }

    /// I2: forgets an inode that has neither name nor opener.
    fn drop_if_unused(&mut self, ino: Ino) {
        let unused = |inode: &Inode| inode.nlink == 0 && inode.openers == 0;
        if self.inodes.get(&ino).is_some_and(unused) {
            self.inodes.remove(&ino);
        }
    }
}

impl FileSystem for ModelFs {
    fn statfs(&self) -> Result<StatFs> {
        const INODES: u64 = 1 << 32;
        let state = self.state();
        let used: u64 = state.inodes.values().map(|inode| inode.attr().blocks_512 / 8).sum();
        let free = content::CAPACITY_PAGES.saturating_sub(used);
        Ok(StatFs {
            block_size_bytes: content::PAGE_BYTES as u32,
            blocks_total: content::CAPACITY_PAGES,
            blocks_free: free,
            blocks_available: free,
            inodes_total: INODES,
            inodes_free: INODES - state.inodes.len() as u64,
            name_max_bytes: NAME_MAX_BYTES as u32,
        })
    }

    fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.state().lookup(cred, parent, name)
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        Ok(self.state().inode(dir)?.dir()?.parent)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.state().inode(ino)?.attr())
    }

    fn access(&self, cred: &Cred, ino: Ino, want: Permission) -> Result<()> {
        self.state().inode(ino)?.check(cred, want)
    }

    fn setattr(&self, cred: &Cred, ino: Ino, handle: Option<&Handle>, set: &SetAttr) -> Result<Attr> {
        let now = self.now();
        self.state().setattr(cred, ino, handle, set, now)
    }

    fn make(&self, cred: &Cred, parent: Ino, name: Name<'_>, node: NewNode<'_>) -> Result<Attr> {
        let now = self.now();
        self.state().make(cred, parent, name, node, now)
    }

    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let now = self.now();
        self.state().create(cred, parent, name, perm, flags, now)
    }

    fn tmpfile(
        &self,
        cred: &Cred,
        dir: Ino,
        perm: u16,
        flags: OpenFlags,
        linkable: bool,
    ) -> Result<(Attr, Handle)> {
        let now = self.now();
        self.state().tmpfile(cred, dir, perm, flags, linkable, now)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.state().inode(ino)?.symlink_target()
    }

    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let now = self.now();
        self.state().link(cred, ino, parent, name, now)
    }

    fn unlink(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        let now = self.now();
        self.state().unlink(cred, parent, name, now)
    }

    fn rmdir(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        let now = self.now();
        self.state().rmdir(cred, parent, name, now)
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
        let now = self.now();
        self.state().rename(cred, (parent, name), (new_parent, new_name), mode, now)
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let now = self.now();
        self.state().open(cred, ino, flags, now)
    }

    fn release(&self, handle: Handle) {
        self.state().release(handle);
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.state().read(handle, offset, buf)
    }

    fn write(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        let now = self.now();
        self.state().write(handle, offset, buf, now)
    }

    fn append(&self, handle: &Handle, buf: &[u8]) -> Result<u64> {
        let now = self.now();
        self.state().append(handle, buf, now)
    }

    fn fsync(&self, handle: &Handle, _data_only: bool) -> Result<()> {
        self.state().opened(handle).map(|_| ())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn fallocate(&self, handle: &Handle, op: RangeOp, offset: u64, len_bytes: u64) -> Result<()> {
        let now = self.now();
        self.state().fallocate(handle, op, offset, len_bytes, now)
    }

    fn getxattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.state().getxattr(cred, ino, name)
    }

    fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let now = self.now();
        self.state().setxattr(cred, ino, name, value, how, now)
    }

    fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.state().inode(ino)?.xattrs.list(cred))
    }

    fn removexattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<()> {
        let now = self.now();
        self.state().removexattr(cred, ino, name, now)
    }

    fn seek(&self, handle: &Handle, target: SeekTarget, offset: u64) -> Result<u64> {
        self.state().seek(handle, target, offset)
    }

    fn readdir(&self, handle: &Handle, from: Cookie, listing: &mut Listing) -> Result<()> {
        self.state().readdir(handle, from, listing)
    }
}
