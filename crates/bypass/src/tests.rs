//! Open files of an engine in this very process, each beside a descriptor of an ordinary file: what the engine does, what the kernel.

use crate::words::{ONE_TEST, Words, are_ours_alone, give_back};
use crate::{
    Attachment, File, KernelStat, Passed, RangeOp, Served, a_fork_begins, a_fork_ended, errno_of,
    this_is_a_child,
};
use heddle_nvmfs::{MountOptions, NvmFs, Variant, Volume, format_region, mount};
use heddle_pmem::Region;
use heddle_vfs::short::{Short, name, root};
use heddle_vfs::{Error, FileSystem, Handle, Ino, SetAttr, SetXattr, XattrName};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::{LockResult, MutexGuard};

const DEV: u64 = 77;
const PAGE: usize = 4096;

/// An engine with a file, and a descriptor of the kernel's.
pub(crate) struct Scene {
    at: &'static Attachment,
    pub(crate) fs: NvmFs,
    /// The mount's own handle of the file.
    pub(crate) theirs: Handle,
    pub(crate) kernels: std::fs::File,
    _volume: &'static Volume,
    /// Forks and numbers of processes are the whole program's.
    _alone: LockResult<MutexGuard<'static, ()>>,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let region = Region::anonymous(4 << 20).unwrap();
        format_region(&region, Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        // A file that a test leaves open has its engine for ever.
        let volume = Box::leak(Box::new(mount(region, &options).unwrap()));
        let fs = volume.fs();
        let theirs = fs.new_file(Ino::ROOT, "f");
        let kernels = tempfile::tempfile().unwrap();
        let kernel_stat = KernelStat::of(kernels.as_fd()).unwrap();
        let owner = SetAttr { uid: Some(kernel_stat.uid), gid: Some(kernel_stat.gid), ..SetAttr::default() };
        fs.setattr(&root(), theirs.ino, None, &owner).unwrap();
        let at = Attachment::new(fs.clone(), DEV);
        Scene { at, fs, theirs, kernels, _volume: volume, _alone: ONE_TEST.lock() }
    }

    fn kernel_stat(&self, mode: u32) -> KernelStat {
        KernelStat { ino: self.theirs.ino.0, mode, ..KernelStat::of(self.kernels.as_fd()).unwrap() }
    }

    pub(crate) fn open(&self, flags: i32) -> File {
        File::new(self.at, self.kernel_stat(libc::S_IFREG | 0o644), flags)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.kernels.as_fd()
    }

    /// Where the kernel is in its file.
    fn kernels_offset(&self) -> u64 {
        rustix::fs::tell(self.fd()).unwrap()
    }

    fn content(&self) -> Vec<u8> {
        self.fs.read_vec(&self.theirs, 0, 1 << 20)
    }
}

fn write(file: &File, scene: &Scene, bytes: &[u8]) -> Served<usize> {
    // SAFETY: a slice.
    unsafe { file.write(scene.fd(), bytes.as_ptr(), bytes.len(), false) }
}

fn write_at(file: &File, scene: &Scene, bytes: &[u8], at: i64) -> Served<(usize, u64)> {
    // SAFETY: a slice.
    unsafe { file.write_at(scene.fd(), bytes.as_ptr(), bytes.len(), at, false) }
}

fn read(file: &File, scene: &Scene, len: usize) -> Served<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    // SAFETY: a vector of that length.
    let done = unsafe { file.read(scene.fd(), bytes.as_mut_ptr(), len) }?;
    Ok(done.map(|n| bytes[..n].to_vec()))
}

fn read_at(file: &File, scene: &Scene, len: usize, at: i64) -> Served<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    // SAFETY: a vector of that length.
    let done = unsafe { file.read_at(scene.fd(), bytes.as_mut_ptr(), len, at) }?;
    Ok(done.map(|n| bytes[..n].to_vec()))
}

fn served(bytes: &[u8]) -> Served<Vec<u8>> {
    Ok(Ok(bytes.to_vec()))
}

#[test]
fn reads_and_writes_move_the_offset_and_pass_the_kernel_by() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    assert_eq!(write(&file, &scene, b"hello, "), Ok(Ok(7)));
    assert_eq!(write(&file, &scene, b"world"), Ok(Ok(5)));
    assert_eq!(write_at(&file, &scene, b"W", 7), Ok(Ok((1, 8))));
    assert_eq!(write_at(&file, &scene, b"", 3), Ok(Ok((0, 3))));
    assert_eq!(scene.content(), b"hello, World");
    assert_eq!(read(&file, &scene, 3), served(b""), "it is at the end");
    assert_eq!(file.seek(scene.fd(), 2, libc::SEEK_SET), Ok(Ok(2)));
    assert_eq!(read(&file, &scene, 3), served(b"llo"));
    assert_eq!(read(&file, &scene, 3), served(b", W"));
    assert_eq!(read(&file, &scene, 0), served(b""));
    assert_eq!(read_at(&file, &scene, 100, 7), served(b"World"));
    assert_eq!(read(&file, &scene, 2), served(b"or"), "a read with its own offset has moved nothing");
    assert_eq!((scene.kernels_offset(), scene.kernels.metadata().unwrap().len()), (0, 0));
    assert_eq!(file.sync(true), Ok(Ok(())));
    file.close();
}

#[test]
fn a_file_is_read_and_changed_only_as_it_was_opened() {
    let scene = Scene::new();
    let (reader, writer) = (scene.open(libc::O_RDONLY), scene.open(libc::O_WRONLY));
    assert_eq!((reader.may_read(), reader.may_write()), (true, false));
    assert_eq!((writer.may_read(), writer.may_write()), (false, true));
    assert_eq!(write_at(&reader, &scene, b"x", 0), Err(Passed::Unserved));
    assert_eq!(reader.truncate(scene.fd(), 0), Err(Passed::Unserved));
    assert_eq!(reader.allocate(scene.fd(), RangeOp::Punch, 0, 1), Err(Passed::Unserved));
    assert_eq!(write_at(&writer, &scene, b"x", 0), Ok(Ok((1, 1))));
    assert_eq!(read_at(&writer, &scene, 1, 0), Err(Passed::Unserved));
    assert_eq!(read_at(&reader, &scene, 1, 0), served(b"x"));
    assert_eq!(
        read_at(&reader, &scene, 1, -1),
        Err(Passed::Unserved),
        "the kernel says what is wrong with it"
    );
    assert_eq!(write_at(&writer, &scene, b"x", i64::MAX), Err(Passed::Unserved));
    assert_eq!(reader.kernel_stat(), &scene.kernel_stat(libc::S_IFREG | 0o644));
}

#[test]
fn what_appends_goes_to_the_end_and_leaves_the_offset_there() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR | libc::O_APPEND);
    assert!(file.appends(scene.fd()));
    scene.fs.write(&scene.theirs, 0, b"theirs").unwrap();
    assert_eq!(write(&file, &scene, b" mine"), Ok(Ok(5)));
    assert_eq!(file.seek(scene.fd(), 0, libc::SEEK_CUR), Ok(Ok(11)));
    assert_eq!(write_at(&file, &scene, b"!", 0), Ok(Ok((1, 12))), "pwrite appends as well, on Linux");
    file.set_append(false);
    assert!(!file.appends(scene.fd()));
    assert_eq!(write_at(&file, &scene, b"T", 0), Ok(Ok((1, 1))));
    // SAFETY: one byte.
    let at_end = unsafe { file.write_at(scene.fd(), b"?".as_ptr(), 1, 0, true) };
    assert_eq!(at_end, Ok(Ok((1, 13))));
    assert_eq!(scene.content(), b"Theirs mine!?");
}

#[test]
fn a_seek_counts_from_start_offset_end_data_or_hole() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    let page = PAGE as i64;
    assert_eq!(write_at(&file, &scene, b"data", 2 * page), Ok(Ok((4, 2 * PAGE as u64 + 4))));
    let seek = |offset, whence| file.seek(scene.fd(), offset, whence);
    assert_eq!(seek(10, libc::SEEK_SET), Ok(Ok(10)));
    assert_eq!(seek(-3, libc::SEEK_CUR), Ok(Ok(7)));
    assert_eq!(seek(-8, libc::SEEK_CUR), Ok(Err(Errno::INVAL)));
    assert_eq!(seek(0, libc::SEEK_CUR), Ok(Ok(7)), "a refused one leaves it where it was");
    assert_eq!(seek(-4, libc::SEEK_END), Ok(Ok(2 * PAGE as u64)));
    assert_eq!(seek(1, libc::SEEK_DATA), Ok(Ok(2 * PAGE as u64)));
    assert_eq!(seek(5, libc::SEEK_HOLE), Ok(Ok(5)));
    assert_eq!(seek(2 * page, libc::SEEK_HOLE), Ok(Ok(2 * PAGE as u64 + 4)));
    assert_eq!(seek(3 * page, libc::SEEK_DATA), Ok(Err(Errno::NXIO)));
    assert_eq!(seek(-1, libc::SEEK_DATA), Ok(Err(Errno::NXIO)));
    assert_eq!(seek(0, 99), Ok(Err(Errno::INVAL)));
}

#[test]
fn an_offset_that_was_given_away_is_the_kernels_for_ever() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    assert_eq!(write(&file, &scene, b"12345"), Ok(Ok(5)));
    file.give_offset_away(scene.fd());
    assert_eq!(scene.kernels_offset(), 5, "it has ours");
    assert!(file.offset_is_the_kernels());
    assert_eq!(read(&file, &scene, 1), Err(Passed::KernelOffset));
    assert_eq!(write(&file, &scene, b"6"), Err(Passed::KernelOffset));
    assert_eq!(file.seek(scene.fd(), 0, libc::SEEK_SET), Err(Passed::KernelOffset));
    assert_eq!(read_at(&file, &scene, 2, 1), served(b"23"), "what has an offset of its own goes on");
    // SAFETY: one byte.
    assert_eq!(unsafe { file.write(scene.fd(), b"6".as_ptr(), 1, true) }, Ok(Ok(1)));
    assert_eq!(scene.kernels_offset(), 6, "who shares the offset finds it behind what was appended");
    // SAFETY: no byte.
    assert_eq!(unsafe { file.write(scene.fd(), b"".as_ptr(), 0, true) }, Ok(Ok(0)));
    assert_eq!(scene.kernels_offset(), 6);
    file.give_offset_away(scene.fd());
    assert_eq!(scene.kernels_offset(), 6, "ours does not count a second time");
    assert_eq!(scene.content(), b"123456");
}

/// Are there segments of shared memory, which tell a process that it is alone?
fn is_told_when_alone() -> bool {
    let word = Words::default().next().unwrap();
    let kernel_stat = are_ours_alone(word);
    give_back(word);
    if !kernel_stat {
        eprintln!("SKIPPED, NOT TESTED: there are no segments of shared memory here");
    }
    kernel_stat
}

#[test]
fn an_offset_shared_with_a_child_comes_back_when_it_is_gone() {
    let scene = Scene::new();
    if !is_told_when_alone() {
        return;
    }
    let file = scene.open(libc::O_RDWR);
    assert_eq!(write(&file, &scene, b"0123456789"), Ok(Ok(10)));
    a_fork_begins();
    file.share_with_child(scene.fd(), &mut Words::default());
    assert!(!file.offset_is_the_kernels(), "it may come back");
    assert_eq!(read(&file, &scene, 1), Err(Passed::KernelOffset), "a fork is under way");
    // As a child that has ended since left it.
    rustix::fs::seek(scene.fd(), rustix::fs::SeekFrom::Start(7)).unwrap();
    a_fork_ended();
    assert_eq!(read(&file, &scene, 2), served(b"78"));
    assert_eq!(write(&file, &scene, b""), Ok(Ok(0)), "it is ours again");
    file.share_with_child(scene.fd(), &mut Words::default());
    assert_eq!(scene.kernels_offset(), 9, "the next child finds it where it is");
    file.share_with_stranger(scene.fd());
    assert!(file.offset_is_the_kernels());
    assert_eq!(read(&file, &scene, 1), Err(Passed::KernelOffset));
    file.set_append(true);
    assert!(!file.appends(scene.fd()), "the kernel is asked, and knows nothing of it");
    file.close();
}

#[test]
fn a_call_of_the_kernel_begins_and_leaves_us_at_its_offset() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    assert_eq!(write(&file, &scene, b"123"), Ok(Ok(3)));
    let kernel_moves = |by| {
        file.with_kernel_offset(scene.fd(), || {
            rustix::fs::seek(scene.fd(), rustix::fs::SeekFrom::Current(by)).unwrap()
        })
    };
    assert_eq!(kernel_moves(4), Some(7));
    assert_eq!(file.seek(scene.fd(), 0, libc::SEEK_CUR), Ok(Ok(7)));
    file.give_offset_away(scene.fd());
    assert_eq!(kernel_moves(-2), Some(5));
    assert_eq!(scene.kernels_offset(), 5);
}

#[test]
fn calls_on_a_mapped_file_go_through_the_mount() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    assert_eq!(write(&file, &scene, b"123"), Ok(Ok(3)));
    assert_eq!(file.unmapped(), Ok(Ok(())));
    scene.fs.note_kernel_pages(&scene.theirs, true);
    assert_eq!(file.unmapped(), Err(Passed::Mapped));
    assert_eq!(read_at(&file, &scene, 1, 0), Err(Passed::Mapped));
    assert_eq!(write_at(&file, &scene, b"x", 0), Err(Passed::Mapped));
    assert_eq!(file.truncate(scene.fd(), 1), Err(Passed::Mapped));
    assert_eq!(file.sync(false), Err(Passed::Mapped));
    assert_eq!(file.seek(scene.fd(), 1, libc::SEEK_END), Ok(Ok(4)), "the size is the engine's");
    assert_eq!(
        file.seek(scene.fd(), 0, libc::SEEK_DATA),
        Err(Passed::Mapped),
        "data may not be written back"
    );
    assert_eq!(file.seek(scene.fd(), 0, libc::SEEK_HOLE), Err(Passed::Mapped));
    assert_eq!(file.stat(scene.fd()).map(|stat| stat.map(|stat| stat.st_size)), Ok(Ok(3)));
    scene.fs.note_kernel_pages(&scene.theirs, false);
    assert_eq!(read_at(&file, &scene, 9, 0), served(b"123"));
}

#[test]
fn sizes_and_ranges_that_the_kernel_refuses_are_left_to_it() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    assert_eq!(file.truncate(scene.fd(), -1), Err(Passed::Unserved));
    assert_eq!(file.truncate(scene.fd(), 5), Ok(Ok(())));
    assert_eq!(scene.fs.size(&scene.theirs), 5);
    assert_eq!(file.truncate(scene.fd(), 1 << 60), Ok(Err(Errno::FBIG)));
    let grow = RangeOp::Allocate { keep_size: false };
    for (offset, len) in [(-1, 2), (0, 0), (0, -1), (i64::MAX, 1), (1, i64::MAX)] {
        assert_eq!(
            file.allocate(scene.fd(), grow, offset, len),
            Err(Passed::Unserved),
            "{len} from {offset}"
        );
    }
    assert_eq!(file.allocate(scene.fd(), grow, 0, 1), Ok(Ok(())));
    assert_eq!(scene.fs.size(&scene.theirs), 5);
    assert_eq!(file.allocate(scene.fd(), grow, 7, 2), Ok(Ok(())));
    assert_eq!(scene.fs.size(&scene.theirs), 9);
}

#[test]
fn stat_says_what_the_engine_does_but_not_of_another_owner() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    assert_eq!(write(&file, &scene, &[7; 5000]), Ok(Ok(5000)));
    scene.fs.link(&root(), scene.theirs.ino, Ino::ROOT, name("also")).unwrap();
    let attr = scene.fs.getattr(scene.theirs.ino).unwrap();
    let stat = file.stat(scene.fd()).unwrap().unwrap();
    assert_eq!((stat.st_dev, stat.st_ino, stat.st_nlink), (DEV, attr.ino.0, 2));
    assert_eq!((stat.st_mode, stat.st_uid, stat.st_gid), (libc::S_IFREG | 0o644, attr.uid, attr.gid));
    assert_eq!((stat.st_size, stat.st_blocks, stat.st_blksize), (5000, attr.blocks_512 as i64, 4096));
    assert_eq!((stat.st_mtime, stat.st_mtime_nsec), (attr.mtime.secs(), attr.mtime.nanos().into()));
    assert_eq!((stat.st_ctime, stat.st_ctime_nsec), (attr.ctime.secs(), attr.ctime.nanos().into()));
    assert_eq!((stat.st_atime, stat.st_atime_nsec), (attr.atime.secs(), attr.atime.nanos().into()));
    let given = SetAttr { gid: Some(attr.gid + 1), ..SetAttr::default() };
    scene.fs.setattr(&root(), scene.theirs.ino, None, &given).unwrap();
    let other = scene.open(libc::O_RDWR);
    assert_eq!(other.stat(scene.fd()).err(), Some(Passed::Unserved), "the mount shows another group");
}

#[test]
fn writes_that_take_rights_away_are_the_mounts() {
    let scene = Scene::new();
    let with =
        |bits, flags| File::new(scene.at, scene.kernel_stat(libc::S_IFREG | bits), flags).loses_by_writes();
    assert!(with(0o4755, libc::O_RDWR) && with(0o2755, libc::O_WRONLY));
    assert!(!with(0o4755, libc::O_RDONLY), "nothing is written");
    assert!(!with(0o755, libc::O_RDWR));
    let file = scene.open(libc::O_RDWR);
    assert_eq!(write_at(&file, &scene, b"x", 0), Ok(Ok((1, 1))));
    let mode = SetAttr { perm: Some(0o4755), ..SetAttr::default() };
    scene.fs.setattr(&root(), scene.theirs.ino, None, &mode).unwrap();
    assert_eq!(write_at(&file, &scene, b"y", 0), Err(Passed::Unserved), "it got the bit since");
    assert_eq!(file.truncate(scene.fd(), 0), Err(Passed::Unserved));
    assert_eq!(file.allocate(scene.fd(), RangeOp::Punch, 0, 1), Err(Passed::Unserved));
    assert_eq!(read_at(&file, &scene, 1, 0), served(b"x"));
    let capability = XattrName::new(b"security.capability").unwrap();
    let value = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    scene.fs.setxattr(&root(), scene.theirs.ino, capability, &value, SetXattr::Any).unwrap();
    assert!(with(0o755, libc::O_RDWR), "a capability goes with a write");
}

#[test]
fn where_space_is_short_the_mount_is_asked() {
    let scene = Scene::new();
    let file = scene.open(libc::O_RDWR);
    let bytes = vec![1; 8 << 20];
    assert_eq!(write_at(&file, &scene, &bytes, 0), Err(Passed::Engine));
    assert_eq!(write_at(&file, &scene, &bytes[..PAGE], 0), Ok(Ok((PAGE, PAGE as u64))));
    assert_eq!(errno_of(&Error::NoSpace), Errno::NOSPC);
    assert_eq!(errno_of(&Error::Corrupt("x".into())), Errno::from_raw_os_error(libc::EUCLEAN));
}

#[test]
fn the_last_close_gives_the_engines_handle_back() {
    let scene = Scene::new();
    let (ino, engine) = (scene.theirs.ino, scene.fs.clone());
    let lives = || engine.getattr(ino).is_ok();
    let (file, unused) = (scene.open(libc::O_RDWR), scene.open(libc::O_RDWR));
    assert_eq!(write(&file, &scene, b"x"), Ok(Ok(1)));
    scene.fs.remove(Ino::ROOT, "f").unwrap();
    scene.fs.release(scene.theirs);
    unused.close();
    assert!(lives(), "it is open here");
    file.close();
    assert!(!lives());
}

#[test]
fn a_child_opens_and_gives_back_handles_of_its_own() {
    let scene = Scene::new();
    let (ino, engine) = (scene.theirs.ino, scene.fs.clone());
    let lives = || engine.getattr(ino).is_ok();
    let [parents, both] = [(); 2].map(|()| scene.open(libc::O_RDWR));
    assert_eq!(write(&parents, &scene, b"x"), Ok(Ok(1)));
    assert_eq!(read(&both, &scene, 1), served(b"x"));
    a_fork_begins();
    this_is_a_child();
    // SAFETY: no other thread knows of these files.
    unsafe { both.forked() };
    assert_eq!(read(&both, &scene, 1), served(b""), "its offset is where it was");
    let own = scene.open(libc::O_RDWR);
    assert_eq!(write_at(&own, &scene, b"y", 0), Ok(Ok((1, 1))));
    own.close();
    scene.fs.remove(Ino::ROOT, "f").unwrap();
    scene.fs.release(scene.theirs);
    parents.close();
    both.close();
    assert!(lives(), "the parent's handles are the parent's to give back");
}

#[test]
fn a_lock_is_held_by_one_thread_at_a_time() {
    let lock = crate::lock::Lock::new();
    let inside = std::sync::atomic::AtomicU32::new(0);
    let held = lock.hold();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let _held = lock.hold();
                    let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    assert_eq!(others, 0);
                }
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(inside.load(std::sync::atomic::Ordering::SeqCst), 0, "it is held");
        drop(held);
    });
    std::mem::forget(lock.hold());
    // A forked child's: whoever held it is not there.
    lock.reset();
    drop(lock.hold());
}

#[test]
fn what_is_told_of_a_descriptor_is_what_stat_tells() {
    use std::os::unix::fs::MetadataExt;
    let file = tempfile::tempfile().unwrap();
    let (kernel_stat, stat) = (KernelStat::of(file.as_fd()).unwrap(), file.metadata().unwrap());
    assert_eq!(
        (kernel_stat.dev, kernel_stat.ino, kernel_stat.uid, kernel_stat.gid),
        (stat.dev(), stat.ino(), stat.uid(), stat.gid())
    );
    assert_eq!((kernel_stat.mode, kernel_stat.is_regular()), (stat.mode(), true));
    assert_eq!(kernel_stat, KernelStat::of(file.as_fd()).unwrap(), "a mount keeps its number");
    let dir = tempfile::tempdir().unwrap();
    let dir = std::fs::File::open(dir.path()).unwrap();
    assert!(!KernelStat::of(dir.as_fd()).unwrap().is_regular());
    assert!(!KernelStat::of(std::io::pipe().unwrap().0.as_fd()).unwrap().is_regular());
}
