//! Opening an image: superblock, checkpoint, node table, and what was fsynced since.

use crate::checkpoint::Checkpoint;
use crate::checksum::inode_seed;
use crate::commit::Ledger;
use crate::device::{Access, Device};
use crate::error::{OpenError, feature_names};
use crate::format::{BLOCK_BYTES, MAGIC, SUPERBLOCK_OFFSET_BYTES, Superblock, checkpoint_flag, feature};
use crate::fsynced::{Chain, Fsynced};
use crate::guard::Guards;
use crate::ids::Nid;
use crate::inode::ROOT;
use crate::make::now;
use crate::media::Media;
use crate::nat::Nat;
use crate::node::Nodes;
use crate::opened::OpenFiles;
use crate::pages::Pages;
use crate::ranges::Ranges;
use crate::segments::Segments;
use crate::space::{Counts, Space};
use crate::superblock::{self, Geometry};
use crate::variant::Variant;
use heddle_vfs::{Error, FileKind};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// An open F2FS image.
pub struct F2fs {
    pub(crate) media: Media,
    pub(crate) guards: Guards,
    /// If a file may have many writers.
    pub(crate) ranges: Option<Ranges>,
    pub(crate) opened: OpenFiles,
    pub(crate) ledger: Mutex<Ledger>,
    /// See [`F2fs::has_failed`].
    pub(crate) failed: AtomicBool,
    /// Whose nodes go into the log next, see `fsync`.
    pub(crate) chain: Mutex<()>,
    generation: AtomicU32,
    superblock: Superblock,
    fsynced_inodes: u64,
}

/// What an image says of itself.
#[derive(Clone, Debug)]
pub struct Info {
    /// Where everything is.
    pub geometry: Geometry,
    /// Its name, as it was made.
    pub label: String,
    /// Its identity.
    pub uuid: [u8; 16],
    /// Bits of [`feature`].
    pub features: u32,
    /// The same in words.
    pub feature_names: String,
    /// Version of the checkpoint that counts.
    pub checkpoint_version: u64,
    /// Written by an unmount.
    pub clean: bool,
    /// The kernel has asked for fsck, or met an error.
    pub needs_fsck: bool,
    /// Blocks for users.
    pub blocks_user: u64,
    /// Blocks in use.
    pub blocks_valid: u64,
    /// Segments without anything in them.
    pub segments_free: u32,
    /// Nodes in use.
    pub nodes: u32,
    /// Inodes in use.
    pub inodes: u32,
    /// Inodes without a name that were open.
    pub orphans: u64,
    /// Inodes of which something was fsynced after the checkpoint.
    pub fsynced_inodes: u64,
}

impl F2fs {
    /// Opens an image for reading.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path) -> Result<F2fs, OpenError> {
        F2fs::open_with(path, Access::Read, Variant::F2fs).map(|(fs, _)| fs)
    }

    /// Opens an image for reading and writing, ends the inodes that were open without a name when it was last used, and takes in what was
    /// fsynced after its last checkpoint.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_for_writing(path: &Path) -> Result<F2fs, OpenError> {
        F2fs::open_as(path, Variant::F2fs)
    }

    /// The same, as one of the paper's systems.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_as(path: &Path, variant: Variant) -> Result<F2fs, OpenError> {
        let (fs, chain) = F2fs::open_with(path, Access::Write, variant)?;
        let damaged = |what: String| OpenError::Damaged { image: path.into(), what };
        let orphans: Vec<Nid> = fs.ledger().orphans.iter().copied().collect();
        for nid in orphans {
            fs.media
                .end(nid)
                .map_err(|error| damaged(format!("inode {}, which has no name: {error}", nid.0)))?;
            fs.ledger().orphans.remove(&nid);
        }
        fs.roll_forward(&chain).map_err(|error| match error {
            Error::NoSpace => OpenError::Unsupported {
                image: path.into(),
                what: format!(
                    "{} files that were fsynced after its last checkpoint, and no space to take them in: add -o ro",
                    fs.fsynced_inodes
                ),
            },
            error => damaged(format!("what was fsynced after its last checkpoint: {error}")),
        })?;
        Ok(fs)
    }

    fn open_with(path: &Path, access: Access, variant: Variant) -> Result<(F2fs, Chain), OpenError> {
        let device = Device::open(path, access)?;
        let (superblock, geometry) = superblock::read(&device)?;
        let mut checkpoint = Checkpoint::read(&device, &geometry)?;
        let space = match access {
            Access::Read => None,
            Access::Write => Some(space(&device, &superblock, &geometry, &checkpoint)?),
        };
        let features = superblock.feature.get();
        let inode_seed = (features & feature::INODE_CHECKSUM != 0).then(|| inode_seed(&superblock.uuid));
        let (bitmap, changes) =
            (std::mem::take(&mut checkpoint.nat_bitmap), std::mem::take(&mut checkpoint.nat_changes));
        let nat = Nat::new(&geometry, bitmap, changes);
        let nodes = Nodes::new(nat, inode_seed);
        let chain = Chain::read(&device, &geometry, &checkpoint, &nodes);
        let mut fsynced = Fsynced::of(&chain, &device, &nodes.nat, features);
        if access == Access::Read {
            nodes.nat.change(std::mem::take(&mut fsynced.nodes));
        } else {
            fsynced.names.clear();
        }
        let media =
            Media { device, geometry, features, nodes, pages: Pages::new(), space, names: fsynced.names };
        let damaged = |what: String| OpenError::Damaged { image: path.into(), what };
        match media.inode(ROOT) {
            Ok(root) if root.kind == FileKind::Directory => {}
            Ok(_) => return Err(damaged("the root is no directory".into())),
            Err(error) => return Err(damaged(format!("the root directory: {error}"))),
        }
        let orphans = checkpoint.orphans.iter().copied().collect();
        let ledger = Ledger { checkpoint, orphans, since: Instant::now() };
        let ranges = (variant == Variant::RangeLock).then(Ranges::new).transpose();
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
            ledger: Mutex::new(ledger),
            failed: AtomicBool::new(false),
            // Handles of an earlier mount are to mean nothing in this one.
            generation: AtomicU32::new(now().nanos() ^ now().secs() as u32),
            superblock,
            fsynced_inodes: fsynced.inodes,
            chain: Mutex::default(),
        };
        Ok((fs, chain))
    }

    /// Whether each checkpoint tells the device which segments have come to hold nothing. So it is for block devices; an image's file gives
    /// their space back if told so here.
    pub fn set_discards(&self, discards: bool) {
        self.media.device.set_discards(discards);
    }

    /// Writes everything down, so that the image needs nothing when it is next used. What is called afterwards works, and needs
    /// another one.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::Io`].
    pub fn unmount(&self) -> heddle_vfs::Result<()> {
        self.not_failed()?;
        let clean = self.ledger().checkpoint.has(checkpoint_flag::UNMOUNTED);
        if self.media.space.is_some() && (self.is_changed() || !clean) {
            self.checkpoint(true)
        } else {
            Ok(())
        }
    }

    /// Makes a checkpoint if anything was changed since the last one.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::Io`].
    pub fn checkpoint_if_changed(&self) -> heddle_vfs::Result<()> {
        self.not_failed()?;
        if self.is_changed() { self.checkpoint(false) } else { Ok(()) }
    }

    fn is_changed(&self) -> bool {
        let ahead = self.media.space.as_ref().is_some_and(|space| space.since.is_ahead());
        ahead || self.media.nodes.changed() + self.media.pages.count() > 0
    }

    /// What the device was given so far.
    #[cfg(feature = "testkit")]
    pub fn traffic(&self) -> Vec<crate::device::Traffic> {
        self.media.device.traffic.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has the device fail.
    #[cfg(feature = "testkit")]
    pub fn set_faults(&self, faults: impl FnOnce(&mut crate::device::Faults)) {
        faults(&mut self.media.device.faults.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Has a call failed half-way? Then nothing is changed any more.
    pub fn has_failed(&self) -> bool {
        self.not_failed().is_err()
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Generation of a new inode.
    pub(crate) fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Relaxed) // ORDERING: Relaxed, only different from others.
    }

    /// What it says of itself.
    pub fn info(&self) -> Info {
        let (ledger, features) = (self.ledger(), self.superblock.feature.get());
        let head = &ledger.checkpoint.head;
        let label = self.superblock.volume_name.iter().map(|unit| unit.get()).take_while(|unit| *unit != 0);
        Info {
            geometry: self.media.geometry.clone(),
            label: char::decode_utf16(label).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect(),
            uuid: self.superblock.uuid,
            features,
            feature_names: feature_names(features),
            checkpoint_version: head.version.get(),
            clean: ledger.checkpoint.has(checkpoint_flag::UNMOUNTED),
            needs_fsck: ledger.checkpoint.has(checkpoint_flag::FSCK | checkpoint_flag::ERROR),
            blocks_user: head.blocks_user.get(),
            blocks_valid: head.blocks_valid.get(),
            segments_free: head.segments_free.get(),
            nodes: head.nodes_valid.get(),
            inodes: head.inodes_valid.get(),
            orphans: ledger.orphans.len() as u64,
            fsynced_inodes: self.fsynced_inodes,
        }
    }
}

/// What a writer needs, if this engine can write an image like this.
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
        return unsupported("a note that fsck.f2fs is needed, which it does not take away");
    }
    let damaged = |what: String| OpenError::Damaged { image: image(), what };
    let logs = checkpoint.logs(device, geometry).map_err(damaged)?;
    let segments = Segments::read(device, geometry, logs).map_err(damaged)?;
    Ok(Space::new(segments, checkpoint.head.blocks_user.get(), Counts::of(&checkpoint.head)))
}

/// Does this file or device begin as an F2FS image does? False also where it cannot be read.
pub fn is_f2fs(path: &Path) -> bool {
    // A pipe would wait for who writes into it.
    let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let Ok(file) = opened.map(File::from) else { return false };
    // Either copy will do.
    [0, BLOCK_BYTES].into_iter().any(|block| {
        let mut word = [0; 4];
        let read = file.read_exact_at(&mut word, (block + SUPERBLOCK_OFFSET_BYTES) as u64);
        read.is_ok() && u32::from_le_bytes(word) == MAGIC
    })
}
