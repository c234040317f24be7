//! Open files of the model: data, ranges, directory reading.

use super::State;
use super::content::end_of;
use crate::{
    Cookie, Cred, DirEntry, Error, FileKind, Handle, Ino, Listing, Name, OFFSET_MAX_BYTES, OpenFlags,
    Permission, RangeOp, Result, SeekTarget, Time, room_for,
};

impl State {
    pub(super) fn open(&mut self, cred: &Cred, ino: Ino, flags: OpenFlags, now: Time) -> Result<Handle> {
        let inode = self.inode_mut(ino)?;
        let writes = flags.write || flags.truncate;
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory if writes => return Err(Error::IsDirectory),
            FileKind::Directory => {}
            FileKind::Symlink => return Err(Error::Loop),
            _ => return Err(Error::InvalidArgument("devices, pipes and sockets are opened by the kernel")),
        }
        if flags.read {
            inode.check(cred, Permission::READ)?;
        }
        if writes {
            inode.check(cred, Permission::WRITE)?;
        }
        if flags.truncate {
            inode.content_mut()?.set_size(0)?;
            inode.modified(now);
            if !cred.is_root() {
                inode.drop_set_id_bits();
            }
        }
        self.hand_out(ino, flags)
    }

    pub(super) fn hand_out(&mut self, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.inode_mut(ino)?.openers += 1;
        let token = self.next_token;
        self.next_token += 1;
        self.open.insert(token, ino);
        Ok(Handle { ino, flags, token })
    }

    pub(super) fn release(&mut self, handle: Handle) {
        let Ok(ino) = self.opened(&handle) else { return };
        self.open.remove(&handle.token);
        if let Ok(inode) = self.inode_mut(ino) {
            inode.openers -= 1;
        }
        self.drop_if_unused(ino);
    }

    fn writable(&self, handle: &Handle) -> Result<Ino> {
        let ino = self.opened(handle)?;
        if handle.flags.write { Ok(ino) } else { Err(Error::BadHandle) }
    }

    pub(super) fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let ino = self.opened(handle)?;
        if !handle.flags.read {
            return Err(Error::BadHandle);
        }
        Ok(self.inode(ino)?.content()?.read(offset, buf))
    }

    pub(super) fn write(&mut self, handle: &Handle, offset: u64, buf: &[u8], now: Time) -> Result<usize> {
        let ino = self.writable(handle)?;
        let inode = self.inode_mut(ino)?;
        if buf.is_empty() {
            return Ok(0);
        }
        let room = room_for(offset, buf.len(), OFFSET_MAX_BYTES)?;
        inode.content_mut()?.write(offset, &buf[..room])?;
        inode.modified(now);
        Ok(room)
    }

    pub(super) fn append(&mut self, handle: &Handle, buf: &[u8], now: Time) -> Result<u64> {
        let ino = self.writable(handle)?;
        let end = self.inode(ino)?.content()?.size_bytes();
        end_of(end, buf.len() as u64)?;
        self.write(handle, end, buf, now)?;
        Ok(end)
    }

    pub(super) fn fallocate(
        &mut self,
        handle: &Handle,
        op: RangeOp,
        offset: u64,
        len_bytes: u64,
        now: Time,
    ) -> Result<()> {
        if len_bytes == 0 {
            return Err(Error::InvalidArgument("an empty range"));
        }
        let ino = self.writable(handle)?;
        let inode = self.inode_mut(ino)?;
        let content = inode.content_mut()?;
        let end = end_of(offset, len_bytes)?;
        match op {
            RangeOp::Allocate { keep_size } => content.allocate(offset, len_bytes, keep_size)?,
            RangeOp::Punch => content.clear(offset, end),
            RangeOp::Zero { keep_size } => {
                content.clear(offset, end);
                if !keep_size && end > content.size_bytes() {
                    content.set_size(end)?;
                }
            }
            RangeOp::Collapse => content.collapse(offset, len_bytes)?,
            RangeOp::Insert => content.insert(offset, len_bytes)?,
        }
        inode.modified(now);
        Ok(())
    }

    pub(super) fn seek(&self, handle: &Handle, target: SeekTarget, offset: u64) -> Result<u64> {
        let ino = self.opened(handle)?;
        let content = self.inode(ino)?.content()?;
        match target {
            SeekTarget::Data => content.next_data(offset),
            SeekTarget::Hole => content.next_hole(offset),
        }
    }

    pub(super) fn readdir(&self, handle: &Handle, from: Cookie, listing: &mut Listing) -> Result<()> {
        let ino = self.opened(handle)?;
        let directory = self.inode(ino)?.dir()?;
        let mut entries: Vec<_> = directory.entries.iter().filter(|(_, entry)| entry.cookie > from).collect();
        entries.sort_by_key(|(_, entry)| entry.cookie);
        listing.fill(entries.into_iter().map(|(name, entry)| {
            Ok(DirEntry { ino: entry.ino, kind: entry.kind, name: Name::new(name)?, next: entry.cookie })
        }))
    }
}
