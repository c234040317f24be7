//! Describes any structure of an image, whole or damaged.

mod value;

pub use value::Value;

use super::FsckError;
use super::image::{self, Image};
use super::log;
use super::media::Media;
use super::pass::Pass;
use crate::format::inode::{FoundInode, HEAD_BLOCK_WORD, HEADS_INLINE, InodeBase, TAIL_WORD};
use crate::format::page::{PageHeader, SLOTS, next_pos, slot_pos};
use crate::format::pointer::{self, PointerLocation, Target};
use crate::format::record::{Blocks, FoundRecord, Record, parse};
use crate::format::superblock::{FoundSuperblock, Superblock};
use crate::ids::{BlockNo, InodeId};
use heddle_pmem::{BLOCK_BYTES, LINE_BYTES, Region};
use heddle_vfs::{FileKind, Ino};

/// The structure to show.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// Both copies of the superblock.
    Superblock,
    /// The slot of an inode.
    Inode(Ino),
    /// The records of an inode that count.
    Log(Ino),
    /// A block, interpreted by its header.
    Page(BlockNo),
    /// The record that starts in a slot of a log page.
    Record(BlockNo, u32),
    /// All paths.
    Tree,
    /// The inode that a path leads to.
    Path(Vec<u8>),
}

/// Why a structure cannot be shown.
#[derive(thiserror::Error, Debug)]
pub enum DumpError {
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] FsckError),
    /// Its superblock is damaged.
    #[error("cannot read {0}: both copies of the superblock are damaged. See heddle fsck {0}")]
    Superblock(String),
    /// The requested structure does not exist.
    #[error("{0}")]
    Absent(String),
}

macro_rules! fields {
    ($($name:literal: $value:expr),* $(,)?) => { Value::Fields(vec![$(($name, Value::from($value))),*]) };
}

/// Shows `what` of an image.
///
/// # Errors
/// See [`DumpError`].
pub fn dump(name: &str, region: &Region, what: &What) -> Result<Value, DumpError> {
    let media = Media::new(region);
    if *what == What::Superblock {
        return Ok(superblocks(&media));
    }
    let image = image::read(name, &media)?.image.ok_or_else(|| DumpError::Superblock(name.to_owned()))?;
    match what {
        What::Page(block) => page(&media, &image, *block),
        What::Record(block, slot) => record_at(&media, &image, *block, *slot),
        _ => {
            let mut pass = Pass::run(&media, image, false);
            match what {
                What::Inode(ino) => inode(&pass, *ino),
                What::Log(ino) => whole_log(&mut pass, *ino),
                What::Path(path) => inode(&pass, resolve(&pass, path)?),
                _ => Ok(Value::List(tree(&pass))),
            }
        }
    }
}

fn superblocks(media: &Media<'_>) -> Value {
    let show = |block: u64| {
        let found = image::found(media, block);
        let state = match found {
            FoundSuperblock::Blank => "blank",
            FoundSuperblock::Foreign => "something else",
            FoundSuperblock::OtherVersion(_) => "another version of the format",
            FoundSuperblock::Damaged => "damaged",
            FoundSuperblock::Whole(_) => "whole",
        };
        let mut shown = vec![("block", block.into()), ("state", state.into())];
        if let FoundSuperblock::Whole(sb) = found {
            shown.extend(superblock(&sb));
        }
        Value::Fields(shown)
    };
    Value::List(vec![show(0), show(image::superblocks(media).second_block)])
}

fn superblock(sb: &Superblock) -> Vec<(&'static str, Value)> {
    let variant = crate::variant::Variant::from_raw(sb.variant.get()).map_or("unknown", |v| v.name());
    vec![
        ("version", sb.version.get().into()),
        ("uuid", sb.uuid.iter().map(|b| format!("{b:02x}")).collect::<String>().into()),
        ("sequence", sb.sequence.get().into()),
        ("blocks", sb.blocks_total.get().into()),
        ("epoch", sb.epoch.get().into()),
        ("inode_directory_block", sb.inode_dir_block.get().into()),
        ("inode_directory_pointers", sb.inode_dir_pointers.get().into()),
        ("data_block", sb.data_block.get().into()),
        ("made_ns", sb.created_ns.get().into()),
        ("variant", variant.into()),
        ("clean", Value::Flag(sb.clean.get() == 1)),
        ("mounted_ns", sb.mounted_ns.get().into()),
    ]
}

fn kind_text(kind: FileKind) -> String {
    format!("{kind:?}").to_lowercase()
}

fn target(found: Target<BlockNo>) -> Value {
    match found {
        Target::None => "none".into(),
        Target::At(block) => block.0.into(),
        Target::Bad => "damaged".into(),
    }
}

fn inode(pass: &Pass<'_>, ino: Ino) -> Result<Value, DumpError> {
    let at =
        pass.slots.pos(ino).filter(|_| ino.0 != 0).ok_or_else(|| {
            DumpError::Absent(format!("there is no inode {}: its chunk does not exist", ino.0))
        })?;
    let line = pass.media.line(at);
    let mut shown = vec![("inode", Value::from(ino.0)), ("block", (at.0 / BLOCK_BYTES as u64).into())];
    let base = match InodeBase::decode(pass.image.seed, ino, &line) {
        FoundInode::Whole(base) => base,
        other => {
            shown.push(("state", format!("{other:?}").to_lowercase().into()));
            return Ok(Value::Fields(shown));
        }
    };
    let links = pass.tree.links.get(&ino).copied().unwrap_or(0);
    shown.extend([
        ("state", "whole".into()),
        ("kind", kind_text(base.kind).into()),
        ("generation", base.id.generation.into()),
        ("names", links.into()),
        ("born_perm", format!("{:o}", base.perm).into()),
        ("born_uid", base.uid.into()),
        ("born_gid", base.gid.into()),
        ("rdev", base.rdev.into()),
        ("born_ns", base.crtime.into()),
    ]);
    if let Some(figures) = pass.logs.get(&ino) {
        shown.extend([
            ("size_bytes", figures.size_bytes.into()),
            ("blocks", figures.blocks.into()),
            ("extents", figures.extents.into()),
            ("chains", figures.chains.into()),
            ("log_pages", figures.pages.into()),
            ("records", figures.records.into()),
            ("records_living", figures.living.into()),
        ]);
    }
    let (seed, id) = (pass.image.seed, base.id);
    let pointers = pass.media.line(at.plus(LINE_BYTES as u64));
    let heads = (0..HEADS_INLINE)
        .map(|n| target(pointer::decode(seed, id, PointerLocation::Head(n), pointers[n as usize])));
    shown.push(("heads", Value::List(heads.collect())));
    shown.push((
        "head_block",
        target(pointer::decode(seed, id, PointerLocation::HeadBlock, pointers[HEAD_BLOCK_WORD as usize])),
    ));
    let tail = match pointer::decode_tail(seed, id, pointers[TAIL_WORD as usize]) {
        Target::None => "none".into(),
        Target::At((block, slot)) => fields! { "block": block.0, "slot": slot },
        Target::Bad => "damaged".into(),
    };
    shown.push(("tail", tail));
    Ok(Value::Fields(shown))
}

fn whole_log(pass: &mut Pass<'_>, ino: Ino) -> Result<Value, DumpError> {
    let base = pass.slots.bases.get(&ino).copied();
    let base =
        base.ok_or_else(|| DumpError::Absent(format!("there is no inode {}: its slot is free", ino.0)))?;
    pass.quiet = true;
    let log = log::read(pass, base.id);
    let records = log.records.iter().map(|entry| {
        let mut shown = vec![("block", Value::from(entry.block.0)), ("slot", entry.slot.into())];
        shown.extend(record(&entry.record, base.id));
        Value::Fields(shown)
    });
    let records: Vec<Value> = records.collect();
    Ok(Value::Fields(vec![
        ("inode", ino.0.into()),
        ("chains", log.chains.into()),
        ("pages", Value::List(log.pages.iter().map(|b| b.0.into()).collect())),
        ("damaged", Value::Flag(log.damaged)),
        ("records", Value::List(records)),
    ]))
}

fn check_block(image: &Image, block: BlockNo) -> Result<(), DumpError> {
    match image.layout.holds(block, 1) {
        true => Ok(()),
        false => Err(DumpError::Absent(format!(
            "block {} is not in the data area, which is blocks {} to {}",
            block.0,
            image.layout.data.0,
            image.layout.last().0 - 1
        ))),
    }
}

fn page(media: &Media<'_>, image: &Image, block: BlockNo) -> Result<Value, DumpError> {
    check_block(image, block)?;
    let Some(header) = PageHeader::decode(image.seed, &media.line(block.pos())) else {
        return Ok(fields! { "block": block.0, "what": "no log page (data, a free block, or damaged)" });
    };
    let next =
        pointer::decode(image.seed, header.owner, PointerLocation::Next(block), media.word(next_pos(block)));
    let seed = header.record_seed(image.seed);
    let mut slots = Vec::new();
    let mut slot = 1;
    while slot <= SLOTS {
        let (shown, taken) = slot_text(media, seed, header.owner, block, slot);
        slots.extend(shown);
        slot += taken;
    }
    Ok(Value::Fields(vec![
        ("block", block.0.into()),
        ("what", "log page".into()),
        ("inode", header.owner.ino.0.into()),
        ("generation", header.owner.generation.into()),
        ("chain", header.chain.into()),
        ("epoch", header.epoch.into()),
        ("lane", u32::from(header.lane).into()),
        ("serial", header.serial.into()),
        ("era", header.era.into()),
        ("next", target(next)),
        ("slots", Value::List(slots)),
    ]))
}

fn record_at(media: &Media<'_>, image: &Image, block: BlockNo, slot: u32) -> Result<Value, DumpError> {
    check_block(image, block)?;
    if !(1..=SLOTS).contains(&slot) {
        return Err(DumpError::Absent(format!("a log page has slots 1 to {SLOTS}, not {slot}")));
    }
    let header = PageHeader::decode(image.seed, &media.line(block.pos()));
    let header = header.ok_or_else(|| DumpError::Absent(format!("block {} is no log page", block.0)))?;
    let seed = header.record_seed(image.seed);
    let blank = fields! { "slot": slot, "state": "blank" };
    Ok(slot_text(media, seed, header.owner, block, slot).0.unwrap_or(blank))
}

/// The record that starts in a slot, `None` if it is blank; and the number of slots that it takes.
fn slot_text(media: &Media<'_>, seed: u32, home: InodeId, block: BlockNo, slot: u32) -> (Option<Value>, u32) {
    match parse(seed, home, slot, |s| media.line(slot_pos(block, s))) {
        FoundRecord::Blank => (None, 1),
        FoundRecord::Torn => (Some(fields! { "slot": slot, "state": "torn" }), 1),
        FoundRecord::Damaged => (Some(fields! { "slot": slot, "state": "damaged" }), 1),
        FoundRecord::Whole { record: said, slots, txn, mark } => {
            let mark = match mark {
                None => "none",
                Some(true) => "right",
                Some(false) => "wrong",
            };
            let mut shown = vec![
                ("slot", Value::from(slot)),
                ("state", "whole".into()),
                ("slots", slots.into()),
                ("transaction", fields! { "first": txn.first, "slots": txn.slots }),
                ("mark", mark.into()),
            ];
            shown.extend(record(&said, home));
            (Some(Value::Fields(shown)), slots)
        }
    }
}

fn record(record: &Record, home: InodeId) -> Vec<(&'static str, Value)> {
    match record {
        Record::Write { page, pages, blocks, end_in_last_page, version, mtime, change_count } => {
            let (how, block) = match blocks {
                Blocks::At(block) => ("data", block.0),
                Blocks::Unwritten(block) => ("unwritten", block.0),
                Blocks::List(block) => ("list", block.0),
            };
            vec![
                ("kind", "write".into()),
                ("page", page.0.into()),
                ("pages", (*pages).into()),
                ("at", how.into()),
                ("at_block", block.into()),
                ("end_in_last_page", (*end_in_last_page).into()),
                ("version", version.0.into()),
                ("mtime_ns", (*mtime).into()),
                ("change_count", (*change_count).into()),
            ]
        }
        Record::Punch { page, pages, version, mtime, change_count } => vec![
            ("kind", "punch".into()),
            ("page", page.0.into()),
            ("pages", (*pages).into()),
            ("version", version.0.into()),
            ("mtime_ns", (*mtime).into()),
            ("change_count", (*change_count).into()),
        ],
        Record::Attributes(s) => vec![
            ("kind", "attributes".into()),
            ("size_bytes", s.size.into()),
            ("perm", format!("{:o}", s.perm).into()),
            ("uid", s.uid.into()),
            ("gid", s.gid.into()),
            ("mtime_ns", s.mtime.into()),
            ("ctime_ns", s.ctime.into()),
            ("atime_ns", s.atime.into()),
            ("change_count", s.change_count.into()),
        ],
        Record::Xattrs { blob, change_count, mtime } => vec![
            ("kind", "xattrs".into()),
            ("at_block", blob.map_or(0, |b| b.0).into()),
            ("mtime_ns", (*mtime).into()),
            ("change_count", (*change_count).into()),
        ],
        Record::Remap { page, blob, version, mtime, change_count } => vec![
            ("kind", "remap".into()),
            ("page", page.0.into()),
            ("at_block", blob.map_or(0, |b| b.0).into()),
            ("version", version.0.into()),
            ("mtime_ns", (*mtime).into()),
            ("change_count", (*change_count).into()),
        ],
        Record::Name { dir, removed, child, kind, name, version, mtime, change_count } => {
            let mut shown = vec![
                ("kind", if *removed { "removal" } else { "entry" }.into()),
                ("name", String::from_utf8_lossy(name.bytes()).into_owned().into()),
                ("child", child.ino.0.into()),
                ("child_generation", child.generation.into()),
                ("child_kind", kind_text(*kind).into()),
                ("version", version.0.into()),
                ("mtime_ns", (*mtime).into()),
                ("change_count", (*change_count).into()),
            ];
            if *dir != home {
                shown.push(("of_directory", dir.ino.0.into()));
            }
            shown
        }
    }
}

fn resolve(pass: &Pass<'_>, path: &[u8]) -> Result<Ino, DumpError> {
    let mut at = Ino::ROOT;
    for part in path.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        let named = pass.tree.dirs.get(&at).and_then(|dir| dir.names.get(part)).filter(|n| !n.removed);
        at = named.map(|n| n.child.ino).ok_or_else(|| {
            let (part, path) = (String::from_utf8_lossy(part), String::from_utf8_lossy(path));
            DumpError::Absent(format!("{path}: there is no {part} in directory {}", at.0))
        })?;
    }
    Ok(at)
}

/// Paths, parents before children. Each directory is in the tree once, so the walk ends.
fn tree(pass: &Pass<'_>) -> Vec<Value> {
    let mut shown =
        vec![fields! { "path": "/", "inode": Ino::ROOT.0, "kind": "directory", "size_bytes": 0u64 }];
    let mut queue = vec![(Ino::ROOT, String::new())];
    while let Some((ino, above)) = queue.pop() {
        let Some(dir) = pass.tree.dirs.get(&ino) else { continue };
        for (name, named) in dir.living().filter(|(_, n)| pass.slots.get(n.child).is_some()) {
            let path = format!("{above}/{}", String::from_utf8_lossy(name));
            let size = pass.logs.get(&named.child.ino).map_or(0, |f| f.size_bytes);
            shown.push(fields! {
                "path": path.clone(),
                "inode": named.child.ino.0,
                "kind": kind_text(named.kind),
                "size_bytes": size,
            });
            let here = pass.tree.parents.get(&named.child.ino) == Some(&ino);
            if named.kind == FileKind::Directory && here {
                queue.push((named.child.ino, path));
            }
        }
    }
    shown
}
