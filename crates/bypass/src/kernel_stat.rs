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
        ask_while_stale(|| asked_size(fd), || cached_size(fd), stale, engines);
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
        ask_while_small(|| asked_size(fd), || cached_size(fd));
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

/// Implements [`KernelStat::refresh_if`].
fn ask_while_stale(
    asked: impl Fn() -> Result<u64, Errno>,
    cached: impl Fn() -> Result<u64, Errno>,
    stale: impl Fn(u64) -> bool,
    engines: impl Fn() -> u64,
) {
    for _ in 0..ASK_MAX {
        match cached() {
            Ok(size) if stale(size) => {}
            _ => return,
        }
        match (asked(), cached()) {
            (Ok(told), Ok(kept)) if kept != told && kept != engines() => {}
            _ => return,
        }
    }
}

/// Implements [`KernelStat::refresh_for_mapping`].
fn ask_while_small(asked: impl Fn() -> Result<u64, Errno>, cached: impl Fn() -> Result<u64, Errno>) {
    for _ in 0..ASK_MAX {
        match (asked(), cached()) {
            (Ok(told), Ok(kept)) if kept < told => {}
            _ => return,
        }
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
    use std::cell::{Cell, RefCell};

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

    /// A kernel that is told one size after the other, and keeps one after the other; of each the last one from then on.
    struct Sizes {
        told: &'static [u64],
        kept: &'static [u64],
        asks: Cell<usize>,
    }

    impl Sizes {
        fn asked(&self) -> Result<u64, Errno> {
            let nth = self.asks.replace(self.asks.get() + 1);
            Ok(self.told[nth.min(self.told.len() - 1)])
        }

        fn cached(&self) -> Result<u64, Errno> {
            Ok(self.kept[self.asks.get().min(self.kept.len() - 1)])
        }
    }

    #[test]
    fn an_older_answer_that_the_kernel_kept_is_asked_for_again() {
        let asks = |told, kept| {
            let sizes = Sizes { told, kept, asks: Cell::new(0) };
            ask_while_stale(|| sizes.asked(), || sizes.cached(), |size| size < 5, || 7);
            sizes.asks.get()
        };
        assert_eq!(asks(&[6], &[5, 5]), 0, "it is not stale");
        assert_eq!(asks(&[6], &[3, 6]), 1);
        assert_eq!(asks(&[6], &[3, 7]), 1, "it has kept the engine's size");
        assert_eq!(asks(&[6], &[3, 4, 6]), 2, "it has kept an older one");
        assert_eq!(asks(&[6], &[3, 4, 4, 5]), 3);
        assert_eq!(asks(&[6], &[3]), ASK_MAX, "it keeps none");
    }

    #[test]
    fn a_mapping_needs_a_size_no_smaller_than_was_told() {
        let asks = |told, kept| {
            let sizes = Sizes { told, kept, asks: Cell::new(0) };
            ask_while_small(|| sizes.asked(), || sizes.cached());
            sizes.asks.get()
        };
        assert_eq!(asks(&[6], &[0, 6]), 1);
        assert_eq!(asks(&[6], &[0, 7]), 1, "it has kept a larger one");
        assert_eq!(asks(&[6], &[0, 5, 6]), 2);
        assert_eq!(asks(&[6, 7, 8], &[0, 5, 6, 8]), 3);
        assert_eq!(asks(&[6], &[0]), ASK_MAX);
    }

    #[test]
    fn a_mount_has_a_number_only_where_the_kernel_gave_one() {
        let file = tempfile::tempfile().unwrap();
        let mut known = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).unwrap();
        known.stx_mnt_id = 5;
        for (mask, mount) in [(0x7ff, 0), (0, 0), (0x1000, 0), (0x47ff, 5), (0x4000, 5), (u32::MAX, 5)] {
            known.stx_mask = mask;
            assert_eq!(KernelStat::from_statx(&known).mount, mount, "{mask:#x}");
        }
        let asked = statx(&file, c"", AtFlags::EMPTY_PATH, MOUNT_ID_UNIQUE).unwrap();
        if asked.stx_mask & 0x4000 == 0 {
            eprintln!("SKIPPED, NOT TESTED: the kernel has no unique numbers of mounts");
            return;
        }
        assert_eq!(KernelStat::of(file.as_fd()).unwrap().mount, asked.stx_mnt_id);
        assert_ne!(asked.stx_mnt_id, 0);
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
