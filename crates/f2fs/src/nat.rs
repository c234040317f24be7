//! The position of each node: from the changes since the checkpoint, or else from the valid copy of the
//! table's block.
//!
//! The two copies of a block are in adjacent segments: blocks 0 to 511 of the table are at 0 to 511 or 512 to
//! 1023, and so on.
//!
//! State       one lock over all of it (Linux' `nat_tree_lock`). Entries that were read are cached; they are those of the valid copies.
//! Invariants  T1  a number is handed out only if it is free in memory and in the last checkpoint: so a node of the checkpoint is not
//!                 mistaken for a later one of the same number.

use crate::device::Device;
use crate::format::{NAT_ENTRIES, NatBlock, NatEntry, SEGMENT_BLOCKS, bit_msb, set_bit_msb};
use crate::ids::{BlockAddr, ByNid, Nid, Nids};
use crate::superblock::Geometry;
use heddle_vfs::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Smaller numbers are no files.
const FIRST_NID: u32 = 4;
/// Number of cached entries: some 2 MiB.
const KEPT_MAX: usize = 1 << 16;
/// Number of table blocks searched for free numbers at a time.
const BLOCKS_A_LOOK: u32 = 8;

/// The table.
pub(crate) struct Nat {
    start: BlockAddr,
    nids: u32,
    state: RwLock<State>,
    /// Number of node numbers freed since the checkpoint.
    freed: AtomicUsize,
}

#[derive(Default)]
struct State {
    bitmap: Vec<u8>,
    changes: ByNid<NatEntry>,
    /// Read and unchanged entries.
    kept: ByNid<NatEntry>,
    /// Numbers freed since the checkpoint (T1).
    freed: Nids,
    /// Numbers known to be free.
    unused: Vec<Nid>,
    /// Free numbers, reserved for changes under way.
    aside: Nids,
    /// The block of the table to search next.
    next_look: u32,
}

impl State {
    fn known(&self, nid: Nid) -> Option<NatEntry> {
        self.changes.get(&nid).or_else(|| self.kept.get(&nid)).copied()
    }
}

impl Nat {
    pub(crate) fn new(geometry: &Geometry, bitmap: Vec<u8>, changes: Vec<(Nid, NatEntry)>) -> Nat {
        let state = State { bitmap, changes: changes.into_iter().collect(), ..State::default() };
        Nat {
            start: geometry.nat,
            nids: geometry.nids(),
            state: RwLock::new(state),
            freed: AtomicUsize::new(0),
        }
    }

    /// Number of node numbers freed since the checkpoint; after the next one they can be reused (T1).
    pub(crate) fn freed(&self) -> usize {
        self.freed.load(Relaxed) // ORDERING: Relaxed, an estimate, to decide when to make a checkpoint.
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies changes that are newer than the checkpoint.
    pub(crate) fn change(&self, newer: Vec<(Nid, NatEntry)>) {
        self.state_mut().changes.extend(newer);
    }

    /// The entry of a node.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a number beyond the table.
    pub(crate) fn find(&self, device: &Device, nid: Nid) -> Result<NatEntry> {
        let state = self.state();
        if let Some(known) = state.known(nid) {
            return Ok(known);
        }
        let entry = self.entry(&state, device, nid)?;
        drop(state);
        let mut state = self.state_mut();
        if state.kept.len() >= KEPT_MAX {
            state.kept.clear();
        }
        // A change made meanwhile takes precedence; a checkpoint cannot have been in between.
        state.kept.insert(nid, entry);
        Ok(state.known(nid).unwrap_or(entry))
    }

    /// All numbers that a node has, in ascending order.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn used(&self, device: &Device) -> Result<Vec<(Nid, NatEntry)>> {
        let state = self.state();
        let mut used = Vec::new();
        for block in 0..self.nids / NAT_ENTRIES as u32 {
            let bytes = device.block(self.place(&state, block, false))?;
            for (n, stored) in table(&bytes[..])?.entries.iter().enumerate() {
                let nid = Nid(block * NAT_ENTRIES as u32 + n as u32);
                let entry = state.changes.get(&nid).unwrap_or(stored);
                if entry.addr.get() != 0 {
                    used.push((nid, *entry));
                }
            }
        }
        Ok(used)
    }

    fn entry(&self, state: &State, device: &Device, nid: Nid) -> Result<NatEntry> {
        if let Some(known) = state.known(nid) {
            return Ok(known);
        }
        if nid.0 >= self.nids {
            return Err(Error::Corrupt(format!("node {} of {} is asked for", nid.0, self.nids)));
        }
        let (block, entry) = (nid.0 / NAT_ENTRIES as u32, nid.0 as usize % NAT_ENTRIES);
        Ok(table(&device.block(self.place(state, block, false))?[..])?.entries[entry])
    }

    /// Position of the valid copy of the table's block `block`, or of the `other` copy.
    fn place(&self, state: &State, block: u32, other: bool) -> BlockAddr {
        let (pair, within) = (block / SEGMENT_BLOCKS, block % SEGMENT_BLOCKS);
        let second = if bit_msb(&state.bitmap, block as usize) != other { SEGMENT_BLOCKS } else { 0 };
        self.start.plus(pair * 2 * SEGMENT_BLOCKS + second + within)
    }

    /// Notes the node's new block.
    pub(crate) fn moved(&self, device: &Device, nid: Nid, addr: BlockAddr) -> Result<NatEntry> {
        let mut state = self.state_mut();
        let old = self.entry(&state, device, nid)?;
        state.changes.insert(nid, NatEntry { addr: U32::new(addr.0), ..old });
        Ok(old)
    }

    /// Reserves free numbers for a change. Returns them with their entries.
    ///
    /// # Errors
    /// [`Error::NoInodes`] if there are too few.
    pub(crate) fn set_aside(&self, device: &Device, count: usize) -> Result<Vec<(Nid, NatEntry)>> {
        let mut state = self.state_mut();
        let mut found = Vec::new();
        while found.len() < count {
            let one = self.next_unused(&mut state, device);
            match one.and_then(|nid| Ok((nid, self.entry(&state, device, nid)?))) {
                Ok(number) => {
                    state.aside.insert(number.0);
                    found.push(number);
                }
                Err(error) => {
                    drop(state);
                    self.give_back(&found);
                    return Err(error);
                }
            }
        }
        // The first number found is taken first.
        found.reverse();
        Ok(found)
    }

    fn next_unused(&self, state: &mut State, device: &Device) -> Result<Nid> {
        if state.unused.is_empty() {
            self.look(state, device)?;
        }
        state.unused.pop().ok_or(Error::NoInodes)
    }

    /// A reserved number becomes a node's, of the inode `ino`; `None`: an inode's.
    pub(crate) fn take(&self, nid: Nid, old: NatEntry, ino: Option<Nid>) {
        let mut state = self.state_mut();
        let ino = U32::new(ino.unwrap_or(nid).0);
        state.aside.remove(&nid);
        state.changes.insert(nid, NatEntry { ino, addr: U32::new(BlockAddr::NEW.0), ..old });
    }

    /// Returns reserved numbers that were not taken.
    pub(crate) fn give_back(&self, numbers: &[(Nid, NatEntry)]) {
        if numbers.is_empty() {
            return;
        }
        let mut state = self.state_mut();
        for (nid, _) in numbers {
            state.aside.remove(nid);
            state.unused.push(*nid);
        }
    }

    /// Takes the free number of an inode that is newer than the checkpoint, before any other number is taken.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not free.
    pub(crate) fn claim(&self, device: &Device, nid: Nid) -> Result<()> {
        let mut state = self.state_mut();
        let old = self.entry(&state, device, nid)?;
        if old.addr.get() != 0 || nid.0 < FIRST_NID || state.freed.contains(&nid) {
            return Err(Error::Corrupt(format!(
                "inode {} was fsynced as a new inode, but its number is in use",
                nid.0
            )));
        }
        state.changes.insert(nid, NatEntry { ino: U32::new(nid.0), addr: U32::new(BlockAddr::NEW.0), ..old });
        Ok(())
    }

    /// Searches for free numbers, block by block from the end of the last search, until some are found or all
    /// blocks were searched. A block that cannot be read has no free number.
    ///
    /// # Errors
    /// [`Error::Io`] if none is found and a block could not be read.
    fn look(&self, state: &mut State, device: &Device) -> Result<()> {
        let blocks = self.nids / NAT_ENTRIES as u32;
        let mut looked = 0;
        let mut unread = None;
        while looked < blocks && (looked < BLOCKS_A_LOOK || state.unused.is_empty()) {
            let block = state.next_look % blocks;
            state.next_look = (block + 1) % blocks;
            looked += 1;
            let bytes = match device.block(self.place(state, block, false)) {
                Ok(bytes) => bytes,
                Err(error) => {
                    unread = Some(error);
                    continue;
                }
            };
            for (n, stored) in table(&bytes[..])?.entries.iter().enumerate() {
                let nid = Nid(block * NAT_ENTRIES as u32 + n as u32);
                let entry = state.changes.get(&nid).unwrap_or(stored);
                if nid.0 >= FIRST_NID
                    && entry.addr.get() == 0
                    && !state.freed.contains(&nid)
                    && !state.aside.contains(&nid)
                {
                    state.unused.push(nid);
                }
            }
        }
        state.unused.reverse();
        match unread {
            Some(error) if state.unused.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    /// Frees the number; it can be reused after the next checkpoint. Blocks of its old node are recognised by
    /// the version.
    pub(crate) fn free(&self, device: &Device, nid: Nid) -> Result<NatEntry> {
        let mut state = self.state_mut();
        let old = self.entry(&state, device, nid)?;
        let version = old.version.wrapping_add(1);
        state.changes.insert(nid, NatEntry { version, ino: U32::new(0), addr: U32::new(0) });
        state.freed.insert(nid);
        self.freed.store(state.freed.len(), Relaxed); // ORDERING: Relaxed, as in `freed`.
        Ok(old)
    }

    /// Writes the changes to the invalid copies. Returns the bitmap that makes these copies valid.
    pub(crate) fn write(&self, device: &Device) -> Result<Vec<u8>> {
        let mut state = self.state_mut();
        let mut blocks: BTreeMap<u32, Vec<(Nid, NatEntry)>> = BTreeMap::new();
        for (nid, entry) in &state.changes {
            blocks.entry(nid.0 / NAT_ENTRIES as u32).or_default().push((*nid, *entry));
        }
        for (block, entries) in blocks {
            let mut bytes = device.block(self.place(&state, block, false))?;
            let table = NatBlock::mut_from_bytes(&mut bytes[..])
                .map_err(|error| Error::Corrupt(error.to_string()))?;
            for (nid, entry) in entries {
                table.entries[nid.0 as usize % NAT_ENTRIES] = entry;
            }
            // Readers use the new copy only when it is written.
            device.write(self.place(&state, block, true), table.as_bytes())?;
            let other = !bit_msb(&state.bitmap, block as usize);
            set_bit_msb(&mut state.bitmap, block as usize, other);
        }
        let changes = std::mem::take(&mut state.changes);
        if state.kept.len() + changes.len() > KEPT_MAX {
            state.kept.clear();
        }
        state.kept.extend(changes.into_iter().take(KEPT_MAX));
        Ok(state.bitmap.clone())
    }

    /// Called when the checkpoint is valid.
    pub(crate) fn checkpointed(&self) {
        let mut state = self.state_mut();
        state.freed.clear();
        self.freed.store(0, Relaxed); // ORDERING: Relaxed, as in `freed`.
    }

    /// The number at which the next search for free ones begins.
    pub(crate) fn next_free(&self) -> Nid {
        let state = self.state();
        Nid((state.next_look * NAT_ENTRIES as u32).max(FIRST_NID))
    }
}

fn table(bytes: &[u8]) -> Result<&NatBlock> {
    NatBlock::ref_from_bytes(bytes).map_err(|error| Error::Corrupt(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Access;
    use crate::format::BLOCK_BYTES;
    use zerocopy::FromZeros;

    #[test]
    fn copies_of_a_block_lie_one_segment_apart() {
        let state = State { bitmap: vec![0x40; 128], ..State::default() };
        let nat =
            Nat { start: BlockAddr(1000), nids: 0, state: RwLock::default(), freed: AtomicUsize::new(0) };
        // The bitmap selects the second copy of every eighth block, from block 1 on.
        for (block, place) in [(0, 1000), (1, 1513), (2, 1002), (511, 1511), (512, 2024), (513, 2537)] {
            assert_eq!(nat.place(&state, block, false), BlockAddr(place), "block {block}");
            let other = if bit_msb(&state.bitmap, block as usize) { place - 512 } else { place + 512 };
            assert_eq!(nat.place(&state, block, true), BlockAddr(other), "the other of block {block}");
        }
    }

    #[test]
    fn a_table_block_that_cannot_be_read_costs_its_own_numbers_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 * BLOCK_BYTES as u64).unwrap();
        let device = Device::open(file.path(), Access::Write).unwrap();
        // The second copy of block 0 is valid; it lies behind the end of the device.
        let state = State { bitmap: vec![0x80; 128], ..State::default() };
        let nids = 2 * NAT_ENTRIES as u32;
        let nat = Nat { start: BlockAddr(2), nids, state: RwLock::new(state), freed: AtomicUsize::new(0) };
        let found = nat.set_aside(&device, NAT_ENTRIES).unwrap();
        assert!(found.iter().all(|(nid, _)| nid.0 >= NAT_ENTRIES as u32));
        assert!(matches!(nat.set_aside(&device, 1), Err(Error::Io(_))));
    }

    /// A table of so many blocks, whose numbers are in use but for `free`; the first copy of each block is valid.
    fn table_of(blocks: u32, free: &[u32]) -> (tempfile::NamedTempFile, Device, Nat) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(2048 * BLOCK_BYTES as u64).unwrap();
        let device = Device::open(file.path(), Access::Write).unwrap();
        for block in 0..blocks {
            let mut table = NatBlock::new_zeroed();
            for (n, entry) in table.entries.iter_mut().enumerate() {
                let nid = block * NAT_ENTRIES as u32 + n as u32;
                let addr = if free.contains(&nid) { 0 } else { 10_000 + nid };
                *entry = NatEntry { version: 5, ino: U32::new(nid), addr: U32::new(addr) };
            }
            device.write(BlockAddr(100 + block), table.as_bytes()).unwrap();
        }
        let state = State { bitmap: vec![0; 128], ..State::default() };
        let nids = blocks * NAT_ENTRIES as u32;
        let nat = Nat { start: BlockAddr(100), nids, state: RwLock::new(state), freed: AtomicUsize::new(0) };
        (file, device, nat)
    }

    fn aside(nat: &Nat, device: &Device, count: usize) -> Result<Vec<u32>> {
        let found = nat.set_aside(device, count)?;
        assert!(found.iter().all(|(_, entry)| entry.version == 5));
        Ok(found.into_iter().map(|(nid, _)| nid.0).collect())
    }

    #[test]
    fn free_numbers_are_found_in_eight_blocks_at_a_time() {
        // Of 20 blocks, the eighth is the last of the first look, the ninth the first of the second one.
        let n = NAT_ENTRIES as u32;
        let free = [0, 3, 4, 7, 7 * n + 3, 8 * n, 15 * n + 454, 19 * n + 1];
        let (_file, device, nat) = table_of(20, &free);
        assert_eq!(nat.next_free(), Nid(FIRST_NID));
        assert_eq!(
            aside(&nat, &device, 3),
            Ok(vec![7 * n + 3, 7, 4]),
            "the first is taken first, from behind"
        );
        assert_eq!(nat.next_free(), Nid(8 * n));
        assert_eq!(aside(&nat, &device, 1), Ok(vec![8 * n]));
        assert_eq!(nat.next_free(), Nid(16 * n));
        // The third look goes around: blocks 16 to 19, and 0 to 3, whose free numbers are reserved.
        assert_eq!(aside(&nat, &device, 2), Ok(vec![19 * n + 1, 15 * n + 454]));
        assert_eq!(nat.next_free(), Nid(4 * n));
        assert_eq!(aside(&nat, &device, 1), Err(Error::NoInodes));
        // What was reserved before an error is given back.
        let entry = nat.find(&device, Nid(4)).unwrap();
        nat.give_back(&[(Nid(4), entry)]);
        assert_eq!(aside(&nat, &device, 2), Err(Error::NoInodes));
        assert_eq!(aside(&nat, &device, 1), Ok(vec![4]));
    }

    #[test]
    fn a_freed_number_is_not_used_before_the_next_checkpoint() {
        let n = NAT_ENTRIES as u32;
        let (_file, device, nat) = table_of(1, &[9]);
        assert_eq!(nat.freed(), 0);
        let old = nat.free(&device, Nid(20)).unwrap();
        assert_eq!((old.addr.get(), old.version, nat.freed()), (10_020, 5, 1));
        let gone = nat.find(&device, Nid(20)).unwrap();
        assert_eq!((gone.addr.get(), gone.ino.get(), gone.version), (0, 0, 6));
        assert_eq!((aside(&nat, &device, 1), aside(&nat, &device, 1)), (Ok(vec![9]), Err(Error::NoInodes)));
        assert!(matches!(nat.claim(&device, Nid(20)), Err(Error::Corrupt(_))));
        nat.checkpointed();
        assert_eq!(nat.freed(), 0);
        let found = nat.set_aside(&device, 1).unwrap();
        assert_eq!((found[0].0, found[0].1.version), (Nid(20), 6));
        nat.take(Nid(20), found[0].1, Some(Nid(7)));
        let taken = nat.find(&device, Nid(20)).unwrap();
        assert_eq!((taken.ino.get(), taken.addr.get(), taken.version), (7, BlockAddr::NEW.0, 6));
        nat.take(Nid(9), nat.find(&device, Nid(9)).unwrap(), None);
        assert_eq!(nat.find(&device, Nid(9)).unwrap().ino.get(), 9, "an inode is its own");
        assert_eq!(nat.moved(&device, Nid(9), BlockAddr(77)).unwrap().addr.get(), BlockAddr::NEW.0);
        let moved = nat.find(&device, Nid(9)).unwrap();
        assert_eq!((moved.ino.get(), moved.addr.get(), moved.version), (9, 77, 5));
        for nid in [n, u32::MAX] {
            assert!(matches!(nat.find(&device, Nid(nid)), Err(Error::Corrupt(_))), "{nid}");
        }
        assert!(nat.find(&device, Nid(n - 1)).is_ok());
    }

    #[test]
    fn a_number_is_claimed_if_it_is_a_files_and_free() {
        let (_file, device, nat) = table_of(1, &[0, 3, 4, 5]);
        for nid in [0, 3, 6, NAT_ENTRIES as u32] {
            assert!(matches!(nat.claim(&device, Nid(nid)), Err(Error::Corrupt(_))), "{nid}");
        }
        assert_eq!((nat.claim(&device, Nid(4)), nat.claim(&device, Nid(5))), (Ok(()), Ok(())));
        let entry = nat.find(&device, Nid(4)).unwrap();
        assert_eq!((entry.ino.get(), entry.addr.get(), entry.version), (4, BlockAddr::NEW.0, 5));
        assert!(nat.claim(&device, Nid(4)).is_err(), "it is taken");
        assert_eq!(nat.set_aside(&device, 1), Err(Error::NoInodes));
    }

    #[test]
    fn changes_are_written_to_the_other_copies_alone() {
        let n = NAT_ENTRIES as u32;
        let (_file, device, nat) = table_of(10, &[]);
        nat.moved(&device, Nid(n + 3), BlockAddr(1)).unwrap();
        nat.moved(&device, Nid(9 * n + 454), BlockAddr(2)).unwrap();
        let before = [0, 1, 9].map(|block| device.block(BlockAddr(100 + block)).unwrap());
        let bitmap = nat.write(&device).unwrap();
        assert_eq!((bitmap[0], bitmap[1]), (0x40, 0x40));
        assert!(before == [0, 1, 9].map(|block| device.block(BlockAddr(100 + block)).unwrap()));
        let again = Nat { state: RwLock::new(State { bitmap, ..State::default() }), ..table_again(&nat) };
        let addr = |nid: u32| again.find(&device, Nid(nid)).unwrap().addr.get();
        assert_eq!([n + 3, 9 * n + 454, n + 4, 3].map(addr), [1, 2, 10_000 + n + 4, 10_003]);
        assert_eq!(nat.find(&device, Nid(n + 3)).unwrap().addr.get(), 1, "what was written is known");
        let used = again.used(&device).unwrap();
        assert_eq!((used.len(), used[0].0, used[n as usize + 3].1.addr.get()), (10 * n as usize, Nid(0), 1));
        again.free(&device, Nid(5)).unwrap();
        let used = again.used(&device).unwrap();
        assert_eq!((used.len(), used[5].0), (10 * n as usize - 1, Nid(6)));
        // Written a second time, the first copies are valid again.
        assert_eq!(nat.write(&device).unwrap()[..2], [0x40, 0x40], "nothing has changed");
        nat.moved(&device, Nid(n + 3), BlockAddr(8)).unwrap();
        assert_eq!(nat.write(&device).unwrap()[..2], [0, 0x40]);
        assert_eq!(nat.find(&device, Nid(n + 3)).unwrap().addr.get(), 8);
    }

    fn table_again(nat: &Nat) -> Nat {
        Nat { start: nat.start, nids: nat.nids, state: RwLock::default(), freed: AtomicUsize::new(0) }
    }

    #[test]
    fn entries_that_were_read_or_written_are_kept_up_to_a_limit() {
        let (_file, device, nat) = table_of(2, &[]);
        let kept = || nat.state().kept.len();
        for (n, nid) in [3, 3, 7, 460].into_iter().enumerate() {
            nat.find(&device, Nid(nid)).unwrap();
            assert_eq!(kept(), [1, 1, 2, 3][n]);
        }
        let most = 65_536;
        let fill_to = |len: usize| {
            let entry = nat.find(&device, Nid(3)).unwrap();
            let mut state = nat.state_mut();
            state.kept = (0..len as u32).map(|n| (Nid(1_000_000 + n), entry)).collect();
        };
        for (before, after) in [(most - 1, most), (most, 1)] {
            fill_to(before);
            nat.find(&device, Nid(9)).unwrap();
            assert_eq!(kept(), after);
        }
        for (before, after) in [(most - 2, most), (most - 1, 2), (0, 2)] {
            nat.moved(&device, Nid(3), BlockAddr(1)).unwrap();
            nat.moved(&device, Nid(460), BlockAddr(2)).unwrap();
            fill_to(before);
            nat.write(&device).unwrap();
            assert_eq!(kept(), after, "after {before}");
            assert_eq!(nat.find(&device, Nid(460)).unwrap().addr.get(), 2);
        }
    }
}
