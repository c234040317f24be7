//! A checkpoint of the engine: everything that was changed goes to the device, and counts at once. With a node log it is a fold, and most
//! of the time an epoch does: pages go to the device, nodes into the log, and no table is written.
//!
//! Either has the file system to itself (`F2fs::quiet`): every call waits meanwhile, as in Linux (`cp_rwsem`).
//!
//! Source      F2FS paper (FAST '15) section 2.4; F2FS range-lock paper (SYSTOR '19) section 3.1, which says what this costs, and 3.3.

use super::Checkpoint;
use super::write::{Contents, write};
use crate::format::{NodeBlock, node_flag};
use crate::ids::{BlockAddr, Nid, Nids};
use crate::image::Media;
use crate::node::block_map::Place;
use crate::node_log::{Content, Group, Member, NodeLog};
use crate::planted::{Breach, breaks};
use crate::segments::{Log, of_node};
use heddle_vfs::{Error, Result};
use std::collections::BTreeSet;
use std::iter::once;
use std::time::Instant;
use zerocopy::IntoBytes;

/// The checkpoint that counts, and what the next one says besides.
pub(crate) struct Ledger {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) orphans: BTreeSet<Nid>,
    pub(crate) since: Instant,
}

impl Media {
    /// Writes a checkpoint. Nobody else is inside.
    pub(crate) fn commit(&self, ledger: &mut Ledger, unmounts: bool) -> Result<()> {
        let space = self.space()?;
        self.device.check_size()?;
        for nid in self.pages.inodes() {
            self.write_pages(nid)?;
        }
        let version = ledger.checkpoint.node_version();
        let changed: Nids = self.nodes.all_changed().into_iter().collect();
        self.nodes.write(|node| self.write_node(node, version, 0))?;
        let logged = self.nodes.log.as_ref().map(NodeLog::nids).unwrap_or_default();
        for nid in logged.into_iter().filter(|nid| !changed.contains(nid)) {
            self.nodes.fold(&self.device, &self.geometry, nid, |node| self.write_node(node, version, 0))?;
        }
        let nat_bitmap = self.nodes.nat.write(&self.device)?;
        let sit_bitmap = space.segments.write(&self.device)?;
        let (positions, mut summaries, segments_free) = space.segments.positions();
        let orphans: Vec<Nid> = ledger.orphans.iter().copied().collect();
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
            elapsed_secs: ledger.since.elapsed().as_secs(),
            announce: &|next| self.nodes.log.as_ref().map_or(Ok(()), |log| log.will_fold(next)),
        };
        ledger.checkpoint = write(&self.device, &self.geometry, &ledger.checkpoint, contents)?;
        ledger.since = Instant::now();
        // No call is inside that could take one of them meanwhile.
        for (first, blocks) in space.checkpointed() {
            self.device.discard(first, blocks);
        }
        self.nodes.nat.checkpointed();
        match &self.nodes.log {
            Some(log) => log.folded(ledger.checkpoint.identity()),
            None => Ok(()),
        }
    }

    /// Writes an epoch, if there is a log that has room for it; false: it is to be a checkpoint. Nobody else is inside.
    pub(crate) fn close_epoch(&self) -> Result<bool> {
        let Some(log) = self.nodes.log.as_ref().filter(|log| !log.is_filling()) else { return Ok(false) };
        for nid in self.pages.inodes() {
            self.write_pages(nid)?;
        }
        if !breaks(Breach::FlushForgotten) {
            self.device.flush()?;
        }
        let (changed, deleted) = (self.nodes.all_changed(), log.all_deleted());
        if changed.is_empty() && deleted.is_empty() {
            // Numbers that came free meanwhile were given to nothing durable, or the log says that they are free.
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
        self.space()?.epoch_closed();
        Ok(true)
    }

    /// Puts what has changed of a file's nodes, and which of them are no more, into the log; false: it has no room.
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

    /// Begins a group of the log; before the first one the image says that it has one.
    fn begin_group<'l>(&self, log: &'l NodeLog, members: usize, epoch: bool) -> Result<Group<'l>> {
        log.mark(&self.device)?;
        log.begin(members, epoch)
    }

    /// Puts a changed node into the log; false: it has no room.
    fn log_node(&self, group: &mut Group<'_>, nid: Nid, named: bool) -> Result<bool> {
        let gone = || Error::Corrupt(format!("node {} is to be logged, and is not changed", nid.0));
        let node = self.nodes.changed_node(nid).ok_or_else(gone)?;
        let version = self.nodes.nat.find(&self.device, nid)?.version;
        let content = Content::Node { now: &node.now, before: node.before.as_deref() };
        Ok(group.put(&Member { nid, ino: Nid(node.now.footer.ino.get()), version, named, content }))
    }

    /// Writes a node into its log, with these marks of an fsync.
    pub(crate) fn write_node(&self, node: &mut NodeBlock, version: u64, marks: u32) -> Result<()> {
        let nid = Nid(node.footer.nid.get());
        let segments = &self.space()?.segments;
        let run = segments.allocate(&self.device, log_of(node), once(of_node(nid)))?;
        node.footer.checkpoint_version.set(version);
        node.footer.next.set(run.behind.0);
        // What an earlier fsync marked counts as anything else now.
        let others = node.footer.flag.get() & !(node_flag::FSYNC | node_flag::DENTRY);
        node.footer.flag.set(others | marks);
        self.nodes.seal(node);
        self.device.write(run.first, node.as_bytes())?;
        let old = BlockAddr(self.nodes.nat.moved(&self.device, nid, run.first)?.addr.get());
        segments.release_node(old)
    }
}

/// Where a node goes: those of directories change soonest, those of node numbers last.
fn log_of(node: &NodeBlock) -> Log {
    let footer = &node.footer;
    match footer.flag.get() & node_flag::COLD == 0 {
        _ if Place::of(footer.place(), 0) == Some(Place::Indirect) => Log::ColdNode,
        true => Log::HotNode,
        false => Log::WarmNode,
    }
}
