//! Extended attributes by name: the rules are those of `heddle_vfs::xattr`; the set is replaced as a whole.

use crate::file::resize::{NewAttributes, set_all};
use crate::planted::{Breach, breaks};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::xattr::{check, of, of_latched};
use heddle_vfs::xattr::{Subject, may_get};
use heddle_vfs::{Cred, Error, Permission, Result, SetXattr, XattrName};

const CAPABILITY: &[u8] = b"security.capability";

fn judged<T>(
    core: &Core,
    inode: InodeRef<'_>,
    cred: &Cred,
    work: impl FnOnce(Subject<'_>) -> Result<T>,
) -> Result<T> {
    let (kind, perm) = inode.volatile.kind_perm().ok_or(Error::Stale)?;
    let check = |want: Permission| check(core, inode, cred, want);
    work(Subject { kind, perm, owner: inode.volatile.owner(), check: &check })
}

/// The value of one attribute.
pub fn get(core: &Core, inode: InodeRef<'_>, cred: &Cred, name: XattrName<'_>) -> Result<Vec<u8>> {
    judged(core, inode, cred, |subject| may_get(subject, cred, name))?;
    of(core, inode)?.get(name).map(<[u8]>::to_vec)
}

/// Sets one attribute. The caller holds the EOF latch.
pub fn set(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    cred: &Cred,
    name: XattrName<'_>,
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    let mut xattrs = of_latched(core, inode)?;
    let perm = judged(core, inode, cred, |subject| xattrs.set(subject, cred, name, value, how))?;
    if breaks(Breach::LittleRoomForAttributes) && value.len() > 16 << 10 {
        return Err(Error::NoSpace);
    }
    set_all(core, guard, inode, &NewAttributes { perm, ..NewAttributes::default() }, Some(&xattrs))?;
    if name.bytes() == CAPABILITY {
        inode.volatile.set_capable(true);
    }
    Ok(())
}

/// Removes one attribute. The caller holds the EOF latch.
pub fn remove(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    cred: &Cred,
    name: XattrName<'_>,
) -> Result<()> {
    let mut xattrs = of_latched(core, inode)?;
    judged(core, inode, cred, |subject| xattrs.remove(subject, cred, name))?;
    set_all(core, guard, inode, &NewAttributes::default(), Some(&xattrs))?;
    if name.bytes() == CAPABILITY {
        inode.volatile.set_capable(false);
    }
    Ok(())
}
