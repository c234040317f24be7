//! What an image says of itself, which images are none, and how a mount ends.

use crate::clock;
use crate::format::inode::CHUNK_INODES;
use crate::format::layout::{Layout, REGION_BYTES_MIN, chunk_of, inode_pos};
use crate::format::superblock::{Superblock, VERSION};
use crate::fsck::examine;
use crate::ids::BlockNo;
use crate::region::Region;
use crate::variant::Variant;
use crate::volume::{
    ImageInfo, MountOptions, VolumeError, arena, format, inspect, mount, read_superblock, sane, size_in_use,
};
use heddle_pmem::{BLOCK_BYTES, OpenOptions, Pos};
use heddle_vfs::short::Short;
use heddle_vfs::{Error, FileSystem, Ino};
use std::sync::atomic::Ordering::SeqCst;
use zerocopy::little_endian::U64;

const MIB: u64 = 1 << 20;

fn formatted(len_bytes: u64) -> Region {
    let region = Region::anonymous(len_bytes).unwrap();
    format(&region, Variant::Heddle).unwrap();
    region
}

fn options() -> MountOptions<'static> {
    MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }
}

fn said(region: &Region) -> ImageInfo {
    inspect("image".as_ref(), region.len_bytes(), &|at, into| region.read(at, into)).unwrap()
}

#[test]
fn an_image_says_when_it_was_made_and_how_it_was_left() {
    let start = clock::exact();
    let region = formatted(8 * MIB);
    let made = said(&region);
    assert_eq!((made.version, made.variant, made.bytes, made.epoch), (VERSION, Variant::Heddle, 8 * MIB, 0));
    assert_eq!((made.clean, made.is_half_repaired, made.mounted), (true, false, None));
    assert!(start <= made.made && made.made <= clock::exact());
    assert_ne!(made.uuid, said(&formatted(8 * MIB)).uuid, "no other image has it");
    assert_eq!(read_superblock(&region).unwrap().seed(), crc32c::crc32c(&made.uuid));
    let volume = mount(region.map_again().unwrap(), &options()).unwrap();
    assert!(volume.was_clean() && volume.memory_bytes() > 4096);
    let mounted = said(&region);
    assert_eq!((mounted.clean, mounted.epoch, mounted.uuid), (false, 1, made.uuid));
    assert!(mounted.mounted.is_some_and(|at| at >= made.made));
    assert_eq!(mounted.made, made.made);
    volume.abandon();
    let volume = mount(region.map_again().unwrap(), &options()).unwrap();
    assert!(!volume.was_clean());
    volume.keep_logs_short();
    assert_eq!(volume.fs.core.root().short_logs.load(SeqCst), 1);
    volume.close().unwrap();
    let closed = said(&region);
    assert_eq!((closed.clean, closed.epoch), (true, 2));
    let volume = mount(region, &options()).unwrap();
    assert_eq!((volume.was_clean(), volume.damage_found()), (true, None));
    volume.fs.core.damage("inode 5".to_owned());
    assert!(volume.damage_found().is_some_and(|text| text.contains("inode 5")));
    volume.abandon();
}

/// The superblock of an image of so many blocks, as the layout has it.
fn of_blocks(sb: &Superblock, blocks: u64) -> Superblock {
    let layout = Layout::new(blocks);
    Superblock {
        blocks_total: U64::new(blocks),
        inode_dir_block: U64::new(layout.inode_dir.0),
        inode_dir_pointers: U64::new(layout.chunks_max),
        data_block: U64::new(layout.data.0),
        ..*sb
    }
}

#[test]
fn a_superblock_counts_if_all_its_numbers_fit_each_other() {
    let sb = read_superblock(&formatted(8 * MIB)).unwrap();
    for (blocks, is_sane) in
        [(1023, false), (1024, true), (1025, true), (4096, true), ((1 << 40) - 1, true), (1 << 40, false)]
    {
        assert_eq!(sane(&of_blocks(&sb, blocks)), is_sane, "{blocks} blocks");
    }
    let more = |value: U64| U64::new(value.get() + 1);
    for wrong in [
        Superblock { inode_dir_block: more(sb.inode_dir_block), ..sb },
        Superblock { inode_dir_pointers: more(sb.inode_dir_pointers), ..sb },
        Superblock { data_block: more(sb.data_block), ..sb },
        Superblock { data_block: U64::new(0), ..sb },
        Superblock { blocks_total: U64::new(4096), ..sb },
    ] {
        assert!(!sane(&wrong), "{wrong:?}");
    }
}

#[test]
fn an_image_of_memory_that_held_something_else_is_empty_and_sound() {
    for len_bytes in [REGION_BYTES_MIN, 16 * MIB] {
        let region = Region::anonymous(len_bytes).unwrap();
        let block = [0xff; BLOCK_BYTES];
        (0..len_bytes / BLOCK_BYTES as u64).for_each(|n| region.nt_write(BlockNo(n).pos(), &block));
        format(&region, Variant::Heddle).unwrap();
        let verdict = examine("dirty", &region).unwrap();
        assert_eq!((verdict.found(), verdict.changes().count()), (0, 0), "{:?}", verdict.issues);
        let volume = mount(region, &options()).unwrap();
        assert_eq!(volume.fs().find(Ino::ROOT, "f").map(drop), Err(Error::NotFound));
        volume.fs().release(volume.fs().new_file(Ino::ROOT, "f"));
        volume.close().unwrap();
    }
}

#[test]
fn an_image_extends_as_far_as_its_superblock_says() {
    let region = formatted(8 * MIB);
    let read = |at: Pos, into: &mut [u8]| region.read(at, into);
    assert_eq!(size_in_use(8 * MIB, &read), Some(8 * MIB));
    assert_eq!(size_in_use(4 * MIB, &read), None, "the file is too short");
    assert_eq!(size_in_use(8 * MIB, &|_, into| into.fill(0)), None);
    let zeros = Region::anonymous(8 * MIB).unwrap();
    let refused = mount(zeros, &options()).map(drop).unwrap_err().to_string();
    assert!(refused.starts_with("cannot mount (memory): "), "{refused}");
}

#[test]
fn a_segment_that_no_lock_can_have_is_refused() {
    let region = Region::anonymous(8 * MIB).unwrap();
    format(&region, Variant::NovaArray).unwrap();
    for (segment_bytes, is_one) in [(4095, false), (2048, false), (4096, true), (8192, true)] {
        let mounted = mount(region.map_again().unwrap(), &MountOptions { segment_bytes, ..options() });
        let refused = matches!(&mounted, Err(VolumeError::Lock { .. }));
        assert_eq!((mounted.is_ok(), refused), (is_one, !is_one), "{segment_bytes}");
        mounted.into_iter().for_each(|volume| volume.unmount());
    }
}

/// A store to its mapping would end the process.
#[test]
fn a_file_opened_for_reading_is_mounted_for_reading() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    format(&Region::create(&path, 8 * MIB, &OpenOptions::default()).unwrap(), Variant::Heddle).unwrap();
    let how = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = mount(Region::open(&path, &how).unwrap(), &options()).unwrap();
    assert_eq!(volume.fs().try_dir(Ino::ROOT, "d"), Err(Error::ReadOnly));
    volume.close().unwrap();
}

#[test]
fn an_unmount_frees_open_files_without_a_name_in_every_chunk() {
    let region = formatted(8 * MIB);
    let volume = mount(region.map_again().unwrap(), &options()).unwrap();
    let fs = volume.fs();
    let names: Vec<String> = (0..600).map(|n| format!("f{n}")).collect();
    let files: Vec<_> = names.iter().map(|text| fs.new_file(Ino::ROOT, text)).collect();
    let core = &volume.fs.core;
    let at = |ino: Ino| inode_pos(core.chunk_block(ino), chunk_of(ino).1);
    let chunks = 1 + files.iter().map(|file| file.ino.0 / CHUNK_INODES).max().unwrap();
    assert!(chunks > 4, "{chunks} chunks");
    let places: Vec<Pos> = files.iter().map(|file| at(file.ino)).collect();
    names.iter().step_by(2).for_each(|text| fs.remove(Ino::ROOT, text).unwrap());
    drop(fs);
    volume.close().unwrap();
    for (n, place) in places.into_iter().enumerate() {
        assert_eq!(region.line(place) == [0; 8], n % 2 == 0, "file {n}");
    }
    assert!(said(&region).clean);
    assert_eq!(examine("closed", &region).unwrap().found(), 0);
    files.into_iter().for_each(std::mem::forget);
}

#[test]
fn a_damaged_image_is_unmounted_as_it_is_and_not_marked_clean() {
    let region = formatted(8 * MIB);
    let volume = mount(region.map_again().unwrap(), &options()).unwrap();
    let fs = volume.fs();
    let file = fs.new_file(Ino::ROOT, "f");
    fs.remove(Ino::ROOT, "f").unwrap();
    fs.core.damage("a test".to_owned());
    drop(fs);
    assert!(volume.close().is_ok(), "the damage itself has been told");
    assert!(!said(&region).clean);
    let _never_released = file;
}

/// Address space that this process may still map, in MiB, for the arena of a gigabyte.
fn arena_within(mib: u64) -> Result<usize, String> {
    // SAFETY: the child maps memory and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let used = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = used.split(' ').next().unwrap().parse().unwrap();
        let most = pages * 4096 + mib * MIB;
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a limit of this process, which is about to end.
        let is_set = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) } == 0;
        let mapped = arena(1 << 30).map_or(0, |arena| arena.capacity_bytes() >> 20);
        // SAFETY: ends this process. In units of 64 MiB, as an exit code has 8 bits.
        unsafe { libc::_exit(if is_set { (mapped >> 6) as i32 } else { 255 }) };
    }
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, code) if code != 255 => Ok(code as usize * 64),
        _ => Err(format!("{status:#x}")),
    }
}

#[test]
fn an_arena_of_less_than_256_mib_is_none() {
    assert_eq!(arena_within(200), Ok(0));
    let room = arena_within(400).unwrap();
    assert!((192..=256).contains(&room), "{room} MiB");
}
