//! Extended attributes: their names, the permissions they take, and the set of an inode.
//!
//! | name | read by | set by | on |
//! |------|---------|--------|----|
//! | `user.*` | readers of the inode | writers of the inode; in a sticky directory the owner | files, directories |
//! | `trusted.*` | root | root | everything |
//! | `security.*` | everybody | root | everything |
//! | `system.posix_acl_access` | everybody | the owner | everything but symbolic links |
//! | `system.posix_acl_default` | everybody | the owner | directories |
//!
//! Source      xattr(7), and Linux where it says nothing.

use std::collections::BTreeMap;

use crate::acl::Acl;
use crate::planted::{Breach, breaks};
use crate::{Cred, Error, FileKind, Permission, Result};

/// Longest name in bytes, as Linux' `XATTR_NAME_MAX`.
pub const XATTR_NAME_MAX_BYTES: usize = 255;
/// Longest value in bytes, as Linux' `XATTR_SIZE_MAX`.
pub const XATTR_VALUE_MAX_BYTES: usize = 65_536;
/// Most bytes that the names of one inode take, each with its NUL, as Linux' `XATTR_LIST_MAX`: every set can be listed.
pub const XATTR_LIST_MAX_BYTES: usize = 65_536;
/// Most bytes of names and values of one inode.
pub const XATTR_TOTAL_MAX_BYTES: usize = 1 << 20;

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// The rules that a name falls under.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Namespace {
    /// `user.*`
    User,
    /// `trusted.*`
    Trusted,
    /// `security.*`
    Security,
    /// `system.posix_acl_access`
    AclAccess,
    /// `system.posix_acl_default`
    AclDefault,
}

/// A name that attributes can have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct XattrName<'a>(&'a [u8]);

impl<'a> XattrName<'a> {
    /// The access control list of an inode.
    pub const ACL_ACCESS: XattrName<'static> = XattrName(ACL_ACCESS);
    /// The list that a directory hands down.
    pub const ACL_DEFAULT: XattrName<'static> = XattrName(ACL_DEFAULT);

    /// Checks the bytes.
    ///
    /// # Errors
    /// [`Error::Range`] if empty or longer than 255 bytes, [`Error::NotSupported`] outside the namespaces above,
    /// [`Error::InvalidArgument`] with a NUL or with nothing behind the namespace.
    pub fn new(bytes: &'a [u8]) -> Result<XattrName<'a>> {
        if bytes.is_empty() || bytes.len() > XATTR_NAME_MAX_BYTES {
            return Err(Error::Range);
        }
        let name = XattrName(bytes);
        let prefix = match name.find_namespace().ok_or(Error::NotSupported("this namespace of attributes"))? {
            Namespace::User => 5,
            Namespace::Trusted => 8,
            Namespace::Security => 9,
            Namespace::AclAccess | Namespace::AclDefault => 0,
        };
        if bytes.len() == prefix || bytes.contains(&0) {
            return Err(Error::InvalidArgument("an attribute has a name behind its namespace, without NUL"));
        }
        Ok(name)
    }

    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The rules for it.
    pub fn namespace(self) -> Namespace {
        self.find_namespace().unwrap_or(Namespace::Security)
    }

    fn find_namespace(self) -> Option<Namespace> {
        Some(match self.0 {
            ACL_ACCESS => Namespace::AclAccess,
            ACL_DEFAULT => Namespace::AclDefault,
            name if name.starts_with(b"user.") => Namespace::User,
            name if name.starts_with(b"trusted.") => Namespace::Trusted,
            name if name.starts_with(b"security.") => Namespace::Security,
            _ => return None,
        })
    }
}

/// What setxattr(2) does when the attribute exists, or does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetXattr {
    /// Makes or replaces it.
    #[default]
    Any,
    /// Fails with [`Error::Exists`] if it exists (`XATTR_CREATE`).
    Create,
    /// Fails with [`Error::NoAttribute`] if it does not (`XATTR_REPLACE`).
    Replace,
    /// Both: fails with the one error or the other, as every file system of Linux does.
    Never,
}

/// What the rules look at, of an inode.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// Its kind.
    pub kind: FileKind,
    /// Its mode bits.
    pub perm: u16,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Says whether the caller may read or write it.
    pub check: &'a dyn Fn(Permission) -> Result<()>,
}

impl Target<'_> {
    fn owned_by(&self, cred: &Cred) -> bool {
        cred.is_root() || cred.uid == self.owner.0
    }
}

/// May this caller read the attribute?
///
/// # Errors
/// [`Error::NoAttribute`] where the namespace is closed to him or the inode cannot have it, [`Error::AccessDenied`],
/// [`Error::NotSupported`].
pub fn may_get(target: Target<'_>, cred: &Cred, name: XattrName<'_>) -> Result<()> {
    match name.namespace() {
        Namespace::User if !matches!(target.kind, FileKind::Regular | FileKind::Directory) => {
            Err(Error::NoAttribute)
        }
        Namespace::User => (target.check)(Permission::READ),
        Namespace::Trusted if !cred.is_root() => Err(Error::NoAttribute),
        Namespace::AclAccess | Namespace::AclDefault if target.kind == FileKind::Symlink => {
            Err(Error::NotSupported("the access control list of a symbolic link"))
        }
        _ => Ok(()),
    }
}

/// May this caller set or remove the attribute?
fn may_set(target: Target<'_>, cred: &Cred, name: XattrName<'_>) -> Result<()> {
    let sticky = target.kind == FileKind::Directory && target.perm & 0o1000 != 0;
    match name.namespace() {
        Namespace::User if !matches!(target.kind, FileKind::Regular | FileKind::Directory) => {
            Err(Error::NotPermitted)
        }
        Namespace::User if sticky && !target.owned_by(cred) => Err(Error::NotPermitted),
        Namespace::User => (target.check)(Permission::WRITE),
        Namespace::Trusted | Namespace::Security if !cred.is_root() => Err(Error::NotPermitted),
        Namespace::Trusted | Namespace::Security => Ok(()),
        Namespace::AclAccess | Namespace::AclDefault if target.kind == FileKind::Symlink => {
            Err(Error::NotSupported("the access control list of a symbolic link"))
        }
        Namespace::AclDefault if target.kind != FileKind::Directory => Ok(()),
        Namespace::AclAccess | Namespace::AclDefault if !target.owned_by(cred) => Err(Error::NotPermitted),
        Namespace::AclAccess | Namespace::AclDefault => Ok(()),
    }
}

/// The attributes of one inode, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Xattrs(BTreeMap<Vec<u8>, Vec<u8>>);

impl Xattrs {
    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(name, value)| (&name[..], &value[..]))
    }

    /// The value.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    pub fn get(&self, name: XattrName<'_>) -> Result<&[u8]> {
        self.0.get(name.bytes()).map(Vec::as_slice).ok_or(Error::NoAttribute)
    }

    /// Adds an attribute as it is, without any rule but the limits: for code that reads a set back.
    ///
    /// # Errors
    /// [`Error::TooBig`], [`Error::NoSpace`].
    pub fn put(&mut self, name: XattrName<'_>, value: Vec<u8>) -> Result<()> {
        if value.len() > XATTR_VALUE_MAX_BYTES {
            return Err(Error::TooBig);
        }
        let others = || self.0.iter().filter(|(other, _)| other.as_slice() != name.bytes());
        let listed: usize = others().map(|(other, _)| other.len() + 1).sum();
        let total: usize = others().map(|(other, value)| other.len() + value.len()).sum();
        if listed + name.bytes().len() + 1 > XATTR_LIST_MAX_BYTES
            || total + name.bytes().len() + value.len() > XATTR_TOTAL_MAX_BYTES
        {
            return Err(Error::NoSpace);
        }
        self.0.insert(name.bytes().to_vec(), value);
        Ok(())
    }

    /// The names that this caller may know of, each with a NUL behind it.
    pub fn list(&self, cred: &Cred) -> Vec<u8> {
        let hidden = |name: &[u8]| name.starts_with(b"trusted.") && !cred.is_root();
        let mut list = Vec::new();
        for name in self.0.keys().filter(|name| !hidden(name)) {
            list.extend(name);
            list.push(0);
        }
        list
    }

    /// The list under one of the two names of lists; `None` without one.
    pub fn acl(&self, name: XattrName<'static>) -> Option<Acl> {
        Acl::from_xattr(self.0.get(name.bytes())?).ok().flatten()
    }

    /// Sets an attribute in the name of a caller. A list of access is kept as [`Acl`] has it; what it says of the mode is
    /// returned: the mode that the inode must get at the same time.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::AccessDenied`], [`Error::NotSupported`], [`Error::Exists`],
    /// [`Error::NoAttribute`], [`Error::TooBig`], [`Error::NoSpace`]; for lists those of [`Acl::from_xattr`], and
    /// [`Error::AccessDenied`] for a default list of what is no directory.
    pub fn set(
        &mut self,
        target: Target<'_>,
        cred: &Cred,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<Option<u16>> {
        if value.len() > XATTR_VALUE_MAX_BYTES {
            return Err(Error::TooBig);
        }
        // A malformed list is an error before the permission is checked.
        let list = match name.namespace() {
            Namespace::AclAccess | Namespace::AclDefault => Acl::from_xattr(value)?,
            _ => None,
        };
        may_set(target, cred, name)?;
        match name.namespace() {
            Namespace::AclAccess => return self.set_access(target, cred, list),
            Namespace::AclDefault => return self.set_default(target, list).map(|()| None),
            _ => {}
        }
        let how = if breaks(Breach::XattrFlagsIgnored) { SetXattr::Any } else { how };
        match (how, self.0.contains_key(name.bytes())) {
            (SetXattr::Create | SetXattr::Never, true) => return Err(Error::Exists),
            (SetXattr::Replace | SetXattr::Never, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        self.put(name, value.to_vec()).map(|()| None)
    }

    fn set_access(&mut self, target: Target<'_>, cred: &Cred, acl: Option<Acl>) -> Result<Option<u16>> {
        let Some(acl) = acl else {
            self.0.remove(ACL_ACCESS);
            return Ok(None);
        };
        let (bits, mode_is_all) = acl.mode_bits();
        match mode_is_all {
            true => drop(self.0.remove(ACL_ACCESS)),
            false => self.put(XattrName::ACL_ACCESS, acl.to_xattr())?,
        }
        let stranger = !cred.is_root() && !cred.in_group(target.owner.1);
        let kept = if stranger { !0o2777 } else { !0o777 };
        Ok(Some(target.perm & kept | bits))
    }

    fn set_default(&mut self, target: Target<'_>, acl: Option<Acl>) -> Result<()> {
        match acl {
            Some(_) if target.kind != FileKind::Directory => Err(Error::AccessDenied),
            Some(acl) => self.put(XattrName::ACL_DEFAULT, acl.to_xattr()),
            None => {
                self.0.remove(ACL_DEFAULT);
                Ok(())
            }
        }
    }

    /// Takes an attribute away in the name of a caller; a list that is not there is gone already.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::AccessDenied`], [`Error::NotSupported`], [`Error::NoAttribute`].
    pub fn remove(&mut self, target: Target<'_>, cred: &Cred, name: XattrName<'_>) -> Result<()> {
        may_set(target, cred, name)?;
        let list = matches!(name.namespace(), Namespace::AclAccess | Namespace::AclDefault);
        match self.0.remove(name.bytes()) {
            None if !list => Err(Error::NoAttribute),
            _ => Ok(()),
        }
    }

    /// The access list follows a change of mode; false if there is none to follow.
    pub fn follow_mode(&mut self, perm: u16) -> bool {
        let Some(mut acl) = self.acl(XattrName::ACL_ACCESS) else { return false };
        acl.set_mode_bits(perm);
        self.0.insert(ACL_ACCESS.to_vec(), acl.to_xattr());
        true
    }

    /// What something new gets from its directory's default list: mode and attributes. Without a list the caller's umask counts.
    pub fn for_new(default: Option<&Acl>, cred: &Cred, kind: FileKind, perm: u16) -> (u16, Xattrs) {
        let mut xattrs = Xattrs::default();
        if kind == FileKind::Symlink {
            return (0o777, xattrs);
        }
        let Some(default) = default else { return (perm & !(cred.umask & 0o777), xattrs) };
        let (access, mode) = default.for_new(perm);
        if !access.mode_bits().1 {
            xattrs.0.insert(ACL_ACCESS.to_vec(), access.to_xattr());
        }
        if kind == FileKind::Directory {
            xattrs.0.insert(ACL_DEFAULT.to_vec(), default.to_xattr());
        }
        (mode, xattrs)
    }
}

#[cfg(test)]
mod tests;
