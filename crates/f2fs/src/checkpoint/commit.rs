//! A checkpoint: all changes are written to the device and committed at once. With a node log this is a fold.
//! Usually a log checkpoint is enough then: pages are written to the device, nodes to the log, and no table is
//! written.
//!
//! Both run exclusively (`F2fs::quiet`): every call waits meanwhile, as in Linux (`cp_rwsem`).
//!
//! Source      F2FS paper (FAST '15) section 2.4; F2FS range-lock paper (SYSTOR '19) section 3.1, which shows the cost of that, and 3.3.

use super::Checkpoint;
use super::write::{Contents, write};
use crate::format::{NodeBlock, node_flag};
use crate::ids::{BlockAddr, Nid};
use crate::image::Media;
use crate::node::block_map::NodeRole;
use crate::node_log::{Content, Group, Member, NodeLog};
use crate::planted::{Breach, breaks};
use crate::segments::{Log, of_node};
use heddle_vfs::{Error, Result};
use std::collections::BTreeSet;
use std::iter::once;
use std::time::Instant;
use zerocopy::IntoBytes;

/// The valid checkpoint, and the orphan list of the next one.
pub(crate) struct CheckpointState {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) orphans: BTreeSet<Nid>,
    pub(crate) since: Instant,
}

impl Media {
    /// Writes a checkpoint. No call is inside.
    pub(crate) fn commit(&self, state: &mut CheckpointState, unmounts: bool) -> Result<()> {
        let space = self.space()?;
        self.device.check_size()?;
        for nid in self.pages.inodes() {
            self.write_pages(nid)?;
        }
        let version = state.checkpoint.version_of_no_chain();
        self.nodes.write(|node| self.write_node(node, version, 0))?;
        let logged = self.nodes.log.as_ref().map(NodeLog::nids).unwrap_or_default();
        for nid in logged {
            self.nodes.fold(&self.device, &self.geometry, nid, |node| self.write_node(node, version, 0))?;
        }
        let nat_bitmap = self.nodes.nat.write(&self.device)?;
        let sit_bitmap = space.segments.write(&self.device)?;
        let (positions, mut summaries, segments_free) = space.segments.positions();
        let orphans: Vec<Nid> = state.orphans.iter().copied().collect();
        let contents = Contents {
            counts: space.counts(),
            positions: &positions,
            summaries: &mut summaries,
            segments_free,
            next_free_nid: self.nodes.nat.next_free(),
            sit_bitmap: &sit_bitmap,
            nat_bitmap: &nat_bitmap,
            orphans: &orphans,
            unmounts,
            elapsed_secs: state.since.elapsed().as_secs(),
            announce: &|next| self.nodes.log.as_ref().map_or(Ok(()), |log| log.will_fold(next)),
        };
        state.checkpoint = write(&self.device, &self.geometry, &state.checkpoint, contents)?;
        state.since = Instant::now();
        // No call is inside that could take one of these segments meanwhile.
        for (first, blocks) in space.checkpointed() {
            self.device.discard(first, blocks);
        }
        self.nodes.nat.checkpointed();
        match &self.nodes.log {
            Some(log) => log.folded(state.checkpoint.identity()),
            None => Ok(()),
        }
    }

    /// Writes a log checkpoint, if there is a log with room for it. Returns false if a checkpoint is needed. No call
    /// is inside.
    pub(crate) fn write_log_checkpoint(&self) -> Result<bool> {
        let Some(log) = self.nodes.log.as_ref().filter(|log| !log.is_filling()) else { return Ok(false) };
        for nid in self.pages.inodes() {
            self.write_pages(nid)?;
        }
        if !breaks(Breach::FlushForgotten) {
            self.device.flush()?;
        }
        let (changed, deleted) = (self.nodes.all_changed(), log.all_deleted());
        if changed.is_empty() && deleted.is_empty() {
            // Numbers freed meanwhile were never durable, or the log records that they are free.
            self.nodes.nat.checkpointed();
            return Ok(true);
        }
        let mut group = self.begin_group(log, changed.len() + deleted.len(), true)?;
        for nid in &changed {
            if !self.log_node(&mut group, *nid, false)? {
                return Ok(false);
            }
        }
        for (ino, gone) in &deleted {
            if !group.put(&Member::deleted(*ino, *gone)) {
                return Ok(false);
            }
        }
        group.finish()?;
        changed.iter().for_each(|nid| self.nodes.logged(*nid));
        deleted.iter().for_each(|(ino, _)| log.deletion_recorded(*ino));
        self.nodes.nat.checkpointed();
        self.space()?.log_checkpointed();
        Ok(true)
    }

    /// Writes the changed nodes of a file to the log, and which of its nodes were freed. Returns false if the
    /// log has no room.
    pub(crate) fn log_nodes_of(&self, log: &NodeLog, ino: Nid, named: bool) -> Result<bool> {
        let (nodes, deleted) = (self.nodes.changed_of(ino), log.deleted_of(ino));
        if nodes.is_empty() && deleted.is_empty() {
            return Ok(true);
        }
        let mut group = self.begin_group(log, nodes.len() + deleted.len(), false)?;
        for (nid, _) in &nodes {
            if !self.log_node(&mut group, *nid, named && *nid == ino)? {
                return Ok(false);
            }
        }
        for gone in &deleted {
            if !group.put(&Member::deleted(ino, *gone)) {
                return Ok(false);
            }
        }
        group.finish()?;
        nodes.iter().for_each(|(nid, _)| self.nodes.logged(*nid));
        log.deletion_recorded(ino);
        Ok(true)
    }

    /// Begins a group of the log. Before the first group, the image is marked as having a log.
    fn begin_group<'l>(&self, log: &'l NodeLog, members: usize, log_checkpoint: bool) -> Result<Group<'l>> {
        log.mark(&self.device)?;
        log.begin(members, log_checkpoint)
    }

    /// Writes a changed node to the log. Returns false if the log has no room.
    fn log_node(&self, group: &mut Group<'_>, nid: Nid, named: bool) -> Result<bool> {
        let gone = || Error::Corrupt(format!("node {} is to be logged but has no changes", nid.0));
        let node = self.nodes.changed_node(nid).ok_or_else(gone)?;
        let version = self.nodes.nat.find(&self.device, nid)?.version;
        let content = Content::Node { now: &node.now, before: node.before.as_deref() };
        Ok(group.put(&Member { nid, ino: Nid(node.now.footer.ino.get()), version, named, content }))
    }

    /// Writes a node to its log on the device, with these fsync marks.
    pub(crate) fn write_node(&self, node: &mut NodeBlock, version: u64, marks: u32) -> Result<()> {
        let nid = Nid(node.footer.nid.get());
        let segments = &self.space()?.segments;
        let run = segments.allocate(&self.device, log_of(node), once(of_node(nid)))?;
        node.footer.checkpoint_version.set(version);
        node.footer.next.set(run.behind.0);
        // An earlier fsync's mark must not count any more.
        let others = node.footer.flag.get() & !(node_flag::FSYNC | node_flag::DENTRY);
        node.footer.flag.set(others | marks);
        self.nodes.seal(node);
        self.device.write(run.first, node.as_bytes())?;
        let old = BlockAddr(self.nodes.nat.moved(&self.device, nid, run.first)?.addr.get());
        if let Some(log) = &self.nodes.log {
            // Also if this checkpoint fails: records are changes of the block that the node had before.
            log.forget(nid);
        }
        segments.release_node(old)
    }
}

/// The log for a node: nodes of directories change soonest, nodes of node numbers last.
fn log_of(node: &NodeBlock) -> Log {
    let footer = &node.footer;
    match footer.flag.get() & node_flag::COLD == 0 {
        _ if NodeRole::of(footer.place(), 0) == Some(NodeRole::Indirect) => Log::ColdNode,
        true => Log::HotNode,
        false => Log::WarmNode,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn nodes_go_to_the_log_of_their_kind_and_file() {
        let log = |place: u32, flags: u32| {
            let mut node = NodeBlock::new_zeroed();
            node.footer.flag.set(place << node_flag::BITS | flags);
            log_of(&node)
        };
        // Inode, direct nodes, attributes.
        for place in [0, 1, 2, 4, node_flag::XATTR_PLACE] {
            assert_eq!(
                (log(place, 0), log(place, node_flag::FSYNC)),
                (Log::HotNode, Log::HotNode),
                "{place}"
            );
            assert_eq!(log(place, node_flag::COLD), Log::WarmNode, "{place}");
            assert_eq!(log(place, node_flag::COLD | node_flag::DENTRY), Log::WarmNode, "{place}");
        }
        for place in [3, 4 + 1018, 5 + 2036, 6 + 2036] {
            assert_eq!(
                (log(place, 0), log(place, node_flag::COLD)),
                (Log::ColdNode, Log::ColdNode),
                "{place}"
            );
        }
    }
}
