//! A checkpoint of the engine: everything that was changed goes to the device, and counts at once.
//!
//! It has the file system to itself (`F2fs::quiet`): every call waits meanwhile, as in Linux (`cp_rwsem`).
//!
//! Source      F2FS paper (FAST '15) section 2.4; F2FS range-lock paper (SYSTOR '19) section 3.1, which says what this costs.

use crate::checkpoint::{self, Checkpoint, Contents};
use crate::format::{NodeBlock, node_flag};
use crate::ids::{BlockAddr, Nid};
use crate::map::Place;
use crate::media::Media;
use crate::segments::{Log, of_node};
use heddle_vfs::Result;
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
        for nid in self.pages.inodes() {
            self.write_pages(nid)?;
        }
        let version = ledger.checkpoint.node_version();
        self.nodes.write(|node| self.write_node(node, version, 0))?;
        let nat_bitmap = self.nodes.nat.write(&self.device)?;
        let sit_bitmap = space.segments.write(&self.device)?;
        let (positions, mut summaries, segments_free) = space.segments.positions();
        self.device.flush()?;
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
        };
        ledger.checkpoint = checkpoint::write(&self.device, &self.geometry, &ledger.checkpoint, contents)?;
        ledger.since = Instant::now();
        // Nobody is inside who could take one of them meanwhile.
        for (first, blocks) in space.checkpointed() {
            self.device.discard(first, blocks);
        }
        self.nodes.nat.checkpointed();
        Ok(())
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
        if old.is_block() { segments.release(old) } else { Ok(()) }
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
