//! Opening an image: superblock, checkpoint, node table, and recovery of fsynced nodes.

pub(crate) mod info;
pub(crate) mod lost;
pub(crate) mod mkfs;
pub(crate) mod repair;
pub(crate) mod survey;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::commit::CheckpointState;
use crate::checksum::inode_seed;
use crate::device::{Access, Device};
use crate::error::OpenError;
use crate::format::{BLOCK_BYTES, MAGIC, SUPERBLOCK_OFFSET_BYTES, Superblock, checkpoint_flag, feature};
use crate::ids::Nid;
use crate::image::Media;
use crate::inode::{Inode, ROOT};
use crate::mounted::F2fs;
use crate::mounted::guards::Guards;
use crate::mounted::open_files::OpenFiles;
use crate::mounted::range_lock::Ranges;
use crate::nat::Nat;
use crate::node::Nodes;
use crate::node_log::{CheckpointId, Found, LogState, NodeLog, Refused, mark};
use crate::pages::dirty_pages::Pages;
use crate::planted::{Breach, breaks};
use crate::recovery::fsynced::{Chain, Fsynced};
use crate::segments::room::SECTIONS_RESERVED;
use crate::segments::{LOGS, Segments};
use crate::space::{Counts, Space};
use crate::superblock::repair_mark;
use crate::superblock::{self, Geometry};
use crate::times::{StatTicks, now};
use crate::variant::Variant;
use heddle_vfs::{Error, FileKind};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
#[cfg(feature = "testkit")]
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Instant;

/// NVM for a node log.
pub struct LogRegion {
    /// The region, at least [`LOG_BYTES_MIN`](crate::LOG_BYTES_MIN) long.
    pub region: heddle_pmem::Region,
    /// Its contents.
    pub state: LogState,
    /// True: its records do not count.
    pub discard: bool,
}

/// The log given with an image.
enum Beside {
    Nothing,
    /// None, even if the image needs its node log.
    LogGivenUp,
    Log(LogRegion),
}

impl F2fs {
    /// Opens an image for reading.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path) -> Result<F2fs, OpenError> {
        F2fs::open_with(path, Access::Read, Variant::F2fs, Beside::Nothing).map(|(fs, ..)| fs)
    }

    /// Opens an image for reading and writing. Frees the inodes that were open without a name when it was
    /// last used, and recovers the fsyncs after its last checkpoint.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_for_writing(path: &Path) -> Result<F2fs, OpenError> {
        F2fs::open_as(path, Variant::F2fs)
    }

    /// The same, as a variant that needs no node log.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_as(path: &Path, variant: Variant) -> Result<F2fs, OpenError> {
        F2fs::open_system(path, variant, Beside::Nothing, &mut || Ok(()))
    }

    /// The same for an image with a node log: everything that only the log has is discarded. If the image is
    /// refused, it still needs its log.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_without_log(path: &Path, variant: Variant) -> Result<F2fs, OpenError> {
        F2fs::open_system(path, variant, Beside::LogGivenUp, &mut || Ok(()))
    }

    /// The same with a node log, to which fsyncs and log checkpoints write nodes. Its records of this image are
    /// applied first.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_with_log(path: &Path, variant: Variant, log: LogRegion) -> Result<F2fs, OpenError> {
        F2fs::open_with_log_in(path, variant, log, &mut || Ok(()))
    }

    /// The same. `make_room` is called once, when the image is open and recovered, before the first byte of a
    /// region in state [`LogState::Free`], or of one that is given up, is changed. The region is unchanged if the image is refused, or
    /// `make_room` fails.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_with_log_in(
        path: &Path,
        variant: Variant,
        log: LogRegion,
        make_room: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<F2fs, OpenError> {
        F2fs::open_system(path, variant, Beside::Log(log), make_room)
    }

    fn open_system(
        path: &Path,
        variant: Variant,
        beside: Beside,
        make_room: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<F2fs, OpenError> {
        let refused = |what: String| Err(OpenError::NodeLog { image: path.into(), what });
        match (variant.has_node_log(), &beside) {
            (true, Beside::Nothing | Beside::LogGivenUp) => {
                return refused(format!("{} needs one, in NVM", variant.name()));
            }
            (false, Beside::Log(_)) => return refused(format!("{} has none", variant.name())),
            _ => {}
        }
        let (mut fs, chain, found) = F2fs::open_with(path, Access::Write, variant, beside)?;
        if !found.is_empty() && !chain.0.is_empty() {
            return refused(
                "both it and the image have fsyncs of their own: the image was used without it. To lose the fsyncs that only the log \
                 has: heddle mount -o discard-nvm".into(),
            );
        }
        let damaged = |what: String| OpenError::Damaged { image: path.into(), what };
        fs.take_in_log(&found).map_err(|error| damaged(format!("its node log: {error}")))?;
        check_root(&fs.media).map_err(|what| damaged(format!("its node log: {what}")))?;
        let orphans: Vec<Nid> = fs.checkpoint_state().orphans.iter().copied().collect();
        for nid in orphans {
            // An inode with a record in the log has got a name, or was freed.
            if !found.has(nid) {
                let inode = check_nameless(&fs.media, nid).map_err(damaged)?;
                // An inode that cannot be read completely stays on the list. fsck.f2fs can free it; nothing
                // else is affected.
                if let Err(error) = fs.media.check_end(&inode) {
                    fs.orphans_left.push((nid.0, error.to_string()));
                    continue;
                }
                fs.media
                    .alone()
                    .and_then(|change| change.end(nid))
                    .map_err(|error| damaged(format!("inode {}, which has no name: {error}", nid.0)))?;
            }
            fs.checkpoint_state().orphans.remove(&nid);
        }
        if !found.is_empty() {
            if breaks(Breach::LogEndsFirst)
                && let Some(log) = &fs.media.nodes.log
            {
                log.end_records();
            }
            fs.write_log_heads().map_err(|error| damaged(error.to_string()))?;
            fs.fold(false).map_err(|error| damaged(format!("its node log: {error}")))?;
        }
        fs.roll_forward(&chain).map_err(|error| match error {
            Error::NoSpace => OpenError::Unsupported {
                image: path.into(),
                what: format!(
                    "{} files fsynced after its last checkpoint, and no space to recover them: add -o ro",
                    fs.recovered_inodes
                ),
            },
            Error::NotSupported(which) => OpenError::Unsupported {
                image: path.into(),
                what: format!("fsyncs after its last checkpoint, of {which}; or add -o ro"),
            },
            error => damaged(format!("the fsyncs after its last checkpoint: {error}")),
        })?;
        // From here on the image is not refused any more: discarded records may be overwritten.
        make_room().map_err(|what| OpenError::NodeLog { image: path.into(), what })?;
        let (device, is_marked) = (&fs.media.device, mark::of(&fs.superblock).is_some());
        // The records of a log are in the image by now, or discarded.
        let unmarked = || if is_marked { mark::write(device, None) } else { Ok(()) };
        let written =
            superblock::repair(device).and_then(|()| fs.write_log_heads()).and_then(|()| unmarked());
        written.map_err(|error| damaged(error.to_string()))?;
        mark::put(&mut fs.superblock, None);
        // Not before: a user may want the device to be told of nothing. A file is not told: writing to a hole takes longer.
        fs.set_discards(fs.media.device.is_block_device());
        Ok(fs)
    }

    fn write_log_heads(&self) -> heddle_vfs::Result<()> {
        self.media.nodes.log.as_ref().map_or(Ok(()), NodeLog::write_heads)
    }

    fn open_with(
        path: &Path,
        access: Access,
        variant: Variant,
        beside: Beside,
    ) -> Result<(F2fs, Chain, Found), OpenError> {
        let device = Device::open(path, access)?;
        if access != Access::Read {
            superblock::refuse_foreign(&device)?;
            repair::refuse_half_repaired(&device)?;
            repair_mark::forget_at_first_write(&device);
        }
        let (superblock, geometry) = superblock::read(&device)?;
        let mut checkpoint = Checkpoint::read(&device, &geometry)?;
        let space = match access {
            Access::Read => None,
            Access::Write | Access::Repair => Some(space(&device, &superblock, &geometry, &checkpoint)?),
        };
        let features = superblock.feature.get();
        let inode_seed = (features & feature::INODE_CHECKSUM != 0).then(|| inode_seed(&superblock.uuid));
        let (bitmap, changes) =
            (std::mem::take(&mut checkpoint.nat_bitmap), std::mem::take(&mut checkpoint.nat_changes));
        let nat = Nat::new(&geometry, bitmap, changes);
        let (log, found) = node_log(path, access, beside, &superblock, checkpoint.identity())?;
        let nodes = Nodes::new(nat, inode_seed, log);
        let chain = Chain::read(&device, &geometry, &checkpoint, &nodes);
        let mut fsynced = Fsynced::of(&chain, &device, &nodes.nat, features);
        let mut grown = Vec::new();
        if access == Access::Read {
            grown = chain.grown(&device, &nodes.nat);
            nodes.nat.change(std::mem::take(&mut fsynced.nodes));
        } else {
            fsynced.names.clear();
        }
        let media =
            Media { device, geometry, features, nodes, pages: Pages::new(), space, names: fsynced.names };
        if access == Access::Read {
            media.connect_fsynced(&chain, &grown)?;
        }
        let damaged = |what: String| OpenError::Damaged { image: path.into(), what };
        check_root(&media).map_err(damaged)?;
        let orphans = checkpoint.orphans.iter().copied().collect();
        let state = CheckpointState { checkpoint, orphans, since: Instant::now() };
        let ranges = variant.has_ranges().then(Ranges::new).transpose();
        let ranges = ranges.map_err(|_| OpenError::System {
            image: path.into(),
            what: "get the memory for locks of ranges of",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        let fs = F2fs {
            media,
            guards: Guards::new(),
            ranges,
            opened: OpenFiles::default(),
            stat_ticks: StatTicks::new(),
            checkpoint_state: Mutex::new(state),
            failed: AtomicBool::new(false),
            // Handles of an earlier mount must be invalid in this one.
            next_generation: AtomicU32::new(now().nanos() ^ now().secs() as u32),
            superblock,
            recovered_inodes: fsynced.inodes + found.fsynced_inodes(),
            orphans_left: Vec::new(),
            fsync_chain: Mutex::default(),
            sync_content: AtomicBool::new(false),
            sync_names: AtomicBool::new(false),
        };
        Ok((fs, chain, found))
    }

    /// Sets what is durable when a call returns (mount(8)'s `sync` and `dirsync`): with `content` everything,
    /// with `names` changes of names.
    pub fn set_sync(&self, content: bool, names: bool) {
        if breaks(Breach::SyncOptionForgotten) {
            return;
        }
        // ORDERING: Relaxed, set before the first call.
        self.sync_content.store(content, Relaxed);
        self.sync_names.store(names || content, Relaxed);
    }

    /// Sets whether each checkpoint tells the device which segments have become free. Block devices are told
    /// by default; the file of an image releases its space if this is set.
    pub fn set_discards(&self, discards: bool) {
        self.media.device.set_discards(discards);
    }

    /// Writes everything, so that the next mount has nothing to recover. Later calls still work, and need
    /// another unmount.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::Io`].
    pub fn unmount(&self) -> heddle_vfs::Result<()> {
        let is_clean = self.checkpoint_state().checkpoint.has(checkpoint_flag::UNMOUNTED);
        self.end(!is_clean)
    }

    /// The same for an image that was not served after all: only what has changed is written.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::Io`].
    pub fn give_up(&self) -> heddle_vfs::Result<()> {
        self.end(false)
    }

    /// Writes everything; if nothing has changed, too, if that is asked for.
    fn end(&self, writes_anyway: bool) -> heddle_vfs::Result<()> {
        // Checked first, because a call may have failed for that reason.
        self.media.device.check_size()?;
        self.not_failed()?;
        if self.media.space.is_some() && (self.is_changed() || self.is_logged() || writes_anyway) {
            self.fold(true)?;
        }
        self.media.nodes.log.as_ref().map_or(Ok(()), |log| log.unmark(&self.media.device))
    }

    /// Writes everything to the device, so that a node log has nothing more than the device.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::Io`].
    pub fn fold_now(&self) -> heddle_vfs::Result<()> {
        self.fold(false)
    }

    /// Makes a checkpoint if there was a change since the last one.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::Io`].
    pub fn checkpoint_if_changed(&self) -> heddle_vfs::Result<()> {
        self.not_failed()?;
        if self.is_changed() { self.checkpoint() } else { Ok(()) }
    }

    /// Returns true if the log has something that the device lacks.
    fn is_logged(&self) -> bool {
        self.media.nodes.log.as_ref().is_some_and(|log| !log.is_empty())
    }

    fn is_changed(&self) -> bool {
        // A reader may have nodes in memory that the device lacks (`recovery::reader`). It writes none.
        let Some(space) = &self.media.space else { return false };
        let freed = self.media.nodes.log.as_ref().is_some_and(|log| log.is_behind());
        space.since.nodes_ahead() > 0 || freed || self.media.nodes.changed() + self.media.pages.count() > 0
    }

    /// For each segment in use, in order: true if it holds nodes.
    #[cfg(feature = "testkit")]
    pub fn kinds_of_segments(&self) -> Vec<Option<bool>> {
        self.media.space.as_ref().map(|space| space.segments.kinds()).unwrap_or_default()
    }

    /// Number of changed nodes.
    #[cfg(feature = "testkit")]
    pub fn changed_nodes(&self) -> usize {
        self.media.nodes.changed()
    }

    /// The requests to the device so far.
    #[cfg(feature = "testkit")]
    pub fn traffic(&self) -> Vec<crate::device::Traffic> {
        self.media.device.traffic.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The list in which requests to the device are noted.
    #[cfg(feature = "testkit")]
    pub fn traffic_log(&self) -> std::sync::Arc<Mutex<Vec<crate::device::Traffic>>> {
        std::sync::Arc::clone(&self.media.device.traffic)
    }

    /// Sets faults of the device.
    #[cfg(feature = "testkit")]
    pub fn set_faults(&self, faults: impl FnOnce(&mut crate::device::Faults)) {
        faults(&mut self.media.device.faults.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Segments that cleaning left alone, because the owner of a block is unknown, with the reason.
    pub fn left_uncleaned(&self) -> Vec<(u32, String)> {
        let segments = self.media.space.as_ref().map(|space| space.segments.left_out());
        segments.into_iter().flatten().map(|(segno, why)| (segno.0, why)).collect()
    }

    /// Inodes without a name that the mount left alone, because they cannot be read completely, with the
    /// reason.
    pub fn orphans_left(&self) -> &[(u32, String)] {
        &self.orphans_left
    }

    /// Returns true if a call has failed half-way. Then no more changes are made.
    pub fn has_failed(&self) -> bool {
        self.not_failed().is_err()
    }
}

/// Checks that the root exists, before anything is recovered.
fn check_root(media: &Media) -> Result<(), String> {
    match media.inode(ROOT) {
        Ok(root) if root.kind == FileKind::Directory => Ok(()),
        Ok(_) => Err("the root is no directory".into()),
        Err(error) => Err(format!("the root directory: {error}")),
    }
}

/// Checks an inode of the checkpoint's orphan list: it must have no name. One that has a name would be lost
/// for its users.
pub(crate) fn check_nameless(media: &Media, nid: Nid) -> Result<Inode, String> {
    match media.inode(nid) {
        Ok(inode) if inode.block().links.get() == 0 => Ok(inode),
        Ok(inode) => Err(format!(
            "inode {} is listed as an orphan, but its link count is {}",
            nid.0,
            inode.block().links.get()
        )),
        Err(error) => Err(format!("inode {}, which has no name: {error}", nid.0)),
    }
}

/// The node log of an image with this checkpoint, if it is opened with one, and its records.
fn node_log(
    path: &Path,
    access: Access,
    beside: Beside,
    superblock: &Superblock,
    base: CheckpointId,
) -> Result<(Option<NodeLog>, Found), OpenError> {
    let refused = |why| match why {
        Refused::Log(what) => OpenError::NodeLog { image: path.into(), what },
        Refused::Image(what) => OpenError::Replaced { image: path.into(), what },
    };
    let mark = mark::of(superblock);
    match beside {
        Beside::Log(LogRegion { region, state, discard }) => {
            let region = (region, state);
            let opened = NodeLog::open(region, (superblock.uuid, base), mark, discard);
            opened.map(|(log, found)| (Some(log), found)).map_err(refused)
        }
        Beside::Nothing if access == Access::Write && mark.is_some() => {
            Err(OpenError::NeedsLog { image: path.into() })
        }
        Beside::Nothing | Beside::LogGivenUp => Ok((None, Found::default())),
    }
}

/// A writer's state, if this engine can write such an image.
fn space(
    device: &Device,
    superblock: &Superblock,
    geometry: &Geometry,
    checkpoint: &Checkpoint,
) -> Result<Space, OpenError> {
    let image = || device.path().to_owned();
    let unsupported =
        |what: &str| Err(OpenError::Unsupported { image: image(), what: format!("{what}: add -o ro") });
    if superblock.feature.get() & feature::QUOTA_INO != 0 {
        return unsupported("quota files, which it does not keep up to date");
    }
    if checkpoint.has(checkpoint_flag::FSCK | checkpoint_flag::ERROR) {
        return unsupported(
            "a note that a check is needed, which heddle fsck -y makes, and takes away; to look at it before",
        );
    }
    for (flag, what) in [
        (checkpoint_flag::DISABLED, "checkpoints that Linux was told not to make (checkpoint=disable)"),
        (checkpoint_flag::RESIZING, "a resize that was not finished"),
    ] {
        if checkpoint.has(flag) {
            return unsupported(what);
        }
    }
    let (sections, segments) =
        (geometry.main_segments / geometry.segments_per_section, geometry.segments_per_section);
    // Each log has a segment, some are kept, a call fills one, and at least one is for files.
    let least = (LOGS + SECTIONS_RESERVED + 2) as u32;
    if sections < least {
        return unsupported(&format!(
            "{sections} sections (of {segments} segments), where writing takes {least}: mkfs.f2fs -s makes them smaller"
        ));
    }
    let damaged = |what: String| OpenError::DamagedForWriting { image: image(), what };
    let segments = read_segments(device, geometry, checkpoint).map_err(damaged)?;
    match segments.leave_gaps(device) {
        Err(Error::NoSpace) => {
            return unsupported("logs that write into gaps, as Linux does where no segment is free");
        }
        done => done.map_err(|error| damaged(error.to_string()))?,
    }
    Ok(Space::new(segments, checkpoint.head.blocks_user.get(), Counts::of(&checkpoint.head)))
}

/// The main area as the checkpoint has it, if its tables and counts agree.
pub(crate) fn read_segments(
    device: &Device,
    geometry: &Geometry,
    checkpoint: &Checkpoint,
) -> Result<Segments, String> {
    if let Some(contradiction) = &checkpoint.contradiction {
        return Err(contradiction.clone());
    }
    let segments = Segments::read(device, geometry, checkpoint.logs(device, geometry)?)?;
    let (live, nodes) = (segments.live_nodes(), checkpoint.head.nodes_valid.get());
    if live < u64::from(nodes) {
        return Err(format!("its segments have {live} nodes, and its checkpoint counts {nodes}"));
    }
    Ok(segments)
}

/// Returns true if this file or device begins like an F2FS image. Returns false if it cannot be read.
pub fn is_f2fs(path: &Path) -> bool {
    // A pipe would wait for a writer.
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let Ok(file) = opened.map(File::from) else { return false };
    // Either copy is enough.
    [0, BLOCK_BYTES].into_iter().any(|block| {
        let mut word = [0; 4];
        let read = file.read_exact_at(&mut word, (block + SUPERBLOCK_OFFSET_BYTES) as u64);
        read.is_ok() && u32::from_le_bytes(word) == MAGIC
    })
}

#[cfg(test)]
mod tests;
