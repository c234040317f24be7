//! Nonsense with right checksums: what a program that is wrong could have written.

use super::sample::Sample;
use heddle_nvmfs::format::layout::{Layout, chunk_of, inode_pos};
use heddle_nvmfs::format::page::{PageHeader, SLOTS, slot_pos};
use heddle_nvmfs::format::pointer::{self, PointerLocation, Target};
use heddle_nvmfs::format::record::{FoundRecord, Record, Txn, parse};
use heddle_nvmfs::format::superblock::{FoundSuperblock, SUPERBLOCK_BYTES, Superblock};
use heddle_nvmfs::format::word::{Line, crc};
use heddle_nvmfs::ids::{BlockNo, InodeId};
use heddle_pmem::{Pos, Region};
use heddle_vfs::Ino;

/// Writes structures of a sample anew.
pub struct Craft<'a> {
    pub region: &'a Region,
    pub seed: u32,
}

/// The owner of the pointers of the inode directory.
pub const DIRECTORY: InodeId = InodeId { ino: Ino(0), generation: 0 };

impl Craft<'_> {
    pub fn new(sample: &Sample) -> Craft<'_> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        sample.region.read(Pos(0), &mut bytes);
        let FoundSuperblock::Whole(sb) = Superblock::decode(&bytes) else { panic!("no superblock") };
        Craft { region: &sample.region, seed: sb.seed() }
    }

    pub fn layout(&self) -> Layout {
        Layout::new(self.region.len_bytes() / 4096)
    }

    /// Position of the slot of an inode.
    pub fn slot(&self, ino: Ino) -> Pos {
        let (chunk, index) = chunk_of(ino);
        let raw = self.region.load_u64(self.layout().chunk_pointer(chunk));
        let Target::At(block) =
            pointer::decode(self.seed, DIRECTORY, PointerLocation::InodeChunk(chunk), raw)
        else {
            panic!("no chunk")
        };
        inode_pos(block, index)
    }

    /// Number and generation.
    pub fn id(&self, ino: Ino) -> InodeId {
        InodeId { ino, generation: self.region.load_u64(self.slot(ino).plus(16)) & !(3 << 62) }
    }

    pub fn header(&self, page: BlockNo) -> PageHeader {
        PageHeader::decode(self.seed, &self.region.line(page.pos())).unwrap()
    }

    /// Changes the first record of a log page that `change` wants to change; it keeps its length.
    pub fn change(&self, page: BlockNo, change: impl Fn(&mut Record) -> bool) {
        let header = self.header(page);
        let seed = header.record_seed(self.seed);
        let mut slot = 1;
        while slot <= SLOTS {
            let found = parse(seed, header.owner, slot, |s| self.region.line(slot_pos(page, s)));
            let FoundRecord::Whole { mut record, slots, txn, mark } = found else {
                slot += 1;
                continue;
            };
            if change(&mut record) {
                let mut draft = record.draft(header.owner, header.lane);
                let lines = draft.seal(seed, slot, txn, mark.is_some());
                assert_eq!(lines.len() as u32, slots, "it grew");
                for (i, line) in lines.iter().enumerate() {
                    self.region.nt_line(slot_pos(page, slot + i as u32), line);
                }
                self.region.fence();
                return;
            }
            slot += slots;
        }
        panic!("no such record in page {}", page.0);
    }

    /// The whole records of a log page: slot, what it says, its transaction.
    pub fn records(&self, page: BlockNo) -> Vec<(u32, Record, Txn)> {
        let header = self.header(page);
        let seed = header.record_seed(self.seed);
        let (mut all, mut slot) = (Vec::new(), 1);
        while slot <= SLOTS {
            match parse(seed, header.owner, slot, |s| self.region.line(slot_pos(page, s))) {
                FoundRecord::Whole { record, slots, txn, .. } => {
                    all.push((slot, record, txn));
                    slot += slots;
                }
                _ => slot += 1,
            }
        }
        all
    }

    /// Writes a record with this transaction and with or without its mark.
    pub fn put(&self, page: BlockNo, slot: u32, record: &Record, txn: Txn, marked: bool) {
        let header = self.header(page);
        let mut draft = record.draft(header.owner, header.lane);
        for (i, line) in draft.seal(header.record_seed(self.seed), slot, txn, marked).iter().enumerate() {
            self.region.nt_line(slot_pos(page, slot + i as u32), line);
        }
        self.region.fence();
    }

    /// Changes the first line of a record and makes its checksum right again, whatever it says then.
    pub fn reseal(&self, page: BlockNo, slot: u32, change: impl Fn(&mut Line)) {
        let seed = self.header(page).record_seed(self.seed);
        let at = slot_pos(page, slot);
        let mut line = self.region.line(at);
        change(&mut line);
        let head = line[0] & !0xffff_ffff;
        let sum = crc(seed, &[u64::from(slot), head, line[1], line[2], line[3], line[4], line[5], line[6]]);
        line[0] = head | u64::from(sum);
        self.region.nt_line(at, &line);
        self.region.fence();
    }

    pub fn store(&self, at: Pos, word: u64) {
        self.region.store_u64(at, word);
    }
}
