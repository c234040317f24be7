//! What other lanes do while a settler works: they append to a chain of the dead, reuse its pages, and end its inodes.

use super::super::{records, sweep};
use super::orphans::{dies_in_write, forge};
use super::*;
use crate::file::blocks::data_blocks;
use crate::format::page::slot_pos;
use crate::format::record::{Blocks, Record};
use crate::ids::{BlockNo, Extent, PageNo};
use crate::names::life;
use crate::state::core::Core;
use crate::state::lane::Freeing;
use crate::state::opens::{self, tests::crowd};
use crate::steps::Step;
use crate::volume::bench::child;
use heddle_vfs::short::Short;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The settler took what others stored while it looked for damage. Then nothing could be changed any more.
#[test]
fn records_that_others_store_behind_those_of_the_dead_are_no_damage() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let (_, lane) = dies_in_write(&bench, Step::Durable);
    let inode = core.inode(bench.file.ino).unwrap();
    let (_, page, slot) = core.lane(lane).intent.log().unwrap();
    let alone = records::written(core, lane, inode, page, slot);
    assert!(matches!(alone[..], [Record::Write { page: PageNo(0), pages: 1, .. }]), "{alone:?}");
    // It looked at the first one's slot before that was stored.
    let others = [slot + 2, slot + 3];
    others.iter().for_each(|slot| forge(core, inode, (lane + 1, page, *slot), &alone[0]));
    assert_eq!(records::written(core, lane, inode, page, slot), alone);
    assert_eq!(core.damage_found(), None);
    others.iter().for_each(|slot| core.region.store_line(slot_pos(page, *slot), &[0; 8]));
    sweep(core);
    let states = [state(&fs, &bench.file)];
    drop(fs);
    verify(bench, &states, "a chain that others use");
}

#[test]
fn records_in_a_page_that_is_reused_meanwhile_are_not_the_deads() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = Arc::clone(&fs.core);
    let (_, lane) = dies_in_write(&bench, Step::Durable);
    let inode = core.inode(bench.file.ino).unwrap();
    let (_, page, slot) = core.lane(lane).intent.log().unwrap();
    let (at, header) = (Arc::clone(&core), core.region.line(page.pos()));
    hook::set(Some(Arc::new(move |_| at.region.store_line(page.pos(), &[0; 8]))));
    assert_eq!(records::written(&core, lane, inode, page, slot), []);
    hook::set(None);
    core.region.store_line(page.pos(), &header);
    assert_eq!(records::written(&core, lane, inode, page, slot).len(), 1);
    sweep(&core);
    let states = [state(&fs, &bench.file)];
    drop((fs, core));
    verify(bench, &states, "a page that was reused");
}

fn is_free(core: &Core, block: BlockNo) -> bool {
    let extent = Extent { block, count: 1 };
    let free = core.free_map().claim(extent);
    if free {
        core.free_map().give(extent);
    }
    free
}

/// Both freed the blocks that the dead one's write had replaced; and again if the settler's lane had no room for a handle.
#[test]
fn a_settler_leaves_an_inode_alone_that_another_lane_ends() {
    for (last, crowded) in
        [(Step::Durable, false), (Step::Happened, false), (Step::Durable, true), (Step::Happened, true)]
    {
        let bench = bench();
        let fs = bench.volume.fs();
        let core = &fs.core;
        fs.remove(Ino::ROOT, "f").unwrap();
        let (_, lane) = dies_in_write(&bench, last);
        if crowded {
            crowd(core, lane, core.inode(Ino::ROOT).unwrap());
        }
        let inode = core.inode(bench.file.ino).unwrap();
        let (_, page, slot) = core.lane(lane).intent.log().unwrap();
        let written = records::written(core, lane, inode, page, slot);
        let [Record::Write { blocks: Blocks::At(new), .. }] = written[..] else { panic!("{written:?}") };
        let mut guard = lease::enter(core).unwrap();
        assert!(inode.volatile.claim(opens::claims_as(core, guard.id)));
        guard.lane.intent.note_freeing(inode.ino.0, Freeing::Begun);
        let list = data_blocks(core, inode);
        std::thread::scope(|scope| _ = scope.spawn(|| sweep(core)).join().unwrap());
        let blocks = list.iter().flat_map(|extent| (0..extent.count).map(|n| extent.block.plus(n)));
        let free: Vec<BlockNo> = blocks.filter(|block| is_free(core, *block)).collect();
        assert_eq!(free, [], "{last:?}: blocks of the lane that ends the inode");
        // Behind its commit, cells may have named the new block, and the list too.
        assert_eq!(is_free(core, new), last == Step::Durable, "{last:?}");
        life::end(core, &mut guard, inode);
        drop(guard);
        assert_eq!(core.damage_found(), None);
        fs.release(bench.file);
        lease::leave(core);
        drop(fs);
        bench.volume.abandon();
    }
}

/// Its last handle was closed meanwhile. The one who closed it freed the block that the dead one's write had replaced, and so did the
/// settler.
#[test]
fn a_settler_keeps_its_inodes_though_its_lane_has_no_room() {
    let bench = bench();
    let (fs, root) = (bench.volume.fs(), Cred::root());
    let core = Arc::clone(&fs.core);
    fs.remove(Ino::ROOT, "f").unwrap();
    let (_, lane) = dies_in_write(&bench, Step::Durable);
    crowd(&core, lane, core.inode(Ino::ROOT).unwrap());
    let (ino, generation) = (bench.file.ino, bench.file.token);
    let lives = move |core: &Core| core.slot(ino).unwrap().volatile.generation() == generation;
    let closes = std::sync::Mutex::new(Some(bench.file));
    let lived = Arc::new(AtomicBool::new(false));
    let (at, seen) = (bench.volume.fs(), Arc::clone(&lived));
    hook::set(Some(Arc::new(move |step| {
        if step == Step::Settling
            && let Some(file) = closes.lock().unwrap().take()
        {
            std::thread::scope(|scope| scope.spawn(|| at.release(file)).join().unwrap());
            seen.store(lives(&at.core), SeqCst);
        }
    })));
    sweep(&core);
    hook::set(None);
    assert!(lived.load(SeqCst), "it ended under its settler");
    assert!(!lives(&core), "nobody ended it");
    assert_eq!(core.damage_found(), None);
    // As a file that takes all blocks finds.
    let (_, all) =
        fs.create(&root, Ino::ROOT, Name::new(b"all").unwrap(), 0o600, OpenFlags::READ_WRITE).unwrap();
    while fs.append(&all, &[8; PAGE as usize]).is_ok() {}
    fs.release(all);
    lease::leave(&core);
    drop((fs, core));
    bench.volume.abandon();
}

/// It waited for 20 ms. Then it changed what the other one might already be ending.
#[test]
fn a_settler_waits_until_another_lane_knows_whether_an_inode_ends() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    fs.remove(Ino::ROOT, "f").unwrap();
    dies_in_write(&bench, Step::Durable);
    let inode = core.inode(bench.file.ino).unwrap();
    let guard = lease::enter(core).unwrap();
    let by = opens::claims_as(core, guard.id);
    assert!(inode.volatile.claim(by));
    guard.lane.intent.note_freeing(inode.ino.0, Freeing::Claimed);
    let mut has_waited = false;
    std::thread::scope(|scope| {
        let settler = scope.spawn(|| sweep(core));
        std::thread::sleep(Duration::from_millis(200));
        has_waited = !settler.is_finished();
        inode.volatile.unclaim(by);
        guard.lane.intent.note_freeing(0, Freeing::None);
    });
    drop(guard);
    assert!(has_waited);
    let mut page = [0; PAGE as usize];
    assert_eq!(fs.read(&bench.file, 0, &mut page), Ok(PAGE as usize));
    assert_eq!(page, [1; PAGE as usize], "the write of the dead one was durable");
    assert_eq!(core.damage_found(), None);
    let ino = bench.file.ino;
    fs.release(bench.file);
    assert_eq!(core.slot(ino).unwrap().volatile.generation(), 0, "nobody ended it");
    lease::leave(core);
}

/// One had claimed the inode that the other one was working on, and that one had announced itself in the first: whoever was settled first
/// waited for its own settler.
#[test]
fn a_dead_reclaimer_of_a_dead_claimer_is_settled() {
    for claimer_is_first in [false, true] {
        let bench = bench();
        let fs = bench.volume.fs();
        let core = &fs.core;
        core.root().patience_ms.store(1, SeqCst);
        fs.remove(Ino::ROOT, "f").unwrap();
        let ino = bench.file.ino;
        let pid = child(|| {
            let mut calls = [lease::enter(core).unwrap(), lease::enter(core).unwrap()];
            calls.sort_by_key(|call| call.id);
            let [first, second] = calls;
            let (claims, works) = if claimer_is_first { (first, second) } else { (second, first) };
            works.lane.begin(ino, PageNo(0), PageNo(1));
            claims.lane.intent.note_freeing(ino.0, Freeing::Claimed);
            assert!(core.slot(ino).unwrap().volatile.claim(opens::claims_as(core, claims.id)));
            claims.lane.intent.reclaimer.store(1 << lease::LANE_BITS | u64::from(works.id), SeqCst);
            // SAFETY: ends this process.
            unsafe { libc::_exit(3) };
        });
        assert_eq!(libc::WEXITSTATUS(ended(pid, 0)), 3);
        let began = Instant::now();
        sweep(core);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert_eq!(core.damage_found(), None);
        let words = lease::lanes(core).map(|lane| core.lane(lane).intent.reclaimer.load(SeqCst));
        assert_eq!(words.max(), Some(0));
        assert!(fs.getattr(ino).is_ok(), "it is open");
        fs.release(bench.file);
        assert_eq!(core.slot(ino).unwrap().volatile.generation(), 0, "nobody ended it");
        lease::leave(core);
    }
}

/// Each settler would have waited for the other one's claim.
#[test]
fn lanes_that_died_with_claims_on_each_others_inodes_are_settled() {
    let bench = bench();
    let fs = bench.volume.fs();
    let core = &fs.core;
    let other = fs.new_file(Ino::ROOT, "g");
    ["f", "g"].iter().for_each(|name| fs.remove(Ino::ROOT, name).unwrap());
    for (writes, ends) in [(&bench.file, &other), (&other, &bench.file)] {
        let pid = child(|| {
            let guard = lease::enter(core).unwrap();
            guard.lane.begin(writes.ino, PageNo(0), PageNo(1));
            let inode = core.slot(ends.ino).unwrap();
            guard.lane.intent.note_freeing(ends.ino.0, Freeing::Claimed);
            assert!(inode.volatile.claim(opens::claims_as(core, guard.id)));
            // SAFETY: ends this process.
            unsafe { libc::_exit(3) };
        });
        assert_eq!(libc::WEXITSTATUS(ended(pid, 0)), 3);
    }
    let began = Instant::now();
    sweep(core);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(core.damage_found(), None);
    for file in [bench.file, other] {
        let ino = file.ino;
        assert!(fs.getattr(ino).is_ok(), "it is open");
        fs.release(file);
        assert_eq!(core.slot(ino).unwrap().volatile.generation(), 0, "nobody ended it");
    }
    lease::leave(core);
}
