//! A line of a cleanly unmounted image that media set to zero: a mount notices it, or SEMANTICS.md says that it does not.

use super::super::*;
use std::collections::{BTreeMap, BTreeSet};

/// What a line of metadata is, as the table in SEMANTICS.md divides them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// Pointers to chunks of inodes.
    Directory,
    /// First line of an inode's slot.
    Inode,
    /// Its second: pointers to its log.
    Pointers,
    /// A block of attributes, or of a map.
    Blob,
    /// First line of a log page.
    Header,
    /// The last line of a log's last page.
    Newest,
    /// The last line of a log page that has a successor.
    LastOfPage,
    /// A line behind which others stand.
    Record,
}

fn word(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// What a line is, as docs/format-nvm.md lays an image out. The inode directory of a small one is block 1.
fn kind(image: &[u8], line: usize) -> Kind {
    let (block, at) = (line / PAGE, line % PAGE / LINE);
    let is_chunk = (0..PAGE / 8).any(|n| word(image, PAGE + n * 8) & ((1 << 40) - 1) == block as u64);
    match at {
        _ if block == 1 => Kind::Directory,
        _ if is_chunk && at.is_multiple_of(2) => Kind::Inode,
        _ if is_chunk => Kind::Pointers,
        _ if word(image, block * PAGE) >> 32 & 0x3f != 0x2a => Kind::Blob,
        0 => Kind::Header,
        _ if !is_blank(&image[line + LINE..(block + 1) * PAGE]) => Kind::Record,
        _ if word(image, block * PAGE + 56) == 0 => Kind::Newest,
        _ => Kind::LastOfPage,
    }
}

/// Chunks of inodes behind the first line of pointers to them, logs of several pages, and changes of one line at the end of each.
fn large(variant: Variant) -> (Vec<u8>, Tree) {
    let region = Region::anonymous(IMAGE_BYTES).unwrap();
    let reader = region.map_again().unwrap();
    format_region(&region, variant).unwrap();
    let volume = mount(region, &options()).unwrap();
    let fs = volume.fs();
    let dir = fs.new_dir(Ino::ROOT, "many");
    for n in 0..300 {
        fs.release(fs.new_file(dir, &n.to_string()));
    }
    let handle = fs.new_file(dir, "overwritten");
    for page in 0..100 {
        fs.write(&handle, page * PAGE as u64, &[DATA; PAGE]).unwrap();
    }
    fs.release(handle);
    let attribute = XattrName::new(b"user.attribute").unwrap();
    let long: Vec<u8> = (0..9000_u32).map(|i| (i % 250) as u8).collect();
    fs.setxattr(&root(), dir, attribute, &long, SetXattr::Any).unwrap();
    let tree = Tree::of(&fs).unwrap();
    drop(fs);
    volume.unmount();
    (bytes_of(&reader), tree)
}

/// Does a mount tell, or count, that something is not there?
fn is_told(image: &[u8], tree: &Tree) -> bool {
    let Ok(volume) = mounted(image) else { return true };
    let report = volume.report;
    match Tree::of(&volume.fs()) {
        Ok(found) => {
            found.difference(tree).is_none() || report.torn_slots + report.orphans + report.names_dropped > 0
        }
        Err(_) => true,
    }
}

/// Kinds of lines that one mount or more did not miss. Of lines that are many and alike few are tried.
fn silent(mut image: Vec<u8>, tree: &Tree) -> BTreeSet<Kind> {
    let (mut met, mut silent) = (BTreeMap::<Kind, u32>::new(), BTreeSet::new());
    for (line, blank) in metadata_lines(&image) {
        if blank {
            continue;
        }
        let kind = kind(&image, line);
        let met = met.entry(kind).or_default();
        *met += 1;
        let alike = matches!(kind, Kind::Blob | Kind::Inode | Kind::Record);
        if alike && *met > 40 && *met % 16 != 0 {
            continue;
        }
        let old: Vec<u8> = image[line..line + LINE].to_vec();
        image[line..line + LINE].fill(0);
        if !is_told(&image, tree) {
            silent.insert(kind);
        }
        image[line..line + LINE].copy_from_slice(&old);
    }
    assert_eq!(met.len(), 8, "lines of each kind: {met:?}");
    silent
}

#[test]
fn a_zeroed_line_goes_unnoticed_only_where_semantics_says_so() {
    each_variant(|variant| {
        let (new, tree) = large(variant);
        let region = Region::anonymous(IMAGE_BYTES).unwrap();
        region.nt_write(Pos(0), &new);
        let reader = region.map_again().unwrap();
        mount(region, &options()).unwrap().unmount();
        let of_records = match variant {
            Variant::Heddle => vec![Kind::Newest, Kind::LastOfPage],
            Variant::Nova => vec![Kind::LastOfPage],
            _ => vec![Kind::Newest, Kind::LastOfPage, Kind::Record],
        };
        // A mount counts the names without an inode that the one before it made, and no others.
        let of_inodes = [Kind::Directory, Kind::Inode];
        for (image, inodes) in [(new, false), (bytes_of(&reader), true)] {
            let listed = of_inodes.iter().filter(|_| inodes).chain(&of_records).chain([&Kind::Pointers]);
            assert_eq!(silent(image, &tree), listed.copied().collect(), "{variant:?}");
        }
    });
}
