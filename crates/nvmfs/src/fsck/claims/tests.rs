use super::*;
use crate::Variant;
use crate::fsck::image;
use crate::fsck::media::Media;
use heddle_pmem::Region;

const AT: u64 = 300;

fn id(ino: u64) -> InodeId {
    InodeId { ino: Ino(ino), generation: 1 << 40 }
}

fn data(ino: u64, page: u64) -> Use {
    Use::Data(id(ino), PageNo(page))
}

fn claim(block: u64, count: u64, what: Use) -> Claim {
    Claim { block: BlockNo(AT + block), count, what }
}

/// What a pass over an empty image finds of these claims: block and length of each that two have, and who gives way.
fn judged(claims: &[Claim]) -> (Vec<String>, Vec<Share>) {
    let region = Region::anonymous(4 << 20).unwrap();
    crate::format_region(&region, Variant::Heddle).unwrap();
    let media = Media::new(&region);
    let image = image::read("empty", &media).unwrap().image.unwrap();
    let mut pass = Pass::run(&media, image, false);
    assert!(pass.issues.is_empty(), "{:?}", pass.issues);
    pass.claims.all.extend(claims);
    judge(&mut pass);
    assert!(pass.issues.iter().all(|issue| issue.code == Code::CLAIMED_TWICE));
    (pass.issues.iter().map(|issue| issue.what.clone()).collect(), pass.fixes.shares)
}

fn share(ino: u64, page: u64, pages: u64, copy: bool) -> Share {
    Share { id: id(ino), page: PageNo(page), pages, copy }
}

#[test]
fn three_files_with_blocks_of_one_are_all_found() {
    let claims = [
        claim(0, 10, data(5, 100)),
        claim(2, 2, data(6, 0)),
        claim(6, 1, data(7, 9)),
        claim(9, 4, data(8, 1)),
    ];
    let (issues, shares) = judged(&claims);
    let texts = [
        "blocks 302 to 303 of page 100 of inode 5 and page 0 of inode 6",
        "block 306 of page 100 of inode 5 and page 9 of inode 7",
        "block 309 of page 100 of inode 5 and page 1 of inode 8",
    ];
    assert_eq!(issues, texts);
    assert_eq!(shares, [share(6, 0, 2, true), share(7, 9, 1, true), share(8, 1, 1, true)]);
}

#[test]
fn blocks_side_by_side_are_nobody_elses() {
    assert_eq!(
        judged(&[claim(0, 3, data(5, 0)), claim(3, 1, data(6, 0)), claim(4, 2, data(7, 0))]).0.len(),
        0
    );
    // The second one ends behind the first: the third meets it alone.
    let chain = [claim(0, 3, data(5, 0)), claim(2, 4, data(6, 0)), claim(5, 1, data(7, 0))];
    assert_eq!(judged(&chain).1, [share(6, 0, 1, true), share(7, 0, 1, true)]);
}

#[test]
fn data_gives_way_to_what_proves_its_block_its_own() {
    let log = Use::Log(id(9));
    let (issues, shares) = judged(&[claim(0, 1, log), claim(0, 4, data(5, 7))]);
    assert_eq!((issues.len(), shares), (1, vec![share(5, 7, 1, false)]));
    assert_eq!(judged(&[claim(0, 4, data(5, 7)), claim(2, 1, log)]).1, [share(5, 9, 1, false)]);
    assert!(judged(&[claim(0, 1, log), claim(0, 1, Use::List(id(8)))]).1.is_empty());
}

#[test]
fn what_no_claim_covers_is_free_once() {
    let layout = Layout::new(AT + 24);
    let mut claims =
        Claims { all: vec![claim(4, 2, data(5, 0)), claim(0, 3, data(6, 0))], of_orphans: vec![] };
    claims.of_orphans.push(claim(1, 3, data(7, 0)));
    let first = (layout.data.0..AT).map(BlockNo);
    let free: Vec<BlockNo> = first.chain((AT + 6..AT + 23).map(BlockNo)).collect();
    assert_eq!(claims.free(&layout), free, "the last block is the second superblock's");
    claims.all.extend([claim(5, 1, Use::Log(id(5))), claim(8, 1, Use::Log(id(5)))]);
    assert_eq!((claims.blocks(|_| true), claims.blocks(|what| what.data().is_some())), (6, 5));
    claims.all.push(claim(0, 9, data(8, 0)));
    assert_eq!(claims.blocks(|_| true), 9, "each once");
}

#[test]
fn neighbouring_pages_of_one_file_are_one_claim() {
    let region = Region::anonymous(4 << 20).unwrap();
    crate::format_region(&region, Variant::Heddle).unwrap();
    let media = Media::new(&region);
    let image = image::read("empty", &media).unwrap().image.unwrap();
    let mut pass = Pass::run(&media, image, false);
    pass.claims.all.clear();
    for (block, what) in [
        (0, data(5, 0)),
        (2, data(5, 2)),
        (4, data(5, 5)),
        (7, data(5, 7)),
        (9, data(6, 9)),
        (11, Use::Log(id(6))),
        (13, Use::Log(id(6))),
    ] {
        pass.claim(BlockNo(AT + block), 2, what);
    }
    let claims: Vec<_> = pass.claims.all.iter().map(|c| (c.block.0 - AT, c.count, c.what)).collect();
    let log = Use::Log(id(6));
    let wanted = [
        (0, 4, data(5, 0)),
        (4, 2, data(5, 5)),
        (7, 2, data(5, 7)),
        (9, 2, data(6, 9)),
        (11, 2, log),
        (13, 2, log),
    ];
    assert_eq!(claims, wanted);
    pass.quiet = true;
    pass.claim(BlockNo(AT + 15), 1, data(7, 0));
    assert_eq!((pass.claims.all.len(), pass.claims.of_orphans.len()), (6, 1));
}

/// The files that give way, and the chunks whose pointers are cut, where nothing proves some chunks.
/// `cut`: chunks whose pointers are cut already.
fn judged_with(unproven: &[u64], cut: &[u64], claims: &[Claim]) -> (Vec<Share>, Vec<u64>) {
    crate::fsck::tests::on_empty(|_, pass| {
        pass.slots.unproven.extend(unproven);
        let pointer = |n: u64| pass.image.layout.chunk_pointer(n);
        let lies: Vec<_> = cut.iter().map(|n| (pointer(*n), vec![0])).collect();
        pass.fixes.lies.extend(lies);
        pass.claims.all.extend(claims);
        judge(pass);
        let number = |at: heddle_pmem::Pos| (at.0 - pass.image.layout.chunk_pointer(0).0) / 8;
        let lies = pass.fixes.lies.iter().map(|(at, _)| number(*at)).collect();
        (std::mem::take(&mut pass.fixes.shares), lies)
    })
}

#[test]
fn a_chunk_that_nothing_proves_gives_way_to_data() {
    let chunk = |n: u64| claim(0, 1, Use::Chunk(n));
    let file = |ino: u64| claim(0, 1, data(ino, 3));
    let hole = |ino: u64| share(ino, 3, 1, false);
    assert_eq!(judged_with(&[], &[], &[chunk(5), file(6)]), (vec![hole(6)], vec![]));
    assert_eq!(judged_with(&[4, 6], &[], &[chunk(5), file(6)]), (vec![hole(6)], vec![]));
    assert_eq!(judged_with(&[5], &[], &[chunk(5), file(6)]), (vec![], vec![5]));
    assert_eq!(judged_with(&[5], &[], &[chunk(5), claim(0, 1, Use::Log(id(9)))]), (vec![], vec![5]));
    // The first one holds the root.
    assert_eq!(judged_with(&[0], &[], &[chunk(0), file(6)]), (vec![hole(6)], vec![]));
    // Once, whatever else claims the block.
    assert_eq!(judged_with(&[5], &[], &[chunk(5), file(6), file(7)]), (vec![], vec![5]));
    assert_eq!(judged_with(&[5], &[5], &[chunk(5), file(6)]), (vec![], vec![5]));
    assert_eq!(judged_with(&[5], &[6], &[chunk(5), file(6)]), (vec![], vec![6, 5]));
    assert_eq!(judged_with(&[], &[5], &[chunk(5), file(6)]), (vec![hole(6)], vec![5]));
}

#[test]
fn several_files_give_way_to_one_log() {
    let log = claim(0, 1, Use::Log(id(9)));
    let claims = [log, claim(0, 1, data(6, 0)), claim(0, 1, data(7, 0))];
    let holes = [share(6, 0, 1, false), share(7, 0, 1, false)];
    assert_eq!(judged(&claims).1, holes);
}
