//! Extended attributes of the model.

use super::State;
use super::inode::Inode;
use crate::xattr::{Target, may_get};
use crate::{Cred, Ino, Permission, Result, SetXattr, Time, XattrName};

/// Runs `work` with what the rules look at.
fn with_target<T>(inode: &Inode, cred: &Cred, work: impl FnOnce(Target<'_>) -> T) -> T {
    let check = |want: Permission| inode.check(cred, want);
    work(Target { kind: inode.kind(), perm: inode.perm, owner: (inode.uid, inode.gid), check: &check })
}

impl State {
    pub(super) fn getxattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        with_target(inode, cred, |target| may_get(target, cred, name))?;
        inode.xattrs.get(name).map(<[u8]>::to_vec)
    }

    pub(super) fn setxattr(
        &mut self,
        cred: &Cred,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
        now: Time,
    ) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        let mut xattrs = inode.xattrs.clone();
        let perm = with_target(inode, cred, |target| xattrs.set(target, cred, name, value, how))?;
        inode.perm = perm.unwrap_or(inode.perm);
        (inode.xattrs, inode.ctime) = (xattrs, now);
        Ok(())
    }

    pub(super) fn removexattr(
        &mut self,
        cred: &Cred,
        ino: Ino,
        name: XattrName<'_>,
        now: Time,
    ) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        let mut xattrs = inode.xattrs.clone();
        with_target(inode, cred, |target| xattrs.remove(target, cred, name))?;
        (inode.xattrs, inode.ctime) = (xattrs, now);
        Ok(())
    }
}
