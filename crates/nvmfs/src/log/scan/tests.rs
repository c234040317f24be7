//! Which records of a page count, by its kind of log, and what is damage.

use super::*;
use crate::format::record::NameBuf;
use crate::format::word::WRITTEN;
use crate::ids::{PageNo, Version};
use heddle_vfs::{FileKind, Ino, Time};

const HOME: InodeId = InodeId { ino: Ino(7), generation: 3 };
const SEED: u32 = 0x1234_5678;
const PAGE: BlockNo = BlockNo(10);
const HEADER: PageHeader = PageHeader { owner: HOME, epoch: 1, lane: 2, serial: 3, chain: 0, era: 1 };

/// What stands in a slot, with its transaction: first slot, and number of slots.
#[derive(Clone, Copy, Debug)]
enum Put {
    /// A record with its mark.
    Marked(u32, u32),
    /// One whose mark is missing.
    Unmarked(u32, u32),
    /// One with another mark.
    Mismarked(u32, u32),
    /// One of two lines.
    Long(u32, u32),
    /// A record that lacks a word; true: with its mark.
    Torn(bool),
    /// The second line of a record alone.
    Later,
    /// A word of a record is another one.
    Damaged,
}

struct Scene {
    region: Region,
    layout: Layout,
}

impl Scene {
    fn new() -> Scene {
        let region = Region::anonymous(4 << 20).unwrap();
        region.nt_line(PAGE.pos(), &HEADER.encode(SEED));
        Scene { region, layout: Layout::new(1024) }
    }

    fn scan(&self, kind: LogKind) -> Scan<'_> {
        Scan { region: &self.region, layout: &self.layout, seed: SEED, kind }
    }

    fn put(&self, slot: u32, put: Put) {
        let seed = HEADER.record_seed(SEED);
        let version = Version(u64::from(slot));
        let short = Record::Punch { page: PageNo(1), pages: 1, version, mtime: Time(5), change_count: 1 };
        let long = Record::Name {
            dir: HOME,
            removed: false,
            child: InodeId { ino: Ino(9), generation: 1 },
            kind: FileKind::Regular,
            name: NameBuf::new(&[b'n'; 40]),
            version,
            mtime: Time(5),
            change_count: 1,
        };
        let seal = |record: &Record, (first, slots): (u32, u32), marked: bool| {
            record.draft(HOME, HEADER.lane).seal(seed, slot, Txn { first, slots }, marked).to_vec()
        };
        let mut lines = match put {
            Put::Marked(first, slots) | Put::Mismarked(first, slots) => seal(&short, (first, slots), true),
            Put::Unmarked(first, slots) => seal(&short, (first, slots), false),
            Put::Long(first, slots) => seal(&long, (first, slots), true),
            Put::Torn(marked) => seal(&short, (slot, 1), marked),
            Put::Damaged => seal(&short, (slot, 1), true),
            Put::Later => {
                let lines = record_before(&long, seed, slot);
                vec![lines[1]]
            }
        };
        match put {
            Put::Mismarked(..) => lines[0][7] = WRITTEN | 5,
            Put::Torn(_) => lines[0][3] = 0,
            Put::Damaged => lines[0][3] ^= 2,
            Put::Long(..) => assert_eq!(lines.len(), 2),
            _ => {}
        }
        lines.iter().zip(slot..).for_each(|(line, slot)| self.region.nt_line(slot_pos(PAGE, slot), line));
    }
}

/// The lines of a record whose second one lies in `slot`.
fn record_before(record: &Record, seed: u32, slot: u32) -> Vec<Line> {
    record.draft(HOME, HEADER.lane).seal(seed, slot - 1, Txn { first: slot - 1, slots: 2 }, true).to_vec()
}

type Verdict = Result<(&'static [u32], &'static [u32]), u32>;

fn judge(kind: LogKind, end: u32, cases: &[(&[(u32, Put)], Verdict)]) {
    for (puts, verdict) in cases {
        let scene = Scene::new();
        puts.iter().for_each(|(slot, put)| scene.put(*slot, *put));
        let found = scene.scan(kind).page(HOME, &HEADER, PAGE, end);
        let found = found.map(|scan| {
            (scan.records.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), scan.dropped.clone())
        });
        let wanted = verdict
            .map(|(records, dropped)| (records.to_vec(), dropped.to_vec()))
            .map_err(|slot| Damage(format!("log page 10 of inode 7: the record in slot {slot} is damaged")));
        assert_eq!(found, wanted, "{kind:?}, {end}: {puts:?}");
    }
}

use Put::{Damaged, Later, Long, Marked, Mismarked, Torn, Unmarked};

#[test]
fn records_that_certify_themselves_count_up_to_the_first_gap() {
    judge(
        LogKind::SelfCertifying,
        64,
        &[
            (&[], Ok((&[], &[]))),
            (&[(1, Marked(1, 1)), (2, Marked(2, 1))], Ok((&[1, 2], &[]))),
            (&[(1, Long(1, 2)), (3, Marked(3, 1))], Ok((&[1, 3], &[]))),
            (&[(1, Long(1, 3)), (3, Marked(1, 3)), (4, Marked(4, 1))], Ok((&[1, 3, 4], &[]))),
            // The last transaction may be torn.
            (&[(1, Marked(1, 1)), (3, Marked(2, 2))], Ok((&[1], &[3]))),
            (&[(1, Marked(1, 1)), (2, Torn(true))], Ok((&[1], &[2]))),
            (&[(1, Marked(1, 1)), (2, Unmarked(2, 1))], Ok((&[1], &[2]))),
            (&[(1, Marked(1, 1)), (2, Later)], Ok((&[1], &[2]))),
            (&[(1, Marked(1, 1)), (3, Later)], Ok((&[1], &[3]))),
            (&[(1, Marked(1, 1)), (2, Marked(2, 2))], Ok((&[1], &[2]))),
            (&[(1, Marked(1, 2))], Ok((&[], &[1]))),
            (&[(1, Marked(1, 3)), (2, Marked(1, 3))], Ok((&[], &[1, 2]))),
            (&[(1, Marked(1, 3)), (2, Torn(true)), (3, Marked(1, 3))], Ok((&[], &[2, 3, 1]))),
            // No other may follow it.
            (&[(1, Marked(1, 1)), (3, Marked(3, 1))], Err(3)),
            (&[(1, Marked(1, 1)), (2, Torn(true)), (3, Marked(3, 1))], Err(3)),
            (&[(2, Marked(2, 1))], Err(2)),
            (&[(1, Marked(1, 2)), (3, Marked(3, 1))], Err(3)),
            (&[(1, Marked(1, 1)), (2, Damaged)], Err(2)),
            (&[(1, Marked(1, 1)), (3, Damaged)], Err(3)),
            (&[(1, Marked(1, 1)), (2, Mismarked(2, 1))], Err(2)),
            // A transaction that its own record is not in, or that shares a slot with the one before.
            (&[(1, Marked(2, 2))], Err(1)),
            (&[(1, Marked(0, 3))], Err(1)),
            (&[(1, Marked(1, 1)), (2, Marked(1, 1))], Err(2)),
            (&[(1, Marked(1, 2)), (2, Marked(2, 1))], Err(2)),
            (&[(1, Marked(1, 2)), (2, Marked(1, 3))], Err(2)),
            (&[(1, Long(1, 1))], Err(1)),
        ],
    );
}

#[test]
fn a_transaction_ends_with_its_page() {
    let fill = |to: u32| (1..to).map(|slot| (slot, Marked(slot, 1))).collect::<Vec<_>>();
    let of = |last: Put| {
        let scene = Scene::new();
        fill(63).iter().chain([&(63, last)]).for_each(|(slot, put)| scene.put(*slot, *put));
        scene.scan(LogKind::SelfCertifying).page(HOME, &HEADER, PAGE, 64).map(|scan| scan.records.len())
    };
    assert_eq!(of(Marked(63, 1)), Ok(63));
    assert!(of(Marked(63, 2)).is_err());
    let scene = Scene::new();
    fill(62).iter().chain([&(62, Long(62, 2))]).for_each(|(slot, put)| scene.put(*slot, *put));
    let found = scene.scan(LogKind::SelfCertifying).page(HOME, &HEADER, PAGE, 64).unwrap();
    assert_eq!((found.records.len(), found.next_slot(HOME)), (62, 64));
    assert_eq!(PageScan::default().next_slot(HOME), 1);
}

#[test]
fn records_before_a_tail_count_and_all_are_there() {
    let whole = [(1, Marked(1, 1)), (2, Marked(2, 1)), (3, Marked(3, 1))];
    judge(LogKind::Tail, 1, &[(&whole, Ok((&[], &[]))), (&[(1, Damaged)], Ok((&[], &[])))]);
    judge(
        LogKind::Tail,
        3,
        &[
            (&whole, Ok((&[1, 2], &[]))),
            (&[(1, Marked(1, 1)), (3, Damaged)], Ok((&[1], &[]))),
            (&[(1, Marked(1, 1))], Ok((&[1], &[]))),
            (&[(1, Marked(1, 2)), (2, Marked(1, 2))], Ok((&[1, 2], &[]))),
            (&[(2, Marked(2, 1))], Err(2)),
            (&[(1, Marked(1, 1)), (2, Torn(true))], Err(2)),
            (&[(1, Marked(1, 1)), (2, Unmarked(2, 1))], Err(2)),
            (&[(1, Marked(1, 1)), (2, Later)], Err(2)),
            (&[(1, Marked(1, 1)), (2, Damaged)], Err(2)),
            (&[(1, Marked(1, 2)), (2, Marked(2, 1))], Err(2)),
        ],
    );
    judge(LogKind::Tail, 64, &[(&whole, Ok((&[1, 2, 3], &[]))), (&[(63, Marked(63, 1))], Err(63))]);
}

#[test]
fn a_marked_transaction_counts_wherever_it_lies_and_is_whole() {
    judge(
        LogKind::CommitMark,
        64,
        &[
            (&[(1, Marked(1, 1)), (2, Marked(2, 1))], Ok((&[1, 2], &[]))),
            (&[(2, Marked(2, 1)), (63, Marked(63, 1))], Ok((&[2, 63], &[]))),
            (&[(1, Unmarked(1, 2)), (2, Marked(1, 2)), (3, Marked(3, 1))], Ok((&[1, 2, 3], &[]))),
            (&[(1, Long(1, 2)), (4, Marked(4, 1))], Ok((&[1, 4], &[]))),
            // Without its mark nothing of it counts.
            (&[(1, Unmarked(1, 1)), (2, Marked(2, 1))], Ok((&[2], &[1]))),
            (&[(1, Unmarked(1, 2)), (2, Unmarked(1, 2)), (3, Marked(3, 1))], Ok((&[3], &[1, 2]))),
            (&[(1, Unmarked(1, 2)), (3, Marked(3, 1))], Ok((&[3], &[1, 2]))),
            (&[(1, Unmarked(1, 2)), (2, Marked(2, 1))], Ok((&[2], &[1]))),
            (&[(1, Unmarked(1, 2)), (2, Torn(false))], Ok((&[], &[1, 2]))),
            (&[(2, Unmarked(1, 2)), (3, Marked(3, 1))], Ok((&[3], &[2]))),
            (&[(1, Torn(false)), (2, Marked(2, 1))], Ok((&[2], &[1]))),
            (&[(2, Later), (3, Marked(3, 1))], Ok((&[3], &[2]))),
            // What is marked is whole, and lies in its transaction.
            (&[(1, Torn(true))], Err(1)),
            (&[(1, Damaged)], Err(1)),
            (&[(1, Mismarked(1, 1))], Err(1)),
            (&[(1, Unmarked(1, 2)), (2, Damaged)], Err(2)),
            (&[(1, Unmarked(1, 2)), (2, Torn(true))], Err(2)),
            (&[(2, Marked(1, 2))], Err(2)),
            (&[(1, Marked(2, 1))], Err(1)),
            (&[(63, Marked(63, 2))], Err(63)),
            (&[(1, Unmarked(1, 3)), (3, Marked(1, 3))], Err(1)),
            (&[(1, Marked(1, 2)), (2, Marked(2, 1))], Err(1)),
        ],
    );
}

#[test]
fn a_page_belongs_to_its_chain_and_leads_into_the_image() {
    let scene = Scene::new();
    let scan = scene.scan(LogKind::SelfCertifying);
    assert_eq!(scan.header(HOME, 0, PAGE), Ok(HEADER));
    let other = InodeId { generation: 4, ..HOME };
    for (owner, chain) in [(HOME, 1), (other, 0)] {
        let Damage(why) = scan.header(owner, chain, PAGE).unwrap_err();
        assert!(why.contains("says it belongs to chain 0 of inode 7"), "{why}");
    }
    let Damage(why) = scan.header(HOME, 0, BlockNo(11)).unwrap_err();
    assert!(why.contains("the header's checksum is wrong"), "{why}");
    let point = |raw: u64| scene.region.store_u64(next_pos(PAGE), raw);
    let to = |block: u64| pointer::encode(SEED, HOME, PointerLocation::Next(PAGE), BlockNo(block));
    let first = scene.layout.data.0;
    for (raw, next) in [
        (0, Ok(None)),
        (to(first), Ok(Some(BlockNo(first)))),
        (to(1022), Ok(Some(BlockNo(1022)))),
        (to(first - 1), Err(())),
        (to(1023), Err(())),
        (to(20) ^ 1 << 50, Err(())),
    ] {
        point(raw);
        assert_eq!(scan.next(HOME, PAGE).map_err(|_| ()), next, "{raw:#x}");
    }
}
