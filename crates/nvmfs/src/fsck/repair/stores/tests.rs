use super::*;
use crate::fsck::media::BLOCK_WORDS;
use crate::variant::Variant;
use crate::volume::format;
use heddle_pmem::Pos;

fn empty() -> Region {
    let region = Region::anonymous(4 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    region
}

/// Both superblocks, whole.
fn superblocks(region: &Region) -> [Superblock; 2] {
    [0, 1023].map(|block| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        region.read(BlockNo(block).pos(), &mut bytes);
        match Superblock::decode(&bytes) {
            FoundSuperblock::Whole(sb) => sb,
            other => panic!("block {block}: {other:?}"),
        }
    })
}

fn change(region: &Region, block: u64, change: impl Fn(&mut Superblock)) {
    let mut sb = superblocks(region)[usize::from(block != 0)];
    change(&mut sb);
    region.nt_write(BlockNo(block).pos(), sb.sealed().as_bytes());
}

fn cleans(region: &Region) -> [u32; 2] {
    superblocks(region).map(|sb| sb.clean.get())
}

/// An image may have been made anew with another size over its second copy.
#[test]
fn a_superblock_counts_only_where_it_belongs() {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let words: Vec<u64> =
        (0..BLOCK_WORDS as u64).map(|n| region.load_u64(BlockNo(0).pos().plus(n * 8))).collect();
    let last = region.len_bytes() / BLOCK_BYTES as u64 - 1;
    let counts = [0, last, last - 1, 7].map(|block| superblock_in(block, &words).is_some());
    assert_eq!(counts, [true, true, false, false]);
}

#[test]
fn giving_up_an_undo_file_takes_every_mark_away() {
    for (marked, wanted) in [(vec![], false), (vec![0], true), (vec![1023], true), (vec![0, 1023], true)] {
        let region = empty();
        for block in &marked {
            change(&region, *block, |sb| (sb.clean, sb.repair) = (U32::new(HALF_REPAIRED), U64::new(9)));
        }
        assert_eq!(half_repaired(&region), wanted.then_some(9), "{marked:?}");
        let mut before = vec![0; 4 << 20];
        region.read(Pos(0), &mut before);
        assert_eq!(give_up_undo("image", &region).unwrap(), wanted, "{marked:?}");
        assert_eq!(half_repaired(&region), None, "{marked:?}");
        let of = |block| if marked.contains(&block) { 0 } else { 1 };
        assert_eq!(cleans(&region), [of(0), of(1023)], "{marked:?}: it is not taken for unmounted");
        // Nothing else is written.
        let mut after = vec![0; 4 << 20];
        region.read(Pos(0), &mut after);
        let changed = |from: usize| before[from..from + 4096] != after[from..from + 4096];
        let blocks: Vec<u64> = (0..1024).filter(|block| changed(*block as usize * 4096)).collect();
        assert_eq!(blocks, marked);
    }
}

#[test]
fn an_image_under_another_format_is_not_touched() {
    let region = empty();
    change(&region, 0, |sb| sb.clean = U32::new(HALF_REPAIRED));
    region.store_u64(Pos(1024), 0xe0f5_e1e2);
    let error = give_up_undo("my image", &region).unwrap_err().to_string();
    assert!(error.contains("erofs") && error.contains("wipefs -o 0x400 'my image'"), "{error}");
    let FsckError::Foreign { at: 1024, .. } = crate::fsck::examine("image", &region).err().unwrap() else {
        panic!("it is checked")
    };
    assert_eq!(cleans(&region), [HALF_REPAIRED, 1]);
}

/// A repair of an image without a mount left changes no superblock.
#[test]
fn superblocks_that_a_repair_leaves_keep_their_state() {
    let undo = Path::new("undo");
    let words = [5; BLOCK_WORDS];
    let blocks = [(BlockNo(500), &words[..])];
    let written = |region: &Region| region.line(BlockNo(500).pos().plus(4032));
    for clean in [0, 1] {
        let region = empty();
        [0, 1023].into_iter().for_each(|block| change(&region, block, |sb| sb.clean = U32::new(clean)));
        let before = superblocks(&region);
        store(&region, 77, blocks.into_iter(), undo).unwrap();
        assert_eq!((cleans(&region), written(&region)), ([clean; 2], [5; 8]));
        for (is, was) in superblocks(&region).iter().zip(before) {
            let wanted = Superblock { repair: U64::new(77), ..was }.sealed();
            assert_eq!(is.as_bytes(), wanted.as_bytes());
        }
    }
    // It was half repaired: after that nobody knows that it was unmounted.
    let region = empty();
    [0, 1023].into_iter().for_each(|block| change(&region, block, |sb| sb.clean = U32::new(HALF_REPAIRED)));
    store(&region, 77, blocks.into_iter(), undo).unwrap();
    assert_eq!((cleans(&region), half_repaired(&region)), ([0; 2], None));
}
