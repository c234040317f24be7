mod leases;
mod pages;

use super::*;
use crate::alloc::take_block;
use crate::state::lease::{enter, leave};
use crate::variant::Variant;
use crate::volume::{MountOptions, format, mount};
use heddle_pmem::Region;
use heddle_vfs::short::Short;
use heddle_vfs::{FileSystem, Ino};
use std::sync::{Arc, Barrier};

/// What other threads do with their chains, and how much space there is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// They keep them.
    Kept,
    /// They keep them, and no block is free.
    KeptDrained,
    /// They are in calls that use them, and no block is free.
    UsedDrained,
}

/// The number of the chain that this thread leases when so many others have theirs.
fn leased_after(core: &Arc<Core>, ino: Ino, others: u32, scene: Scene) -> Result<u32> {
    let all = Barrier::new(others as usize + 1);
    let leased = |guard: &mut LaneGuard<'_>| -> Result<u32> {
        let chain = super::lease(core, guard, core.inode(ino)?)?;
        assert!(chain.is_busy_for(guard.id));
        Ok(chain.number())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..others)
            .map(|_| {
                scope.spawn(|| {
                    let mut guard = enter(core).unwrap();
                    let number = leased(&mut guard);
                    let _used = (scene == Scene::UsedDrained).then_some(guard);
                    all.wait();
                    // Its chain stays its own until it ends.
                    all.wait();
                    number.unwrap();
                })
            })
            .collect();
        all.wait();
        let mut guard = enter(core).unwrap();
        while scene != Scene::Kept
            && take_block(core.free_map(), &core.region, guard.own, Purpose::Regain).is_some()
        {}
        let number = leased(&mut guard);
        all.wait();
        // A thread gives its blocks back when it has ended, which a scope does not wait for.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        number
    })
}

/// The slot keeps the chains of an inode that is dead, and not its block of heads.
#[test]
fn a_chain_with_a_further_head_has_a_block_of_heads() {
    for (scene, wanted) in [
        (Scene::Kept, Ok(HEADS_INLINE)),
        (Scene::KeptDrained, Ok(0)),
        (Scene::UsedDrained, Err(Error::NoSpace)),
    ] {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let fs = volume.fs();
        let first = fs.new_file(Ino::ROOT, "first");
        let ino = first.ino;
        assert_eq!(leased_after(&fs.core, ino, HEADS_INLINE + 2, Scene::Kept), Ok(HEADS_INLINE + 2));
        fs.release(first);
        fs.remove(Ino::ROOT, "first").unwrap();
        let made = (0..1000).find(|n| {
            let file = fs.new_file(Ino::ROOT, &format!("{n}"));
            let is_its = file.ino == ino;
            fs.release(file);
            is_its
        });
        assert!(made.is_some(), "the slot is used again");
        let chains = existing(&fs.core, fs.core.inode(ino).unwrap()).map(Chain::number);
        assert!(chains.max() < Some(HEADS_INLINE), "a chain without a head");
        assert_eq!(leased_after(&fs.core, ino, HEADS_INLINE, scene), wanted);
        let heads = head_block(&fs.core, fs.core.inode(ino).unwrap());
        assert_eq!(heads.is_some(), scene == Scene::Kept);
        leave(&fs.core);
    }
}

/// A block that came back to a chain was full at the same slot as before. Records of the time between seemed
/// older.
#[test]
fn crash_a_chain_that_got_its_block_again_was_quiet() {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
    let fs = volume.fs();
    let file = fs.new_file(Ino::ROOT, "f");
    fs.write(&file, 0, &[1; 4096]).unwrap();
    let log = existing(&fs.core, fs.core.inode(file.ino).unwrap()).next().unwrap();
    let (page, slot) = log.tail();
    let era = log.quiet_before(7);
    assert_eq!((era, log.quiet_before(9)), (8, 8));
    while log.tail().0 == page {
        fs.write(&file, 0, &[1; 4096]).unwrap();
    }
    // It ends as before.
    log.page.set(page.0);
    log.slot.set(slot);
    assert_eq!(log.quiet_before(20), 21);
    fs.release(file);
    leave(&fs.core);
}
