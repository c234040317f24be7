use super::room::Prefer;
use super::*;
use crate::device::Access;
use crate::format::BLOCK_BYTES;

fn numbers(free: &Free) -> Vec<u32> {
    free.all.iter().map(|segno| segno.0).collect()
}

#[test]
fn a_section_is_free_when_all_its_segments_are() {
    let mut free = Free::new(3);
    assert!([4, 5, 0].iter().all(|n| free.insert(Segno(*n))));
    assert!(!free.insert(Segno(4)), "it was free already");
    assert_eq!((free.whole_sections, free.in_whole_sections()), (0, 0));
    assert!(free.insert(Segno(3)));
    assert_eq!((free.whole_sections, free.in_whole_sections()), (1, 3));
    assert!(!free.insert(Segno(3)));
    assert_eq!(free.whole_sections, 1, "counted once");
    assert_eq!([0, 3, 5, 6].map(|n| free.is_whole(Segno(n))), [false, true, true, false]);
    assert_eq!([2, 5, 8].map(|n| free.first_of(Segno(n))), [Some(Segno(0)), Some(Segno(3)), None]);
    assert_eq!((free.section_of(Segno(5)), free.section_of(Segno(6))), (3..6, 6..9));
    free.remove(Segno(4));
    assert_eq!((free.whole_sections, numbers(&free)), (0, vec![0, 3, 5]));
    free.remove(Segno(3));
    assert_eq!((free.whole_sections, free.first_of(Segno(3))), (0, Some(Segno(5))));
}

#[test]
fn an_entry_of_the_table_is_kind_count_and_bits() {
    let segment = Segment { kind: 5, count: 512, live: [0xa5; 64], mtime: 77 };
    let entry = entry_of(&segment);
    assert_eq!((entry.blocks.get(), entry.mtime.get()), (5 << 10 | 512, 77));
    let back = segment_of(&entry);
    assert_eq!((back.kind, back.count, back.live, back.mtime), (5, 512, [0xa5; 64], 77));
}

fn geometry() -> Geometry {
    Geometry {
        blocks: 512 * 100,
        segments_per_section: 1,
        checkpoint: BlockAddr(512),
        checkpoint_payload: 0,
        sit: BlockAddr(1536),
        sit_segments: 4,
        nat: BlockAddr(3584),
        nat_segments: 2,
        ssa: BlockAddr(4608),
        main: BlockAddr(5120),
        main_segments: 90,
    }
}

#[test]
fn copies_of_the_table_lie_half_its_area_apart() {
    // The second copy of block 1 counts.
    let at = |block, other| place(&geometry(), &[0x40, 0], block, other).0;
    assert_eq!([0, 1, 2].map(|block| at(block, false)), [1536, 1537 + 1024, 1538]);
    assert_eq!([0, 1, 2].map(|block| at(block, true)), [1536 + 1024, 1537, 1538 + 1024]);
    assert_eq!(address(&geometry(), Segno(3), 7), BlockAddr(5120 + 3 * 512 + 7));
    let kinds = LOGS_IN_ORDER.map(kind_of_summary);
    assert_eq!(kinds, [0, 0, 0, 1, 1, 1]);
    let entry = of_node(Nid(9));
    assert_eq!((entry.nid.get(), entry.version, entry.slot.get()), (9, 0, 0));
}

/// A table of six open logs, in segments 0 to 5, and of what `used` says; all else is free.
pub(crate) fn table(per_section: u32, segments: u32, used: &[(u32, Log)]) -> Segments {
    let empty = Segment { kind: 0, count: 0, live: [0; 64], mtime: 0 };
    let mut table = vec![empty; segments as usize];
    let open = |log: Log| OpenLog {
        segment: Segno(log as u32),
        next: 0,
        summary: Box::new(SummaryBlock::new_zeroed()),
    };
    let logs: Vec<OpenLog> = LOGS_IN_ORDER.map(open).into();
    let in_use = LOGS_IN_ORDER.iter().map(|log| (*log as u32, *log)).chain(used.iter().copied());
    let mut free = Free::new(per_section);
    let in_use: BTreeMap<u32, Log> = in_use.collect();
    for n in 0..segments {
        match in_use.get(&n) {
            Some(log) => table[n as usize].kind = *log as u8,
            None => _ = free.insert(Segno(n)),
        }
    }
    let state = State {
        table,
        logs,
        free,
        changed: BTreeSet::new(),
        bitmap: vec![0; 8],
        adopted: BTreeSet::new(),
        left_out: BTreeMap::new(),
    };
    let geometry = Geometry { segments_per_section: per_section, ..geometry() };
    Segments { geometry, state: Mutex::new(state), summaries: Mutex::default() }
}

fn next(segments: &Segments, log: Log) -> Option<u32> {
    let state = segments.state();
    segments.next_of(&state, log).map(|segno| segno.0)
}

#[test]
fn a_log_goes_on_in_its_own_begun_or_free_section() {
    assert_eq!(next(&table(1, 8, &[]), Log::ColdNode), Some(6), "the first that is free");
    assert_eq!(next(&table(1, 6, &[]), Log::ColdNode), None);
    // Sections of four: 0 to 3 mixed, 4 to 7 nodes, 8 to 11 data, 12 to 15 free.
    let mixed = |used: &[(u32, Log)]| table(4, 16, used);
    let begun = mixed(&[(8, Log::WarmData)]);
    assert_eq!(next(&begun, Log::WarmNode), Some(6), "its own section has room");
    assert_eq!(next(&begun, Log::HotNode), Some(6), "nodes go to nodes");
    assert_eq!(next(&begun, Log::WarmData), Some(9), "data goes to data");
    assert_eq!(begun.free(), 4);
    let full = mixed(&[(6, Log::WarmNode), (7, Log::WarmNode), (8, Log::WarmData)]);
    assert_eq!(next(&full, Log::WarmNode), Some(12), "a section of its own");
    let last = mixed(&[(6, Log::WarmNode), (7, Log::WarmNode), (8, Log::WarmData), (12, Log::ColdData)]);
    assert_eq!(next(&last, Log::WarmNode), Some(9), "there is no other");
}

#[test]
fn a_block_belongs_to_the_segment_where_it_lies() {
    let segments = table(1, 90, &[]);
    assert_eq!(segments.place_of(BlockAddr(5120)), (Segno(0), 0));
    assert_eq!(segments.place_of(BlockAddr(5120 + 2 * 512 + 511)), (Segno(2), 511));
    let outside = segments.place_of(BlockAddr(5119)).0;
    assert!(outside.0 > 90, "{outside:?}");
    assert!(!segments.is_live(BlockAddr(5119)) && !segments.is_live(BlockAddr(5120)));
    set_bit_msb(&mut segments.state().table[2].live, 5, true);
    segments.state().table[4].count = 7;
    segments.state().table[2].count = 1;
    assert!(
        segments.is_live(BlockAddr(5120 + 2 * 512 + 5)) && !segments.is_live(BlockAddr(5120 + 2 * 512 + 4))
    );
    assert_eq!(segments.live_nodes(), 7);
    assert!(
        segments.release(BlockAddr(5120 + 2 * 512 + 4)).is_err() && segments.release(BlockAddr(9)).is_err()
    );
    assert_eq!(segments.release_node(BlockAddr(5120 + 2 * 512 + 4)), Ok(()));
    assert_eq!(segments.release_node(BlockAddr(5120 + 2 * 512 + 5)), Ok(()));
    assert!(!segments.is_live(BlockAddr(5120 + 2 * 512 + 5)));
}

/// So many blocks are left of the open segments.
fn with_left(per_section: u32, lefts: [u32; 6]) -> Segments {
    let segments = table(per_section, 24, &[]);
    segments.state().logs.iter_mut().zip(lefts).for_each(|(log, left)| log.next = SEGMENT_BLOCKS - left);
    segments
}

#[test]
fn logs_take_the_more_sections_the_less_their_segments_have_left() {
    let sections =
        |segments: &Segments, per_section, blocks| segments.state().sections_to_write(blocks, per_section);
    let fresh = with_left(1, [512; 6]);
    assert_eq!([0, 511, 512, 1024, 6 * 512, 7 * 512].map(|n| sections(&fresh, 1, n)), [0, 0, 1, 2, 6, 7]);
    assert_eq!(fresh.room_blocks(), (18 + 6) * 512);
    let short = with_left(1, [1, 1, 1, 1, 1, 1]);
    assert_eq!([0, 1, 2, 6, 517, 518, 6 + 1536].map(|n| sections(&short, 1, n)), [0, 1, 2, 6, 6, 7, 9]);
    let mixed = with_left(1, [300, 512, 10, 512, 20, 512]);
    assert_eq!([9, 10, 30, 329, 330, 842].map(|n| sections(&mixed, 1, n)), [0, 1, 2, 2, 3, 4]);
    let large = with_left(4, [1; 6]);
    assert_eq!([6, 6 + 2047, 6 + 2048].map(|n| sections(&large, 4, n)), [6, 6, 7]);
}

/// Segments from the sixth on, by kind and live blocks; as many are free as `free` says.
fn with_live(used: &[(Log, u16)], free: u32, left: u32) -> Segments {
    let numbered: Vec<(u32, Log)> = (6..).zip(used).map(|(n, (log, _))| (n, *log)).collect();
    let segments = table(1, 6 + used.len() as u32 + free, &numbered);
    let mut state = segments.state();
    (6..).zip(used).for_each(|(n, (_, live)): (usize, _)| state.table[n].count = *live);
    state.logs.iter_mut().for_each(|log| log.next = SEGMENT_BLOCKS - left);
    drop(state);
    segments
}

#[test]
fn segments_are_cleaned_whose_blocks_have_room_elsewhere() {
    let victims = |segments: &Segments, prefer| {
        segments.victims(8, prefer).iter().map(|segno| segno.0).collect::<Vec<_>>()
    };
    let used = [(Log::WarmData, 200), (Log::WarmNode, 500), (Log::WarmData, 512), (Log::ColdData, 0)];
    let roomy = with_live(&used, 9, 1);
    assert_eq!(victims(&roomy, Prefer::Emptiest), [6, 7]);
    assert_eq!(victims(&roomy, Prefer::Cheapest), [7, 6]);
    roomy.leave_out(Segno(6), None);
    assert_eq!(victims(&roomy, Prefer::Emptiest), [7]);
    // 500 blocks take six segments at most, 600 one more.
    let narrow = with_live(&used, 6, 1);
    assert_eq!(victims(&narrow, Prefer::Emptiest), [7]);
    assert_eq!(victims(&with_live(&used, 5, 1), Prefer::Cheapest), [0; 0]);
    // Any one can be cleaned with what is always kept.
    for left in 1..=512 {
        let kept = with_live(&[(Log::WarmData, 511)], room::SECTIONS_RESERVED as u32, left);
        assert_eq!(victims(&kept, Prefer::Emptiest), [6], "{left}");
    }
    assert_eq!(victims(&with_live(&used, 1, 512), Prefer::Emptiest), [6], "open segments have room too");
}

fn device() -> (tempfile::NamedTempFile, Device) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(512 * 101 * BLOCK_BYTES as u64).unwrap();
    let device = Device::open(file.path(), Access::Write).unwrap();
    (file, device)
}

/// Block `n` of a segment.
fn at(segment: u32, n: u32) -> BlockAddr {
    BlockAddr(5120 + segment * 512 + n)
}

/// Makes blocks of a segment live.
fn fill(segments: &Segments, segment: u32, blocks: &[usize]) {
    let mut state = segments.state();
    let slot = &mut state.table[segment as usize];
    slot.count += blocks.len() as u16;
    blocks.iter().for_each(|block| set_bit_msb(&mut slot.live, *block, true));
}

fn live(segments: &Segments, segment: u32) -> (u16, Vec<usize>) {
    let state = segments.state();
    let slot = &state.table[segment as usize];
    (slot.count, (0..512).filter(|block| bit_msb(&slot.live, *block)).collect())
}

fn opened(segments: &Segments) -> Vec<u32> {
    segments.positions().0.iter().map(|position| position.segment.0).collect()
}

fn changed(segments: &Segments) -> Vec<u32> {
    segments.state().changed.iter().map(|segno| segno.0).collect()
}

fn since_1970() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn a_log_fills_its_segment_and_goes_on_in_another() {
    let ((_file, device), segments) = (device(), table(1, 90, &[]));
    segments.state().logs[1].next = 510;
    let (start, allocate) = (since_1970(), |owners: std::ops::Range<u32>| {
        let owners: Vec<SummaryEntry> = owners.map(|nid| of_node(Nid(nid))).collect();
        let run = segments.allocate(&device, Log::WarmData, owners.into_iter()).unwrap();
        (run.first, run.blocks, run.behind)
    });
    assert_eq!(allocate(1..2), (at(1, 510), 1, at(1, 511)));
    assert_eq!(allocate(2..7), (at(1, 511), 1, at(6, 0)), "as many as there is room for");
    assert_eq!(allocate(3..7), (at(6, 0), 4, at(6, 4)));
    assert_eq!((live(&segments, 1), live(&segments, 6)), ((2, vec![510, 511]), (4, vec![0, 1, 2, 3])));
    assert_eq!((changed(&segments), opened(&segments)), (vec![1, 6], vec![0, 6, 2, 3, 4, 5]));
    for n in [1, 6] {
        let state = segments.state();
        let slot = &state.table[n];
        assert!(slot.kind == 1 && (start..=since_1970()).contains(&slot.mtime), "{}", slot.mtime);
    }
    assert!(!segments.state().free.all.contains(&Segno(6)));
    let block = device.block(BlockAddr(4608 + 1)).unwrap();
    let summary = SummaryBlock::ref_from_bytes(&block[..]).unwrap();
    assert_eq!((summary.kind, summary.entries[510].nid.get(), summary.entries[511].nid.get()), (0, 1, 2));
    let owner =
        |addr| segments.summary_entry(&device, addr).map(|(is_node, entry)| (is_node, entry.nid.get()));
    let kept = || segments.summaries.lock().unwrap().len();
    assert_eq!((owner(at(6, 1)), kept()), (Ok((false, 4)), 0), "of an open segment");
    assert_eq!((owner(at(1, 511)), kept()), (Ok((false, 2)), 1));
    assert_eq!((owner(at(7, 3)), kept()), (Ok((false, 0)), 2));
    assert!(matches!(owner(BlockAddr(9)), Err(Error::Corrupt(_))));
    let (are_nodes, contents) = segments.contents(&device, Segno(1)).unwrap();
    let contents: Vec<(BlockAddr, u32)> =
        contents.iter().map(|(addr, entry)| (*addr, entry.nid.get())).collect();
    assert_eq!((are_nodes, contents), (false, vec![(at(1, 510), 1), (at(1, 511), 2)]));
    // Of nodes, as the segment is theirs.
    let run = segments.allocate(&device, Log::HotNode, std::iter::once(of_node(Nid(9)))).unwrap();
    assert_eq!((run.first, owner(run.first)), (at(3, 0), Ok((true, 9))));
    assert!(segments.is_live_node(at(3, 0)) && !segments.is_live_node(at(3, 1)));
    assert!(!segments.is_live_node(at(1, 510)) && !segments.is_live_node(BlockAddr(9)));
    assert!(segments.contents(&device, Segno(3)).unwrap().0);
    assert_eq!(
        segments.kinds()[..8],
        [Some(false), Some(false), Some(false), Some(true), Some(true), Some(true), Some(false), None]
    );
}

#[test]
fn a_full_table_has_no_segment_to_go_on_in() {
    let ((_file, device), segments) = (device(), table(1, 6, &[]));
    segments.state().logs[0].next = 511;
    let owner = || std::iter::once(of_node(Nid(7)));
    assert!(matches!(segments.allocate(&device, Log::HotData, owner()), Err(Error::NoSpace)));
    assert_eq!((live(&segments, 0), changed(&segments)), ((0, vec![]), vec![]), "nothing is taken");
    fill(&segments, 2, &[0]);
    assert_eq!(segments.leave_gaps(&device), Err(Error::NoSpace));
}

#[test]
fn freed_segments_can_be_used_after_the_checkpoint() {
    let segments =
        table(1, 90, &[(8, Log::WarmData), (9, Log::WarmData), (20, Log::WarmNode), (30, Log::WarmData)]);
    for segment in [8, 9, 20] {
        fill(&segments, segment, &[7]);
    }
    fill(&segments, 30, &[7, 8]);
    let start = since_1970();
    for segment in [8, 9, 20, 30] {
        assert_eq!(segments.release(at(segment, 7)), Ok(()));
        assert!(matches!(segments.release(at(segment, 7)), Err(Error::Corrupt(_))), "it is free");
        assert!(segments.state().table[segment as usize].mtime >= start);
    }
    assert_eq!((live(&segments, 8), live(&segments, 30)), ((0, vec![]), (1, vec![8])));
    assert_eq!(changed(&segments), [8, 9, 20, 30]);
    let free = || [2, 8, 9, 20, 30].map(|n| segments.state().free.all.contains(&Segno(n)));
    assert_eq!((free(), segments.free()), ([false; 5], 80));
    // An open segment without a live block is none of them.
    segments.state().changed.insert(Segno(2));
    assert_eq!(segments.checkpointed(), [(at(8, 0), 1024), (at(20, 0), 512)]);
    assert_eq!((free(), segments.free()), ([false, true, true, true, false], 83));
    assert_eq!((segments.checkpointed(), changed(&segments)), (vec![], vec![]));
}

#[test]
fn a_checkpoint_counts_segments_that_are_empty_and_not_open() {
    let segments = table(1, 10, &[(8, Log::WarmData)]);
    segments.state().logs[4].next = 77;
    segments.state().logs[4].summary.kind = 1;
    fill(&segments, 7, &[1]);
    fill(&segments, 2, &[1, 2]);
    let (positions, summaries, empty) = segments.positions();
    let places: Vec<(u32, u32)> = positions.iter().map(|at| (at.segment.0, at.next)).collect();
    assert_eq!(places, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 77), (5, 0)]);
    assert_eq!(summaries.iter().map(|summary| summary.kind).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 0]);
    assert_eq!(empty, 3, "6, 8 and 9");
}

fn logs(sit_bitmap: Vec<u8>, sit_changes: Vec<(Segno, SitEntry)>) -> Logs {
    let open = |log: Log| OpenLog {
        segment: Segno(log as u32),
        next: 0,
        summary: Box::new(SummaryBlock::new_zeroed()),
    };
    Logs { sit_bitmap, sit_changes, open: LOGS_IN_ORDER.map(open).into() }
}

#[test]
fn the_table_is_written_to_the_other_copies_and_read_again() {
    let ((_file, device), segments) = (device(), table(1, 90, &[(60, Log::ColdData)]));
    fill(&segments, 60, &[0, 9, 511]);
    segments.state().table[60].mtime = 77;
    segments.state().changed.insert(Segno(60));
    let bitmap = segments.write(&device).unwrap();
    assert_eq!(bitmap, [0x40, 0, 0, 0, 0, 0, 0, 0], "the second copy of block 1 counts");
    // 55 entries are a block, and the second copies lie 1024 blocks behind the first.
    let block = device.block(BlockAddr(1536 + 1024 + 1)).unwrap();
    let entry = SitBlock::ref_from_bytes(&block[..]).unwrap().entries[5];
    assert_eq!((entry.blocks.get(), entry.mtime.get()), (2 << 10 | 3, 77));
    assert_eq!((entry.valid[0], entry.valid[1], entry.valid[63]), (0x80, 0x40, 0x01));
    for untouched in [1536, 1537, 1536 + 1024] {
        assert!(device.block(BlockAddr(untouched)).unwrap().iter().all(|byte| *byte == 0), "{untouched}");
    }
    let again = Segments::read(&device, &geometry(), logs(bitmap, Vec::new())).ok().unwrap();
    let len = again.state().table.len();
    assert_eq!((len, live(&again, 60)), (90, (3, vec![0, 9, 511])));
    assert_eq!((again.free(), changed(&again)), (90 - 6 - 1, vec![]));
    assert!((0..6).chain([60]).all(|n| !again.state().free.all.contains(&Segno(n))));
    assert_eq!(segments.write(&device).unwrap(), [0; 8], "and back again");
}

#[test]
fn a_table_that_contradicts_itself_or_its_logs_is_refused() {
    let (_file, device) = device();
    let read = |logs: Logs| Segments::read(&device, &geometry(), logs);
    let why = |logs: Logs| read(logs).err().unwrap();
    let entry = |count: u16, bits: u8| {
        let mut valid = [0; 64];
        valid[3] = bits;
        SitEntry { blocks: U16::new(1 << 10 | count), valid, mtime: U64::new(5) }
    };
    let of_journal = |segment: u32, entry| logs(vec![0; 8], vec![(Segno(segment), entry)]);
    let found = read(of_journal(89, entry(2, 0x81))).ok().unwrap();
    assert_eq!((live(&found, 89), changed(&found), found.free()), ((2, vec![24, 31]), vec![89], 83));
    assert!(why(of_journal(90, entry(2, 0x81))).contains("a journal of segment 90"));
    for (count, live) in [(1, 2), (3, 2), (0, 2)] {
        let said = why(of_journal(61, entry(count, 0x81)));
        assert!(said.contains(&format!("segment 61 counts {count} live blocks of {live}")), "{said}");
    }
    let mut shared = logs(vec![0; 8], Vec::new());
    shared.open[5].segment = Segno(0);
    assert!(why(shared).contains("two logs share a segment"));
}

#[test]
fn a_log_leaves_a_segment_with_live_blocks_ahead() {
    let ((_file, device), segments) = (device(), table(1, 90, &[]));
    for (log, next, live) in [(0, 10, 9), (1, 10, 10), (2, 500, 511), (3, 511, 510)] {
        segments.state().logs[log].next = next;
        fill(&segments, log as u32, &[live]);
    }
    segments.leave_gaps(&device).unwrap();
    assert_eq!(opened(&segments), [0, 6, 7, 3, 4, 5]);
}

#[test]
fn kept_segments_are_no_logs_and_nodes_go_elsewhere() {
    let ((_file, device), segments) = (device(), table(1, 12, &[(8, Log::WarmData), (9, Log::WarmNode)]));
    segments.keep(&device, &BTreeSet::from([Segno(6), Segno(1)])).unwrap();
    assert_eq!(opened(&segments), [0, 7, 2, 3, 10, 5], "the log of direct nodes goes on in any case");
    assert_eq!((changed(&segments), numbers(&segments.state().free)), (vec![1, 4, 6, 7, 10], vec![11]));
}

#[test]
fn a_block_is_adopted_into_a_segment_of_data_alone() {
    let used = [(8, Log::WarmData), (9, Log::WarmNode), (10, Log::HotNode)];
    let ((_file, device), segments) = (device(), table(1, 12, &used));
    fill(&segments, 10, &[0]);
    let mut old = SummaryBlock::new_zeroed();
    old.kind = SUMMARY_OF_NODES;
    old.entries[3] = of_node(Nid(77));
    for segment in [8, 9] {
        device.write(BlockAddr(4608 + segment), old.as_bytes()).unwrap();
    }
    let owner =
        |addr| segments.summary_entry(&device, addr).map(|(is_node, entry)| (is_node, entry.nid.get()));
    assert_eq!([owner(at(8, 3)), owner(at(8, 5))], [Ok((false, 77)), Ok((false, 0))]);
    let adopt = |addr| segments.adopt(&device, addr, of_node(Nid(5)));
    let why = |addr| match adopt(addr) {
        Err(Error::Corrupt(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(adopt(at(8, 5)), Ok(()));
    assert_eq!([owner(at(8, 3)), owner(at(8, 5))], [Ok((false, 77)), Ok((false, 5))], "others stay");
    assert_eq!((live(&segments, 8), changed(&segments)), ((1, vec![5]), vec![8]));
    assert!(why(at(8, 5)).contains("belongs to something else"));
    assert_eq!([at(8, 5), at(8, 3), at(10, 0)].map(|addr| segments.was_adopted(addr)), [true, false, false]);
    // An empty segment of nodes becomes one of data, with owners of its own.
    assert_eq!(adopt(at(9, 5)), Ok(()));
    assert_eq!([owner(at(9, 3)), owner(at(9, 5))], [Ok((false, 0)), Ok((false, 5))]);
    for segment in [8, 9] {
        assert_eq!(device.block(BlockAddr(4608 + segment)).unwrap()[4091], SUMMARY_OF_DATA);
    }
    assert!(why(at(10, 5)).contains("lies among nodes"));
    assert!(why(BlockAddr(9)).contains("is in no segment"));
}

#[test]
fn sections_are_cleaned_whole_and_never_an_open_one() {
    let used = [(8, Log::WarmData), (9, Log::WarmData), (10, Log::WarmData), (11, Log::WarmData)];
    let segments = table(4, 24, &used);
    fill(&segments, 8, &[1, 2, 3]);
    fill(&segments, 11, &[1]);
    // The sections of open segments.
    fill(&segments, 2, &[1]);
    fill(&segments, 7, &[1]);
    let victims = |segments: &Segments, count| {
        segments.victims(count, Prefer::Emptiest).iter().map(|segno| segno.0).collect::<Vec<_>>()
    };
    assert_eq!(victims(&segments, 1), [8, 11], "the empty ones between need no cleaning");
    assert_eq!(victims(&segments, 0), []);
    segments.leave_out(Segno(10), Some("damaged".into()));
    assert_eq!((victims(&segments, 8), segments.left_out()), (vec![], vec![(Segno(10), "damaged".into())]));
    // The last section is a short one.
    let short = table(4, 30, &[(28, Log::WarmData), (29, Log::WarmData)]);
    fill(&short, 28, &[5]);
    fill(&short, 29, &[6]);
    assert_eq!(victims(&short, 1), [28, 29]);
}
