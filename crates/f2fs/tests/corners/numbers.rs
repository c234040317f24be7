//! Numbers of a checkpoint, its journals and its lists that cannot be: each is refused when it is read, and the refusal names its
//! structure.

use super::{ROOT, create, mounted, name, refusal};
use crate::common::{Image, fsck_is_clean};
use crate::forge::Forge;
use heddle_f2fs::format::{
    JOURNAL_BYTES, NAT_JOURNAL_ENTRIES, SIT_JOURNAL_ENTRIES, SitJournal, SummaryBlock, Superblock,
};
use heddle_f2fs::format::{ORPHANS_PER_BLOCK, checkpoint_flag};
use heddle_vfs::{Cred, FileSystem};
use std::path::Path;
use zerocopy::{FromBytes, FromZeros};

/// The journal of changes of the segment table, wherever the checkpoint has it.
fn sit_journal(forge: &Forge, change: impl FnOnce(&mut SitJournal)) {
    let (start, head) = forge.pack();
    let is_compact = head.flags.get() & checkpoint_flag::COMPACT_SUMMARIES != 0;
    let (block, at) = match is_compact {
        true => (0, JOURNAL_BYTES),
        // Of the third log of data.
        false => (2, std::mem::offset_of!(SummaryBlock, journal)),
    };
    forge.change(start + head.summaries_start.get() + block, |block| {
        change(SitJournal::mut_from_bytes(&mut block[at..at + JOURNAL_BYTES]).unwrap());
    });
}

/// With an inode without a name, which the checkpoint lists; and one that mkfs.f2fs left, with compacted summaries.
fn images() -> Option<[Image; 2]> {
    let (made, ours) = (Image::empty(64, &[])?, Image::empty(64, &[])?);
    let fs = mounted(&ours);
    let open = create(&fs, ROOT, "open");
    fs.unlink(&Cred::root(), ROOT, name("open")).unwrap();
    fs.sync().unwrap();
    fs.release(open);
    Some([ours, made])
}

type Forged = (&'static str, &'static str, fn(&Forge));

const OF_EVERY_IMAGE: [Forged; 16] = [
    ("NAT journal: count", "a journal of 39 changes", |forge| {
        forge.nat_journal(|journal| journal.count.set(NAT_JOURNAL_ENTRIES as u16 + 1));
    }),
    ("NAT journal: the largest count", "a journal of 65535 changes", |forge| {
        forge.nat_journal(|journal| journal.count.set(u16::MAX));
    }),
    ("SIT journal: count", "a journal of 7 segments", |forge| {
        sit_journal(forge, |journal| journal.count.set(SIT_JOURNAL_ENTRIES as u16 + 1));
    }),
    ("SIT journal: the segment behind the last", "a journal of segment", |forge| {
        let segments = forge.superblock().segments_main.get();
        sit_journal(forge, |journal| {
            journal.count.set(1);
            journal.changes[0] = FromZeros::new_zeroed();
            journal.changes[0].segno.set(segments);
        });
    }),
    ("SIT journal: live blocks", "counts 3 live blocks of 0", |forge| {
        sit_journal(forge, |journal| {
            journal.count.set(1);
            journal.changes[0] = FromZeros::new_zeroed();
            journal.changes[0].segno.set(20);
            journal.changes[0].entry.blocks.set(3);
        });
    }),
    ("bytes of the SIT's bitmap", "bitmaps of", |forge| forge.head(|head| head.sit_bitmap_bytes.set(0))),
    ("more bytes of it", "bitmaps of", |forge| forge.head(|head| head.sit_bitmap_bytes.set(u32::MAX))),
    ("bytes of the NAT's bitmap", "bitmaps of", |forge| forge.head(|head| head.nat_bitmap_bytes.set(0))),
    ("more bytes of it", "bitmaps of", |forge| forge.head(|head| head.nat_bitmap_bytes.set(1 << 31))),
    ("a log's segment", "a log is said to be open", |forge| {
        let segments = forge.superblock().segments_main.get();
        forge.head(|head| head.node_segment[1].set(segments));
    }),
    ("a log's place in its segment", "a log is said to be open", |forge| {
        forge.head(|head| head.data_offset[0].set(512));
    }),
    ("one segment of two logs", "two logs share a segment", |forge| {
        forge.head(|head| head.data_segment[2] = head.node_segment[0]);
    }),
    ("where the summaries begin: behind the pack", "of a pack of", |forge| {
        forge.head(|head| head.summaries_start = head.pack_blocks);
    }),
    ("where they begin: the largest number", "of a pack of", |forge| {
        forge.head(|head| head.summaries_start.set(u32::MAX));
    }),
    ("blocks of users", "users may have", |forge| forge.head(|head| head.blocks_user.set(u64::MAX))),
    ("nodes that are in use", "counts", |forge| forge.head(|head| head.nodes_valid.set(u32::MAX))),
];

const OF_A_LIST: [Forged; 4] = [
    ("orphans: count", "an orphan block of 1021 inodes", |forge| {
        forge.orphans(|orphans| orphans.entries.set(ORPHANS_PER_BLOCK as u32 + 1));
    }),
    ("orphans: the largest count", "an orphan block of", |forge| {
        forge.orphans(|orphans| orphans.entries.set(u32::MAX));
    }),
    ("orphans: the root", "names inode 3", |forge| forge.orphans(|orphans| orphans.ino[0].set(3))),
    ("orphans: the number behind the table", "names inode", |forge| {
        let numbers = forge.superblock().segments_nat.get() / 2 * 512 * 455;
        forge.orphans(|orphans| orphans.ino[0].set(numbers));
    }),
];

fn is_refused(image: &Image, (what, why, forge): Forged) {
    let copy = Image::copy_of(image);
    forge(&Forge::of(&copy.path));
    let before = std::fs::read(&copy.path).unwrap();
    let said = refusal(&copy);
    assert!(said.contains(why), "{what}: {said}");
    assert!(before == std::fs::read(&copy.path).unwrap(), "{what}: the image was changed");
}

#[test]
fn numbers_that_cannot_be_are_refused_and_change_nothing() {
    let Some([listed, compacted]) = images() else { return };
    for image in [&listed, &compacted] {
        OF_EVERY_IMAGE.into_iter().for_each(|forged| is_refused(image, forged));
    }
    OF_A_LIST.into_iter().for_each(|forged| is_refused(&listed, forged));
    for image in [&listed, &compacted] {
        mounted(image).unmount().unwrap();
        fsck_is_clean(&image.path);
    }
}

/// A label is text of anybody's: halves of characters, and 512 units without an end.
#[test]
fn a_label_that_is_no_text_is_shown_with_marks() {
    let halves = "\u{fffd}".repeat(512);
    let labels: [(Vec<u16>, &str); 4] = [
        (vec![0x61, 0xd800, 0x62], "a\u{fffd}b"),
        (vec![0xdc00, 0xd83d, 0xde00, 0xd83d], "\u{fffd}😀\u{fffd}"),
        (vec![0xd800; 512], &halves),
        (vec![0x1b, 0x5b, 0x202e, 0, 0x61], "\u{1b}[\u{202e}"),
    ];
    for (units, shown) in labels {
        let Some(image) = Image::empty(64, &[]) else { return };
        let forge = Forge::of(&image.path);
        for copy in 0..2 {
            forge.change(copy, |block| {
                let superblock = Superblock::mut_from_prefix(&mut block[1024..]).unwrap().0;
                superblock.volume_name.iter_mut().zip(&units).for_each(|(slot, unit)| slot.set(*unit));
            });
        }
        let fs = mounted(&image);
        assert_eq!(fs.info().label, shown);
        fs.unmount().unwrap();
    }
}

/// What is cut off are whole characters.
#[test]
fn a_label_that_is_too_long_ends_behind_a_character() {
    let image = Image::made(64);
    let label = format!("x{}", "😀".repeat(300));
    heddle_f2fs::make_image(&image.path, &label, &|_, _| ()).unwrap();
    let shown = mounted(&image).info().label;
    assert_eq!(shown, format!("x{}", "😀".repeat(255)));
    let label = "😀".repeat(300);
    heddle_f2fs::make_image(&image.path, &label, &|_, _| ()).unwrap();
    assert_eq!(mounted(&image).info().label, "😀".repeat(255));
}

/// The number of a block's owner is no place to write to: whatever a summary says, no other file's byte changes when it is cleaned.
#[test]
fn summaries_that_name_other_files_move_nothing_of_theirs() {
    for number in [0, 1, 3, 1 << 20, u32::MAX] {
        let image = Image::made(64);
        let fs = mounted(&image);
        let files = ["one", "two"].map(|text| create(&fs, ROOT, text));
        for page in 0..700_u64 {
            for (n, file) in files.iter().enumerate() {
                fs.write(file, page * 4096, &[n as u8 + 1; 4096]).unwrap();
            }
            if page % 50 == 0 {
                fs.sync().unwrap();
            }
        }
        // Gaps, so that it is worth while to clean.
        fs.sync().unwrap();
        for page in (0..700_u64).filter(|page| page % 3 == 0) {
            fs.write(&files[0], page * 4096, &[1; 4096]).unwrap();
        }
        let other = files[1].ino.0 as u32;
        files.into_iter().for_each(|file| fs.release(file));
        fs.unmount().unwrap();
        drop(fs);
        let forge = Forge::of(&image.path);
        let superblock = forge.superblock();
        let number = if number == 1 << 20 { other } else { number };
        for segment in 0..superblock.segments_main.get() {
            forge.change(superblock.ssa.get() + segment, |block| {
                let summary = SummaryBlock::mut_from_bytes(block).unwrap();
                let some = summary.entries.iter_mut().step_by(9).filter(|entry| entry.nid.get() != 0);
                some.for_each(|entry| {
                    entry.nid.set(number);
                    entry.slot.set(u16::MAX - entry.slot.get());
                });
            });
        }
        let fs = mounted(&image);
        let more = create(&fs, ROOT, "more");
        for n in 0..40_u64 {
            for page in 0..300 {
                let _ = fs.write(&more, (page * 7 + n) % 900 * 4096, &[9; 4096]);
            }
            fs.sync().unwrap();
        }
        fs.release(more);
        assert!(!fs.has_failed(), "{number}");
        for (text, byte) in [("/one", 1), ("/two", 2)] {
            let bytes = crate::common::read(&fs, Path::new(text));
            assert!(bytes.len() == 700 * 4096 && bytes.iter().all(|is| *is == byte), "{number}: {text}");
        }
        fs.unmount().unwrap();
    }
}
