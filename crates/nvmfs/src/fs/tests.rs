//! What calls answer by kind, permission and space, and what front ends are told beside the calls.

mod permissions;

use super::*;
use crate::variant::Variant;
use crate::volume::{MountOptions, Volume, VolumeError, format, mount, read_superblock};
use heddle_pmem::{Region, WriteBackResult};
use heddle_vfs::short::{Short, name, root};
use heddle_vfs::{OFFSET_MAX_BYTES, Time};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

fn options() -> MountOptions<'static> {
    MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }
}

fn formatted(variant: Variant, len_bytes: u64) -> Region {
    let region = Region::anonymous(len_bytes).unwrap();
    format(&region, variant).unwrap();
    region
}

fn fresh(variant: Variant, len_bytes: u64) -> Volume {
    mount(formatted(variant, len_bytes), &options()).unwrap()
}

fn flags(read: bool, write: bool, truncate: bool) -> OpenFlags {
    OpenFlags { read, write, truncate, ..OpenFlags::default() }
}

#[test]
fn directories_are_opened_for_reading_and_links_not_at_all() {
    let volume = fresh(Variant::Heddle, 8 * MIB);
    let fs = volume.fs();
    let dir = fs.new_dir(Ino::ROOT, "d");
    let open = |ino, flags| fs.open(&root(), ino, flags).map(|handle| fs.release(handle));
    assert_eq!(open(dir, flags(true, false, false)), Ok(()));
    for (read, write, truncate) in [
        (false, true, false),
        (true, true, false),
        (false, false, true),
        (true, false, true),
        (true, true, true),
    ] {
        assert_eq!(open(dir, flags(read, write, truncate)), Err(Error::IsDirectory));
    }
    let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"d" };
    let link = fs.make(&root(), Ino::ROOT, name("l"), node).unwrap().ino;
    assert_eq!(open(link, OpenFlags::READ), Err(Error::Loop));
    let handle = fs.open(&root(), dir, OpenFlags::READ).unwrap();
    for len in [0, 1, 4096] {
        assert_eq!(fs.read(&handle, 0, &mut vec![0; len]), Err(Error::IsDirectory), "{len} bytes");
    }
    fs.release(handle);
    volume.unmount();
}

#[test]
fn a_read_only_mount_changes_nothing_by_any_open() {
    let (region, simulator) = Region::simulated(8 * MIB);
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region.map_again().unwrap(), &options()).unwrap();
    let file = volume.fs().new_file(Ino::ROOT, "f");
    volume.fs().write(&file, 0, b"text").unwrap();
    volume.fs().release(file);
    volume.unmount();
    let before = simulator.stores();
    let volume = mount(region, &MountOptions { read_only: true, ..options() }).unwrap();
    let fs = volume.fs();
    let ino = fs.find(Ino::ROOT, "f").unwrap().ino;
    for changing in [flags(true, true, false), flags(true, false, true), flags(false, true, true)] {
        assert_eq!(fs.open(&root(), ino, changing).map(drop), Err(Error::ReadOnly), "{changing:?}");
    }
    let file = fs.open(&root(), ino, OpenFlags::READ).unwrap();
    assert_eq!(fs.read_vec(&file, 0, 9), b"text");
    fs.release(file);
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    assert_eq!(fs.setattr(&root(), ino, None, &set).map(drop), Err(Error::ReadOnly));
    assert_eq!(fs.try_dir(Ino::ROOT, "d"), Err(Error::ReadOnly));
    drop(fs);
    volume.close().unwrap();
    assert_eq!(simulator.stores(), before);
}

#[test]
fn attributes_are_set_through_a_handle_of_the_same_living_inode() {
    let volume = fresh(Variant::Heddle, 8 * MIB);
    let fs = volume.fs();
    let (file, other) = (fs.new_file(Ino::ROOT, "f"), fs.new_file(Ino::ROOT, "g"));
    let set = |perm| SetAttr { perm: Some(perm), ..SetAttr::default() };
    let perms = || [file.ino, other.ino].map(|ino| fs.getattr(ino).unwrap().perm);
    assert_eq!(fs.setattr(&root(), file.ino, Some(&other), &set(0o600)).unwrap().ino, file.ino);
    assert_eq!(perms(), [0o600, 0o644]);
    let gone = Handle { ino: file.ino, flags: OpenFlags::READ_WRITE, token: file.token + 1 };
    assert_eq!(fs.setattr(&root(), file.ino, Some(&gone), &set(0o640)).map(drop), Err(Error::Stale));
    assert_eq!(perms(), [0o600, 0o644]);
    assert!(fs.kernel_pages(&gone).is_none());
    fs.release(file);
    fs.release(other);
    volume.unmount();
}

/// As after stat(2): two looks tell whether a write came between them.
#[test]
fn a_write_after_a_look_up_has_a_later_mtime() {
    let volume = fresh(Variant::Heddle, 8 * MIB);
    let fs = volume.fs();
    let file = fs.new_file(Ino::ROOT, "f");
    for round in 0..200 {
        let before = fs.find(Ino::ROOT, "f").unwrap().mtime;
        fs.write(&file, round, b"x").unwrap();
        assert!(fs.find(Ino::ROOT, "f").unwrap().mtime > before, "write {round}");
    }
    fs.release(file);
    volume.unmount();
}

/// Of 4096 blocks two are superblocks, two the inode directory of 1024 chunks, and one the root's chunk of 32 inodes.
#[test]
fn what_threads_hold_and_chunks_without_inodes_are_free() {
    let region = formatted(Variant::Heddle, 16 * MIB);
    let chunks = read_superblock(&region).unwrap().inode_dir_pointers.get();
    let volume = mount(region, &options()).unwrap();
    let fs = volume.fs();
    let said = || fs.statfs().map(|said| (said.blocks_free, said.blocks_available)).unwrap();
    let (free, available) = said();
    assert_eq!((chunks, fs.statfs().unwrap().inodes_total, free), (1024, 1024 * 32, 4096 - 5));
    assert!(available < free);
    let file = fs.new_file(Ino::ROOT, "f");
    fs.write(&file, 0, &[1; PAGE as usize]).unwrap();
    let held = crate::state::lease::held_blocks(&fs.core);
    assert!(held > 3, "{held} blocks: this thread has some more ready for use");
    // A page of data, and one for each of two logs.
    assert_eq!(said(), (free - 3, available - 3));
    let chunk = fs.core.free_slots(0);
    let slots = chunk.swap(crate::state::lane::slots::ALL_FREE, SeqCst);
    assert_eq!(said(), (free - 2, available - 2));
    chunk.store(slots, SeqCst);
    fs.release(file);
    volume.unmount();
}

#[test]
fn a_held_file_is_kept_and_a_held_directory_stays_one() {
    for variant in Variant::ALL {
        let volume = fresh(variant, 16 * MIB);
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        fs.write(&file, 0, b"text").unwrap();
        fs.release(file);
        let dir = fs.new_dir(Ino::ROOT, "d");
        let [held, held_dir] = ["f", "d"].map(|text| fs.hold(Ino::ROOT, name(text)).unwrap());
        fs.remove(Ino::ROOT, "f").unwrap();
        assert_eq!(fs.read_vec(&held, 0, 9), b"text", "{variant:?}");
        fs.release(fs.new_file(dir, "below"));
        assert!(fs.find(dir, "below").is_ok(), "{variant:?}");
        assert_eq!(fs.hold(Ino::ROOT, name("f")).map(drop), Err(Error::NotFound), "{variant:?}");
        let ino = held.ino;
        fs.release(held);
        fs.release(held_dir);
        assert_eq!(fs.getattr(ino).map(drop), Err(Error::Stale), "{variant:?}: nothing keeps it");
        volume.unmount();
    }
}

#[test]
fn after_a_failed_fence_syncs_and_the_unmount_say_so() {
    let (region, disk) = Region::on_failing_disk(4 * MIB);
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &options()).unwrap();
    let fs = volume.fs();
    let file = fs.new_file(Ino::ROOT, "f");
    assert_eq!((fs.fsync(&file, false), fs.sync()), (Ok(()), Ok(())));
    let gone = Handle { ino: file.ino, flags: OpenFlags::READ_WRITE, token: file.token + 1 };
    assert_eq!(fs.fsync(&gone, false), Err(Error::Stale));
    disk.on_write_back(|_| WriteBackResult::Failed);
    assert!(matches!(fs.write(&file, 0, b"x"), Err(Error::Io(_))));
    assert!(matches!(fs.fsync(&file, false), Err(Error::Io(_))));
    assert!(matches!(fs.sync(), Err(Error::Io(_))));
    fs.release(file);
    drop(fs);
    assert!(matches!(volume.close(), Err(VolumeError::Region(_))));
}

#[test]
fn callers_past_the_mount_learn_what_the_kernel_has() {
    let volume = fresh(Variant::Heddle, 8 * MIB);
    let fs = volume.fs();
    let file = fs.new_file(Ino::ROOT, "f");
    let pages = || fs.kernel_pages(&file).unwrap();
    assert!(!pages().are_kept() && !pages().have_others());
    fs.note_kernel_pages(&file, true);
    assert!(pages().are_kept());
    fs.note_kernel_pages(&file, false);
    fs.note_openers(&file, Openers { open: 2, past_kernel: 0 });
    assert!(!pages().are_kept() && pages().have_others());
    let mine = fs.core.process_slot().unwrap().tag().word();
    assert!(fs.daemon() == mine && mine > 1);
    let attribute = |text| XattrName::new(text).unwrap();
    let (capability, other) = (&b"security.capability"[..], &b"user.capability"[..]);
    for (text, is_set, gives_rights) in
        [(other, true, false), (capability, true, true), (other, false, true), (capability, false, false)]
    {
        match is_set {
            true => fs.setxattr(&root(), file.ino, attribute(text), b"v", SetXattr::Any).unwrap(),
            false => fs.removexattr(&root(), file.ino, attribute(text)).unwrap(),
        }
        assert_eq!(pages().changes_take_rights(), gives_rights, "{text:?} {is_set}");
    }
    fs.release(file);
    volume.unmount();
}

/// A signal handler asks the daemon for a change of a file whose latch the interrupted call holds.
#[test]
fn a_thread_that_holds_a_latch_of_a_file_has_interrupted_itself() {
    let volume = fresh(Variant::Heddle, 8 * MIB);
    let fs = volume.fs();
    let (file, other) = (fs.new_file(Ino::ROOT, "f"), fs.new_file(Ino::ROOT, "g"));
    // SAFETY: reads a number, cannot fail.
    let thread = unsafe { libc::gettid() } as u32;
    let has = |thread, file: &Handle| fs.has_interrupted_itself(thread, file.ino);
    fs.core.root().attached.store(1, SeqCst);
    assert!(!has(thread, &file), "it is in no call");
    let guard = enter(&fs.core).unwrap();
    let latch = fs.core.inode(file.ino).unwrap().volatile.eof.lock();
    assert!(has(thread, &file));
    assert!(!has(thread, &other) && !has(thread + 1, &file) && !has(0, &file));
    fs.core.root().attached.store(0, SeqCst);
    assert!(!has(thread, &file), "no process has a library");
    drop(latch);
    drop(guard);
    fs.release(file);
    fs.release(other);
    volume.unmount();
}

/// mmap(2): the kernel asks nothing when a program stores to a page.
#[test]
fn blocks_for_mapped_stores_are_taken_once_space_is_short() {
    let volume = fresh(Variant::Heddle, 4 * MIB);
    let fs = volume.fs();
    let (file, rest) = (fs.new_file(Ino::ROOT, "f"), fs.new_file(Ino::ROOT, "rest"));
    fs.resize(&file, 4 * PAGE).unwrap();
    let blocks = || fs.getattr(file.ino).unwrap().blocks_512 / 8;
    assert_eq!((fs.expect_stores(&file, PAGE, PAGE), blocks()), (Ok(()), 0), "there is plenty");
    let mut end = 0;
    while fs.write(&rest, end, &[1; 8 * PAGE as usize]) == Ok(8 * PAGE as usize) {
        end += 8 * PAGE;
    }
    fs.resize(&rest, end - 24 * PAGE).unwrap();
    assert_eq!((fs.expect_stores(&file, PAGE, PAGE), blocks()), (Ok(()), 1));
    assert_eq!((fs.expect_stores(&file, PAGE, PAGE), blocks()), (Ok(()), 1), "it has one");
    assert_eq!((fs.expect_stores(&file, PAGE, u64::MAX), blocks()), (Ok(()), 3), "up to the end");
    assert_eq!((fs.expect_stores(&file, 4 * PAGE, PAGE), blocks()), (Ok(()), 3), "behind the end");
    let reader = fs.open(&root(), file.ino, OpenFlags::READ).unwrap();
    assert_eq!(fs.expect_stores(&reader, 0, PAGE), Err(Error::BadHandle));
    [reader, file, rest].into_iter().for_each(|handle| fs.release(handle));
    volume.unmount();
}

/// write(2): fewer bytes than asked for where the file may grow by no more.
#[test]
fn a_write_of_2_gib_is_not_too_long() {
    // Zeros that take no memory until they are read.
    let longest = vec![0; 2 << 30];
    let volume = fresh(Variant::Heddle, 8 * MIB);
    let fs = volume.fs();
    let file = fs.new_file(Ino::ROOT, "f");
    assert_eq!(fs.write(&file, OFFSET_MAX_BYTES - 3, &longest), Ok(3));
    assert_eq!(fs.size(&file), OFFSET_MAX_BYTES);
    fs.release(file);
    volume.unmount();
}

#[test]
fn times_are_those_of_the_realtime_clock() {
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Time(since.as_nanos() as i64)
    };
    let start = now();
    let exact = crate::clock::exact();
    assert!(start <= exact && exact <= now());
    // Not more than some ticks behind.
    let coarse = crate::clock::coarse();
    assert!(coarse.0 <= now().0 && coarse.0 > start.0 - 1_000_000_000, "{coarse:?} after {start:?}");
}
