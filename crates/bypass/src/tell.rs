//! What `stat` tells of a descriptor, without asking the mount's process.

use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;

/// STATX_MNT_ID_UNIQUE (Linux 6.8): a number that no later mount gets.
const MOUNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// A descriptor as the kernel knows it, from its cache alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// Device number, as `st_dev`.
    pub dev: u64,
    /// Mount, never used again where the kernel can tell; 0 where it cannot.
    pub mount: u64,
    /// Inode number.
    pub ino: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Kind and permission bits, as `st_mode`.
    pub mode: u32,
}

impl Told {
    /// Asks. Costs one system call that no mount's process takes part in.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn of(fd: BorrowedFd<'_>) -> Result<Told, Errno> {
        // DONT_SYNC: else every open of a file would be a request to its mount.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let known = statx(fd, c"", flags, StatxFlags::BASIC_STATS | MOUNT_ID_UNIQUE)?;
        Ok(Told::from_statx(&known))
    }

    /// Makes the kernel ask the mount's process for the size: what it takes for the end of the file bounds mappings and copies.
    pub fn refresh(fd: BorrowedFd<'_>) {
        // What it cannot ask it takes from its cache, as without this.
        let _ = statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE);
    }

    fn from_statx(known: &Statx) -> Told {
        let has_mount = known.stx_mask & MOUNT_ID_UNIQUE.bits() != 0;
        Told {
            dev: rustix::fs::makedev(known.stx_dev_major, known.stx_dev_minor),
            mount: if has_mount { known.stx_mnt_id } else { 0 },
            ino: known.stx_ino,
            uid: known.stx_uid,
            gid: known.stx_gid,
            mode: known.stx_mode.into(),
        }
    }

    /// Is it a regular file?
    pub fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}
