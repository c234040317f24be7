//! Two states of an image that differ in one thing, and what is told of that.

use super::*;
use crate::device::{Access, Device, Faults};
use crate::format::{
    Block, DentryBlock, INODE_POINTERS, InodeBlock, Superblock, bit_lsb, feature, inline_flag, inode_flag,
    set_bit_lsb,
};
use crate::superblock;
use crate::volume::lost::tests::{FIRST, Scene, create, make_dir};
use heddle_undo::{Image, Writer};
use heddle_vfs::{Cred, FileSystem, Ino, SetXattr, XattrName};
use std::cell::RefCell;
use std::collections::BTreeSet;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

const BLOCK: usize = 4096;
/// Where the first extended attribute of an inode begins, behind their header.
const FIRST_XATTR: usize = INODE_POINTERS - 50 + 6;

#[derive(Clone, Copy, PartialEq)]
enum When {
    Before,
    Now,
}
use When::{Before, Now};

/// An image before a repair, and after it. `file` has pages 0, 1 and 3, and an attribute.
struct Pair {
    states: [Scene; 2],
    file: u32,
    dir: u32,
    inside: u32,
    /// What was in blocks before a test changed them.
    were: RefCell<Vec<(When, u32, Block)>>,
}

/// Inodes that are lost with their paths, and paths of those whose attributes changed.
type Told = (Vec<(u32, Option<String>)>, Vec<String>);

fn nothing() -> Told {
    (Vec::new(), Vec::new())
}

fn attributes_of(path: &str) -> Told {
    (Vec::new(), vec![path.to_owned()])
}

fn content_of(ino: u32, path: &str) -> Told {
    (vec![(ino, Some(path.to_owned()))], Vec::new())
}

impl Pair {
    fn of_files() -> Pair {
        let mut inos = [0; 3];
        let before = Scene::of(|fs| {
            let file = create(fs, Ino::ROOT, "file");
            for page in [0, 1, 3] {
                fs.write(&file, page * BLOCK as u64, &[5; BLOCK]).unwrap();
            }
            let user = XattrName::new(b"user.x").unwrap();
            fs.setxattr(&Cred::root(), file.ino, user, b"value", SetXattr::Any).unwrap();
            let dir = make_dir(fs, "dir");
            let inside = create(fs, dir, "inside");
            fs.write(&inside, 0, &[6; BLOCK]).unwrap();
            inos = [file.ino, dir, inside.ino].map(|ino| ino.0 as u32);
            [file, inside].into_iter().for_each(|file| fs.release(file));
        });
        let [file, dir, inside] = inos;
        let states = [before.copy(), before];
        Pair { states, file, dir, inside, were: RefCell::default() }
    }

    fn state(&self, when: When) -> &Scene {
        &self.states[usize::from(when == Now)]
    }

    fn block(&self, when: When, addr: u32, change: impl FnOnce(&mut Block)) {
        let was = self.state(when).block(addr);
        let mut block = was;
        change(&mut block);
        self.state(when).set_block(addr, &block);
        self.were.borrow_mut().push((when, addr, was));
    }

    fn inode(&self, when: When, ino: u32, change: impl FnOnce(&mut InodeBlock)) {
        let addr = self.state(when).place_of(ino);
        self.block(when, addr, |block| change(InodeBlock::mut_from_bytes(block).unwrap()));
    }

    /// The block of a file's page.
    fn page_of(&self, ino: u32, page: usize) -> u32 {
        let block = self.states[0].block(self.states[0].place_of(ino));
        InodeBlock::ref_from_bytes(&block).unwrap().addr[FIRST + page].get()
    }

    /// The root's entry of an inode is taken away.
    fn unname(&self, when: When, ino: u32) {
        self.block(when, self.page_of(3, 0), |block| {
            let block = DentryBlock::mut_from_bytes(block).unwrap();
            let is_it = |slot: &usize| bit_lsb(&block.bitmap, *slot) && block.entries[*slot].ino.get() == ino;
            let slot = (2..block.entries.len()).find(is_it).unwrap();
            set_bit_lsb(&mut block.bitmap, slot, false);
        });
    }

    /// All superblocks of both states.
    fn superblocks(&self, change: impl Fn(&mut Superblock)) {
        for scene in &self.states {
            let device = Device::open(&scene.path(), Access::Repair).unwrap();
            superblock::rewrite(&device, [0, 1], &change).unwrap();
        }
    }

    fn old(&self) -> Old {
        let image = Image { uuid: [0; 16], epochs: [0; 2], blocks: crate::IMAGE_BYTES_MIN / 4096, repair: 1 };
        let path = self.states[0].path().with_extension("undo");
        let mut undo = Writer::create(&path, image).unwrap();
        let changed: BTreeSet<u32> = self.were.borrow().iter().map(|(_, addr, _)| *addr).collect();
        for addr in changed {
            let [before, now] = [Before, Now].map(|when| self.state(when).block(addr));
            if before != now {
                undo.keep(addr.into(), &before).unwrap();
            }
        }
        std::fs::remove_file(path).unwrap();
        undo.old()
    }

    fn told_of(&self, before: Lost) -> Told {
        let lost = before.since(&self.states[1].open(), &self.old()).unwrap();
        let inodes = lost.inodes().map(|inode| (inode.ino, inode.path.clone()));
        (inodes.collect(), lost.changed_attributes().to_vec())
    }

    /// What is told; then both states are as they were.
    #[track_caller]
    fn tells(&self, wanted: &Told) {
        assert_eq!(self.told_of(self.states[0].open()), *wanted);
        for (when, addr, was) in self.were.take().into_iter().rev() {
            self.state(when).set_block(addr, &was);
        }
    }
}

#[test]
fn each_change_of_attributes_is_told_by_path() {
    let pair = Pair::of_files();
    pair.tells(&nothing());
    let changes: [fn(&mut InodeBlock); 5] = [
        |inode| inode.mode.set(inode.mode.get() | 0o022),
        |inode| inode.mode.set(inode.mode.get() & !0o004),
        |inode| inode.mode.set(inode.mode.get() | 0o4000),
        |inode| inode.uid.set(7),
        |inode| inode.gid.set(7),
    ];
    for change in changes {
        pair.inode(Now, pair.file, change);
        pair.tells(&attributes_of("/file"));
        pair.inode(Now, pair.inside, change);
        pair.tells(&attributes_of("/dir/inside"));
        pair.inode(Now, pair.dir, change);
        pair.tells(&attributes_of("/dir"));
    }
    // No name leads to the root.
    pair.inode(Now, 3, |inode| inode.uid.set(7));
    pair.tells(&attributes_of("inode 3"));
}

#[test]
fn extended_attributes_are_compared_if_they_could_be_read_before() {
    let pair = Pair::of_files();
    let addr = pair.states[0].place_of(pair.file);
    let damage = |inode: &mut InodeBlock| inode.addr[FIRST_XATTR].set(0xff00_fa01);
    pair.block(Now, addr, |block| {
        let at = block.windows(5).position(|bytes| bytes == b"value").unwrap();
        block[at] = b'V';
    });
    pair.tells(&attributes_of("/file"));
    pair.inode(Now, pair.file, damage);
    pair.tells(&attributes_of("/file"));
    pair.inode(Before, pair.file, damage);
    pair.tells(&nothing());
    // What else changed is told all the same.
    pair.inode(Before, pair.file, damage);
    pair.inode(Now, pair.file, |inode| inode.uid.set(7));
    pair.tells(&attributes_of("/file"));
}

#[test]
fn a_change_of_content_is_told_and_one_beside_it_is_not() {
    let pair = Pair::of_files();
    let file = content_of(pair.file, "/file");
    pair.inode(Now, pair.file, |inode| inode.size_bytes.set(4 * BLOCK as u64 - 1));
    pair.tells(&file);
    pair.inode(Now, pair.file, |inode| inode.addr[FIRST].set(0));
    pair.tells(&file);
    pair.inode(Now, pair.file, |inode| inode.addr.swap(FIRST, FIRST + 2));
    pair.tells(&file);
    // The bytes of one block.
    pair.block(Now, pair.page_of(pair.file, 1), |block| block[77] ^= 1);
    pair.tells(&file);
    // A hole is one also if a block is reserved for it, and pointers behind the end lead to nothing of it.
    pair.inode(Now, pair.file, |inode| inode.addr[FIRST + 2].set(u32::MAX));
    pair.tells(&nothing());
    pair.inode(Now, pair.file, |inode| inode.addr[FIRST + 10] = inode.addr[FIRST]);
    pair.tells(&nothing());
    // Of a directory its names are what counts.
    pair.inode(Now, pair.dir, |inode| inode.size_bytes.set(100));
    pair.tells(&nothing());
}

/// What it may be besides may be free now.
#[test]
fn a_file_that_contradicts_itself_counts_as_changed() {
    let pair = Pair::of_files();
    for when in [Before, Now] {
        pair.inode(when, pair.file, |inode| inode.inline |= inline_flag::DATA);
    }
    pair.tells(&content_of(pair.file, "/file"));
}

/// Only blocks that the repair has changed are compared byte by byte.
#[test]
fn an_unreadable_block_of_an_untouched_file_hinders_nothing() {
    let pair = Pair::of_files();
    pair.inode(Now, pair.file, |inode| inode.uid.set(7));
    let (before, page) = (pair.states[0].open(), pair.page_of(pair.inside, 0));
    *before.media.device.faults.lock().unwrap() =
        Faults { unreadable: [page, page + 1], ..Faults::default() };
    assert_eq!(pair.told_of(before), attributes_of("/file"));
}

#[test]
fn an_inode_without_its_name_is_lost() {
    let pair = Pair::of_files();
    let lost = (vec![(pair.file, None)], Vec::new());
    pair.unname(Now, pair.file);
    pair.tells(&lost);
    // A name of another kind is none.
    pair.inode(Now, pair.file, |inode| inode.mode.set(0o010_644));
    pair.tells(&lost);
    // It had none before, whatever it counts.
    for links in [0, 1] {
        for when in [Before, Now] {
            pair.unname(when, pair.file);
            pair.inode(when, pair.file, |inode| inode.links.set(links));
        }
        pair.tells(&lost);
    }
    // Only its name led to it.
    let before = pair.states[0].open();
    let entry = NatEntry { version: 0, ino: U32::new(0), addr: U32::new(0) };
    before.media.nodes.nat.change(vec![(Nid(pair.file), entry)]);
    pair.unname(Now, pair.file);
    assert_eq!(pair.told_of(before), lost);
}

/// It ignores case, for example: every inode that exists counts as named then.
#[test]
fn under_a_directory_that_cannot_be_listed_what_exists_is_not_lost() {
    let pair = Pair::of_files();
    let is_fold = |when: When| pair.inode(when, pair.dir, |inode| inode.flags.set(inode_flag::CASEFOLD));
    [Before, Now].into_iter().for_each(is_fold);
    pair.tells(&content_of(pair.dir, "/dir"));
    [Before, Now].into_iter().for_each(is_fold);
    pair.block(Now, pair.states[1].place_of(pair.inside), |block| block.fill(0));
    let (mut inodes, attributes) = content_of(pair.dir, "/dir");
    inodes.push((pair.inside, None));
    pair.tells(&(inodes, attributes));
}

/// One that has a name of its own is a user's.
#[test]
fn nameless_quota_files_of_the_superblock_are_not_lost() {
    let pair = Pair::of_files();
    let lost = (vec![(pair.file, None)], Vec::new());
    let without_names = |name_bytes: u32| {
        for when in [Before, Now] {
            pair.unname(when, pair.file);
            pair.inode(when, pair.file, |inode| inode.name_bytes.set(name_bytes));
        }
    };
    pair.superblocks(|superblock| superblock.quota_ino[1].set(pair.file));
    without_names(0);
    pair.tells(&lost);
    pair.superblocks(|superblock| superblock.feature.set(superblock.feature.get() | feature::QUOTA_INO));
    without_names(0);
    pair.tells(&nothing());
    without_names(4);
    pair.tells(&lost);
    pair.superblocks(|superblock| superblock.quota_ino[1].set(pair.inside));
    without_names(0);
    pair.tells(&lost);
}

#[test]
fn an_orphan_is_lost_only_if_it_counts_a_name() {
    let mut ino = 0;
    let before = Scene::of(|fs| {
        let file = create(fs, Ino::ROOT, "gone");
        fs.write(&file, 0, &[5; BLOCK]).unwrap();
        fs.unlink(&Cred::root(), Ino::ROOT, crate::volume::lost::tests::name("gone")).unwrap();
        ino = file.ino.0 as u32;
    });
    let states = [before.copy(), before];
    let pair = Pair { states, file: ino, dir: 0, inside: 0, were: RefCell::default() };
    pair.tells(&nothing());
    [Before, Now].into_iter().for_each(|when| pair.inode(when, ino, |inode| inode.links.set(1)));
    pair.tells(&(vec![(ino, None)], Vec::new()));
}
