//! Opening an image: superblock, checkpoint, node table, and what was fsynced since.

use crate::checkpoint::Checkpoint;
use crate::checksum::inode_seed;
use crate::device::Device;
use crate::error::{OpenError, feature_names};
use crate::format::{BLOCK_BYTES, MAGIC, SUPERBLOCK_OFFSET_BYTES, Superblock, checkpoint_flag, feature};
use crate::fsynced::Fsynced;
use crate::inode::ROOT;
use crate::media::Media;
use crate::nat::Nat;
use crate::node::Nodes;
use crate::superblock::{self, Geometry};
use heddle_vfs::FileKind;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// An F2FS image, open for reading.
pub struct F2fs {
    pub(crate) media: Media,
    pub(crate) checkpoint: Checkpoint,
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
        let device = Device::open(path)?;
        let (superblock, geometry) = superblock::read(&device)?;
        let mut checkpoint = Checkpoint::read(&device, &geometry)?;
        let features = superblock.feature.get();
        let inode_seed = (features & feature::INODE_CHECKSUM != 0).then(|| inode_seed(&superblock.uuid));
        let (bitmap, changes) =
            (std::mem::take(&mut checkpoint.nat_bitmap), std::mem::take(&mut checkpoint.nat_changes));
        let mut nat = Nat::new(&geometry, bitmap, changes);
        let fsynced = Fsynced::read(&device, &geometry, &checkpoint, &nat, features);
        nat.change(fsynced.nodes);
        let nodes = Nodes::new(nat, inode_seed);
        let media = Media { device, geometry, features, nodes, names: fsynced.names };
        let damaged = |what: String| OpenError::Damaged { image: path.into(), what };
        match media.inode(ROOT) {
            Ok(root) if root.kind == FileKind::Directory => {}
            Ok(_) => return Err(damaged("the root is no directory".into())),
            Err(error) => return Err(damaged(format!("the root directory: {error}"))),
        }
        Ok(F2fs { media, checkpoint, superblock, fsynced_inodes: fsynced.inodes })
    }

    /// What it says of itself.
    pub fn info(&self) -> Info {
        let (head, features) = (&self.checkpoint.head, self.superblock.feature.get());
        let label = self.superblock.volume_name.iter().map(|unit| unit.get()).take_while(|unit| *unit != 0);
        Info {
            geometry: self.media.geometry.clone(),
            label: char::decode_utf16(label).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect(),
            uuid: self.superblock.uuid,
            features,
            feature_names: feature_names(features),
            checkpoint_version: head.version.get(),
            clean: self.checkpoint.has(checkpoint_flag::UNMOUNTED),
            needs_fsck: self.checkpoint.has(checkpoint_flag::FSCK | checkpoint_flag::ERROR),
            blocks_user: head.blocks_user.get(),
            blocks_valid: head.blocks_valid.get(),
            segments_free: head.segments_free.get(),
            nodes: head.nodes_valid.get(),
            inodes: head.inodes_valid.get(),
            orphans: self.checkpoint.orphans.len() as u64,
            fsynced_inodes: self.fsynced_inodes,
        }
    }
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
