//! A description of an image.

use crate::error::feature_names;
use crate::format::checkpoint_flag;
use crate::mounted::F2fs;
use crate::node_log::mark;
use crate::superblock::Geometry;
use crate::superblock::repair_mark::{self, RepairMark};

/// A description of an image.
#[derive(Clone, Debug)]
pub struct Info {
    /// The positions of the areas.
    pub geometry: Geometry,
    /// Its label.
    pub label: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bits of [`feature`](crate::format::feature).
    pub features: u32,
    /// Their names.
    pub feature_names: String,
    /// Version of the valid checkpoint.
    pub checkpoint_version: u64,
    /// True: an unmount wrote it.
    pub clean: bool,
    /// True: the kernel has requested fsck, or met an error.
    pub needs_fsck: bool,
    /// Blocks for users.
    pub blocks_user: u64,
    /// Blocks in use.
    pub blocks_valid: u64,
    /// Impossible counts: such an image is only read.
    pub contradiction: Option<String>,
    /// Free segments.
    pub segments_free: u32,
    /// Nodes in use.
    pub nodes: u32,
    /// Inodes in use.
    pub inodes: u32,
    /// Inodes without a name that were open.
    pub orphans: u64,
    /// Inodes that were fsynced after the last checkpoint, and that this mount recovered.
    pub fsynced_inodes: u64,
    /// True: a node log may be newer.
    pub is_logged: bool,
    /// True: a repair was stopped half-way.
    pub is_half_repaired: bool,
}

impl F2fs {
    /// The image's description.
    pub fn info(&self) -> Info {
        let (state, features) = (self.checkpoint_state(), self.superblock.feature.get());
        let head = &state.checkpoint.head;
        let label = self.superblock.volume_name.iter().map(|unit| unit.get()).take_while(|unit| *unit != 0);
        Info {
            geometry: self.media.geometry.clone(),
            label: char::decode_utf16(label).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect(),
            uuid: self.superblock.uuid,
            features,
            feature_names: feature_names(features),
            checkpoint_version: head.version.get(),
            clean: state.checkpoint.has(checkpoint_flag::UNMOUNTED),
            needs_fsck: state.checkpoint.has(checkpoint_flag::FSCK | checkpoint_flag::ERROR),
            blocks_user: head.blocks_user.get(),
            blocks_valid: head.blocks_valid.get(),
            contradiction: state.checkpoint.contradiction.clone(),
            segments_free: head.segments_free.get(),
            nodes: head.nodes_valid.get(),
            inodes: head.inodes_valid.get(),
            orphans: state.orphans.len() as u64,
            fsynced_inodes: self.recovered_inodes,
            is_logged: mark::of(&self.superblock).is_some(),
            is_half_repaired: repair_mark::read(&self.media.device).is_some_and(RepairMark::is_half),
        }
    }
}
