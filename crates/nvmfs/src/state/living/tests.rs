use super::*;
use crate::region::Region;
use crate::state::core::tests::{add_chunks, bare, born, on};
use crate::variant::Variant;

#[test]
fn an_inode_that_this_thread_or_nobody_frees_is_decided_at_once() {
    let core = bare(1024);
    add_chunks(&core, 1);
    let is_alive = |ino| core.inode(Ino(ino)).is_ok();
    assert!(!is_alive(5) && !is_alive(32), "nothing lives there");
    let file = born(&core, 5, 9);
    assert!(is_alive(5) && lives_on(&core, file, 9) && !lives_on(&core, file, 8));
    let (outer, inner) = (lease::enter(&core).unwrap(), lease::enter(&core).unwrap());
    // The present call is the inner one's.
    assert!(file.volatile.claim(Some(inner.id)));
    assert!(!is_alive(5), "its own call frees it");
    file.volatile.unclaim(Some(inner.id));
    assert!(is_alive(5));
    outer.lane.intent.note_freeing(5, Freeing::Begun);
    assert!(file.volatile.claim(Some(outer.id)));
    assert!(!is_alive(5), "its blocks are being freed");
    file.volatile.unclaim(Some(outer.id));
    outer.lane.intent.note_freeing(0, Freeing::None);
}

#[test]
fn the_papers_claim_frees_an_inode() {
    let core = on(Region::anonymous(4 << 20).unwrap(), Variant::NovaArray);
    add_chunks(&core, 1);
    let file = born(&core, 5, 9);
    assert!(core.inode(Ino(5)).is_ok() && core.inode(Ino(6)).is_err());
    assert!(file.volatile.claim(None));
    assert_eq!(core.inode(Ino(5)).map(|inode| inode.ino), Err(Error::Stale));
}
