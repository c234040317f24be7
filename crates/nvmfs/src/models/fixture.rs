//! One file on a small region, and a lane for each thread of a model.

use crate::alloc::{Purpose, itable};
use crate::file::read::read;
use crate::file::write_heddle::{At, write};
use crate::format::layout::Layout;
use crate::ids::{BlockNo, Extent};
use crate::region::Region;
use crate::state::core::{Core, Identity, Parts};
use crate::state::inode::{Birth, InodeRef};
use crate::state::lease::LaneGuard;
use crate::state::scratch::Scratch;
use crate::upkeep::settle::HOOKS;
use crate::variant::Variant;
use heddle_arena::Arena;
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::{Error, FileKind, Ino, Time};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

pub const PAGE: u64 = BLOCK_BYTES as u64;
/// Blocks of the region; half of them are its reserve.
const BLOCKS: u64 = 64;
/// Blocks that are free for data.
const FREE: u64 = 12;
/// The reserve; all of it is free, because otherwise new data would wait for it.
const RESERVED: u64 = 32;
/// The file.
pub const FILE: Ino = Ino(2);

/// The variable that limits preemptions below a model's own bound.
pub const PREEMPTIONS: &str = "HEDDLE_LOOM_PREEMPTIONS";

/// Explores a model with at most so many preemptions, or as many as `HEDDLE_LOOM_PREEMPTIONS` allows. It runs
/// in a thread of its own, because the stack of loom's first thread is too small for the engine's functions.
pub fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let start = std::time::Instant::now();
    let f = Arc::new(f);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions.min(allowed()));
    builder.max_branches = 100_000;
    let runs = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = runs.clone();
    builder.check(move || {
        // ORDERING: Relaxed here and below, a count for messages.
        count.fetch_add(1, Relaxed);
        let f = f.clone();
        spawn(move || f()).join().unwrap();
    });
    let runs = runs.load(Relaxed);
    let name = std::thread::current().name().unwrap_or("").to_owned();
    println!("  {name}: {runs} executions, {:.1} s", start.elapsed().as_secs_f64());
    assert!(runs > 1, "nothing was explored");
}

fn allowed() -> usize {
    std::env::var(PREEMPTIONS).map_or(usize::MAX, |most| most.parse().expect("a number of preemptions"))
}

/// A thread of a model, with a stack large enough for the engine's functions.
pub fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> loom::thread::JoinHandle<T> {
    loom::thread::Builder::new().stack_size(1 << 20).spawn(f).unwrap()
}

/// A mount of the model, with the number of blocks that were free for data at first.
#[derive(Clone)]
pub struct Fixture(Arc<Core>, u64);

/// A thread's lane.
pub struct Worker {
    core: Arc<Core>,
    id: u16,
    busy: Cell<bool>,
    scratch: Scratch,
}

impl Fixture {
    /// An empty file, all space free.
    pub fn new() -> Fixture {
        Fixture::with_free(FREE)
    }

    /// As above, with so many blocks for data.
    pub fn with_free(blocks: u64) -> Fixture {
        let region = Region::anonymous(BLOCKS * PAGE);
        let arena = Arc::new(Arena::private(1 << 20).unwrap());
        let variant = Variant::Heddle;
        let parts =
            Parts { region, arena, variant, locks: None, on_lock: None, hooks: HOOKS, read_only: false };
        let identity = Identity { uuid: [7; 16], boot: [0; 16], epoch: 1, seed: 7 };
        let core = Core::new(parts, identity, BLOCKS).unwrap();
        let chunk = Layout::new(BLOCKS).data;
        let free = Extent { block: chunk.plus(1), count: blocks };
        core.free_map().give(free);
        // The reserve, for log pages.
        let reserve = Extent { block: BlockNo(BLOCKS - 1 - RESERVED), count: RESERVED };
        core.free_map().give(reserve);
        for extent in [free, reserve] {
            (0..extent.count).for_each(|n| core.region.touch(extent.block.plus(n).pos()));
        }
        itable::add_chunk(&core, 0, chunk).unwrap();
        let file = core.slot(FILE).unwrap();
        let birth = Birth {
            generation: 1,
            kind: FileKind::Regular,
            perm: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            now: Time(1),
        };
        file.volatile.be_born(&birth);
        file.volatile.nlink.store(1, Relaxed); // ORDERING: Relaxed, no other thread is there yet.
        Fixture(Arc::new(core), blocks)
    }

    pub fn core(&self) -> &Core {
        &self.0
    }

    pub fn file(&self) -> InodeRef<'_> {
        self.0.slot(FILE).unwrap()
    }

    /// Lane `id`, from 1. Each is handed out once.
    pub fn worker(&self, id: u16) -> Worker {
        Worker { core: self.0.clone(), id, busy: Cell::new(false), scratch: Scratch::default() }
    }

    /// Blocks that were free at first.
    pub fn total(&self) -> u64 {
        self.1 + RESERVED
    }

    /// Free blocks that no lane holds.
    pub fn free(&self) -> u64 {
        self.0.free_map().count()
    }
}

impl Worker {
    /// Runs `f` with the lane.
    pub fn with<R>(&mut self, f: impl FnOnce(&Core, &mut LaneGuard<'_>, InodeRef<'_>) -> R) -> R {
        let mut guard = LaneGuard::dealt(&self.core, self.id, &self.busy, &mut self.scratch);
        f(&self.core, &mut guard, self.core.slot(FILE).unwrap())
    }

    /// Runs `f` with the lane as a call that others may refuse or reclaim from; `None`: it was refused.
    pub fn call<R>(&mut self, f: impl FnOnce(&Core, &mut LaneGuard<'_>) -> R) -> Option<R> {
        let mut guard = LaneGuard::called(&self.core, self.id, &self.busy, &mut self.scratch)?;
        Some(f(&self.core, &mut guard))
    }

    /// Writes whole pages of one value.
    pub fn write(&mut self, page: u64, pages: u64, value: u8) {
        let data = vec![value; (pages * PAGE) as usize];
        self.with(|core, guard, file| {
            match write(core, guard, file, At::Offset(page * PAGE), &data) {
                // Blocks may wait for a pin; then nothing has happened.
                Ok(_) | Err(Error::NoSpace) => {}
                Err(error) => panic!("{error:?}"),
            }
            // A fault to plant: blocks that this write replaced may be reused at once (D15).
            if heddle_arena::sync::plant::here().is_some() {
                crate::alloc::release_limbo(core.free_map(), guard.own);
            }
        });
    }

    /// Appends a page of one value.
    pub fn append(&mut self, value: u8) -> u64 {
        let data = vec![value; PAGE as usize];
        self.with(|core, guard, file| write(core, guard, file, At::End, &data).unwrap())
    }

    /// The values of pages up to the end of the file.
    pub fn read(&mut self, page: u64, pages: u64) -> Vec<u8> {
        let mut data = vec![0xee; (pages * PAGE) as usize];
        let len = self.with(|core, guard, file| read(core, guard, file, page * PAGE, &mut data).unwrap());
        values(&data[..len])
    }

    /// Gives the lane a table for handles, as a lease does.
    pub fn equip(&mut self) {
        crate::state::opens::equip(&self.core, self.id).unwrap();
    }

    /// Takes blocks.
    pub fn take(&mut self, count: u64) -> Vec<Extent> {
        let out = self.try_take(count);
        assert!(!out.is_empty(), "no space");
        out
    }

    /// As `take`; empty if there are too few.
    pub fn try_take(&mut self, count: u64) -> Vec<Extent> {
        let mut out = Vec::new();
        self.with(|core, guard, _| {
            crate::alloc::take_blocks(
                core.free_map(),
                &core.region,
                guard.own,
                count,
                Purpose::Data,
                &mut out,
            );
        });
        out
    }

    /// Writes this lane's number into blocks and reads it back: a second owner would have written its own.
    pub fn mark(&mut self, extents: &[Extent]) {
        let mine = [self.id as u8; 8];
        for block in extents.iter().flat_map(|e| (0..e.count).map(|n| e.block.plus(n))) {
            self.core.region.nt_write(block.pos(), &mine);
            let mut seen = [0; 8];
            self.core.region.read(block.pos(), &mut seen);
            assert_eq!(seen, mine, "{block:?} has two owners");
        }
    }

    /// Frees blocks through the limbo.
    pub fn give(&mut self, extents: Vec<Extent>) {
        self.with(|core, guard, _| {
            for extent in extents {
                crate::alloc::free_later(core.free_map(), &core.region, guard.own, extent);
            }
            // PERSIST: D15, the frees above come before the blocks' next use.
            core.region.fence();
            crate::alloc::release_limbo(core.free_map(), guard.own);
        });
    }

    /// Returns everything, as an ending thread does.
    pub fn leave(mut self) {
        self.with(|core, guard, _| {
            crate::log::chain::let_go_all(core, guard.own, guard.id);
            // PERSIST: D15, as in `Drop for Lease`.
            core.region.fence();
            crate::alloc::return_all(core.free_map(), guard.own);
        });
    }
}

/// One value for each page.
///
/// # Panics
/// If a page is of two values: half of a write.
pub fn values(data: &[u8]) -> Vec<u8> {
    let one = |page: &[u8]| {
        assert!(
            page.iter().all(|b| *b == page[0]),
            "half a page is {}, half {}",
            page[0],
            page[page.len() - 1]
        );
        page[0]
    };
    data.chunks(PAGE as usize).map(one).collect()
}
