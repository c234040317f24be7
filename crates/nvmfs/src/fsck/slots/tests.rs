use super::super::tests::{codes, id, on_empty, store};
use super::*;
use heddle_pmem::Region;

const AT: BlockNo = BlockNo(500);

/// Line 0 of the slot of an inode.
fn inode(seed: u32, ino: u64) -> Line {
    let base = InodeBase {
        id: id(ino),
        kind: FileKind::Regular,
        perm: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        crtime: Time(5),
    };
    base.encode(seed)
}

fn put(region: &Region, block: BlockNo, index: u64, line: &Line) {
    store(region, inode_pos(block, index), line);
}

#[test]
fn a_block_is_a_chunk_by_one_slot_that_says_its_number() {
    on_empty(|region, pass| {
        let seed = pass.image.seed;
        let is = |pass: &Pass<'_>, n: u64| [true, false].map(|blank| looks_like(pass, n, AT, blank));
        assert_eq!(is(pass, 3), [true, false], "it is blank");
        put(region, AT, 9, &[5; 8]);
        assert_eq!(is(pass, 3), [false, false], "it holds something else");
        put(region, AT, 31, &inode(seed, 3 * 32 + 31));
        assert_eq!(is(pass, 3), [true, true]);
        assert_eq!(is(pass, 4), [false, false], "it is another chunk");
        assert_eq!(is(pass, 0), [false, false]);
        put(region, AT, 9, &[0; 8]);
        assert_eq!((is(pass, 3), is(pass, 2)), ([true, true], [false, false]));
        put(region, AT, 31, &[0; 8]);
        put(region, AT, 0, &inode(seed, 3 * 32));
        assert_eq!((is(pass, 3), is(pass, 2)), ([true, true], [false, false]));
    });
}

#[test]
fn a_chunk_without_its_pointer_is_found_by_its_slots() {
    on_empty(|region, pass| {
        let seed = pass.image.seed;
        put(region, AT, 7, &inode(seed, 3 * 32 + 7));
        put(region, BlockNo(600), 7, &inode(seed, 3 * 32 + 7));
        // In another slot than the one that it says.
        put(region, BlockNo(400), 7, &inode(seed, 4 * 32 + 8));
        let found = |pass: &mut Pass<'_>, n| search(pass, n).map(|block| block.0);
        assert_eq!((found(pass, 3), found(pass, 4), found(pass, 5)), (Some(500), None, None));
        pass.slots.chunks.insert(9, AT);
        assert_eq!(found(pass, 3), Some(600), "the first is another chunk");
        pass.slots.chunks.insert(10, BlockNo(600));
        assert_eq!(found(pass, 3), None);
    });
}

#[test]
fn of_two_pointers_to_one_chunk_the_one_that_lies_goes() {
    let cut = |inode_of: Option<u64>, pointers: &[(u64, u64)]| {
        on_empty(|region, pass| {
            if let Some(n) = inode_of {
                put(region, AT, 4, &inode(pass.image.seed, n * 32 + 4));
            }
            for (n, block) in pointers {
                pass.slots.chunks.insert(*n, BlockNo(*block));
            }
            overlapping(pass);
            assert_eq!(codes(pass), vec![Code::CHUNK_LOST.0; pass.fixes.lies.len()]);
            let lies = pass.fixes.lies.iter().map(|(at, words)| {
                assert_eq!(*words, [0]);
                (at.0 - 4096) / 8
            });
            lies.collect::<Vec<u64>>()
        })
    };
    assert_eq!(cut(None, &[(4, 500), (5, 501), (6, 499)]), [], "each has its own");
    assert_eq!(cut(Some(5), &[(4, 500), (5, 500)]), [4]);
    assert_eq!(cut(Some(4), &[(4, 500), (5, 500)]), [5]);
    assert_eq!(cut(None, &[(4, 500), (5, 500)]), [5], "both are blank");
    assert_eq!(cut(Some(6), &[(4, 500), (5, 500)]), [5]);
    assert_eq!(cut(Some(9), &[(4, 500), (9, 500), (5, 501)]), [4]);
    assert_eq!(cut(Some(4), &[(4, 500), (5, 500), (6, 500)]), [5, 6]);
}

#[test]
fn a_free_slot_is_blank_to_its_last_word() {
    on_empty(|region, pass| {
        let chunk = pass.slots.chunks[&0];
        let blank = |pass: &Pass<'_>| pass.slots.blank(pass).map(|ino| ino.0);
        assert_eq!(blank(pass), Some(2), "the first behind the root");
        let pos = |ino: u64| inode_pos(chunk, ino);
        region.store_u64(pos(2).plus(120), 1);
        assert_eq!(blank(pass), Some(3));
        region.store_u64(pos(3), 1);
        region.store_u64(pos(4).plus(64), 1);
        assert_eq!(blank(pass), Some(5));
        for ino in 5..32 {
            region.store_u64(pos(ino).plus(8), 1);
        }
        assert_eq!(blank(pass), None);
        pass.slots.chunks.insert(2, AT);
        for index in 0..30 {
            region.store_u64(inode_pos(AT, index).plus(8), 1);
        }
        assert_eq!(blank(pass), Some(2 * 32 + 30));
        region.store_u64(inode_pos(AT, 30), 1);
        assert_eq!(blank(pass), Some(2 * 32 + 31));
        region.store_u64(inode_pos(AT, 31), 1);
        assert_eq!(blank(pass), None);
    });
}
