//! Images for tests of single steps, and what a pass keeps.

use super::image;
use super::media::{BLOCK_WORDS, Media};
use super::pass::{Fixes, Location, Pass};
use crate::ids::{BlockNo, InodeId};
use crate::variant::Variant;
use heddle_pmem::{Pos, Region};
use heddle_vfs::Ino;

pub const IMAGE_BYTES: u64 = 4 << 20;

/// An inode of the only mount.
pub fn id(ino: u64) -> InodeId {
    InodeId { ino: Ino(ino), generation: 1 << 40 | ino }
}

/// A pass over an image without files, and the media under it.
pub fn on_empty_of<T>(variant: Variant, len_bytes: u64, work: impl FnOnce(&Region, &mut Pass<'_>) -> T) -> T {
    let region = Region::anonymous(len_bytes).unwrap();
    crate::format_region(&region, variant).unwrap();
    let media = Media::new(&region);
    let image = image::read("empty", &media).unwrap().image.unwrap();
    let mut pass = Pass::run(&media, image, false);
    assert!(pass.issues.is_empty(), "{:?}", pass.issues);
    work(&region, &mut pass)
}

pub fn on_empty<T>(work: impl FnOnce(&Region, &mut Pass<'_>) -> T) -> T {
    on_empty_of(Variant::Heddle, IMAGE_BYTES, work)
}

/// Stores words from a position on.
pub fn store(region: &Region, at: Pos, words: &[u64]) {
    (0..).step_by(8).zip(words).for_each(|(n, word)| region.store_u64(at.plus(n), *word));
}

/// The codes of the issues of a pass, in the order in which they were found.
pub fn codes(pass: &Pass<'_>) -> Vec<u16> {
    pass.issues.iter().map(|issue| issue.code.0).collect()
}

#[test]
fn a_view_shows_its_changes_and_leaves_the_region() {
    let region = Region::anonymous(IMAGE_BYTES).unwrap();
    let at = BlockNo(3).pos();
    store(&region, at, &[1, 2, 3]);
    store(&region, BlockNo(4).pos(), &[4]);
    let mut media = Media::new(&region);
    assert_eq!((media.blocks(), media.word(at.plus(8)), media.line(at)), (1024, 2, [1, 2, 3, 0, 0, 0, 0, 0]));
    media.store(BlockNo(3).pos().plus(4088), &[7, 8]);
    assert_eq!((media.word(at.plus(4088)), media.word(at.plus(4096))), (7, 8));
    assert_eq!(media.line(at.plus(4032)), [0, 0, 0, 0, 0, 0, 0, 7]);
    assert_eq!(media.line(at.plus(4096)), [8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(media.line(BlockNo(9).pos()), [0; 8], "of a block without a change");
    let block = media.block(BlockNo(3));
    assert_eq!((block[..3].to_vec(), block[BLOCK_WORDS - 1]), (vec![1, 2, 3], 7));
    assert_eq!(region.load_u64(at.plus(4088)), 0);
    let mut over = Media::over(&media);
    over.store(at, &[9]);
    assert_eq!((over.word(at), over.word(at.plus(4088)), media.word(at)), (9, 7, 1));
    let stored = over.take_stored();
    assert_eq!(stored.iter().map(|(block, words)| (block.0, words[0])).collect::<Vec<_>>(), [(3, 9)]);
    assert!(over.take_stored().is_empty());
}

#[test]
fn only_blocks_that_differ_are_changes() {
    let region = Region::anonymous(IMAGE_BYTES).unwrap();
    store(&region, BlockNo(3).pos(), &[1, 2, 3]);
    let mut media = Media::new(&region);
    assert!(Media::new(&region).into_changes().is_empty());
    // One is put back, one is stored as it was, and one differs in its last word.
    media.store(BlockNo(3).pos().plus(8), &[5]);
    media.store(BlockNo(3).pos().plus(8), &[2]);
    media.store(BlockNo(4).pos(), &[0; 9]);
    media.store(BlockNo(5).pos().plus(4088), &[6]);
    let changes = media.into_changes();
    assert_eq!(changes.iter().map(|(block, _)| block.0).collect::<Vec<_>>(), [5]);
    assert_eq!((changes[0].1[0], changes[0].1[BLOCK_WORDS - 1]), (0, 6));
}

#[test]
fn stores_that_change_nothing_are_no_repairs() {
    on_empty(|region, pass| {
        let at = |block: u64| BlockNo(block).pos();
        store(region, at(500), &[1, 2]);
        let nothing = (at(500), vec![1, 2, 0]);
        let last = (at(500), vec![1, 2, 9]);
        let first = (at(501), vec![9, 0]);
        let level = || vec![nothing.clone(), last.clone(), first.clone()];
        let mut fixes =
            Fixes { lies: level(), exact: level(), anew: level(), sweep: level(), ..Fixes::default() };
        fixes.only_what_changes(pass.media);
        for left in [fixes.lies, fixes.exact, fixes.anew, fixes.sweep] {
            assert_eq!(left, [last.clone(), first.clone()]);
        }
    });
}

#[test]
fn a_quiet_pass_notes_nothing_and_mends_are_bounded() {
    on_empty(|_, pass| {
        pass.quiet = true;
        pass.issue(super::Code::HEAD, Location::default(), "quiet");
        pass.exact(Pos(0), vec![1]);
        pass.anew(Pos(0), vec![1]);
        assert!(pass.issues.is_empty() && pass.fixes.exact.is_empty() && pass.fixes.anew.is_empty());
        pass.quiet = false;
        pass.issue(super::Code::HEAD, Location::default(), "loud");
        pass.exact(Pos(0), vec![1]);
        pass.anew(Pos(0), vec![1]);
        assert_eq!((pass.issues.len(), pass.fixes.exact.len(), pass.fixes.anew.len()), (1, 1, 1));
        assert_eq!((0..30_000).take_while(|_| pass.may_mend()).count(), 20_000);
        assert!(!pass.may_mend());
    });
    let location = Location { ino: Some(Ino(5)), block: None, slot: Some(7) };
    assert_eq!(
        (location.to_string(), Location::default().to_string()),
        ("inode 5, slot 7".into(), "image".into())
    );
}
