use super::*;
use crate::ids::Extent;
use crate::state::inode::Birth;
use crate::upkeep::settle::HOOKS;
use heddle_range_lock::{Geometry, Mode};
use heddle_vfs::{FileKind, Time};

/// The mount's number of [`on`].
pub const EPOCH: u64 = 3;

fn parts(region: Region, arena: Arena, variant: Variant) -> Parts {
    let locks = variant.lock().map(|kind| {
        let geometry = Geometry { file_bytes_max: region.len_bytes(), ..Geometry::default() };
        heddle_range_lock::make(kind, Mode::Fair, &geometry).unwrap()
    });
    Parts { region, arena: Arc::new(arena), variant, locks, on_lock: None, hooks: HOOKS, read_only: false }
}

/// A mount without inodes, all of its data area free.
pub fn on(region: Region, variant: Variant) -> Arc<Core> {
    let blocks = region.len_bytes() / BLOCK_BYTES as u64;
    let identity = Identity { uuid: [7; 16], boot: [0; 16], epoch: EPOCH, seed: 7 };
    let arena = Arena::shared(64 << 20).unwrap();
    let core = Core::new(parts(region, arena, variant), identity, blocks).unwrap();
    let data = core.layout.data;
    core.free_map().give(Extent { block: data, count: core.layout.last().0 - data.0 });
    Arc::new(core)
}

/// The same, in memory.
pub fn bare(blocks: u64) -> Arc<Core> {
    on(Region::anonymous(blocks * BLOCK_BYTES as u64).unwrap(), Variant::Heddle)
}

/// Makes chunks of the first blocks of the data area, without free slots.
pub fn add_chunks(core: &Core, count: u64) {
    for n in 0..count {
        let block = core.layout.data.plus(n);
        assert!(core.free_map().claim(Extent { block, count: 1 }));
        crate::alloc::itable::add_chunk(core, n, block).unwrap();
    }
    crate::alloc::itable::set_chunk_count(core, count);
}

/// A file with one name.
pub fn born(core: &Core, ino: u64, generation: u64) -> InodeRef<'_> {
    let inode = core.slot(Ino(ino)).unwrap();
    let kind = FileKind::Regular;
    inode.volatile.be_born(&Birth { generation, kind, perm: 0o644, uid: 0, gid: 0, rdev: 0, now: Time(1) });
    inode.volatile.nlink.store(1, SeqCst);
    inode
}

/// FNV-1a over the sizes, as words, and then over the bytes of version and sources.
#[test]
fn the_arenas_layout_is_a_hash_of_sizes_and_sources() {
    let sizes = [
        size_of::<Root>(),
        size_of::<Lane>(),
        size_of::<VolatileInode>(),
        size_of::<ChunkEntry>(),
        size_of::<crate::state::chain::Chain>(),
        size_of::<crate::state::chain::Chains>(),
        size_of::<LaneTable>(),
        usize::from(LANES),
    ];
    let build = concat!(env!("CARGO_PKG_VERSION"), env!("HEDDLE_SOURCES"));
    let words = sizes.map(|size| size as u64).into_iter().chain(build.bytes().map(u64::from));
    let hash = words
        .fold(14_695_981_039_346_656_037_u64, |hash, word| (hash ^ word).wrapping_mul(1_099_511_628_211));
    assert_eq!(LAYOUT, hash);
}

#[test]
fn a_view_needs_its_mount_and_a_region_that_holds_it() {
    const BYTES: u64 = 4 << 20;
    let core = bare(BYTES / BLOCK_BYTES as u64);
    let join = |region: Region, identity: Identity| {
        Core::join(parts(region, core.arena.map_again().unwrap(), Variant::Heddle), &identity).is_some()
    };
    let region = |bytes| Region::anonymous(bytes).unwrap();
    let its = core.identity();
    assert!(join(region(BYTES), its) && join(region(2 * BYTES), its));
    assert!(!join(region(BYTES - BLOCK_BYTES as u64), its), "it is too short");
    for other in [
        Identity { epoch: its.epoch + 1, ..its },
        Identity { boot: [1; 16], ..its },
        Identity { uuid: [8; 16], ..its },
        Identity { seed: its.seed + 1, ..its },
    ] {
        assert!(!join(region(BYTES), other) && !core.root().is(&other), "{other:?}");
    }
    assert!(core.root().is(&its));
    assert!(core.root().lane_table_of(&core.arena).is_some_and(|table| table.len() == LANES));
    let [process, power] = Durability::ALL.map(|durability| Region::anonymous_as(BYTES, durability).unwrap());
    let other = if core.region.durability() == Durability::Power { process } else { power };
    assert!(!join(other, its), "it promises something else");
}

#[test]
fn calls_are_refused_after_the_end_and_changes_after_damage() {
    let core = bare(1024);
    assert_eq!((core.still_mounted(), core.writable(), core.damage_found()), (Ok(()), Ok(()), None));
    assert_eq!(core.damage("page 5".into()), Error::Corrupt("page 5".into()));
    let found = core.damage_found().unwrap();
    assert!(found.contains("page 5"), "{found}");
    assert_eq!((core.still_mounted(), core.writable()), (Ok(()), Err(Error::Corrupt(found))));
    core.root().ended.store(1, SeqCst);
    assert_eq!(core.still_mounted(), Err(Error::Unmounted));
}

#[test]
fn a_process_follows_a_daemon_that_is_gone_and_no_other() {
    let core = bare(1024);
    let (root, mine) = (core.root(), core.process_slot().unwrap().tag());
    let last = root.daemon.load(SeqCst);
    assert_eq!(last, mine.word(), "it has mounted");
    let next = ProcessTag::from_word(mine.word() ^ 1 << 40);
    assert_ne!(next.word(), last);
    assert!(!root.succeed(next, |_| false));
    assert_eq!(root.daemon.load(SeqCst), last, "the daemon lives");
    assert!(root.succeed(next, |asked| asked == mine));
    assert_eq!(root.daemon.load(SeqCst), next.word());
    let overtaken = |_| {
        root.daemon.store(last, SeqCst);
        true
    };
    assert!(!root.succeed(mine, overtaken), "another process was first");
}

#[test]
fn a_process_is_gone_for_others_when_it_drops_its_view() {
    let core = bare(1024);
    let parts = parts(core.region.map_again().unwrap(), core.arena.map_again().unwrap(), Variant::Heddle);
    let view = Core::join(parts, &core.identity()).unwrap();
    let tag = view.process_slot().unwrap().tag();
    assert_eq!(view.process_slot().unwrap().tag(), tag, "it has one");
    assert_ne!(core.process_slot().unwrap().tag(), tag);
    assert!(!core.lane_table().is_gone(&core.arena, tag));
    drop(view);
    assert!(core.lane_table().is_gone(&core.arena, tag));
}
