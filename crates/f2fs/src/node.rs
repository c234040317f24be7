//! Nodes, checked and kept: whoever asks for a number gets the block that the table names, if it says of itself what the table says.
//!
//! State       nodes that were read, by number, in shards; a shard that is full forgets all of it. Nothing is changed while an image is
//!             open, so what is kept stays right.
//! Invariants  N1  a node that is handed out lies in the main area and bears its number and its inode.

use crate::checksum::of_inode;
use crate::device::Device;
use crate::format::{INODE_CHECKSUM_OFFSET_BYTES, InodeBlock, NodeBlock, PointerNode, inline_flag};
use crate::ids::{BlockAddr, Nid};
use crate::nat::Nat;
use crate::superblock::Geometry;
use heddle_vfs::{Error, Result};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use zerocopy::{FromZeros, IntoBytes};

const SHARDS: usize = 64;
/// 16 MiB in all.
const NODES_PER_SHARD: usize = 64;

/// The nodes of an image.
pub(crate) struct Nodes {
    pub(crate) nat: Nat,
    kept: [RwLock<HashMap<Nid, Arc<NodeBlock>>>; SHARDS],
    /// What the checksums of inodes start from, if they have any.
    inode_seed: Option<u32>,
}

impl Nodes {
    pub(crate) fn new(nat: Nat, inode_seed: Option<u32>) -> Nodes {
        Nodes { nat, kept: std::array::from_fn(|_| RwLock::default()), inode_seed }
    }

    /// A node of the inode `ino`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none, or another one.
    pub(crate) fn get(
        &self,
        device: &Device,
        geometry: &Geometry,
        nid: Nid,
        ino: Nid,
    ) -> Result<Arc<NodeBlock>> {
        match self.find(device, geometry, nid)? {
            Some(node) if node.footer.ino.get() == ino.0 => Ok(node),
            Some(node) => Err(Error::Corrupt(format!(
                "node {} of inode {} belongs to inode {}",
                nid.0, ino.0, node.footer.ino
            ))),
            None => Err(Error::Corrupt(format!("node {} of inode {} is free", nid.0, ino.0))),
        }
    }

    /// The inode of this number; `None`: the number is free, or that of a node which is no inode.
    pub(crate) fn inode(
        &self,
        device: &Device,
        geometry: &Geometry,
        ino: Nid,
    ) -> Result<Option<Arc<NodeBlock>>> {
        let found = self.find(device, geometry, ino)?;
        Ok(found.filter(|node| node.footer.ino.get() == ino.0))
    }

    fn find(&self, device: &Device, geometry: &Geometry, nid: Nid) -> Result<Option<Arc<NodeBlock>>> {
        let shard = &self.kept[nid.0 as usize % SHARDS];
        if let Some(kept) = shard.read().unwrap_or_else(PoisonError::into_inner).get(&nid) {
            return Ok(Some(Arc::clone(kept)));
        }
        let Some(node) = self.read(device, geometry, nid)? else { return Ok(None) };
        let mut kept = shard.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= NODES_PER_SHARD {
            kept.clear();
        }
        Ok(Some(Arc::clone(kept.entry(nid).or_insert(node))))
    }

    /// N1.
    fn read(&self, device: &Device, geometry: &Geometry, nid: Nid) -> Result<Option<Arc<NodeBlock>>> {
        let entry = self.nat.find(device, nid)?;
        let addr = BlockAddr(entry.addr.get());
        if addr == BlockAddr::NULL {
            return Ok(None);
        }
        let wrong = |what: String| Err(Error::Corrupt(format!("node {} at block {}: {what}", nid.0, addr.0)));
        if !geometry.in_main(addr) {
            return wrong("that is outside the main area".into());
        }
        let mut node = Arc::new(NodeBlock::new_zeroed());
        if let Some(block) = Arc::get_mut(&mut node) {
            device.read(addr, 0, block.as_mut_bytes())?;
        }
        let footer = &node.footer;
        if (footer.nid.get(), footer.ino) != (nid.0, entry.ino) {
            return wrong(format!(
                "it says to be node {} of inode {}, the table says of inode {}",
                footer.nid, footer.ino, entry.ino
            ));
        }
        match self.checksum_of(inode_of(&node)) {
            Some((stored, right)) if stored != right => {
                wrong(format!("the inode's checksum is {stored:#x}, not {right:#x}"))
            }
            _ => Ok(Some(node)),
        }
    }

    /// The checksum that an inode bears, and the one that it should.
    fn checksum_of(&self, inode: &InodeBlock) -> Option<(u32, u32)> {
        let seed = self.inode_seed?;
        let is_inode = inode.footer.nid == inode.footer.ino;
        let has_one = is_inode && inode.inline & inline_flag::EXTRA_ATTR != 0;
        let stored = inode.as_bytes()[INODE_CHECKSUM_OFFSET_BYTES..].first_chunk().copied();
        has_one.then(|| (u32::from_le_bytes(stored.unwrap_or_default()), of_inode(seed, inode)))
    }
}

/// The node as an inode.
pub(crate) fn inode_of(node: &NodeBlock) -> &InodeBlock {
    zerocopy::transmute_ref!(node)
}

/// The node as pointers.
pub(crate) fn pointers_of(node: &NodeBlock) -> &PointerNode {
    zerocopy::transmute_ref!(node)
}
