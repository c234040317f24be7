use super::room::Prefer;
use super::*;

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
    let state =
        State { table, logs, free, changed: BTreeSet::new(), bitmap: vec![0; 8], left_out: BTreeMap::new() };
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
    roomy.leave_out(Segno(6), "its summary is damaged".into());
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
