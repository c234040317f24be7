//! A pack is believed only if each of its numbers is possible; what is written is what is read.

use super::write::{Contents, orphans_max, write};
use super::*;
use crate::device::Access;
use crate::format::{
    NodeBlock, SIT_JOURNAL_ENTRIES, SUMMARY_OF_DATA, SUMMARY_OF_NODES, SitJournal, SummaryEntry,
};
use crate::ids::Segno;
use crate::segments::{LOGS, Position};
use crate::space::Counts;
use std::cell::RefCell;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32};

const MAIN: u32 = 4096;
const PACKS: [BlockAddr; 2] = [BlockAddr(512), BlockAddr(1024)];

fn geometry(checkpoint_payload: u32) -> Geometry {
    Geometry {
        blocks: 512 * 24,
        segments_per_section: 1,
        checkpoint: PACKS[0],
        checkpoint_payload,
        sit: BlockAddr(1536),
        sit_segments: 2,
        nat: BlockAddr(2560),
        nat_segments: 2,
        ssa: BlockAddr(3584),
        main: BlockAddr(MAIN),
        main_segments: 16,
    }
}

fn head() -> CheckpointHead {
    let mut head = CheckpointHead::new_zeroed();
    head.version.set(6);
    head.blocks_user.set(5000);
    (head.sit_bitmap_bytes, head.nat_bitmap_bytes) = (U32::new(64), U32::new(64));
    head.checksum_offset.set(CHECKSUM_OFFSET_MAX as u32);
    head.elapsed_secs.set(100);
    head
}

/// A device without a checkpoint.
fn blank() -> (tempfile::NamedTempFile, Device) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(512 * 24 * BLOCK_BYTES as u64).unwrap();
    let device = Device::open(file.path(), Access::Write).unwrap();
    (file, device)
}

/// Entry `slot` of the summary of a log is of node `100 * log + slot`.
fn summaries() -> Vec<Box<SummaryBlock>> {
    let of = |log: usize| {
        let mut summary = Box::new(SummaryBlock::new_zeroed());
        for (slot, entry) in summary.entries.iter_mut().enumerate() {
            *entry = SummaryEntry {
                nid: U32::new((1000 * log + slot) as u32),
                version: log as u8,
                slot: U16::new(slot as u16),
            };
        }
        // What an earlier checkpoint left.
        summary.journal.fill(0xff);
        summary
    };
    (0..LOGS).map(of).collect()
}

fn written(
    device: &Device,
    geometry: &Geometry,
    last: &Checkpoint,
    orphans: &[Nid],
    unmounts: bool,
) -> heddle_vfs::Result<Checkpoint> {
    let positions = |n: u32| Position { segment: Segno(n + 3), next: 10 * n + 1 };
    let positions: Vec<Position> = (0..LOGS as u32).map(positions).collect();
    let contents = Contents {
        counts: Counts { blocks: 900, nodes: 80, inodes: 7 },
        positions: &positions,
        summaries: &mut summaries(),
        segments_free: 11,
        next_free_nid: Nid(77),
        sit_bitmap: &[0x51; 64],
        nat_bitmap: &[0xa7; 64],
        orphans,
        unmounts,
        elapsed_secs: 5,
        announce: &|_| Ok(()),
    };
    write(device, geometry, last, contents)
}

fn first(device: &Device, geometry: &Geometry, orphans: &[Nid], unmounts: bool) -> Checkpoint {
    written(device, geometry, &Checkpoint::before_the_first(geometry, head()), orphans, unmounts).unwrap()
}

fn refusal(device: &Device, geometry: &Geometry) -> Option<String> {
    Checkpoint::read(device, geometry).err().map(|error| error.to_string())
}

/// Changes head and tail of the first pack, which then lie where its new head says.
fn change(device: &Device, change: impl Fn(&mut CheckpointHead)) {
    change_pack(device, PACKS[0], change);
}

fn change_pack(device: &Device, start: BlockAddr, change: impl Fn(&mut CheckpointHead)) {
    let mut block = device.block(start).unwrap();
    let (mut head, _) = CheckpointHead::read_from_prefix(&block[..]).unwrap();
    change(&mut head);
    block[..size_of_val(&head)].copy_from_slice(head.as_bytes());
    let at = head.checksum_offset.get() as usize;
    if at + 4 <= BLOCK_BYTES {
        // As Linux computes it: all of the block but the checksum.
        let crc = checksum(checksum(SEED, &block[..at]), &block[at + 4..]);
        block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    device.write(start, &block[..]).unwrap();
    device.write(start.plus(head.pack_blocks.get().max(1) - 1), &block[..]).unwrap();
}

#[test]
fn a_checkpoint_is_read_as_it_was_written() {
    for (payload, unmounts) in [(0, false), (0, true), (2, true)] {
        let ((_file, device), geometry) = (blank(), geometry(payload));
        let orphans: Vec<Nid> = (0..ORPHANS_PER_BLOCK as u32 + 1).map(|n| Nid(n + 4)).collect();
        let new = first(&device, &geometry, &orphans, unmounts);
        let said = Checkpoint::read(&device, &geometry).unwrap();
        assert_eq!((said.start, new.start, said.step, new.step), (PACKS[0], PACKS[0], 2, 1));
        assert_eq!((said.crc, said.identity()), (new.crc, new.identity()));
        assert!(said.orphans == orphans && new.orphans == orphans);
        assert_eq!((said.sit_bitmap.clone(), said.nat_bitmap.clone()), (vec![0x51; 64], vec![0xa7; 64]));
        assert!(said.nat_changes.is_empty() && said.contradiction.is_none());
        let head = &said.head;
        assert_eq!((head.version.get(), head.blocks_user.get(), head.elapsed_secs.get()), (7, 5000, 105));
        assert_eq!((head.blocks_valid.get(), head.nodes_valid.get(), head.inodes_valid.get()), (900, 80, 7));
        assert_eq!((head.segments_free.get(), head.next_free_nid.get()), (11, 77));
        let summaries_count = if unmounts { 6 } else { 3 };
        assert_eq!(head.summaries_start.get(), 1 + payload + 2);
        assert_eq!(head.pack_blocks.get(), 1 + payload + 2 + summaries_count + 1);
        let flags = checkpoint_flag::CRC_RECOVERY
            | checkpoint_flag::ORPHANS
            | if unmounts { checkpoint_flag::UNMOUNTED } else { 0 };
        assert_eq!(head.flags.get(), flags);
        assert_eq!(said.node_version(), 7 | u64::from(said.crc) << 32);
        for (n, (index, count)) in [(1, 1020), (2, 1)].into_iter().enumerate() {
            let block = device.block(PACKS[0].plus(1 + payload + n as u32)).unwrap();
            let block = OrphanBlock::read_from_bytes(&block[..]).unwrap();
            assert_eq!((block.index.get(), block.blocks.get(), block.entries.get()), (index, 2, count));
        }
        // Of a file system in use, the owners of nodes are the nodes themselves.
        if !unmounts {
            for (log, block) in [(3u32, 0u32), (4, 30), (5, 511)] {
                let mut node = NodeBlock::new_zeroed();
                node.footer.nid.set(1000 * log + block);
                device.write(BlockAddr(MAIN + (log + 3) * 512 + block), node.as_bytes()).unwrap();
            }
        }
        let logs = said.logs(&device, &geometry).unwrap();
        assert!(logs.sit_changes.is_empty() && logs.sit_bitmap == [0x51; 64]);
        assert_eq!(logs.open.len(), LOGS);
        for (n, (log, wrote)) in logs.open.iter().zip(summaries()).enumerate() {
            assert_eq!((log.segment, log.next), (Segno(n as u32 + 3), 10 * n as u32 + 1));
            let kind = if n < 3 { SUMMARY_OF_DATA } else { SUMMARY_OF_NODES };
            assert_eq!(log.summary.kind, kind, "log {n}");
            if n < 3 || unmounts {
                assert!(log.summary.entries == wrote.entries, "log {n}");
            } else {
                let nids = [0, 30, 511].map(|slot: usize| log.summary.entries[slot].nid.get());
                let of = |block: u32| if [0, 30, 511][n - 3] == block { 1000 * n as u32 + block } else { 0 };
                assert_eq!(nids, [0, 30, 511].map(of), "log {n}");
            }
        }
    }
}

#[test]
fn the_newer_whole_pack_counts_and_the_other_is_written_next() {
    let ((_file, device), geometry) = (blank(), geometry(0));
    let one = first(&device, &geometry, &[], false);
    let two = written(&device, &geometry, &one, &[], false).unwrap();
    assert_eq!((two.start, two.head.version.get(), two.head.elapsed_secs.get()), (PACKS[1], 8, 110));
    let read = || Checkpoint::read(&device, &geometry).unwrap();
    assert_eq!((read().start, read().step), (PACKS[1], 1));
    let of = |versions: [u64; 2]| {
        for (start, version) in PACKS.into_iter().zip(versions) {
            change_pack(&device, start, |head| head.version.set(version));
        }
        read().start
    };
    for (versions, counts) in [
        ([5, 4], 0),
        ([4, 5], 1),
        ([5, 5], 0),
        ([u64::MAX, 0], 1),
        ([0, u64::MAX], 0),
        ([1, 1 << 63], 1),
        ([1, 2 + (1 << 63)], 0),
    ] {
        assert_eq!(of(versions), PACKS[counts], "{versions:x?}");
    }
    // The tail of the newer one is damaged: its version may be that of a half of the next.
    assert_eq!(of([4, 5]), PACKS[1]);
    let tail = PACKS[1].plus(two.head.pack_blocks.get() - 1);
    let mut block = device.block(tail).unwrap();
    block[300] ^= 1;
    device.write(tail, &block[..]).unwrap();
    assert_eq!((read().start, read().step), (PACKS[0], 2));
    let next = written(&device, &geometry, &read(), &[], false).unwrap();
    assert_eq!((next.start, next.head.version.get()), (PACKS[1], 6));
    assert_eq!((read().start, read().step), (PACKS[1], 1));
    // Neither is whole.
    for start in PACKS {
        let mut block = device.block(start).unwrap();
        block[4000] ^= 0x80;
        device.write(start, &block[..]).unwrap();
    }
    let why = refusal(&device, &geometry).unwrap();
    assert!(why.contains("no checkpoint is whole") && why.contains("its checksum is wrong"), "{why}");
}

#[test]
fn each_number_of_a_head_is_believed_up_to_its_bound() {
    type Change = fn(&mut CheckpointHead);
    let cases: [(&str, bool, Change); 17] = [
        ("said to have 2 blocks", false, |head| head.pack_blocks.set(2)),
        ("3 blocks", true, |head| (head.pack_blocks, head.summaries_start) = (U32::new(3), U32::new(1))),
        ("512 blocks", true, |head| head.pack_blocks.set(512)),
        ("said to have 513 blocks", false, |head| head.pack_blocks.set(513)),
        ("said to be at byte 191", false, |head| head.checksum_offset.set(191)),
        ("at byte 192", true, |head| head.checksum_offset.set(192)),
        ("at byte 4000", true, |head| head.checksum_offset.set(4000)),
        ("at byte 4092", true, |head| head.checksum_offset.set(4092)),
        ("said to be at byte 4093", false, |head| head.checksum_offset.set(4093)),
        ("bitmaps of (63, 64) bytes", false, |head| head.sit_bitmap_bytes.set(63)),
        ("bitmaps of (64, 65) bytes", false, |head| head.nat_bitmap_bytes.set(65)),
        ("is at byte 4092 and not before", false, |head| head.flags.set(checkpoint_flag::LARGE_NAT_BITMAP)),
        ("large bitmaps", true, |head| {
            head.flags.set(checkpoint_flag::LARGE_NAT_BITMAP);
            head.checksum_offset.set(192);
        }),
        ("summaries in the tail", true, |head| head.summaries_start.set(head.pack_blocks.get() - 1)),
        ("block 5 of a pack of 5 is asked for", false, |head| head.summaries_start.set(5)),
        ("an orphan block of 4294967295", false, |head| {
            head.flags.set(checkpoint_flag::ORPHANS);
            head.summaries_start.set(2);
        }),
        ("orphans that are not there", true, |head| head.flags.set(checkpoint_flag::ORPHANS)),
    ];
    for (what, is_believed, new) in cases {
        let ((_file, device), geometry) = (blank(), geometry(0));
        first(&device, &geometry, &[], false);
        // What an orphan block would say its count is.
        let mut block = device.block(PACKS[0].plus(1)).unwrap();
        block[4088..4092].fill(0xff);
        device.write(PACKS[0].plus(1), &block[..]).unwrap();
        change(&device, new);
        let why = refusal(&device, &geometry);
        assert_eq!(why.is_none(), is_believed, "{what}: {why:?}");
        assert!(why.is_none_or(|why| why.contains(what)), "{what}");
    }
}

#[test]
fn counts_that_are_more_than_there_is_contradict_each_other() {
    let ((_file, device), geometry) = (blank(), geometry(0));
    first(&device, &geometry, &[], false);
    let main = 16 * 512;
    for (counts, is_possible) in [
        ([main, main, main, main], true),
        ([main + 1, 9, 8, 7], false),
        ([main, main + 1, 8, 7], false),
        ([9, 9, 9, 9], true),
        ([9, 9, 10, 9], false),
        ([9, 9, 8, 8], true),
        ([9, 9, 8, 9], false),
        ([0, 9, 8, 8], true),
    ] {
        change(&device, |head| {
            let [user, valid, nodes, inodes] = counts;
            (head.blocks_user, head.blocks_valid) = (user.into(), valid.into());
            (head.nodes_valid, head.inodes_valid) = (U32::new(nodes as u32), U32::new(inodes as u32));
        });
        let read = Checkpoint::read(&device, &geometry).unwrap();
        assert_eq!(read.contradiction.is_none(), is_possible, "{counts:?}: {:?}", read.contradiction);
    }
}

#[test]
fn a_full_journal_of_nodes_is_applied_and_a_fuller_one_refused() {
    let ((_file, device), geometry) = (blank(), geometry(0));
    first(&device, &geometry, &[], false);
    let nids = geometry.nids();
    assert_eq!(nids, 512 * 455);
    let journal = |count: usize, change: &dyn Fn(&mut NatJournal)| {
        let mut journal = NatJournal::new_zeroed();
        for (n, slot) in journal.changes.iter_mut().enumerate() {
            slot.nid.set(n as u32 + 1);
            slot.entry = NatEntry { version: n as u8, ino: U32::new(9), addr: U32::new(5000) };
        }
        journal.count.set(count as u16);
        change(&mut journal);
        let at = PACKS[0].plus(1);
        let mut block = device.block(at).unwrap();
        let place = std::mem::offset_of!(SummaryBlock, journal);
        block[place..place + JOURNAL_BYTES].copy_from_slice(journal.as_bytes());
        device.write(at, &block[..]).unwrap();
        Checkpoint::read(&device, &geometry).map(|read| read.nat_changes).map_err(|error| error.to_string())
    };
    let all = journal(NAT_JOURNAL_ENTRIES, &|_| ()).unwrap();
    assert_eq!(all.len(), 38);
    assert_eq!(all[37], (Nid(38), NatEntry { version: 37, ino: U32::new(9), addr: U32::new(5000) }));
    assert_eq!(journal(0, &|_| ()), Ok(Vec::new()));
    assert!(journal(NAT_JOURNAL_ENTRIES + 1, &|_| ()).unwrap_err().contains("39 changes where 38 fit"));
    for (nid, is_there) in [(0, false), (1, true), (nids - 1, true), (nids, false)] {
        let found = journal(1, &|journal| journal.changes[0].nid.set(nid));
        assert_eq!(found.is_ok(), is_there, "{nid}: {found:?}");
    }
}

#[test]
fn orphan_blocks_are_believed_up_to_their_bounds() {
    let ((_file, device), geometry) = (blank(), geometry(0));
    let nids = geometry.nids();
    let all: Vec<Nid> = (4..4 + ORPHANS_PER_BLOCK as u32).map(Nid).collect();
    first(&device, &geometry, &all, false);
    let orphans = |count: u32, last: u32| {
        let mut block = device.block(PACKS[0].plus(1)).unwrap();
        let mut orphans = OrphanBlock::read_from_bytes(&block[..]).unwrap();
        orphans.entries.set(count);
        orphans.ino[ORPHANS_PER_BLOCK - 1].set(last);
        block.copy_from_slice(orphans.as_bytes());
        device.write(PACKS[0].plus(1), &block[..]).unwrap();
        Checkpoint::read(&device, &geometry).map(|read| read.orphans.len()).map_err(|error| error.to_string())
    };
    assert_eq!(orphans(1020, 4), Ok(1020));
    assert!(orphans(1021, 4).unwrap_err().contains("1021 inodes where 1020 fit"));
    assert_eq!(orphans(1019, 3), Ok(1019), "what is behind its count is no orphan");
    for (nid, is_orphan) in [(0, false), (3, false), (4, true), (nids - 1, true), (nids, false)] {
        assert_eq!(orphans(1020, nid).is_ok(), is_orphan, "{nid}");
    }
    assert_eq!(orphans_max(&geometry), (512 - 8) * 1020);
    assert_eq!(orphans_max(&self::geometry(503)), 1020);
    assert_eq!([504, 511].map(|payload| orphans_max(&self::geometry(payload))), [0, 0]);
}

#[test]
fn a_pack_fills_its_segment_and_no_more() {
    let ((_file, device), fits) = (blank(), geometry(507));
    let before = |geometry: &Geometry| Checkpoint::before_the_first(geometry, head());
    assert!(written(&device, &fits, &before(&fits), &[], false).is_ok());
    assert_eq!(Checkpoint::read(&device, &fits).unwrap().head.pack_blocks.get(), 512);
    let too_large = geometry(508);
    for (geometry, orphans) in [(&too_large, &[][..]), (&fits, &[Nid(4)][..])] {
        let error = written(&device, geometry, &before(geometry), orphans, false).err();
        assert!(matches!(error, Some(Error::Io(_))), "{error:?}");
    }
}

#[test]
fn bitmaps_lie_where_the_format_says() {
    let at = |flags: u32, payload: u32, sizes: [usize; 2]| {
        let mut head = head();
        head.flags.set(flags);
        bitmaps_at(&head, payload, sizes)
    };
    let large = checkpoint_flag::LARGE_NAT_BITMAP;
    assert_eq!(at(0, 0, [64, 256]), Some([192..256, 256..512]));
    assert_eq!(at(0, 0, [3900, 0]), Some([192..4092, 4092..4092]), "they fill the head");
    assert_eq!(at(0, 0, [3901, 0]), None);
    assert_eq!(at(0, 0, [3000, 900]), Some([192..3192, 3192..4092]));
    assert_eq!(at(0, 0, [3000, 901]), None);
    assert_eq!(at(0, 1, [4096, 3900]), Some([4096..8192, 192..4092]));
    assert_eq!(at(0, 1, [4097, 3900]), None, "the payload ends");
    assert_eq!(at(0, 1, [64, 3901]), None);
    assert_eq!(at(0, 2, [8192, 64]), Some([4096..12288, 192..256]));
    assert_eq!(at(large, 0, [64, 256]), Some([452..516, 196..452]));
    assert_eq!(at(large, 0, [0, 3900]), Some([4096..4096, 196..4096]));
    assert_eq!(at(large, 0, [1, 3900]), None);
    assert_eq!(at(large, 1, [4096, 3900]), Some([4096..8192, 196..4096]));
    assert_eq!(at(large, 1, [4097, 3900]), None);
}

#[test]
fn flags_are_taken_away_from_tail_and_head_alone() {
    let ((_file, device), geometry) = (blank(), geometry(0));
    first(&device, &geometry, &[], true);
    let read = || Checkpoint::read(&device, &geometry).unwrap();
    let all = checkpoint_flag::FSCK | checkpoint_flag::ERROR | checkpoint_flag::UNMOUNTED;
    change(&device, |head| head.flags.set(all));
    let before = device.block(PACKS[0]).unwrap();
    let last = PACKS[0].plus(7);
    assert_eq!(read().blocks_with_flags(), [last, PACKS[0]]);
    assert!(read().has(checkpoint_flag::FSCK) && !read().has(checkpoint_flag::FASTBOOT));
    assert_eq!(read().node_version(), 7, "nodes carry no checksum");
    read().without_flags(&device, checkpoint_flag::FSCK | checkpoint_flag::ERROR).unwrap();
    assert_eq!(read().head.flags.get(), checkpoint_flag::UNMOUNTED);
    let after = device.block(PACKS[0]).unwrap();
    assert!(after == device.block(last).unwrap());
    let differs: Vec<usize> = (0..BLOCK_BYTES).filter(|at| before[*at] != after[*at]).collect();
    assert!(differs.iter().all(|at| (132..136).contains(at) || (4092..4096).contains(at)), "{differs:?}");
}

#[test]
fn flags_of_the_image_stay_and_those_of_a_checkpoint_go() {
    let ((_file, device), geometry) = (blank(), geometry(0));
    let mut old = head();
    old.flags.set(u32::MAX);
    old.checksum_offset.set(192);
    let told = RefCell::new(None);
    let last = Checkpoint::before_the_first(&geometry, old);
    let positions = [Position { segment: Segno(1), next: 0 }; LOGS];
    let contents = Contents {
        counts: Counts::default(),
        positions: &positions,
        summaries: &mut summaries(),
        segments_free: 0,
        next_free_nid: Nid(4),
        sit_bitmap: &[1; 64],
        nat_bitmap: &[2; 64],
        orphans: &[],
        unmounts: false,
        elapsed_secs: 0,
        announce: &|next| {
            // The tail is not there yet.
            let tail = device.block(PACKS[0].plus(4))?;
            assert!(tail.iter().all(|byte| *byte == 0));
            *told.borrow_mut() = Some(next);
            Ok(())
        },
    };
    let new = write(&device, &geometry, &last, contents).unwrap();
    let kept = checkpoint_flag::LARGE_NAT_BITMAP | checkpoint_flag::QUOTA_NEEDS_FSCK;
    assert_eq!(new.head.flags.get(), kept | checkpoint_flag::CRC_RECOVERY);
    assert_eq!(told.into_inner(), Some(new.identity()));
    let read = Checkpoint::read(&device, &geometry).unwrap();
    assert!(read.sit_bitmap == [1; 64] && read.nat_bitmap == [2; 64]);
}

#[test]
fn logs_are_open_in_segments_that_there_are() {
    let ((_file, device), geometry) = (blank(), geometry(0));
    let of = |new: &dyn Fn(&mut CheckpointHead)| {
        first(&device, &geometry, &[], true);
        change(&device, new);
        Checkpoint::read(&device, &geometry).unwrap().logs(&device, &geometry).map(|_| ())
    };
    for n in 0..3 {
        assert_eq!(of(&|head| head.data_segment[n].set(15)), Ok(()));
        assert_eq!(of(&|head| head.node_segment[n].set(15)), Ok(()));
        assert_eq!(of(&|head| head.data_offset[n].set(511)), Ok(()));
        assert_eq!(of(&|head| head.node_offset[n].set(511)), Ok(()));
        for error in [
            of(&|head| head.data_segment[n].set(16)),
            of(&|head| head.node_segment[n].set(16)),
            of(&|head| head.data_offset[n].set(512)),
            of(&|head| head.node_offset[n].set(512)),
        ] {
            assert!(error.unwrap_err().contains("a log is said to be open at block"));
        }
        assert_eq!(of(&|head| head.data_segment[n + 3].set(16)), Ok(()), "a log that is not used");
    }
    // Without the flag of an unmount, the last blocks of the pack are no summaries of nodes.
    let nids = |flags: u32| {
        first(&device, &geometry, &[], true);
        change(&device, |head| head.flags.set(flags));
        let logs = Checkpoint::read(&device, &geometry).unwrap().logs(&device, &geometry).unwrap();
        [3, 4, 5].map(|log: usize| logs.open[log].summary.entries[2].nid.get())
    };
    assert_eq!(nids(checkpoint_flag::UNMOUNTED), [3002, 4002, 5002]);
    assert_eq!(nids(checkpoint_flag::FASTBOOT), [3002, 4002, 5002]);
    assert_eq!(nids(0), [0, 0, 0]);
}

#[test]
fn a_full_journal_of_segments_is_applied_and_a_fuller_one_refused() {
    let ((_file, device), geometry) = (blank(), geometry(0));
    first(&device, &geometry, &[], false);
    let changes = |count: usize| {
        let mut journal = SitJournal::new_zeroed();
        for (n, slot) in journal.changes.iter_mut().enumerate() {
            (slot.segno, slot.entry.blocks) = (U32::new(n as u32), U16::new(n as u16 + 20));
        }
        journal.count.set(count as u16);
        let at = PACKS[0].plus(3);
        let mut block = device.block(at).unwrap();
        let place = std::mem::offset_of!(SummaryBlock, journal);
        block[place..place + JOURNAL_BYTES].copy_from_slice(journal.as_bytes());
        device.write(at, &block[..]).unwrap();
        let logs = Checkpoint::read(&device, &geometry).unwrap().logs(&device, &geometry);
        logs.map(|logs| logs.sit_changes)
    };
    let all = changes(SIT_JOURNAL_ENTRIES).unwrap();
    let found: Vec<(u32, u16)> = all.iter().map(|(segno, entry)| (segno.0, entry.blocks.get())).collect();
    assert_eq!(found, [(0, 20), (1, 21), (2, 22), (3, 23), (4, 24), (5, 25)]);
    assert_eq!(changes(0), Ok(Vec::new()));
    assert_eq!(changes(7), Err("a journal of 7 segments where 6 fit".into()));
}

/// Journals first, then seven bytes an entry: the first block has room for 439, each further one for 584.
#[test]
fn compacted_summaries_are_those_of_three_logs_in_a_row() {
    let ((_file, device), geometry) = (blank(), geometry(0));
    first(&device, &geometry, &[], true);
    let counts = [300_u32, 512, 250];
    let entry = |log: usize, slot: u32| SummaryEntry {
        nid: U32::new(10_000 * log as u32 + slot),
        version: log as u8 + 1,
        slot: U16::new(slot as u16),
    };
    let entries = (0..3).flat_map(|log| (0..counts[log]).map(move |slot| entry(log, slot)));
    let mut blocks = vec![[0u8; BLOCK_BYTES]; 3];
    for (n, entry) in entries.enumerate() {
        let (block, at) = match n {
            0..439 => (0, 2 * JOURNAL_BYTES + 7 * n),
            439..1023 => (1, 7 * (n - 439)),
            _ => (2, 7 * (n - 1023)),
        };
        blocks[block][at..at + 7].copy_from_slice(entry.as_bytes());
    }
    let (mut nat, mut sit) = (NatJournal::new_zeroed(), SitJournal::new_zeroed());
    (nat.count, nat.changes[0].nid) = (U16::new(1), U32::new(44));
    (sit.count, sit.changes[0].segno) = (U16::new(1), U32::new(9));
    blocks[0][..JOURNAL_BYTES].copy_from_slice(nat.as_bytes());
    blocks[0][JOURNAL_BYTES..2 * JOURNAL_BYTES].copy_from_slice(sit.as_bytes());
    for (n, block) in blocks.iter().enumerate() {
        device.write(PACKS[0].plus(1 + n as u32), block).unwrap();
    }
    // The second log fills gaps, so all its entries are there.
    change(&device, |head| {
        head.flags.set(checkpoint_flag::COMPACT_SUMMARIES | checkpoint_flag::UNMOUNTED);
        head.alloc_type[1] = 1;
        for (offset, count) in head.data_offset.iter_mut().zip([300, 3, 250]) {
            offset.set(count);
        }
    });
    let read = Checkpoint::read(&device, &geometry).unwrap();
    assert_eq!(read.nat_changes.iter().map(|(nid, _)| *nid).collect::<Vec<_>>(), [Nid(44)]);
    let logs = read.logs(&device, &geometry).unwrap();
    assert_eq!(logs.sit_changes.iter().map(|(segno, _)| *segno).collect::<Vec<_>>(), [Segno(9)]);
    for (log, count) in counts.into_iter().enumerate() {
        let summary = &logs.open[log].summary;
        assert_eq!(summary.kind, SUMMARY_OF_DATA);
        for (slot, found) in summary.entries.iter().enumerate() {
            let none = SummaryEntry::new_zeroed();
            let wanted = if slot < count as usize { entry(log, slot as u32) } else { none };
            assert_eq!(*found, wanted, "log {log}, entry {slot}");
        }
    }
    // The pack ends before the third of the blocks that all entries need.
    change(&device, |head| {
        head.pack_blocks.set(3);
        head.flags.set(checkpoint_flag::COMPACT_SUMMARIES);
        head.alloc_type.fill(1);
    });
    let read = Checkpoint::read(&device, &geometry).unwrap();
    assert!(read.logs(&device, &geometry).err().unwrap().contains("block 3 of a pack of 3 is asked for"));
}

#[test]
fn nodes_carry_version_and_checksum_in_one_word() {
    let mut checkpoint = Checkpoint::before_the_first(&geometry(0), head());
    (checkpoint.crc, checkpoint.head.version) = (0xabcd_0001, 0x3_0000_0009.into());
    assert_eq!(checkpoint.node_version(), 0x3_0000_0009);
    checkpoint.head.flags.set(checkpoint_flag::CRC_RECOVERY);
    assert_eq!(checkpoint.node_version(), 0xabcd_0003_0000_0009);
    assert_eq!(checkpoint.version_of_no_chain(), 0x2bcd_0003_8000_0009, "both words differ");
}
