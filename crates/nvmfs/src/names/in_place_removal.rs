//! Removing a name when there is no room for a record: the record that made the name is turned, in place,
//! into one that removes it.
//!
//! So an image that is full to its last block can be emptied name by name: no unlink and no rmdir needs a new
//! block.
//!
//! Invariants  I1  the caller holds the name's bucket, and has marked it `changing` before the first store. A settler then reads the log.
//!             I2  only pages of chains that the caller's lane has borrowed are read; pages of other chains may be unlinked and
//!                 reused at any moment. The caller waits for no chain, since its user may be waiting for the bucket. [`find`] returns
//!                 `None` instead, and the caller starts over.
//!             I3  cleaning copies a record of a name unchanged, with its version. Of two records of one version and name the removal
//!                 counts, here, at recovery and for fsck.
//! Lock order  bucket, `heads` of the directory; chains are only tried.
//! Crash order C1  kind and checksum share a word: one store of eight bytes makes the change, and a fence makes it durable.
//!             C2  of several copies the one in the latest page is changed first, each after a fence. A removal is dropped no sooner
//!                 than records older than its page (`garbage`, I2), so the name does not come back.

use crate::format::page::{PageHeader, SLOTS, slot_pos};
use crate::format::record::{FoundRecord, Record, parse, removal_word};
use crate::ids::{BlockNo, Version};
use crate::log::chain::{self, Chain};
use crate::planted::{Met, met};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::latch::Latched;
use crate::state::papers::one_chain;
use crate::steps::{Step, step};
use heddle_vfs::Result;

/// The position of a record of the name.
struct NameRecord {
    era: u64,
    page: BlockNo,
    slot: u32,
    seed: u32,
}

/// All records that make a name, and the chains that they lie in. The chains are released when this is
/// dropped.
pub struct NameRecords<'c> {
    core: &'c Core,
    records: Vec<NameRecord>,
    borrowed: Vec<(&'c Chain, u32)>,
    _heads: Option<Latched<'c>>,
}

impl Drop for NameRecords<'_> {
    fn drop(&mut self) {
        self.borrowed.drain(..).for_each(|(chain, owner)| chain.put_back(owner));
    }
}

/// Finds the records. Returns `None` if another call uses a chain of the directory. `version`: the name's
/// version in its bucket.
pub fn find<'c>(
    core: &'c Core,
    lane: u16,
    dir: InodeRef<'c>,
    name: &[u8],
    version: Version,
) -> Result<Option<NameRecords<'c>>> {
    let alone = one_chain(core);
    // One call at a time: two calls that try would keep each other from the chains.
    let heads = (!alone).then(|| dir.volatile.heads.lock());
    let mut found = NameRecords { core, records: Vec::new(), borrowed: Vec::new(), _heads: heads };
    for chain in chain::existing(core, dir) {
        if !alone {
            let Some(owner) = chain.borrow(lane) else { return Ok(None) };
            found.borrowed.push((chain, owner));
        }
        for page in chain::pages_of(core, dir, chain) {
            found.look_at(dir, page?, name, version);
        }
    }
    // C2.
    found.records.sort_by_key(|record| std::cmp::Reverse(record.era));
    Ok(Some(found))
}

impl NameRecords<'_> {
    fn look_at(&mut self, dir: InodeRef<'_>, page: BlockNo, name: &[u8], version: Version) {
        let region = &self.core.region;
        let Some(header) = PageHeader::decode(self.core.seed, &region.line(page.pos())) else { return };
        let seed = header.record_seed(self.core.seed);
        let mut slot = 1;
        while slot <= SLOTS {
            let FoundRecord::Whole { record, slots, .. } =
                parse(seed, dir.id(), slot, |slot| region.line(slot_pos(page, slot)))
            else {
                slot += 1;
                continue;
            };
            let names_it = matches!(&record, Record::Name { dir: of, removed: false, name: found, version: at, .. }
                if *of == dir.id() && found.bytes() == name && *at == version);
            if names_it {
                self.records.push(NameRecord { era: header.era, page, slot, seed });
            }
            slot += slots;
        }
    }

    /// Returns true if there is no such record, so that the name cannot be removed in this way.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Turns all of them into removals, durably. The caller says which inode has lost a name before it lets go of the chains: a settler
    /// learns it from these records, which may be cleaned then.
    pub fn remove(&self) {
        let region = &self.core.region;
        for &NameRecord { page, slot, seed, .. } in &self.records {
            let at = slot_pos(page, slot);
            region.store_u64(at, removal_word(seed, slot, &region.line(at)));
            // PERSIST: C1, C2.
            region.fence();
            step(Step::Durable);
        }
        met(Met::RemovedInPlace);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::fs::NvmFs;
    use crate::names::table;
    use crate::state::lease;
    use crate::volume::{MountOptions, Volume, format, mount};
    use heddle_pmem::Region;
    use heddle_vfs::short::Short;
    use heddle_vfs::{FileSystem, Ino};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    fn with_file_f() -> (Volume, NvmFs) {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, crate::variant::Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let fs = volume.fs();
        fs.release(fs.new_file(Ino::ROOT, "f"));
        (volume, fs)
    }

    /// Two that look would keep each other from the chains.
    #[test]
    fn one_call_at_a_time_looks_for_the_records_of_a_name() {
        let (volume, fs) = with_file_f();
        let core = Arc::clone(&fs.core);
        let guard = lease::enter(&core).unwrap();
        let other = core.inode(Ino::ROOT).unwrap().volatile.heads.lock();
        let (at, (tell, told)) = (Arc::clone(&core), mpsc::channel());
        let looks = std::thread::spawn(move || {
            let guard = lease::enter(&at).unwrap();
            let dir = at.inode(Ino::ROOT).unwrap();
            let named = table::find(&at, dir, table::key(&at, b"f")).unwrap().unwrap();
            drop(find(&at, guard.id, dir, b"f", named.version).unwrap());
            tell.send(()).unwrap();
        });
        assert!(told.recv_timeout(Duration::from_millis(300)).is_err(), "it has not waited");
        drop((other, guard));
        told.recv().unwrap();
        looks.join().unwrap();
        lease::leave(&core);
        volume.unmount();
    }

    #[test]
    fn records_that_make_a_name_at_its_version_alone_are_found() {
        let (volume, fs) = with_file_f();
        fs.release(fs.new_file(Ino::ROOT, "a name that takes more than one slot of the log, as it is long"));
        fs.release(fs.new_file(Ino::ROOT, "g"));
        let core = Arc::clone(&fs.core);
        let guard = lease::enter(&core).unwrap();
        let dir = core.inode(Ino::ROOT).unwrap();
        let version = table::find(&core, dir, table::key(&core, b"g")).unwrap().unwrap().version;
        let found = |name: &[u8], version| {
            let records = find(&core, guard.id, dir, name, version).unwrap().unwrap();
            (records.records.len(), records.is_empty())
        };
        assert_eq!(found(b"g", version), (1, false));
        assert_eq!((found(b"g", version.next()), found(b"f", version)), ((0, true), (0, true)));
        assert_eq!(found(b"g", version), (1, false), "the chains were given back");
        drop(guard);
        volume.unmount();
    }
}
