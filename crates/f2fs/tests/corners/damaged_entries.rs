//! Entries of a directory that make no sense, in blocks or inline: they hide no other name, and nothing is written over them.

use super::{ROOT, create, make_dir, mounted, name};
use crate::common::Image;
use crate::forge::{Forge, version_of};
use crate::listing::{DIR, half_full};
use heddle_f2fs::F2fs;
use heddle_f2fs::format::{InodeBlock, NodeBlock};
use heddle_vfs::{Cookie, Cred, Error, FileSystem, Ino, Listing, Name, OpenFlags, RenameMode};
use std::collections::BTreeMap;
use std::mem::offset_of;

const WRONG: &str = "wrong name";
const DENTRY_BYTES: usize = 11;
/// Pointers of an inode that this engine made stand behind its extra attributes.
const EXTRA_SLOTS: usize = 9;

/// Where entries stand in a block.
#[derive(Clone, Copy)]
struct Layout {
    bitmap: usize,
    entries: usize,
    names: usize,
    slots: usize,
}

const IN_BLOCKS: Layout = Layout { bitmap: 0, entries: 30, names: 30 + 214 * DENTRY_BYTES, slots: 214 };
/// In an inode without extra attributes.
const INLINE: Layout = {
    let start = offset_of!(InodeBlock, addr) + 4;
    Layout { bitmap: start, entries: start + 30, names: start + 30 + 182 * DENTRY_BYTES, slots: 182 }
};

impl Layout {
    fn is_marked(self, block: &[u8], slot: usize) -> bool {
        block[self.bitmap + slot / 8] & 1 << (slot % 8) != 0
    }

    /// The slot of a name, if it is there.
    fn slot_of(self, block: &[u8], text: &str) -> Option<usize> {
        (0..self.slots).find(|slot| {
            let len = &block[self.entries + slot * DENTRY_BYTES + 8..][..2];
            self.is_marked(block, *slot)
                && len == (text.len() as u16).to_le_bytes()
                && block[self.names + slot * 8..].starts_with(text.as_bytes())
        })
    }

    /// All that says something of the two slots of an entry.
    fn bytes(self, block: &[u8], slot: usize) -> Vec<u8> {
        let entries = &block[self.entries + slot * DENTRY_BYTES..][..2 * DENTRY_BYTES];
        [entries, &block[self.names + slot * 8..][..16], &[u8::from(self.is_marked(block, slot))]].concat()
    }
}

/// What becomes of the entry in a slot.
type Damage = (&'static str, fn(&mut [u8], Layout, usize));

fn set_len(block: &mut [u8], layout: Layout, slot: usize, len: u16) {
    block[layout.entries + slot * DENTRY_BYTES + 8..][..2].copy_from_slice(&len.to_le_bytes());
}

fn set_kind(block: &mut [u8], layout: Layout, slot: usize, kind: u8) {
    block[layout.entries + slot * DENTRY_BYTES + 10] = kind;
}

const DAMAGES: [Damage; 9] = [
    ("no length", |block, layout, slot| set_len(block, layout, slot, 0)),
    ("a length that no name has", |block, layout, slot| set_len(block, layout, slot, 300)),
    ("the largest length", |block, layout, slot| set_len(block, layout, slot, u16::MAX)),
    ("a length over those behind", |block, layout, slot| set_len(block, layout, slot, 60)),
    ("a length that is too short", |block, layout, slot| set_len(block, layout, slot, 3)),
    ("no kind", |block, layout, slot| set_kind(block, layout, slot, 0)),
    ("a kind that there is not", |block, layout, slot| set_kind(block, layout, slot, 9)),
    ("a slash", |block, layout, slot| block[layout.names + slot * 8 + 3] = b'/'),
    ("a NUL", |block, layout, slot| block[layout.names + slot * 8 + 3] = 0),
];

/// An image with a directory that has names of several slots before and behind a wrong one.
fn in_blocks() -> (Image, Ino) {
    let image = Image::made(64);
    let fs = mounted(&image);
    let dir = make_dir(&fs, "dir");
    for n in 0..24 {
        if n == 10 {
            fs.release(create(&fs, dir, WRONG));
        }
        fs.release(create(&fs, dir, &format!("{n}{}", "n".repeat(n * 7 % 40))));
    }
    fs.unmount().unwrap();
    (image, dir)
}

/// The same inline, as Linux has it.
fn inline() -> (Image, Ino) {
    let (fs, image, dir) = half_full();
    // Into a gap of two slots.
    fs.unlink(&Cred::root(), dir, name("f00061")).unwrap();
    fs.release(create(&fs, dir, WRONG));
    fs.unmount().unwrap();
    (image, dir)
}

/// The newest copy of the block with the first entries, and where it is.
fn newest(image: &Image, dir: Ino, layout: Layout) -> (u32, Vec<u8>) {
    let forge = Forge::of(&image.path);
    let key = |(addr, node): &(u32, NodeBlock)| (version_of(node), *addr);
    let inodes = forge.nodes_of(dir.0 as u32).into_iter();
    let newest = inodes.filter(|(_, node)| u64::from(node.footer.nid.get()) == dir.0).max_by_key(key);
    let (addr, node) = newest.unwrap();
    let inode: &InodeBlock = zerocopy::transmute_ref!(&node);
    let at = if layout.bitmap == 0 { inode.addr[EXTRA_SLOTS].get() } else { addr };
    (at, forge.block(at))
}

fn names_in(fs: &F2fs, dir: Ino, room: usize) -> (BTreeMap<Vec<u8>, Ino>, Result<(), Error>) {
    let handle = fs.open(&Cred::root(), dir, OpenFlags::READ).unwrap();
    let (mut names, mut from, mut listing) = (BTreeMap::new(), Cookie::default(), Listing::with_room(room));
    let end = loop {
        if let Err(error) = fs.readdir(&handle, from, &mut listing) {
            break Err(error);
        }
        if listing.is_empty() {
            break Ok(());
        }
        for entry in listing.entries() {
            assert!(names.insert(entry.name.bytes().to_vec(), entry.ino).is_none(), "{entry:?} twice");
            assert!(entry.next <= Cookie::MAX);
            from = entry.next;
        }
    };
    fs.release(handle);
    (names, end)
}

fn is_damage<T>(done: &Result<T, Error>) -> bool {
    matches!(done, Err(Error::Corrupt(_)))
}

/// Whatever is done, the slots stay as they are, and other names are there.
fn hides_no_other((image, dir): &(Image, Ino), layout: Layout, (what, damage): Damage) {
    let (image, dir, root) = (Image::copy_of(image), *dir, Cred::root());
    let mut wanted = names_in(&mounted(&image), dir, 0).0;
    let (at, block) = newest(&image, dir, layout);
    let slot = layout.slot_of(&block, WRONG).unwrap();
    assert!(wanted.remove(WRONG.as_bytes()).is_some());
    Forge::of(&image.path).change(at, |block| damage(block, layout, slot));
    let before = layout.bytes(&newest(&image, dir, layout).1, slot);
    let stays = |fs: F2fs, what: &str| {
        assert!(!fs.has_failed(), "{what}");
        fs.unmount().unwrap();
        drop(fs);
        assert!(layout.bytes(&newest(&image, dir, layout).1, slot) == before, "{what}");
        mounted(&image)
    };
    let fs = mounted(&image);
    for room in [0, 300, 1 << 20] {
        let (found, end) = names_in(&fs, dir, room);
        assert!(found == wanted && is_damage(&end), "{what}: {:?}, {end:?}", found.len());
    }
    let is_there = |fs: &F2fs, (text, ino): (&Vec<u8>, &Ino)| {
        let attr = fs.lookup(&root, dir, Name::new(text).unwrap()).unwrap();
        assert_eq!(attr.ino, *ino);
        fs.release(fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap());
    };
    wanted.iter().for_each(|entry| is_there(&fs, entry));
    assert_eq!(fs.lookup(&root, dir, name("absent")).map(drop), Err(Error::NotFound));
    let made = fs.create(&root, dir, name(WRONG), 0o600, OpenFlags::WRITE);
    let calls =
        [fs.lookup(&root, dir, name(WRONG)).map(drop), fs.unlink(&root, dir, name(WRONG)), made.map(drop)];
    assert!(calls.iter().all(is_damage), "{what}: {calls:?}");
    // Names that come, as long as their directory takes some.
    for n in 0..40 {
        let text = format!("new {n}{}", "x".repeat(n % 20));
        match fs.create(&root, dir, name(&text), 0o600, OpenFlags::WRITE) {
            Ok((attr, handle)) => {
                fs.release(handle);
                wanted.insert(text.into_bytes(), attr.ino);
            }
            refused => assert!(is_damage(&refused), "{what}: {refused:?}"),
        }
    }
    let fs = stays(fs, what);
    let (found, end) = names_in(&fs, dir, 300);
    assert!(found == wanted && is_damage(&end), "{what}: {:?}, {end:?}", found.len());
    for (n, (text, ino)) in wanted.iter().enumerate() {
        is_there(&fs, (text, ino));
        let text = Name::new(text).unwrap();
        if n % 2 == 0 {
            fs.rename(&root, dir, text, ROOT, name("moved"), RenameMode::Replace).unwrap();
            fs.unlink(&root, ROOT, name("moved")).unwrap();
        } else {
            fs.unlink(&root, dir, text).unwrap();
        }
    }
    let fs = stays(fs, what);
    assert!(names_in(&fs, dir, 0).0.is_empty());
    let text = if layout.bitmap == 0 { "dir" } else { &DIR[1..] };
    make_dir(&fs, "other");
    let replaced = fs.rename(&root, ROOT, name("other"), ROOT, name(text), RenameMode::Replace);
    let removed = fs.rmdir(&root, ROOT, name(text));
    assert!(is_damage(&removed) && is_damage(&replaced), "{what}: {removed:?}, {replaced:?}");
    assert!(fs.lookup(&root, ROOT, name(text)).is_ok());
    stays(fs, what);
}

/// All behind it in its block were hidden, and the listing ended.
#[test]
fn a_damaged_entry_hides_no_other_name() {
    let image = in_blocks();
    DAMAGES.into_iter().for_each(|damage| hides_no_other(&image, IN_BLOCKS, damage));
}

#[test]
fn a_damaged_inline_entry_hides_no_other_name() {
    let image = inline();
    DAMAGES.into_iter().for_each(|damage| hides_no_other(&image, INLINE, damage));
}

/// Of a name with a slash or of a length that cannot be, fsck.f2fs says nothing.
#[test]
fn a_survey_tells_of_each_damaged_entry() {
    for ((image, dir), layout, path) in [(in_blocks(), IN_BLOCKS, "/dir"), (inline(), INLINE, DIR)] {
        let problems = |image: &Image| F2fs::open(&image.path).unwrap().survey().problems;
        assert_eq!(problems(&image), Vec::<String>::new());
        let (at, block) = newest(&image, dir, layout);
        let slot = layout.slot_of(&block, WRONG).unwrap();
        let hash =
            |block: &mut [u8], layout: Layout, slot: usize| block[layout.entries + slot * DENTRY_BYTES] ^= 1;
        for (what, damage) in DAMAGES.into_iter().chain([("a hash", hash as fn(&mut [u8], Layout, usize))]) {
            let image = Image::copy_of(&image);
            Forge::of(&image.path).change(at, |block| damage(block, layout, slot));
            let told = problems(&image);
            let is_told = told.iter().any(|problem| problem.starts_with(path) && problem.contains(" entry "));
            let is_hash = told.iter().any(|problem| problem.starts_with(&format!("{path}/{WRONG} (inode")));
            assert!(if what == "a hash" { is_hash } else { is_told }, "{what}: {told:?}");
        }
    }
}

/// Calls find the first of them; the other file has no name that leads to it.
#[test]
fn a_survey_tells_of_a_name_that_is_there_twice() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let dir = make_dir(&fs, "dir");
    let names = ["first name", "other name"];
    names.iter().for_each(|text| fs.release(create(&fs, dir, text)));
    fs.unmount().unwrap();
    drop(fs);
    let (at, block) = newest(&image, dir, IN_BLOCKS);
    let [from, to] = names.map(|text| IN_BLOCKS.slot_of(&block, text).unwrap());
    Forge::of(&image.path).change(at, |block| {
        let [hash_from, hash_to] = [from, to].map(|slot| IN_BLOCKS.entries + slot * DENTRY_BYTES);
        block.copy_within(hash_from..hash_from + 4, hash_to);
        let [name_from, name_to] = [from, to].map(|slot| IN_BLOCKS.names + slot * 8);
        block.copy_within(name_from..name_from + 16, name_to);
    });
    let told = F2fs::open(&image.path).unwrap().survey().problems;
    assert!(told.iter().any(|problem| problem.contains("there twice")), "{told:?}");
}

/// New names were written over the ends of old ones.
#[test]
fn a_name_that_lost_marks_of_its_slots_is_not_written_over() {
    let (image, dir) = in_blocks();
    let wanted = names_in(&mounted(&image), dir, 0).0;
    let (at, block) = newest(&image, dir, IN_BLOCKS);
    let slot = IN_BLOCKS.slot_of(&block, WRONG).unwrap() + 1;
    Forge::of(&image.path).change(at, |block| block[IN_BLOCKS.bitmap + slot / 8] &= !(1_u8 << (slot % 8)));
    let fs = mounted(&image);
    for n in 0..20 {
        fs.release(create(&fs, dir, &format!("+{n}")));
    }
    let (found, end) = names_in(&fs, dir, 0);
    assert_eq!(end, Ok(()));
    assert!(wanted.iter().all(|(text, ino)| found.get(text) == Some(ino)));
    assert_eq!(fs.lookup(&Cred::root(), dir, name(WRONG)).unwrap().ino, wanted[WRONG.as_bytes()]);
    fs.unmount().unwrap();
}

/// A size of 0 made a full directory an empty one, which could be removed with all that was in it.
#[test]
fn a_damaged_size_or_depth_of_a_directory_hides_no_name() {
    let image = Image::made(64);
    let (fs, root) = (mounted(&image), Cred::root());
    let dir = make_dir(&fs, "dir");
    (0..900).for_each(|n| fs.release(create(&fs, dir, &format!("{n}"))));
    let wanted = names_in(&fs, dir, 4096).0;
    fs.unmount().unwrap();
    drop(fs);
    let damages: [fn(&mut InodeBlock); 5] = [
        |inode| inode.size_bytes.set(0),
        |inode| inode.size_bytes.set(4097),
        |inode| inode.depth.set(0),
        |inode| inode.depth.set(1),
        |inode| inode.depth.set(63),
    ];
    for (n, damage) in damages.into_iter().enumerate() {
        let image = Image::copy_of(&image);
        Forge::of(&image.path).inode(dir.0 as u32, |inode| {
            damage(inode);
            crate::believed::seal(&image, inode);
        });
        let fs = mounted(&image);
        assert_eq!(fs.rmdir(&root, ROOT, name("dir")), Err(Error::NotEmpty), "{n}");
        let (found, end) = names_in(&fs, dir, 4096);
        assert!(found == wanted && end == Ok(()), "{n}: {} names, {end:?}", found.len());
        for (text, ino) in &wanted {
            let text = Name::new(text).unwrap();
            assert_eq!(fs.lookup(&root, dir, text).unwrap().ino, *ino, "{n}");
            let again = fs.create(&root, dir, text, 0o600, OpenFlags::WRITE);
            assert_eq!(again.map(drop), Err(Error::Exists), "{n}");
        }
        assert_eq!(fs.lookup(&root, dir, name("absent")).map(drop), Err(Error::NotFound), "{n}");
        fs.release(create(&fs, dir, "new"));
        for text in wanted.keys() {
            fs.unlink(&root, dir, Name::new(text).unwrap()).unwrap();
        }
        fs.unlink(&root, dir, name("new")).unwrap();
        fs.rmdir(&root, ROOT, name("dir")).unwrap();
        fs.unmount().unwrap();
    }
}

#[test]
fn a_listing_from_a_place_that_never_was_is_at_its_end() {
    let image = Image::made(64);
    let fs = mounted(&image);
    fs.release(create(&fs, ROOT, "file"));
    let dir = fs.open(&Cred::root(), ROOT, OpenFlags::READ).unwrap();
    for place in [214, 1 << 40, 1 << 60, Cookie::MAX.0, u64::MAX] {
        let mut listing = Listing::with_room(0);
        assert_eq!(fs.readdir(&dir, Cookie(place), &mut listing), Ok(()), "{place:#x}");
        assert!(listing.is_empty());
    }
    fs.release(dir);
}

/// One block of entries that could not be read hid all names in all other blocks.
#[test]
fn a_block_of_entries_that_cannot_be_read_hides_no_other_block() {
    let image = Image::made(64);
    let (fs, root) = (mounted(&image), Cred::root());
    let dir = make_dir(&fs, "dir");
    (0..900).for_each(|n| fs.release(create(&fs, dir, &format!("{n}"))));
    fs.unmount().unwrap();
    drop(fs);
    Forge::of(&image.path).inode(dir.0 as u32, |inode: &mut InodeBlock| {
        inode.addr[EXTRA_SLOTS].set(u32::MAX - 9);
        crate::believed::seal(&image, inode);
    });
    let fs = mounted(&image);
    let (found, end) = names_in(&fs, dir, 4096);
    assert!(is_damage(&end) && (600..800).contains(&found.len()), "{} names, {end:?}", found.len());
    for n in 0..900 {
        let (text, looked) = (n.to_string(), fs.lookup(&root, dir, name(&n.to_string())));
        match found.get(text.as_bytes()) {
            Some(ino) => assert_eq!(looked.unwrap().ino, *ino),
            None => assert!(is_damage(&looked), "{n}: {looked:?}"),
        }
    }
    // It may be there.
    assert!(is_damage(&fs.create(&root, dir, name("new"), 0o600, OpenFlags::WRITE)));
    for text in found.keys() {
        fs.unlink(&root, dir, Name::new(text).unwrap()).unwrap();
    }
    assert!(is_damage(&fs.rmdir(&root, ROOT, name("dir"))) && !fs.has_failed());
    fs.unmount().unwrap();
}
