//! Handles of two lanes of one thread, on files whose numbers share an entry.

use super::*;
use crate::region::Region;
use crate::state::core::tests::{add_chunks, bare, born, on};
use crate::state::lease::enter;
use crate::variant::Variant;
use std::sync::Arc;

fn with_a_chunk() -> Arc<Core> {
    let core = bare(1024);
    add_chunks(&core, 1);
    core
}

/// The inode whose number has the same entry in the first table, in the memory of another one.
fn neighbour<'c>(of: InodeRef<'_>, memory: InodeRef<'c>) -> InodeRef<'c> {
    InodeRef { ino: Ino(of.ino.0 + 1024), ..memory }
}

/// Gives the lane's last room to handles of this inode.
pub fn crowd(core: &Core, lane: u16, by: InodeRef<'_>) {
    let all = || tables(core, core.lane(lane)).map(|(_, table)| table);
    while all().count() < TABLES {
        all().last().unwrap().next.store(core.arena.alloc_zeroed::<OpenTable>(1).unwrap(), SeqCst);
    }
    for slot in all().flat_map(|table| &table.slots) {
        slot.generation.store(by.volatile.generation(), SeqCst);
        slot.word.store(ONE | by.ino.0, SeqCst);
    }
}

#[test]
fn handles_are_counted_in_their_lane_and_lowered_once() {
    let core = with_a_chunk();
    let (outer, inner) = (enter(&core).unwrap(), enter(&core).unwrap());
    let file = born(&core, 5, 9);
    assert_eq!((sum(&core, file), has_any(&core, outer.id)), (0, false));
    for lane in [outer.id, outer.id, inner.id] {
        assert_eq!(open(&core, lane, file, 9), Ok(true));
    }
    assert_eq!((sum(&core, file), has_any(&core, outer.id), has_any(&core, inner.id)), (3, true, true));
    let counts = |lane| entries(&core, lane).map(|(_, id, count)| (id, count)).collect::<Vec<_>>();
    let id = InodeId { ino: Ino(5), generation: 9 };
    assert_eq!((counts(outer.id), counts(inner.id)), (vec![(id, 2)], vec![(id, 1)]));
    // The third one was counted in the other lane, of the same process.
    let left = [2, 1, 0, 0].map(|_| {
        lower(&core, outer.id, file, 9);
        sum(&core, file)
    });
    assert_eq!(left, [2, 1, 0, 0]);
    assert_eq!(open(&core, outer.id, file, 8), Ok(false), "another file was there");
    assert_eq!(sum(&core, file), 0);
    assert_eq!((claims_as(&core, 7), claims_as(&core, 1)), (Some(7), Some(1)));
}

#[test]
fn an_entry_counts_65535_handles() {
    let core = with_a_chunk();
    let guard = enter(&core).unwrap();
    let file = born(&core, 5, 9);
    let slot = tables(&core, guard.lane).next().unwrap().1.slot(Ino(5), 0);
    assert!(raise_in(&core, slot, Ino(5), 9, 65_534) && !raise_in(&core, slot, Ino(5), 9, 2));
    assert!(raise_in(&core, slot, Ino(5), 9, 1) && !raise_in(&core, slot, Ino(5), 9, 1));
    assert_eq!(slot.counts(Ino(5), 9).map(|word| word >> 48), Some(65_535));
    // Those of the next table.
    assert_eq!(raise_by(&core, guard.id, file, 9, 3), Ok(()));
    assert_eq!((tables(&core, guard.lane).count(), slot.lower(Ino(5), 9)), (2, true));
}

#[test]
fn an_entry_is_taken_over_from_a_dead_file_or_without_handles() {
    let core = with_a_chunk();
    let guard = enter(&core).unwrap();
    let (file, memory) = (born(&core, 5, 9), born(&core, 6, 3));
    let other = neighbour(file, memory);
    let first = tables(&core, guard.lane).next().unwrap().1;
    let open = |inode, generation| raise(&core, guard.id, inode, generation).unwrap();
    let in_first = |inode: InodeRef<'_>, generation| first.slot(inode.ino, 0).counts(inode.ino, generation);
    open(file, 9);
    open(other, 3);
    assert!(in_first(file, 9).is_some() && in_first(other, 3).is_none(), "that file lives");
    assert_eq!(tables(&core, guard.lane).count(), 2);
    assert!(lower_in(&core, guard.lane, other.ino, 3) && !lower_in(&core, guard.lane, other.ino, 3));
    lower(&core, guard.id, file, 9);
    open(other, 3);
    assert!(in_first(other, 3).is_some(), "nobody has the file open");
    lower(&core, guard.id, other, 3);
    open(file, 9);
    file.volatile.die();
    assert!(!has_any(&core, guard.id));
    open(other, 3);
    assert!(in_first(other, 3).is_some() && in_first(file, 9).is_none(), "the file is dead");
    assert_eq!(tables(&core, guard.lane).count(), 2);
}

/// Bits 40 to 47.
#[test]
fn each_takeover_of_an_entry_changes_its_word() {
    let core = with_a_chunk();
    let guard = enter(&core).unwrap();
    let slot = tables(&core, guard.lane).next().unwrap().1.slot(Ino(5), 0);
    for nth in 1..=300 {
        assert!(raise_in(&core, slot, Ino(5), nth, 1));
        assert_eq!(slot.word.load(SeqCst), 1 << 48 | (nth % 256) << 40 | 5, "takeover {nth}");
        assert_eq!(slot.counts(Ino(5), nth), Some(slot.word.load(SeqCst)));
    }
}

#[test]
fn a_lane_has_64_tables_at_most() {
    let core = with_a_chunk();
    let guard = enter(&core).unwrap();
    let (living, memory) = (born(&core, 5, 9), born(&core, 6, 3));
    let file = neighbour(living, memory);
    for nth in 0..64 {
        assert_eq!(raise(&core, guard.id, file, 3), Ok(()), "table {nth}");
        let its =
            |(nth, table): (usize, &'_ OpenTable)| table.slot(file.ino, nth).counts(file.ino, 3).is_some();
        assert_eq!(tables(&core, guard.lane).position(its), Some(nth));
        // Another file takes its place.
        let slot = tables(&core, guard.lane).nth(nth).unwrap().1.slot(file.ino, nth);
        slot.word.store(1 << 48 | living.ino.0, SeqCst);
        slot.generation.store(9, SeqCst);
    }
    assert_eq!(raise(&core, guard.id, file, 3), Err(Error::NoMemory));
    assert_eq!(tables(&core, guard.lane).count(), 64);
}

#[test]
fn a_settler_counts_where_its_lane_has_no_room() {
    let core = bare(1024);
    add_chunks(&core, 2);
    let guard = enter(&core).unwrap();
    let [file, other, crowd_of] =
        [(5, 9), (6, 3), (7, 2)].map(|(ino, generation)| born(&core, ino, generation));
    crowd(&core, guard.id, crowd_of);
    assert_eq!(raise(&core, guard.id, file, 9), Err(Error::NoMemory));
    let before = of_gone(&core, guard.id).count();
    assert_eq!([9, 9, 8].map(|of| keep(&core, guard.id, file, of)), [Ok(true), Ok(true), Ok(false)]);
    assert_eq!(keep(&core, guard.id, other, 3), Ok(true));
    assert_eq!((sum(&core, file), sum(&core, other)), (2, 1));
    lower(&core, guard.id, file, 9);
    // The entry of the generation that was not there is the other file's by now.
    assert_eq!((sum(&core, file), of_gone(&core, guard.id).count() - before), (1, 2));
    forget_inode(&core, guard.id, other);
    lower(&core, guard.id, file, 9);
    assert_eq!((sum(&core, file), sum(&core, other)), (0, 0));
    let kept = |ino| keep(&core, guard.id, born(&core, ino, 1), 1) == Ok(true);
    assert_eq!((8..50).filter(|ino| kept(*ino)).count(), 32);
}

#[test]
fn counts_of_one_file_or_of_all_are_forgotten() {
    let core = with_a_chunk();
    let guard = enter(&core).unwrap();
    let (file, other) = (born(&core, 5, 9), born(&core, 7, 2));
    for (inode, generation) in [(file, 9), (other, 2), (other, 2)] {
        raise(&core, guard.id, inode, generation).unwrap();
    }
    forget_inode(&core, guard.id, file);
    assert_eq!((sum(&core, file), sum(&core, other)), (0, 2));
    assert_eq!(of_gone(&core, guard.id).map(|of| of.id.ino).collect::<Vec<_>>(), [Ino(7)]);
    forget(&core, guard.id);
    assert_eq!((sum(&core, other), of_gone(&core, guard.id).count()), (0, 0));
}

#[test]
fn handles_move_to_another_lane_and_nameless_files_are_told() {
    let core = with_a_chunk();
    let (from, to) = (enter(&core).unwrap(), enter(&core).unwrap());
    let (file, nameless, dead) = (born(&core, 5, 9), born(&core, 7, 2), born(&core, 8, 4));
    for (inode, generation, n) in [(file, 9, 3), (nameless, 2, 1), (dead, 4, 1)] {
        raise_by(&core, from.id, inode, generation, n).unwrap();
    }
    nameless.volatile.nlink.store(0, SeqCst);
    dead.volatile.die();
    let told = hand_over(&core, from.id, to.id, |_, _| panic!("none is claimed"));
    assert_eq!(told.iter().map(|inode| inode.ino).collect::<Vec<_>>(), [Ino(7)]);
    assert_eq!((has_any(&core, from.id), sum(&core, file), sum(&core, nameless)), (false, 3, 1));
    let moved: Vec<_> = entries(&core, to.id).map(|(_, id, count)| (id.ino, count)).collect();
    assert_eq!(moved, [(Ino(5), 3), (Ino(7), 1)]);
}

#[test]
fn the_last_handle_or_name_decides_who_frees_an_inode() {
    let core = with_a_chunk();
    let guard = enter(&core).unwrap();
    let file = born(&core, 5, 9);
    raise(&core, guard.id, file, 9).unwrap();
    assert!(!claim_end(&core, guard.id, file), "it has a name and a handle");
    file.volatile.nlink.store(0, SeqCst);
    assert!(!claim_end(&core, guard.id, file), "it is open");
    lower(&core, guard.id, file, 9);
    file.volatile.nlink.store(1, SeqCst);
    assert!(!claim_end(&core, guard.id, file), "it has a name");
    file.volatile.nlink.store(0, SeqCst);
    assert!(file.volatile.lives() && claim_end(&core, guard.id, file) && !file.volatile.lives());
    assert!(!claim_end(&core, guard.id, file), "one caller frees it");
    assert_eq!(file.volatile.claimer(), guard.id);
}

#[test]
fn the_papers_count_handles_in_the_inode() {
    let core = on(Region::anonymous(4 << 20).unwrap(), Variant::NovaArray);
    add_chunks(&core, 1);
    let file = born(&core, 5, 9);
    assert_eq!(claims_as(&core, 7), None);
    assert_eq!((open(&core, 1, file, 9), open(&core, 2, file, 9), sum(&core, file)), (Ok(true), Ok(true), 2));
    lower(&core, 3, file, 9);
    assert_eq!((sum(&core, file), file.volatile.opens.load(SeqCst)), (1, 1));
}
