//! One word of an inode: its kind, its permission bits, its device, and flags. It is read whole, so that a check needs one look.

use super::VInode;
use heddle_vfs::FileKind;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bits beside kind, permissions and device: has it an access list, a default list (see `xattr`), may it still get its first name, was it
/// given capabilities by this mount?
const FLAG_LIST: u64 = 1 << 20;
const FLAG_LINKABLE: u64 = 1 << 22;
const FLAG_CAPABLE: u64 = 1 << 23;
const FLAGS: u64 = FLAG_LIST | FLAG_LIST << 1 | FLAG_LINKABLE | FLAG_CAPABLE;
const SET_IDS: u64 = 0o6000 << 8;

/// Which access list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// Of the inode itself.
    Access = 0,
    /// What a directory hands down.
    Default = 1,
}

/// The word as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(u64);

impl Mode {
    /// Kind and permission bits; `None` if nothing lives here.
    #[inline]
    pub fn kind_perm(self) -> Option<(FileKind, u16)> {
        FileKind::from_raw(self.0 as u8).map(|kind| (kind, self.perm()))
    }

    /// Permission bits.
    #[inline]
    pub fn perm(self) -> u16 {
        (self.0 >> 8) as u16 & 0o7777
    }

    /// Is it a directory's?
    #[inline]
    pub fn is_directory(self) -> bool {
        self.0 as u8 == FileKind::Directory as u8
    }

    /// Does its program have more rights than who runs it? Of capabilities only those count that were given since the image was mounted.
    #[inline]
    pub fn gives_rights(self) -> bool {
        self.0 & (SET_IDS | FLAG_CAPABLE) != 0
    }

    /// Has the inode this access list?
    #[inline]
    pub fn has_list(self, which: List) -> bool {
        self.0 & FLAG_LIST << which as u32 != 0
    }
}

impl VInode {
    /// Kind, permission bits and flags.
    #[inline]
    pub fn mode(&self) -> Mode {
        // ORDERING: Acquire, attributes may change at any time; the word is whole.
        Mode(self.mode.load(Acquire))
    }

    /// Kind and permission bits; `None` if nothing lives here.
    #[inline]
    pub fn kind_perm(&self) -> Option<(FileKind, u16)> {
        self.mode().kind_perm()
    }

    /// Is it a directory?
    pub fn is_directory(&self) -> bool {
        self.mode().is_directory()
    }

    /// Changes kind, permission bits and device; the inode's flags stay.
    pub fn set_mode(&self, kind: FileKind, perm: u16, rdev: u32) {
        let new = kind as u64 | u64::from(perm) << 8 | u64::from(rdev) << 32;
        // ORDERING: Release, pairs with `mode`; Relaxed on the loads, which the CAS checks.
        let _always = self.mode.fetch_update(Release, Relaxed, |old| Some(new | old & FLAGS));
    }

    /// Has it this access list?
    pub fn has_list(&self, which: List) -> bool {
        self.mode().has_list(which)
    }

    /// Says whether it has this access list.
    pub fn set_has_list(&self, which: List, has: bool) {
        self.set_flag(FLAG_LIST << which as u32, has);
    }

    /// Was it made without a name, and may it get one?
    pub fn linkable(&self) -> bool {
        self.mode().0 & FLAG_LINKABLE != 0
    }

    /// Changes that.
    pub fn set_linkable(&self, linkable: bool) {
        self.set_flag(FLAG_LINKABLE, linkable);
    }

    /// Its program gets capabilities, or none.
    pub fn set_capable(&self, capable: bool) {
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
