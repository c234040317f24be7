//! Privileges that a file loses when its content changes: set-id bits, and file capabilities (`security.capability`).
//!
//! Linux's rules apply. A caller without `CAP_FSETID` clears the set-user-id bit. It clears the set-group-id bit, too, unless the group has
//! no right to execute and the caller is in that group. Every caller removes file capabilities.
//!
//! The adapter does this itself for writes, and for the set-group-id bit of a file that its group may not execute. In other cases the
//! kernel sends SETATTR or REMOVEXATTR, with the caller's credentials.

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

/// The attribute that holds file capabilities.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl Adapter {
    /// Removes privileges before the content is changed through this descriptor. Fails if the change would deadlock.
    pub(crate) fn before_content_change(&self, request: &Request, open: &Open) -> Result<()> {
        self.refuse_if_interrupted(request, open.handle.ino)?;
        self.drop_capability(open)?;
        self.drop_set_ids(request, open.handle.ino)
    }

    /// As [`Adapter::before_content_change`], for a write. The kernel's flag says whether set-id bits go. Write-back has no caller: neither
    /// the deadlock check nor the removal of file capabilities applies.
    pub(crate) fn before_write(&self, request: &Request, open: &Open, flags: WriteFlags) -> Result<()> {
        let is_not_write_back = !flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        if is_not_write_back {
            self.refuse_if_interrupted(request, open.handle.ino)?;
        }
        if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.drop_set_ids(request, open.handle.ino)?;
        }
        if is_not_write_back { self.drop_capability(open) } else { Ok(()) }
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
        let group_cannot_execute = attr.perm & GROUP_EXECUTES == 0;
        Ok(if set & SET_GROUP != 0 && group_cannot_execute && member() { set & !SET_GROUP } else { set })
    }

    /// Returns true if the request only clears set-id bits. If the caller is not the owner, the kernel made it on a write or truncation.
    pub(crate) fn only_drops_set_ids(&self, ino: Ino, set: &SetAttr) -> Result<bool> {
        let Some(perm) = set.perm.filter(|perm| *set == SetAttr { perm: Some(*perm), ..SetAttr::default() })
        else {
            return Ok(false);
        };
        let now = self.fs.getattr(ino)?.perm;
        Ok(perm != now && now & !(SET_USER | SET_GROUP) == perm & !(SET_USER | SET_GROUP) && perm & !now == 0)
    }

    /// Removes file capabilities before any caller changes the content through this descriptor.
    pub(crate) fn drop_capability(&self, open: &Open) -> Result<()> {
        if breaks(Breach::CapabilityStays) {
            return Ok(());
        }
        let given = self.capabilities_given.load(SeqCst);
        // Plus 1, because 0 means that this descriptor was not checked yet.
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

    /// Runs `work` as root for `security.*` and `trusted.*`, for which the kernel has checked the caller, else as the caller.
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
