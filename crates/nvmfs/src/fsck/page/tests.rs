use super::super::tests::{codes, id, on_empty, on_empty_of, store};
use super::*;
use crate::format::record::NameBuf;
use crate::ids::PageNo;
use crate::variant::Variant;
use heddle_vfs::{FileKind, Time};

const AT: BlockNo = BlockNo(500);

fn punch(version: u64) -> Record {
    Record::Punch { page: PageNo(0), pages: 1, version: Version(version), mtime: Time(1), change_count: 1 }
}

/// A transaction of records of one slot each, from these slots on, with their marks.
fn group(first: u32, slots: u32, records: &[(u32, Option<bool>)]) -> Group {
    let end = records.last().unwrap().0 + 1;
    let records = records.iter().map(|(slot, mark)| (*slot, punch(u64::from(*slot)), *mark)).collect();
    Group { txn: Txn { first, slots }, records, end }
}

/// A whole one.
fn whole(first: u32, slots: u32) -> Group {
    let records: Vec<(u32, Option<bool>)> = (first..first + slots).map(|slot| (slot, Some(true))).collect();
    group(first, slots, &records)
}

fn page(groups: Vec<Group>) -> PageAt {
    PageAt { block: AT, id: id(7), seed: 1, groups, torn: Vec::new(), damaged: Vec::new() }
}

#[test]
fn a_transaction_is_complete_from_its_first_slot_to_its_last() {
    let is = |txn: (u32, u32), records: &[u32]| {
        let records: Vec<_> = records.iter().map(|slot| (*slot, Some(true))).collect();
        group(txn.0, txn.1, &records).complete()
    };
    assert!(is((3, 1), &[3]) && is((3, 2), &[3, 4]) && is((1, 3), &[1, 2, 3]));
    assert!(!is((3, 2), &[3]) && !is((3, 2), &[4]) && !is((3, 2), &[2, 3, 4]) && !is((3, 3), &[3, 4]));
    let marks = |marks: &[Option<bool>]| {
        let records: Vec<_> = (1..).zip(marks.iter().copied()).collect();
        group(1, 9, &records).last_mark()
    };
    assert_eq!(marks(&[Some(true), None]), None);
    assert_eq!((marks(&[None, Some(true)]), marks(&[None, Some(false)])), (Some(true), Some(false)));
}

#[test]
fn a_record_lies_in_its_transaction_and_in_its_page() {
    for (first, len, slot, slots, wanted) in [
        (5, 1, 5, 1, true),
        (5, 2, 6, 1, true),
        (5, 3, 6, 2, true),
        (5, 2, 6, 2, false),
        (6, 2, 5, 1, false),
        (0, 9, 5, 1, false),
        (1, 63, 63, 1, true),
        (1, 63, 1, 7, true),
        (1, 60, 1, 7, true),
        (63, 1, 63, 1, true),
        (63, 2, 63, 1, false),
        (60, 4, 60, 4, true),
        (60, 5, 60, 4, false),
    ] {
        let txn = Txn { first, slots: len };
        assert_eq!(holds(txn, slot, slots), wanted, "{slots} slots from {slot} on, in {txn:?}");
    }
}

#[test]
fn ends_and_gaps_of_a_page_are_those_of_its_transactions() {
    let empty = page(Vec::new());
    assert!(empty.blank());
    assert_eq!((empty.end(), empty.gap(), empty.ends_at(1), empty.ends_at(2)), (1, 1, true, false));
    let two = page(vec![whole(1, 1), whole(2, 3)]);
    assert!(!two.blank());
    assert_eq!((two.end(), two.gap()), (5, 5));
    let ends: Vec<u32> = (1..9).filter(|slot| two.ends_at(*slot)).collect();
    assert_eq!(ends, [1, 2, 5]);
    assert!(!PageAt { torn: vec![9], ..page(Vec::new()) }.blank());
    assert!(!PageAt { damaged: vec![9], ..page(Vec::new()) }.blank());
    // The end of a transaction that is not whole is none.
    let cut = page(vec![whole(1, 2), group(3, 3, &[(3, Some(true))])]);
    assert_eq!((cut.end(), cut.gap(), cut.ends_at(4)), (3, 4, true));
    assert_eq!(page(vec![whole(1, 2), whole(4, 1)]).gap(), 3);
    assert_eq!(page(vec![whole(2, 2)]).gap(), 1);
    assert_eq!(page(vec![whole(1, 2), group(3, 1, &[(3, None)]), whole(4, 1)]).gap(), 3);
    assert_eq!(page(vec![group(1, 3, &[(1, Some(true)), (2, Some(false)), (3, Some(true))])]).gap(), 2);
    assert_eq!(page(vec![group(1, 3, &[(1, Some(true)), (3, Some(true))])]).gap(), 4, "one of two slots");
}

#[test]
fn transactions_side_by_side_do_not_overlap() {
    let clash = |groups: Vec<Group>| page(groups).overlapping().map(|group| group.txn.first);
    assert_eq!(clash(vec![whole(1, 2), whole(3, 4), whole(7, 1)]), None);
    assert_eq!(clash(vec![whole(1, 2), whole(9, 4)]), None);
    let later = |first, slots, slot| group(first, slots, &[(slot, Some(true))]);
    assert_eq!(clash(vec![whole(1, 4), later(4, 2, 5)]), Some(4));
    assert_eq!(clash(vec![whole(3, 2), later(1, 9, 5)]), Some(1));
    // Two parts of one transaction.
    assert_eq!(clash(vec![later(1, 9, 1), later(1, 9, 3)]), None);
}

/// What stands in an image with this kind of log: the issues of a page of which this much counts.
fn misordered_in(variant: Variant, of: &PageAt, end: u32, rest: bool) -> Vec<(u16, Option<u32>)> {
    on_empty_of(variant, super::super::tests::IMAGE_BYTES, |_, pass| {
        let counts = |group: &Group| {
            let marked = group.records.iter().all(|record| record.2 == Some(true));
            group.complete() && marked && group.end <= end
        };
        let lost = misordered(pass, of, &counts, end, rest);
        let found: Vec<_> = pass.issues.iter().map(|issue| (issue.code.0, issue.location.slot)).collect();
        assert_eq!(lost, !found.is_empty());
        found
    })
}

#[test]
fn what_a_power_cut_leaves_in_order_is_no_loss() {
    let of = |groups: Vec<Group>| misordered_in(Variant::Heddle, &page(groups), SLOTS + 1, false);
    assert_eq!(of(vec![whole(1, 2), whole(3, 1)]), []);
    // The last change: its second record is missing, or a mark.
    assert_eq!(of(vec![whole(1, 2), group(3, 2, &[(3, Some(true))])]), []);
    assert_eq!(of(vec![whole(1, 2), group(3, 2, &[(3, None), (4, Some(true))])]), []);
    assert_eq!(of(vec![whole(1, 2), group(3, 2, &[(4, Some(true))])]), []);
    assert_eq!(of(vec![whole(1, 2), group(4, 1, &[(4, None)])]), [], "a mark is its last word");
    let gone = Code::RECORD_GONE.0;
    assert_eq!(of(vec![whole(1, 2), whole(4, 1)]), [(gone, Some(3))]);
    assert_eq!(of(vec![whole(2, 2), whole(4, 1)]), [(gone, Some(1))]);
    assert_eq!(of(vec![whole(1, 2), group(4, 2, &[(4, Some(true))])]), [(gone, Some(4))]);
    // A gap that is known as damage is no second loss.
    let damaged = |slot| PageAt { damaged: vec![slot], ..page(vec![whole(1, 2), whole(4, 1)]) };
    let known = |slot| misordered_in(Variant::Heddle, &damaged(slot), SLOTS + 1, false);
    assert_eq!((known(3), known(2), known(4)), (vec![], vec![(gone, Some(3))], vec![(gone, Some(3))]));
}

#[test]
fn all_before_a_tail_is_whole() {
    let gone = |slot| vec![(Code::RECORD_GONE.0, Some(slot))];
    let of = |groups: Vec<Group>, end, rest| misordered_in(Variant::Nova, &page(groups), end, rest);
    assert_eq!(of(vec![whole(1, 2), whole(3, 1)], 4, false), []);
    assert_eq!(of(vec![whole(1, 2)], 4, false), gone(3));
    assert_eq!(of(vec![whole(1, 2), group(3, 1, &[(3, None)])], 4, false), gone(3));
    assert_eq!(of(vec![], 2, false), gone(1));
    assert_eq!(of(vec![], 1, false), []);
    // Slots at the end of a page that is not the last may be unused, not half written.
    assert_eq!(of(vec![whole(1, 60)], SLOTS + 1, false), []);
    assert_eq!(of(vec![whole(1, 60)], SLOTS + 1, true), gone(61));
    assert_eq!(of(vec![whole(1, 60)], SLOTS, false), gone(61));
    assert_eq!(misordered_in(Variant::Heddle, &page(vec![whole(1, 60)]), SLOTS + 1, true), []);
    let damaged = |slot| PageAt { damaged: vec![slot], ..page(vec![whole(1, 2)]) };
    let known = |slot| misordered_in(Variant::Nova, &damaged(slot), 9, false);
    assert_eq!((known(3), known(8), known(2)), (vec![], vec![], gone(3)));
}

fn header() -> PageHeader {
    PageHeader { owner: id(7), epoch: 1, lane: 1, serial: 3, chain: 0, era: 1 }
}

/// Reads a page with these records, each a transaction of its own, after a change of its lines. The result is
/// the issues, and slot and line of each store that mends something.
fn read(
    records: &[Record],
    marked: bool,
    change: impl Fn(&mut Vec<Line>),
) -> (Vec<u16>, Vec<(u32, Line)>, PageAt) {
    on_empty(|region, pass| {
        let seed = header().record_seed(pass.image.seed);
        let mut lines = vec![[0; 8]; 64];
        let mut at = 1;
        for record in records {
            let slots = record.slots_in(id(7));
            let mut draft = record.draft(id(7), 1);
            for line in draft.seal(seed, at, Txn { first: at, slots }, marked) {
                lines[at as usize] = *line;
                at += 1;
            }
        }
        change(&mut lines);
        store(region, AT.pos(), lines.as_flattened());
        // After a clean unmount no mark is missing.
        pass.image.clean = false;
        let page = PageAt::read(pass, id(7), AT, &header());
        let stores = std::mem::take(&mut pass.fixes.exact);
        let mended = stores.iter().filter(|(_, words)| words.len() == 8);
        let slot = |at: u64| ((at - AT.pos().0) / 64) as u32;
        let mended = mended.map(|(at, words)| (slot(at.0), words[..].try_into().unwrap())).collect();
        (codes(pass), mended, page)
    })
}

#[test]
fn a_flipped_bit_of_any_line_is_turned_back() {
    let stranger = Record::Name {
        dir: id(9),
        removed: false,
        child: id(12),
        kind: FileKind::Regular,
        name: NameBuf::new(&[b'x'; 255]),
        version: Version(8),
        mtime: Time(1),
        change_count: 4,
    };
    // Seven lines, from the first slot on, and later ones.
    for (before, first) in [(0, 1), (9, 10)] {
        let mut records = vec![punch(1); before];
        records.push(stranger.clone());
        for line in first..first + 7 {
            for bit in [5, 300, 500] {
                if line == first && bit > 447 {
                    continue;
                }
                let right = std::cell::Cell::new([0; 8]);
                let (codes, mended, page) = read(&records, true, |lines| {
                    right.set(lines[line]);
                    lines[line][bit / 64] ^= 1 << (bit % 64);
                });
                assert_eq!(codes, [Code::RECORD_BIT.0], "line {line}, bit {bit}");
                assert_eq!(mended, [(line as u32, right.get())], "line {line}, bit {bit}");
                assert_eq!(page.groups.len(), records.len());
            }
        }
    }
}

/// Of a change of several records, the last one alone has a mark in some logs.
#[test]
fn a_flipped_bit_of_a_line_without_mark_is_turned_back() {
    let (codes, mended, page) = read(&[punch(1), punch(2)], false, |lines| lines[2][3] ^= 1 << 9);
    assert_eq!((codes, mended.len(), page.groups.len()), (vec![Code::RECORD_BIT.0], 1, 2));
    assert!(page.torn.is_empty() && page.damaged.is_empty());
}

#[test]
fn missing_words_are_torn_and_wrong_ones_are_damage() {
    let slots = |change: &dyn Fn(&mut Vec<Line>)| {
        let (_, mended, page) = read(&[punch(1), punch(2), punch(3)], true, change);
        assert!(mended.is_empty());
        (page.torn, page.damaged)
    };
    assert_eq!(slots(&|_| ()), (vec![], vec![]));
    assert_eq!(slots(&|lines| lines[2][3] = 0), (vec![2], vec![]));
    assert_eq!(slots(&|lines| lines[2][3] ^= 0b11 << 5), (vec![], vec![2]));
    assert_eq!(
        slots(&|lines| (lines[2][3], lines[2][4]) = (0, 5)),
        (vec![], vec![2]),
        "a word without its mark"
    );
    assert_eq!(slots(&|lines| lines[9] = [0, 0, 3 << 62, 0, 0, 0, 0, 0]), (vec![9], vec![]));
}
