//! Tests of the models: each row weakens one access of the engine and names the model that must fail.
//!
//! An ordering without a row may be stronger than needed. A fence of the region beside it has the same effect
//! (`publish`, `give`), or the fence after a lock (`try_lock`), or another word that both sides use (`pin`,
//! `state`). These orderings stay: each line is then correct by itself.
//!
//! The fault is planted by source position (`heddle_arena::sync::plant`): the engine's source has no switch
//! for it.

use super::fixture::PREEMPTIONS;
use heddle_arena::sync::plant::{FaultCase, all_are_seen};

/// Faults that one model sees.
macro_rules! plants {
    ($model:literal: $($file:literal, $after:literal, $access:literal => $fault:literal;)*) => {
        &[$(FaultCase {
            test: concat!("models::", $model),
            file: concat!("nvmfs/src/", $file),
            source: include_str!(concat!("../", $file)),
            after: $after,
            access: $access,
            fault: $fault,
        }),*]
    };
}

const PLANTS: &[&[FaultCase]] = &[
    plants! { "pages::a_page_is_read_whole_while_its_block_is_reused":
        "state/cell.rs", "pub fn lock_version(", ".load(Acquire)" => "relaxed";
        "file/read.rs", "fn read_page(", "fence(Acquire)" => "skip";
        "models/fixture.rs", "pub fn write(", "plant::here()" => "skip";
    },
    plants! { "pages::two_pages_are_read_whole_while_their_blocks_are_reused":
        "file/read.rs", "fn read_once(", "fence(Acquire)" => "skip";
    },
    plants! { "pages::two_pages_written_by_one_call_are_never_seen_apart":
        "state/lane.rs", "pub fn commit(", ".store(state & " => "skip";
    },
    plants! { "pages::overlapping_writers_take_turns_and_both_end":
        "state/cell.rs", "pub fn publish(", "self.map.store(map.0, Release)" => "skip";
    },
    plants! { "pages::writers_who_grow_the_index_at_once_find_each_others_pages":
        "state/index.rs", "fn raise_to(", ".compare_exchange(" => "relaxed";
    },
    plants! { "resize::truncation_and_write_without_a_cell_are_ordered":
        "state/inode.rs", "pub fn raise_gate(", "fence(SeqCst)" => "skip";
        "state/inode.rs", "pub fn gate_up(", "fence_after_locked()" => "skip";
        "state/inode.rs", "pub fn raise_gate(", ".store(1" => "skip";
    },
    plants! { "resize::what_a_write_leaves_beside_a_punch_has_the_larger_version":
        "state/inode.rs", "pub fn raise_gate(", "fence(SeqCst)" => "skip";
    },
    plants! { "resize::the_bytes_of_an_append_are_there_when_its_size_is":
        "state/inode.rs", "pub fn set_size(", ".store(size" => "relaxed";
    },
    plants! { "space::a_block_is_not_reused_while_a_pinned_reader_copies_it":
        "file/deferred.rs", "pub fn free_replaced(", "pins.now(" => "keep=0";
    },
    plants! { "space::a_pinned_block_is_not_reused_while_other_readers_pin_and_unpin":
        "file/deferred.rs", "fn drain(", "pins.now(" => "keep=0";
    },
    plants! { "space::no_block_has_two_owners_and_none_is_lost":
        "state/free_map.rs", "fn take_run(", ".compare_exchange_weak(" => "relaxed";
    },
    plants! { "latch::a_latch_has_one_holder_and_wakes_who_sleeps":
        "state/latching.rs", "pub fn lock(", ".compare_exchange(0, me, Acquire" => "relaxed";
        "state/latch.rs", "fn release(", ".swap(0, Release)" => "relaxed";
    },
    plants! { "latch::who_only_tries_a_latch_never_passes_its_holder":
        "state/latching.rs", "pub fn try_lock(", ".compare_exchange(" => "relaxed";
    },
    plants! { "latch::a_spin_lock_has_one_holder":
        "state/latch.rs", "impl Drop for Spun", ".store(0, Release)" => "relaxed";
    },
    plants! { "chains::an_idle_chain_may_be_cleaned_by_another_thread":
        "state/chain.rs", "pub fn become_busy(", ".compare_exchange(" => "relaxed";
        "state/chain.rs", "pub fn rest(", ".store(" => "relaxed";
        "state/chain.rs", "pub fn unclaim(", ".store(" => "relaxed";
    },
    plants! { "chains::a_chain_has_one_owner_who_sees_what_the_last_one_did":
        "log/chain.rs", "fn let_go(", ".compare_exchange(" => "relaxed";
    },
    plants! { "chains::a_first_pages_era_is_never_that_of_its_next_use":
        "upkeep/garbage.rs", "pub fn first_era(", "fence(Acquire)" => "skip";
    },
    plants! { "names::an_entry_is_read_whole_while_its_meaning_changes":
        "names/bucket.rs", "pub fn still(", "fence(Acquire)" => "skip";
        "names/bucket.rs", "pub fn begin_change(", "fence(Release)" => "skip";
        "names/bucket.rs", "pub fn begin_change(", "self.word.store(" => "skip";
    },
    plants! { "names::two_changers_of_one_bucket_both_leave_their_names":
        "names/bucket.rs", "pub fn lock(", ".compare_exchange(" => "relaxed";
        "names/bucket.rs", "pub fn unlock(", "self.word.store(" => "relaxed";
    },
    plants! { "life::an_opener_gets_a_living_file_or_none":
        "state/opens.rs", "pub fn open(", "fence_after_locked()" => "skip";
        "state/opens.rs", "pub fn claim_end(", "fence_after_locked()" => "skip";
    },
    plants! { "life::of_the_last_name_and_the_last_handles_one_ends_the_file":
        "names/life.rs", "pub fn drop_open(", "fence_after_locked()" => "skip";
    },
    plants! { "life::an_open_file_is_never_stale_for_who_looks":
        "state/inode.rs", "pub fn unclaim(", ".fetch_and(" => "skip";
    },
    plants! { "inside::no_call_goes_on_when_the_file_system_has_ended":
        "state/lease.rs", "fn step_inside(", "inside.store(1" => "skip";
        "state/lease.rs", "fn step_inside(", "fence_of_barrier()" => "skip";
        "state/lease.rs", "impl Drop for Leaving", "inside.store(0" => "relaxed";
        "upkeep/settle/mod.rs", "pub fn end(", "barrier_everywhere()" => "skip";
    },
    plants! { "inside::a_lane_that_is_reclaimed_is_its_owners_or_the_reclaimers":
        "alloc/reclaim.rs", "pub fn reclaim_from_lanes(", "barrier_everywhere()" => "skip";
        "alloc/reclaim.rs", "pub fn reclaim_from_lanes(", "reclaimer.store(0, Release)" => "relaxed";
    },
    plants! { "inside::of_two_reclaimers_one_has_the_lane":
        "alloc/reclaim.rs", "pub fn reclaim_from_lanes(", "reclaimer.store(0, Release)" => "relaxed";
    },
    plants! { "slots::no_slot_has_two_owners_and_none_is_lost":
        "alloc/itable.rs", "fn hold(", "shared.swap(0" => "relaxed";
        "alloc/itable.rs", "fn give_back(", ".fetch_or(" => "relaxed";
    },
    plants! { "slots::a_chunk_is_taken_away_whole_or_stays":
        "alloc/itable.rs", "pub fn give_chunks_back(", "block.swap(0" => "skip";
    },
    plants! { "succession::of_those_that_take_over_at_once_one_does":
        "state/core.rs", "pub fn succeed(", "self.daemon.load(" => "keep=0";
    },
    plants! { "tables::a_name_is_made_while_its_table_grows":
        "names/bucket.rs", "pub fn lock(", "fence(Acquire)" => "skip";
    },
    plants! { "tables::a_name_is_found_while_its_table_grows":
        "names/table.rs", "pub fn grow(", "dir.volatile.aux.store(word, Release)" => "relaxed";
    },
    plants! { "tables::a_late_locker_changes_no_other_directory":
        "names/bucket.rs", "pub fn kill(", "self.word.store(DEAD" => "skip";
    },
    plants! { "space::a_pinned_block_is_not_reused_while_another_lane_needs_space":
        "file/deferred.rs", "pub fn free_replaced(", "pins.now(" => "keep=0";
    },
];

#[test]
fn every_planted_fault_is_seen() {
    // The variable only lowers the bound of a model, and none has as many: each keeps its own.
    all_are_seen(PLANTS.iter().copied().flatten(), &[(PREEMPTIONS, "9")]);
}
