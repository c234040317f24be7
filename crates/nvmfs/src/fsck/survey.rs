//! A summary of an image from one reading: for `info`, and for tests that ask for the owner of a block.

use super::FsckError;
use super::claims::Use;
use super::image;
use super::log::Figures;
use super::media::Media;
use super::pass::Pass;
use crate::format::inode::CHUNK_INODES;
use crate::format::layout::chunk_of;
use crate::ids::BlockNo;
use crate::variant::Variant;
use heddle_pmem::Region;
use heddle_vfs::{FileKind, Ino};
use std::collections::BTreeSet;

/// An inode with a name, and its log.
#[derive(Clone, Copy, Debug)]
pub struct Inode {
    /// Number.
    pub ino: Ino,
    /// Kind.
    pub kind: FileKind,
    /// Number of names.
    pub links: u32,
    /// Its log and blocks.
    pub figures: Figures,
}

/// The owner of consecutive blocks.
#[derive(Clone, Debug)]
pub struct Owner {
    /// First block.
    pub block: BlockNo,
    /// Number of blocks.
    pub count: u64,
    /// The inode, if they belong to one.
    pub ino: Option<Ino>,
    /// True for file data, false for metadata.
    pub data: bool,
    /// A description.
    pub what: String,
}

/// The summary. All counts include only inodes that have a name.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The variant that it was made as.
    pub variant: Variant,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Number of those for superblocks and inode directory.
    pub blocks_fixed: u64,
    /// Inode chunks.
    pub blocks_inodes: u64,
    /// Log pages, blocks of heads, extent lists, extended attributes.
    pub blocks_logs: u64,
    /// File data.
    pub blocks_data: u64,
    /// All other blocks.
    pub blocks_free: u64,
    /// Slots that exist.
    pub slots: u64,
    /// Inodes without a name, which the next mount frees.
    pub orphans: u64,
    /// Issues that fsck would report.
    pub issues: usize,
    /// Inodes with a name.
    pub inodes: Vec<Inode>,
    /// Blocks in use.
    pub owners: Vec<Owner>,
}

/// Summarises an image, and ignores damage (see `issues`).
///
/// # Errors
/// [`FsckError::NotAnImage`], [`FsckError::OtherVersion`]; `Ok(None)`: the superblock is lost.
pub fn survey(name: &str, region: &Region) -> Result<Option<Survey>, FsckError> {
    let media = Media::new(region);
    let read = image::read(name, &media)?;
    let Some(image) = read.image else { return Ok(None) };
    let pass = Pass::run(&media, image, false);
    let layout = image.layout;
    let fixed = layout.data.0 + 1;
    // A chunk without inodes can be freed when space is needed, so it counts as free, as in a mount.
    let used: BTreeSet<u64> = pass.tree.links.keys().map(|ino| chunk_of(*ino).0).chain([0]).collect();
    let inodes_blocks = pass.claims.blocks(|u| matches!(u, Use::Chunk(n) if used.contains(&n)));
    let logs =
        pass.claims.blocks(|u| matches!(u, Use::Log(_) | Use::Heads(_) | Use::List(_) | Use::Blob(..)));
    let data = pass.claims.blocks(|u| matches!(u, Use::Data(..)));
    let inodes = pass.tree.links.iter().filter_map(|(ino, links)| {
        let base = pass.slots.bases.get(ino)?;
        let figures = pass.logs.get(ino).copied().unwrap_or_default();
        Some(Inode { ino: *ino, kind: base.kind, links: *links, figures })
    });
    let owners = pass.claims.all.iter().map(|claim| Owner {
        block: claim.block,
        count: claim.count,
        ino: claim.what.ino(),
        data: matches!(claim.what, Use::Data(..)),
        what: claim.what.text(),
    });
    let issues = pass.issues.iter().chain(&read.issues);
    let issues = issues.filter(|i| i.severity() > super::Severity::Note).count();
    Ok(Some(Survey {
        variant: image.variant,
        blocks: layout.blocks_total,
        blocks_fixed: fixed,
        blocks_inodes: inodes_blocks,
        blocks_logs: logs,
        blocks_data: data,
        blocks_free: layout.blocks_total.saturating_sub(fixed + inodes_blocks + logs + data),
        slots: pass.slots.chunks.len() as u64 * CHUNK_INODES,
        orphans: pass.slots.bases.keys().filter(|ino| !pass.tree.links.contains_key(ino)).count() as u64,
        issues,
        inodes: inodes.collect(),
        owners: owners.collect(),
    }))
}
