//! Which logs are too long and which records are dead, at the very limits.

use super::*;
use crate::alloc::{Purpose, take_block};
use crate::file::write_heddle::cell_state;
use crate::format::record::{Attributes, NameBuf};
use crate::fs::NvmFs;
use crate::ids::InodeId;
use crate::state::lease;
use crate::variant::Variant;
use crate::volume::{MountOptions, Volume, format, mount};
use heddle_pmem::Region;
use heddle_vfs::short::{Short, root};
use heddle_vfs::{FileSystem, Handle, Ino, RangeOp, SetAttr, SetXattr, Time, XattrName};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

const PAGE: u64 = 4096;

fn mounted() -> Volume {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap()
}

fn end(volume: Volume, fs: NvmFs, file: Handle) {
    fs.release(file);
    lease::leave(&fs.core);
    drop(fs);
    volume.abandon();
}

fn write(fs: &NvmFs, file: &Handle, pages: Range<u64>) {
    pages.for_each(|page| assert_eq!(fs.write(file, page * PAGE, &[1; PAGE as usize]), Ok(PAGE as usize)));
}

/// Writes in another thread, which has a chain of its own.
fn write_elsewhere(fs: &NvmFs, file: &Handle, pages: Range<u64>) {
    std::thread::scope(|scope| scope.spawn(|| write(fs, file, pages)).join().unwrap());
}

fn chmod(fs: &NvmFs, ino: Ino) {
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    fs.setattr(&root(), ino, None, &set).unwrap();
}

/// A page has 63 slots. A record is alive for each block, two slots for each name, and two for attributes.
#[test]
fn a_log_is_too_long_beyond_four_times_what_can_be_alive() {
    let volume = mounted();
    let fs = volume.fs();
    let core = &fs.core;
    let file = fs.new_file(Ino::ROOT, "f");
    let inode = core.inode(file.ino).unwrap();
    write(&fs, &file, 0..1);
    let set = |inode: InodeRef<'_>, blocks: i64, pages: u64| {
        inode.volatile.count_blocks(blocks - inode.volatile.blocks_counted() as i64);
        core.arena.get(inode.volatile.chains.load(SeqCst)).counts.pages.store(pages, SeqCst);
    };
    // Chains, blocks; most pages usually, and on a full image; those needed.
    let check = |chains: usize, blocks, most, most_if_full, needed| {
        assert_eq!(chain::existing(core, inode).count(), chains);
        let is = |pages, long: fn(&Core, InodeRef<'_>) -> bool| {
            set(inode, blocks, pages);
            long(core, inode)
        };
        assert_eq!([most, most + 1].map(|pages| is(pages, too_long)), [false, true], "{blocks} blocks");
        core.root().short_logs.store(1, SeqCst);
        let if_full = [most_if_full, most_if_full + 1].map(|pages| is(pages, too_long));
        core.root().short_logs.store(0, SeqCst);
        assert_eq!(if_full, [false, true], "{blocks} blocks on a full image");
        assert_eq!([needed, needed + 1].map(|pages| is(pages, can_shrink)), [false, true]);
    };
    check(1, 61, 4 + 2 + 4, 1 + 1, 1);
    check(1, 62, 4 + 2 + 8, 1 + 2, 2);
    write_elsewhere(&fs, &file, 1..2);
    check(2, 61, 4 + 4 + 4, 2 + 1, 1);
    check(2, 62, 4 + 4 + 8, 2 + 2, 2);
    let dir = core.inode(Ino::ROOT).unwrap();
    let names = table::count(core, dir);
    assert!(names > 0);
    let room = 63 - 2 - 2 * names as i64;
    let needed = [room, room + 1].map(|blocks| {
        set(dir, blocks, 1);
        pages_needed(core, dir)
    });
    assert_eq!(needed, [1, 2]);
    let steps = |pages| {
        set(inode, 61, pages);
        let mut steps = 0;
        while_too_long(core, inode, || steps += 1);
        steps
    };
    assert_eq!([12, 13].map(steps), [0, 1]);
    let guard = lease::enter(core).unwrap();
    while take_block(core.free_map(), &core.region, guard.own, Purpose::Regain).is_some() {}
    drop(guard);
    assert!(core.free_map().scarce());
    assert_eq!([3, 1000].map(steps), [0, 8], "on a full image");
    end(volume, fs, file);
}

#[test]
fn a_superseded_write_stays_only_if_it_alone_says_the_size() {
    let volume = mounted();
    let fs = volume.fs();
    let core = &fs.core;
    let file = fs.new_file(Ino::ROOT, "f");
    let inode = core.inode(file.ino).unwrap();
    let write_end = || fs.write(&file, 3 * PAGE, &[1; 100]).unwrap();
    write(&fs, &file, 0..3);
    write_end();
    chmod(&fs, file.ino);
    write(&fs, &file, 0..3);
    write(&fs, &file, 0..3);
    write_end();
    let version = |page| cell_state(core, inode, PageNo(page)).1;
    assert!(version(3) < version(1) && version(1) == version(2));
    // The neighbour behind the range is older than the range.
    let maps = |first, end, version| maps_a_page(core, inode, PageNo(first), PageNo(end), version);
    assert!(!maps(1, 3, version(3)) && maps(1, 4, version(3)) && maps(1, 3, version(1)));
    assert!(maps(3, 5, Version(0)), "a page that has no cell");
    let (old, count) = (Version(version(3).0 - 1), inode.volatile.change_count());
    assert!(old.0 > 0 && count > 0);
    let record =
        PlainWrite { page: PageNo(1), pages: 3, end_in_last_page: 100, version: old, change_count: count };
    let is_alive = |write: PlainWrite| write_alive(core, inode, &write);
    assert!(!is_alive(record), "a later write of the last page says the size");
    assert!(is_alive(PlainWrite { version: version(3), end_in_last_page: 0, ..record }), "it maps a page");
    fs.fallocate(&file, RangeOp::Punch, 3 * PAGE, PAGE).unwrap();
    assert_eq!((inode.volatile.size(), inode.volatile.change_count()), (3 * PAGE + 100, count));
    assert!(is_alive(record), "no other write says the size");
    assert!(is_alive(PlainWrite { end_in_last_page: 101, ..record }));
    assert!(!is_alive(PlainWrite { end_in_last_page: 99, ..record }), "the file is longer");
    assert!(!is_alive(PlainWrite { end_in_last_page: 0, ..record }), "it says none");
    assert!(!is_alive(PlainWrite { change_count: count - 1, ..record }), "attributes since then say it");
    end(volume, fs, file);
}

#[test]
fn older_records_are_only_in_chains_with_an_older_first_page() {
    let volume = mounted();
    let fs = volume.fs();
    let core = &fs.core;
    for is_between in [true, false] {
        let file = fs.new_file(Ino::ROOT, if is_between { "f" } else { "g" });
        let inode = core.inode(file.ino).unwrap();
        let chain = |nth| chain::existing(core, inode).nth(nth).unwrap();
        write(&fs, &file, 0..10);
        assert!(!older_elsewhere(core, inode, chain(0)), "there is no other chain");
        // The second page of the first chain is made before or after the second chain.
        if is_between {
            write_elsewhere(&fs, &file, 100..101);
            write(&fs, &file, 10..80);
        } else {
            write(&fs, &file, 10..80);
            write_elsewhere(&fs, &file, 100..101);
        }
        assert_eq!(chain::existing(core, inode).count(), 2);
        let [first, second] = [0, 1].map(|nth| first_era(core, inode, chain(nth)).unwrap());
        assert!(first < second);
        assert_eq!(older_elsewhere(core, inode, chain(0)), is_between);
        assert!(older_elsewhere(core, inode, chain(1)));
        fs.release(file);
    }
    let file = fs.new_file(Ino::ROOT, "h");
    end(volume, fs, file);
}

#[test]
fn a_removal_stays_while_an_older_record_of_its_name_may_count() {
    let volume = mounted();
    let fs = volume.fs();
    let core = &fs.core;
    let file = fs.new_file(Ino::ROOT, "there");
    let dir = core.inode(Ino::ROOT).unwrap();
    let named = table::find(core, dir, table::key(core, b"there")).unwrap().unwrap();
    let record = |removed, of: InodeId, name: &[u8], version| Record::Name {
        dir: of,
        removed,
        child: named.child,
        kind: named.kind,
        name: NameBuf::new(name),
        version,
        mtime: Time(0),
        change_count: 0,
    };
    assert_eq!(chain::existing(core, dir).count(), 1);
    let first = chain::existing(core, dir).next();
    let is_alive = |record: &Record, first_of| alive(core, dir, record, first_of);
    let (id, later) = (dir.id(), named.version.next());
    let other = InodeId { generation: id.generation + 1, ..id };
    let gone = record(true, id, b"gone", later);
    assert!(is_alive(&gone, None) && !is_alive(&gone, first), "in the first page nothing is older");
    assert!(!is_alive(&record(true, other, b"gone", later), None), "its directory has a copy");
    let again = |version| is_alive(&record(true, id, b"there", version), None);
    assert!(!again(Version(named.version.0 - 1)), "the name was made again");
    assert!(again(named.version) && again(later), "of two records of one version the removal counts");
    assert!(is_alive(&record(false, id, b"there", named.version), None));
    assert!(!is_alive(&record(false, other, b"there", named.version), None), "its directory has a copy");
    dir.volatile.note_foreign_record(dir.volatile.attributes_change_count.load(SeqCst));
    assert!(is_alive(&gone, first), "a record of a rename may count, in another log");
    end(volume, fs, file);
}

#[test]
fn of_attribute_records_the_last_one_stays() {
    let volume = mounted();
    let fs = volume.fs();
    let core = &fs.core;
    let file = fs.new_file(Ino::ROOT, "f");
    let inode = core.inode(file.ino).unwrap();
    let name = XattrName::new(b"user.a").unwrap();
    fs.setxattr(&root(), file.ino, name, b"1", SetXattr::Any).unwrap();
    fs.setxattr(&root(), file.ino, name, b"2", SetXattr::Any).unwrap();
    chmod(&fs, file.ino);
    let attributes = |change_count| {
        let (now, perm) = (Time(0), 0o600);
        Record::Attributes(Attributes {
            size: 0,
            perm,
            uid: 0,
            gid: 0,
            mtime: now,
            ctime: now,
            atime: now,
            change_count,
        })
    };
    let xattrs = |change_count| Record::Xattrs { blob: None, change_count, mtime: Time(0) };
    let last = inode.volatile.attributes_change_count.load(SeqCst);
    let last_set = xattr::change_count(core, inode).unwrap();
    assert!(0 < last_set && last_set < last, "{last_set} {last}");
    let is = |record: Record| alive(core, inode, &record, None);
    assert_eq!([last - 1, last, last + 1].map(attributes).map(is), [false, true, true]);
    assert_eq!([last_set - 1, last_set, last_set + 1].map(xattrs).map(is), [false, true, true]);
    end(volume, fs, file);
}
