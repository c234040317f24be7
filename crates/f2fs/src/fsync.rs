//! fsync: writes the pages of the file, then its nodes, the last one marked. A mount that finds no newer
//! checkpoint recovers them (`roll_forward`). With a node log the nodes are written there instead, and need
//! no mark and no second flush.
//!
//! State       `F2fs::fsync_chain`: its holder may write nodes to the chain. Each node names the block of the next one, and a missing
//!             node ends the chain. So nodes are written in the order of their blocks, and only by the holder.
//! Lock order  the call gate, the file's inode, the fsync chain, and then the locks of the tables.
//! Crash order pages, a flush, nodes, a flush. Without the first flush, marked nodes could lead to blocks without their bytes.
//!             The last node has the mark: without it the earlier nodes do not count. As in Linux, a written block reaches the
//!             media whole or not at all; an inode's checksum, where there is one, verifies that.
//! Source      F2FS paper (FAST '15) section 2.4.2.

use crate::format::{NodeBlock, node_flag};
use crate::ids::Nid;
use crate::inode::{check_same_inode, nid_of};
use crate::mounted::F2fs;
use crate::node::block_map::NodeRole;
use crate::node_log::NodeLog;
use crate::planted::{Breach, breaks};
use crate::space::fsync_tracker::Durable;
use heddle_vfs::{Error, Handle, Result};
use std::sync::PoisonError;
use std::time::Duration;

/// Age of the last checkpoint from which an fsync makes a new one: this limits the number of nodes to be
/// recovered.
const CHECKPOINT_AGE_MAX: Duration = Duration::from_secs(60);

impl F2fs {
    /// Makes an open file durable.
    pub(crate) fn make_durable(&self, handle: &Handle) -> Result<()> {
        if self.fsync_nodes(handle)? { Ok(()) } else { self.checkpoint() }
    }

    /// Returns true if writing its nodes was enough.
    fn fsync_nodes(&self, handle: &Handle) -> Result<bool> {
        self.not_failed()?;
        let space = self.media.space()?;
        let _inside = self.inside();
        let nid = nid_of(handle.ino)?;
        let _locked = self.guards.alone(&[nid]);
        // An earlier holder of the inode may have failed.
        self.not_failed()?;
        let inode = self.media.inode(nid)?;
        check_same_inode(handle, &inode)?;
        let (version, age) = {
            let state = self.checkpoint_state();
            (state.checkpoint.node_version(), state.since.elapsed())
        };
        let log = self.media.nodes.log.as_ref();
        if log.is_none() && age > CHECKPOINT_AGE_MAX || !space.can_roll_forward() {
            return Ok(false);
        }
        let way = space.since.way_of(&inode, log.is_some());
        let Durable::ByNodes { with_name } = way else { return Ok(false) };
        if breaks(Breach::FsyncForgets) {
            return Ok(true);
        }
        // A gap in the chain hides all nodes written behind it.
        self.watched_from_the_start(|| {
            let written = match log {
                Some(log) => self.log_file(log, nid, with_name),
                None => self.write_file(nid, version, with_name).map(|()| true),
            };
            match written {
                // If the image is really full, the checkpoint reports that too.
                Err(Error::NoSpace) => Ok(false),
                written => written,
            }
        })
    }

    /// Writes the file's nodes to the log. Returns false if the log has no room.
    fn log_file(&self, log: &NodeLog, nid: Nid, with_name: bool) -> Result<bool> {
        self.flush_pages(nid)?;
        self.media.log_nodes_of(log, nid, with_name)
    }

    fn flush_pages(&self, nid: Nid) -> Result<()> {
        let media = &self.media;
        let wrote = media.write_pages(nid)?;
        if media.space()?.since.take_spilled(nid) || wrote { media.device.flush() } else { Ok(()) }
    }

    fn write_file(&self, nid: Nid, version: u64, with_name: bool) -> Result<()> {
        let media = &self.media;
        self.flush_pages(nid)?;
        let mut nodes = media.nodes.changed_of(nid);
        if nodes.is_empty() {
            return Ok(());
        }
        // The inode comes last, and has the mark. Indirect nodes follow from it and from the places of the
        // direct ones.
        media.nodes.change(&media.device, &media.geometry, nid, |_| ())?;
        nodes.retain(|(node, place)| *node != nid && NodeRole::of(*place, 0) != Some(NodeRole::Indirect));
        let mark = node_flag::FSYNC | if with_name { node_flag::DENTRY } else { 0 };
        media.space()?.since.goes_ahead(nodes.len() + 1);
        let chain = self.fsync_chain.lock().unwrap_or_else(PoisonError::into_inner);
        let put = |node: &mut NodeBlock, marks| {
            // Without this flag, which other tools or damage may have left out, it would go to a log without the chain.
            node.footer.flag.set(node.footer.flag.get() | node_flag::COLD);
            media.write_node(node, version, marks)
        };
        for (node, _) in nodes {
            media.nodes.write_one(node, |node| put(node, 0))?;
        }
        media.nodes.write_one(nid, |node| put(node, mark))?;
        drop(chain);
        media.device.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::write::tests::{OWN, Scene};
    use heddle_vfs::FileSystem;
    use std::time::Instant;

    #[test]
    fn nodes_are_enough_until_the_last_checkpoint_is_a_minute_old() {
        let scene = Scene::new();
        let file = scene.whole("file", 1);
        scene.fs.sync().unwrap();
        for (age, is_enough) in [(0, true), (50, true), (61, false), (3600, false), (10, true)] {
            scene.fs.write(&file, 0, &[age as u8; 4096]).unwrap();
            let since = Instant::now().checked_sub(Duration::from_secs(age));
            let Some(since) = since else { continue };
            scene.fs.checkpoint_state().since = since;
            assert_eq!(scene.fs.fsync_nodes(&file), Ok(is_enough), "{age} seconds");
        }
        scene.fs.make_durable(&file).unwrap();
    }

    #[test]
    fn an_fsync_writes_the_inode_last_and_counts_its_nodes() {
        let scene = Scene::new();
        let file = scene.file("file", &[0..1, OWN..OWN + 1]);
        scene.fs.sync().unwrap();
        let (media, nid) = (&scene.fs.media, nid_of(file.ino).unwrap());
        let ahead = || media.space().unwrap().since.nodes_ahead();
        let footer = |nid| {
            let addr = media.nodes.nat.find(&media.device, nid).unwrap().addr.get();
            let node =
                media.nodes.on_device(&media.device, &media.geometry, nid, crate::ids::BlockAddr(addr));
            let footer = node.unwrap().footer.clone();
            (addr, footer.flag.get(), footer.next.get())
        };
        scene.fs.write(&file, 0, &[1; 4096]).unwrap();
        assert_eq!((scene.fs.fsync_nodes(&file), ahead()), (Ok(true), 1));
        scene.fs.write(&file, OWN * 4096, &[1; 4096]).unwrap();
        assert_eq!((scene.fs.fsync_nodes(&file), ahead()), (Ok(true), 1 + 2));
        let direct = Nid(scene.inode(&file).block().nid[0].get());
        let (before, last) = (footer(direct), footer(nid));
        assert_eq!((before.1, before.2), (1 << node_flag::BITS | node_flag::COLD, last.0));
        assert_eq!((last.1, last.2), (node_flag::COLD | node_flag::FSYNC, last.0 + 1));
        // One that changed nothing writes nothing.
        assert_eq!((scene.fs.fsync_nodes(&file), ahead()), (Ok(true), 3));
        let new = scene.whole("new", 1);
        assert_eq!((scene.fs.fsync_nodes(&new), ahead()), (Ok(true), 4));
        let made = footer(nid_of(new.ino).unwrap());
        assert_eq!(made.1, node_flag::COLD | node_flag::FSYNC | node_flag::DENTRY);
        // A checkpoint's nodes have no mark, whatever they had.
        scene.fs.write(&file, 0, &[2; 4096]).unwrap();
        scene.fs.write(&new, 0, &[2; 4096]).unwrap();
        scene.fs.sync().unwrap();
        let flags = [nid, nid_of(new.ino).unwrap()].map(|nid| footer(nid).1);
        assert_eq!((flags, ahead()), ([node_flag::COLD; 2], 0));
    }
}
