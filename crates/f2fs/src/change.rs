//! A change under way, with its reservation: blocks of users, node numbers, and room for the blocks that it
//! makes dirty.
//!
//! A call examines the objects that it will change, with all locks held, and states what it needs ([`Need`]).
//! That is reserved; otherwise the call fails and has changed nothing. All functions that take a block, a
//! page's pointer or a node are methods of [`Change`], so nothing takes space without a reservation. So an
//! error after the first step is never a lack of space. It is a half-done change, and fails the file system
//! (`F2fs::watched`).
//!
//! State       counts of this change alone, used by one thread. The counts of the image (`space`) are updated when the change is dropped,
//!             inside the call gate: so a checkpoint, which runs alone, sees no change under way.
//! Invariants  H1  blocks in use and reserved blocks together never exceed those that users may have.
//!             H2  blocks that a change frees it may take again; no other change may before this one is dropped.
//!             H3  the largest number of blocks that a change makes dirty is counted by the call gate (`call_gate`) while the change is
//!                 inside, and afterwards by pages and nodes.

use crate::format::{BLOCK_BYTES, NODE_POINTERS, NatEntry};
use crate::ids::Nid;
use crate::image::Media;
use crate::space::{Space, Taken};
use crate::steps;
use heddle_vfs::{Error, Result};
use std::cell::{Cell, RefCell};
use std::ops::{Add, Deref};

/// Blocks that a call makes dirty beside pages: inodes, entries of directories, attributes, and the nodes
/// that lead to them.
const DIRTY_BESIDE: u64 = 40;

/// What a call may need at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Need {
    /// Blocks for pages that have no pointer yet.
    pub(crate) pages: u64,
    /// New nodes, including inodes.
    pub(crate) nodes: u64,
    /// Blocks to be written until the next checkpoint, beyond those that every call is granted.
    pub(crate) dirty: u64,
}

impl Need {
    /// The need of a call that takes no space.
    pub(crate) const NONE: Need = Need { pages: 0, nodes: 0, dirty: 0 };

    /// The need of one more node.
    pub(crate) const NODE: Need = Need { pages: 0, nodes: 1, dirty: 0 };

    /// The need to write this many consecutive pages, at any place of the file.
    pub(crate) fn to_write(pages: u64) -> Need {
        // Two nodes at the ends, and each indirect node that gets a new number.
        let nodes = 2 * (pages / NODE_POINTERS as u64);
        Need { dirty: pages + nodes, ..Need::NONE }
    }

    /// All blocks that the call makes dirty.
    pub(crate) fn dirty_in_all(self) -> u64 {
        self.dirty + DIRTY_BESIDE
    }
}

impl Add for Need {
    type Output = Need;

    fn add(self, other: Need) -> Need {
        Need {
            pages: self.pages + other.pages,
            nodes: self.nodes + other.nodes,
            dirty: self.dirty + other.dirty,
        }
    }
}

/// A change under way, with its reservation.
pub(crate) struct Change<'m> {
    media: &'m Media,
    space: &'m Space,
    /// True: takes unreserved blocks too, while there are some. Only for a caller that is alone and gives up
    /// everything if there is none.
    takes_more: bool,
    /// Blocks reserved in the image's counts.
    aside: Cell<u64>,
    /// Blocks that can still be taken: reserved ones, and those that were freed.
    left: Cell<u64>,
    numbers: RefCell<Vec<(Nid, NatEntry)>>,
    taken: Cell<Taken>,
}

impl Deref for Change<'_> {
    type Target = Media;

    fn deref(&self) -> &Media {
        self.media
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.space.end_reservation(self.aside.get(), self.taken.get());
        self.media.nodes.nat.give_back(&self.numbers.borrow());
    }
}

impl Media {
    /// Reserves what a call needs.
    ///
    /// # Errors
    /// [`Error::NoSpace`] and [`Error::NoInodes`], with nothing changed; [`Error::ReadOnly`].
    pub(crate) fn set_aside(&self, need: Need) -> Result<Change<'_>> {
        let space = self.space()?;
        space.set_aside(need.pages + need.nodes)?;
        let change = self.changed_by(space, need.pages + need.nodes, false);
        if need.nodes > 0 {
            let numbers = self.nodes.nat.set_aside(&self.device, need.nodes as usize)?;
            change.numbers.replace(numbers);
        }
        Ok(change)
    }

    /// A change by a caller that has the image to itself and writes nothing to the device if it fails: it
    /// takes free blocks without a reservation.
    ///
    /// # Errors
    /// [`Error::ReadOnly`].
    pub(crate) fn alone(&self) -> Result<Change<'_>> {
        Ok(self.changed_by(self.space()?, 0, true))
    }

    fn changed_by<'m>(&'m self, space: &'m Space, aside: u64, takes_more: bool) -> Change<'m> {
        Change {
            media: self,
            space,
            takes_more,
            aside: Cell::new(aside),
            left: Cell::new(aside),
            numbers: RefCell::default(),
            taken: Cell::default(),
        }
    }
}

/// Pages without pointers, and the places of missing nodes.
#[derive(Default)]
pub(crate) struct Lacking {
    pub(crate) pages: u64,
    pub(crate) nodes: std::collections::BTreeSet<u32>,
}

impl Lacking {
    pub(crate) fn need(&self) -> Need {
        Need { pages: self.pages, nodes: self.nodes.len() as u64, dirty: 0 }
    }
}

impl Change<'_> {
    /// Takes one block.
    ///
    /// # Errors
    /// [`Error::NoSpace`] for a caller that is alone; [`Error::Corrupt`] if more is taken than was reserved.
    pub(crate) fn take_block(&self) -> Result<()> {
        match self.left.get() {
            0 if self.takes_more => {
                self.space.set_aside(1)?;
                self.aside.set(self.aside.get() + 1);
            }
            0 => return Err(Error::Corrupt("a change takes more blocks than its file can need".into())),
            left => self.left.set(left - 1),
        }
        steps::take();
        self.count(|taken| {
            taken.blocks += 1;
            taken.ever += 1;
        });
        Ok(())
    }

    /// Takes one node. Returns its number.
    ///
    /// # Errors
    /// As [`Change::take_block`]; [`Error::NoInodes`].
    pub(crate) fn take_node(&self, ino: Option<Nid>) -> Result<Nid> {
        if self.numbers.borrow().is_empty() && self.takes_more {
            let more = self.nodes.nat.set_aside(&self.device, 1)?;
            self.numbers.borrow_mut().extend(more);
        }
        self.take_block_of_node(ino.is_none())?;
        let number = self.numbers.borrow_mut().pop();
        let (nid, old) = number
            .ok_or_else(|| Error::Corrupt("a change takes more nodes than its file can need".into()))?;
        self.nodes.nat.take(nid, old, ino);
        Ok(nid)
    }

    /// Takes the block of a node that has a number.
    pub(crate) fn take_block_of_node(&self, is_inode: bool) -> Result<()> {
        self.take_block()?;
        self.count(|taken| {
            taken.nodes += 1;
            taken.inodes += i64::from(is_inode);
        });
        Ok(())
    }

    /// Frees this many data blocks.
    pub(crate) fn give_blocks(&self, count: u64) {
        steps::take();
        self.left.set(self.left.get() + count);
        self.count(|taken| taken.blocks -= count as i64);
    }

    /// Frees a node.
    pub(crate) fn give_node(&self, is_inode: bool) {
        self.give_blocks(1);
        self.count(|taken| {
            taken.nodes -= 1;
            taken.inodes -= i64::from(is_inode);
        });
    }

    fn count(&self, change: impl FnOnce(&mut Taken)) {
        let mut taken = self.taken.get();
        change(&mut taken);
        self.taken.set(taken);
    }
}

/// The pages that hold bytes of a range.
pub(crate) fn pages_of(offset: u64, end: u64) -> std::ops::Range<u64> {
    let page = BLOCK_BYTES as u64;
    offset / page..end.div_ceil(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_needs_what_its_parts_need() {
        let need = Need { pages: 1, nodes: 2, dirty: 3 } + Need { pages: 10, nodes: 20, dirty: 30 };
        assert_eq!(need, Need { pages: 11, nodes: 22, dirty: 33 });
        assert_eq!((need.dirty_in_all(), Need::NONE.dirty_in_all(), Need::NODE.nodes), (73, 40, 1));
        assert_eq!((Need::to_write(1017).dirty, Need::to_write(1018).dirty), (1017, 1020));
        assert_eq!(Need::to_write(5000), Need { pages: 0, nodes: 0, dirty: 5008 });
        let mut lacking = Lacking { pages: 7, ..Lacking::default() };
        lacking.nodes.extend([3, 4, 3]);
        assert_eq!(lacking.need(), Need { pages: 7, nodes: 2, dirty: 0 });
        assert_eq!([pages_of(0, 1), pages_of(4095, 4097), pages_of(4096, 8192)], [0..1, 0..2, 1..2]);
        assert!(pages_of(4096, 4096).is_empty());
    }

    #[test]
    fn a_change_takes_what_was_set_aside_and_no_more() {
        use crate::data::write::tests::Scene;
        let scene = Scene::new();
        let media = &scene.fs.media;
        let space = media.space().unwrap();
        let before = space.counts();
        let free = space.blocks_user - before.blocks;
        let has_exactly = |blocks: u64| space.has(blocks) && !space.has(blocks + 1);
        let change = media.set_aside(Need { pages: 2, nodes: 2, dirty: 9 }).unwrap();
        assert!(has_exactly(free - 4));
        assert_eq!((change.take_block(), change.take_block()), (Ok(()), Ok(())));
        let (one, two) = (change.take_node(None).unwrap(), change.take_node(Some(Nid(3))).unwrap());
        let ino = |nid| media.nodes.nat.find(&media.device, nid).unwrap().ino.get();
        assert_eq!((ino(one), ino(two)), (one.0, 3));
        assert!(matches!(change.take_block(), Err(Error::Corrupt(_))), "all is taken");
        assert!(matches!(change.take_node(None), Err(Error::Corrupt(_))));
        change.give_blocks(2);
        assert_eq!((change.take_block(), change.take_block()), (Ok(()), Ok(())), "what it frees it may take");
        assert!(change.take_block().is_err());
        change.give_blocks(1);
        drop(change);
        let after = space.counts();
        assert_eq!(
            (after.blocks, after.nodes, after.inodes),
            (before.blocks + 3, before.nodes + 2, before.inodes + 1)
        );
        assert!(has_exactly(free - 3), "what was not taken is given back");
        let change = media.set_aside(Need { pages: 1, ..Need::NONE }).unwrap();
        assert!(matches!(change.take_node(None), Err(Error::Corrupt(_))), "it has no number");
        change.give_blocks(1);
        change.give_node(true);
        change.give_node(false);
        drop(change);
        let after = space.counts();
        assert_eq!(
            (after.blocks, after.nodes, after.inodes),
            (before.blocks + 1, before.nodes + 1, before.inodes + 1)
        );
        assert!(has_exactly(free - 1));
        let too_much = media.set_aside(Need { pages: free, ..Need::NONE }).err();
        assert_eq!((too_much, has_exactly(free - 1)), (Some(Error::NoSpace), true));
    }

    #[test]
    fn a_change_alone_takes_what_is_free() {
        use crate::data::write::tests::Scene;
        let scene = Scene::new();
        let media = &scene.fs.media;
        let space = media.space().unwrap();
        let (before, free) = (space.counts(), space.blocks_user - space.counts().blocks);
        let change = media.alone().unwrap();
        assert_eq!((change.take_block(), change.take_block()), (Ok(()), Ok(())));
        let nids = [change.take_node(None).unwrap(), change.take_node(None).unwrap()];
        assert!(nids[0] != nids[1] && change.numbers.borrow().is_empty());
        change.give_blocks(2);
        drop(change);
        assert_eq!(space.counts().blocks, before.blocks + 2);
        assert!(space.has(free - 2) && !space.has(free - 1));
        // Blocks taken count for a recovery also if they were freed again.
        assert!(space.can_roll_forward());
        let change = media.set_aside(Need { pages: 1, ..Need::NONE }).unwrap();
        for _ in 0..free {
            change.take_block().unwrap();
            change.give_blocks(1);
        }
        drop(change);
        assert!(!space.can_roll_forward() && space.has(free - 2));
    }
}
