//! A cache of validated nodes. A node enters it only if its footer matches its entry in the node table.
//!
//! State       nodes by number, in shards, each with a lock: unchanged nodes, which a full shard evicts, and
//!             changed nodes, which stay until a checkpoint or the log has them. A node that was handed out never changes.
//! Invariants  N1  a node that is handed out lies in the main area and has its number and its inode in its footer.
//!             N2  a node is read, and its new position noted after a write, under its shard's lock: the cache has the newest one.

pub(crate) mod block_map;

use crate::checksum::of_inode;
use crate::device::Device;
use crate::format::{
    INODE_CHECKSUM_OFFSET_BYTES, InodeBlock, NodeBlock, NodeFooter, PointerNode, inline_flag,
};
use crate::ids::{BlockAddr, ByNid, Nid};
use crate::nat::Nat;
use crate::node_log::{Located, NodeLog};
use crate::steps;
use crate::superblock::Geometry;
use heddle_vfs::{Error, Result};
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use zerocopy::{FromZeros, IntoBytes};

const SHARDS: usize = 64;
/// 16 MiB in all.
const NODES_PER_SHARD: usize = 64;

/// The nodes of an image.
pub(crate) struct Nodes {
    pub(crate) nat: Nat,
    shards: [RwLock<Shard>; SHARDS],
    changed: AtomicUsize,
    /// The changed nodes of each inode, and their places. Locked while a shard is locked.
    changed_of: [Mutex<ByNid<ByNid<u32>>>; SHARDS],
    /// Start value of the checksums of inodes, if they have any.
    inode_seed: Option<u32>,
    /// The log for fsyncs and log checkpoints, if there is one.
    pub(crate) log: Option<NodeLog>,
}

#[derive(Default)]
struct Shard {
    read: ByNid<Arc<NodeBlock>>,
    changed: ByNid<Changed>,
}

/// A changed node.
#[derive(Clone)]
pub(crate) struct Changed {
    pub(crate) now: Arc<NodeBlock>,
    /// Its last durable state, for a log that stores differences; `None` for a new node.
    pub(crate) before: Option<Arc<NodeBlock>>,
}

impl Shard {
    fn get(&self, nid: Nid) -> Option<&Arc<NodeBlock>> {
        self.changed.get(&nid).map(|changed| &changed.now).or_else(|| self.read.get(&nid))
    }

    fn keep(&mut self, nid: Nid, node: Arc<NodeBlock>) {
        if self.read.len() >= NODES_PER_SHARD {
            self.read.clear();
        }
        self.read.insert(nid, node);
    }
}

impl Nodes {
    pub(crate) fn new(nat: Nat, inode_seed: Option<u32>, log: Option<NodeLog>) -> Nodes {
        let shards = std::array::from_fn(|_| RwLock::default());
        let changed_of = std::array::from_fn(|_| Mutex::default());
        Nodes { nat, shards, changed: AtomicUsize::new(0), changed_of, inode_seed, log }
    }

    fn shard(&self, nid: Nid) -> &RwLock<Shard> {
        &self.shards[nid.0 as usize % SHARDS]
    }

    /// Number of changed nodes.
    pub(crate) fn changed(&self) -> usize {
        self.changed.load(Relaxed) // ORDERING: Relaxed, an estimate, to decide when to write.
    }

    /// The changed nodes of an inode, including itself, and their places.
    pub(crate) fn changed_of(&self, ino: Nid) -> Vec<(Nid, u32)> {
        let of = self.changes(ino);
        let mut nodes: Vec<_> =
            of.get(&ino).into_iter().flatten().map(|(nid, place)| (*nid, *place)).collect();
        nodes.sort_unstable();
        nodes
    }

    fn changes(&self, ino: Nid) -> MutexGuard<'_, ByNid<ByNid<u32>>> {
        self.changed_of[ino.0 as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_changed(&self, footer: &NodeFooter) {
        self.changed.fetch_add(1, Relaxed); // ORDERING: Relaxed, an estimate.
        let ino = Nid(footer.ino.get());
        self.changes(ino).entry(ino).or_default().insert(Nid(footer.nid.get()), footer.place());
    }

    fn note_written(&self, footer: &NodeFooter) {
        self.changed.fetch_sub(1, Relaxed); // ORDERING: Relaxed, an estimate.
        let ino = Nid(footer.ino.get());
        let mut changes = self.changes(ino);
        if let Some(of) = changes.get_mut(&ino) {
            of.remove(&Nid(footer.nid.get()));
            if of.is_empty() {
                changes.remove(&ino);
            }
        }
    }

    /// Changes a node.
    pub(crate) fn change<R>(
        &self,
        device: &Device,
        geometry: &Geometry,
        nid: Nid,
        change: impl FnOnce(&mut NodeBlock) -> R,
    ) -> Result<R> {
        let mut shard = self.shard(nid).write().unwrap_or_else(PoisonError::into_inner);
        let shard = &mut *shard;
        let node = match shard.changed.entry(nid) {
            Entry::Occupied(changed) => changed.into_mut(),
            Entry::Vacant(vacant) => {
                let found = match shard.read.remove(&nid) {
                    Some(kept) => Some(kept),
                    None => self.read(device, geometry, nid)?,
                };
                let free = || Error::Corrupt(format!("node {} is changed, and free", nid.0));
                let now = found.ok_or_else(free)?;
                self.note_changed(&now.footer);
                let before = self.log.is_some().then(|| Arc::clone(&now));
                vacant.insert(Changed { now, before })
            }
        };
        steps::take();
        Ok(change(Arc::make_mut(&mut node.now)))
    }

    /// Adds a node under a number that was free.
    pub(crate) fn add(&self, nid: Nid, node: Arc<NodeBlock>) {
        steps::take();
        let mut shard = self.shard(nid).write().unwrap_or_else(PoisonError::into_inner);
        shard.read.remove(&nid);
        if let Some(old) = shard.changed.remove(&nid) {
            self.note_written(&old.now.footer);
        }
        self.note_changed(&node.footer);
        shard.changed.insert(nid, Changed { now: node, before: None });
    }

    /// Removes a node.
    pub(crate) fn forget(&self, nid: Nid) {
        steps::take();
        let mut shard = self.shard(nid).write().unwrap_or_else(PoisonError::into_inner);
        shard.read.remove(&nid);
        if let Some(node) = shard.changed.remove(&nid) {
            self.note_written(&node.now.footer);
        }
    }

    /// Calls `write` for every changed node; `write` puts it on the device. [`Nodes::seal`] updates the
    /// checksums of inodes.
    pub(crate) fn write(&self, mut write: impl FnMut(&mut NodeBlock) -> Result<()>) -> Result<()> {
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            let nids: Vec<Nid> = shard.changed.keys().copied().collect();
            for nid in nids {
                self.write_in(&mut shard, nid, &mut write)?;
            }
        }
        Ok(())
    }

    /// The same for one node, if it was changed.
    pub(crate) fn write_one(
        &self,
        nid: Nid,
        mut write: impl FnMut(&mut NodeBlock) -> Result<()>,
    ) -> Result<()> {
        let mut shard = self.shard(nid).write().unwrap_or_else(PoisonError::into_inner);
        self.write_in(&mut shard, nid, &mut write)
    }

    fn write_in(
        &self,
        shard: &mut Shard,
        nid: Nid,
        write: &mut impl FnMut(&mut NodeBlock) -> Result<()>,
    ) -> Result<()> {
        let Some(mut node) = shard.changed.remove(&nid) else { return Ok(()) };
        if let Err(error) = write(Arc::make_mut(&mut node.now)) {
            shard.changed.insert(nid, node);
            return Err(error);
        }
        self.note_written(&node.now.footer);
        shard.keep(nid, node.now);
        Ok(())
    }

    /// Calls `write` for a node that is newest in the log; `write` puts it on the device.
    pub(crate) fn fold(
        &self,
        device: &Device,
        geometry: &Geometry,
        nid: Nid,
        write: impl FnMut(&mut NodeBlock) -> Result<()>,
    ) -> Result<()> {
        self.change(device, geometry, nid, |_| ())?;
        self.write_one(nid, write)
    }

    /// A changed node, for the log; `None`: it is unchanged.
    pub(crate) fn changed_node(&self, nid: Nid) -> Option<Changed> {
        self.shard(nid).read().unwrap_or_else(PoisonError::into_inner).changed.get(&nid).cloned()
    }

    /// All changed nodes, by number.
    pub(crate) fn all_changed(&self) -> Vec<Nid> {
        let of_shard = |shard: &RwLock<Shard>| {
            shard.read().unwrap_or_else(PoisonError::into_inner).changed.keys().copied().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Notes that a changed node is in the log with its present content.
    pub(crate) fn logged(&self, nid: Nid) {
        let mut shard = self.shard(nid).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = shard.changed.remove(&nid) {
            self.note_written(&node.now.footer);
            shard.keep(nid, node.now);
        }
    }

    /// Updates the checksum of an inode, if it has one.
    pub(crate) fn seal(&self, node: &mut NodeBlock) {
        if let Some((_, right)) = self.checksum_of(inode_of(node)) {
            node.body[INODE_CHECKSUM_OFFSET_BYTES..][..4].copy_from_slice(&right.to_le_bytes());
        }
    }

    /// A node of the inode `ino`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none, or it belongs to another inode.
    pub(crate) fn get(
        &self,
        device: &Device,
        geometry: &Geometry,
        nid: Nid,
        ino: Nid,
    ) -> Result<Arc<NodeBlock>> {
        match self.find(device, geometry, nid)? {
            Some(node) if node.footer.ino.get() == ino.0 && nid != ino => Ok(node),
            Some(node) => Err(Error::Corrupt(format!(
                "node {} of inode {} belongs to inode {}",
                nid.0, ino.0, node.footer.ino
            ))),
            None => Err(Error::Corrupt(format!("node {} of inode {} is free", nid.0, ino.0))),
        }
    }

    /// The inode of this number; `None`: the number is free, or belongs to a node that is not an inode.
    pub(crate) fn inode(
        &self,
        device: &Device,
        geometry: &Geometry,
        ino: Nid,
    ) -> Result<Option<Arc<NodeBlock>>> {
        let found = self.find(device, geometry, ino)?;
        Ok(found.filter(|node| node.footer.ino.get() == ino.0))
    }

    /// The node of this number, of any inode.
    pub(crate) fn any(
        &self,
        device: &Device,
        geometry: &Geometry,
        nid: Nid,
    ) -> Result<Option<Arc<NodeBlock>>> {
        self.find(device, geometry, nid)
    }

    fn find(&self, device: &Device, geometry: &Geometry, nid: Nid) -> Result<Option<Arc<NodeBlock>>> {
        let shard = self.shard(nid);
        if let Some(kept) = shard.read().unwrap_or_else(PoisonError::into_inner).get(nid) {
            return Ok(Some(Arc::clone(kept)));
        }
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = shard.get(nid) {
            return Ok(Some(Arc::clone(kept)));
        }
        // N2.
        let Some(node) = self.read(device, geometry, nid)? else { return Ok(None) };
        shard.keep(nid, Arc::clone(&node));
        Ok(Some(node))
    }

    /// Reads a node and checks it (N1).
    fn read(&self, device: &Device, geometry: &Geometry, nid: Nid) -> Result<Option<Arc<NodeBlock>>> {
        let entry = self.nat.find(device, nid)?;
        let addr = BlockAddr(entry.addr.get());
        if addr == BlockAddr::NULL {
            return Ok(None);
        }
        let located = self.log.as_ref().and_then(|log| Some((log, log.find(nid)?)));
        let node = match located {
            Some((log, place)) => {
                let base = || self.on_device(device, geometry, nid, addr).map(Arc::unwrap_or_clone);
                Arc::new(log.load(nid, place, base)?)
            }
            None => self.on_device(device, geometry, nid, addr)?,
        };
        let footer = &node.footer;
        if (footer.nid.get(), footer.ino) == (nid.0, entry.ino) {
            return Ok(Some(node));
        }
        Err(Error::Corrupt(format!(
            "node {} at block {}: it says to be node {} of inode {}, the table says of inode {}",
            nid.0, addr.0, footer.nid, footer.ino, entry.ino
        )))
    }

    /// The node in this block of the device, of any inode.
    pub(crate) fn on_device(
        &self,
        device: &Device,
        geometry: &Geometry,
        nid: Nid,
        addr: BlockAddr,
    ) -> Result<Arc<NodeBlock>> {
        let wrong = |what: String| Err(Error::Corrupt(format!("node {} at block {}: {what}", nid.0, addr.0)));
        if !geometry.in_main(addr) {
            return wrong("that is outside the main area".into());
        }
        let mut node = Arc::new(NodeBlock::new_zeroed());
        if let Some(block) = Arc::get_mut(&mut node) {
            device.read(addr, 0, block.as_mut_bytes())?;
        }
        match self.check(&node) {
            Ok(()) => Ok(node),
            Err(what) => wrong(what),
        }
    }

    /// Notes the node's newest record; a node read before is older.
    pub(crate) fn located(&self, nid: Nid, place: Located) {
        if let Some(log) = &self.log {
            self.shard(nid).write().unwrap_or_else(PoisonError::into_inner).read.remove(&nid);
            log.locate(nid, place);
        }
    }

    /// Checks the checksum of an inode, if it should have one.
    pub(crate) fn check(&self, node: &NodeBlock) -> std::result::Result<(), String> {
        match self.checksum_of(inode_of(node)) {
            Some((stored, right)) if stored != right => {
                Err(format!("the inode's checksum is {stored:#x}, not {right:#x}"))
            }
            _ => Ok(()),
        }
    }

    /// The checksum in an inode, and the correct one.
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

/// The node as an inode, for a change.
pub(crate) fn inode_of_mut(node: &mut NodeBlock) -> &mut InodeBlock {
    zerocopy::transmute_mut!(node)
}

/// The node as pointers, for a change.
pub(crate) fn pointers_of_mut(node: &mut NodeBlock) -> &mut PointerNode {
    zerocopy::transmute_mut!(node)
}

#[cfg(test)]
mod tests;
