//! The changes of a node, as runs of words.
//!
//! An fsync changes times, a size and a pointer of a node of 4 KiB, and only these are written to NVM. The
//! paper makes its inodes smaller for that ("fine-grained inode"). A difference works for every kind of node,
//! and also leaves out the empty pointers of an inode.
//!
//! Source      F2FS range-lock paper (SYSTOR '19) section 3.4.

use crate::format::{BLOCK_BYTES, Block, NodeBlock, RunHead};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const WORD_BYTES: usize = 4;
const WORDS: usize = BLOCK_BYTES / WORD_BYTES;
/// Bytes compared at once: most of a node is unchanged.
const PIECE_BYTES: usize = 64;

/// Appends the runs in which `new` differs from `old`, or from zeros if there is no `old`.
pub(crate) fn encode(old: Option<&NodeBlock>, new: &NodeBlock, into: &mut Vec<u8>) {
    const ZEROS: &Block = &[0; BLOCK_BYTES];
    let (old, new) = (old.map_or(&ZEROS[..], |old| old.as_bytes()), new.as_bytes());
    // Position of the head of the last run, and the word behind that run.
    let mut open = (0, usize::MAX);
    for at in (0..BLOCK_BYTES).step_by(PIECE_BYTES) {
        let (old, new) = (&old[at..at + PIECE_BYTES], &new[at..at + PIECE_BYTES]);
        if old == new {
            continue;
        }
        for (n, (old, new)) in old.chunks_exact(WORD_BYTES).zip(new.chunks_exact(WORD_BYTES)).enumerate() {
            if old != new {
                add(&mut open, at / WORD_BYTES + n, new, into);
            }
        }
    }
}

fn add(open: &mut (usize, usize), word: usize, bytes: &[u8], into: &mut Vec<u8>) {
    let (head, behind) = *open;
    let count = if behind == word {
        u16::from_le_bytes([into[head + 2], into[head + 3]]) + 1
    } else {
        open.0 = into.len();
        into.extend_from_slice(RunHead { first: U16::new(word as u16), words: U16::new(0) }.as_bytes());
        1
    };
    into[open.0 + 2..open.0 + 4].copy_from_slice(&count.to_le_bytes());
    into.extend_from_slice(bytes);
    open.1 = word + 1;
}

/// Applies runs to a node. Returns false if they are invalid; the node may be changed then.
pub(crate) fn apply(mut runs: &[u8], node: &mut NodeBlock) -> bool {
    let bytes = node.as_mut_bytes();
    while !runs.is_empty() {
        let Ok((head, rest)) = RunHead::read_from_prefix(runs) else { return false };
        let (first, words) = (usize::from(head.first.get()), usize::from(head.words.get()));
        if words == 0 || first + words > WORDS || rest.len() < words * WORD_BYTES {
            return false;
        }
        let (data, rest) = rest.split_at(words * WORD_BYTES);
        bytes[first * WORD_BYTES..][..data.len()].copy_from_slice(data);
        runs = rest;
    }
    true
}

/// Most bytes of the runs of a node: a run's head is as long as the word that separates it from the run
/// before.
pub(crate) const RUNS_BYTES_MAX: usize = BLOCK_BYTES + size_of::<RunHead>();

/// A node of zeros.
pub(crate) fn empty() -> NodeBlock {
    NodeBlock::new_zeroed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *seed >> 33
    }

    #[test]
    fn what_is_encoded_is_what_comes_of_it() {
        let mut seed = 3;
        let mut most = 0;
        for round in 0..2_000 {
            let mut old = empty();
            (0..random(&mut seed) % 40)
                .for_each(|_| old.as_mut_bytes()[random(&mut seed) as usize % BLOCK_BYTES] = 7);
            let mut new = old.clone();
            let changes = [0, 1, 5, 3_000][round % 4];
            for _ in 0..changes {
                new.as_mut_bytes()[random(&mut seed) as usize % BLOCK_BYTES] = random(&mut seed) as u8;
            }
            for old in [Some(&old), None] {
                let mut runs = Vec::new();
                encode(old, &new, &mut runs);
                let mut again = old.cloned().unwrap_or_else(empty);
                assert!(apply(&runs, &mut again));
                assert!(again.as_bytes() == new.as_bytes(), "round {round}");
                most = most.max(runs.len());
            }
        }
        assert!(most > BLOCK_BYTES / 2 && most <= RUNS_BYTES_MAX, "{most}");
    }

    #[test]
    fn the_worst_case_is_all_of_it() {
        for every in [1, 2] {
            let mut new = empty();
            new.as_mut_bytes().chunks_mut(every * WORD_BYTES).for_each(|words| words[0] = 1);
            let mut runs = Vec::new();
            encode(None, &new, &mut runs);
            assert_eq!(runs.len(), [RUNS_BYTES_MAX, BLOCK_BYTES][every - 1]);
        }
    }

    #[test]
    fn an_append_is_some_forty_bytes() {
        let mut new = empty();
        // A size, two times, and a pointer.
        for (at, len) in [(16, 8), (40, 16), (56, 8), (400, 4)] {
            new.as_mut_bytes()[at..at + len].fill(9);
        }
        let mut runs = Vec::new();
        encode(Some(&empty()), &new, &mut runs);
        assert_eq!(runs.len(), 8 + 24 + 4 + 3 * 4);
    }

    #[test]
    fn any_bytes_are_refused_or_applied() {
        let mut seed = 9;
        for _ in 0..20_000 {
            let len = random(&mut seed) as usize % 40;
            let runs: Vec<u8> = (0..len).map(|_| (random(&mut seed) % 7) as u8).collect();
            apply(&runs, &mut empty());
        }
        for runs in [&[0, 4, 1, 0, 0, 0, 0, 0][..], &[0, 0, 0, 0], &[0, 0, 2, 0, 1, 1, 1, 1], &[1, 0, 1]] {
            assert!(!apply(runs, &mut empty()), "{runs:?}");
        }
    }
}
