//! The state of a mount: the region, the arena, and the positions of things in both.
//!
//! [`Core`] is one process's view. All changing state is in the arena or the region. So another view (another
//! process, or the same arena mapped at another address) sees the same file system.

mod arena_refs;
mod own_slot;
#[cfg(all(test, not(any(loom, shuttle))))]
pub mod tests;

use crate::damage::DamageNote;
use crate::format::inode::CHUNK_INODES;
use crate::format::layout::{Layout, chunk_of};
use crate::format::superblock::Superblock;
use crate::ids::{BlockNo, LANES};
use crate::region::Region;
use crate::state::free_map::{self, FreeMap};
use crate::state::inode::{InodeRef, VolatileInode};
use crate::state::lane::Lane;
use crate::state::latch::Latch;
use crate::variant::Variant;
use arena_refs::ArenaRefs;
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::{Arena, AtomicPtr, Full, LaneTable, Lease, ProcessTag, Ptr, Shared, Zeroed};
use heddle_pmem::{BLOCK_BYTES, Durability};
use heddle_range_lock::AnyLock;
use heddle_vfs::known_number::KnownNumber;
use heddle_vfs::{Error, Ino, Result};
use own_slot::OwnSlot;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Default time for which a stopped process may hold up others, in ms.
pub const PATIENCE_MS: u32 = 30_000;

/// The arena's entry for an inode chunk, which may exist or not. Its fields rarely change, so many entries share a
/// line, and each access to an inode finds its entry in a near cache.
#[repr(C)]
pub struct ChunkEntry {
    /// Its inodes.
    pub inodes: AtomicPtr<VolatileInode>,
    /// Its block on media; 0: the chunk does not exist, all ones: it is being made.
    pub block: AtomicU64,
}

/// Free slots of an inode chunk that no lane holds.
pub type FreeSlots = Apart<AtomicU64>;

// SAFETY: atomics only.
unsafe impl Shared for ChunkEntry {}
// SAFETY: all zeros is a chunk that does not exist.
unsafe impl Zeroed for ChunkEntry {
    fn zeroed() -> ChunkEntry {
        ChunkEntry { inodes: AtomicPtr::new(Ptr::NULL), block: AtomicU64::new(0) }
    }
}

/// A value on a line of its own: changing it must not evict values that every thread reads.
#[repr(align(64))]
pub struct Apart<T>(pub T);

// SAFETY: as for the value inside.
unsafe impl Shared for FreeSlots {}
// SAFETY: all zeros is a chunk without free slots.
unsafe impl Zeroed for FreeSlots {
    fn zeroed() -> FreeSlots {
        Apart(AtomicU64::new(0))
    }
}

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Arrays of buckets that no directory uses.
#[repr(C)]
pub struct BucketPool {
    /// Held while one is taken or given.
    pub latch: Latch,
    /// The first of each size class.
    pub heads: [AtomicU64; crate::state::bucket::CLASSES],
}

/// No group has this number.
pub const NO_GROUP: u32 = u32::MAX;

/// The arena's root: the positions of everything in the arena.
#[repr(C, align(64))]
pub struct Root {
    /// [`LAYOUT`] of the build that made the arena. It comes first in every build: only if it is this build's are the
    /// other fields where this build looks for them.
    layout: u64,
    free_map: Ptr<AtomicU64>,
    lane_table: Ptr<LaneTable>,
    lanes: Ptr<Lane>,
    chunks: Ptr<ChunkEntry>,
    free_slots: Ptr<FreeSlots>,
    /// Number of chunks, including those being made and those freed.
    pub chunk_count: Apart<AtomicU64>,
    /// Number of freed ones among them, approximately.
    pub chunk_gaps: AtomicU64,
    /// Held by renames of directories across directories.
    pub renames: Apart<Latch>,
    /// Freed arrays of buckets (see `names::table`).
    pub buckets: Apart<BucketPool>,
    /// Largest number of a lane that was ever leased.
    pub lanes_used: AtomicU64,
    /// Number of leased lanes, approximately: each round of the daemon counts them anew.
    pub lanes_leased: AtomicU64,
    /// The process that mounted the image, or took it over: a [`heddle_arena::ProcessTag`].
    pub daemon: AtomicU64,
    /// Number of processes that have attached.
    pub attached: AtomicU32,
    /// Number of dead lanes that were settled.
    pub settled: AtomicU64,
    /// Blocks of all files that wait for readers. Approximate: it may be stale, or wrong by the entries that
    /// a dead thread was moving.
    pub deferred: AtomicU64,
    /// Set when the file system is unmounted: calls of attached processes are refused.
    pub ended: AtomicU32,
    seed: u32,
    /// How long a stopped process may hold up others before it is killed, in ms; 0: for ever.
    pub patience_ms: AtomicU32,
    /// The group whose members may attach; [`NO_GROUP`]: none.
    pub attach_group: AtomicU32,
    /// 1: logs are kept as short as on a full image, also where there is space.
    pub short_logs: AtomicU32,
    blocks_total: u64,
    /// The durability of stores to the region ([`heddle_pmem::Durability::raw`]).
    durability: u32,
    /// Set when the media was found inconsistent: no more changes.
    damage: DamageNote,
    identity: Identity,
}

/// Distinguishes one mount from every other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Identity {
    /// The image.
    pub uuid: [u8; 16],
    /// The boot of the machine.
    pub boot: [u8; 16],
    /// Number of times the image was mounted.
    pub epoch: u64,
    /// Seed of every checksum of the image.
    pub seed: u64,
}

impl Identity {
    /// The identity of a mount of the image with this superblock.
    pub fn of(superblock: &Superblock, boot: [u8; 16]) -> Identity {
        let (epoch, seed) = (superblock.epoch.get(), superblock.seed().into());
        Identity { uuid: superblock.uuid, boot, epoch, seed }
    }

    fn seed(&self) -> u32 {
        self.seed as u32
    }
}

/// A hash of this build's arena layout, version and sources (`build.rs`): processes of different builds must not share an arena.
pub const LAYOUT: u64 = {
    let sizes = [
        size_of::<Root>(),
        size_of::<Lane>(),
        size_of::<VolatileInode>(),
        size_of::<ChunkEntry>(),
        size_of::<crate::state::chain::Chain>(),
        size_of::<crate::state::chain::Chains>(),
        size_of::<LaneTable>(),
        LANES as usize,
    ];
    let (mut hash, mut i) = (0xcbf2_9ce4_8422_2325u64, 0);
    while i < sizes.len() {
        hash = (hash ^ sizes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    let build = concat!(env!("CARGO_PKG_VERSION"), env!("HEDDLE_SOURCES")).as_bytes();
    i = 0;
    while i < build.len() {
        hash = (hash ^ build[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
};

// SAFETY: numbers, offsets and atomics.
unsafe impl Shared for Root {}

/// Functions of higher modules for a thread that waits for a lane, finds no space, or ends. Set once, when the core is made.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Settles the lane of a dead holder. `None`: its process has files open, and keeps the lane.
    pub settle: fn(&Core, Lease) -> Option<Lease>,
    /// Settles the lanes of all dead holders. Returns their number.
    pub sweep: fn(&Core) -> u64,
    /// Returns the resources of an ending thread's lane, then the lane.
    pub give_up: fn(&Core, Lease),
}

/// A process's view of a mount. Fields that every call reads share no line with unrelated memory of the
/// process.
#[repr(align(128))]
pub struct Core {
    /// The media.
    pub region: Region,
    /// The volatile state.
    pub arena: Arc<Arena>,
    arena_refs: ArenaRefs,
    /// Positions on media.
    pub layout: Layout,
    /// Seed of every checksum of this image.
    pub seed: u32,
    /// This mount's number.
    pub epoch: u64,
    /// The variant of the engine.
    pub variant: Variant,
    /// The papers' range lock; `None` in `heddle`.
    pub locks: Option<AnyLock>,
    /// Called with the duration of each wait for the range lock.
    pub on_lock: Option<fn(std::time::Duration)>,
    /// Functions of higher modules.
    pub hooks: Hooks,
    /// True on a read-only mount.
    pub read_only: bool,
    /// Distinguishes the mounts of this process.
    pub id: u64,
    /// Number of lanes that ended threads of this process have left parked, approximately. At 0 no thread
    /// looks for one.
    pub parked: std::sync::atomic::AtomicU32,
    /// How many milliseconds this process lets a stopped one hold it up; 0: for ever. It keeps the value that it first read; later changes
    /// of the word are ignored.
    pub patience_ms: KnownNumber,
    /// The largest table that a directory may have.
    pub table_bits_max: u32,
    /// True after a call of this process waited in vain for a lock: later calls wait only briefly.
    pub waited_in_vain: std::sync::atomic::AtomicBool,
    own_slot: OwnSlot,
}

static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// The parts of a [`Core`].
pub struct Parts {
    /// The media.
    pub region: Region,
    /// The volatile state.
    pub arena: Arc<Arena>,
    /// The variant of the engine.
    pub variant: Variant,
    /// Its range lock.
    pub locks: Option<AnyLock>,
    /// Called with the duration of each wait for the range lock.
    pub on_lock: Option<fn(std::time::Duration)>,
    /// Functions of higher modules.
    pub hooks: Hooks,
    /// True for a read-only mount.
    pub read_only: bool,
}

impl Core {
    /// Lays out the volatile state for a region of `blocks` blocks in an empty arena: all blocks free, no
    /// inodes.
    pub fn new(parts: Parts, identity: Identity, blocks: u64) -> Result<Core> {
        let root = Root::lay_out(&parts, &Layout::new(blocks), identity).map_err(no_memory)?;
        parts.arena.set_root(root);
        let core = Core::join(parts, &identity)
            .ok_or_else(|| Error::Corrupt("the arena that was just laid out".into()))?;
        core.root().daemon.store(core.process_slot()?.tag().word(), SeqCst);
        Ok(core)
    }

    /// A view of the state that [`Core::new`] laid out, here or in another process; `None` if the arena is
    /// not that of this mount, or another build made it.
    pub fn join(parts: Parts, identity: &Identity) -> Option<Core> {
        let arena_refs = ArenaRefs::of(&parts.arena, parts.arena.root::<Root>())?;
        let r = arena_refs.root();
        let layout = Layout::new(r.blocks_total);
        if r.identity != *identity
            || r.blocks_total.checked_mul(BLOCK_BYTES as u64)? > parts.region.len_bytes()
            || r.durability() != Some(parts.region.durability())
        {
            return None;
        }
        let table_bits_max = crate::state::bucket::bits_max(r.blocks_total * BLOCK_BYTES as u64);
        // For all processes: a change of theirs could rely on what the media lacks.
        let arena = parts.arena.clone();
        parts.region.on_failed_fence(move || {
            if let Some(root) = arena.try_get(arena.root::<Root>()) {
                root.damage.note("the media refused what a process had stored");
            }
        });
        Some(Core {
            layout,
            seed: r.seed,
            arena_refs,
            epoch: identity.epoch,
            region: parts.region,
            arena: parts.arena,
            variant: parts.variant,
            locks: parts.locks,
            on_lock: parts.on_lock,
            hooks: parts.hooks,
            read_only: parts.read_only,
            // ORDERING: Relaxed, only uniqueness matters.
            id: NEXT_ID.fetch_add(1, Relaxed),
            parked: std::sync::atomic::AtomicU32::new(0),
            table_bits_max,
            waited_in_vain: std::sync::atomic::AtomicBool::new(false),
            patience_ms: KnownNumber::new(),
            own_slot: OwnSlot::default(),
        })
    }

    /// The identity of this mount.
    pub fn identity(&self) -> Identity {
        self.root().identity
    }

    /// The root.
    #[inline]
    pub fn root(&self) -> &Root {
        self.arena_refs.root()
    }

    /// The free map.
    pub fn free_map(&self) -> FreeMap<'_> {
        let root = self.root();
        FreeMap::new(&self.arena, root.free_map, &self.layout, &root.lanes_leased)
    }

    /// The leases of lanes.
    pub fn lane_table(&self) -> &LaneTable {
        self.arena.get(self.root().lane_table)
    }

    /// A lane, by number from 1.
    #[inline]
    pub fn lane(&self, lane: u16) -> &Lane {
        &self.arena_refs.lanes()[usize::from(lane) - 1]
    }

    /// All possible inode chunks.
    #[inline]
    pub fn chunks(&self) -> &[ChunkEntry] {
        self.arena_refs.chunks()
    }

    /// Free slots of a chunk.
    pub fn free_slots(&self, chunk: u64) -> &AtomicU64 {
        &self.arena.slice(self.root().free_slots, self.layout.chunks_max as usize)[chunk as usize]
    }

    /// The inode of this number, alive or not; `None` if its chunk does not exist.
    #[inline(always)]
    pub fn slot(&self, ino: Ino) -> Option<InodeRef<'_>> {
        let (chunk, index) = chunk_of(ino);
        // ORDERING: Acquire, pairs with the Release that links a new chunk.
        let inodes = self.chunks().get(chunk as usize)?.inodes.load(Acquire);
        if inodes.is_null() {
            return None;
        }
        Some(InodeRef { ino, volatile: &self.arena.slice(inodes, CHUNK_INODES as usize)[index as usize] })
    }

    /// The block that holds the slot of this inode, which is alive or being made.
    pub fn chunk_block(&self, ino: Ino) -> BlockNo {
        // ORDERING: Acquire, pairs with the Release that links a new chunk.
        BlockNo(self.chunks()[chunk_of(ino).0 as usize].block.load(Acquire))
    }

    /// Checks that the file system is mounted, for a call that takes no lane.
    ///
    /// # Errors
    /// [`Error::Unmounted`] once the mount has ended: an attached process still has its memory.
    #[inline(always)]
    pub fn still_mounted(&self) -> Result<()> {
        // ORDERING: Relaxed, a call that began before may end as it does. One that changes something is waited for (`lease`, O1).
        if self.root().ended.load(Relaxed) != 0 { Err(Error::Unmounted) } else { Ok(()) }
    }

    /// Checks that the file system may change.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] on a read-only mount, [`Error::Corrupt`] after damage was found.
    pub fn writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        if let Some(error) = self.region.failed() {
            return Err(Error::Io(error.to_string()));
        }
        if self.root().damage.is_noted() {
            return Err(Error::Corrupt(self.root().damage.text()));
        }
        Ok(())
    }

    /// Notes that the media is inconsistent, with the reason. No process may change the file system from now
    /// on.
    pub fn damage(&self, what: String) -> Error {
        self.root().damage.note(&what);
        Error::Corrupt(what)
    }

    /// Returns the damage found since the mount, if any.
    pub fn damage_found(&self) -> Option<String> {
        self.root().damage.is_noted().then(|| self.root().damage.text())
    }
}

impl Root {
    /// Makes the process of this tag the daemon, if the last daemon is gone. Returns false if the last one is
    /// alive, or another process was first.
    pub fn succeed(&self, mine: ProcessTag, is_gone: impl FnOnce(ProcessTag) -> bool) -> bool {
        let last = self.daemon.load(SeqCst);
        is_gone(ProcessTag::from_word(last))
            && self.daemon.compare_exchange(last, mine.word(), SeqCst, SeqCst).is_ok()
    }

    /// The lanes, before this arena is joined.
    pub fn lane_table_of<'a>(&self, arena: &'a Arena) -> Option<&'a LaneTable> {
        arena.try_get(self.lane_table)
    }

    /// Returns true if a process of this build made the arena.
    pub fn is_of_this_build(&self) -> bool {
        self.layout == LAYOUT
    }

    /// Returns true if this is the state of that mount.
    pub fn is(&self, identity: &Identity) -> bool {
        self.identity == *identity
    }

    /// The durability of stores to the region, for all processes that map it: one that promised less would
    /// lose data that others have promised.
    pub fn durability(&self) -> Option<Durability> {
        Durability::from_raw(self.durability)
    }
}

#[cfg(test)]
impl Root {
    /// Makes the arena another build's.
    pub fn forge_layout(&self) {
        let word = std::ptr::from_ref(&self.layout).cast_mut();
        // SAFETY: a number; until it is put back, the test reads it only through other mappings.
        unsafe { word.write_volatile(word.read_volatile() ^ 1) };
    }

    /// The position of the pointer to the table of lanes, overwritten as an attached process could do it.
    pub fn scribble_lane_table(&self, to: u64) -> u64 {
        let word = std::ptr::from_ref(&self.lane_table).cast_mut().cast::<u64>();
        // SAFETY: a pointer is a number; until it is put back, the test reads it only through other mappings.
        unsafe {
            let was = word.read_volatile();
            word.write_volatile(to);
            was
        }
    }
}

/// Converts the error of a full arena.
pub fn no_memory(_: Full) -> Error {
    Error::NoMemory
}

impl Root {
    fn lay_out(parts: &Parts, layout: &Layout, identity: Identity) -> std::result::Result<Ptr<Root>, Full> {
        let arena = &*parts.arena;
        arena.alloc(Root {
            layout: LAYOUT,
            free_map: free_map::new_map(arena, layout)?,
            lane_table: LaneTable::create(arena, LANES)?,
            // Not touched: most lanes of most mounts are never leased.
            lanes: arena.alloc_zeroed::<Lane>(usize::from(LANES))?,
            chunks: arena.alloc_zeroed::<ChunkEntry>(layout.chunks_max as usize)?,
            free_slots: arena.alloc_zeroed::<FreeSlots>(layout.chunks_max as usize)?,
            chunk_count: Apart(AtomicU64::new(0)),
            chunk_gaps: AtomicU64::new(0),
            renames: Apart(Latch::new()),
            buckets: Apart(BucketPool {
                latch: Latch::new(),
                heads: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
            lanes_used: AtomicU64::new(0),
            lanes_leased: AtomicU64::new(0),
            damage: DamageNote::new(),
            daemon: AtomicU64::new(0),
            attached: AtomicU32::new(0),
            settled: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            ended: AtomicU32::new(0),
            seed: identity.seed(),
            patience_ms: AtomicU32::new(PATIENCE_MS),
            attach_group: AtomicU32::new(NO_GROUP),
            short_logs: AtomicU32::new(0),
            blocks_total: layout.blocks_total,
            durability: parts.region.durability().raw(),
            identity,
        })
    }
}
