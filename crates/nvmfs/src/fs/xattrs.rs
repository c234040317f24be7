//! Extended attributes by name: the rules are those of `heddle_vfs::xattr`; the set is replaced as a whole.

use crate::file::resize::{NewAttributes, set_all};
use crate::planted::{Breach, breaks};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::xattr::{check, load, load_latched};
use heddle_vfs::xattr::{Target, may_get};
use heddle_vfs::{Cred, Error, Permission, Result, SetXattr, XattrName};

const CAPABILITY: &[u8] = b"security.capability";

/// Calls `work` with what the rules look at, of this inode.
fn with_target<T>(
    core: &Core,
    inode: InodeRef<'_>,
    cred: &Cred,
    work: impl FnOnce(Target<'_>) -> Result<T>,
) -> Result<T> {
    let (kind, perm) = inode.volatile.kind_perm().ok_or(Error::Stale)?;
    let check = |want: Permission| check(core, inode, cred, want);
    work(Target { kind, perm, owner: inode.volatile.owner(), check: &check })
}

/// The value of one xattr.
pub fn get(core: &Core, inode: InodeRef<'_>, cred: &Cred, name: XattrName<'_>) -> Result<Vec<u8>> {
    with_target(core, inode, cred, |target| may_get(target, cred, name))?;
    load(core, inode)?.get(name).map(<[u8]>::to_vec)
}

/// Sets one xattr. The caller holds the EOF latch.
pub fn set(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    cred: &Cred,
    name: XattrName<'_>,
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    let mut xattrs = load_latched(core, inode)?;
    let mode_from_acl = with_target(core, inode, cred, |target| xattrs.set(target, cred, name, value, how))?;
    if breaks(Breach::LittleRoomForAttributes) && value.len() > 16 << 10 {
        return Err(Error::NoSpace);
    }
    let new = NewAttributes { perm: mode_from_acl, ..NewAttributes::default() };
    set_all(core, guard, inode, &new, Some(&xattrs))?;
    if name.bytes() == CAPABILITY {
        inode.volatile.set_has_file_capabilities(true);
    }
    Ok(())
}

/// Removes one xattr. The caller holds the EOF latch.
pub fn remove(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    cred: &Cred,
    name: XattrName<'_>,
) -> Result<()> {
    let mut xattrs = load_latched(core, inode)?;
    with_target(core, inode, cred, |target| xattrs.remove(target, cred, name))?;
    set_all(core, guard, inode, &NewAttributes::default(), Some(&xattrs))?;
    if name.bytes() == CAPABILITY {
        inode.volatile.set_has_file_capabilities(false);
    }
    Ok(())
}
