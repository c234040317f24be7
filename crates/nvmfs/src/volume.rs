//! Images: making, mounting and unmounting them.

use crate::clock;
use crate::format::inode::{CHUNK_INODES, InodeBase};
use crate::format::layout::{INODE_DIRECTORY, Layout, REGION_BYTES_MIN, inode_pos};
use crate::format::pointer::{self, PointerLocation};
use crate::format::superblock::{
    self, Copies, FoundSuperblock, MAGIC, SUPERBLOCK_BYTES, Superblock, VERSION,
};
use crate::fs::NvmFs;
use crate::ids::{BlockNo, InodeId};
use crate::names::life;
use crate::planted::{Breach, Bug, breaks, fence_unless, planted};
#[cfg(not(loom))]
use crate::process::boot_id;
use crate::region::Region;
use crate::state::core::{Core, Identity, Parts};
use crate::state::inode::InodeRef;
use crate::state::lease::{self, LaneGuard};
use crate::upkeep::recovery::{self, Progress, Report};
use crate::upkeep::settle;
use crate::upkeep::settle::HOOKS;
use crate::variant::Variant;
use heddle_arena::Arena;
use heddle_pmem::{BLOCK_BYTES, Pos};
use heddle_range_lock::{Geometry, Mode};
use heddle_vfs::{Error, FileKind, Ino, Time};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

#[cfg(all(test, not(any(loom, shuttle))))]
pub mod bench;
mod error;

pub use error::VolumeError;

type Result<T> = std::result::Result<T, VolumeError>;

/// The behaviour of the papers' locks, and the limit for volatile memory.
#[derive(Clone)]
pub struct MountOptions<'a> {
    /// The variant; `None`: as the image was made.
    pub variant: Option<Variant>,
    /// Makes a read-only mount.
    pub read_only: bool,
    /// Spin as in the papers, or sleep.
    pub lock_mode: Mode,
    /// Bytes of a segment of the papers' range locks.
    pub segment_bytes: u64,
    /// The shape of their locks; `None`: segments as above, levels as in the papers, files as large as the
    /// variant allows.
    pub geometry: Option<Geometry>,
    /// Called with the time that each call waited for its range in the papers' variants, on the call's
    /// thread: for measurements.
    pub on_lock: Option<fn(std::time::Duration)>,
    /// Most volatile memory, in bytes (address space; untouched pages cost nothing).
    pub arena_bytes: usize,
    /// Called with the progress of recovery.
    pub progress: Option<Progress<'a>>,
}

impl Default for MountOptions<'_> {
    fn default() -> Self {
        MountOptions {
            variant: None,
            read_only: false,
            lock_mode: Mode::Fair,
            segment_bytes: BLOCK_BYTES as u64,
            geometry: None,
            on_lock: None,
            arena_bytes: 64 << 30,
            progress: None,
        }
    }
}

/// A mounted image.
pub struct Volume {
    fs: NvmFs,
    superblock: Superblock,
    was_clean: bool,
    /// The result of recovery.
    pub report: Report,
}

/// In a model there is only one boot.
#[cfg(loom)]
fn boot_id() -> [u8; 16] {
    [0; 16]
}

/// # Errors
/// [`VolumeError::Foreign`].
fn refuse_foreign(region: &Region) -> Result<()> {
    superblock::made_later(region.len_bytes(), &|at, into| region.read(Pos(at), into))
        .map_or(Ok(()), |(what, at)| Err(VolumeError::Foreign { path: place(region), what, at }))
}

fn place(region: &Region) -> PathBuf {
    region.path().map_or_else(|| PathBuf::from("(memory)"), Path::to_path_buf)
}

/// An identity that no other image has.
pub fn new_uuid() -> [u8; 16] {
    let mut bytes = [0; 16];
    if cfg!(shuttle) {
        // One seed gives one run.
        return bytes;
    }
    let random = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    if random.is_err() {
        // There is no random source: time and process differ between images made on one machine.
        let now = clock::exact().0 as u64;
        bytes[..8].copy_from_slice(&now.to_le_bytes());
        bytes[8..].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
    }
    bytes
}

/// Makes an empty file system on a region, and overwrites its content.
///
/// # Errors
/// [`VolumeError::TooSmall`].
pub fn format(region: &Region, variant: Variant) -> Result<()> {
    let have = region.len_bytes();
    if have < REGION_BYTES_MIN {
        return Err(VolumeError::TooSmall { path: place(region), have, min: REGION_BYTES_MIN });
    }
    let layout = Layout::new(have / BLOCK_BYTES as u64);
    let now = clock::exact();
    let uuid = new_uuid();
    let superblock = Superblock {
        magic: MAGIC,
        version: U32::new(VERSION),
        uuid,
        sequence: U64::new(1),
        blocks_total: U64::new(layout.blocks_total),
        inode_dir_block: U64::new(layout.inode_dir.0),
        inode_dir_pointers: U64::new(layout.chunks_max),
        data_block: U64::new(layout.data.0),
        created_ns: U64::new(now.0 as u64),
        variant: U32::new(variant.raw()),
        clean: U32::new(1),
        seed: U32::new(crc32c::crc32c(&uuid)),
        ..zerocopy::FromZeros::new_zeroed()
    };
    // The old superblocks are cleared first, also those of a smaller image: then an interrupted `format`
    // leaves no valid image.
    let older = read_copies(region.len_bytes(), &|at, into| region.read(at, into));
    for block in [BlockNo(0), BlockNo(older.second_block), layout.last()] {
        region.nt_zero(block.pos(), BLOCK_BYTES as u64);
    }
    // PERSIST: as above.
    region.fence();
    region.nt_zero(layout.inode_dir.pos(), (layout.data.0 - layout.inode_dir.0) * BLOCK_BYTES as u64);
    region.nt_zero(layout.data.pos(), BLOCK_BYTES as u64);
    let seed = superblock.seed();
    let root = InodeBase {
        id: InodeId { ino: Ino::ROOT, generation: 1 },
        kind: FileKind::Directory,
        perm: 0o755,
        // SAFETY: reads an id, cannot fail.
        uid: unsafe { libc::geteuid() },
        // SAFETY: as above.
        gid: unsafe { libc::getegid() },
        rdev: 0,
        crtime: now,
    };
    region.nt_line(inode_pos(layout.data, Ino::ROOT.0), &root.encode(seed));
    let chunk = pointer::encode(seed, INODE_DIRECTORY, PointerLocation::InodeChunk(0), layout.data);
    region.store_u64(layout.chunk_pointer(0), chunk);
    // PERSIST: the file system is durable before the superblocks that describe it.
    region.fence();
    write_superblock(region, &layout, superblock)
}

/// Refuses an image of which a repair was stopped half-way: its undo file is to be used first.
fn refuse_half_repaired(region: &Region) -> Result<()> {
    let copies = read_copies(region.len_bytes(), &|at, into| region.read(at, into));
    let path = place(region);
    copies.half_repaired().map_or(Ok(()), |repair| {
        Err(VolumeError::HalfRepaired { way: heddle_undo::way_back(&path, repair).0, path })
    })
}

/// Gives an image that is not mounted another identity.
///
/// # Errors
/// Those of [`inspect`]; [`VolumeError::WornOut`]; [`VolumeError::HalfRepaired`]; [`VolumeError::Region`] if it may not be durable.
pub fn set_uuid(region: &Region, uuid: [u8; 16]) -> Result<()> {
    let superblock = read_superblock(region)?;
    if !sane(&superblock) {
        return Err(VolumeError::SuperblockDamaged { path: place(region) });
    }
    refuse_foreign(region)?;
    refuse_half_repaired(region)?;
    let next = superblock.next(0).ok_or_else(|| VolumeError::WornOut { path: place(region) })?;
    let layout = Layout::new(next.blocks_total.get());
    write_superblock(region, &layout, Superblock { uuid, ..next })
}

/// # Errors
/// [`VolumeError::Region`] if it may not be durable.
fn write_superblock(region: &Region, layout: &Layout, superblock: Superblock) -> Result<()> {
    let sealed = superblock.sealed();
    let copies = read_copies(region.len_bytes(), &|at, into| region.read(at, into));
    let mut places = [BlockNo(0), layout.last()];
    // A power cut may have torn the second copy, or left it old. The copy that counts is written last.
    if copies.first_counts() {
        places.reverse();
    }
    for block in places {
        region.nt_write(block.pos(), sealed.as_bytes());
        // PERSIST: one copy is whole before the copy that counts is changed.
        fence_unless(Bug::SuperblocksTogether, region);
    }
    if planted(Bug::SuperblocksTogether) {
        // PERSIST: too late: part of a planted bug.
        region.fence();
    }
    region.failed().map_or(Ok(()), |error| Err(error.into()))
}

/// The contents of an image's superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageInfo {
    /// Version of the media format.
    pub version: u32,
    /// Its identity.
    pub uuid: [u8; 16],
    /// The variant that it was made as.
    pub variant: Variant,
    /// Size of the file system in bytes.
    pub bytes: u64,
    /// Times it was mounted for writing.
    pub epoch: u64,
    /// True if it was unmounted cleanly.
    pub clean: bool,
    /// True if a repair was stopped half-way.
    pub is_half_repaired: bool,
    /// Time of creation.
    pub made: Time,
    /// Time of the last mount, if any.
    pub mounted: Option<Time>,
}

/// Reads the superblock of an image, which may be mounted. The image has `len_bytes`; `read` fills a buffer
/// from a position.
///
/// # Errors
/// [`VolumeError::NotAnImage`], [`VolumeError::SuperblockDamaged`], [`VolumeError::OtherVersion`], [`VolumeError::Truncated`].
pub fn inspect(path: &Path, len_bytes: u64, read: &dyn Fn(Pos, &mut [u8])) -> Result<ImageInfo> {
    let sb = newest_superblock(path.to_path_buf(), len_bytes, read)?;
    let is_half_repaired = read_copies(len_bytes, read).half_repaired().is_some();
    let variant = Variant::from_raw(sb.variant.get()).filter(|_| sane(&sb));
    let Some(variant) = variant else {
        return Err(VolumeError::SuperblockDamaged { path: path.to_path_buf() });
    };
    Ok(ImageInfo {
        version: sb.version.get(),
        uuid: sb.uuid,
        variant,
        bytes: sb.blocks_total.get() * BLOCK_BYTES as u64,
        epoch: sb.epoch.get(),
        clean: sb.clean.get() == 1 && !is_half_repaired,
        is_half_repaired,
        made: Time(sb.created_ns.get() as i64),
        mounted: Some(Time(sb.mounted_ns.get() as i64)).filter(|at| at.0 != 0),
    })
}

pub(crate) fn read_superblock(region: &Region) -> Result<Superblock> {
    newest_superblock(place(region), region.len_bytes(), &|at, into| region.read(at, into))
}

/// Size in bytes of the image inside a file: a mount or a repair stores to no byte beyond. `None`: there is
/// no image.
pub fn size_in_use(len_bytes: u64, read: &dyn Fn(Pos, &mut [u8])) -> Option<u64> {
    let bytes = read_copies(len_bytes, read).blocks()?.checked_mul(BLOCK_BYTES as u64)?;
    (bytes <= len_bytes).then_some(bytes)
}

fn read_copies(len_bytes: u64, read: &dyn Fn(Pos, &mut [u8])) -> Copies {
    Copies::read(len_bytes / BLOCK_BYTES as u64, &|block| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        read(BlockNo(block).pos(), &mut bytes);
        bytes
    })
}

/// The newer of the valid copies.
fn newest_superblock(path: PathBuf, len_bytes: u64, read: &dyn Fn(Pos, &mut [u8])) -> Result<Superblock> {
    let copies = read_copies(len_bytes, read);
    if let Some(sb) = copies.newest() {
        let (want, have) = (sb.blocks_total.get().saturating_mul(BLOCK_BYTES as u64), len_bytes);
        return if want > have && !breaks(Breach::ShortImageTaken) {
            Err(VolumeError::Truncated { path, want, have })
        } else {
            Ok(sb)
        };
    }
    for copy in [copies.first, copies.second] {
        match copy {
            FoundSuperblock::OtherVersion(found) => {
                return Err(VolumeError::OtherVersion { path, found });
            }
            FoundSuperblock::Damaged => return Err(VolumeError::SuperblockDamaged { path }),
            _ => {}
        }
    }
    let what = heddle_signatures::detect(len_bytes, &|at, into| read(Pos(at), into));
    Err(VolumeError::NotAnImage { path, what })
}

/// Returns true if the superblock is consistent. Its checksum is correct; this guards against a program that
/// wrote inconsistent values.
fn sane(superblock: &Superblock) -> bool {
    let layout = Layout::new(superblock.blocks_total.get());
    superblock.blocks_total.get() >= REGION_BYTES_MIN / BLOCK_BYTES as u64
        && superblock.blocks_total.get() < 1 << BlockNo::BITS
        && superblock.inode_dir_block.get() == layout.inode_dir.0
        && superblock.inode_dir_pointers.get() == layout.chunks_max
        && superblock.data_block.get() == layout.data.0
}

fn arena(bytes: usize) -> std::result::Result<Arena, heddle_arena::MapError> {
    let mut want = bytes;
    loop {
        match Arena::shared(want) {
            Err(_) if want > 256 << 20 => want /= 2,
            other => return other,
        }
    }
}

/// Mounts a region: reads it, recovers, and starts using it.
///
/// # Errors
/// One variant of [`VolumeError`] for each cause. The region is unchanged then, with one exception:
/// the image is too full for the record that a rename owed a directory.
pub fn mount(region: Region, options: &MountOptions<'_>) -> Result<Volume> {
    let path = place(&region);
    let mut superblock = read_superblock(&region)?;
    let made = Variant::from_raw(superblock.variant.get()).filter(|_| sane(&superblock));
    let Some(made) = made else { return Err(VolumeError::SuperblockDamaged { path }) };
    let variant = options.variant.unwrap_or(made);
    if variant.log() != made.log() {
        return Err(VolumeError::WrongVariant { path, asked: variant.name(), made: made.name() });
    }
    let region_bytes = superblock.blocks_total.get() * BLOCK_BYTES as u64;
    let geometry = options.geometry.clone().unwrap_or_else(|| Geometry {
        segment_bytes: options.segment_bytes,
        file_bytes_max: if variant.locks_by_array() { region_bytes } else { heddle_vfs::OFFSET_MAX_BYTES },
        ..Geometry::default()
    });
    let locks = match variant.lock().map(|kind| heddle_range_lock::make(kind, options.lock_mode, &geometry)) {
        None => None,
        Some(Ok(lock)) => Some(lock),
        Some(Err(error)) => return Err(VolumeError::Lock { path, why: error.to_string() }),
    };
    let arena = arena(options.arena_bytes)
        .map_err(|e| VolumeError::Memory { path: path.clone(), why: e.to_string() })?;
    let read_only = options.read_only || region.is_read_only();
    if !read_only {
        refuse_foreign(&region)?;
        refuse_half_repaired(&region)?;
    }
    superblock = match superblock.mounted() {
        Some(mounted) => mounted,
        // The count of a read-only mount stays in memory.
        None if read_only => superblock,
        None => return Err(VolumeError::WornOut { path }),
    };
    let was_clean = superblock.clean.get() == 1;
    superblock.clean = U32::new(0);
    superblock.mounted_ns = U64::new(clock::exact().0 as u64);
    let identity = Identity::of(&superblock, boot_id());
    let parts = Parts {
        region,
        arena: Arc::new(arena),
        variant,
        locks,
        on_lock: options.on_lock,
        hooks: HOOKS,
        read_only,
    };
    let recovery = |source: Error| VolumeError::Recovery { path: path.clone(), source };
    let core = Arc::new(Core::new(parts, identity, superblock.blocks_total.get()).map_err(recovery)?);
    let judged = recovery::judge(&core, options.progress.unwrap_or(&|_, _, _| {})).map_err(recovery)?;
    if !read_only {
        // PERSIST: the epoch is durable before anything is written in it (docs/protocol.md D4c).
        write_superblock(&core.region, &core.layout, superblock)?;
    }
    let report = judged.settle(&core).map_err(recovery)?;
    Ok(Volume { fs: NvmFs { core }, superblock, was_clean, report })
}

impl Volume {
    /// A volume whose state was taken over from a dead daemon's clients.
    pub(crate) fn adopted(core: Core, superblock: Superblock) -> Volume {
        Volume { fs: NvmFs { core: Arc::new(core) }, superblock, was_clean: false, report: Report::default() }
    }

    /// The file system. Handles and clones may exist longer than the volume, but must not be used then.
    pub fn fs(&self) -> NvmFs {
        self.fs.clone()
    }

    /// The variant that it is mounted as.
    pub fn variant(&self) -> Variant {
        self.fs.core.variant
    }

    /// Logs living records anew as early as on a full image, in all processes: for rigs, whose workloads are
    /// short.
    pub fn keep_logs_short(&self) {
        // ORDERING: Relaxed, an estimate is compared with it.
        self.fs.core.root().short_logs.store(1, Relaxed);
    }

    /// Memory, in bytes, of its volatile state: indexes, tables of names, free map.
    pub fn memory_bytes(&self) -> u64 {
        self.fs.core.arena.used_bytes()
    }

    /// Returns true if it was unmounted cleanly before.
    pub fn was_clean(&self) -> bool {
        self.was_clean
    }

    /// Returns the damage found since the mount, if any; nothing is changed after that.
    pub fn damage_found(&self) -> Option<String> {
        self.fs.core.damage_found()
    }

    /// As [`Volume::close`], without a report of errors.
    pub fn unmount(self) {
        let _ = self.close();
    }

    /// Unmounts: frees inodes without a name, even if they are open, and marks the image clean.
    ///
    /// # Errors
    /// [`VolumeError::Region`]: some data may not have reached the media; the image is not marked
    /// clean. [`VolumeError::NotClean`]: nothing is lost, but the next mount recovers.
    pub fn close(self) -> Result<()> {
        self.close_with(&|_| {})
    }

    /// As [`Volume::close`]; calls `lost` with an error before another process can open the image.
    ///
    /// # Errors
    /// Those of [`Volume::close`].
    pub fn close_with(self, lost: &dyn Fn(&VolumeError)) -> Result<()> {
        let core = &self.fs.core;
        let alone = core.root().attached.load(SeqCst) == 0;
        // Entered now, because no call can be entered after the end.
        let last = core.writable().ok().and_then(|()| lease::enter(core).ok());
        let others = if alone { Ok(()) } else { settle::end(core, last.as_ref().map(|guard| guard.id)) };
        let quiet = others.is_ok();
        if let Some(mut guard) = last.filter(|_| quiet) {
            self.end_nameless(&mut guard);
        }
        lease::leave(core);
        let in_order = match others {
            Err(inside) => Err(inside.to_string()),
            Ok(()) if self.nameless().next().is_some() => {
                Err("files without a name could not be freed, for no lane was left to this process"
                    .to_owned())
            }
            Ok(()) => Ok(()),
        };
        // Damage, and media that failed, are reported as such.
        let writable = core.writable().is_ok();
        if writable && in_order.is_ok() {
            self.mark_clean();
        }
        let ended = match (core.region.failed(), in_order) {
            (Some(error), _) => Err(error.into()),
            (None, Err(why)) if writable => Err(VolumeError::NotClean { path: place(&core.region), why }),
            _ => Ok(()),
        };
        if let Err(error) = &ended {
            lost(error);
        }
        if quiet && !alone {
            // Processes that are still attached share the file's lock, and do not need it any more.
            core.region.unlock();
        }
        ended
    }

    fn mark_clean(&self) {
        let core = &self.fs.core;
        let Some(mut superblock) = self.superblock.next(0) else { return };
        superblock.clean = U32::new(1);
        // The caller asks the region whether it failed.
        let _ = write_superblock(&core.region, &core.layout, superblock);
    }

    /// Living inodes without a name: they are open.
    fn nameless(&self) -> impl Iterator<Item = InodeRef<'_>> {
        let core = &self.fs.core;
        let chunks = core.root().chunk_count.load(SeqCst).min(core.layout.chunks_max);
        let living =
            (1..chunks * CHUNK_INODES).filter_map(|ino| core.slot(Ino(ino))).filter(|i| i.volatile.lives());
        living.filter(|inode| inode.volatile.nlink.load(SeqCst) == 0)
    }

    /// Frees them: a cleanly unmounted image has none, and fsck would take one for a lost file. No other call
    /// is under way or can begin.
    fn end_nameless(&self, guard: &mut LaneGuard<'_>) {
        self.nameless().for_each(|inode| life::end(&self.fs.core, guard, inode));
    }

    /// Returns state taken over from a dead daemon, which stays dead: its clients go on, and the next daemon
    /// takes the state over.
    pub fn relinquish(self) {
        lease::leave(&self.fs.core);
    }

    /// Leaves the image as a power cut would: nothing is written any more.
    pub fn abandon(self) {
        lease::leave(&self.fs.core);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
