//! Who owns a log chain, and what others see of it.

use super::rig::{Rig, model, spawn};
use crate::log::chain;
use loom::cell::UnsafeCell;
use std::sync::Arc;

/// What a chain's owner writes, without a lock.
struct Records([UnsafeCell<u32>; 4]);

// SAFETY: each is touched by the owner of the chain of that number; that is what is tested.
unsafe impl Sync for Records {}
// SAFETY: as above.
unsafe impl Send for Records {}

/// Two lanes take a chain, append, give it back, take one again: often the other's.
#[test]
fn a_chain_has_one_owner_who_sees_what_the_last_one_did() {
    model(2, || {
        let rig = Rig::new();
        let records = Arc::new(Records(std::array::from_fn(|_| UnsafeCell::new(0))));
        let work = |mut seat: super::rig::Seat, records: Arc<Records>| {
            move || {
                for _ in 0..2 {
                    seat.with(|core, guard, file| {
                        let number = chain::lease(core, guard, file).unwrap().number();
                        // SAFETY: loom checks it.
                        records.0[number as usize].with_mut(|count| unsafe { *count += 1 });
                        chain::let_go_of(core, guard.own, guard.id, file);
                    });
                }
            }
        };
        let thread = spawn(work(rig.seat(1), records.clone()));
        work(rig.seat(2), records.clone())();
        thread.join().unwrap();
        // SAFETY: the other has ended.
        let total: u32 = records.0.iter().map(|c| c.with(|count| unsafe { *count })).sum();
        assert_eq!(total, 4);
        // A look at an owner may be old, and so may make a chain too many, but never one without the one before it.
        let chains: Vec<u32> = chain::existing(rig.core(), rig.file()).map(|c| c.number()).collect();
        assert!([0, 1, 2].starts_with(&chains), "{chains:?}");
    });
}

/// A lane keeps its chain between calls; cleaning takes it over meanwhile, and the lane finds out (`claim_quiet`, `rest`).
#[test]
fn an_idle_chain_may_be_cleaned_by_another_thread() {
    model(2, || {
        let rig = Rig::new();
        let records = Arc::new(Records(std::array::from_fn(|_| UnsafeCell::new(0))));
        let (mut keeper, mut cleaner) = (rig.seat(1), rig.seat(2));
        let using = |seat: &mut super::rig::Seat, records: &Records| {
            seat.with(|core, guard, file| {
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

/// Two lanes write their first pages: each has a chain with a page of its own, and each record is where the next owner looks.
#[test]
fn two_first_writers_get_chains_of_their_own() {
    model(1, || {
        let rig = Rig::new();
        let (mut first, mut second) = (rig.seat(1), rig.seat(2));
        let thread = spawn(move || {
            second.write(1, 1, 2);
            second.leave();
        });
        first.write(0, 1, 1);
        thread.join().unwrap();
        assert_eq!(rig.seat(3).read(0, 2), [1, 2]);
        let heads: Vec<_> = chain::existing(rig.core(), rig.file()).filter_map(|c| c.head()).collect();
        assert!(heads.len() == 1 || heads[0] != heads[1], "two chains with one page: {heads:?}");
        for chain in chain::existing(rig.core(), rig.file()) {
            assert_eq!(chain.oldest(), chain.head());
        }
    });
}
