use super::*;
use crate::format::extent_list::{self, EXTENTS_A_BLOCK};
use crate::fs::NvmFs;
use crate::ids::Version;
use crate::state::lease;
use crate::variant::Variant;
use crate::volume::{MountOptions, format, mount};
use heddle_pmem::Region;
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, OpenFlags, RangeOp};

const PAGE: u64 = 4096;

fn write(fs: &NvmFs, file: &Handle, pages: std::ops::Range<u64>) {
    pages.for_each(|page| assert_eq!(fs.write(file, page * PAGE, &[1; PAGE as usize]), Ok(PAGE as usize)));
}

/// The living records in the first page of the file's second chain.
fn second_chain(fs: &NvmFs, file: &Handle) -> Alive {
    let inode = fs.core.inode(file.ino).unwrap();
    let _inside = lease::enter(&fs.core).unwrap();
    let chain = chain::existing(&fs.core, inode).nth(1).unwrap();
    let alive = read_page(&fs.core, inode, chain.head().unwrap(), chain).unwrap();
    lease::leave(&fs.core);
    alive
}

/// A file whose first pages are written; a punch is alone in its second chain, and the first has older records. Returns the first byte of
/// each page as the next mount finds it.
fn punched(written: u64, pages: u64, and_then: impl FnOnce(&NvmFs, &Handle)) -> Vec<u8> {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let mount_it = || {
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        mount(region.map_again().unwrap(), &options).unwrap()
    };
    let volume = mount_it();
    let fs = volume.fs();
    let name = Name::new(b"f").unwrap();
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    write(&fs, &file, 0..written);
    let punch = || fs.fallocate(&file, RangeOp::Punch, 0, pages * PAGE).unwrap();
    std::thread::scope(|scope| scope.spawn(punch).join().unwrap());
    and_then(&fs, &file);
    fs.release(file);
    drop(fs);
    volume.abandon();
    let volume = mount_it();
    let fs = volume.fs();
    let ino = fs.lookup(&Cred::root(), Ino::ROOT, name).unwrap().ino;
    let file = fs.open(&Cred::root(), ino, OpenFlags::READ).unwrap();
    let mut bytes = vec![0; (written * PAGE) as usize];
    assert_eq!(fs.read(&file, 0, &mut bytes), Ok(bytes.len()));
    fs.release(file);
    bytes.into_iter().step_by(PAGE as usize).collect()
}

/// It was: a write that made the range too large to look at, while its page was moved, had the page freed.
#[test]
fn a_punch_that_cannot_be_moved_keeps_its_page() {
    punched(64, 1 << 20, |fs, file| {
        let found = second_chain(fs, file);
        assert!(found.movable && !found.only_verbatim() && found.punch_runs == 1);
        write(fs, file, 62..70);
        let again = second_chain(fs, file);
        assert!(!again.movable && again.punches.is_empty() && !again.only_verbatim());
    });
}

#[test]
fn a_punch_is_dead_when_all_its_pages_are_written_again() {
    punched(64, 60, |fs, file| {
        write(fs, file, 0..59);
        let found = second_chain(fs, file);
        assert_eq!(
            found.punches.iter().map(|(_, runs)| runs.clone()).collect::<Vec<_>>(),
            [[(PageNo(59), PageNo(60))]]
        );
        write(fs, file, 59..60);
        assert!(second_chain(fs, file).only_verbatim());
    });
}

#[test]
fn pages_that_come_later_are_not_decided_by_a_punch() {
    punched(4, 1 << 20, |fs, file| {
        // Page 5 gets a cell, and so do its neighbours.
        write(fs, file, 5..6);
        assert_eq!(second_chain(fs, file).punch_runs, 1, "pages 0 to 3");
        write(fs, file, 0..4);
        assert!(second_chain(fs, file).only_verbatim());
    });
}

/// Its copy reached to its old end, at a version of its own: what was written since read as zeros.
#[test]
fn a_moved_punch_covers_only_the_pages_that_it_decides() {
    let firsts = punched(10, 8, |fs, file| {
        write(fs, file, 2..4);
        write(fs, file, 7..8);
        // Versions behind those of the writes: a later punch raises the floor.
        for _ in 0..3 {
            fs.fallocate(file, RangeOp::Punch, 9 * PAGE, PAGE).unwrap();
        }
        let core = &fs.core;
        let inode = core.inode(file.ino).unwrap();
        let mut guard = lease::enter(core).unwrap();
        let own = commit::chain_of(core, &mut guard, inode).unwrap();
        let second = chain::existing(core, inode).nth(1).unwrap();
        assert!(second.claim_quiet(guard.id));
        assert_eq!(move_page(core, &mut guard, inode, second, own, Eof::NotHeld), Ok(true));
        second.unclaim();
        drop(guard);
        lease::leave(core);
    });
    assert_eq!(firsts, [0, 0, 1, 1, 0, 0, 0, 1, 1, 0]);
}

/// The log has one chain, so nothing older is elsewhere.
#[test]
fn a_shift_is_alive_while_a_page_has_its_place_from_it() {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
    let fs = volume.fs();
    let name = Name::new(b"f").unwrap();
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    write(&fs, &file, 0..8);
    fs.fallocate(&file, RangeOp::Collapse, 0, PAGE).unwrap();
    let core = &fs.core;
    let inode = core.inode(file.ino).unwrap();
    let chain = chain::existing(core, inode).next().unwrap();
    let page = chain.head().unwrap();
    let scan = crate::upkeep::recovery::scan(core);
    let header = scan.header(inode.id(), chain.number(), page).unwrap();
    let records = scan.page(inode.id(), &header, page, SLOTS + 1).unwrap().records;
    let is_shift = |record: &&Record| matches!(record, Record::Remap { .. });
    let shift = records.iter().map(|(_, record)| record).find(is_shift).unwrap();
    assert!(alive(core, inode, shift, Some(chain)), "all pages");
    write(&fs, &file, 0..6);
    assert!(alive(core, inode, shift, Some(chain)), "the last page");
    write(&fs, &file, 6..7);
    assert!(!alive(core, inode, shift, Some(chain)), "no page");
    fs.release(file);
    lease::leave(core);
    drop(fs);
    volume.unmount();
}

/// A volume with one file, of four pages.
fn four_pages() -> (crate::volume::Volume, NvmFs, Handle) {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
    let fs = volume.fs();
    let name = Name::new(b"f").unwrap();
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    write(&fs, &file, 0..4);
    (volume, fs, file)
}

#[test]
fn a_part_of_a_write_is_logged_again_with_its_own_blocks() {
    let (volume, fs, file) = four_pages();
    let inode = fs.core.inode(file.ino).unwrap();
    let write = |blocks, end_in_last_page| {
        let (version, mtime, change_count) = (Version(70), heddle_vfs::Time(0), 0);
        Record::Write { page: PageNo(10), pages: 5, blocks, end_in_last_page, version, mtime, change_count }
    };
    let part = |record: Record, (first, stop)| {
        let again = new_write_record(inode, &record, PageNo(first), PageNo(stop))?;
        let Record::Write { page, pages, blocks, end_in_last_page, version, .. } = again else { panic!() };
        let block = match blocks {
            Blocks::At(block) => (block.0, "data"),
            Blocks::Unwritten(block) => (block.0, "unwritten"),
            Blocks::List(_) => panic!(),
        };
        Some((page.0, pages, block, end_in_last_page, version.0))
    };
    let at = Blocks::At(BlockNo(100));
    assert_eq!(part(write(at, 77), (10, 15)), Some((10, 5, (100, "data"), 77, 71)));
    inode.volatile.raise_floor(Version(90));
    assert_eq!(part(write(at, 77), (12, 15)), Some((12, 3, (102, "data"), 77, 91)));
    assert_eq!(
        part(write(at, 77), (12, 14)),
        Some((12, 2, (102, "data"), 4096, 91)),
        "a page inside is full"
    );
    assert_eq!(part(write(at, 0), (12, 14)), Some((12, 2, (102, "data"), 0, 91)), "it says no size");
    let unwritten = Blocks::Unwritten(BlockNo(100));
    assert_eq!(part(write(unwritten, 0), (11, 12)), Some((11, 1, (101, "unwritten"), 0, 91)));
    assert_eq!(part(write(Blocks::List(BlockNo(100)), 0), (11, 12)), None);
    fs.release(file);
    lease::leave(&fs.core);
    drop(fs);
    volume.unmount();
}

#[test]
fn a_page_of_punches_with_too_many_runs_is_not_moved() {
    let (volume, fs, file) = four_pages();
    fs.fallocate(&file, RangeOp::Punch, PAGE, PAGE).unwrap();
    let core = &fs.core;
    let inode = core.inode(file.ino).unwrap();
    let (_, version) = cell_state(core, inode, PageNo(1));
    let mtime = heddle_vfs::Time(0);
    // It decides one run.
    let punch = || Record::Punch { page: PageNo(1), pages: 1, version, mtime, change_count: 0 };
    let mut found = Alive { movable: true, punch_runs: 4 * 63 - 1, ..Alive::default() };
    found.add(core, inode, punch());
    assert!(found.movable && found.punch_runs == 4 * 63);
    found.add(core, inode, punch());
    assert!(!found.movable && found.punches.len() == 2);
    fs.release(file);
    lease::leave(core);
    drop(fs);
    volume.unmount();
}

/// Stores an extent list of these blocks at the image's end, where all is free.
fn list_of_extents(core: &Core, inode: InodeRef<'_>, extents: &[(u64, u64)]) -> BlockNo {
    let list = BlockNo(core.layout.blocks_total - 9);
    let extents: Vec<Extent> =
        extents.iter().map(|(block, count)| Extent { block: BlockNo(*block), count: *count }).collect();
    let words = extent_list::encode(core.seed, inode.id(), list, &extents, None);
    (0..).zip(words).for_each(|(n, word)| core.region.store_u64(list.pos().plus(n * 8), word));
    list
}

#[test]
fn a_list_is_logged_anew_as_the_extents_that_map_a_page() {
    let (volume, fs, file) = four_pages();
    let (core, inode) = (&fs.core, fs.core.inode(file.ino).unwrap());
    let version = (0..4).map(|page| cell_state(core, inode, PageNo(page)).1).max().unwrap();
    // The second extent is decided by a later write.
    write(&fs, &file, 1..2);
    while cell_state(core, inode, PageNo(1)).1 <= version {
        write(&fs, &file, 1..2);
    }
    let list = list_of_extents(core, inode, &[(1000, 1), (1100, 1), (1200, 2)]);
    let record = |end_in_last_page, version| {
        let (page, mtime, blocks) = (PageNo(0), heddle_vfs::Time(5), Blocks::List(list));
        Record::Write { page, pages: 4, blocks, end_in_last_page, version, mtime, change_count: 0 }
    };
    let found = |record| {
        let mut found = Alive { movable: true, ..Alive::default() };
        found.add(core, inode, record);
        found
    };
    let parts = |record| {
        let found = found(record);
        assert!(found.movable && found.list_runs == found.writes.len() && !found.only_verbatim());
        let part = |record: &Record| match *record {
            Record::Write {
                page, pages, blocks: Blocks::At(block), end_in_last_page, version: v, ..
            } => {
                assert_eq!(v, version);
                (page.0, pages, block.0, end_in_last_page)
            }
            _ => panic!("{record:?}"),
        };
        found.writes.iter().map(part).collect::<Vec<_>>()
    };
    assert_eq!(parts(record(77, version)), [(0, 1, 1000, 4096), (2, 2, 1200, 77)]);
    assert_eq!(parts(record(0, version)), [(0, 1, 1000, 0), (2, 2, 1200, 0)], "it says no size");
    core.region.store_u64(list.pos(), 0);
    assert!(!found(record(77, version)).movable, "the list cannot be read");
    fs.release(file);
    lease::leave(core);
    drop(fs);
    volume.unmount();
}

#[test]
fn a_long_list_is_logged_anew_in_several_steps() {
    let (volume, fs, file) = four_pages();
    let (core, inode) = (&fs.core, fs.core.inode(file.ino).unwrap());
    let extents: Vec<(u64, u64)> = (0..200).map(|n| (1000 + 2 * n, 1)).collect();
    assert!(extents.len() < EXTENTS_A_BLOCK);
    let blocks = Blocks::List(list_of_extents(core, inode, &extents));
    let (page, mtime, version) = (PageNo(100), heddle_vfs::Time(5), Version(9));
    let mut found = Alive { movable: true, ..Alive::default() };
    let record =
        Record::Write { page, pages: 200, blocks, end_in_last_page: 1, version, mtime, change_count: 0 };
    for runs in [200, 252, 252] {
        found.add(core, inode, record.clone());
        assert_eq!((found.writes.len(), found.list_runs, found.movable), (runs, runs, true));
    }
    let Blocks::List(list) = blocks else { unreachable!() };
    for (max, made) in [(0, 0), (3, 3), (200, 200), (201, 200)] {
        let writes = extents_of_list(core, inode, &record, list, max).unwrap();
        assert_eq!((writes.len(), writes.first()), (made, found.writes.first().filter(|_| max > 0)));
    }
    let may_move = |punch_runs, list_runs| {
        Alive { movable: true, punch_runs, list_runs, ..Alive::default() }.may_move(core)
    };
    assert!(may_move(252, 600) && !Alive::default().may_move(core));
    let data = crate::state::free_map::Purpose::Data;
    assert!(!core.free_map().take(&mut 0, 1 << 30, data, &mut Vec::new()) && core.free_map().scarce());
    assert_eq!([may_move(0, 63), may_move(30, 33), may_move(30, 34)], [true, true, false]);
    fs.release(file);
    lease::leave(core);
    drop(fs);
    volume.unmount();
}
