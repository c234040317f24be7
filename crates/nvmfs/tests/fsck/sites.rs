//! Where the structures of an image are, and how each is sealed again when a field of it was changed: a lie with right checksums.

use super::craft::{Craft, DIRECTORY};
use super::sample::Sample;
use heddle_nvmfs::format::blob::Kind;
use heddle_nvmfs::format::fields::{self, Field};
use heddle_nvmfs::format::inode::{HEAD_BLOCK_WORD, TAIL_WORD};
use heddle_nvmfs::format::page::{PageHeader, SLOTS, next_pos, slot_pos};
use heddle_nvmfs::format::pointer::{self, PointerLocation, Target};
use heddle_nvmfs::format::record::{FoundRecord, Record, parse};
use heddle_nvmfs::format::word::{WRITTEN, crc, word};
use heddle_nvmfs::ids::{BlockNo, InodeId};
use heddle_pmem::Pos;
use heddle_vfs::Ino;
use std::collections::{BTreeMap, BTreeSet};

/// How a structure says that it is whole.
#[derive(Clone, Copy, Debug)]
pub enum Seal {
    Inode,
    /// True: the records of the page are sealed again too, as the header seeds them.
    Header(BlockNo, bool),
    Record {
        page: BlockNo,
        slot: u32,
        slots: u32,
    },
    List(InodeId, BlockNo),
    Blob(InodeId, Kind, BlockNo),
    Pointer(InodeId, PointerLocation),
    Tail(InodeId),
}

/// A structure on the image.
pub struct Site {
    /// As in the list of fields.
    pub structure: &'static str,
    /// Where its first word is.
    pub at: Pos,
    pub seal: Seal,
    /// Inodes that it says something of.
    pub of: BTreeSet<Ino>,
}

/// The structures of a sample, of each kind the first and the last ones, `most` at most, by the kind's name.
pub fn sites(craft: &Craft<'_>, sample: &Sample, most: usize) -> BTreeMap<&'static str, Vec<Site>> {
    let mut all: Vec<Site> = Vec::new();
    let inos: Vec<Ino> = sample.inos.values().copied().collect();
    let mut add = |structure, at, seal, of: &[Ino]| {
        all.push(Site { structure, at, seal, of: of.iter().copied().collect() });
    };
    let head = craft.layout().chunk_pointer(0);
    add("pointer", head, Seal::Pointer(DIRECTORY, PointerLocation::InodeChunk(0)), &inos);
    for ino in &inos {
        let (at, id) = (craft.slot(*ino), craft.id(*ino));
        add("inode slot", at, Seal::Inode, &[*ino]);
        let line = at.plus(64);
        let pointers = [(0, PointerLocation::Head(0)), (HEAD_BLOCK_WORD, PointerLocation::HeadBlock)];
        for (number, place) in pointers {
            if craft.region.load_u64(line.plus(number * 8)) != 0 {
                add("pointer", line.plus(number * 8), Seal::Pointer(id, place), &[*ino]);
            }
        }
        let tail = line.plus(TAIL_WORD * 8);
        if craft.region.load_u64(tail) != 0 {
            add("tail pointer", tail, Seal::Tail(id), &[*ino]);
        }
    }
    for owner in sample.survey().owners.iter().filter(|owner| !owner.data) {
        let Some(ino) = owner.ino else { continue };
        let (id, at) = (craft.id(ino), owner.block);
        let blob = |kind| Seal::Blob(id, kind, at);
        match owner.what.split(" of inode").next() {
            Some("the log") => page(craft, (id, at), &inos, &mut add),
            Some("an extent list") => add("extent list", at.pos(), Seal::List(id, at), &[ino]),
            Some("attributes") => {
                add("blob", at.pos(), blob(Kind::Xattrs), &[ino]);
                add("attributes in a blob", at.pos(), blob(Kind::Xattrs), &[ino]);
            }
            Some("a map") => {
                add("blob", at.pos(), blob(Kind::Map), &[ino]);
                add("run of a map in a blob", at.pos(), blob(Kind::Map), &[ino]);
            }
            _ => {}
        }
    }
    let mut sorted: BTreeMap<&'static str, Vec<Site>> = BTreeMap::new();
    for site in all {
        sorted.entry(site.structure).or_default().push(site);
    }
    for sites in sorted.values_mut() {
        while sites.len() > most {
            sites.remove(sites.len() / 2);
        }
    }
    sorted
}

type Add<'a> = &'a mut dyn FnMut(&'static str, Pos, Seal, &[Ino]);

/// The header of a log page, and its records; of names, those that say something of what is there or was removed.
fn page(craft: &Craft<'_>, (id, page): (InodeId, BlockNo), living: &[Ino], add: Add<'_>) {
    for all in [false, true] {
        add("log page header", page.pos(), Seal::Header(page, all), &[id.ino]);
    }
    let next = next_pos(page);
    if craft.region.load_u64(next) != 0 {
        add("pointer", next, Seal::Pointer(id, PointerLocation::Next(page)), &[id.ino]);
    }
    for (slot, slots, record) in records(craft, page) {
        let at = slot_pos(page, slot);
        let seal = Seal::Record { page, slot, slots };
        let mut of = vec![id.ino];
        let kind = match &record {
            Record::Write { .. } => "write record",
            Record::Punch { .. } => "punch record",
            Record::Attributes(_) => "attribute record",
            Record::Xattrs { .. } => "xattr record",
            Record::Remap { .. } => "remap record",
            Record::Name { removed, child, .. } if !removed && !living.contains(&child.ino) => continue,
            Record::Name { dir, child, .. } => {
                of.extend([dir.ino, child.ino]);
                if *dir == id { "name record" } else { "name record of another directory" }
            }
        };
        add("first line of a record", at, seal, &of);
        add(kind, at, seal, &of);
        if slots > 1 {
            // Its fields are counted from the line's begin.
            add("later line of a record", at.plus(64), seal, &of);
        }
    }
}

/// The records of a page: slot, how many slots, what.
fn records(craft: &Craft<'_>, page: BlockNo) -> Vec<(u32, u32, Record)> {
    let header = craft.header(page);
    let seed = header.record_seed(craft.seed);
    let (mut found, mut slot) = (Vec::new(), 1);
    while slot <= SLOTS {
        let line = |s| craft.region.line(slot_pos(page, s));
        match parse(seed, header.owner, slot, line) {
            FoundRecord::Whole { record, slots, .. } => {
                found.push((slot, slots, record));
                slot += slots;
            }
            _ => slot += 1,
        }
    }
    found
}

impl Site {
    /// Position of the word of a field.
    pub fn word(&self, field: &Field) -> Pos {
        self.at.plus(field.word as u64 * 8)
    }

    /// What a field says; `None` if the structure is too short to have it here.
    pub fn get(&self, craft: &Craft<'_>, field: &Field) -> Option<u64> {
        let short = matches!(self.seal, Seal::Record { slots, .. } if field.word >= slots as usize * 8);
        (!short).then(|| field.of(craft.region.load_u64(self.word(field))))
    }

    /// Changes a field and seals the structure again.
    pub fn lie(&self, craft: &Craft<'_>, field: &Field, value: u64) {
        let records = match self.seal {
            Seal::Header(page, true) => records(craft, page),
            _ => Vec::new(),
        };
        let at = self.word(field);
        let old = craft.region.load_u64(at);
        craft.store(at, old & !field.mask() | value << field.shift);
        if field.name.starts_with("check") || field.name == "mark" {
            return;
        }
        match self.seal {
            Seal::Inode => seal_words(craft, self.at, craft.seed, 8),
            Seal::Header(page, _) => {
                let pointer = craft.region.load_u64(next_pos(page));
                craft.store(next_pos(page), 0);
                seal_words(craft, self.at, craft.seed, 7);
                craft.store(next_pos(page), pointer);
                if let Some(header) = PageHeader::decode(craft.seed, &craft.region.line(page.pos())) {
                    let seed = header.record_seed(craft.seed);
                    for (slot, slots, _) in records {
                        seal_record(craft, seed, page, slot, slots);
                        let mark = heddle_nvmfs::format::record::commit_mark(seed, slot);
                        let at = slot_pos(page, slot).plus(56);
                        if craft.region.load_u64(at) != 0 {
                            craft.store(at, mark);
                        }
                    }
                }
            }
            Seal::Record { page, slot, slots } => {
                let seed = craft.header(page).record_seed(craft.seed);
                seal_record(craft, seed, page, slot, slots);
            }
            Seal::List(owner, block) => {
                let seed = crc(craft.seed, &[block.0, owner.ino.0, owner.generation]);
                if field.name.starts_with("pointer") {
                    let next = pointer::encode(
                        craft.seed,
                        owner,
                        PointerLocation::ExtentList(block),
                        BlockNo(value),
                    );
                    craft.store(at, next);
                }
                seal_block(craft, self.at, seed);
            }
            Seal::Blob(owner, kind, block) => {
                let seed = crc(craft.seed, &[kind as u64, block.0, owner.ino.0, owner.generation]);
                if field.name.starts_with("pointer") {
                    let place = match kind {
                        Kind::Xattrs => PointerLocation::Xattrs(block),
                        Kind::Map => PointerLocation::Map(block),
                    };
                    craft.store(at, pointer::encode(craft.seed, owner, place, BlockNo(value)));
                }
                seal_block(craft, self.at, seed);
            }
            Seal::Pointer(owner, place) => {
                craft.store(at, pointer::encode(craft.seed, owner, place, BlockNo(value)));
            }
            Seal::Tail(owner) => {
                let raw = craft.region.load_u64(at);
                let (block, slot) = (fields::tail::BLOCK.of(raw), fields::tail::SLOT.of(raw) as u32 + 1);
                craft.store(at, pointer::encode_tail(craft.seed, owner, BlockNo(block), slot));
            }
        }
    }

    /// What a pointer leads to: the value that a lie of it starts from.
    pub fn target(&self, craft: &Craft<'_>, field: &Field) -> Option<u64> {
        let raw = craft.region.load_u64(self.word(field));
        match self.seal {
            Seal::List(owner, block) if field.name.starts_with("pointer") => {
                match pointer::decode(craft.seed, owner, PointerLocation::ExtentList(block), raw) {
                    Target::At(block) => Some(block.0),
                    _ => Some(0),
                }
            }
            Seal::Blob(..) if field.name.starts_with("pointer") => Some(fields::pointer::BLOCK.of(raw)),
            _ => self.get(craft, field),
        }
    }
}

fn seal_words(craft: &Craft<'_>, at: Pos, seed: u32, count: u64) {
    let mut words: Vec<u64> = (0..count).map(|i| craft.region.load_u64(at.plus(i * 8))).collect();
    words[0] = word(words[0] & !WRITTEN & !fields::inode::CRC.mask());
    craft.store(at, words[0] | u64::from(crc(seed, &words)));
}

fn seal_record(craft: &Craft<'_>, seed: u32, page: BlockNo, slot: u32, slots: u32) {
    let first = craft.region.line(slot_pos(page, slot));
    let head = word(first[0] & !WRITTEN & !fields::record::CRC.mask());
    let sum = crc(seed, &[u64::from(slot), head, first[1], first[2], first[3], first[4], first[5], first[6]]);
    craft.store(slot_pos(page, slot), head | u64::from(sum));
    for later in slot + 1..slot + slots {
        let line = craft.region.line(slot_pos(page, later));
        let head = line[7] & !WRITTEN & !fields::later::CRC.mask();
        let words = [u64::from(later), head, line[0], line[1], line[2], line[3], line[4], line[5], line[6]];
        craft.store(slot_pos(page, later).plus(56), word(head | u64::from(crc(seed, &words))));
    }
}

/// Lists and blobs: as many words as the first one says.
fn seal_block(craft: &Craft<'_>, at: Pos, seed: u32) {
    let head = craft.region.load_u64(at);
    let count = fields::blob::COUNT.of(head).min(510);
    let words: Vec<u64> = (1..2 + count).map(|i| craft.region.load_u64(at.plus(i * 8))).collect();
    craft.store(at, word(head & !WRITTEN & !fields::blob::CRC.mask() | u64::from(crc(seed, &words))));
}
