//! Locks and lanes whose words somebody has written over.

use super::super::{lanes, records, sweep};
use super::*;
use crate::file::blocks::{data_blocks, list_blocks, log_blocks};
use crate::file::shift;
use crate::format::blob::{self, MapRun};
use crate::format::extent_list;
use crate::format::page::{PageHeader, SLOTS, next_pos, slot_pos};
use crate::format::pointer::{self, PointerLocation};
use crate::format::record::{Blocks, FoundRecord, Record, Txn, lane_of, parse};
use crate::ids::{BlockNo, Extent, PageNo, Version};
use crate::log::chain;
use crate::names::table::{self, Named};
use crate::shared::client::{self, AttachError};
use crate::shared::server::{Server, ServerOptions};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::wait::forged;
use crate::steps::Step;
use crate::volume::bench::child;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_vfs::{Error, FileKind, RenameMode, SetXattr, XattrName};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn a_lock_that_nobody_holds_fails_the_call_that_waits_for_it() {
    let bench = bench();
    let fs = bench.volume.fs();
    // Taken outside of any call: its word names no lane.
    std::mem::forget(fs.core.inode(bench.file.ino).unwrap().volatile.eof.lock());
    let (began, size) = (Instant::now(), SetAttr { size_bytes: Some(5), ..SetAttr::default() });
    let waits = || fs.setattr(&Cred::root(), bench.file.ino, None, &size).map(drop);
    assert!(catch_unwind(AssertUnwindSafe(waits)).is_err());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(fs.core.damage_found().is_some_and(|text| text.contains("a lock names lane 0")));
    fs.release(bench.file);
    lease::leave(&fs.core);
}

#[test]
fn who_reads_damaged_attributes_does_not_wait_for_ever_for_a_latch() {
    let bench = bench();
    let fs = bench.volume.fs();
    let (root, ino) = (Cred::root(), bench.file.ino);
    let name = XattrName::new(b"user.a").unwrap();
    fs.setxattr(&root, ino, name, b"1", SetXattr::Any).unwrap();
    let inode = fs.core.inode(ino).unwrap();
    crate::xattr::scribble(&fs.core, inode);
    let began = Instant::now();
    inode.volatile.eof.scribble(0x33);
    assert!(catch_unwind(AssertUnwindSafe(|| fs.getxattr(&root, ino, name))).is_err());
    // Nobody has the latch any more, and still they make no sense.
    inode.volatile.eof.scribble(0);
    assert!(matches!(fs.getxattr(&root, ino, name), Err(Error::Corrupt(_))));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    fs.release(bench.file);
    lease::leave(&fs.core);
}

/// What made a call panic is found once more when its lane is let go of: that ended the process.
#[test]
fn crash_a_panic_over_a_scribbled_lane_ended_the_process() {
    let bench = bench();
    let fs = bench.volume.fs();
    let call = || {
        let guard = lease::enter(&fs.core).unwrap();
        guard.own.scribble_chains();
        panic!("the first");
    };
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    // It is not in a call any more.
    assert!(lease::with_current(|_, _| ()).is_none());
    lease::enter(&fs.core).unwrap().own.rest_scribbled();
    fs.release(bench.file);
    lease::leave(&fs.core);
}

#[test]
fn once_a_lock_was_none_others_are_not_waited_for_as_long() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let waits = |lane: u16, waited: Duration| {
        catch_unwind(AssertUnwindSafe(|| forged::give_up_waiting(core, lane, waited, waited))).is_ok()
    };
    // In a call, and perhaps slow: a lane that is inside is waited for.
    core.lane(9).intent.inside.store(1, SeqCst);
    assert!(waits(9, Duration::from_secs(3)));
    assert!(!waits(9, Duration::from_secs(10_000)));
    assert!(waits(9, Duration::from_millis(20)) && !waits(9, Duration::from_millis(200)));
    core.lane(9).intent.inside.store(0, SeqCst);
    fs.release(bench.file);
    lease::leave(core);
}

#[test]
fn a_scribbled_table_size_makes_nobody_walk_all_memory() {
    let bench = bench();
    let fs = bench.volume.fs();
    let root = fs.core.inode(Ino::ROOT).unwrap();
    let word = root.volatile.aux.load(SeqCst);
    // Of 64 MiB of arena half would be buckets.
    root.volatile.aux.store(word & !63 | 19, SeqCst);
    let looks = || fs.lookup(&Cred::root(), Ino::ROOT, Name::new(b"f").unwrap()).map(drop);
    assert!(catch_unwind(AssertUnwindSafe(looks)).is_err());
    root.volatile.aux.store(word, SeqCst);
    fs.release(bench.file);
    lease::leave(&fs.core);
}

#[test]
fn who_waits_for_lanes_by_turns_gives_up_on_each() {
    let bench = bench();
    let fs = bench.volume.fs();
    let began = Instant::now();
    let gives_up = |lane| {
        let waited = Duration::from_secs(2) + began.elapsed();
        catch_unwind(AssertUnwindSafe(|| forged::give_up_waiting(&fs.core, lane, waited, waited))).is_err()
    };
    while !gives_up(8) && !gives_up(9) {
        assert!(began.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
    fs.release(bench.file);
    lease::leave(&fs.core);
}

/// The name is a directory's, and the inode none: nobody can lock it, whoever asks and however often.
#[test]
fn names_that_contradict_inodes_end_a_rename_by_an_error() {
    let bench = bench();
    let (fs, root) = (bench.volume.fs(), Cred::root());
    let core = &fs.core;
    let (f, g) = (Name::new(b"f").unwrap(), Name::new(b"g").unwrap());
    let (_, other) = fs.create(&root, Ino::ROOT, g, 0o644, OpenFlags::READ_WRITE).unwrap();
    let key = table::key(core, b"f");
    let dir = core.inode(Ino::ROOT).unwrap();
    let named = table::find(core, dir, key).unwrap().unwrap();
    let call = lease::enter(core).unwrap();
    let bucket = table::lock(core, dir, key.hash).unwrap();
    bucket.set_meaning(key, &Named { kind: FileKind::Directory, ..named }).unwrap();
    drop((bucket, call));
    // So that nobody is waited for as long as the first time.
    core.waited_in_vain.store(true, SeqCst);
    let renamed = fs.rename(&root, Ino::ROOT, g, Ino::ROOT, f, RenameMode::Replace);
    assert!(matches!(renamed, Err(Error::Corrupt(_))), "{renamed:?}");
    assert!(matches!(fs.rmdir(&root, Ino::ROOT, f), Err(Error::Corrupt(_))));
    fs.release(other);
    fs.release(bench.file);
    lease::leave(core);
}

#[test]
fn a_circle_of_index_nodes_ends_each_walk() {
    let bench = bench();
    let fs = bench.volume.fs();
    let inode = fs.core.inode(bench.file.ino).unwrap();
    let node = fs.core.arena.alloc_zeroed::<AtomicU64>(512).unwrap();
    fs.core.arena.slice(node, 512).iter().for_each(|link| link.store(node.raw(), SeqCst));
    let (root, sound) = (inode.volatile.index().root, inode.volatile.index().root.load(SeqCst));
    root.store(node.raw() | 4, SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| data_blocks(&fs.core, inode))).is_err());
    // None of them leads to a leaf.
    fs.core.arena.slice(node, 512).iter().for_each(|link| link.store(0, SeqCst));
    fs.core.arena.slice(node, 512)[0].store(node.raw(), SeqCst);
    root.store(node.raw() | 5, SeqCst);
    let runs = || inode.volatile.index().runs(&fs.core.arena, PageNo(4), PageNo::END).count();
    let _ended = catch_unwind(AssertUnwindSafe(runs));
    root.store(sound, SeqCst);
    fs.release(bench.file);
    lease::leave(&fs.core);
}

#[test]
fn a_circle_of_log_pages_ends_each_walk() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let inode = core.inode(bench.file.ino).unwrap();
    let page = chain::existing(core, inode).find_map(|chain| chain.head()).unwrap();
    let before = core.region.load_u64(next_pos(page));
    core.region
        .store_u64(next_pos(page), pointer::encode(core.seed, inode.id(), PointerLocation::Next(page), page));
    assert!(matches!(log_blocks(core, inode), Err(Error::Corrupt(_))));
    core.region.store_u64(next_pos(page), before);
    fs.release(bench.file);
    lease::leave(core);
}

/// A child that dies when the record of its write is durable: its process and lane.
fn dies_when_durable(bench: &Bench) -> (libc::pid_t, u16) {
    dies_in_write(bench, Step::Durable)
}

/// A child that dies in this step of its write of the first page: its process and lane.
pub fn dies_in_write(bench: &Bench, last: Step) -> (libc::pid_t, u16) {
    let core = &bench.volume.fs().core;
    let pid = child(|| {
        hook::set(Some(Arc::new(move |step| {
            if step == last {
                // SAFETY: ends this process.
                unsafe { libc::_exit(3) };
            }
        })));
        drop(bench.volume.fs().write(&bench.file, 0, &[1; PAGE as usize]));
    });
    assert_eq!(libc::WEXITSTATUS(ended(pid, 0)), 3);
    let of_child = |lane: &u16| core.lane(*lane).intent.holder.load(SeqCst) >> 32 == pid as u64;
    (pid, lanes(core).find(of_child).unwrap())
}

/// The first of `count` blocks of which no log page of the file is one: lanes begin at places by chance.
fn apart(core: &Core, inode: InodeRef<'_>, count: u64) -> u64 {
    let used = log_blocks(core, inode).unwrap();
    let ends = (0..3).map(|n| core.layout.blocks_total - 1 - n * count);
    ends.map(|end| end - count)
        .find(|first| {
            !used.iter().any(|used| used.block.0 < first + count && *first < used.block.0 + used.count)
        })
        .unwrap()
}

fn store(core: &Core, block: BlockNo, words: Vec<u64>) {
    for (i, word) in (0..).zip(words) {
        core.region.store_u64(block.pos().plus(i * 8), word);
    }
}

/// Overwrites a record that is a transaction alone.
pub fn forge(core: &Core, inode: InodeRef<'_>, (lane, page, slot): (u16, BlockNo, u32), record: &Record) {
    let header = PageHeader::decode(core.seed, &core.region.line(page.pos())).unwrap();
    let mut draft = record.draft(inode.id(), lane);
    let sealed = draft.seal(header.record_seed(core.seed), slot, Txn { first: slot, slots: 1 }, true);
    core.region.store_line(slot_pos(page, slot), &sealed[0]);
}

/// The thread that removed the file read the list for each of them.
#[test]
fn crash_forged_records_of_one_list_held_the_end_of_their_file() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let inode = core.inode(bench.file.ino).unwrap();
    let blocks = 500;
    let first = apart(core, inode, blocks);
    for block in first..first + blocks {
        let at = BlockNo(block);
        let extents = [Extent { block: at, count: 1 }; extent_list::EXTENTS_A_BLOCK];
        let next = Some(BlockNo(block + 1)).filter(|next| next.0 < first + blocks);
        store(core, at, extent_list::encode(core.seed, inode.id(), at, &extents, next));
    }
    let page = chain::existing(core, inode).find_map(|chain| chain.head()).unwrap();
    let header = PageHeader::decode(core.seed, &core.region.line(page.pos())).unwrap();
    let mut forged = 0;
    for slot in 1..=SLOTS {
        let line = |slot| core.region.line(slot_pos(page, slot));
        let found = parse(header.record_seed(core.seed), inode.id(), slot, line);
        if let FoundRecord::Whole { mut record, slots: 1, txn: Txn { slots: 1, .. }, .. } = found
            && let Record::Write { page: from, pages, blocks: named, .. } = &mut record
        {
            (*from, *named) = (PageNo(0), Blocks::List(BlockNo(first)));
            *pages = blocks * extent_list::EXTENTS_A_BLOCK as u64;
            forge(core, inode, (lane_of(&line(slot)), page, slot), &record);
            forged += 1;
        }
    }
    assert!(forged * blocks > core.layout.blocks_total, "{forged} records");
    assert!(matches!(log_blocks(core, inode), Err(Error::Corrupt(_))));
    fs.release(bench.file);
    lease::leave(core);
    drop(fs);
    bench.volume.abandon();
}

#[test]
fn a_forged_map_of_more_pages_than_blocks_is_not_followed() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let inode = core.inode(bench.file.ino).unwrap();
    let at = BlockNo(apart(core, inode, 1));
    for (pages, is_read) in [(core.layout.blocks_total, true), (core.layout.blocks_total + 1, false)] {
        let run = MapRun { page: PageNo(0), blocks: Extent { block: at, count: pages }, unwritten: false };
        let words = blob::words_of_map(&[run]);
        store(core, at, blob::encode(core.seed, inode.id(), blob::Kind::Map, at, &words, None));
        let (version, mtime) = (Version(1 << 40), heddle_vfs::Time::from_parts(0, 0));
        let record = Record::Remap { page: PageNo(0), blob: Some(at), version, mtime, change_count: 0 };
        assert_eq!(shift::current(core, inode, &record).is_some(), is_read, "{pages} pages");
    }
    fs.release(bench.file);
    lease::leave(core);
}

/// A list that names itself and never has as many pages as its record: its settler, which may be the daemon,
/// never came to its end.
#[test]
fn crash_a_forged_extent_list_held_its_settler_for_ever() {
    for pages in [&[][..], &[0], &[1]] {
        let bench = bench();
        let fs = bench.volume.fs();
        let core = &fs.core;
        let (_, lane) = dies_when_durable(&bench);
        let inode = core.inode(bench.file.ino).unwrap();
        let list = BlockNo(apart(core, inode, 1));
        let extents: Vec<Extent> = pages.iter().map(|count| Extent { block: list, count: *count }).collect();
        store(core, list, extent_list::encode(core.seed, inode.id(), list, &extents, Some(list)));
        let (_, page, slot) = core.lane(lane).intent.log().unwrap();
        let mut records = records::written(core, lane, inode, page, slot);
        let Some(Record::Write { pages, blocks, .. }) = records.last_mut() else { panic!("{records:?}") };
        (*pages, *blocks) = (1000, Blocks::List(list));
        forge(core, inode, (lane, page, slot), &records[0]);
        let settler = child(|| {
            // SAFETY: ends this process, if it never comes to its end.
            unsafe { libc::alarm(5) };
            sweep(core);
            assert!(list_blocks(core, inode, &records[0]).is_none());
        });
        assert_eq!(ended(settler, 0), 0, "{extents:?}");
        let told = core.damage_found().unwrap();
        assert!(told.contains(&format!("extent list block {}", list.0)), "{told}");
        fs.release(bench.file);
        lease::leave(core);
    }
}

/// Several programs may have scribbled: without a name nobody knows which one to look at.
#[test]
fn damage_that_a_settler_finds_is_told_with_who_left_it() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let (pid, lane) = dies_when_durable(&bench);
    let inode = core.inode(bench.file.ino).unwrap();
    let page = chain::existing(core, inode).nth(1).expect("it has made no chain of its own").head().unwrap();
    let (at, before) = (next_pos(page), core.region.load_u64(next_pos(page)));
    core.region.store_u64(at, pointer::encode(core.seed, inode.id(), PointerLocation::Next(page), page));
    sweep(core);
    let told = core.damage_found().unwrap();
    assert!(
        told.contains(&format!("(found while settling lane {lane}, which process {pid} left)")),
        "{told}"
    );
    core.region.store_u64(at, before);
    fs.release(bench.file);
    lease::leave(core);
}

/// It ended the program: the one that opened a file is no panic's place.
#[test]
fn who_attaches_to_memory_that_makes_no_sense_is_refused() {
    let bench = bench();
    let core = &bench.volume.fs().core;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("attach");
    let how = ServerOptions { socket: Some(socket.clone()), ..ServerOptions::default() };
    let server = Server::start(&bench.volume, &how).unwrap();
    let was = core.root().scribble_lane_table(0x00e9_0bff);
    let refused = client::attach(&socket).err();
    core.root().scribble_lane_table(was);
    assert!(matches!(refused, Some(AttachError::Rubbish { .. })), "{refused:?}");
    drop(client::attach(&socket).unwrap());
    drop(server);
    bench.volume.fs().release(bench.file);
    lease::leave(core);
}
