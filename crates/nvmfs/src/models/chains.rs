//! Owners of a log chain, and what other lanes see of it.

use super::fixture::{Fixture, model, spawn};
use crate::format::page::{PageHeader, next_pos};
use crate::format::pointer::{self, PointerLocation};
use crate::ids::{BlockNo, Extent};
use crate::log::chain::{self, Chain, Tail};
use crate::upkeep::garbage;
use loom::cell::UnsafeCell;
use std::sync::Arc;

/// Words that a chain's owner writes without a lock.
struct Records([UnsafeCell<u32>; 4]);

// SAFETY: only the owner of the chain with that number touches each word; the test checks that.
unsafe impl Sync for Records {}
// SAFETY: as above.
unsafe impl Send for Records {}

/// Two lanes take a chain, append, release it, and take one again, often the other's.
#[test]
fn a_chain_has_one_owner_who_sees_what_the_last_one_did() {
    model(2, || {
        let fixture = Fixture::new();
        let records = Arc::new(Records(std::array::from_fn(|_| UnsafeCell::new(0))));
        let work = |mut worker: super::fixture::Worker, records: Arc<Records>| {
            move || {
                for _ in 0..2 {
                    worker.with(|core, guard, file| {
                        let number = chain::lease(core, guard, file).unwrap().number();
                        // SAFETY: loom checks it.
                        records.0[number as usize].with_mut(|count| unsafe { *count += 1 });
                        chain::let_go_of(core, guard.own, guard.id, file);
                    });
                }
            }
        };
        let thread = spawn(work(fixture.worker(1), records.clone()));
        work(fixture.worker(2), records.clone())();
        thread.join().unwrap();
        // SAFETY: the other thread has ended.
        let total: u32 = records.0.iter().map(|c| c.with(|count| unsafe { *count })).sum();
        assert_eq!(total, 4);
        // A load of an owner may be stale, and cause one chain too many. But chain numbers have no gap.
        let chains: Vec<u32> = chain::existing(fixture.core(), fixture.file()).map(|c| c.number()).collect();
        assert!([0, 1, 2].starts_with(&chains), "{chains:?}");
    });
}

/// A lane keeps its chain between calls; cleaning takes it over meanwhile, and the lane notices
/// (`claim_quiet`, `rest`).
#[test]
fn an_idle_chain_may_be_cleaned_by_another_thread() {
    model(2, || {
        let fixture = Fixture::new();
        let records = Arc::new(Records(std::array::from_fn(|_| UnsafeCell::new(0))));
        let (mut keeper, mut cleaner) = (fixture.worker(1), fixture.worker(2));
        let using = |worker: &mut super::fixture::Worker, records: &Records| {
            worker.with(|core, guard, file| {
                let number = chain::lease(core, guard, file).unwrap().number();
                // SAFETY: loom checks it.
                records.0[number as usize].with_mut(|count| unsafe { *count += 1 });
            });
        };
        using(&mut keeper, &records);
        let kept = records.clone();
        let thread = spawn(move || (0..2).for_each(|_| using(&mut keeper, &kept)));
        cleaner.with(|core, guard, file| {
            for chain in chain::existing(core, file).filter(|chain| chain.claim_quiet(guard.id)) {
                // SAFETY: loom checks it.
                records.0[chain.number() as usize].with_mut(|count| unsafe { *count += 1 });
                chain.unclaim();
            }
        });
        thread.join().unwrap();
    });
}

/// Two lanes write their first pages: each has a chain with a page of its own, and each record is where the
/// next owner expects it.
#[test]
fn two_first_writers_get_chains_of_their_own() {
    model(1, || {
        let fixture = Fixture::new();
        let (mut first, mut second) = (fixture.worker(1), fixture.worker(2));
        let thread = spawn(move || {
            second.write(1, 1, 2);
            second.leave();
        });
        first.write(0, 1, 1);
        thread.join().unwrap();
        assert_eq!(fixture.worker(3).read(0, 2), [1, 2]);
        let heads: Vec<_> =
            chain::existing(fixture.core(), fixture.file()).filter_map(|c| c.head()).collect();
        assert!(heads.len() == 1 || heads[0] != heads[1], "two chains with one page: {heads:?}");
        for chain in chain::existing(fixture.core(), fixture.file()) {
            assert_eq!(chain.oldest(), chain.head());
        }
    });
}

/// A chain of two log pages, of eras 1 and 2. The first page's block is reused for a page of the same chain
/// and era 3, while another lane asks for the era of the first page. The answer must have been true at some
/// instant. An era of 3 would mean that no older record is reachable (`garbage` I2, I3).
#[test]
fn a_first_pages_era_is_never_that_of_its_next_use() {
    model(3, || {
        let fixture = Fixture::new();
        let (mut cleaner, looker) = (fixture.worker(1), fixture.clone());
        let header = |era: u64| PageHeader {
            owner: fixture.file().id(),
            epoch: 1,
            lane: 1,
            serial: era,
            chain: 0,
            era,
        };
        let pages = cleaner.take(2);
        let pages: Vec<BlockNo> = pages.iter().flat_map(|e| (0..e.count).map(|n| e.block.plus(n))).collect();
        let [first, second] = pages[..] else { panic!("two blocks") };
        cleaner.with(|core, guard, file| {
            for (page, era) in [(first, 1), (second, 2)] {
                core.region.nt_line(page.pos(), &header(era).encode(core.seed));
            }
            let next = pointer::encode(core.seed, file.id(), PointerLocation::Next(first), second);
            core.region.store_u64(next_pos(first), next);
            let chain = Chain::recovered(0, first, Tail { page: second, slot: 1, seed: 0 });
            chain::adopt(core, guard.own, file, chain, (2, 2)).unwrap();
            core.region.race(first.pos());
        });
        let anew = header(3);
        let thread = spawn(move || {
            cleaner.with(|core, guard, file| {
                let chain = chain::existing(core, file).next().unwrap();
                chain::unlink_page_unfenced(core, file, chain, None, first).unwrap();
                garbage::free_unlinked(core, guard, chain, &[Extent { block: first, count: 1 }]);
                // PERSIST: D15, as the block's next user does.
                core.region.fence();
                core.region.nt_line(first.pos(), &anew.encode(core.seed));
            });
        });
        let chain = chain::existing(looker.core(), looker.file()).next().unwrap();
        let era = garbage::first_era(looker.core(), looker.file(), chain);
        assert!(matches!(era, None | Some(1 | 2)), "{era:?}");
        thread.join().unwrap();
    });
}
