use super::*;

const BLOCKS: u64 = 4096;

fn image(blocks: u64, uuid: u8, sequence: u64) -> Superblock {
    let layout = Layout::new(blocks);
    Superblock {
        magic: MAGIC,
        version: U32::new(VERSION),
        crc: U32::ZERO,
        uuid: [uuid; 16],
        sequence: U64::new(sequence),
        blocks_total: U64::new(blocks),
        epoch: U64::new(5),
        inode_dir_block: U64::new(layout.inode_dir.0),
        inode_dir_pointers: U64::new(layout.chunks_max),
        data_block: U64::new(layout.data.0),
        created_ns: U64::new(1),
        variant: U32::new(0),
        clean: U32::new(1),
        mounted_ns: U64::new(2),
        seed: U32::new(u32::from(uuid) * 7),
        repair: U64::ZERO,
        unused: [0; 12],
    }
}

fn bytes(sb: &Superblock) -> [u8; SUPERBLOCK_BYTES] {
    sb.as_bytes().try_into().unwrap()
}

fn decoded(sb: &Superblock) -> FoundSuperblock {
    Superblock::decode(&bytes(sb))
}

#[test]
fn each_kind_of_wrong_superblock_is_told_from_the_others() {
    let whole = image(BLOCKS, 1, 9);
    assert!(matches!(decoded(&whole.sealed()), FoundSuperblock::Whole(sb) if sb.seed() == 7));
    assert!(matches!(Superblock::decode(&[0; SUPERBLOCK_BYTES]), FoundSuperblock::Blank));
    assert!(matches!(decoded(&whole), FoundSuperblock::Damaged), "its checksum is wrong");
    let other = Superblock { version: U32::new(VERSION + 1), ..whole };
    assert!(
        matches!(decoded(&other.sealed()), FoundSuperblock::OtherVersion(version) if version == VERSION + 1)
    );
    assert!(matches!(decoded(&other), FoundSuperblock::Damaged), "the version may be what is damaged");
    let foreign = Superblock { magic: *b"12345678", ..whole };
    assert!(matches!(decoded(&foreign), FoundSuperblock::Foreign));
    assert!(matches!(decoded(&foreign.sealed()), FoundSuperblock::Damaged), "the magic alone is wrong");
    let both = Superblock { version: U32::new(9), ..foreign };
    assert!(matches!(decoded(&both.sealed()), FoundSuperblock::Damaged));
    let worn = Superblock { epoch: U64::new(MOUNTS_MAX), sequence: U64::new(SEQUENCE_MAX), ..whole };
    assert!(matches!(decoded(&worn.sealed()), FoundSuperblock::Whole(_)));
    let mounts = Superblock { epoch: U64::new(MOUNTS_MAX + 1), ..whole };
    let writes = Superblock { sequence: U64::new(SEQUENCE_MAX + 1), ..whole };
    for nonsense in [mounts, writes] {
        assert!(matches!(decoded(&nonsense.sealed()), FoundSuperblock::Damaged));
    }
}

#[test]
fn a_superblock_counts_mounts_and_writes_up_to_their_ends() {
    let counts = |sb: Superblock| (sb.epoch.get(), sb.sequence.get());
    let first = image(BLOCKS, 1, 9);
    assert_eq!(first.next(3).map(counts), Some((8, 10)));
    assert_eq!(first.next(0).map(counts), Some((5, 10)));
    assert_eq!(first.mounted().map(counts), Some((6, 10)));
    let at = |epoch, sequence| Superblock { epoch: U64::new(epoch), sequence: U64::new(sequence), ..first };
    assert!(at(MOUNTS_MAX - 1, 1).mounted().is_some() && at(MOUNTS_MAX, 1).mounted().is_none());
    assert!(at(MOUNTS_MAX, 1).next(0).is_some(), "the unmount of the last mount");
    assert!(at(1, SEQUENCE_MAX - 1).next(0).is_some() && at(1, SEQUENCE_MAX).next(0).is_none());
    assert!(at(1, SEQUENCE_MAX - 2).mounted().is_some());
    assert!(at(1, SEQUENCE_MAX - 1).mounted().is_none(), "the unmount could not be counted");
    assert_eq!((MOUNTS_MAX, SEQUENCE_MAX), (4_194_303, 16_777_212));
}

/// Media with these superblocks.
fn copies(blocks: u64, at: &[(u64, Superblock)]) -> Copies {
    Copies::read(blocks, &|block| {
        let found = at.iter().find(|(place, _)| *place == block);
        found.map_or([0; SUPERBLOCK_BYTES], |(_, sb)| bytes(sb))
    })
}

fn sequence(copies: &Copies) -> Option<u64> {
    copies.newest().map(|sb| sb.sequence.get())
}

#[test]
fn the_newer_copy_counts_and_the_second_one_of_the_same_age() {
    let of = |first, second| {
        let (first, second) = (image(BLOCKS, 1, first).sealed(), image(BLOCKS, 1, second).sealed());
        let found = copies(BLOCKS, &[(0, first), (BLOCKS - 1, second)]);
        assert_eq!((found.second_block, found.blocks()), (BLOCKS - 1, Some(BLOCKS)));
        (sequence(&found), found.first_counts())
    };
    assert_eq!(of(8, 7), (Some(8), true));
    assert_eq!(of(7, 8), (Some(8), false));
    assert_eq!(of(8, 8), (Some(8), false));
    let alone = copies(BLOCKS, &[(0, image(BLOCKS, 1, 3).sealed())]);
    assert!(alone.first_counts() && matches!(alone.second, FoundSuperblock::Blank));
    let none = copies(BLOCKS, &[]);
    assert_eq!((sequence(&none), none.blocks(), none.first_counts()), (None, None, false));
    let empty = copies(0, &[]);
    assert_eq!((empty.second_block, sequence(&empty)), (0, None));
}

#[test]
fn the_second_copy_ends_the_image_and_belongs_to_it() {
    let (first, second) = (image(BLOCKS, 1, 7).sealed(), image(BLOCKS, 1, 8).sealed());
    let grown = copies(2 * BLOCKS, &[(0, first), (BLOCKS - 1, second)]);
    assert_eq!((sequence(&grown), grown.second_block), (Some(8), BLOCKS - 1));
    let cut = copies(BLOCKS - 1, &[(0, first), (BLOCKS - 2, second)]);
    assert_eq!((sequence(&cut), cut.blocks()), (Some(7), Some(BLOCKS)), "it lies where it says itself");
    let stranger = image(BLOCKS, 2, 99).sealed();
    let other = copies(BLOCKS, &[(0, first), (BLOCKS - 1, stranger)]);
    assert_eq!((sequence(&other), other.first_counts()), (Some(7), true));
    assert!(matches!(other.second, FoundSuperblock::Foreign));
    // Another identity was given, and a power cut has left the second copy with the old one.
    let renamed = Superblock { uuid: [9; 16], ..image(BLOCKS, 1, 7) }.sealed();
    assert_eq!(sequence(&copies(BLOCKS, &[(0, renamed), (BLOCKS - 1, second)])), Some(8));
    for (changed, why) in [
        (Superblock { seed: U32::new(8), ..renamed }.sealed(), "another seed"),
        (Superblock { blocks_total: U64::new(BLOCKS - 1), ..renamed }.sealed(), "another size"),
    ] {
        let found = copies(BLOCKS, &[(0, changed), (BLOCKS - 1, second)]);
        assert_eq!(sequence(&found), Some(7), "{why}");
    }
}

#[test]
fn what_is_left_of_a_first_copy_leads_to_the_second() {
    let second = image(BLOCKS, 1, 8).sealed();
    let media = 4 * BLOCKS;
    let found = |first: Superblock| copies(media, &[(0, first), (BLOCKS - 1, second)]);
    let whole = image(BLOCKS, 1, 7).sealed();
    let damaged = Superblock { created_ns: U64::new(99), ..whole };
    let by_size = found(damaged);
    assert!(matches!(by_size.first, FoundSuperblock::Damaged));
    assert_eq!(
        (sequence(&by_size), by_size.second_block, by_size.first_counts()),
        (Some(8), BLOCKS - 1, false)
    );
    let no_magic = Superblock { magic: [0; 8], ..whole };
    assert!(matches!(found(no_magic).first, FoundSuperblock::Foreign));
    assert_eq!(sequence(&found(no_magic)), Some(8));
    let no_size = Superblock { blocks_total: U64::new(3), ..whole };
    assert_eq!(sequence(&found(no_size)), Some(8), "found by its inode pointers");
    // Three signs of seven are too few.
    let rest = Superblock { magic: [0; 8], version: U32::ZERO, clean: U32::new(3), unused: [1; 12], ..whole };
    assert_eq!((sequence(&found(rest)), found(rest).blocks()), (None, None));
    let four = Superblock { unused: [0; 12], ..rest };
    assert_eq!(sequence(&found(four)), Some(8));
    // The last block is looked at where nothing leads anywhere.
    let at_end = |first: Superblock| copies(BLOCKS, &[(0, first), (BLOCKS - 1, second)]);
    assert_eq!(sequence(&at_end(rest)), Some(8));
    assert_eq!(copies(media, &[(0, rest)]).second_block, media - 1);
    assert_eq!(copies(media, &[(0, damaged)]).blocks(), Some(BLOCKS), "as far as that is known");
}

/// A block of a file may look like a superblock of an image that ends with it.
#[test]
fn inode_pointers_lead_to_the_four_sizes_that_have_them_alone() {
    for blocks in [BLOCKS, BLOCKS + 1, BLOCKS + 2, BLOCKS + 3] {
        let second = image(blocks, 1, 8).sealed();
        let no_size = Superblock { blocks_total: U64::new(3), ..image(blocks, 1, 7).sealed() };
        let inside = |block: u64| (block, image(block + 1, 1, 9).sealed());
        let at = [(0, no_size), (blocks - 1, second), inside(1027), inside(1028), inside(2000), inside(4094)];
        let found = copies(4 * BLOCKS, &at);
        assert_eq!((sequence(&found), found.second_block), (Some(8), blocks - 1), "{blocks}");
    }
}
