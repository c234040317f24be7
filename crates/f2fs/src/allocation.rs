//! Allocates and frees inodes.

use crate::change::{Change, Need};
use crate::data::direct_io::WritePath;
use crate::format::{
    EXTRA_ATTR_MAX_BYTES, ExtraAttr, INLINE_XATTR_SLOTS, InodeBlock, feature, inline_flag, node_flag,
};
use crate::ids::{Nid, PageNo};
use crate::image::Media;
use crate::inode::{Inode, ROOT};
use crate::node::inode_of_mut;
use crate::planted::{Breach, breaks};
use crate::times::now;
use crate::xattr::need_of_new;
use heddle_vfs::xattr::Xattrs;
use heddle_vfs::{Cred, FileKind, NewNode, Result, Time, XattrName};
use std::sync::Arc;
use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

/// Properties of a new inode beside those that the caller gives.
pub(crate) struct Birth<'a> {
    pub(crate) above: Nid,
    /// Its name; empty if it has none.
    pub(crate) name: &'a [u8],
    pub(crate) now: Time,
    pub(crate) generation: u32,
}

/// A planned inode: the fields that follow from its maker and its directory.
pub(crate) struct Plan {
    gid: u32,
    perm: u16,
    xattrs: Xattrs,
}

impl Media {
    /// Plans a new inode. Returns the plan and what it needs.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::NoSpace`] if its attributes have no room in any inode.
    pub(crate) fn plan(&self, cred: &Cred, node: &NewNode<'_>, above: &Inode) -> Result<(Plan, Need)> {
        let inherits_group = above.attr().perm & 0o2000 != 0;
        let gid = if inherits_group { above.attr().gid } else { cred.gid };
        let default = self.xattrs(above)?.acl(XattrName::ACL_DEFAULT);
        let (mut perm, xattrs) = Xattrs::for_new(default.as_ref(), cred, node.kind, node.perm & 0o7777);
        match node.kind {
            FileKind::Directory if inherits_group => perm |= 0o2000,
            // No other directory: without an inherited group it is in one of its maker's.
            _ if node.perm & 0o2010 == 0o2010 && !cred.is_root() && !cred.in_group(gid) => perm &= !0o2000,
            _ => {}
        }
        let has_page = matches!(node.kind, FileKind::Directory | FileKind::Symlink);
        let content = Need { pages: u64::from(has_page), ..Need::NONE };
        let need = Need::NODE + content + need_of_new(&xattrs)?;
        Ok((Plan { gid, perm, xattrs }, need))
    }
}

impl Change<'_> {
    /// Makes an inode that has no name yet.
    pub(crate) fn make(
        &self,
        cred: &Cred,
        node: &NewNode<'_>,
        plan: &Plan,
        birth: &Birth<'_>,
    ) -> Result<Nid> {
        let nid = self.take_node(None)?;
        self.begin(nid, node, birth, |inode| {
            inode.mode.set(node.kind.mode_bits() as u16 | plan.perm);
            (inode.uid, inode.gid) = (cred.uid.into(), plan.gid.into());
        });
        self.space()?.since.born(nid);
        self.fill(nid, node, birth.above, &plan.xattrs)?;
        Ok(nid)
    }

    /// Makes the root of a new file system. The caller's user owns it.
    pub(crate) fn make_root(&self) -> Result<()> {
        let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
        self.take_block_of_node(true)?;
        self.begin(ROOT, &node, &Birth { above: ROOT, name: &[], now: now(), generation: 0 }, |inode| {
            inode.mode.set(node.kind.mode_bits() as u16 | node.perm);
            inode.uid.set(rustix::process::geteuid().as_raw());
            inode.gid.set(rustix::process::getegid().as_raw());
        });
        self.fill_dir(ROOT, ROOT)
    }

    /// Fills the inode of a number that was taken for it. `then` sets mode and owner.
    fn begin(&self, nid: Nid, node: &NewNode<'_>, birth: &Birth<'_>, then: impl FnOnce(&mut InodeBlock)) {
        let mut block = Arc::new(crate::format::NodeBlock::new_zeroed());
        if let Some(node_block) = Arc::get_mut(&mut block) {
            let inode = inode_of_mut(node_block);
            self.fill_inode(inode, nid, node, birth);
            then(inode);
        }
        self.nodes.add(nid, block);
    }

    fn fill_inode(&self, inode: &mut InodeBlock, nid: Nid, node: &NewNode<'_>, birth: &Birth<'_>) {
        let is_dir = node.kind == FileKind::Directory;
        inode.inline = inline_flag::XATTR;
        inode.links.set(if is_dir { 2 } else { 1 });
        inode.blocks.set(1);
        set_time(&mut inode.atime, &mut inode.atime_ns, birth.now);
        set_time(&mut inode.mtime, &mut inode.mtime_ns, birth.now);
        set_time(&mut inode.ctime, &mut inode.ctime_ns, birth.now);
        inode.generation.set(birth.generation);
        named(inode, birth.above, birth.name);
        (inode.footer.nid, inode.footer.ino) = (U32::new(nid.0), U32::new(nid.0));
        inode.footer.flag.set(if is_dir { 0 } else { node_flag::COLD });
        let mut extra = 0;
        if self.features & feature::EXTRA_ATTR != 0 {
            inode.inline |= inline_flag::EXTRA_ATTR;
            let mut attr = ExtraAttr::new_zeroed();
            attr.extra_bytes.set(EXTRA_ATTR_MAX_BYTES as u16);
            if self.features & feature::FLEXIBLE_INLINE_XATTR != 0 {
                attr.inline_xattr_slots.set(INLINE_XATTR_SLOTS as u16);
            }
            if self.features & feature::INODE_CRTIME != 0 {
                set_time(&mut attr.crtime, &mut attr.crtime_ns, birth.now);
            }
            inode.addr.as_mut_bytes()[..EXTRA_ATTR_MAX_BYTES].copy_from_slice(attr.as_bytes());
            extra = EXTRA_ATTR_MAX_BYTES / size_of::<U32>();
        }
        if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            // The old form, if the numbers fit it.
            let slot = usize::from(node.rdev > 0xffff);
            inode.addr[extra + slot].set(node.rdev);
        }
    }

    fn fill(&self, nid: Nid, node: &NewNode<'_>, above: Nid, xattrs: &Xattrs) -> Result<()> {
        match node.kind {
            FileKind::Directory => self.fill_dir(nid, above)?,
            FileKind::Symlink => self.write(nid, 0, node.target, WritePath::PageCache)?,
            _ => {}
        }
        if xattrs.is_empty() { Ok(()) } else { self.set_xattrs(&self.inode(nid)?, xattrs) }
    }

    /// Frees an inode without name and handle, with all that belongs to it.
    pub(crate) fn end(&self, nid: Nid) -> Result<()> {
        if breaks(Breach::RemovedStays) {
            return Ok(());
        }
        self.cut_pages(nid, PageNo(0))?;
        let xattrs = Nid(self.inode(nid)?.block().xattr_nid.get());
        if xattrs != Nid::NONE {
            // Only the node itself tells which inode it belongs to.
            self.nodes.get(&self.device, &self.geometry, xattrs, nid)?;
            self.free_node(xattrs, false)?;
        }
        self.free_node(nid, true)
    }
}

/// Notes an inode's name in the inode: recovery names a file by it after an fsync.
pub(crate) fn named(inode: &mut InodeBlock, above: Nid, name: &[u8]) {
    inode.parent.set(above.0);
    inode.name_bytes.set(name.len() as u32);
    inode.name.fill(0);
    inode.name[..name.len()].copy_from_slice(name);
}

/// Stores a time as seconds and nanoseconds.
pub(crate) fn set_time(secs: &mut zerocopy::little_endian::U64, nanos: &mut U32, time: Time) {
    secs.set(time.secs() as u64);
    nanos.set(time.nanos());
}
