//! Privileges that a file loses when its content changes: set-id bits, and the capabilities of its program.
//! Linux's rules apply. A caller without `CAP_FSETID` clears the set-user-id bit. It clears the set-group-id
//! bit, too, unless the group has no right to execute and the caller is in that group. Every caller removes
//! capabilities.
//!
//! The kernel sends requests in the caller's name for some cases, where it has checked the file first. It
//! leaves writes to us, and also the set-group-id bit of a file that its group may not execute.

use std::sync::atomic::Ordering::SeqCst;

use fuser::{Request, WriteFlags};
use heddle_vfs::admin::may_keep_set_ids;
use heddle_vfs::xattr::Namespace;
use heddle_vfs::{Cred, Error, FileKind, Ino, Result, SetAttr, XattrName};

use crate::adapter::Adapter;
use crate::caller::groups_of;
use crate::handles::Open;
use crate::planted::{Breach, breaks};

const SET_USER: u16 = 0o4000;
const SET_GROUP: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o010;

/// The attribute that holds capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl Adapter {
    /// Removes privileges before the content is changed through this descriptor. Fails if the change would deadlock.
    pub(crate) fn content_changes(&self, request: &Request, open: &Open) -> Result<()> {
        self.not_interrupted(request, open.handle.ino)?;
        self.drop_capability(open)?;
        self.drop_set_ids(request, open.handle.ino)
    }

    /// As [`Adapter::content_changes`], for a write: the kernel tells whether set-id bits go, and no caller writes its pages.
    pub(crate) fn write_begins(&self, request: &Request, open: &Open, flags: WriteFlags) -> Result<()> {
        let is_call = !flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        if is_call {
            self.not_interrupted(request, open.handle.ino)?;
        }
        if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.drop_set_ids(request, open.handle.ino)?;
        }
        if is_call { self.drop_capability(open) } else { Ok(()) }
    }

    /// Clears the bits that a change of the content by this caller clears.
    pub(crate) fn drop_set_ids(&self, request: &Request, ino: Ino) -> Result<()> {
        if breaks(Breach::SetIdsStay) {
            return Ok(());
        }
        match self.set_ids_that_go(request, ino)? {
            0 => Ok(()),
            bits => {
                let perm = Some(self.fs.getattr(ino)?.perm & !bits);
                self.fs.setattr(&Cred::root(), ino, None, &SetAttr { perm, ..SetAttr::default() }).map(drop)
            }
        }
    }

    /// The bits that a change of the content, or of the owner, by this caller clears.
    pub(crate) fn set_ids_that_go(&self, request: &Request, ino: Ino) -> Result<u16> {
        let attr = self.fs.getattr(ino)?;
        let set = attr.perm & (SET_USER | SET_GROUP);
        if set == 0 || attr.kind != FileKind::Regular || may_keep_set_ids(request.pid(), request.uid()) {
            return Ok(0);
        }
        let group = self.owner.gid.unwrap_or(attr.gid);
        let member = || request.gid() == group || groups_of(request.pid()).contains(&group);
        let means_nothing = attr.perm & GROUP_EXECUTES == 0;
        Ok(if set & SET_GROUP != 0 && means_nothing && member() { set & !SET_GROUP } else { set })
    }

    /// Returns true if these are the file's permissions without set-id bits. The kernel forwards no chmod(2)
    /// of a user who is not the owner: so this is the kernel clearing the bits, in the name of the caller
    /// that changes the content.
    pub(crate) fn only_drops_set_ids(&self, ino: Ino, set: &SetAttr) -> Result<bool> {
        let Some(perm) = set.perm.filter(|perm| *set == SetAttr { perm: Some(*perm), ..SetAttr::default() })
        else {
            return Ok(false);
        };
        let now = self.fs.getattr(ino)?.perm;
        Ok(perm != now && now & !(SET_USER | SET_GROUP) == perm & !(SET_USER | SET_GROUP) && perm & !now == 0)
    }

    /// Removes capabilities before any caller changes the content through this descriptor.
    pub(crate) fn drop_capability(&self, open: &Open) -> Result<()> {
        if breaks(Breach::CapabilityStays) {
            return Ok(());
        }
        let given = self.capabilities_given.load(SeqCst);
        if open.marks.without_capability.load(SeqCst) == given + 1 {
            return Ok(());
        }
        let name = XattrName::new(CAPABILITY)?;
        match self.fs.getxattr(&Cred::root(), open.handle.ino, name) {
            Ok(_) => return self.fs.removexattr(&Cred::root(), open.handle.ino, name),
            Err(Error::NoAttribute | Error::NotSupported(_)) => {}
            Err(error) => return Err(error),
        }
        open.marks.without_capability.store(given + 1, SeqCst);
        Ok(())
    }

    /// The credentials to set or remove an attribute with. For attributes of its own the kernel has checked
    /// the caller's capabilities, and it removes the file's capabilities in the name of the caller that
    /// changes the content.
    pub(crate) fn as_setter<T>(
        &self,
        request: &Request,
        name: XattrName<'_>,
        work: impl Fn(&Cred) -> Result<T>,
    ) -> Result<T> {
        match name.namespace() {
            Namespace::Security | Namespace::Trusted => work(&Cred::root()),
            // A caller outside the group clears the set-group-id bit by setting an access list.
            namespace => self.as_caller(request, namespace == Namespace::AclAccess, work),
        }
    }
}
