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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::write::tests::Scene;
    use crate::format::NodeBlock;

    fn cred(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { uid, gid, groups: groups.to_vec(), umask: 0 }
    }

    fn node(kind: FileKind, perm: u16, rdev: u32) -> NewNode<'static> {
        NewNode { kind, perm, rdev, target: b"target" }
    }

    #[test]
    fn a_new_inode_has_the_group_and_bits_that_its_directory_gives() {
        let scene = Scene::new();
        let media = &scene.fs.media;
        let above = |perm: u16| {
            let set = |block: &mut InodeBlock| {
                block.mode.set(libc::S_IFDIR as u16 | perm);
                block.gid.set(50);
            };
            media.change_inode(ROOT, set).unwrap();
            media.inode(ROOT).unwrap()
        };
        use FileKind::{Directory, Regular, Socket, Symlink};
        for (dir, groups, kind, perm, gid, gets) in [
            (0o755, &[][..], Regular, 0o2771, 8, 0o2771),
            (0o755, &[], Directory, 0o755, 8, 0o755),
            (0o755, &[], Directory, 0o2775, 8, 0o2775),
            (0o2755, &[], Regular, 0o644, 50, 0o644),
            (0o2755, &[], Regular, 0o6771, 50, 0o4771),
            (0o2755, &[], Socket, 0o2771, 50, 0o771),
            (0o2755, &[], Regular, 0o2761, 50, 0o2761),
            (0o2755, &[], Regular, 0o771, 50, 0o771),
            (0o2755, &[50], Regular, 0o2771, 50, 0o2771),
            (0o2755, &[], Directory, 0o755, 50, 0o2755),
            (0o2755, &[], Directory, 0o2775, 50, 0o2775),
            (0o2755, &[], Symlink, 0o777, 50, 0o777),
        ] {
            let (plan, need) = media.plan(&cred(7, 8, groups), &node(kind, perm, 0), &above(dir)).unwrap();
            assert_eq!((plan.gid, plan.perm), (gid, gets), "{kind:?} of mode {perm:o} in {dir:o}");
            let pages = u64::from(matches!(kind, Directory | Symlink));
            assert_eq!(need, Need { pages, nodes: 1, dirty: 0 });
        }
        let (plan, _) = media.plan(&Cred::root(), &node(Regular, 0o2771, 0), &above(0o2755)).unwrap();
        assert_eq!(plan.perm, 0o2771, "root is in every group");
    }

    #[test]
    fn a_new_inode_has_the_form_of_the_images_features() {
        let mut scene = Scene::new();
        let now = Time::from_parts(1_000_000_007, 123);
        let extra = feature::EXTRA_ATTR;
        // Bytes of extra attributes, slots for inline ones, and whether it says when it was made.
        for (features, bytes, slots, has_crtime) in [
            (0, 0, 0, false),
            (feature::FLEXIBLE_INLINE_XATTR | feature::INODE_CRTIME, 0, 0, false),
            (extra, 36, 0, false),
            (extra | feature::FLEXIBLE_INLINE_XATTR, 36, 50, false),
            (extra | feature::INODE_CRTIME, 36, 0, true),
        ] {
            scene.fs.media.features = features;
            let media = &scene.fs.media;
            let (cred, above) = (cred(7, 8, &[]), media.inode(ROOT).unwrap());
            for (kind, rdev, at) in [
                (FileKind::CharDevice, 0x0703, Some((0, 0x0703))),
                (FileKind::BlockDevice, 0xffff, Some((0, 0xffff))),
                (FileKind::BlockDevice, 0x1_0000, Some((1, 0x1_0000))),
                (FileKind::Regular, 5, None),
            ] {
                let node = node(kind, 0o640, rdev);
                let (plan, need) = media.plan(&cred, &node, &above).unwrap();
                let birth = Birth { above: ROOT, name: b"name", now, generation: 99 };
                let nid = media.set_aside(need).unwrap().make(&cred, &node, &plan, &birth).unwrap();
                let inode = media.inode(nid).unwrap();
                let (attr, block) = (inode.attr(), inode.block());
                let flags = inline_flag::XATTR | if bytes > 0 { inline_flag::EXTRA_ATTR } else { 0 };
                assert_eq!((block.inline, block.links.get(), block.blocks.get()), (flags, 1, 1));
                assert_eq!((attr.uid, attr.gid, attr.perm, attr.generation), (7, 8, 0o640, 99));
                assert_eq!([attr.atime, attr.mtime, attr.ctime, attr.crtime], [now; 4]);
                assert_eq!(
                    (block.parent.get(), block.name_bytes.get(), &block.name[..5]),
                    (3, 4, &b"name\0"[..])
                );
                assert_eq!(inode.node().footer.flag.get(), node_flag::COLD);
                let mut wanted = [0_u32; 923];
                if bytes > 0 {
                    wanted[0] = bytes | slots << 16;
                }
                if has_crtime {
                    (wanted[3], wanted[5]) = (1_000_000_007, 123);
                }
                if let Some((slot, number)) = at {
                    wanted[bytes as usize / 4 + slot] = number;
                    assert_eq!(attr.rdev, number);
                }
                assert!(
                    block.addr.iter().map(|slot| slot.get()).eq(wanted),
                    "{kind:?} {rdev:#x}, {features:#x}"
                );
            }
        }
        let flag_of = |nid: Nid| -> u32 {
            let found = scene.fs.media.nodes.inode(&scene.fs.media.device, &scene.fs.media.geometry, nid);
            let node: Arc<NodeBlock> = found.unwrap().unwrap();
            node.footer.flag.get()
        };
        assert_eq!(flag_of(ROOT) & node_flag::COLD, 0, "a directory's node");
    }
}
