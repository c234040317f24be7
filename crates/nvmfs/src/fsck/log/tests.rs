use super::super::tests::{id, on_empty, store};
use super::*;
use crate::format::word::Line;

const AT: BlockNo = BlockNo(500);

/// A block with heads: so many good ones, so many bad ones.
fn heads(seed: u32, good: u32, bad: u32) -> Vec<u64> {
    let good = (0..good).map(|n| pointer::encode(seed, id(7), PointerLocation::Head(6 + n), BlockNo(600)));
    good.chain((0..bad).map(|n| 1 << 50 | u64::from(n))).collect()
}

#[test]
fn a_block_holds_heads_if_half_of_them_are_good() {
    for (good, bad, wanted) in [
        (0, 0, true),
        (1, 0, true),
        (0, 1, true),
        (1, 1, true),
        (0, 2, false),
        (1, 2, false),
        (2, 2, true),
        (2, 3, false),
        (2, 4, false),
        (3, 3, true),
        (3, 4, false),
        (5, 0, true),
        (0, 40, false),
    ] {
        on_empty(|region, pass| {
            store(region, AT.pos(), &heads(pass.image.seed, good, bad));
            assert_eq!(holds_heads(pass, id(7), AT), wanted, "{good} good, {bad} bad");
            assert!(good + bad < 2 || !holds_heads(pass, id(8), AT), "those of another inode");
        });
    }
}

fn header(owner: InodeId, chain: u32) -> PageHeader {
    PageHeader { owner, epoch: 1, lane: 1, serial: 3, chain, era: 1 }
}

#[test]
fn a_page_belongs_to_one_chain_with_a_flipped_bit_too() {
    on_empty(|region, pass| {
        for (owner, chain) in [(id(7), 0), (id(7), 3), (id(8), 3), (id(8), 0)] {
            let line: Line = header(owner, chain).encode(pass.image.seed);
            for (flipped, is_mended) in [(0, true), (1 << 20, true), (0b11 << 20, false)] {
                let mut line = line;
                line[3] ^= flipped;
                store(region, AT.pos(), &line);
                let wanted = is_mended && (owner, chain) == (id(7), 3);
                assert_eq!(leads_to(pass, id(7), 3, AT), wanted, "{owner:?}, {chain}, {flipped:#x}");
            }
        }
        for block in [0, 1, 1023, 1024, 1 << 39] {
            assert!(!leads_to(pass, id(7), 3, BlockNo(block)), "block {block}");
        }
    });
}
