//! What is damaged: images that hold files of all sorts, and where in them each structure stands.

use crate::common::{Image, Source, unpacked};
use crate::fields::{self, Field};
use heddle_f2fs::checksum::{SEED, checksum, inode_seed, of_inode};
use heddle_f2fs::format::*;
use heddle_f2fs::{F2fs, LogRegion, LogState, Variant};
use heddle_pmem::Region;
use heddle_vfs::{Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, SetXattr, XattrName};
use rustix::fs::{MemfdFlags, SeekFrom};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use zerocopy::{FromBytes, IntoBytes};

/// Behind the image, in the same file: nobody may write there.
pub const GUARD_BYTES: u64 = 1 << 20;
/// What stands there.
pub const GUARD: u8 = 0xa5;
const BLOCK: u64 = BLOCK_BYTES as u64;
const LOG_BYTES: u64 = 1 << 20;

/// How a structure's checksum is made right again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seal {
    None,
    Superblock,
    Checkpoint,
    Inode,
    LogHead,
    Record,
}

/// A structure in an image, or in its node log.
#[derive(Clone, Copy)]
pub struct Site {
    pub fields: &'static [Field],
    /// Byte of the block, head or record that has the checksum.
    pub block: u64,
    /// Byte of the structure in it.
    pub at: usize,
    /// Where it stands a second time.
    pub other: Option<u64>,
    pub seal: Seal,
}

/// An image before it is damaged.
pub struct Base {
    pub name: &'static str,
    pub file: File,
    /// Of one that was mounted with a node log.
    pub log: Option<Vec<u8>>,
    /// By kind of structure.
    pub sites: Vec<Vec<Site>>,
    seed: u32,
}

impl Base {
    /// All that can be had here.
    pub fn all() -> Vec<Base> {
        let mut all = vec![
            Base::of("ours, unmounted", in_memory(&made(Variant::F2fs).0), None),
            Base::of("ours, fsynced", in_memory(&fsynced()), None),
        ];
        let (image, log) = made(Variant::NodeLog);
        all.push(Base::of("ours, with a node log", in_memory(&image), log));
        if let Some(image) = of_tools() {
            all.push(Base::of("of mkfs.f2fs", in_memory(&image), None));
        }
        for name in ["plain", "phone", "reset"] {
            all.push(Base::of(name, guarded(sparse(&unpacked(name))), None));
        }
        all
    }

    fn of(name: &'static str, file: File, log: Option<Vec<u8>>) -> Base {
        let superblock = Superblock::read_from_prefix(&block_of(&file, 0)[1024..]).unwrap().0;
        let seed = inode_seed(&superblock.uuid);
        let mut sites = Sites { file: &file, superblock, kinds: Vec::new() };
        sites.find();
        let mut kinds = sites.kinds;
        if let Some(log) = &log {
            kinds.extend(sites_of_log(log));
        }
        kinds.retain(|kind| !kind.is_empty());
        Base { name, file, log, sites: kinds, seed }
    }

    /// The same bytes, in a file of their own.
    pub fn copy(&self) -> File {
        copy_of(&self.file)
    }

    /// Makes the checksum right of the structure whose block, head or record begins here.
    pub fn seal(&self, how: Seal, bytes: &mut [u8]) {
        match how {
            Seal::None => {}
            Seal::Superblock => {
                let Ok((found, _)) = Superblock::mut_from_prefix(&mut bytes[1024..]) else { return };
                let crc = checksum(SEED, &found.as_bytes()[..size_of::<Superblock>() - 4]);
                found.crc.set(crc);
            }
            Seal::Checkpoint => {
                let at = u32::from_le_bytes([bytes[164], bytes[165], bytes[166], bytes[167]]) as usize;
                if (size_of::<CheckpointHead>()..=BLOCK_BYTES - 4).contains(&at) {
                    let crc = checksum(SEED, &bytes[..at]);
                    let crc =
                        if at + 4 < BLOCK_BYTES { checksum(crc, &bytes[at + 4..BLOCK_BYTES]) } else { crc };
                    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
                }
            }
            Seal::Inode => {
                let Ok(inode) = InodeBlock::ref_from_bytes(&bytes[..BLOCK_BYTES]) else { return };
                if inode.inline & inline_flag::EXTRA_ATTR != 0 {
                    let crc = of_inode(self.seed, inode);
                    bytes[INODE_CHECKSUM_OFFSET_BYTES..][..4].copy_from_slice(&crc.to_le_bytes());
                }
            }
            Seal::LogHead => {
                let end = size_of::<LogHead>() - 4;
                let crc = crc32fast::hash(&bytes[..end]);
                bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
            }
            Seal::Record => {
                let payload = usize::from(u16::from_le_bytes([bytes[32], bytes[33]]));
                let end = (size_of::<RecordHead>() + payload).min(bytes.len());
                let crc = crc32fast::hash(&bytes[4..end]);
                bytes[..4].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }
}

/// Where structures stand in an image.
struct Sites<'a> {
    file: &'a File,
    superblock: Superblock,
    kinds: Vec<Vec<Site>>,
}

impl Sites<'_> {
    fn push(&mut self, kind: usize, site: Site) {
        if self.kinds.len() <= kind {
            self.kinds.resize_with(kind + 1, Vec::new);
        }
        self.kinds[kind].push(site);
    }

    fn plain(&mut self, kind: usize, fields: &'static [Field], block: u64, at: usize) {
        self.push(kind, Site { fields, block, at, other: None, seal: Seal::None });
    }

    fn find(&mut self) {
        let seal = match self.superblock.feature.get() & feature::SUPERBLOCK_CHECKSUM {
            0 => Seal::None,
            _ => Seal::Superblock,
        };
        for (block, other) in [(0, BLOCK), (BLOCK, 0)] {
            self.push(0, Site { fields: fields::SUPERBLOCK, block, at: 1024, other: Some(other), seal });
        }
        self.find_checkpoints();
        self.find_tables();
        self.find_nodes();
    }

    fn find_checkpoints(&mut self) {
        let first = u64::from(self.superblock.checkpoint.get());
        for start in [first, first + 512] {
            let Ok((head, _)) = CheckpointHead::read_from_prefix(&block_of(self.file, start)) else {
                continue;
            };
            if !(3..=512).contains(&head.pack_blocks.get()) {
                continue;
            }
            let other = Some((start + u64::from(head.pack_blocks.get()) - 1) * BLOCK);
            for (kind, fields) in [(1, fields::CHECKPOINT), (2, fields::CHECKPOINT_BITMAPS)] {
                self.push(kind, Site { fields, block: start * BLOCK, at: 0, other, seal: Seal::Checkpoint });
            }
            if head.flags.get() & checkpoint_flag::ORPHANS != 0 {
                self.plain(3, fields::ORPHANS, (start + 1) * BLOCK, 0);
            }
            let summaries = (start + u64::from(head.summaries_start.get())) * BLOCK;
            let compact = head.flags.get() & checkpoint_flag::COMPACT_SUMMARIES != 0;
            let journal = std::mem::offset_of!(SummaryBlock, journal);
            let (nat, sit, sit_block) = if compact {
                (0, JOURNAL_BYTES, summaries)
            } else {
                (journal, journal, summaries + 2 * BLOCK)
            };
            self.plain(4, fields::NAT_COUNT, summaries, nat);
            self.plain(6, fields::SIT_COUNT, sit_block, sit);
            for n in 0..8 {
                self.plain(5, fields::NAT_CHANGE, summaries, nat + 2 + n * size_of::<NatChange>());
            }
            for n in 0..SIT_JOURNAL_ENTRIES {
                self.plain(7, fields::SIT_CHANGE, sit_block, sit + 2 + n * size_of::<SitChange>());
            }
            for n in (0..100).filter(|_| !compact) {
                self.plain(8, fields::SUMMARY, summaries + BLOCK, n * size_of::<SummaryEntry>());
                self.plain(8, fields::SUMMARY, summaries, n * size_of::<SummaryEntry>());
            }
        }
    }

    fn find_tables(&mut self) {
        let (sit, nat, ssa) =
            (self.superblock.sit.get(), self.superblock.nat.get(), self.superblock.ssa.get());
        let main = self.superblock.main.get();
        for block in sit..nat {
            let bytes = block_of(self.file, block.into());
            for (n, entry) in SitBlock::ref_from_bytes(&bytes).unwrap().entries.iter().enumerate() {
                if entry.blocks.get() != 0 {
                    self.plain(9, fields::SIT_ENTRY, u64::from(block) * BLOCK, n * size_of::<SitEntry>());
                }
            }
        }
        for block in ssa..main {
            if block_of(self.file, block.into()).iter().any(|byte| *byte != 0) {
                self.plain(10, fields::SUMMARY_FOOT, u64::from(block) * BLOCK, 0);
                for n in (0..512).step_by(3) {
                    self.plain(11, fields::SUMMARY, u64::from(block) * BLOCK, n * size_of::<SummaryEntry>());
                }
            }
        }
        for block in nat..ssa {
            let bytes = block_of(self.file, block.into());
            for (n, entry) in NatBlock::ref_from_bytes(&bytes).unwrap().entries.iter().enumerate() {
                if entry.addr.get() != 0 {
                    self.plain(12, fields::NAT_ENTRY, u64::from(block) * BLOCK, n * size_of::<NatEntry>());
                }
            }
        }
    }

    /// By what their footers say; blocks of data that look like nodes do no harm.
    fn find_nodes(&mut self) {
        let main = u64::from(self.superblock.main.get());
        let end = main + 512 * u64::from(self.superblock.segments_main.get());
        for block in main..end {
            let bytes = block_of(self.file, block);
            let Ok(node) = InodeBlock::ref_from_bytes(&bytes) else { continue };
            let (nid, ino, place) = (node.footer.nid.get(), node.footer.ino.get(), node.footer.place());
            if !(3..=1 << 20).contains(&nid)
                || ino < 3
                || ino > nid.max(1 << 20)
                || node.footer.next.get() == 0
            {
                continue;
            }
            let (at, footer) = (block * BLOCK, std::mem::offset_of!(NodeBlock, footer));
            let seal = if nid == ino { Seal::Inode } else { Seal::None };
            self.push(13, Site { fields: fields::FOOTER, block: at, at: footer, other: None, seal });
            if nid != ino {
                let (kind, fields) = if place == node_flag::XATTR_PLACE {
                    (14, fields::XATTRS)
                } else {
                    (15, fields::POINTERS)
                };
                self.plain(kind, fields, at, 0);
                continue;
            }
            let inode = |fields, at_in| Site { fields, block: at, at: at_in, other: None, seal };
            self.push(16, inode(fields::INODE, 0));
            self.push(17, inode(fields::INODE_SLOTS, 0));
            if node.inline & inline_flag::EXTRA_ATTR != 0 {
                self.push(18, inode(fields::EXTRA, SLOTS_OFFSET_BYTES));
            }
            if node.mode.get() & 0o170_000 == 0o040_000 {
                self.find_entries(node, at);
            }
        }
    }

    fn find_entries(&mut self, node: &InodeBlock, at: u64) {
        if node.inline & inline_flag::DENTRY != 0 {
            // About where they are: 182 slots behind a bitmap of 23 bytes, without extra attributes.
            for n in 0..16 {
                let at_in = SLOTS_OFFSET_BYTES + 4 + 30 + n * size_of::<Dentry>();
                self.push(
                    19,
                    Site { fields: fields::DENTRY, block: at, at: at_in, other: None, seal: Seal::Inode },
                );
            }
            return;
        }
        let main = self.superblock.main.get();
        let main = main..main + 512 * self.superblock.segments_main.get();
        for pointer in node.addr.iter().map(|pointer| pointer.get()).filter(|addr| main.contains(addr)) {
            let at = u64::from(pointer) * BLOCK;
            let bytes = block_of(self.file, pointer.into());
            let entries = DentryBlock::ref_from_bytes(&bytes).unwrap();
            self.plain(20, fields::DENTRY_BLOCK, at, 0);
            for n in (0..DENTRY_SLOTS).filter(|n| bit_lsb(&entries.bitmap, *n)) {
                let at_in = std::mem::offset_of!(DentryBlock, entries) + n * size_of::<Dentry>();
                self.plain(21, fields::DENTRY, at, at_in);
            }
        }
    }
}

fn sites_of_log(log: &[u8]) -> Vec<Vec<Site>> {
    let site = |fields, block, at, seal| Site { fields, block, at, other: None, seal };
    let heads = LOG_HEADS_BYTES.map(|at| site(fields::LOG_HEAD, at, 0, Seal::LogHead)).to_vec();
    let (mut records, mut runs) = (Vec::new(), Vec::new());
    for at in (LOG_CHUNKS_BYTES..log.len() as u64).step_by(LOG_LINE_BYTES as usize) {
        let Ok((head, rest)) = RecordHead::ref_from_prefix(&log[at as usize..]) else { continue };
        let end = size_of::<RecordHead>() + usize::from(head.payload_bytes.get());
        let bytes = &log[at as usize..];
        if head.nid.get() == 0 || end > bytes.len() || crc32fast::hash(&bytes[4..end]) != head.crc.get() {
            continue;
        }
        records.push(site(fields::RECORD, at, 0, Seal::Record));
        if head.payload_bytes.get() > 0 && !rest.is_empty() {
            runs.push(site(fields::RUN, at, size_of::<RecordHead>(), Seal::Record));
        }
    }
    assert!(!records.is_empty(), "no record is found");
    vec![heads, records, runs]
}

fn block_of(file: &File, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    let _ = file.read_exact_at(&mut bytes, block * BLOCK);
    bytes
}

/// The descriptor as a path.
pub fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn copy_of(file: &File) -> File {
    let copy = File::from(rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC).unwrap());
    copy.set_len(file.metadata().unwrap().len()).unwrap();
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap();
        let mut bytes = vec![0; (end - data) as usize];
        file.read_exact_at(&mut bytes, data).unwrap();
        copy.write_all_at(&bytes, data).unwrap();
        at = end;
    }
    copy
}

/// Without the zeros that were unpacked with it: it is copied often.
fn sparse(file: &File) -> File {
    let thin = File::from(rustix::fs::memfd_create("thin", MemfdFlags::CLOEXEC).unwrap());
    let len = file.metadata().unwrap().len();
    thin.set_len(len).unwrap();
    for block in 0..len / BLOCK {
        let bytes = block_of(file, block);
        if bytes != [0; BLOCK_BYTES] {
            thin.write_all_at(&bytes, block * BLOCK).unwrap();
        }
    }
    thin
}

/// Bytes that are nobody's behind an image.
fn guarded(file: File) -> File {
    let end = file.metadata().unwrap().len();
    file.write_all_at(&vec![GUARD; GUARD_BYTES as usize], end).unwrap();
    file
}

fn in_memory(image: &Image) -> File {
    guarded(copy_of(&File::open(&image.path).unwrap()))
}

fn of_tools() -> Option<Image> {
    let features = "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum";
    let image = Image::sized_of(&Source::of_inline_files(), 64, &["-O", features])?;
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    populate(&fs);
    fs.unmount().unwrap();
    Some(image)
}

/// An image of our own; one with a node log has what came last there alone.
fn made(variant: Variant) -> (Image, Option<Vec<u8>>) {
    let image = Image::made(64);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    populate(&fs);
    fs.unmount().unwrap();
    drop(fs);
    if !variant.has_node_log() {
        return (image, None);
    }
    let (region, simulator) = Region::simulated_from(&vec![0; LOG_BYTES as usize]);
    let log = LogRegion { region, state: LogState::Free, discard: false };
    let fs = F2fs::open_with_log(&image.path, variant, log).unwrap();
    for n in 0..6 {
        let file = file(&fs, Ino::ROOT, &format!("logged {n}"), &[(0, 3), (900, 2)]);
        fs.fsync(&file, false).unwrap();
        fs.write(&file, 5000, b"once more").unwrap();
        fs.fsync(&file, false).unwrap();
        fs.release(file);
    }
    fs.unlink(&Cred::root(), Ino::ROOT, name("small 3")).unwrap();
    fs.sync().unwrap();
    drop(fs);
    (image, Some(simulator.crash_point().durable_image()))
}

/// One that was not unmounted: orphans, and files that were fsynced after the checkpoint.
fn fsynced() -> Image {
    let (image, _) = made(Variant::F2fs);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let root = Cred::root();
    let held: Vec<Handle> = (0..4).map(|n| file(&fs, Ino::ROOT, &format!("held {n}"), &[(0, 2)])).collect();
    (0..4).for_each(|n| fs.unlink(&root, Ino::ROOT, name(&format!("held {n}"))).unwrap());
    fs.sync().unwrap();
    for text in ["small 1", "new", "large", "small 2", "newer"] {
        let file = match fs.lookup(&root, Ino::ROOT, name(text)) {
            Ok(attr) => fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap(),
            Err(_) => file(&fs, Ino::ROOT, text, &[(0, 1), (950, 1)]),
        };
        fs.write(&file, 3000, &[3; 7000]).unwrap();
        fs.fsync(&file, false).unwrap();
        fs.release(file);
    }
    drop(held);
    drop(fs);
    image
}

pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// A file with these runs of pages: first page, pages.
fn file(fs: &F2fs, dir: Ino, text: &str, runs: &[(u64, usize)]) -> Handle {
    let (attr, file) = fs.create(&Cred::root(), dir, name(text), 0o644, OpenFlags::READ_WRITE).unwrap();
    for (page, pages) in runs {
        let mut bytes = vec![text.len() as u8; pages * BLOCK_BYTES];
        for (n, piece) in bytes.chunks_mut(8).enumerate() {
            piece.copy_from_slice(&(attr.ino.0 << 40 | page << 20 | n as u64).to_le_bytes());
        }
        fs.write(&file, page * BLOCK, &bytes).unwrap();
    }
    file
}

/// Files of all sorts, in directories of several sizes.
fn populate(fs: &F2fs) {
    let root = Cred::root();
    let note = |ino, bytes: usize| {
        let name = XattrName::new(b"user.note").unwrap();
        fs.setxattr(&root, ino, name, &vec![9; bytes], SetXattr::Any).unwrap();
    };
    let make = |dir, text: &str, kind, target: &[u8]| {
        let node = NewNode { kind, perm: 0o755, rdev: 0x103, target };
        fs.make(&root, dir, name(text), node).unwrap().ino
    };
    // One of each kind of node.
    let large = [(0, 3), (923, 2), (1942, 1), (2960, 2), (3990, 1), (1_040_000, 1)];
    for (n, text) in ["large", "large too", "largest"].into_iter().enumerate() {
        let file = file(fs, Ino::ROOT, text, &large[..4 + n]);
        note(file.ino, 1000);
        fs.release(file);
    }
    for n in 0..12 {
        let file = file(fs, Ino::ROOT, &format!("small {n}"), &[(n % 3, 1 + n as usize % 4)]);
        note(file.ino, 20 + 60 * n as usize);
        fs.release(file);
    }
    for text in ["names", "other names"] {
        let dir = make(Ino::ROOT, text, FileKind::Directory, &[]);
        for n in 0..60 {
            let file = file(fs, dir, &format!("{n} {}", "n".repeat(n * 4)), &[(0, 1)][..n % 2]);
            fs.release(file);
        }
        let inner = make(dir, "inner", FileKind::Directory, &[]);
        fs.release(file(fs, inner, "deep", &[(0, 2)]));
    }
    make(Ino::ROOT, "link", FileKind::Symlink, b"names/inner/deep");
    make(Ino::ROOT, "long link", FileKind::Symlink, &[b'x'; 4000]);
    make(Ino::ROOT, "device", FileKind::CharDevice, &[]);
    make(Ino::ROOT, "pipe", FileKind::Fifo, &[]);
    let linked = fs.lookup(&root, Ino::ROOT, name("small 5")).unwrap().ino;
    fs.link(&root, linked, Ino::ROOT, name("small 5 again")).unwrap();
}
