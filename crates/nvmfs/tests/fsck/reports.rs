//! What fsck says of one damage at a time, word for word: `reports.txt`.
//!
//! Blocks are called by what they hold, so that the text does not depend on where they lie. If a change of fsck is meant, the test prints
//! the whole text as it is now.

mod damages;

use super::craft::Craft;
use super::sample::image_bytes;
use crate::common::{Short, name, options, root};
use damages::DAMAGES;
use heddle_nvmfs::format::page::{PageHeader, slot_pos};
use heddle_nvmfs::format::record::Record;
use heddle_nvmfs::format::superblock::{FoundSuperblock, SUPERBLOCK_BYTES, Superblock};
use heddle_nvmfs::fsck::{FsckError, Owner, examine, survey};
use heddle_nvmfs::ids::BlockNo;
use heddle_nvmfs::{Variant, format_region, mount};
use heddle_pmem::{Pos, Region};
use heddle_vfs::{FileKind, FileSystem, Ino, NewNode, SetXattr, XattrName};
use std::cmp::Reverse;
use std::fmt::Write;
use zerocopy::IntoBytes;

const IMAGE_BYTES: u64 = 4 << 20;
const LAST: u64 = IMAGE_BYTES / 4096 - 1;
const PAGE: u64 = 4096;

/// A file system of one thread: its blocks lie where they lie each time.
struct Plain {
    bytes: Vec<u8>,
    owners: Vec<Owner>,
    file: Ino,
    dir: Ino,
    link: Ino,
    noted: Ino,
    seed: u32,
}

impl Plain {
    fn new(variant: Variant, cut: bool) -> Plain {
        let region = Region::anonymous(IMAGE_BYTES).unwrap();
        format_region(&region, variant).unwrap();
        let volume = mount(region.map_again().unwrap(), &options()).unwrap();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "file");
        for page in 0..100 {
            fs.write(&file, page * PAGE, &[page as u8 + 1; PAGE as usize]).unwrap();
        }
        let dir = fs.new_dir(Ino::ROOT, "dir");
        for text in ["one", "two"] {
            fs.release(fs.new_file(dir, text));
        }
        let symlink = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"file" };
        let link = fs.make(&root(), Ino::ROOT, name("link"), symlink).unwrap().ino;
        let noted = fs.new_file(Ino::ROOT, "noted");
        let note = XattrName::new(b"user.note").unwrap();
        fs.setxattr(&root(), noted.ino, note, &[5; 6000], SetXattr::Any).unwrap();
        let (file, noted) = {
            let inos = (file.ino, noted.ino);
            fs.release(file);
            fs.release(noted);
            inos
        };
        if cut {
            volume.abandon()
        } else {
            volume.unmount()
        }
        let owners = survey("plain", &region).unwrap().unwrap().owners;
        let bytes = image_bytes(&region);
        let FoundSuperblock::Whole(sb) = Superblock::decode(bytes.first_chunk().unwrap()) else {
            panic!("no superblock")
        };
        Plain { bytes, owners, file, dir, link, noted, seed: sb.seed() }
    }

    /// What a block holds.
    fn called(&self, block: u64) -> String {
        let of = |owner: &&Owner| (owner.block.0..owner.block.0 + owner.count).contains(&block);
        match (block, self.owners.iter().find(of)) {
            (0, _) => "<superblock>".into(),
            (LAST, _) => "<second superblock>".into(),
            (1, _) => "<inode directory>".into(),
            // Which of its pages, the allocator decides.
            (_, Some(Owner { ino: Some(ino), data: true, .. })) => format!("<data of inode {}>", ino.0),
            (_, Some(owner)) => {
                // They stand in the order of their chains.
                let alike = self.owners.iter().filter(|other| other.what == owner.what);
                let nth = alike.take_while(|other| other.block != owner.block).count();
                format!("<{} {nth}>", owner.what)
            }
            (_, None) if block < LAST => "<free>".into(),
            _ => format!("{block}"),
        }
    }

    /// The text with names for its blocks.
    fn named(&self, text: &str) -> String {
        let (mut named, mut before) = (String::new(), "");
        for word in text.split_inclusive(' ') {
            let digits = word.len() - word.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            match word[..digits].parse() {
                Ok(block) if ["block ", "blocks "].contains(&before) => {
                    write!(named, "{}{}", self.called(block), &word[digits..]).unwrap();
                }
                _ => named.push_str(word),
            }
            before = word;
        }
        named
    }

    fn block_of(&self, what: &str, nth: usize) -> BlockNo {
        self.owners.iter().filter(|owner| owner.what == what).nth(nth).unwrap().block
    }

    fn log(&self, ino: Ino, nth: usize) -> BlockNo {
        self.block_of(&format!("the log of inode {}", ino.0), nth)
    }
}

/// An image that is about to be damaged.
struct Victim<'a> {
    plain: &'a Plain,
    craft: Craft<'a>,
}

impl Victim<'_> {
    fn flip(&self, at: Pos, bits: &[u32]) {
        let word = bits.iter().fold(self.craft.region.load_u64(at), |word, bit| word ^ 1 << bit);
        self.craft.store(at, word);
    }

    fn zero(&self, at: Pos, words: u64) {
        (0..words).for_each(|word| self.craft.store(at.plus(8 * word), 0));
    }

    /// Word of a slot of a page of the file's log.
    fn slot(&self, page: usize, slot: u32, word: u64) -> Pos {
        slot_pos(self.plain.log(self.plain.file, page), slot).plus(8 * word)
    }

    fn inode(&self, ino: Ino, word: u64) -> Pos {
        self.craft.slot(ino).plus(8 * word)
    }

    fn header(&self, page: usize, change: impl Fn(&mut PageHeader)) {
        let block = self.plain.log(self.plain.file, page);
        let mut header = self.craft.header(block);
        change(&mut header);
        let line = header.encode(self.craft.seed);
        (0..7).for_each(|word| self.craft.store(block.pos().plus(8 * word), line[word as usize]));
    }

    fn superblock(&self, block: u64, change: impl Fn(&mut Superblock)) {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        self.craft.region.read(BlockNo(block).pos(), &mut bytes);
        let FoundSuperblock::Whole(mut sb) = Superblock::decode(&bytes) else { panic!("no superblock") };
        change(&mut sb);
        self.craft.region.nt_write(BlockNo(block).pos(), sb.sealed().as_bytes());
    }

    /// Changes the first record of this page of the file's log that `change` takes.
    fn record(&self, page: usize, change: impl Fn(&mut Record) -> bool) {
        self.craft.change(self.plain.log(self.plain.file, page), change);
    }
}

type Damage = fn(&Victim<'_>);

fn said(plain: &Plain, region: &Region) -> String {
    let mut text = String::new();
    let verdict = match examine("IMAGE", region) {
        Ok(verdict) => verdict,
        Err(error @ (FsckError::NotAnImage { .. } | FsckError::OtherVersion { .. })) => {
            return format!("  {error}\n");
        }
        Err(error) => panic!("{error}"),
    };
    let mut issues: Vec<_> = verdict
        .issues
        .iter()
        .map(|(issue, is_mended)| {
            let (place, what) = (plain.named(&issue.location.to_string()), plain.named(&issue.what));
            (Reverse(issue.severity()), issue.code, place, what, *is_mended)
        })
        .collect();
    issues.sort();
    // Of many that are alike, the first two.
    for alike in issues.chunk_by(|one, next| (one.1, &one.3) == (next.1, &next.3)) {
        for (severity, code, place, what, is_mended) in alike.iter().take(2) {
            let mended = if *is_mended { ", mended" } else { "" };
            writeln!(text, "  {} {code}{mended}: {place}: {what}", severity.0.name()).unwrap();
        }
        if alike.len() > 2 {
            writeln!(text, "  and {} more like this", alike.len() - 2).unwrap();
        }
    }
    // A block that is written anew may have held anything that is free now.
    let called = |(block, words): (BlockNo, &[u64])| {
        let differs = |(n, word): &(usize, &u64)| region.load_u64(block.pos().plus(8 * *n as u64)) != **word;
        let is_fixed = block.0 <= 1 || block.0 == LAST || plain.called(block.0).starts_with("<inode chunk");
        match is_fixed || words.iter().enumerate().filter(differs).count() <= 8 {
            true => plain.called(block.0),
            false => "<new>".into(),
        }
    };
    let mut changed: Vec<String> = verdict.changes().map(called).collect();
    changed.sort();
    if !changed.is_empty() {
        writeln!(text, "  changed: {}", changed.join(" ")).unwrap();
    }
    let survey = survey("IMAGE", region).ok().flatten();
    // One reading without a repair may find others.
    if let Some(issues) = survey.as_ref().map(|s| s.issues).filter(|issues| *issues != verdict.found()) {
        writeln!(text, "  at the first look: {issues}").unwrap();
    }
    let figures = survey.map_or("none".into(), |s| {
        let of = |ino: Ino| s.inodes.iter().find(|inode| inode.ino == ino).map(|inode| inode.figures);
        let file = of(plain.file).map_or("no file".into(), |f| {
            format!(
                "{} bytes, {} blocks, {} records in {} pages of {} chains, {} living",
                f.size_bytes, f.blocks, f.records, f.pages, f.chains, f.living
            )
        });
        format!(
            "{} inodes, {} orphans, {} + {} + {} + {} + {} blocks; {file}",
            s.inodes.len(),
            s.orphans,
            s.blocks_fixed,
            s.blocks_inodes,
            s.blocks_logs,
            s.blocks_data,
            s.blocks_free
        )
    });
    writeln!(text, "  seen: {figures}").unwrap();
    verdict.changes().for_each(|(block, words)| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        region.nt_write(block.pos(), &bytes);
    });
    let again = if changed.is_empty() { verdict } else { examine("IMAGE", region).unwrap() };
    if again.found() > 0 {
        writeln!(text, "  left: {}", again.found()).unwrap();
    }
    text
}

#[test]
fn each_damage_is_reported_in_these_words() {
    let mut text = String::new();
    // Of heddle: unmounted, and cut.
    let mut heddles: [Vec<String>; 2] = Default::default();
    for (variant, cut) in [
        (Variant::Heddle, false),
        (Variant::Heddle, true),
        (Variant::Nova, false),
        (Variant::Nova, true),
        (Variant::NovaTree, false),
        (Variant::NovaTree, true),
    ] {
        let plain = Plain::new(variant, cut);
        let state = if cut { "cut by power" } else { "unmounted" };
        writeln!(text, "{}, {state}", variant.name()).unwrap();
        let region = Region::anonymous(IMAGE_BYTES).unwrap();
        let of = |damage: Damage| {
            region.nt_write(Pos(0), &plain.bytes);
            let craft = Craft { region: &region, seed: plain.seed };
            damage(&Victim { plain: &plain, craft });
            said(&plain, &region)
        };
        let without = of(|_| ());
        text.push_str(&without);
        // Of each damage what the undamaged image does not say, and only where heddle's image says something else.
        for (n, (what, damage)) in DAMAGES.iter().enumerate() {
            let is_new = |line: &&str| !without.contains(*line);
            let said: String = of(*damage).split_inclusive('\n').filter(is_new).collect();
            let alike = if variant == Variant::Heddle { 0 } else { usize::from(cut) };
            if heddles[alike].get(n) != Some(&said) {
                write!(text, " {what}\n{said}").unwrap();
            }
            if variant == Variant::Heddle {
                heddles[usize::from(cut)].push(said);
            }
        }
    }
    let wanted = include_str!("reports.txt");
    if text != wanted {
        println!("{text}");
        let differs = text.lines().zip(wanted.lines()).find(|(is, was)| is != was);
        panic!("{differs:#?} is the first line that differs from reports.txt");
    }
}
