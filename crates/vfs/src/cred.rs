//! The caller's credentials, and what mode bits allow them.

use crate::{Attr, Error, FileKind, Result};

/// Credentials of a caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cred {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits that new files of the caller do not get, unless the directory has a default access
    /// list.
    pub umask: u16,
}

/// The access that a caller wants, as the bits of access(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permission(pub u8);

impl Permission {
    /// Execute a file, or traverse a directory.
    pub const EXECUTE: Permission = Permission(1);
    /// Write.
    pub const WRITE: Permission = Permission(2);
    /// Read.
    pub const READ: Permission = Permission(4);
    /// Change the entries of a directory: write and traverse.
    pub const WRITE_EXECUTE: Permission = Permission(3);
}

impl Cred {
    /// User 0: it passes every check.
    pub fn root() -> Cred {
        Cred { uid: 0, gid: 0, groups: Vec::new(), umask: 0 }
    }

    /// Returns true if the caller is root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns true if the caller is in this group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Checks the mode bits: the owner's if the caller owns the inode, else the group's if the caller is in
    /// it, else the others'.
    ///
    /// # Errors
    /// [`Error::AccessDenied`].
    pub fn check(&self, attr: &Attr, want: Permission) -> Result<()> {
        self.check_mode(attr.kind, attr.perm, attr.uid, attr.gid, want)
    }

    /// [`Cred::check`] on the fields that it needs, for engines without a complete [`Attr`].
    ///
    /// # Errors
    /// [`Error::AccessDenied`].
    #[inline]
    pub fn check_mode(&self, kind: FileKind, perm: u16, uid: u32, gid: u32, want: Permission) -> Result<()> {
        if self.is_root() {
            let executable = kind == FileKind::Directory || perm & 0o111 != 0;
            let denied = want.0 & Permission::EXECUTE.0 != 0 && !executable;
            return if denied { Err(Error::AccessDenied) } else { Ok(()) };
        }
        let shift = if self.uid == uid {
            6
        } else if self.in_group(gid) {
            3
        } else {
            0
        };
        let granted = (perm >> shift) as u8 & 7;
        if granted & want.0 == want.0 { Ok(()) } else { Err(Error::AccessDenied) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(uid: u32, gid: u32, groups: &[u32], perm: u16, want: u8) -> bool {
        let cred = Cred { uid, gid, groups: groups.to_vec(), umask: 0 };
        cred.check_mode(FileKind::Regular, perm, 5, 6, Permission(want)).is_ok()
    }

    #[test]
    fn the_first_class_that_a_caller_is_in_decides() {
        for want in 1..=7_u8 {
            let others = 7 - u16::from(want);
            for (uid, gid, groups, shift) in
                [(5, 6, &[6][..], 6), (9, 6, &[], 3), (9, 9, &[7, 6], 3), (9, 9, &[], 0)]
            {
                let perm = u16::from(want) << shift;
                assert!(may(uid, gid, groups, perm, want), "{want} of {perm:o}");
                let all_but = 0o777 & !(7 << shift) | others << shift;
                assert!(!may(uid, gid, groups, all_but, want), "{want} of {all_but:o}");
            }
        }
    }

    #[test]
    fn root_may_all_but_execute_what_nobody_may() {
        assert!(may(0, 0, &[], 0, 6) && !may(0, 0, &[], 0o666, 1) && !may(0, 0, &[], 0o666, 7));
        assert!([0o100, 0o010, 0o001].iter().all(|perm| may(0, 0, &[], *perm, 1)));
        let pass = Cred::root().check_mode(FileKind::Directory, 0, 5, 6, Permission::WRITE_EXECUTE);
        assert_eq!(pass, Ok(()));
        assert!(Cred::root().is_root() && Cred::root().in_group(0) && !Cred::root().in_group(1));
    }
}
