//! The engine as a [`FileSystem`]: checks who may, finds the inode, takes a lane, and hands the work to the mechanisms.

use crate::core::Core;
use crate::file::heddle::At;
use crate::file::resize::NewState;
use crate::file::{heddle, paper, range, read, resize};
use crate::ids::PageNo;
use crate::inode::InodeRef;
use crate::lease::{LaneGuard, enter};
use crate::log::chain;
use crate::names::ops::Remove;
use crate::names::rename::End;
use crate::names::{life, ops, rename, table};
use heddle_vfs::{
    Attr, Cookie, Cred, DirEntry, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags,
    Permission, RangeOp, RenameMode, Result, SeekTarget, SetAttr, SetTime, StatFs, Time,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Longest write, in bytes.
const WRITE_MAX_BYTES: usize = 1 << 31;
/// Entries that are taken out of a directory at once.
const LIST_BATCH: usize = 128;

/// A mounted NVM file system. Every call is atomic and durable when it returns; [`FileSystem::fsync`] is free.
#[derive(Clone)]
pub struct NvmFs {
    pub(crate) core: Arc<Core>,
}

impl NvmFs {
    fn open_inode(&self, handle: &Handle) -> Result<InodeRef<'_>> {
        let inode = self.core.slot(handle.ino).ok_or(Error::BadHandle)?;
        if inode.vi.generation() == handle.token { Ok(inode) } else { Err(Error::Stale) }
    }

    fn readable(&self, handle: &Handle) -> Result<InodeRef<'_>> {
        if handle.flags.read { self.open_inode(handle) } else { Err(Error::BadHandle) }
    }

    fn changeable(&self, handle: &Handle) -> Result<InodeRef<'_>> {
        if !handle.flags.write {
            return Err(Error::BadHandle);
        }
        self.core.writable()?;
        self.open_inode(handle)
    }

    fn attr(&self, inode: InodeRef<'_>) -> Result<Attr> {
        self.attr_if(inode, true)
    }

    /// `look`: the times are what is asked for.
    fn attr_if(&self, inode: InodeRef<'_>, look: bool) -> Result<Attr> {
        let mut attr = inode.vi.attr(inode.ino, look).ok_or(Error::Stale)?;
        if attr.kind == FileKind::Directory {
            attr.size_bytes = 4096;
        }
        Ok(attr)
    }

    /// Counts a handle of a living inode.
    fn handle(&self, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, flags: OpenFlags) -> Result<Handle> {
        let generation = inode.vi.generation();
        let _opening = paper::opening(&self.core, inode);
        life::open(&self.core, guard, inode, generation)?;
        Ok(Handle { ino: inode.ino, flags, token: generation })
    }

    /// Does the kernel keep pages of this file, because somebody has mapped it through the mount? Whoever works past the mount
    /// asks before a call, and after a change: a change that the kernel's pages may have missed is made again through the mount
    /// (protocol review, M1).
    pub fn has_kernel_pages(&self, handle: &Handle) -> bool {
        self.core.slot(handle.ino).is_none_or(|inode| inode.vi.has_kernel_pages())
    }

    fn put(&self, handle: &Handle, at: At, buf: &[u8]) -> Result<u64> {
        let inode = self.changeable(handle)?;
        if buf.len() > WRITE_MAX_BYTES {
            return Err(Error::InvalidArgument("a write of more than 2 GiB"));
        }
        if buf.is_empty() {
            return Ok(if let At::Offset(offset) = at { offset } else { inode.vi.size() });
        }
        let mut guard = enter(&self.core)?;
        match self.core.locks {
            None => heddle::write(&self.core, &mut guard, inode, at, buf),
            Some(_) => paper::write(&self.core, &mut guard, inode, at, buf),
        }
    }
}

fn without_set_ids(perm: u16) -> u16 {
    let group = if perm & 0o010 != 0 { 0o2000 } else { 0 };
    perm & !(0o4000 | group)
}

fn time(set: SetTime) -> Time {
    match set {
        SetTime::Now => crate::clock::exact(),
        SetTime::At(at) => at,
    }
}

/// May this caller set these attributes? What he sets them to, after the rules for set-id bits.
fn checked(inode: InodeRef<'_>, cred: &Cred, handle: Option<&Handle>, set: &SetAttr) -> Result<NewState> {
    let (kind, perm) = inode.vi.kind_perm().ok_or(Error::Stale)?;
    let (uid, gid) = inode.vi.owner();
    let owner = cred.is_root() || cred.uid == uid;
    may_set_owner(set, cred, kind, owner, uid, gid)?;
    may_set_times(inode, cred, set, owner)?;
    let mut new = NewState { uid: set.uid, gid: set.gid, size: set.size_bytes, ..NewState::default() };
    let mut bits = perm;
    if let Some(size) = set.size_bytes {
        may_set_size(inode, cred, kind, handle, size)?;
        if !cred.is_root() {
            bits = without_set_ids(bits);
        }
    }
    // Also when root does it, as Linux.
    if (set.uid.is_some() || set.gid.is_some()) && kind != FileKind::Directory {
        bits = without_set_ids(bits);
    }
    if let Some(to) = set.perm {
        let foreign_group = !cred.is_root() && !cred.in_group(set.gid.unwrap_or(gid));
        bits = to & 0o7777 & if foreign_group { !0o2000 } else { !0 };
    }
    new.perm = (bits != perm || set.perm.is_some()).then_some(bits);
    (new.atime, new.mtime) = (set.atime.map(time), set.mtime.map(time));
    Ok(new)
}

fn may_set_owner(set: &SetAttr, cred: &Cred, kind: FileKind, owner: bool, uid: u32, gid: u32) -> Result<()> {
    if set.perm.is_some() {
        if kind == FileKind::Symlink {
            return Err(Error::NotSupported("the mode of a symbolic link"));
        }
        if !owner {
            return Err(Error::NotPermitted);
        }
    }
    let gives_away = set.uid.is_some_and(|to| to != uid || !owner);
    let joins = set.gid.is_some_and(|to| !owner || (to != gid && !cred.in_group(to)));
    if !cred.is_root() && (gives_away || joins) { Err(Error::NotPermitted) } else { Ok(()) }
}

/// Both times to now is touching, which who may write may do; all else is the owner's. With a size it is part of the truncation.
fn may_set_times(inode: InodeRef<'_>, cred: &Cred, set: &SetAttr, owner: bool) -> Result<()> {
    let exact = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
    match (set.atime, set.mtime) {
        _ if owner => Ok(()),
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) => ops::check(inode, cred, Permission::WRITE),
        (atime, mtime) if set.size_bytes.is_some() && !exact(atime) && !exact(mtime) => Ok(()),
        _ => Err(Error::NotPermitted),
    }
}

fn may_set_size(
    inode: InodeRef<'_>,
    cred: &Cred,
    kind: FileKind,
    handle: Option<&Handle>,
    size: u64,
) -> Result<()> {
    if handle.is_some_and(|handle| !handle.flags.write) {
        return Err(Error::InvalidArgument("the file is not open for writing"));
    }
    match kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Error::IsDirectory),
        _ => return Err(Error::InvalidArgument("only regular files have a size to set")),
    }
    if handle.is_none() {
        ops::check(inode, cred, Permission::WRITE)?;
    }
    if size > heddle_vfs::OFFSET_MAX_BYTES { Err(Error::FileTooBig) } else { Ok(()) }
}

impl FileSystem for NvmFs {
    fn statfs(&self) -> Result<StatFs> {
        let layout = &self.core.layout;
        let map = self.core.free_map();
        let held = crate::lease::held_blocks(&self.core);
        let inodes = layout.chunks_max * crate::format::inode::CHUNK_INODES;
        Ok(StatFs {
            block_size_bytes: heddle_pmem::BLOCK_BYTES as u32,
            blocks_total: layout.blocks_total,
            blocks_free: map.count(true) + held,
            blocks_available: map.count(false) + held,
            inodes_total: inodes,
            inodes_free: inodes - crate::itable::in_use(&self.core),
            name_max_bytes: heddle_vfs::NAME_MAX_BYTES as u32,
        })
    }

    fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let dir = ops::directory(&self.core, cred, parent, Permission::EXECUTE)?;
        let key = table::key(&self.core, name.bytes());
        let named = table::find(&self.core, dir, key)?.ok_or(Error::NotFound)?;
        // The name may be gone by now; then so is the lookup's luck.
        let child = ops::child_of(&self.core, &named).map_err(|_| Error::NotFound)?;
        // A path walk goes through a directory; it does not look at its times.
        self.attr_if(child, named.kind != FileKind::Directory)
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        let inode = self.core.inode(dir)?;
        match inode.vi.kind_perm() {
            Some((FileKind::Directory, _)) => Ok(Ino(inode.vi.parent.load(SeqCst))),
            _ => Err(Error::NotDirectory),
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attr(self.core.inode(ino)?)
    }

    fn setattr(&self, cred: &Cred, ino: Ino, handle: Option<&Handle>, set: &SetAttr) -> Result<Attr> {
        let inode = match handle {
            Some(handle) if handle.ino == ino => self.open_inode(handle)?,
            _ => self.core.inode(ino)?,
        };
        self.core.writable()?;
        let new = checked(inode, cred, handle, set)?;
        if new != NewState::default() {
            let mut guard = enter(&self.core)?;
            // Counted as open meanwhile: the inode stays, and so do the nodes of its range lock.
            let held = self.handle(&mut guard, inode, OpenFlags::default())?;
            let done = {
                let _eof = inode.vi.eof.lock();
                resize::set_state(&self.core, &mut guard, inode, &new)
            };
            drop(guard);
            self.release(held);
            done?;
        }
        self.attr(inode)
    }

    fn make(&self, cred: &Cred, parent: Ino, name: Name<'_>, node: NewNode<'_>) -> Result<Attr> {
        if node.kind == FileKind::Symlink && node.target.is_empty() {
            return Err(Error::NotFound);
        }
        let dir = self.changing_directory(cred, parent)?;
        let mut guard = enter(&self.core)?;
        let inode = ops::make(&self.core, &mut guard, cred, dir, name, &node, false)?;
        self.attr(inode)
    }

    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let dir = self.changing_directory(cred, parent)?;
        let mut guard = enter(&self.core)?;
        let node = NewNode { kind: FileKind::Regular, perm, rdev: 0, target: &[] };
        let inode = ops::make(&self.core, &mut guard, cred, dir, name, &node, true)?;
        let handle = Handle { ino: inode.ino, flags, token: inode.vi.generation() };
        Ok((self.attr(inode)?, handle))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.core.inode(ino)?;
        match inode.vi.kind_perm() {
            Some((FileKind::Symlink, _)) => {}
            _ => return Err(Error::InvalidArgument("not a symbolic link")),
        }
        let mut target = vec![0; inode.vi.size() as usize];
        let mut guard = enter(&self.core)?;
        let n = self.get(&mut guard, inode, 0, &mut target)?;
        target.truncate(n);
        Ok(target)
    }

    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let dir = self.changing_directory(cred, parent)?;
        let inode = self.core.inode(ino)?;
        let mut guard = enter(&self.core)?;
        ops::link(&self.core, &mut guard, cred, inode, dir, name)?;
        self.attr(inode)
    }

    fn unlink(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        let dir = self.changing_directory(cred, parent)?;
        let mut guard = enter(&self.core)?;
        ops::remove(&self.core, &mut guard, cred, dir, name, Remove::File)
    }

    fn rmdir(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        let dir = self.changing_directory(cred, parent)?;
        let mut guard = enter(&self.core)?;
        ops::remove(&self.core, &mut guard, cred, dir, name, Remove::Directory)
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
        let from = End { dir: self.changing_directory(cred, parent)?, name };
        let to = End { dir: self.changing_directory(cred, new_parent)?, name: new_name };
        let mut guard = enter(&self.core)?;
        rename::rename(&self.core, &mut guard, cred, from, to, mode)
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let inode = self.core.inode(ino)?;
        let (kind, _) = inode.vi.kind_perm().ok_or(Error::Stale)?;
        match kind {
            FileKind::Regular => {}
            FileKind::Directory if flags.write || flags.truncate => return Err(Error::IsDirectory),
            FileKind::Directory => {}
            FileKind::Symlink => return Err(Error::Loop),
            _ => return Err(Error::InvalidArgument("devices, pipes and sockets are opened by the kernel")),
        }
        if flags.write || flags.truncate {
            self.core.writable()?;
        }
        let mut want = 0;
        want |= if flags.read { Permission::READ.0 } else { 0 };
        want |= if flags.write || flags.truncate { Permission::WRITE.0 } else { 0 };
        ops::check(inode, cred, Permission(want))?;
        let mut guard = enter(&self.core)?;
        if kind == FileKind::Regular {
            paper::make_locks(&self.core, guard.own, inode)?;
        }
        let handle = self.handle(&mut guard, inode, flags)?;
        if flags.truncate {
            let cut = {
                let _eof = inode.vi.eof.lock();
                let perm =
                    inode.vi.kind_perm().map(|(_, perm)| without_set_ids(perm)).filter(|_| !cred.is_root());
                let mtime = Some(crate::clock::exact());
                let new = NewState { size: Some(0), perm, mtime, ..NewState::default() };
                resize::set_state(&self.core, &mut guard, inode, &new)
            };
            if let Err(error) = cut {
                drop(guard);
                self.release(handle);
                return Err(error);
            }
        }
        Ok(handle)
    }

    fn release(&self, handle: Handle) {
        let Some(inode) = self.core.slot(handle.ino) else { return };
        // Without a lane (more threads than lanes) the handle stays counted; the inode is ended at the next mount.
        let Ok(mut guard) = enter(&self.core) else { return };
        chain::let_go_of(&self.core, guard.own, guard.id, inode);
        paper::last_close(&self.core, inode);
        life::drop_open(&self.core, &mut guard, inode, handle.token);
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.readable(handle)?;
        if buf.is_empty() {
            let directory = matches!(inode.vi.kind_perm(), Some((FileKind::Directory, _)));
            return if directory { Err(Error::IsDirectory) } else { Ok(0) };
        }
        let mut guard = enter(&self.core)?;
        self.get(&mut guard, inode, offset, buf)
    }

    fn write(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        self.put(handle, At::Offset(offset), buf).map(|_| buf.len())
    }

    fn append(&self, handle: &Handle, buf: &[u8]) -> Result<u64> {
        self.put(handle, At::End, buf)
    }

    fn fsync(&self, handle: &Handle, _data_only: bool) -> Result<()> {
        self.open_inode(handle)?;
        self.core.region.failed().map_or(Ok(()), |e| Err(Error::Io(e.to_string())))
    }

    fn note_kernel_pages(&self, handle: &Handle, keeps: bool) {
        if let Ok(inode) = self.open_inode(handle) {
            inode.vi.count_kernel_pages(keeps);
        }
    }

    fn sync(&self) -> Result<()> {
        self.core.region.failed().map_or(Ok(()), |e| Err(Error::Io(e.to_string())))
    }

    fn fallocate(&self, handle: &Handle, op: RangeOp, offset: u64, len_bytes: u64) -> Result<()> {
        if len_bytes == 0 {
            return Err(Error::InvalidArgument("a length of 0"));
        }
        let inode = self.changeable(handle)?;
        let mut guard = enter(&self.core)?;
        range::fallocate(&self.core, &mut guard, inode, op, offset, len_bytes)
    }

    fn seek(&self, handle: &Handle, target: SeekTarget, offset: u64) -> Result<u64> {
        let inode = self.open_inode(handle)?;
        if PageNo::of(offset) >= PageNo::END {
            return Err(Error::NoSuchOffset);
        }
        range::seek(&self.core, inode, target, offset)
    }

    fn readdir(
        &self,
        handle: &Handle,
        from: Cookie,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.open_inode(handle)?;
        if !matches!(dir.vi.kind_perm(), Some((FileKind::Directory, _))) {
            return Err(Error::NotDirectory);
        }
        let mut at = from.0;
        let mut batch = table::Batch::default();
        loop {
            // No lane and no lock while the caller's code runs.
            batch.clear();
            table::list(&self.core, dir, at, LIST_BATCH, &mut batch)?;
            let Some(last) = batch.entries.last() else { return Ok(()) };
            at = last.hash + 1;
            for (i, entry) in batch.entries.iter().enumerate() {
                let Ok(name) = Name::new(batch.name(entry)) else {
                    return Err(self.core.damage(format!("a name in directory {}", dir.ino.0)));
                };
                // Entries of one hash share a cookie: stopping between them gives one of them twice rather than none.
                let next_same = batch.entries.get(i + 1).is_some_and(|next| next.hash == entry.hash);
                let next = Cookie(if next_same { entry.hash } else { entry.hash + 1 });
                if !emit(DirEntry { ino: entry.ino, kind: entry.kind, name, next }) {
                    return Ok(());
                }
            }
        }
    }
}

impl NvmFs {
    /// A directory that may be searched; whether it may be changed is asked when it is known what stands there.
    fn changing_directory(&self, cred: &Cred, ino: Ino) -> Result<InodeRef<'_>> {
        self.core.writable()?;
        ops::directory(&self.core, cred, ino, Permission::EXECUTE)
    }

    fn get(
        &self,
        guard: &mut LaneGuard<'_>,
        inode: InodeRef<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        match inode.vi.kind_perm() {
            Some((FileKind::Directory, _)) => return Err(Error::IsDirectory),
            None => return Err(Error::Stale),
            _ => {}
        }
        match self.core.locks {
            None => read::read(&self.core, guard, inode, offset, buf),
            Some(_) => paper::read(&self.core, guard, inode, offset, buf),
        }
    }
}
