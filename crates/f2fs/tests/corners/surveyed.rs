//! What a survey tells of damage that a mount refuses or cannot serve: the inode, its path, and what is wrong.

use super::{ROOT, create, make_dir, mounted, name, refusal};
use crate::common::{Image, read};
use crate::forge::{Forge, version_of};
use heddle_f2fs::F2fs;
use heddle_f2fs::checksum::{SEED, checksum};
use heddle_f2fs::format::{
    CheckpointHead, DentryBlock, INODE_POINTERS, InodeBlock, SIT_ENTRIES, SitBlock, Superblock, advise_flag,
    checkpoint_flag, feature, set_bit_lsb, set_bit_msb,
};
use heddle_vfs::{Cred, FileSystem, Ino, SetXattr, XattrName};
use std::path::Path;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Pointers of an inode that this engine made stand behind its extra attributes.
const FIRST_POINTER: usize = 9;
/// Where the first attribute stands, behind their header.
const FIRST_XATTR: usize = INODE_POINTERS - 50 + 6;

/// An image with `/file` of three blocks, which is `/dir/again` too and has an attribute, and `/other`.
struct Sample {
    image: Image,
    file: u32,
    other: u32,
    dir: u32,
}

fn sample() -> Sample {
    let image = Image::made(64);
    let fs = mounted(&image);
    let [file, other] = ["file", "other"].map(|text| {
        let file = create(&fs, ROOT, text);
        fs.write(&file, 0, &[5; 9000]).unwrap();
        let ino = file.ino;
        fs.release(file);
        ino
    });
    let dir = make_dir(&fs, "dir");
    fs.link(&Cred::root(), file, dir, name("again")).unwrap();
    let user = XattrName::new(b"user.x").unwrap();
    fs.setxattr(&Cred::root(), file, user, b"value", SetXattr::Any).unwrap();
    fs.unmount().unwrap();
    let [file, other, dir] = [file, other, dir].map(|Ino(ino)| ino as u32);
    Sample { image, file, other, dir }
}

impl Sample {
    fn copy(&self) -> Sample {
        Sample { image: Image::copy_of(&self.image), ..*self }
    }

    fn inode(&self, ino: u32, change: impl Fn(&mut InodeBlock)) {
        Forge::of(&self.image.path).inode(ino, |inode| {
            change(inode);
            crate::believed::seal(&self.image, inode);
        });
    }

    fn problems(&self) -> Vec<String> {
        F2fs::open(&self.image.path).unwrap().survey().problems
    }

    /// The block of the file's first page.
    fn block_of(&self, ino: u32) -> u32 {
        let nodes = Forge::of(&self.image.path).nodes_of(ino);
        let key = |(addr, node): &(u32, _)| {
            let node: &heddle_f2fs::format::NodeBlock = node;
            (version_of(node), *addr)
        };
        let (_, node) = nodes.into_iter().max_by_key(key).unwrap();
        let inode: &InodeBlock = zerocopy::transmute_ref!(&node);
        inode.addr[FIRST_POINTER].get()
    }

    /// In both copies of the segment table the block is free.
    fn free(&self, addr: u32) {
        let forge = Forge::of(&self.image.path);
        let superblock = forge.superblock();
        let at = addr - superblock.main.get();
        let (segment, half) = ((at / 512) as usize, superblock.segments_sit.get() / 2 * 512);
        for copy in [0, half] {
            forge.change(superblock.sit.get() + copy + (segment / SIT_ENTRIES) as u32, |block| {
                let entry = &mut SitBlock::mut_from_bytes(block).unwrap().entries[segment % SIT_ENTRIES];
                if entry.blocks.get() & 0x3ff > 0 {
                    entry.blocks.set(entry.blocks.get() - 1);
                    set_bit_msb(&mut entry.valid, at as usize % 512, false);
                }
            });
        }
    }
}

fn set_own_name(inode: &mut InodeBlock, text: &str) {
    inode.name[..text.len()].copy_from_slice(text.as_bytes());
    inode.name_bytes.set(text.len() as u32);
}

/// Its path, what is said of it, and the damage.
type Damage = (&'static str, &'static str, fn(&Sample));

const DAMAGES: [Damage; 19] = [
    ("/file", "its size is 5497558138880 bytes", |s| s.inode(s.file, |inode| inode.size_bytes.set(5 << 40))),
    ("/dir", "its size is 5497558138880 bytes", |s| s.inode(s.dir, |inode| inode.size_bytes.set(5 << 40))),
    ("/file", "mode 0 has no valid file type", |s| s.inode(s.file, |inode| inode.mode.set(0))),
    ("/dir/again", "mode 0 has no valid file type", |s| s.inode(s.file, |inode| inode.mode.set(0))),
    ("/file", "a size of 4611686018427387904 bytes", |s| {
        s.inode(s.file, |inode| inode.size_bytes.set(1 << 62))
    }),
    ("/dir", "a size of 4611686018427387904 bytes", |s| {
        s.inode(s.dir, |inode| inode.size_bytes.set(1 << 62))
    }),
    ("/file", "extra attributes of 999 bytes", |s| {
        s.inode(s.file, |inode| inode.addr[0].set(inode.addr[0].get() & !0xffff | 999));
    }),
    ("/file", "inline entries, and it is no directory", |s| s.inode(s.file, |inode| inode.inline = 255)),
    ("/dir", "a directory with inline bytes", |s| s.inode(s.dir, |inode| inode.inline = 255)),
    ("/other", "its name is \"a/b\"", |s| s.inode(s.other, |inode| set_own_name(inode, "a/b"))),
    ("/other", "its name is \"..\"", |s| s.inode(s.other, |inode| set_own_name(inode, ".."))),
    ("/other", "its own name has 300 bytes", |s| s.inode(s.other, |inode| inode.name_bytes.set(300))),
    ("/dir", "200 levels", |s| s.inode(s.dir, |inode| inode.depth.set(200))),
    ("/dir", "it counts 7 links", |s| s.inode(s.dir, |inode| inode.links.set(7))),
    ("a name in /", "it counts 1 links, and 2 names", |s| s.inode(s.file, |inode| inode.links.set(1))),
    ("/file", "attributes of inode", |s| {
        s.inode(s.file, |inode| inode.addr[FIRST_XATTR].set(0xff00_fa01));
    }),
    ("/file", "outside the main area", |s| {
        s.inode(s.file, |inode| inode.addr[FIRST_POINTER].set(u32::MAX - 9))
    }),
    ("/", "is referenced twice", |s| {
        let addr = s.block_of(s.other);
        s.inode(s.file, |inode| {
            inode.addr[FIRST_POINTER + 1].set(addr);
            inode.extent = FromZeros::new_zeroed();
        });
    }),
    ("/other", "is free in the SIT", |s| s.free(s.block_of(s.other))),
];

#[test]
fn a_survey_tells_where_damage_is_and_of_nothing_else() {
    let whole = sample();
    assert_eq!(whole.problems(), Vec::<String>::new());
    for (path, what, damage) in DAMAGES {
        let sample = whole.copy();
        damage(&sample);
        let problems = sample.problems();
        let is_told = problems.iter().any(|problem| problem.contains(path) && problem.contains(what));
        assert!(is_told, "{path}, {what}: {problems:?}");
        assert!(problems.len() <= 2, "{path}, {what}: {problems:?}");
        let of_other = problems.iter().any(|problem| problem.contains("/other"));
        assert!(["/other", "/"].contains(&path) || !of_other, "{path}, {what}: {problems:?}");
    }
}

#[test]
fn a_wrong_own_name_is_mended_by_a_rename() {
    let sample = sample();
    sample.inode(sample.other, |inode| inode.name_bytes.set(300));
    assert!(sample.problems()[0].contains("renaming it under a mount mends that"), "{:?}", sample.problems());
    let fs = mounted(&sample.image);
    let replace = heddle_vfs::RenameMode::Replace;
    fs.rename(&Cred::root(), ROOT, name("other"), ROOT, name("renamed"), replace).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    assert_eq!(sample.problems(), Vec::<String>::new());
}

#[test]
fn a_survey_tells_of_an_orphan_that_has_a_name() {
    let Sample { image, file, .. } = sample();
    let fs = mounted(&image);
    let open = create(&fs, ROOT, "open");
    fs.unlink(&Cred::root(), ROOT, name("open")).unwrap();
    fs.sync().unwrap();
    drop((fs, open));
    let problems = || F2fs::open(&image.path).unwrap().survey().problems;
    assert_eq!(problems(), Vec::<String>::new());
    Forge::of(&image.path).orphans(|orphans| orphans.ino[0].set(file));
    let said = problems().join("\n");
    assert!(
        said.contains(&format!("inode {file} is listed as an orphan, but its link count is 2")),
        "{said}"
    );
    assert!(refusal(&image).contains("is listed as an orphan"));
}

/// Nothing is read by them; files of such an image could not be rescued.
#[test]
fn counts_that_cannot_be_keep_no_reader_out() {
    let whole = sample();
    let wrong: [fn(&mut CheckpointHead); 5] = [
        |head| head.blocks_user.set(u64::MAX),
        |head| head.blocks_valid.set(1 << 40),
        |head| head.blocks_valid.set(1),
        |head| head.nodes_valid.set(u32::MAX),
        |head| head.inodes_valid.set(u32::MAX),
    ];
    for change in wrong {
        let sample = whole.copy();
        Forge::of(&sample.image.path).head(change);
        let refused = refusal(&sample.image);
        let words = ["its checkpoint counts", "-o ro", "heddle fsck -y"];
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
        let fs = F2fs::open(&sample.image.path).unwrap();
        assert!(read(&fs, Path::new("/dir/again")) == [5; 9000]);
        let space = fs.statfs().unwrap();
        assert!(space.blocks_free <= space.blocks_total && space.blocks_total <= 64 << 8, "{space:?}");
        assert!(fs.info().contradiction.is_some());
        let problems = fs.survey().problems;
        assert!(problems.iter().any(|problem| problem.contains("its checkpoint counts")), "{problems:?}");
    }
}

#[test]
fn a_segment_table_that_contradicts_itself_keeps_no_reader_out() {
    let sample = sample();
    let addr = sample.block_of(sample.other);
    let forge = Forge::of(&sample.image.path);
    let superblock = forge.superblock();
    let segment = ((addr - superblock.main.get()) / 512) as usize;
    for copy in [0, superblock.segments_sit.get() / 2 * 512] {
        forge.change(superblock.sit.get() + copy + (segment / SIT_ENTRIES) as u32, |block| {
            SitBlock::mut_from_bytes(block).unwrap().entries[segment % SIT_ENTRIES].valid[63] ^= 1;
        });
    }
    let refused = refusal(&sample.image);
    assert!(refused.contains("live blocks") && refused.contains("-o ro"), "{refused}");
    let fs = F2fs::open(&sample.image.path).unwrap();
    assert!(read(&fs, Path::new("/other")) == [5; 9000]);
    let problems = fs.survey().problems;
    assert!(problems[0].contains("no mount can write to it"), "{problems:?}");
}

impl Sample {
    /// The first block of a directory's entries.
    fn entries(&self, dir: u32, change: impl FnOnce(&mut DentryBlock)) {
        Forge::of(&self.image.path)
            .change(self.block_of(dir), |block| change(DentryBlock::mut_from_bytes(block).unwrap()));
    }

    fn slot_of(block: &DentryBlock, ino: u32) -> usize {
        (2..block.entries.len()).find(|slot| block.entries[*slot].ino.get() == ino).unwrap()
    }

    /// Both superblocks say that the image has these features too.
    fn add_features(&self, features: u32) {
        for copy in 0..2 {
            Forge::of(&self.image.path).change(copy, |block| {
                let found = Superblock::mut_from_prefix(&mut block[1024..]).unwrap().0;
                found.feature.set(found.feature.get() | features);
                found.crc.set(checksum(SEED, &found.as_bytes()[..std::mem::offset_of!(Superblock, crc)]));
            });
        }
    }
}

/// `/dir` has `.`, `..` and `again`, in a slot each.
#[test]
fn a_survey_tells_of_entries_that_lead_elsewhere() {
    let whole = sample();
    let cases: [Damage; 5] = [
        ("/dir (inode", "its entry 3 is called \".\"", |s| {
            s.entries(s.dir, |block| {
                (block.entries[3], block.names[3]) = (block.entries[0], block.names[0]);
                set_bit_lsb(&mut block.bitmap, 3, true);
            });
        }),
        ("/dir (inode", "`..` leads to inode", |s| {
            s.entries(s.dir, |block| block.entries[1].ino.set(s.dir));
        }),
        ("/dir (inode", "has no entry '..'", |s| {
            s.entries(s.dir, |block| set_bit_lsb(&mut block.bitmap, 1, false));
        }),
        ("with a name in /", "2 names lead to it, and it is a directory", |s| {
            s.entries(3, |block| {
                let slot = Sample::slot_of(block, s.other);
                block.entries[slot].ino.set(s.dir);
                block.entries[slot].kind = 2;
            });
        }),
        // Its other name counts two, and this one may be the second.
        ("/dir (inode", "entry 2 has a name of 5 bytes", |s| {
            s.entries(s.dir, |block| block.entries[2].kind = 9)
        }),
    ];
    for (n, (path, what, damage)) in cases.into_iter().enumerate() {
        let sample = whole.copy();
        damage(&sample);
        let problems = sample.problems();
        assert!(
            problems.iter().any(|told| told.contains(path) && told.contains(what)),
            "{what}: {problems:?}"
        );
        assert!(n == 3 || problems.len() == 1, "{what}: {problems:?}");
    }
}

#[test]
fn a_survey_counts_inodes_that_no_name_leads_to() {
    let sample = sample();
    Forge::of(&sample.image.path).head(|head| head.inodes_valid.set(head.inodes_valid.get() - 1));
    let wanted = "the checkpoint counts 3 inodes, names lead to 4, and 0 have none";
    assert_eq!(sample.problems(), [wanted]);
}

#[test]
fn a_survey_tells_of_a_listed_orphan_to_which_a_name_leads() {
    let sample = sample();
    let fs = mounted(&sample.image);
    let open = create(&fs, ROOT, "open");
    fs.unlink(&Cred::root(), ROOT, name("open")).unwrap();
    fs.sync().unwrap();
    drop((fs, open));
    Forge::of(&sample.image.path).orphans(|orphans| orphans.ino[0].set(sample.other));
    sample.inode(sample.other, |inode| inode.links.set(0));
    let (problems, other) = (sample.problems(), sample.other);
    let wanted = format!("inode {other} is said to have no name, and a name leads to it");
    assert!(problems.contains(&wanted), "{problems:?}");
}

#[test]
fn what_cannot_be_read_by_design_is_counted_and_no_damage() {
    let sample = sample();
    sample.inode(sample.file, |inode| inode.advise |= advise_flag::ENCRYPT);
    let survey = F2fs::open(&sample.image.path).unwrap().survey();
    assert_eq!((survey.problems, survey.unread), (Vec::new(), 1));
    // Encrypted names are any bytes.
    sample.inode(sample.other, |inode| set_own_name(inode, "a/b"));
    assert_eq!(sample.problems().len(), 1);
    sample.add_features(feature::ENCRYPT);
    assert_eq!(sample.problems(), Vec::<String>::new());
}

/// Linux has marked blocks there that are none.
#[test]
fn tables_of_an_image_that_waits_for_a_checkpoint_are_not_judged() {
    let whole = sample();
    for (flag, is_told) in [(0, true), (checkpoint_flag::DISABLED, false), (checkpoint_flag::RESIZING, false)]
    {
        let sample = whole.copy();
        Forge::of(&sample.image.path).head(|head| {
            head.blocks_valid.set(1 << 40);
            head.flags.set(head.flags.get() | flag);
        });
        let problems = sample.problems();
        let is_judged = problems.iter().any(|told| told.contains("no mount can write to it"));
        assert_eq!(is_judged, is_told, "{flag:#x}: {problems:?}");
    }
}
