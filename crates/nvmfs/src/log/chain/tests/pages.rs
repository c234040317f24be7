//! Pages of a chain: how many records one takes, when the next one begins, and which may be unlinked.

use super::super::append::next_slot;
use super::super::*;
use crate::format::page::{PageHeader, next_pos};
use crate::format::record::Record;
use crate::ids::{PageNo, Version};
use crate::log::commit;
use crate::state::papers::one_chain;
use crate::variant::Variant;
use crate::volume::bench::Bench;
use heddle_vfs::short::Short;
use heddle_vfs::{Ino, Time};

const PAGE: u64 = 4096;

/// Appends so many records that stay alive, one a page of the file. Each goes the long way, as it covers a page in part.
fn append(bench: &Bench, pages: std::ops::Range<u64>) {
    pages.for_each(|page| bench.write(page * PAGE, 1, 10));
}

fn only_chain(bench: &Bench) -> &Chain {
    existing(bench.core(), bench.inode()).next().unwrap()
}

fn header(bench: &Bench, page: BlockNo) -> PageHeader {
    PageHeader::decode(bench.core().seed, &bench.core().region.line(page.pos())).unwrap()
}

#[test]
fn a_page_takes_63_records_and_the_newest_has_the_latest_era() {
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    assert_eq!((pages(core, inode), era_now(core, inode)), (0, 0));
    let mut of_pages = Vec::new();
    for page in 0..64 {
        append(&bench, page..page + 1);
        let wanted = if page < 63 { 1 } else { 2 };
        assert_eq!((pages(core, inode), era_now(core, inode)), (wanted, wanted), "{} records", page + 1);
        of_pages.push(header(&bench, only_chain(&bench).tail().0));
    }
    assert_eq!((of_pages[0].era, of_pages[63].era), (1, 2));
    assert_eq!(of_pages[63].serial, of_pages[0].serial + 1);
}

#[test]
fn the_short_way_has_a_slot_where_its_lane_has_room() {
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    append(&bench, 0..1);
    let other = bench.fs.new_file(Ino::ROOT, "other");
    let guard = bench.guard();
    let mut next = |inode| next_slot(core, guard.own, guard.id, inode).map(|next| next.slot);
    assert_eq!((next(inode), next(core.inode(other.ino).unwrap())), (Some(2), None));
    let chain = only_chain(&bench);
    for (slot, wanted) in [(62, Some(62)), (63, Some(63)), (64, None)] {
        chain.slot.set(slot);
        assert_eq!(next(inode), wanted);
    }
    chain.slot.set(2);
    chain.spare.set(1000);
    assert_eq!(next(inode), None, "the next page is prepared, so this one is closed");
    chain.spare.set(0);
    let page = chain.page.get();
    chain.page.set(0);
    assert_eq!(next(inode), None, "there is no page");
    chain.page.set(page);
    assert_eq!(next(inode), Some(2));
    let way = ways_of(inode.ino).into_iter().find(|way| guard.own.chains[*way].ino == inode.ino.0).unwrap();
    guard.own.chains[way].generation += 1;
    assert!(next_slot(core, guard.own, guard.id, inode).is_none(), "it was another inode's");
    guard.own.chains[way].generation -= 1;
}

#[test]
fn a_page_whose_successor_is_prepared_takes_no_record() {
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    append(&bench, 0..1);
    let mut guard = bench.guard();
    let chain = lease(core, &mut guard, inode).unwrap();
    let (before, serial) = (chain.tail().0, guard.own.page_serial);
    let mut makes = |slots| make_room(core, guard.own, guard.id, inode, chain, slots, Purpose::Data).unwrap();
    // 62 slots are left.
    assert_eq!([makes(62), makes(63), makes(63)], [false, true, false]);
    assert_eq!(guard.own.page_serial, serial + 1);
    let record =
        Record::Punch { page: PageNo(50), pages: 1, version: Version(9), mtime: Time(0), change_count: 0 };
    let at = append_unfenced(core, guard.id, inode, chain, &[record], true);
    assert!(at.began_page && at.page != before && at.last == 1);
    assert_eq!((chain.tail(), chain.spare()), ((at.page, 2), None));
    assert_eq!(next_page(core, inode, before), Ok(Some(at.page)));
}

/// A file whose log has two pages.
fn of_two_pages() -> (Bench, [BlockNo; 2]) {
    let bench = Bench::new();
    append(&bench, 0..64);
    let all: Vec<BlockNo> =
        pages_of(bench.core(), bench.inode(), only_chain(&bench)).map(Result::unwrap).collect();
    let pages = all.try_into().unwrap();
    (bench, pages)
}

#[test]
fn pages_are_unlinked_from_the_first_to_the_last_one() {
    let (bench, [first, last]) = of_two_pages();
    let (core, inode, chain) = (bench.core(), bench.inode(), only_chain(&bench));
    assert_eq!([first, last].map(|page| next_page(core, inode, page)), [Ok(Some(last)), Ok(None)]);
    assert_eq!(unlink_page_unfenced(core, inode, chain, None, first), Ok(()));
    assert_eq!((chain.head(), chain.tail(), pages(core, inode)), (Some(last), (last, 2), 1));
    assert_eq!(unlink_page_unfenced(core, inode, chain, None, last), Ok(()));
    assert_eq!((chain.head(), chain.tail().0, pages(core, inode)), (None, BlockNo(0), 0));
    append(&bench, 64..65);
    assert_eq!(bench.mounted_again().read(64 * PAGE, 10), [1; 10]);
}

#[test]
fn pages_that_contradict_their_chain_are_damage() {
    let is_damage = |done: Result<()>| assert!(matches!(done, Err(Error::Corrupt(_))), "{done:?}");
    let (bench, [first, last]) = of_two_pages();
    let (core, inode, chain) = (bench.core(), bench.inode(), only_chain(&bench));
    is_damage(unlink_page_unfenced(core, inode, chain, Some(first), last));
    let outside = BlockNo(core.layout.blocks_total);
    let place = pointer::PointerLocation::Next(first);
    for (block, wanted) in [(last, Ok(Some(last))), (outside, Err(()))] {
        let to = pointer::encode(core.seed, inode.id(), place, block);
        core.region.store_u64(next_pos(first), to);
        assert_eq!(next_page(core, inode, first).map_err(|_| ()), wanted);
    }
    core.region.store_u64(next_pos(first), 0);
    is_damage(unlink_page_unfenced(core, inode, chain, None, first));
    assert_eq!(chain.head(), Some(first));
}

/// In the papers' variants a file's room is made under its log lock.
#[test]
fn room_is_made_before_a_commit_unless_a_log_lock_guards_it() {
    for variant in Variant::ALL {
        let bench = Bench::of(variant);
        let (core, file) = (bench.core(), bench.inode());
        assert_eq!(one_chain(core), variant != Variant::Heddle, "{variant:?}");
        let dir = core.inode(bench.fs.new_dir(Ino::ROOT, "d")).unwrap();
        let mut guard = bench.guard();
        for (inode, makes_room) in [(file, variant == Variant::Heddle), (dir, true)] {
            let mut prepare = || commit::prepare(core, &mut guard, inode, 1, Purpose::Data).unwrap();
            assert_eq!([prepare(), prepare()], [makes_room, false], "{variant:?}");
            let spare = existing(core, inode).any(|chain| chain.spare().is_some());
            assert_eq!(spare, makes_room, "{variant:?}");
        }
    }
}
