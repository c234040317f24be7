//! Nodes that were fsynced after the last checkpoint. A reader applies them only in memory; for a writer see
//! `roll_forward`.
//!
//! An fsync writes the nodes of the file to the log of direct nodes; each names the block of the next, and
//! the last one is marked. They carry the version of the checkpoint before them; the first node with another
//! version ends the chain. Nodes behind a file's last mark were never acknowledged. The inode of a new file
//! has another mark: its name must be recovered too.
//!
//! Source      F2FS paper (FAST '15) section 2.4.2.

use crate::checkpoint::Checkpoint;
use crate::device::Device;
use crate::format::{
    NODE_POINTERS, NatEntry, NodeBlock, NodeFooter, SEGMENT_BLOCKS, checkpoint_flag, node_flag,
};
use crate::ids::{BlockAddr, Nid, Nids};
use crate::inode::Inode;
use crate::nat::Nat;
use crate::node::block_map::NodeRole;
use crate::node::{Nodes, inode_of, pointers_of};
use crate::superblock::Geometry;
use heddle_vfs::{FileKind, NAME_MAX_BYTES, Name};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// The log of these nodes.
const WARM_NODES: usize = 1;

/// State that is newer than the checkpoint, for a reader.
#[derive(Default)]
pub(crate) struct Fsynced {
    /// New positions of nodes.
    pub(crate) nodes: Vec<(Nid, NatEntry)>,
    /// Names of new files, by directory.
    pub(crate) names: HashMap<Nid, BTreeMap<Vec<u8>, (Nid, FileKind)>>,
    /// Number of fsynced files.
    pub(crate) inodes: u64,
}

/// A node of the chain. Only its footer is kept: a chain may be as long as the main area.
pub(crate) struct Link {
    pub(crate) addr: BlockAddr,
    footer: NodeFooter,
}

impl Link {
    /// Returns true if it is an inode that carries a name to be recovered.
    pub(crate) fn is_made(&self) -> bool {
        self.is_inode() && self.footer.flag.get() & node_flag::DENTRY != 0
    }

    fn is_inode(&self) -> bool {
        self.nid() == self.ino()
    }

    /// Returns true if this inode leads to the node without another one between them.
    fn leads_to(&self, node: &Link, device: &Device) -> bool {
        self.node(device).is_some_and(|inode| {
            let inode = inode_of(&inode);
            let nid = match node.place() {
                place @ 1..=2 => inode.nid[place as usize - 1],
                node_flag::XATTR_PLACE => inode.xattr_nid,
                _ => return false,
            };
            nid.get() == node.nid().0
        })
    }

    /// Reads the node again.
    fn node(&self, device: &Device) -> Option<NodeBlock> {
        node_at(device, self.addr)
    }

    pub(crate) fn ino(&self) -> Nid {
        Nid(self.footer.ino.get())
    }

    pub(crate) fn nid(&self) -> Nid {
        Nid(self.footer.nid.get())
    }

    /// Its place in its file.
    pub(crate) fn place(&self) -> u32 {
        self.footer.place()
    }

    fn is_marked(&self) -> bool {
        self.footer.flag.get() & node_flag::FSYNC != 0
    }
}

/// A direct node that was fsynced without its inode, and got blocks.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Grown {
    pub(crate) ino: Nid,
    /// Its place in its file.
    pub(crate) place: u32,
    /// Number of its pointers, up to the last one that got a block.
    pub(crate) pointers: u64,
}

/// The nodes that were written after the checkpoint and acknowledged, in order.
pub(crate) struct Chain(pub(crate) Vec<Link>);

impl Chain {
    pub(crate) fn read(
        device: &Device,
        geometry: &Geometry,
        checkpoint: &Checkpoint,
        nodes: &Nodes,
    ) -> Chain {
        let mut chain = chain(device, geometry, checkpoint, nodes);
        let marks = chain.iter().enumerate().filter(|(_, link)| link.is_marked());
        let last: HashMap<Nid, usize> = marks.map(|(n, link)| (link.ino(), n)).collect();
        let mut n = 0;
        chain.retain(|link| {
            n += 1;
            last.get(&link.ino()).is_some_and(|last| *last >= n - 1)
        });
        Chain(chain)
    }

    /// For each node the inode that the same fsync wrote, by its index: none, if it wrote other nodes alone, or
    /// if that is not certain.
    pub(crate) fn forms(&self, device: &Device) -> Vec<Option<usize>> {
        let mut ahead = HashMap::new();
        let mut forms: Vec<_> = self
            .0
            .iter()
            .enumerate()
            .rev()
            .map(|(n, link)| {
                let leads = |inode: &usize| self.0[*inode].leads_to(link, device);
                if link.is_inode() {
                    ahead.insert(link.ino(), n);
                } else if link.is_marked() && !ahead.get(&link.ino()).is_some_and(leads) {
                    // Linux marks each node of an fsync, and may free this one before the inode's fsync.
                    ahead.remove(&link.ino());
                }
                ahead.get(&link.ino()).copied()
            })
            .collect();
        forms.reverse();
        forms
    }

    /// The last inode of each file that has one, by its index.
    pub(crate) fn last_inodes(&self) -> HashMap<Nid, usize> {
        let inodes = self.0.iter().enumerate().filter(|(_, link)| link.is_inode());
        inodes.map(|(n, link)| (link.ino(), n)).collect()
    }

    /// The direct nodes that come after the last inode of their file: it does not say how long the file is
    /// with them (`Media::grow_to`). `nat`: the checkpoint's, without the chain.
    pub(crate) fn grown(&self, device: &Device, nat: &Nat) -> Vec<Grown> {
        let last = self.last_inodes();
        let mut newest: HashMap<Nid, BlockAddr> = HashMap::new();
        let mut grown = Vec::new();
        for (n, link) in self.0.iter().enumerate() {
            let (nid, ino, place) = (link.nid(), link.ino(), link.place());
            let before = newest.insert(nid, link.addr);
            let is_direct = matches!(NodeRole::of(place, 0), Some(NodeRole::Direct(_)));
            if !is_direct || last.get(&ino).is_some_and(|inode| *inode > n) {
                continue;
            }
            let Some(now) = link.node(device) else { continue };
            let known = || nat.find(device, nid).ok().map(|entry| BlockAddr(entry.addr.get()));
            let before = before.or_else(known).and_then(|addr| node_at(device, addr));
            let before =
                before.filter(|node| (node.footer.nid, node.footer.ino) == (now.footer.nid, now.footer.ino));
            let (now, before) = (&pointers_of(&now).pointers, before.as_ref().map(pointers_of));
            let got_block = |slot: &usize| {
                BlockAddr(now[*slot].get()).is_block()
                    && before.is_none_or(|before| before.pointers[*slot] != now[*slot])
            };
            if let Some(slot) = (0..NODE_POINTERS).rev().find(got_block) {
                grown.push(Grown { ino, place, pointers: slot as u64 + 1 });
            }
        }
        grown
    }

    /// Inodes of the chain that say to have names.
    pub(crate) fn named_inodes(&self, device: &Device) -> Nids {
        let is_named = |link: &&Link| {
            link.is_inode() && link.node(device).is_some_and(|node| inode_of(&node).links.get() > 0)
        };
        self.0.iter().filter(is_named).map(Link::ino).collect()
    }
}

impl Fsynced {
    pub(crate) fn of(chain: &Chain, device: &Device, nat: &Nat, features: u32) -> Fsynced {
        Fsynced::of_known(chain, device, nat, features, &|_| false)
    }

    /// The same, if a damaged table may lack inodes that are known all the same.
    pub(crate) fn of_known(
        chain: &Chain,
        device: &Device,
        nat: &Nat,
        features: u32,
        is_known: &dyn Fn(Nid) -> bool,
    ) -> Fsynced {
        let mut found = Fsynced::default();
        let mut inodes = BTreeSet::new();
        // An fsync writes other nodes of a new file before its inode.
        let made: BTreeSet<Nid> = chain.0.iter().filter(|link| link.is_made()).map(Link::ino).collect();
        for link in &chain.0 {
            let (nid, ino) = (Nid(link.footer.nid.get()), link.ino());
            let here =
                nat.find(device, ino).is_ok_and(|entry| entry.addr.get() != 0 && entry.ino.get() == ino.0);
            // Nodes of an unknown file: it had no name any more when its inode was written.
            if !here && !made.contains(&ino) && !is_known(ino) {
                continue;
            }
            inodes.insert(ino);
            let version = nat.find(device, nid).map_or(0, |entry| entry.version);
            found.nodes.push((nid, NatEntry { version, ino: U32::new(ino.0), addr: U32::new(link.addr.0) }));
            if let Some(node) = link.is_made().then(|| link.node(device)).flatten() {
                found.name(&Arc::new(node), features);
            }
        }
        found.inodes = inodes.len() as u64;
        found
    }

    /// Adds the name that is stored in an inode.
    fn name(&mut self, node: &Arc<NodeBlock>, features: u32) {
        let block = inode_of(node);
        let len = block.name_bytes.get() as usize;
        let Ok(inode) = Inode::of(Arc::clone(node), features) else { return };
        let name = &block.name[..len.min(NAME_MAX_BYTES)];
        if Name::new(name).is_ok() {
            let names = self.names.entry(Nid(block.parent.get())).or_default();
            names.insert(name.to_vec(), (inode.nid, inode.kind));
        }
    }
}

fn node_at(device: &Device, addr: BlockAddr) -> Option<NodeBlock> {
    let block = device.block(addr).ok()?;
    NodeBlock::read_from_bytes(&block[..]).ok()
}

/// The nodes that were written after the checkpoint, in order.
fn chain(device: &Device, geometry: &Geometry, checkpoint: &Checkpoint, nodes: &Nodes) -> Vec<Link> {
    let head = &checkpoint.head;
    let (segment, offset) = (head.node_segment[WARM_NODES].get(), head.node_offset[WARM_NODES].get());
    let mut chain = Vec::new();
    if segment >= geometry.main_segments {
        return chain;
    }
    let mut addr = geometry.main.plus(segment * SEGMENT_BLOCKS + u32::from(offset));
    let mut seen = BTreeSet::new();
    // A damaged chain may be circular.
    while geometry.in_main(addr) && seen.insert(addr) {
        let node = node_at(device, addr);
        // A torn node was not acknowledged, and no node behind it.
        let is_next = |node: &NodeBlock| {
            is_later(checkpoint, node.footer.checkpoint_version.get()) && nodes.check(node).is_ok()
        };
        let Some(node) = node.filter(is_next) else { break };
        let next = BlockAddr(node.footer.next.get());
        chain.push(Link { addr, footer: node.footer });
        addr = next;
    }
    chain
}

/// Returns true if a node with this version was written after the checkpoint.
fn is_later(checkpoint: &Checkpoint, said: u64) -> bool {
    let version = checkpoint.head.version.get();
    if checkpoint.has(checkpoint_flag::NO_CRC_RECOVERY) {
        return said as u32 == version as u32;
    }
    let crc = if checkpoint.has(checkpoint_flag::CRC_RECOVERY) { u64::from(checkpoint.crc) << 32 } else { 0 };
    said == version | crc
}

#[cfg(test)]
mod tests;
