//! Attributes of a descriptor as the kernel has them, without a request to the mount's process.

use heddle_vfs::ioctl::{MAPS, PAST_KERNEL, THROUGH_KERNEL};
use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, ioctl};

/// STATX_MNT_ID_UNIQUE (Linux 6.8): a number that no later mount gets.
const MOUNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// How often the kernel is made to ask for a size. All attempts but the last may lose to an older answer.
const ASK_MAX: usize = 1000;

/// Attributes of a descriptor, from the kernel's cache alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelStat {
    /// Device number, as `st_dev`.
    pub dev: u64,
    /// Number of the mount, never reused where the kernel has such numbers; 0 where it has none.
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

impl KernelStat {
    /// Asks the kernel, by one system call. The mount's process takes no part.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn of(fd: BorrowedFd<'_>) -> Result<KernelStat, Errno> {
        // DONT_SYNC: otherwise every open would send a request to the mount.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let known = statx(fd, c"", flags, StatxFlags::BASIC_STATS | MOUNT_ID_UNIQUE)?;
        Ok(KernelStat::from_statx(&known))
    }

    /// Makes the kernel ask the mount's process for the size. The kernel bounds mappings and copies by the
    /// size that it knows.
    pub fn refresh(fd: BorrowedFd<'_>) {
        // If the kernel cannot ask, it uses its cached size, as without this call.
        let _ = statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, StatxFlags::SIZE);
    }

    /// As [`KernelStat::refresh`], if the size that the kernel has cached is `stale`. Afterwards the kernel knows a size that the
    /// engine has had since, and no answer under way undoes that: of two answers at once it may keep the older, so this asks until it
    /// has kept the newer, or the engine's present size.
    pub fn refresh_if(fd: BorrowedFd<'_>, stale: impl Fn(u64) -> bool, engines: impl Fn() -> u64) {
        for _ in 0..ASK_MAX {
            match cached_size(fd) {
                Ok(size) if stale(size) => {}
                _ => return,
            }
            match (asked_size(fd), cached_size(fd)) {
                (Ok(told), Ok(kept)) if kept != told && kept != engines() => {}
                _ => return,
            }
        }
    }

    /// Announces to the mount that a library makes the calls on this descriptor. Returns false if the mount cannot know that.
    pub(crate) fn calls_go_past_kernel(fd: BorrowedFd<'_>) -> bool {
        // SAFETY: the request has no argument.
        unsafe { ioctl(fd, NoArg::<PAST_KERNEL>::new()) }.is_ok()
    }

    /// Announces to the mount that a program without the library gets this descriptor.
    pub(crate) fn calls_go_through_kernel(fd: BorrowedFd<'_>) {
        // SAFETY: the request has no argument.
        let _older = unsafe { ioctl(fd, NoArg::<THROUGH_KERNEL>::new()) };
    }

    /// Announces to the mount that the file is about to be mapped. Until the mapped descriptors are closed,
    /// no process then changes the file or its size past the kernel. A mount that does not know this request
    /// learns of the mapping from the first page read.
    pub fn maps(fd: BorrowedFd<'_>) {
        // SAFETY: the request has no argument.
        let _older = unsafe { ioctl(fd, NoArg::<MAPS>::new()) };
    }

    /// As [`KernelStat::refresh`], for a mapping. Afterwards the kernel knows no smaller size than the engine has
    /// now, and no answer under way undoes that.
    ///
    /// Of two answers at once the kernel keeps the first, which may be the older: so this asks until the
    /// kernel has kept one. The kernel always keeps the answer to a change of attributes, and cuts its pages
    /// by it. It lets no other call in during such a change, so fdatasync(2) waits for changes that were
    /// requested before the file had its size.
    pub fn refresh_for_mapping(fd: BorrowedFd<'_>) {
        let _ = rustix::fs::fdatasync(fd);
        for _ in 0..ASK_MAX {
            match (asked_size(fd), cached_size(fd)) {
                (Ok(told), Ok(kept)) if kept < told => {}
                _ => return,
            }
        }
    }

    fn from_statx(known: &Statx) -> KernelStat {
        let has_mount = known.stx_mask & MOUNT_ID_UNIQUE.bits() != 0;
        KernelStat {
            dev: rustix::fs::makedev(known.stx_dev_major, known.stx_dev_minor),
            mount: if has_mount { known.stx_mnt_id } else { 0 },
            ino: known.stx_ino,
            uid: known.stx_uid,
            gid: known.stx_gid,
            mode: known.stx_mode.into(),
        }
    }

    /// Returns true if it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// The size that the mount's process tells; mostly the kernel keeps it.
fn asked_size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    size(fd, AtFlags::STATX_FORCE_SYNC)
}

/// The size that the kernel has cached.
fn cached_size(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    size(fd, AtFlags::STATX_DONT_SYNC)
}

fn size(fd: BorrowedFd<'_>, how: AtFlags) -> Result<u64, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH | how, StatxFlags::SIZE).map(|known| known.stx_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::cell::RefCell;

    /// The sizes for which it was asked whether they are stale, of a file of seven bytes.
    fn asked(is_stale: bool, engines: u64) -> Vec<u64> {
        let (file, seen) = (tempfile::tempfile().unwrap(), RefCell::new(Vec::new()));
        file.set_len(7).unwrap();
        let stale = |size| {
            seen.borrow_mut().push(size);
            is_stale
        };
        KernelStat::refresh_if(file.as_fd(), stale, || engines);
        seen.into_inner()
    }

    #[test]
    fn a_size_is_asked_for_until_the_kernel_keeps_the_answer() {
        assert_eq!(asked(false, 7), [7], "it is not stale");
        assert_eq!(asked(true, 7), [7]);
        assert_eq!(asked(true, 9), [7], "the kernel has kept what it was told");
        KernelStat::refresh_for_mapping(tempfile::tempfile().unwrap().as_fd());
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!((asked_size(file.as_fd()), cached_size(file.as_fd())), (Ok(1 << 40), Ok(1 << 40)));
    }

    #[test]
    fn a_file_without_a_mount_of_ours_answers_no_announcement() {
        let file = tempfile::tempfile().unwrap();
        assert!(!KernelStat::calls_go_past_kernel(file.as_fd()));
    }

    #[test]
    fn only_a_regular_file_is_one() {
        let stat = KernelStat::of(tempfile::tempfile().unwrap().as_fd()).unwrap();
        let of = |mode: u32| KernelStat { mode, ..stat }.is_regular();
        assert!(of(libc::S_IFREG) && of(libc::S_IFREG | 0o7777));
        for mode in [0, 0o7777, libc::S_IFDIR, libc::S_IFLNK, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK] {
            assert!(!of(mode), "{mode:o}");
        }
    }
}
