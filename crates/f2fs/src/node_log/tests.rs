//! Records lie where the format says, and only whole groups count.

use super::group::{Content, Member};
use super::head::{CheckpointId, Heads};
use super::record::crc_of;
use super::*;
use crate::format::{NodeBlock, RecordHead, record_flag};
use heddle_pmem::Pos;
use zerocopy::{FromZeros, IntoBytes};

const BASE: CheckpointId = CheckpointId { version: 5, crc: 50 };
const UUID: [u8; 16] = [7; 16];
const GENERATION: u32 = 3;
/// Of the first chunk.
const FIRST_LINE: u32 = 128;
const LINES_A_CHUNK: u32 = 1024;

fn log_of(len_bytes: u64) -> NodeLog {
    let region = Region::anonymous(len_bytes).unwrap();
    let mut heads = Heads::new(&region, UUID, BASE, GENERATION);
    heads.write_pending(&region);
    NodeLog::new(region, heads)
}

fn log() -> NodeLog {
    log_of(LOG_BYTES_MIN)
}

/// A node of an inode, with a word that tells it from others.
fn node(nid: u32, ino: u32, word: u8) -> NodeBlock {
    let mut node = NodeBlock::new_zeroed();
    node.as_mut_bytes()[400] = word;
    (node.footer.nid, node.footer.ino) = (nid.into(), ino.into());
    node
}

/// Logs one node as a group of its own; its line.
fn logged(log: &NodeLog, now: &NodeBlock, before: Option<&NodeBlock>) -> u32 {
    let (nid, ino) = (Nid(now.footer.nid.get()), Nid(now.footer.ino.get()));
    let mut group = log.begin(1, false).unwrap();
    let content = Content::Node { now, before };
    assert!(group.put(&Member { nid, ino, version: 9, named: false, content }));
    group.finish().unwrap();
    log.find(nid).unwrap().line
}

/// A head of a group of `members`, for a record without words.
fn head(group: u64, members: u32, nid: u32, flags: u8) -> RecordHead {
    let mut head = RecordHead::new_zeroed();
    (head.generation, head.group, head.members) = (GENERATION.into(), group.into(), members.into());
    (head.nid, head.ino, head.flags, head.depth) = (nid.into(), nid.into(), flags, 1);
    head
}

fn put_at(log: &NodeLog, line: u32, mut head: RecordHead, payload: &[u8]) {
    head.payload_bytes.set(payload.len() as u16);
    head.crc.set(crc_of(&head, payload));
    let mut bytes = head.as_bytes().to_vec();
    bytes.extend_from_slice(payload);
    log.region.nt_write(Pos(u64::from(line) * LOG_LINE_BYTES), &bytes);
}

fn flip(log: &NodeLog, line: u32, bits: &[u64]) {
    for bit in bits {
        let at = Pos(u64::from(line) * LOG_LINE_BYTES + bit / 8);
        let mut byte = [0];
        log.region.read(at, &mut byte);
        log.region.nt_write(at, &[byte[0] ^ 1 << (bit % 8)]);
    }
}

#[test]
fn a_log_fills_its_region_and_has_a_lane_for_four_chunks() {
    let sizes = |len_bytes: u64| {
        let log = log_of(len_bytes);
        (log.chunks, log.lanes.len())
    };
    assert_eq!(sizes(LOG_BYTES_MIN), (8, 2));
    assert_eq!(sizes(LOG_BYTES_MIN - 4096), (7, 1));
    assert_eq!(sizes(LOG_CHUNKS_BYTES + 3 * CHUNK_BYTES), (3, 1));
    assert_eq!(sizes(LOG_CHUNKS_BYTES + 260 * CHUNK_BYTES), (260, 64));
    let log = log_of(LOG_CHUNKS_BYTES + 10 * CHUNK_BYTES);
    for (next, state) in [(0, (true, false)), (1, (false, false)), (6, (false, false)), (7, (false, true))] {
        log.next_chunk.store(next, Relaxed);
        assert_eq!((log.is_empty(), log.is_filling()), state, "{next} of ten chunks");
        assert_eq!(log.is_behind(), state.1);
    }
}

#[test]
fn records_fill_a_chunk_to_its_last_line() {
    let log = log();
    let gone = |nid: u32| Member::deleted(Nid(4), Deleted { nid: Nid(nid), version: 1 });
    let mut group = log.begin(1025, false).unwrap();
    for nid in 0..1024 {
        assert!(group.put(&gone(nid + 10)));
    }
    assert_eq!(log.next_chunk.load(Relaxed), 1, "1024 lines are one chunk");
    assert!(group.put(&gone(9)));
    assert_eq!(log.next_chunk.load(Relaxed), 2);
    group.finish().unwrap();
    let nid_at = |line: u32| log.record(line).map(|(head, _)| head.nid.get());
    let lines = [127, FIRST_LINE, FIRST_LINE + 1023, FIRST_LINE + LINES_A_CHUNK, FIRST_LINE + 1025];
    assert_eq!(lines.map(nid_at), [None, Some(10), Some(1033), Some(9), None]);
    // One that takes two lines does not begin in the last one.
    let log = self::log();
    let mut group = log.begin(1024, false).unwrap();
    (0..1023).for_each(|nid| assert!(group.put(&gone(nid))));
    let now = node(5, 5, 1);
    let mut wide = now.clone();
    wide.as_mut_bytes()[800..840].fill(1);
    let content = Content::Node { now: &wide, before: None };
    assert!(group.put(&Member { nid: Nid(5), ino: Nid(5), version: 0, named: false, content }));
    group.finish().unwrap();
    assert_eq!(log.find(Nid(5)).unwrap().line, FIRST_LINE + LINES_A_CHUNK);
    // A full log takes no more.
    let log = self::log();
    let mut group = log.begin(0, false).unwrap();
    let put = (0..9 * 1024).take_while(|nid| group.put(&gone(*nid))).count();
    assert_eq!((put, log.next_chunk.load(Relaxed)), (8 * 1024, 8));
}

#[test]
fn a_line_is_in_a_chunk_and_has_the_rest_of_it() {
    let log = log();
    let end = FIRST_LINE + 8 * LINES_A_CHUNK;
    for (line, place) in [
        (0, None),
        (127, None),
        (128, Some((8192, 65_536))),
        (129, Some((8256, 65_472))),
        (128 + 1023, Some((73_664, 64))),
        (128 + 1024, Some((73_728, 65_536))),
        (end - 1, Some((LOG_BYTES_MIN - 64, 64))),
        (end, None),
        (u32::MAX, None),
    ] {
        assert_eq!(log.place_of(line), place, "line {line}");
    }
}

#[test]
fn a_record_counts_when_its_group_is_finished() {
    let log = log();
    let (inode, other) = (node(10, 10, 1), node(11, 10, 2));
    let mut group = log.begin(3, true).unwrap();
    fn of(now: &NodeBlock, named: bool, version: u8) -> Member<'_> {
        let content = Content::Node { now, before: None };
        Member { nid: Nid(now.footer.nid.get()), ino: Nid(10), version, named, content }
    }
    assert!(group.put(&of(&inode, true, 4)) && group.put(&of(&other, false, 5)));
    assert!(group.put(&Member::deleted(Nid(10), Deleted { nid: Nid(12), version: 6 })));
    assert!(log.find(Nid(10)).is_none() && log.nodes() == 0);
    group.finish().unwrap();
    let mut nids = log.nids();
    nids.sort();
    assert_eq!((nids, log.nodes()), (vec![Nid(10), Nid(11)], 2));
    assert!(log.find(Nid(12)).is_none());
    let all: Vec<_> = (0..4).filter_map(|n| log.record(FIRST_LINE + n)).collect();
    let said = |n: usize| {
        let head = &all[n].0;
        (head.nid.get(), head.ino.get(), head.flags, head.version, head.depth, head.before.get())
    };
    use record_flag::{DELETED, LOG_CHECKPOINT, NAMED, WHOLE};
    assert_eq!(said(0), (10, 10, LOG_CHECKPOINT | NAMED | WHOLE, 4, 1, 0));
    assert_eq!(said(1), (11, 10, LOG_CHECKPOINT | WHOLE, 5, 1, 0));
    assert_eq!(said(2), (12, 10, LOG_CHECKPOINT | DELETED, 6, 1, 0));
    for (head, payload) in &all {
        assert_eq!((head.group.get(), head.members.get(), head.generation.get()), (1, 3, GENERATION));
        assert_eq!(usize::from(head.payload_bytes.get()), payload.len());
    }
    assert!(all[2].1.is_empty() && all.len() == 3);
    assert_eq!(log.begin(0, false).unwrap().number, 2);
}

#[test]
fn a_node_is_read_through_at_most_eight_records() {
    let log = log();
    let no_base = || -> Result<NodeBlock> { panic!("its records are all of it") };
    let mut before: Option<NodeBlock> = None;
    for n in 1..=20_u8 {
        let now = node(10, 10, n);
        let line = logged(&log, &now, before.as_ref());
        let (head, _) = log.record(line).unwrap();
        let depth = (n - 1) % 8 + 1;
        let place = log.find(Nid(10)).unwrap();
        assert_eq!((head.depth, place.depth), (depth, depth), "record {n}");
        assert_eq!(head.flags & record_flag::WHOLE != 0, depth == 1, "record {n}");
        assert_eq!(head.before.get(), if depth == 1 { 0 } else { line - 1 }, "record {n}");
        assert!(log.load(Nid(10), place, no_base).unwrap().as_bytes() == now.as_bytes(), "record {n}");
        before = Some(now);
    }
    assert_eq!(log.nodes(), 1);
    // The first record of a node that the base has.
    let (old, now) = (node(30, 30, 1), node(30, 30, 2));
    let line = logged(&log, &now, Some(&old));
    let (head, payload) = log.record(line).unwrap();
    assert_eq!((head.flags, head.before.get(), head.depth, payload.len()), (0, 0, 1, 8));
    let read = log.load(Nid(30), log.find(Nid(30)).unwrap(), || Ok(old.clone())).unwrap();
    assert!(read.as_bytes() == now.as_bytes());
}

#[test]
fn a_record_that_cannot_be_the_nodes_is_refused() {
    let log = log();
    let load = |line: u32| {
        let place = Located { line, depth: 1 };
        log.load(Nid(10), place, || Ok(node(10, 10, 9))).map(|node| node.as_bytes()[400])
    };
    let why = |line: u32| match load(line) {
        Err(Error::Corrupt(why)) => why,
        other => panic!("{other:?}"),
    };
    let word = |words: u16, first: u16| {
        let mut run = [first.to_le_bytes(), words.to_le_bytes()].concat();
        run.extend_from_slice(&[5, 0, 0, 0]);
        run
    };
    put_at(&log, 200, head(1, 1, 10, 0), &word(1, 100));
    assert_eq!(load(200), Ok(5));
    put_at(&log, 200, head(1, 1, 11, 0), &word(1, 100));
    assert!(why(200).contains("at byte 12800, and the record there is another one's"), "{}", why(200));
    put_at(&log, 200, head(1, 1, 10, record_flag::DELETED), &[]);
    assert!(why(200).contains("is another one's"));
    put_at(&log, 200, head(1, 1, 10, 0), &word(1, 1024));
    assert!(why(200).contains("says words beyond the node"));
    put_at(&log, 200, head(1, 1, 10, 0), &word(0, 100));
    assert!(why(200).contains("says words beyond the node"));
    assert!(why(500).contains("makes no sense"));
    // A chain that ends in the base after eight records, and one of nine.
    let chained = |records: u32| {
        for n in 0..records {
            let mut head = head(1, 1, 10, 0);
            head.before.set(if n + 1 == records { 0 } else { 300 + n + 1 });
            put_at(&log, 300 + n, head, &[]);
        }
        load(300)
    };
    assert_eq!(chained(8), Ok(9));
    assert!(matches!(chained(9), Err(Error::Corrupt(why)) if why.contains("needs too many others")));
}

#[test]
fn a_record_counts_if_it_is_whole_and_of_this_generation() {
    let log = log();
    let line = FIRST_LINE + 1;
    let mut record = head(1, 1, 10, 0);
    put_at(&log, line, record.clone(), &[1; 20]);
    assert_eq!(log.record(line).unwrap().1, [1; 20]);
    assert!(log.mended(line, &mut 1).is_none(), "nothing is to be mended");
    for bit in [0, 31, 40, 8 * 24, 8 * 40, 8 * 59] {
        let mut tries = 2;
        flip(&log, line, &[bit]);
        assert!(log.record(line).is_none(), "bit {bit}");
        assert!(log.mended(line, &mut 0).is_none(), "no try is left");
        let (head, payload) = log.mended(line, &mut tries).unwrap();
        assert_eq!((head.nid.get(), payload, tries), (10, vec![1; 20], 1), "bit {bit}");
        flip(&log, line, &[bit]);
    }
    let mut tries = 3;
    for (bits, left) in [([40, 300], 2), ([8 * 41, 8 * 42], 1)] {
        flip(&log, line, &bits);
        assert!(log.mended(line, &mut tries).is_none());
        assert_eq!(tries, left, "two bits are searched for in vain");
        flip(&log, line, &bits);
    }
    // Behind its payload nothing counts.
    flip(&log, line, &[8 * 60]);
    assert!(log.record(line).is_some());
    // Of generations one bit apart, the other is no damage; two bits apart nothing is tried.
    for generation in [GENERATION ^ 4, GENERATION ^ 5] {
        record.generation.set(generation);
        put_at(&log, line, record.clone(), &[1; 20]);
        assert!(log.record(line).is_none() && log.mended(line, &mut tries).is_none());
        assert_eq!(tries, 1, "{generation}");
    }
    flip(&log, line, &[200]);
    assert!(log.mended(line, &mut tries).is_none());
    assert_eq!(tries, 1);
    record.generation.set(GENERATION ^ 4);
    put_at(&log, line, record.clone(), &[1; 20]);
    flip(&log, line, &[200]);
    assert!(log.mended(line, &mut tries).is_none(), "what it becomes is of another generation");
    assert_eq!(tries, 0);
    // One that reaches beyond its chunk.
    let last = FIRST_LINE + LINES_A_CHUNK - 1;
    record.generation.set(GENERATION);
    put_at(&log, last, record.clone(), &[1; 24]);
    assert!(log.record(last).is_some());
    put_at(&log, last, record.clone(), &[1; 25]);
    assert!(log.record(last).is_none());
    // And the longest that there can be.
    put_at(&log, line, record.clone(), &[0; runs::RUNS_BYTES_MAX]);
    assert!(log.record(line).is_some());
    put_at(&log, line, record, &[0; runs::RUNS_BYTES_MAX + 1]);
    assert!(log.record(line).is_none());
}

#[test]
fn records_behind_a_gap_are_damage_or_of_one_cut_group() {
    type Records = &'static [(u32, u64, u32)];
    // Line, group, members.
    let cases: [(Records, Option<u64>, &[u32]); 9] = [
        (&[(128, 1, 1), (129, 2, 1)], None, &[128, 129]),
        (&[(128, 1, 2)], None, &[]),
        (&[(128, 1, 2), (129, 1, 2)], None, &[128, 129]),
        (&[(128, 1, 1), (130, 2, 2)], None, &[128]),
        (&[(128, 1, 1), (130, 2, 1)], Some(129), &[]),
        (&[(128, 1, 1), (130, 2, 3), (131, 2, 3)], None, &[128]),
        (&[(128, 1, 1), (130, 2, 2), (131, 3, 2)], Some(129), &[]),
        // The first gap counts, and each chunk has its own.
        (&[(129, 2, 2), (132, 3, 2)], Some(128), &[]),
        (&[(129, 2, 2), (128 + 1024, 3, 1)], None, &[128 + 1024]),
    ];
    for (records, damage, counting) in cases {
        let log = log();
        for (line, group, members) in records {
            put_at(&log, *line, head(*group, *members, *line, record_flag::WHOLE), &[]);
        }
        match (log.scan(), damage) {
            (Ok(found), None) => {
                let lines: Vec<u32> = found.nodes.values().map(|newest| newest.place.line).collect();
                assert_eq!(lines, counting, "{records:?}");
                assert!(counting.iter().all(|nid| found.has(Nid(*nid))) && !found.has(Nid(5)));
                assert_eq!(found.is_empty(), counting.is_empty());
            }
            (Err(why), Some(line)) => {
                assert!(why.contains(&format!("the record at byte {} is", line * 64)), "{records:?}: {why}");
            }
            (other, _) => panic!("{records:?}: {:?}", other.err()),
        }
    }
}

#[test]
fn a_scan_steps_over_each_record_and_mends_none_behind_a_gap() {
    let log = log();
    // Three of one, two and three lines.
    for (line, len) in [(128, 24), (129, 25), (131, 152), (134, 0)] {
        put_at(&log, line, head(u64::from(line), 1, line, record_flag::WHOLE), &vec![0x80; len]);
    }
    let lines = |log: &NodeLog| {
        let mut lines = Vec::new();
        log.each_record(&mut |head, line, gap| lines.push((head.nid.get(), line, gap)));
        lines
    };
    assert_eq!(lines(&log), [(128, 128, None), (129, 129, None), (131, 131, None), (134, 134, None)]);
    flip(&log, 129, &[77]);
    assert_eq!(lines(&log).len(), 4, "one bit");
    flip(&log, 129, &[78]);
    let gap = Some(129 * 64);
    assert_eq!(lines(&log), [(128, 128, None), (131, 131, gap), (134, 134, gap)]);
    // What is behind a gap is not tried.
    flip(&log, 131, &[99]);
    assert_eq!(lines(&log), [(128, 128, None), (134, 134, gap)]);
}

#[test]
fn the_newest_record_counts_and_names_end_at_a_log_checkpoint() {
    use record_flag::{DELETED, LOG_CHECKPOINT, NAMED, WHOLE};
    let log = log();
    // Group, number, inode, flags; the second record of node 10 lies before the first.
    let records = [
        (7, 10, 10, WHOLE | NAMED),
        (2, 10, 10, WHOLE),
        (3, 11, 11, WHOLE | NAMED),
        (4, 12, 12, WHOLE | LOG_CHECKPOINT),
        (5, 13, 13, WHOLE | NAMED),
        (6, 14, 10, WHOLE),
        (8, 13, 13, DELETED | NAMED),
        (9, 15, 15, WHOLE),
        (1, 16, 16, WHOLE | LOG_CHECKPOINT | NAMED),
    ];
    for (n, (group, nid, ino, flags)) in records.into_iter().enumerate() {
        let mut head = head(group, 1, nid, flags);
        (head.ino, head.version, head.depth) = (ino.into(), n as u8, 2);
        put_at(&log, FIRST_LINE + n as u32, head, &[]);
    }
    let found = log.scan().unwrap();
    assert_eq!(found.last_log_checkpoint, 4);
    let newest = &found.nodes[&Nid(10)];
    assert_eq!((newest.place.line, newest.place.depth, newest.group, newest.version), (128, 2, 7, 0));
    assert_eq!((newest.ino, newest.deleted, newest.named), (Nid(10), false, true));
    assert_eq!((found.nodes[&Nid(13)].deleted, found.nodes[&Nid(14)].ino), (true, Nid(10)));
    assert_eq!(found.named().collect::<Vec<_>>(), [Nid(10)]);
    assert_eq!(found.fsynced_inodes(), 2, "10 and 15");
    // Of one group, the later one.
    put_at(&log, FIRST_LINE, head(30, 2, 10, WHOLE), &[]);
    put_at(&log, FIRST_LINE + 1, head(30, 2, 10, WHOLE), &[]);
    assert_eq!(log.scan().unwrap().nodes[&Nid(10)].place.line, FIRST_LINE + 1);
}

#[test]
fn freed_numbers_are_noted_if_they_were_ever_durable() {
    let log = log();
    let gone = |nid: u32| Deleted { nid: Nid(nid), version: 2 };
    logged(&log, &node(10, 10, 1), None);
    logged(&log, &node(11, 10, 1), None);
    log.free(Nid(10), gone(12), false);
    assert!((log.nodes(), log.is_behind(), log.all_deleted().len()) == (2, false, 0));
    log.free(Nid(10), gone(11), false);
    log.free(Nid(10), gone(13), true);
    log.free(Nid(20), gone(21), true);
    assert!((log.nodes(), log.is_behind()) == (1, true) && log.find(Nid(11)).is_none());
    let noted = |ino: u32| log.deleted_of(Nid(ino)).iter().map(|gone| gone.nid.0).collect::<Vec<_>>();
    assert_eq!((noted(10), noted(20), noted(30)), (vec![11, 13], vec![21], vec![]));
    assert_eq!(log.all_deleted().len(), 3);
    log.deletion_recorded(Nid(10));
    assert_eq!((noted(10), log.all_deleted().len()), (vec![], 1));
    // After a fold nothing of it is left.
    let next = CheckpointId { version: 6, crc: 60 };
    log.will_fold(next).unwrap();
    log.folded(next).unwrap();
    assert_eq!((log.nodes(), log.nids(), log.is_empty(), log.is_behind()), (0, vec![], true, false));
    assert!(log.find(Nid(10)).is_none() && log.record(FIRST_LINE).is_none());
    assert!(log.scan().unwrap().is_empty());
    assert_eq!(logged(&log, &node(40, 40, 1), None), FIRST_LINE, "chunks are taken from the first on");
    assert_eq!(log.record(FIRST_LINE).unwrap().0.generation.get(), GENERATION + 1);
}

#[test]
fn a_region_that_is_too_small_says_the_way_out() {
    let open = |len_bytes: u64, state| {
        let region = Region::anonymous(len_bytes).unwrap();
        match NodeLog::open((region, state), (UUID, BASE), None, false) {
            Ok((log, found)) => Ok((log.chunks, found.is_empty())),
            Err(Refused::Log(why)) => Err(why),
            Err(Refused::Image(why)) => panic!("{why}"),
        }
    };
    for state in [LogState::Free, LogState::GivenUp] {
        assert_eq!(open(532_480, state), Ok((8, true)));
        assert!(open(532_480 - 4096, state).unwrap_err().contains("make it larger"));
    }
    assert!(open(532_480 - 4096, LogState::HoldsLog).unwrap_err().contains("cut short"));
    assert!(open(532_480, LogState::HoldsLog).unwrap_err().contains("both heads"));
}

#[test]
fn a_log_on_a_failing_disk_acknowledges_nothing() {
    let (region, disk) = Region::on_failing_disk(LOG_BYTES_MIN);
    let mut heads = Heads::new(&region, UUID, BASE, GENERATION);
    heads.write_pending(&region);
    let log = NodeLog::new(region, heads);
    logged(&log, &node(10, 10, 1), None);
    disk.on_write_back(|_| heddle_pmem::WriteBackResult::Failed);
    let now = node(11, 11, 1);
    let mut group = log.begin(1, false).unwrap();
    let content = Content::Node { now: &now, before: None };
    assert!(group.put(&Member { nid: Nid(11), ino: Nid(11), version: 9, named: false, content }));
    assert!(matches!(group.finish(), Err(Error::Io(why)) if why.contains("the node log")));
    assert!(log.find(Nid(11)).is_none());
    let next = CheckpointId { version: 6, crc: 60 };
    for done in [log.write_heads(), log.will_fold(next), log.folded(next)] {
        assert!(matches!(done, Err(Error::Io(_))), "{done:?}");
    }
}
