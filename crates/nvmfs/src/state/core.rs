//! What is mounted: the region, the arena, and where in both things are.
//!
//! [`Core`] is a process's view; all that changes lies in the arena or the region, so that another view (another process, or
//! the same arena mapped at another address) sees the same file system.

mod places;
mod seated;

use crate::damage::DamageNote;
use crate::format::inode::CHUNK_INODES;
use crate::format::layout::{Layout, chunk_of};
use crate::format::superblock::Superblock;
use crate::ids::{BlockNo, LANES};
use crate::region::Region;
use crate::state::free_map::{self, FreeMap};
use crate::state::inode::{InodeRef, VInode};
use crate::state::lane::Lane;
use crate::state::latch::Latch;
use crate::variant::Variant;
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::{Arena, AtomicPtr, Full, LaneTable, Lease, Ptr, Shared, Tag, Zeroed};
use heddle_pmem::{BLOCK_BYTES, Durability};
use heddle_range_lock::{AnyLock, RangeLock};
use heddle_vfs::{Error, Ino, Result};
use places::Places;
use seated::Seated;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// How long a stopped process may hold up others, in ms, unless the mount says otherwise.
pub const PATIENCE_MS: u32 = 30_000;

/// An inode chunk in the arena: what never changes again, so that many fit a line, and each look at an inode finds it in a near cache.
#[repr(C)]
pub struct Chunk {
    /// Its inodes.
    pub inodes: AtomicPtr<VInode>,
    /// Its block on media; 0: it is not there, all ones: it is being made.
    pub block: AtomicU64,
}

/// Slots of an inode chunk that are free and in nobody's hands.
pub type FreeSlots = Apart<AtomicU64>;

// SAFETY: atomics only.
unsafe impl Shared for Chunk {}
// SAFETY: all zeros is a chunk that does not exist.
unsafe impl Zeroed for Chunk {
    fn zeroed() -> Chunk {
        Chunk { inodes: AtomicPtr::new(Ptr::NULL), block: AtomicU64::new(0) }
    }
}

/// On a line of its own: what changes now and then must not drag along what everybody reads.
#[repr(align(64))]
pub struct Apart<T>(pub T);

// SAFETY: as of what it holds.
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

/// Arrays of buckets that no directory has.
#[repr(C)]
pub struct BucketPool {
    /// Held while one is taken or given.
    pub latch: Latch,
    /// The first of each size class.
    pub heads: [AtomicU64; crate::state::bucket::CLASSES],
}

/// Where everything is in the arena; the arena's root.
#[repr(C, align(64))]
pub struct Root {
    free_map: Ptr<AtomicU64>,
    lane_table: Ptr<LaneTable>,
    lanes: Ptr<Lane>,
    chunks: Ptr<Chunk>,
    free_slots: Ptr<FreeSlots>,
    /// Chunks that exist, those being made and those given back included.
    pub chunk_count: Apart<AtomicU64>,
    /// Those of them that were given back, about.
    pub chunk_gaps: AtomicU64,
    /// Held by renames of directories across directories.
    pub renames: Apart<Latch>,
    /// See `names::table`.
    pub buckets: Apart<BucketPool>,
    /// Largest number of a lane that was ever leased.
    pub lanes_used: AtomicU64,
    /// How many are leased, about: the daemon's rounds count anew.
    pub lanes_leased: AtomicU64,
    /// The process that mounted the image, or took it over: a [`heddle_arena::Tag`].
    pub daemon: AtomicU64,
    /// How many processes have attached.
    pub attached: AtomicU32,
    /// How many lanes of the dead were settled.
    pub settled: AtomicU64,
    /// Blocks that wait for readers, of all files; a moment old, or off by what the dead had in hand.
    pub deferred: AtomicU64,
    /// Set when the file system is unmounted: whoever is still attached is refused.
    pub ended: AtomicU32,
    seed: u32,
    /// How long a stopped process may hold up others before it is killed, in ms; 0: for ever.
    pub patience_ms: AtomicU32,
    /// 1: logs are kept as short as on a full image, also where there is space.
    pub short_logs: AtomicU32,
    blocks_total: u64,
    /// What stores to the region survive ([`heddle_pmem::Durability::raw`]).
    durability: u32,
    /// Set when the media was found to contradict itself: no more changes.
    damage: DamageNote,
    identity: Identity,
}

/// What tells one mount from every other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Identity {
    /// The image.
    pub uuid: [u8; 16],
    /// The boot of the machine.
    pub boot: [u8; 16],
    /// How often the image was mounted.
    pub epoch: u64,
    /// Seed of every checksum of the image.
    pub seed: u64,
}

impl Identity {
    /// Of a mount of the image with this superblock.
    pub fn of(superblock: &Superblock, boot: [u8; 16]) -> Identity {
        let (epoch, seed) = (superblock.epoch.get(), superblock.seed().into());
        Identity { uuid: superblock.uuid, boot, epoch, seed }
    }

    fn seed(&self) -> u32 {
        self.seed as u32
    }
}

/// What this build puts where in an arena: processes of different builds must not share one.
pub const LAYOUT: u64 = {
    let sizes = [
        size_of::<Root>(),
        size_of::<Lane>(),
        size_of::<VInode>(),
        size_of::<Chunk>(),
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
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    i = 0;
    while i < version.len() {
        hash = (hash ^ version[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
};

// SAFETY: numbers, offsets and atomics.
unsafe impl Shared for Root {}

/// What modules above do for a thread that waits for a lane, or ends. Set once, when the core is made.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Brings the lane of a dead holder to an end. `None`: its process has files open, and keeps it.
    pub settle: fn(&Core, Lease) -> Option<Lease>,
    /// Gives back what an ending thread's lane holds, then the lane.
    pub give_up: fn(&Core, Lease),
}

/// See the module. What every call reads shares no line with what else lies in the process' heap.
#[repr(align(128))]
pub struct Core {
    /// The media.
    pub region: Region,
    /// The volatile state.
    pub arena: Arc<Arena>,
    places: Places,
    /// Places on media.
    pub layout: Layout,
    /// Seed of every checksum of this image.
    pub seed: u32,
    /// This mount's number.
    pub epoch: u64,
    /// Which system this is.
    pub variant: Variant,
    /// The papers' range lock; `None` in `heddle`.
    pub locks: Option<AnyLock>,
    /// Told how long each wait for it took.
    pub on_lock: Option<fn(std::time::Duration)>,
    /// What modules above do.
    pub hooks: Hooks,
    /// Nothing may change.
    pub read_only: bool,
    /// Tells the mounts of this process apart.
    pub id: u64,
    /// Lanes that this process's threads have left parked, about: where it is 0 nobody looks for one.
    pub parked: std::sync::atomic::AtomicU32,
    /// How long this process lets a stopped one hold it up: what the mount said when it first asked, whatever is written there later.
    pub patience: std::sync::OnceLock<Option<std::time::Duration>>,
    /// The largest table that a directory may have.
    pub table_bits_max: u32,
    /// A call of this process has waited in vain for a lock: the next ones wait a moment only.
    pub waited_in_vain: std::sync::atomic::AtomicBool,
    seated: Seated,
}

static NEXT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// What a [`Core`] is made of.
pub struct Parts {
    /// The media.
    pub region: Region,
    /// The volatile state.
    pub arena: Arc<Arena>,
    /// Which system.
    pub variant: Variant,
    /// Its range lock.
    pub locks: Option<AnyLock>,
    /// Told how long each wait for it took.
    pub on_lock: Option<fn(std::time::Duration)>,
    /// What modules above do.
    pub hooks: Hooks,
    /// Nothing may change.
    pub read_only: bool,
}

impl Core {
    /// Lays the volatile state of a region of `blocks` blocks out in an empty arena: everything free, no inodes.
    pub fn new(parts: Parts, identity: Identity, blocks: u64) -> Result<Core> {
        let root = Root::lay_out(&parts, &Layout::new(blocks), identity).map_err(no_memory)?;
        parts.arena.set_root(root);
        let core = Core::join(parts, &identity)
            .ok_or_else(|| Error::Corrupt("the arena that was just laid out".into()))?;
        core.root().daemon.store(core.seat()?.tag().word(), SeqCst);
        Ok(core)
    }

    /// A view of what [`Core::new`] laid out, here or in another process; `None` if the arena is not that of this mount.
    pub fn join(parts: Parts, identity: &Identity) -> Option<Core> {
        let places = Places::of(&parts.arena, parts.arena.root::<Root>())?;
        let r = places.root();
        let layout = Layout::new(r.blocks_total);
        if r.identity != *identity
            || r.blocks_total.checked_mul(BLOCK_BYTES as u64)? > parts.region.len_bytes()
            || r.durability() != Some(parts.region.durability())
        {
            return None;
        }
        let table_bits_max = crate::state::bucket::bits_max(r.blocks_total * BLOCK_BYTES as u64);
        Some(Core {
            layout,
            seed: r.seed,
            places,
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
            patience: std::sync::OnceLock::new(),
            seated: Seated::default(),
        })
    }

    /// Where the largest file of this system ends. What would go beyond it is refused before anything changes.
    pub fn file_bytes_max(&self) -> u64 {
        let lock = self.locks.as_ref().map_or(u64::MAX, RangeLock::file_bytes_max);
        lock.min(heddle_vfs::OFFSET_MAX_BYTES)
    }

    /// Which mount this is.
    pub fn identity(&self) -> Identity {
        self.root().identity
    }

    /// The root.
    #[inline]
    pub fn root(&self) -> &Root {
        self.places.root()
    }

    /// Free space.
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
        &self.places.lanes()[usize::from(lane) - 1]
    }

    /// All inode chunks that can be.
    #[inline]
    pub fn chunks(&self) -> &[Chunk] {
        self.places.chunks()
    }

    /// Free slots of a chunk.
    pub fn free_slots(&self, chunk: u64) -> &AtomicU64 {
        &self.arena.slice(self.root().free_slots, self.layout.chunks_max as usize)[chunk as usize]
    }

    /// The inode of this number, living or not; `None` if its chunk does not exist.
    #[inline(always)]
    pub fn slot(&self, ino: Ino) -> Option<InodeRef<'_>> {
        let (chunk, index) = chunk_of(ino);
        // ORDERING: Acquire, pairs with the Release that links a new chunk.
        let inodes = self.chunks().get(chunk as usize)?.inodes.load(Acquire);
        if inodes.is_null() {
            return None;
        }
        Some(InodeRef { ino, vi: &self.arena.slice(inodes, CHUNK_INODES as usize)[index as usize] })
    }

    /// The block that holds the slot of this inode, which lives or is about to.
    pub fn chunk_block(&self, ino: Ino) -> BlockNo {
        // ORDERING: Acquire, pairs with the Release that links a new chunk.
        BlockNo(self.chunks()[chunk_of(ino).0 as usize].block.load(Acquire))
    }

    /// May the file system change?
    ///
    /// # Errors
    /// [`Error::ReadOnly`] on a read-only mount, [`Error::Corrupt`] after damage was found.
    pub fn writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        if self.root().damage.is_noted() {
            return Err(Error::Corrupt(self.root().damage.text()));
        }
        if let Some(error) = self.region.failed() {
            return Err(Error::Io(error.to_string()));
        }
        Ok(())
    }

    /// Notes that the media contradicts itself, and what says so: no more changes from here on, in any process.
    pub fn damage(&self, what: String) -> Error {
        self.root().damage.note(&what);
        Error::Corrupt(what)
    }

    /// What damage was found since it was mounted, if any.
    pub fn damage_found(&self) -> Option<String> {
        self.root().damage.is_noted().then(|| self.root().damage.text())
    }
}

impl Root {
    /// Makes the process of this tag the daemon, if the last one is gone; false: that lives, or another was quicker.
    pub fn succeed(&self, mine: Tag, is_gone: impl FnOnce(Tag) -> bool) -> bool {
        let last = self.daemon.load(SeqCst);
        is_gone(Tag::of(last)) && self.daemon.compare_exchange(last, mine.word(), SeqCst, SeqCst).is_ok()
    }

    /// Is this the state of that mount?
    pub fn is(&self, identity: &Identity) -> bool {
        self.identity == *identity
    }

    /// What stores to the region survive, for all who have it mapped: one that promised less would lose what others have promised.
    pub fn durability(&self) -> Option<Durability> {
        Durability::from_raw(self.durability)
    }
}

#[cfg(test)]
impl Root {
    /// Where it says where the lanes' table is: as whoever may attach can write over it.
    pub fn scribble_lane_table(&self, to: u64) -> u64 {
        let word = std::ptr::from_ref(&self.lane_table).cast_mut().cast::<u64>();
        // SAFETY: a pointer is a number; the test looks at it through others' mappings alone until it is put back.
        unsafe {
            let was = word.read_volatile();
            word.write_volatile(to);
            was
        }
    }
}

/// The arena is full.
pub fn no_memory(_: Full) -> Error {
    Error::NoMemory
}

impl Root {
    fn lay_out(parts: &Parts, layout: &Layout, identity: Identity) -> std::result::Result<Ptr<Root>, Full> {
        let arena = &*parts.arena;
        arena.alloc(Root {
            free_map: free_map::new_map(arena, layout)?,
            lane_table: LaneTable::create(arena, LANES)?,
            // Not touched: most lanes of most mounts are never leased.
            lanes: arena.alloc_zeroed::<Lane>(usize::from(LANES))?,
            chunks: arena.alloc_zeroed::<Chunk>(layout.chunks_max as usize)?,
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
            short_logs: AtomicU32::new(0),
            blocks_total: layout.blocks_total,
            durability: parts.region.durability().raw(),
            identity,
        })
    }
}
