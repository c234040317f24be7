//! Inodes that a test has damaged, read as a repair's losses are.

mod nodes;

use super::*;
use crate::device::Access;
use crate::format::{Block, DentryBlock, INODE_POINTERS, InodeBlock, inode_flag, set_bit_lsb};
use crate::mounted::F2fs;
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, NewNode, OpenFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The slot of the first pointer of an inode that this engine made: it has 36 bytes of extra attributes.
pub(super) const FIRST: usize = 9;
/// Bytes that can stand in such an inode: its slots but the attributes at both ends, and one.
const ROOM: u64 = (923 - 9 - 50 - 1) * 4;
/// The largest size of such a file.
const SIZE_MOST: u64 = (864 + 2 * 1018 + 2 * 1018 * 1018 + 1018 * 1018 * 1018) * 4096;
/// No block of an image.
const NOWHERE: u32 = u32::MAX - 7;
const PAGE: usize = BLOCK_BYTES;

/// An image that nobody has.
pub(super) struct Scene(tempfile::TempDir);

impl Scene {
    /// With what `fill` makes.
    pub(super) fn of(fill: impl FnOnce(&F2fs)) -> Scene {
        Scene::killed(|fs| {
            fill(fs);
            fs.unmount().unwrap();
        })
    }

    /// Nothing is written behind `fill`.
    pub(super) fn killed(fill: impl FnOnce(&F2fs)) -> Scene {
        let scene = Scene(tempfile::tempdir_in("/dev/shm").unwrap());
        File::create(scene.path()).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
        crate::make_image(&scene.path(), "", &|_, _| ()).unwrap();
        fill(&F2fs::open_for_writing(&scene.path()).unwrap());
        scene
    }

    pub(super) fn copy(&self) -> Scene {
        let copy = Scene(tempfile::tempdir_in("/dev/shm").unwrap());
        std::fs::copy(self.path(), copy.path()).unwrap();
        copy
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.path().join("image")
    }

    pub(super) fn open(&self) -> Lost {
        Lost::open(Device::open(&self.path(), Access::Read).unwrap()).unwrap()
    }

    pub(super) fn block(&self, addr: u32) -> Block {
        let mut block = [0; PAGE];
        File::open(self.path()).unwrap().read_exact_at(&mut block, u64::from(addr) * BLOCK).unwrap();
        block
    }

    pub(super) fn set_block(&self, addr: u32, block: &Block) {
        let file = File::options().write(true).open(self.path()).unwrap();
        file.write_all_at(block, u64::from(addr) * BLOCK).unwrap();
    }

    /// Where a node is.
    pub(super) fn place_of(&self, nid: u32) -> u32 {
        let Media { device, nodes, .. } = &self.open().media;
        nodes.nat.find(device, Nid(nid)).unwrap().addr.get()
    }

    /// What `work` finds while the inode is changed.
    fn with<R>(&self, ino: u32, change: impl FnOnce(&mut InodeBlock), work: impl FnOnce(Lost) -> R) -> R {
        let addr = self.place_of(ino);
        let was = self.block(addr);
        let mut block = was;
        change(InodeBlock::mut_from_bytes(&mut block).unwrap());
        self.set_block(addr, &block);
        let found = work(self.open());
        self.set_block(addr, &was);
        found
    }
}

pub(super) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

pub(super) fn create(fs: &F2fs, dir: Ino, text: &str) -> Handle {
    fs.create(&Cred::root(), dir, name(text), 0o644, OpenFlags::READ_WRITE).unwrap().1
}

pub(super) fn make_dir(fs: &F2fs, text: &str) -> Ino {
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    fs.make(&Cred::root(), Ino::ROOT, name(text), node).unwrap().ino
}

/// An image with a file of three pages, of ones, twos and threes; its number.
fn three_pages() -> (Scene, u32) {
    let mut ino = 0;
    let scene = Scene::of(|fs| {
        let file = create(fs, Ino::ROOT, "file");
        fs.write(&file, 0, &[[1; PAGE], [2; PAGE], [3; PAGE]].concat()).unwrap();
        ino = file.ino.0 as u32;
        fs.release(file);
    });
    (scene, ino)
}

/// It says that its content stands inline, and nothing else says otherwise.
fn inline(inode: &mut InodeBlock) {
    inode.inline |= inline_flag::DATA;
    inode.blocks.set(2);
    inode.addr[FIRST].set(0);
    inode.size_bytes.set(ROOM);
}

fn pipe(inode: &mut InodeBlock) {
    inode.mode.set(0o010_644);
    inode.blocks.set(2);
    inode.size_bytes.set(0);
}

type Case<T> = (&'static str, fn(&mut InodeBlock), T);
type Forms = &'static [LostForm];

const SAID: Forms = &[LostForm::AsSaid];
const OR_BLOCKS: Forms = &[LostForm::AsSaid, LostForm::Blocks];
const OR_INLINE: Forms = &[LostForm::AsSaid, LostForm::Inline];
const OR_EITHER: Forms = &[LostForm::AsSaid, LostForm::Blocks, LostForm::Inline];

const FORMS: [Case<Forms>; 17] = [
    ("whole", |_| (), SAID),
    ("small", |i| i.size_bytes.set(100), SAID),
    ("inline", inline, SAID),
    (
        "inline, and three blocks",
        |i| {
            inline(i);
            i.blocks.set(3);
        },
        OR_BLOCKS,
    ),
    (
        "inline, and a node",
        |i| {
            inline(i);
            i.nid[0].set(77);
        },
        OR_BLOCKS,
    ),
    (
        "inline, and a first pointer",
        |i| {
            inline(i);
            i.addr[FIRST] = i.addr[FIRST + 1];
        },
        OR_BLOCKS,
    ),
    (
        "inline, and too large",
        |i| {
            inline(i);
            i.size_bytes.set(ROOM + 1);
        },
        OR_BLOCKS,
    ),
    (
        "inline, and no block of many",
        |i| {
            inline(i);
            i.blocks.set(9);
            i.addr[FIRST..870].fill(U32::new(0));
        },
        SAID,
    ),
    (
        "led nowhere",
        |i| {
            i.size_bytes.set(ROOM);
            i.addr[FIRST + 1].set(NOWHERE);
        },
        OR_INLINE,
    ),
    (
        "too large, led nowhere",
        |i| {
            i.size_bytes.set(ROOM + 1);
            i.addr[FIRST + 1].set(NOWHERE);
        },
        SAID,
    ),
    (
        "inline, led nowhere",
        |i| {
            inline(i);
            i.addr[FIRST + 1].set(NOWHERE);
        },
        SAID,
    ),
    ("a pipe", pipe, SAID),
    (
        "a pipe of three blocks",
        |i| {
            pipe(i);
            i.blocks.set(3);
        },
        OR_BLOCKS,
    ),
    (
        "a pipe of a size",
        |i| {
            pipe(i);
            i.size_bytes.set(5);
        },
        OR_BLOCKS,
    ),
    (
        "a pipe led nowhere",
        |i| {
            pipe(i);
            i.addr[FIRST].set(NOWHERE);
        },
        SAID,
    ),
    (
        "a pipe of a size led nowhere",
        |i| {
            pipe(i);
            i.size_bytes.set(ROOM);
            i.addr[FIRST].set(NOWHERE);
        },
        OR_EITHER,
    ),
    (
        "a pipe too large led nowhere",
        |i| {
            pipe(i);
            i.size_bytes.set(ROOM + 1);
            i.addr[FIRST].set(NOWHERE);
        },
        OR_BLOCKS,
    ),
];

#[test]
fn an_inode_is_read_in_each_form_that_it_may_have() {
    let (scene, ino) = three_pages();
    for (what, change, forms) in FORMS {
        assert_eq!(scene.with(ino, change, |lost| lost.forms(ino).unwrap()), forms, "{what}");
    }
}

#[test]
fn a_directory_that_cannot_be_listed_is_read_as_blocks_too() {
    let mut ino = 0;
    let scene = Scene::of(|fs| {
        let dir = make_dir(fs, "dir");
        fs.release(create(fs, dir, "inside"));
        ino = dir.0 as u32;
    });
    let forms = |change: fn(&mut InodeBlock)| scene.with(ino, change, |lost| lost.forms(ino).unwrap());
    assert_eq!(forms(|_| ()), SAID);
    // Its bytes are names, never a file's.
    let nowhere = |inode: &mut InodeBlock| {
        inode.size_bytes.set(100);
        inode.addr[FIRST + 1].set(NOWHERE);
    };
    assert_eq!(forms(nowhere), OR_BLOCKS);
    let inode = scene.block(scene.place_of(ino));
    let entries = InodeBlock::ref_from_bytes(&inode).unwrap().addr[FIRST].get();
    let whole = scene.block(entries);
    let damages: [fn(&mut DentryBlock); 2] = [
        |block| (0..2).for_each(|slot| set_bit_lsb(&mut block.bitmap, slot, false)),
        |block| block.entries[2].kind = 9,
    ];
    for damage in damages {
        let mut block = whole;
        damage(DentryBlock::mut_from_bytes(&mut block).unwrap());
        scene.set_block(entries, &block);
        assert_eq!(forms(|_| ()), OR_BLOCKS);
    }
}

/// What was emitted, from the beginning on, with zeros between.
fn content(lost: &Lost, ino: u32, form: LostForm) -> (Vec<u8>, LostContent) {
    let mut bytes = Vec::new();
    let content = lost.read(ino, form, &mut |at, piece| {
        bytes.resize(bytes.len().max(at as usize + piece.len()), 0);
        bytes[at as usize..][..piece.len()].copy_from_slice(piece);
        Ok(())
    });
    (bytes, content.unwrap())
}

fn no_kind(inode: &mut InodeBlock, size_bytes: u64) {
    inode.mode.set(0o640);
    inode.size_bytes.set(size_bytes);
}

fn encrypted(inode: &mut InodeBlock, size_bytes: u64) {
    inode.advise |= advise_flag::ENCRYPT;
    inode.size_bytes.set(size_bytes);
}

fn compressed(inode: &mut InodeBlock, size_bytes: u64) {
    inode.flags.set(inode_flag::COMPRESSED);
    inode.size_bytes.set(size_bytes);
}

/// What stands in each page, the size, and how many pointers lead nowhere.
type Pages = (&'static [u8], u64, u64);

/// A size is believed if nothing contradicts it, or if it ends in the last block.
const READ: [Case<Pages>; 18] = [
    ("whole", |_| (), (&[1, 2, 3], 12288, 0)),
    ("cut", |i| i.size_bytes.set(5000), (&[1, 2], 5000, 0)),
    ("cut at a page", |i| i.size_bytes.set(4096), (&[1], 4096, 0)),
    ("empty", |i| i.size_bytes.set(0), (&[], 0, 0)),
    ("of a size that no node leads to", |i| i.size_bytes.set(5 << 40), (&[1, 2, 3], SIZE_MOST, 0)),
    ("no kind, cut", |i| no_kind(i, 5000), (&[1, 2, 3], 12288, 0)),
    ("no kind", |i| no_kind(i, 9000), (&[1, 2, 3], 9000, 0)),
    ("no kind, an impossible size", |i| no_kind(i, 1 << 63), (&[1, 2, 3], 12288, 0)),
    ("no kind, the largest size", |i| no_kind(i, OFFSET_MAX_BYTES), (&[1, 2, 3], SIZE_MOST, 0)),
    ("encrypted, cut", |i| encrypted(i, 5000), (&[1, 2, 3], 12288, 0)),
    ("encrypted", |i| encrypted(i, 9000), (&[1, 2, 3], 12288, 0)),
    ("compressed, cut", |i| compressed(i, 5000), (&[1, 2, 3], 12288, 0)),
    ("compressed", |i| compressed(i, 9000), (&[1, 2, 3], 12288, 0)),
    ("extra attributes of 999 bytes", |i| i.addr[0].set(999), (&[1, 2, 3], 12288, 0)),
    ("a pointer to nowhere", |i| i.addr[FIRST + 1].set(NOWHERE), (&[1, 0, 3], 12288, 1)),
    ("a hole", |i| i.addr[FIRST].set(0), (&[0, 2, 3], 12288, 0)),
    ("a reserved block", |i| i.addr[FIRST].set(u32::MAX), (&[0, 2, 3], 12288, 0)),
    ("two pages in each other's place", |i| i.addr.swap(FIRST, FIRST + 2), (&[3, 2, 1], 12288, 0)),
];

#[test]
fn all_pages_are_read_and_a_doubtful_size_cuts_none() {
    let (scene, ino) = three_pages();
    for (what, change, (pages, size_bytes, missing)) in READ {
        let (bytes, read) = scene.with(ino, change, |lost| content(&lost, ino, LostForm::AsSaid));
        let wanted: Vec<u8> = pages.iter().flat_map(|page| [*page; PAGE]).collect();
        // A run of blocks is emitted whole.
        assert!(bytes.starts_with(&wanted), "{what}: {} bytes", bytes.len());
        assert_eq!(read, LostContent { size_bytes, missing }, "{what}");
    }
}

/// The inode has these bytes inline.
fn hello(inode: &mut InodeBlock) {
    inline(inode);
    inode.inline |= inline_flag::DATA_EXIST;
    inode.size_bytes.set(5);
    inode.addr[FIRST + 1].set(u32::from_le_bytes(*b"hell"));
    inode.addr[FIRST + 2].set(u32::from_le_bytes(*b"oXYZ"));
}

/// The form, what is emitted, and the size.
type Inline = (LostForm, &'static str, u64);

const INLINE: [Case<Inline>; 9] = [
    ("inline", hello, (LostForm::AsSaid, "hello", 5)),
    (
        "never written",
        |i| {
            hello(i);
            i.inline &= !inline_flag::DATA_EXIST;
        },
        (LostForm::AsSaid, "", 5),
    ),
    (
        "too large",
        |i| {
            hello(i);
            i.size_bytes.set(ROOM + 1);
        },
        (LostForm::AsSaid, "helloXYZ…", ROOM),
    ),
    (
        "empty",
        |i| {
            hello(i);
            i.size_bytes.set(0);
        },
        (LostForm::AsSaid, "", 0),
    ),
    (
        "empty, no kind",
        |i| {
            hello(i);
            no_kind(i, 0);
        },
        (LostForm::AsSaid, "helloXYZ…", ROOM),
    ),
    (
        "entries of no directory",
        |i| {
            hello(i);
            i.inline = i.inline & !(inline_flag::DATA | inline_flag::DATA_EXIST) | inline_flag::DENTRY;
        },
        (LostForm::AsSaid, "hello", 5),
    ),
    (
        "in blocks, as if it were inline",
        |i| {
            hello(i);
            i.inline &= !(inline_flag::DATA | inline_flag::DATA_EXIST);
        },
        (LostForm::Inline, "helloXYZ…", ROOM),
    ),
    (
        "inline in two ways",
        |i| {
            hello(i);
            i.inline |= inline_flag::DENTRY;
        },
        (LostForm::AsSaid, "hello", 5),
    ),
    ("inline, all its room", hello, (LostForm::Inline, "helloXYZ…", ROOM)),
];

#[test]
fn bytes_that_stand_inline_are_read_up_to_a_credible_size() {
    let (scene, ino) = three_pages();
    for (what, change, (form, text, size_bytes)) in INLINE {
        let (bytes, read) = scene.with(ino, change, |lost| content(&lost, ino, form));
        match text.strip_suffix('…') {
            Some(begin) => {
                assert!(bytes.starts_with(begin.as_bytes()) && bytes.len() as u64 == ROOM, "{what}")
            }
            None => assert_eq!(bytes, text.as_bytes(), "{what}"),
        }
        assert_eq!(read, LostContent { size_bytes, missing: 0 }, "{what}");
        let blocks = scene.with(ino, change, |lost| lost.blocks(ino, form).unwrap());
        assert_eq!(blocks, 1, "{what}");
    }
}

#[test]
fn blocks_of_a_copy_are_counted_up_to_the_end_alone() {
    let (scene, ino) = three_pages();
    let cases: [Case<u64>; 5] = [
        ("whole", |_| (), 3),
        ("cut", |i| i.size_bytes.set(4096), 1),
        ("encrypted, cut", |i| encrypted(i, 100), 3),
        ("led nowhere", |i| i.addr[FIRST + 1].set(NOWHERE), 2),
        (
            "a directory of another size",
            |i| {
                i.mode.set(0o040_755);
                i.size_bytes.set(100);
            },
            3,
        ),
    ];
    for (what, change, blocks) in cases {
        let found = scene.with(ino, change, |lost| lost.blocks(ino, LostForm::AsSaid).unwrap());
        assert_eq!(found, blocks, "{what}");
    }
}

#[test]
fn lost_inodes_are_told_by_kind_and_permissions() {
    let (scene, ino) = three_pages();
    let casefold = |i: &mut InodeBlock| {
        i.mode.set(0o040_755);
        i.flags.set(inode_flag::CASEFOLD);
    };
    let cases: [Case<(LostKind, u16)>; 9] = [
        ("a file", |_| (), (LostKind::File, 0o644)),
        ("no kind", |i| no_kind(i, 9000), (LostKind::File, 0o640)),
        ("encrypted", |i| encrypted(i, 9000), (LostKind::Encoded, 0o644)),
        ("compressed", |i| compressed(i, 9000), (LostKind::Encoded, 0o644)),
        ("a directory", |i| i.mode.set(0o040_755), (LostKind::Directory, 0o755)),
        (
            "an encrypted one",
            |i| {
                i.mode.set(0o040_755);
                encrypted(i, 0);
            },
            (LostKind::Encoded, 0o755),
        ),
        ("one that ignores case", casefold, (LostKind::File, 0o755)),
        ("a link", |i| i.mode.set(0o120_777), (LostKind::Symlink, 0o777)),
        ("a pipe", pipe, (LostKind::Special(FileKind::Fifo, 0), 0o644)),
    ];
    for (what, change, (kind, perm)) in cases {
        let found = scene.with(ino, change, |mut lost| {
            lost.add_one(Nid(ino)).unwrap();
            lost.inodes().map(|inode| (inode.kind, inode.perm)).collect::<Vec<_>>()
        });
        assert_eq!(found, [(kind, perm)], "{what}");
    }
    // As blocks it is a file of the same permissions.
    let as_blocks = |lost: Lost| lost.inode_in_form(ino, LostForm::Blocks).unwrap().inode.attr();
    let attr = scene.with(ino, |i| i.mode.set(0o041_750), as_blocks);
    assert_eq!((attr.kind, attr.perm), (FileKind::Regular, 0o750));
}

const _: () = assert!(INODE_POINTERS == 923);
