use super::*;

#[test]
fn levels_follow_each_other_and_double() {
    assert_eq!(bucket(7, 0, 0), (0, 2));
    assert_eq!(bucket(7, 1, 0), (2 + 2, 2));
    assert_eq!(bucket(7, 2, 0), (2 + 4 + 3 * 2, 2));
    assert_eq!(bucket(7, 0, 2), (3 * 2, 2));
    assert_eq!(bucket(0, 31, 0).1, 4);
}

#[test]
fn as_many_entries_stand_inline_as_fit_with_a_bit_each() {
    assert_eq!([0, 19, 20, 3488, 3688].map(inline_slots), [(0, 0), (0, 0), (1, 1), (182, 23), (192, 24)]);
}

#[test]
fn kinds_are_numbered_from_1_to_7() {
    use FileKind::*;
    let kinds = [Regular, Directory, CharDevice, BlockDevice, Fifo, Socket, Symlink];
    assert_eq!((1..=7).map(kind_of).collect::<Vec<_>>(), kinds.map(Some));
    assert_eq!([0, 8, 255].map(kind_of), [None; 3]);
}

#[test]
fn buckets_grow_up_to_a_limit_and_become_four_blocks() {
    assert_eq!([buckets(0, 0), buckets(3, 2), buckets(29, 1), buckets(60, 60)], [1, 32, 1 << 30, 1 << 30]);
    // Linux' value: `MAX_DIR_HASH_DEPTH / 2` is 31.
    assert_eq!([0, 30, 31, 62].map(bucket_blocks), [2, 2, 4, 4]);
    let before: u64 = (0..31).map(|level| 2 << level).sum();
    assert_eq!(bucket((1 << 30) + 5, 31, 0), (before + 5 * 4, 4));
}

/// Puts an entry of one or more slots where it is told, with this hash.
fn put(block: &mut DentryBlock, slot: usize, text: &str, ino: u32, hash: u32) {
    let name_bytes = (text.len() as u16).into();
    block.entries[slot] = Dentry { hash: hash.into(), ino: ino.into(), name_bytes, kind: 1 };
    block.names.as_flattened_mut()[slot * 8..][..text.len()].copy_from_slice(text.as_bytes());
    (slot..slot + text.len().div_ceil(8)).for_each(|slot| block.bitmap[slot / 8] |= 1 << (slot % 8));
}

/// The number that a name leads to in the second block of directory 7.
fn found(block: &DentryBlock, text: &str) -> Result<Option<(u32, u64)>> {
    let slots = Slots::of_block(Nid(7), PageNo(1), block);
    let found = slots.find(text.as_bytes(), hash(text.as_bytes()))?;
    Ok(found.map(|entry| (entry.nid.0, entry.place)))
}

#[test]
fn a_name_is_found_beside_others_of_its_hash() {
    let mut block = DentryBlock::read_from_bytes(&[0; BLOCK_BYTES]).unwrap();
    // Two names of one hash.
    let names = ["n14868", "n14969"];
    let same = hash(b"n14868");
    assert_eq!(hash(b"n14969"), same);
    put(&mut block, 2, names[0], 50, same);
    assert_eq!(names.map(|text| found(&block, text)), [Ok(Some((50, 214 + 2))), Ok(None)]);
    // What is left in a slot that is not used any more counts for nothing.
    put(&mut block, 9, names[0], 60, same);
    block.bitmap[1] &= !2;
    assert_eq!(names.map(|text| found(&block, text)), [Ok(Some((50, 214 + 2))), Ok(None)]);
    put(&mut block, 20, names[1], 70, same);
    assert_eq!(names.map(|text| found(&block, text)), [Ok(Some((50, 216))), Ok(Some((70, 234)))]);
}

#[test]
fn a_damaged_entry_is_damage_of_its_possible_name_alone() {
    let mut block = DentryBlock::read_from_bytes(&[0; BLOCK_BYTES]).unwrap();
    put(&mut block, 2, "one", 50, hash(b"one"));
    put(&mut block, 3, "wrong", 60, hash(b"other"));
    assert_eq!(found(&block, "one"), Ok(Some((50, 216))));
    assert_eq!(found(&block, "absent"), Ok(None));
    let Err(Error::Corrupt(why)) = found(&block, "other") else { panic!("it is believed") };
    assert!(why.contains("directory 7: entry 217 "), "{why}");
    // The name itself is there all the same, behind the damage.
    put(&mut block, 4, "other", 70, hash(b"other"));
    assert_eq!(found(&block, "other"), Ok(Some((70, 218))));
}

#[test]
fn a_listing_goes_on_behind_an_entry_and_remembers_damage() {
    let entry = |place, behind_damage| Entry {
        nid: Nid(50),
        kind: FileKind::Regular,
        name: b"one",
        place,
        hash: 0,
        behind_damage,
    };
    assert_eq!([entry(0, false).next(), entry(213, false).next()], [1, 214]);
    assert_eq!([entry(0, true).next(), entry(213, true).next()], [1 + (1 << 61), 214 + (1 << 61)]);
    // What is newer than the checkpoint has places behind those of all blocks.
    let behind = [0, 1, 2, 214, (1 << 60) - 1, 1 << 60].map(|place| entry(place, false).is_behind(2));
    assert_eq!(behind, [false, false, true, true, true, false]);
}

/// Linux looks for names as deep as the inode says, and lists as far as its size.
#[test]
fn a_directory_says_how_deep_and_how_large_it_is() {
    use crate::mounted::F2fs;
    use heddle_vfs::{Cred, FileSystem, Ino, NewNode};
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = place.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
    crate::make_image(&path, "", &|_, _| ()).unwrap();
    let fs = F2fs::open_for_writing(&path).unwrap();
    let pipe = NewNode { kind: FileKind::Fifo, perm: 0o600, rdev: 0, target: &[] };
    let (mut depths, mut size_bytes) = (Vec::new(), 4096);
    for n in 0..700 {
        let text = format!("{n} of some bytes");
        fs.make(&Cred::root(), Ino::ROOT, Name::new(text.as_bytes()).unwrap(), pipe).unwrap();
        let root = fs.media.inode(ROOT).unwrap();
        let depth = root.block().depth.get();
        if depths.last() != Some(&depth) {
            depths.push(depth);
        }
        if size_bytes == root.size_bytes {
            continue;
        }
        size_bytes = root.size_bytes;
        let is_there = |page: &u64| fs.media.entries_of(&root, PageNo(*page)).unwrap().is_some();
        let pages = (0..64).filter(is_there).last().unwrap() + 1;
        // So many pages have all levels of two blocks a bucket.
        let of_levels = |levels: u32| 2 * ((1_u64 << levels) - 1);
        assert_eq!(root.size_bytes, pages * 4096, "{n}");
        assert!(of_levels(depth - 1) < pages && pages <= of_levels(depth), "{n}: {pages}, {depth}");
    }
    assert_eq!(depths, [1, 2, 3]);
}

fn slots(block: &DentryBlock) -> Slots<'_> {
    Slots::of_block(Nid(7), PageNo(0), block)
}

fn mark(block: &mut DentryBlock, slot: usize, is_used: bool) {
    block.bitmap[slot / 8] = block.bitmap[slot / 8] & !(1 << (slot % 8)) | u8::from(is_used) << (slot % 8);
}

/// A name of two slots from the fourth on, behind four of one.
fn five_names() -> DentryBlock {
    let mut block = DentryBlock::read_from_bytes(&[0; BLOCK_BYTES]).unwrap();
    for (slot, text) in ["a", "b", "c", "d", "of two slots"].into_iter().enumerate() {
        put(&mut block, slot, text, 50, hash(text.as_bytes()));
    }
    block
}

#[test]
fn no_room_is_what_a_name_without_marks_may_cover() {
    let mut block = five_names();
    assert_eq!((slots(&block).room(1), slots(&block).room(32)), (Some(6), Some(6)));
    assert_eq!((slots(&block).room(208), slots(&block).room(209)), (Some(6), None));
    mark(&mut block, 5, false);
    assert_eq!((slots(&block).room(1), slots(&block).room(2)), (None, None));
    // If it is not the name's own hash, its length may be wrong.
    block.entries[4].hash = 7.into();
    assert_eq!(slots(&block).room(1), Some(5));
    mark(&mut block, 0, false);
    assert_eq!((slots(&block).room(1), slots(&block).room(2)), (Some(0), Some(5)));
}

#[test]
fn the_rest_of_a_name_is_marked_and_has_no_length() {
    let mut block = five_names();
    let mut put_behind = |slot: usize, is_used: bool, name_bytes: u16| {
        mark(&mut block, slot, is_used);
        block.entries[slot].name_bytes = name_bytes.into();
        slots(&block).is_doubtful(5, 6)
    };
    assert!(!put_behind(5, true, 0));
    assert!(put_behind(5, false, 0));
    assert!(put_behind(5, true, 3));
    assert!(put_behind(5, false, 3));
    assert!(!put_behind(5, true, 0));
    // Behind it another name begins, or nothing is.
    assert!(!put_behind(6, true, 3));
    assert!(put_behind(6, true, 0));
    assert!(!put_behind(6, false, 3) && !put_behind(6, false, 0));
    mark(&mut block, 213, true);
    assert!(!slots(&block).is_doubtful(213, 214) && !slots(&block).is_doubtful(214, 214));
}

/// Where the next entry begins is unknown there.
#[test]
fn behind_a_damaged_entry_only_names_of_their_hash_count() {
    let mut block = five_names();
    let found = |block: &DentryBlock| {
        let mut found = Vec::new();
        let each = slots(block).each(&mut |slot, entry| {
            found.push((slot, entry.map(|entry| entry.name[0])));
            Ok(slot == 9)
        });
        (found, each)
    };
    let all = |second: Option<u8>, third: Option<u8>| {
        let names = [Some(b'a'), second, third, Some(b'd'), Some(b'o')];
        (names.into_iter().enumerate().collect::<Vec<_>>(), Ok(false))
    };
    assert_eq!(found(&block), all(Some(b'b'), Some(b'c')));
    // A wrong hash alone hides no name.
    block.entries[2].hash = 7.into();
    assert_eq!(found(&block), all(Some(b'b'), Some(b'c')));
    block.entries[1].kind = 9;
    assert_eq!(found(&block), all(None, None));
    // Behind a free slot an entry begins again.
    mark(&mut block, 1, false);
    assert_eq!(found(&block).0[..2], [(0, Some(b'a')), (2, Some(b'c'))]);
    put(&mut block, 9, "last", 50, hash(b"last"));
    assert_eq!(found(&block).1, Ok(true), "it is told to stop");
}
