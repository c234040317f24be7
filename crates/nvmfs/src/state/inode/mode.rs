//! One word of an inode: kind, permission bits, device, and flags. It is loaded as a whole, so a check needs
//! one load.

use super::VolatileInode;
use heddle_vfs::FileKind;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Flags beside kind, permissions and device: the inode has an access list; a default list (see `xattr`); may
/// still get its first name; was given capabilities during this mount.
const FLAG_LIST: u64 = 1 << 20;
const FLAG_LINKABLE: u64 = 1 << 22;
const FLAG_CAPABLE: u64 = 1 << 23;
const FLAGS: u64 = FLAG_LIST | FLAG_LIST << 1 | FLAG_LINKABLE | FLAG_CAPABLE;
const SET_IDS: u64 = 0o6000 << 8;

/// Which access list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// The list of the inode itself.
    Access = 0,
    /// The list that a directory passes to new inodes.
    Default = 1,
}

/// The word, as loaded once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(u64);

impl Mode {
    /// Kind and permission bits; `None` if no inode lives here.
    #[inline]
    pub fn kind_perm(self) -> Option<(FileKind, u16)> {
        FileKind::from_raw(self.0 as u8).map(|kind| (kind, self.perm()))
    }

    /// Permission bits.
    #[inline]
    pub fn perm(self) -> u16 {
        (self.0 >> 8) as u16 & 0o7777
    }

    /// Returns true for a directory.
    #[inline]
    pub fn is_directory(self) -> bool {
        self.0 as u8 == FileKind::Directory as u8
    }

    /// Returns true if running the file as a program gives more rights than the caller has. Only capabilities
    /// given since the mount count.
    #[inline]
    pub fn gives_rights(self) -> bool {
        self.0 & (SET_IDS | FLAG_CAPABLE) != 0
    }

    /// Returns true if the inode has this access list.
    #[inline]
    pub fn has_list(self, which: List) -> bool {
        self.0 & FLAG_LIST << which as u32 != 0
    }
}

impl VolatileInode {
    /// Kind, permission bits and flags.
    #[inline]
    pub fn mode(&self) -> Mode {
        // ORDERING: Acquire, attributes may change at any time; the word is whole.
        Mode(self.mode.load(Acquire))
    }

    /// Kind and permission bits; `None` if no inode lives here.
    #[inline]
    pub fn kind_perm(&self) -> Option<(FileKind, u16)> {
        self.mode().kind_perm()
    }

    /// Returns true for a directory.
    pub fn is_directory(&self) -> bool {
        self.mode().is_directory()
    }

    /// Changes kind, permission bits and device, and keeps the flags.
    pub fn set_mode(&self, kind: FileKind, perm: u16, rdev: u32) {
        let new = kind as u64 | u64::from(perm) << 8 | u64::from(rdev) << 32;
        // ORDERING: Release, pairs with `mode`; Relaxed on the loads, which the CAS checks.
        let _always = self.mode.fetch_update(Release, Relaxed, |old| Some(new | old & FLAGS));
    }

    /// Returns true if it has this access list.
    pub fn has_list(&self, which: List) -> bool {
        self.mode().has_list(which)
    }

    /// Sets whether it has this access list.
    pub fn set_has_list(&self, which: List, has: bool) {
        self.set_flag(FLAG_LIST << which as u32, has);
    }

    /// Returns true if it was made without a name and may still get one.
    pub fn linkable(&self) -> bool {
        self.mode().0 & FLAG_LINKABLE != 0
    }

    /// Sets whether it may get its first name.
    pub fn set_linkable(&self, linkable: bool) {
        self.set_flag(FLAG_LINKABLE, linkable);
    }

    /// Sets whether its program has capabilities.
    pub fn set_has_file_capabilities(&self, capable: bool) {
        self.set_flag(FLAG_CAPABLE, capable);
    }

    fn set_flag(&self, flag: u64, on: bool) {
        // ORDERING: Release, pairs with `mode`.
        if on {
            self.mode.fetch_or(flag, Release)
        } else {
            self.mode.fetch_and(!flag, Release)
        };
    }

    /// Device number.
    pub fn rdev(&self) -> u32 {
        (self.mode().0 >> 32) as u32
    }
}
