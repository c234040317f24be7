//! What `stat` tells of a descriptor, without asking the mount's process.

use heddle_vfs::ioctl::MAPS;
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, ioctl};

/// STATX_MNT_ID_UNIQUE (Linux 6.8): a number that no later mount gets.
const MOUNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// So often the kernel is made to ask for a size: each time but the last another answer has come first.
const ASK_MAX: usize = 1000;

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

    /// Tells the mount that the file is about to be mapped: from then on nobody changes it past the kernel, nor its size, until the
    /// mapped descriptors are closed. A mount that does not know the request learns it from the first page that is read.
    pub fn maps(fd: BorrowedFd<'_>) {
        // SAFETY: the request has no argument.
        let _older = unsafe { ioctl(fd, NoArg::<MAPS>::new()) };
    }

    /// As [`Told::refresh`], for a mapping: afterwards the kernel knows no smaller size than the engine has now, and no
    /// answer that is under way takes it back.
    ///
    /// Of two answers at once the kernel keeps the first, which may be the older: so this asks until it has kept one.
    /// The answer to a change of attributes it keeps always, and cuts its pages by it; it lets no call in beside such a
    /// change, so fdatasync(2) waits for those that have been asked before the file had its size.
    pub fn refresh_for_mapping(fd: BorrowedFd<'_>) {
        let _ = rustix::fs::fdatasync(fd);
        let size =
            |how| statx(fd, c"", AtFlags::EMPTY_PATH | how, StatxFlags::SIZE).map(|told| told.stx_size);
        for _ in 0..ASK_MAX {
            match (size(AtFlags::STATX_FORCE_SYNC), size(AtFlags::STATX_DONT_SYNC)) {
                (Ok(told), Ok(kept)) if kept < told => {}
                _ => return,
            }
        }
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
