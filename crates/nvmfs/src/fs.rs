//! The engine as a [`FileSystem`]: checks permissions, finds the inode, takes a lane, and calls the layers
//! below.

mod attrs;
mod beside;
mod broken;
mod full;
mod reads;
mod xattrs;

use crate::file::deferred::retry_if_full;
use crate::file::new_blocks::Span;
use crate::file::write_heddle::At;
use crate::file::{range, resize, write_at};
use crate::format::layout::TARGET_BYTES;
use crate::ids::PageNo;
use crate::lane_counters::Kind;
use crate::log::chain;
use crate::names::ops::Remove;
use crate::names::rename::End;
use crate::names::table::Meaning;
use crate::names::{life, ops, rename, table};
use crate::planted::{Breach, breaks};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::{LaneGuard, counted, enter, enter_for};
use crate::state::papers;
use crate::upkeep::{asker, clean};
use crate::xattr::{self, check};
use attrs::checked;
use heddle_arena::sync::spin_hint;
use heddle_vfs::{
    Attr, Cookie, Cred, Error, FileKind, FileSystem, Handle, Ino, Listing, Name, NewNode, OpenFlags, Openers,
    Permission, RangeOp, RenameMode, Result, SeekTarget, SetAttr, SetXattr, StatFs, XattrName,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Longest write, in bytes.
const WRITE_MAX_BYTES: usize = 1 << 31;
/// Number of times that a look-up follows a name whose inode has just died.
const LOOKS_MAX: u32 = 10_000;

/// A mounted NVM file system. Every call is atomic and durable when it returns; [`FileSystem::fsync`] is free. In memory alone is the
/// `ctime` that a file gets when it is linked or renamed, or loses one of its names.
#[derive(Clone)]
pub struct NvmFs {
    pub(crate) core: Arc<Core>,
}

impl NvmFs {
    /// Maps all of the image and of the volatile state in this process at once, instead of at the first
    /// stores to each part (see [`heddle_pmem::Region::map_all`]).
    pub fn map_all(&self) {
        self.core.region.map_all();
        self.core.arena.map_present();
    }

    fn open_inode(&self, handle: &Handle) -> Result<InodeRef<'_>> {
        let inode = self.core.slot(handle.ino).ok_or(Error::BadHandle)?;
        if inode.volatile.generation() == handle.token { Ok(inode) } else { Err(Error::Stale) }
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

    /// `look`: the caller asks for the times.
    fn attr_if(&self, inode: InodeRef<'_>, look: bool) -> Result<Attr> {
        let mut attr = inode.volatile.attr(inode.ino, look).ok_or(Error::Stale)?;
        if attr.kind == FileKind::Directory {
            attr.size_bytes = 4096;
        }
        Ok(attr)
    }

    /// A step that takes longer, or fails.
    #[cold]
    #[inline(never)]
    fn step_again(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<(Ino, FileKind)> {
        let named = ops::look(&self.core, cred, parent, name)?;
        Ok((named.child.ino, named.kind))
    }

    /// Counts a handle of a living inode. Returns the handle's token.
    #[inline]
    fn count_handle(&self, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) -> Result<u64> {
        let generation = inode.volatile.generation();
        let _opening = papers::opening(&self.core, inode);
        life::open(&self.core, guard, inode, generation)?;
        Ok(generation)
    }

    /// As [`NvmFs::count_handle`], but returns a handle.
    fn handle(&self, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, flags: OpenFlags) -> Result<Handle> {
        Ok(Handle { ino: inode.ino, flags, token: self.count_handle(guard, inode)? })
    }

    /// Closes a handle that no caller received. Without a lane (more threads than lanes) it stays counted, as
    /// a released handle does then; the inode is freed at the next mount.
    fn let_go(&self, handle: &Handle) {
        if let Ok(mut guard) = enter(&self.core) {
            self.close(&mut guard, handle);
        }
    }

    fn close(&self, guard: &mut LaneGuard<'_>, handle: &Handle) {
        let Some(inode) = self.core.slot(handle.ino) else { return };
        chain::let_go_of(&self.core, guard.own, guard.id, inode);
        papers::last_close(&self.core, inode);
        life::drop_open(&self.core, guard, inode, handle.token);
    }

    /// Writes `buf`. Returns the offset, and the number of bytes, which is smaller than `buf` only on a full image.
    fn put(&self, handle: &Handle, at: At, buf: &[u8]) -> Result<(u64, usize)> {
        let inode = self.changeable(handle)?;
        if buf.len() > WRITE_MAX_BYTES {
            return Err(Error::InvalidArgument("a write of more than 2 GiB"));
        }
        if buf.is_empty() {
            self.core.still_mounted()?;
            return Ok((if let At::Offset(offset) = at { offset } else { inode.volatile.size() }, 0));
        }
        let mut guard = enter_for(&self.core, Kind::Write)?;
        // Not returned as it is: a value stored in parts and loaded whole waits for the stores to media.
        let (offset, len) = if let Ok(offset) = write_at(&self.core, &mut guard, inode, at, buf) {
            (offset, buf.len())
        } else {
            let retried = self.write_retrying(&mut guard, inode, at, buf);
            clean::after_call(&self.core, &mut guard, retried)?
        };
        clean::after_call(&self.core, &mut guard, Ok(()))?;
        guard.lane.counts.moved(Kind::Write, len as u64);
        Ok((offset, len))
    }
}

impl FileSystem for NvmFs {
    fn statfs(&self) -> Result<StatFs> {
        self.core.still_mounted()?;
        let layout = &self.core.layout;
        let map = self.core.free_map();
        // A call that finds no space can free chunks without inodes.
        let held =
            crate::state::lease::held_blocks(&self.core) + crate::alloc::itable::empty_chunks(&self.core);
        let inodes = layout.chunks_max * crate::format::inode::CHUNK_INODES;
        Ok(StatFs {
            block_size_bytes: heddle_pmem::BLOCK_BYTES as u32,
            blocks_total: layout.blocks_total,
            blocks_free: if breaks(Breach::TakenUntold) { layout.blocks_total } else { map.count() + held },
            blocks_available: map.count_for_data() + held,
            inodes_total: inodes,
            inodes_free: inodes - crate::alloc::itable::in_use(&self.core),
            name_max_bytes: heddle_vfs::NAME_MAX_BYTES as u32,
        })
    }

    fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let _counted = counted(&self.core, Kind::Look)?;
        for _ in 0..LOOKS_MAX {
            let named = ops::look(&self.core, cred, parent, name)?;
            // A path walk passes through a directory; it does not read the directory's times.
            let look = named.kind != FileKind::Directory;
            match ops::child_of(&self.core, &named).and_then(|child| self.attr_if(child, look)) {
                // The inode has died since. After a rename the name leads to another inode.
                Err(Error::Stale) => spin_hint(),
                found => return found,
            }
        }
        Err(Error::Stale)
    }

    // Not counted: a walk is part of the call that follows it.
    fn step(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<(Ino, FileKind)> {
        self.core.still_mounted()?;
        match ops::glance(&self.core, cred, parent, name) {
            Some(meaning) if meaning.is_none() => Err(Error::NotFound),
            found => match found.and_then(Meaning::kind).zip(found) {
                Some((kind, meaning)) => Ok((meaning.ino(), kind)),
                None => self.step_again(cred, parent, name),
            },
        }
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        let inode = self.core.inode(dir)?;
        match inode.volatile.kind_perm() {
            Some((FileKind::Directory, _)) => Ok(Ino(inode.volatile.parent.load(SeqCst))),
            _ => Err(Error::NotDirectory),
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let _counted = counted(&self.core, Kind::Look)?;
        self.attr(self.core.inode(ino)?)
    }

    fn access(&self, cred: &Cred, ino: Ino, want: Permission) -> Result<()> {
        let _counted = counted(&self.core, Kind::Look)?;
        check(&self.core, self.core.inode(ino)?, cred, want)
    }

    fn setattr(&self, cred: &Cred, ino: Ino, handle: Option<&Handle>, set: &SetAttr) -> Result<Attr> {
        let inode = match handle {
            Some(handle) if handle.ino == ino => self.open_inode(handle)?,
            _ => self.core.inode(ino)?,
        };
        self.core.writable()?;
        let new = checked(&self.core, inode, cred, handle, set)?;
        // Even if nothing changes: chown(2) to no owner and no group changes the ctime.
        self.latched(inode, |guard| resize::set_attributes(&self.core, guard, inode, &new))?;
        self.attr(inode)
    }

    fn make(&self, cred: &Cred, parent: Ino, name: Name<'_>, node: NewNode<'_>) -> Result<Attr> {
        if node.kind == FileKind::Symlink && node.target.is_empty() {
            return Err(Error::NotFound);
        }
        let dir = self.changing_directory(cred, parent)?;
        let mut guard = enter_for(&self.core, Kind::Create)?;
        let made = retry_if_full(&self.core, &mut guard, |guard| {
            ops::make(&self.core, guard, cred, dir, name, &node, false)
        });
        let inode = clean::after_call(&self.core, &mut guard, made)?;
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
        let mut guard = enter_for(&self.core, Kind::Create)?;
        let node = NewNode { kind: FileKind::Regular, perm, rdev: 0, target: &[] };
        let made = retry_if_full(&self.core, &mut guard, |guard| {
            ops::make(&self.core, guard, cred, dir, name, &node, true)
        });
        let inode = clean::after_call(&self.core, &mut guard, made)?;
        let handle = Handle { ino: inode.ino, flags, token: inode.volatile.generation() };
        Ok((self.attr(inode)?, handle))
    }

    fn tmpfile(
        &self,
        cred: &Cred,
        dir: Ino,
        perm: u16,
        flags: OpenFlags,
        linkable: bool,
    ) -> Result<(Attr, Handle)> {
        if !flags.write {
            return Err(Error::InvalidArgument("a file without a name is opened for writing"));
        }
        let dir = self.changing_directory(cred, dir)?;
        check(&self.core, dir, cred, Permission::WRITE_EXECUTE)?;
        let mut guard = enter_for(&self.core, Kind::Create)?;
        let made = retry_if_full(&self.core, &mut guard, |guard| {
            life::make_unnamed(&self.core, guard, cred, dir, perm, linkable)
        });
        let inode = clean::after_call(&self.core, &mut guard, made)?;
        let handle = match self.handle(&mut guard, inode, flags) {
            Ok(handle) => handle,
            Err(error) => {
                life::unmake(&self.core, &mut guard, inode);
                return Err(error);
            }
        };
        // From here on only the handle keeps it alive.
        inode.volatile.nlink.store(0, SeqCst);
        // The settler of this lane now frees it only through its handle: it may get a name.
        guard.lane.intent.created();
        Ok((self.attr(inode)?, handle))
    }

    fn getxattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let _counted = counted(&self.core, Kind::Look)?;
        xattrs::get(&self.core, self.core.inode(ino)?, cred, name)
    }

    fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let inode = self.core.inode(ino)?;
        self.core.writable()?;
        self.latched(inode, |guard| xattrs::set(&self.core, guard, inode, cred, name, value, how))
    }

    fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        let _counted = counted(&self.core, Kind::Look)?;
        Ok(xattr::load(&self.core, self.core.inode(ino)?)?.list(cred))
    }

    fn removexattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<()> {
        let inode = self.core.inode(ino)?;
        self.core.writable()?;
        self.latched(inode, |guard| xattrs::remove(&self.core, guard, inode, cred, name))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.core.inode(ino)?;
        match inode.volatile.kind_perm() {
            Some((FileKind::Symlink, _)) => {}
            _ => return Err(Error::InvalidArgument("not a symbolic link")),
        }
        // An attached process can scribble over the size.
        let mut target = vec![0; inode.volatile.size().min(TARGET_BYTES.end) as usize];
        let mut guard = enter_for(&self.core, Kind::Read)?;
        let n = self.get(&mut guard, inode, 0, &mut target)?;
        target.truncate(n);
        Ok(target)
    }

    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let dir = self.changing_directory(cred, parent)?;
        let inode = self.core.inode(ino)?;
        let mut guard = enter_for(&self.core, Kind::Create)?;
        // A file that never had a name must not die between two loads of its count.
        let held = match inode.volatile.linkable() {
            true => Some(self.handle(&mut guard, inode, OpenFlags::default())?),
            false => None,
        };
        let linked =
            retry_if_full(&self.core, &mut guard, |own| ops::link(&self.core, own, cred, inode, dir, name));
        let done = clean::after_call(&self.core, &mut guard, linked).and_then(|()| self.attr(inode));
        drop(guard);
        held.into_iter().for_each(|held| self.let_go(&held));
        done
    }

    fn unlink(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        let dir = self.changing_directory(cred, parent)?;
        let mut guard = enter_for(&self.core, Kind::Remove)?;
        let done = ops::remove(&self.core, &mut guard, cred, dir, name, Remove::File);
        clean::after_call(&self.core, &mut guard, done)
    }

    fn rmdir(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        let dir = self.changing_directory(cred, parent)?;
        let mut guard = enter_for(&self.core, Kind::Remove)?;
        let done = ops::remove(&self.core, &mut guard, cred, dir, name, Remove::Directory);
        clean::after_call(&self.core, &mut guard, done)
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
        let mut guard = enter_for(&self.core, Kind::Rename)?;
        let done = retry_if_full(&self.core, &mut guard, |guard| {
            rename::rename(&self.core, guard, cred, from, to, mode)
        });
        clean::after_call(&self.core, &mut guard, done)
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let inode = self.core.inode(ino)?;
        let (kind, _) = inode.volatile.kind_perm().ok_or(Error::Stale)?;
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
        check(&self.core, inode, cred, Permission(want))?;
        let mut guard = enter_for(&self.core, Kind::Open)?;
        if kind == FileKind::Regular {
            papers::make_locks(&self.core, guard.own, inode)?;
        }
        let token = self.count_handle(&mut guard, inode)?;
        if flags.truncate {
            let cut = attrs::cut_to_nothing(&self.core, cred, &mut guard, inode);
            let cut = clean::after_call(&self.core, &mut guard, cut);
            drop(guard);
            if let Err(error) = cut {
                self.let_go(&Handle { ino, flags, token });
                return Err(error);
            }
        }
        Ok(Handle { ino, flags, token })
    }

    fn hold(&self, parent: Ino, name: Name<'_>) -> Result<Handle> {
        let (ino, kind) = self.step(&Cred::root(), parent, name)?;
        let inode = self.core.inode(ino)?;
        let mut guard = enter(&self.core)?;
        if kind == FileKind::Regular {
            papers::make_locks(&self.core, guard.own, inode)?;
        }
        self.handle(&mut guard, inode, OpenFlags::READ)
    }

    fn release(&self, handle: Handle) {
        if let Ok(mut guard) = enter_for(&self.core, Kind::Close) {
            self.close(&mut guard, &handle);
        }
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if breaks(Breach::ReadsInTwo) {
            return self.read_in_two(handle, offset, buf);
        }
        if breaks(Breach::ReadsAnew) {
            return self.read_anew(handle, offset, buf);
        }
        self.read_part(handle, offset, buf)
    }

    fn write(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        let rest = if breaks(Breach::WritesInTwo) { self.write_half(handle, offset, buf)? } else { 0 };
        self.put(handle, At::Offset(offset + rest as u64), &buf[rest..]).map(|(_, len)| rest + len)
    }

    fn append(&self, handle: &Handle, buf: &[u8]) -> Result<u64> {
        self.put(handle, At::End, buf).map(|(offset, _)| offset)
    }

    fn size_max_bytes(&self, _ino: Ino) -> Result<u64> {
        Ok(self.core.file_bytes_max())
    }

    fn fsync(&self, handle: &Handle, _data_only: bool) -> Result<()> {
        let _counted = counted(&self.core, Kind::Sync)?;
        self.open_inode(handle)?;
        self.core.region.failed().map_or(Ok(()), |e| Err(Error::Io(e.to_string())))
    }

    fn note_kernel_pages(&self, handle: &Handle, keeps: bool) {
        if let Ok(inode) = self.open_inode(handle) {
            inode.volatile.kernel.count_pages(keeps);
        }
    }

    fn note_openers(&self, handle: &Handle, openers: Openers) {
        if let Ok(inode) = self.open_inode(handle) {
            inode.volatile.kernel.note_openers(openers);
        }
    }

    fn has_interrupted_itself(&self, thread: u32, ino: Ino) -> bool {
        asker::has_interrupted_itself(&self.core, thread, ino)
    }

    fn expect_stores(&self, handle: &Handle, offset: u64, len_bytes: u64) -> Result<()> {
        if breaks(Breach::MappedStoreUnchecked) {
            return Ok(());
        }
        let inode = self.changeable(handle)?;
        let span = Span { start: offset, end: inode.volatile.size().min(offset.saturating_add(len_bytes)) };
        if span.start >= span.end
            || range::holes(&self.core, inode, span.first(), span.page_end()) == 0
            || self.core.free_map().has_plenty()
        {
            return Ok(());
        }
        let mut guard = enter_for(&self.core, Kind::Allocate)?;
        let done = retry_if_full(&self.core, &mut guard, |guard| {
            range::give_blocks(&self.core, guard, inode, span, clean::between)
        });
        clean::after_call(&self.core, &mut guard, done)
    }

    fn sync(&self) -> Result<()> {
        self.core.still_mounted()?;
        self.core.region.failed().map_or(Ok(()), |e| Err(Error::Io(e.to_string())))
    }

    fn fallocate(&self, handle: &Handle, op: RangeOp, offset: u64, len_bytes: u64) -> Result<()> {
        if len_bytes == 0 {
            return Err(Error::InvalidArgument("a length of 0"));
        }
        let inode = self.changeable(handle)?;
        let mut guard = enter_for(&self.core, Kind::Allocate)?;
        let done = retry_if_full(&self.core, &mut guard, |guard| {
            range::fallocate(&self.core, guard, inode, op, offset, len_bytes, clean::between)
        });
        clean::after_call(&self.core, &mut guard, done)
    }

    fn seek(&self, handle: &Handle, target: SeekTarget, offset: u64) -> Result<u64> {
        self.core.still_mounted()?;
        let inode = self.open_inode(handle)?;
        if inode.volatile.is_directory() {
            return Err(Error::IsDirectory);
        }
        if PageNo::of(offset) >= PageNo::END {
            return Err(Error::NoSuchOffset);
        }
        range::seek(&self.core, inode, target, offset)
    }

    fn readdir(&self, handle: &Handle, from: Cookie, listing: &mut Listing) -> Result<()> {
        let _counted = counted(&self.core, Kind::List)?;
        let dir = self.open_inode(handle)?;
        if !matches!(dir.volatile.kind_perm(), Some((FileKind::Directory, _))) {
            return Err(Error::NotDirectory);
        }
        table::list(&self.core, dir, from.0, listing)
    }
}

impl NvmFs {
    /// Changes attributes under the EOF latch. The inode is counted as open meanwhile, so that the inode and
    /// the nodes of its range lock stay.
    fn latched(
        &self,
        inode: InodeRef<'_>,
        mut work: impl FnMut(&mut LaneGuard<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut guard = enter_for(&self.core, Kind::Change)?;
        let held = self.handle(&mut guard, inode, OpenFlags::default())?;
        let done = retry_if_full(&self.core, &mut guard, |guard| {
            let _eof = inode.volatile.eof.lock();
            work(guard)
        });
        let done = clean::after_call(&self.core, &mut guard, done);
        drop(guard);
        self.let_go(&held);
        done
    }

    /// A directory that the caller may search; the permission to change it is checked when its entry is
    /// known.
    fn changing_directory(&self, cred: &Cred, ino: Ino) -> Result<InodeRef<'_>> {
        self.core.writable()?;
        ops::directory(&self.core, cred, ino, Permission::EXECUTE)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
