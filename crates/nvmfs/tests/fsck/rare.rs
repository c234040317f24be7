//! Damage that is rare: of what no other test has, what is lost, what is not, and how it is told.

use super::craft::{Craft, DIRECTORY};
use super::crafted::rename_entry;
use super::sample::{Sample, repaired};
use crate::common::{Short, each_variant, name, options, root};
use heddle_nvmfs::format::extent_list;
use heddle_nvmfs::format::inode::TAIL_WORD;
use heddle_nvmfs::format::page::slot_pos;
use heddle_nvmfs::format::pointer::{self, PointerLocation};
use heddle_nvmfs::format::record::{Blocks, Record};
use heddle_nvmfs::fsck::{Code, Verdict, examine, survey};
use heddle_nvmfs::ids::{BlockNo, Extent};
use heddle_nvmfs::{LogKind, NvmFs, Variant, mount};
use heddle_pmem::{Pos, Region};
use heddle_vfs::testkit::{Node, Tree};
use heddle_vfs::{Error, FileKind, FileSystem, Ino, NewNode};

const PAGE: usize = 4096;

fn codes(verdict: &Verdict) -> Vec<Code> {
    verdict.issues.iter().map(|(issue, _)| issue.code).collect()
}

fn file(fs: &NvmFs, dir: Ino, text: &str, bytes: &[u8]) {
    let file = fs.new_file(dir, text);
    fs.write(&file, 0, bytes).unwrap();
    fs.release(file);
}

fn link(fs: &NvmFs, text: &str, target: &[u8]) {
    let link = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target };
    fs.make(&root(), Ino::ROOT, name(text), link).unwrap();
}

fn tree_of(region: Region) -> Tree {
    let volume = mount(region, &options()).unwrap();
    let tree = Tree::of(&volume.fs()).unwrap();
    volume.unmount();
    tree
}

/// The names of a tree, and what stands under one.
fn paths(tree: &Tree) -> Vec<&str> {
    tree.nodes.keys().map(|path| std::str::from_utf8(path).unwrap()).collect()
}

fn node<'t>(tree: &'t Tree, path: &str) -> &'t Node {
    tree.nodes.get(path.as_bytes()).unwrap_or_else(|| panic!("no {path} in {:?}", paths(tree)))
}

fn flip(region: &Region, at: Pos, bits: u64) {
    region.store_u64(at, region.load_u64(at) ^ bits);
}

/// Says that a name of the root is removed.
fn remove_name(sample: &Sample, text: &str) {
    rename_entry(&Craft::new(sample), sample, text, |record| {
        if let Record::Name { removed, .. } = record {
            *removed = true;
        }
    });
}

fn data_of(sample: &Sample, path: &str) -> BlockNo {
    let ino = Some(sample.ino(path));
    sample.survey().owners.into_iter().find(|owner| owner.data && owner.ino == ino).unwrap().block
}

#[test]
fn a_link_without_any_text_loses_its_name_and_no_other() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            file(fs, Ino::ROOT, "before", b"text");
            link(fs, "empty", b"target");
            link(fs, "whole", b"other target");
        });
        sample.region.nt_zero(data_of(&sample, "/empty").pos(), PAGE as u64);
        Craft::new(&sample).change(sample.log_page("empty"), |record| match record {
            Record::Write { end_in_last_page, .. } if *end_in_last_page != 0 => {
                *end_in_last_page = 0;
                true
            }
            Record::Attributes(attributes) => {
                attributes.size = 0;
                true
            }
            _ => false,
        });
        let verdict = examine("empty", &sample.region).unwrap();
        assert!(codes(&verdict).contains(&Code::SYMLINK), "{variant:?}: {:?}", verdict.issues);
        let tree = tree_of(repaired(&sample.region, &verdict));
        assert_eq!(paths(&tree), ["/", "/before", "/whole"], "{variant:?}");
    });
}

#[test]
fn a_link_that_says_too_much_ends_where_its_text_ends() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| link(fs, "link", b"target"));
        Craft::new(&sample).change(sample.log_page("link"), |record| match record {
            Record::Write { end_in_last_page, .. } if *end_in_last_page != 0 => {
                *end_in_last_page = 4096;
                true
            }
            Record::Attributes(attributes) => {
                attributes.size = 4096;
                true
            }
            _ => false,
        });
        let verdict = examine("long", &sample.region).unwrap();
        let tree = tree_of(repaired(&sample.region, &verdict));
        assert_eq!(node(&tree, "/link").size_bytes, 6, "{variant:?}");
    });
}

/// The slot's word counts: its log is read as a file's, not as a directory's.
#[test]
fn a_file_that_its_name_calls_a_directory_keeps_its_content() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        rename_entry(&Craft::new(&sample), &sample, "victim", |record| {
            if let Record::Name { kind, .. } = record {
                *kind = FileKind::Directory;
            }
        });
        let seen = sample.survey();
        let victim = seen.inodes.iter().find(|inode| inode.ino == sample.ino("/victim")).unwrap();
        assert_eq!((victim.links, victim.kind), (1, FileKind::Regular));
        let verdict = examine("kind", &sample.region).unwrap();
        assert_eq!(codes(&verdict), [Code::KIND], "{variant:?}: {:?}", verdict.issues);
        let mut tree = tree_of(repaired(&sample.region, &verdict));
        tree.nodes.get_mut(&b"/"[..]).unwrap().nlink = node(&sample.tree, "/").nlink;
        assert_eq!(tree.difference(&sample.tree), None, "{variant:?}");
    });
}

#[test]
fn a_shared_block_of_a_longer_run_becomes_two_blocks() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            file(fs, Ino::ROOT, "small", &[9; PAGE]);
            let pages: Vec<u8> = (0..5 * PAGE).map(|at| (at / PAGE) as u8 + 1).collect();
            file(fs, Ino::ROOT, "large", &pages);
        });
        // The file with the larger number gives way, where both begin with the block.
        assert!(sample.ino("/small") < sample.ino("/large"));
        let taken = data_of(&sample, "/large");
        Craft::new(&sample).change(sample.log_page("small"), |record| match record {
            Record::Write { blocks, pages: 1, .. } => {
                *blocks = Blocks::At(taken);
                true
            }
            _ => false,
        });
        let verdict = examine("shared", &sample.region).unwrap();
        assert_eq!(codes(&verdict), [Code::CLAIMED_TWICE], "{variant:?}: {:?}", verdict.issues);
        let tree = tree_of(repaired(&sample.region, &verdict));
        assert!(node(&tree, "/large").pieces == node(&sample.tree, "/large").pieces, "{variant:?}");
        let small: Vec<u8> = node(&tree, "/small").pieces.values().flatten().copied().collect();
        assert!(small.iter().all(|byte| *byte == 1) && !small.is_empty(), "{variant:?}");
    });
}

/// What stands in the root under this name, when a file that has lost its name is found.
fn found_beside(variant: Variant, make: impl Fn(&NvmFs)) -> (Sample, Tree) {
    let sample = Sample::of(variant, |fs| {
        file(fs, Ino::ROOT, "lost", b"what was lost");
        make(fs);
    });
    remove_name(&sample, "lost");
    let verdict = examine("lost", &sample.region).unwrap();
    let tree = tree_of(repaired(&sample.region, &verdict));
    (sample, tree)
}

#[test]
fn lost_files_get_names_in_the_lost_and_found_that_is_there() {
    each_variant(|variant| {
        let (sample, tree) = found_beside(variant, |fs| {
            let dir = fs.new_dir(Ino::ROOT, "lost+found");
            file(fs, dir, "kept", b"kept");
        });
        let found = format!("/lost+found/#{}", sample.ino("/lost").0);
        assert_eq!(paths(&tree), ["/", "/lost+found", &found, "/lost+found/kept"], "{variant:?}");
        assert!(node(&tree, &found).pieces == node(&sample.tree, "/lost").pieces, "{variant:?}");
    });
}

#[test]
fn a_file_called_lost_and_found_keeps_its_name() {
    each_variant(|variant| {
        let (sample, tree) = found_beside(variant, |fs| file(fs, Ino::ROOT, "lost+found", b"a file"));
        assert!(node(&tree, "/lost+found").pieces == node(&sample.tree, "/lost+found").pieces);
        let lost = sample.ino("/lost").0;
        let found = paths(&tree).into_iter().find(|path| path.ends_with(&format!("/#{lost}"))).unwrap();
        assert_eq!(found.matches('/').count(), 2, "{variant:?}: in a directory of its own: {found}");
        // It was a name once.
        let (sample, tree) = found_beside(variant, |fs| {
            file(fs, Ino::ROOT, "lost+found", b"a file");
            fs.remove(Ino::ROOT, "lost+found").unwrap();
        });
        node(&tree, &format!("/lost+found/#{}", sample.ino("/lost").0));
    });
}

/// On an image that was not unmounted, a file without a name may have been deleted while it was open.
#[test]
fn a_name_lost_after_a_power_cut_is_no_deletion() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            let dir = fs.new_dir(Ino::ROOT, "dir");
            file(fs, dir, "lost", b"what was lost");
            file(fs, dir, "other", b"other");
        });
        mount(sample.region.map_again().unwrap(), &options()).unwrap().abandon();
        let craft = Craft::new(&sample);
        let page = sample.log_page_of("/dir");
        let records = craft.records(page);
        let is_it = |record: &Record| matches!(record, Record::Name { name, .. } if name.bytes() == b"lost");
        let (slot, ..) = records.iter().find(|(_, record, _)| is_it(record)).unwrap();
        flip(&sample.region, slot_pos(page, *slot).plus(16), 1 << 20 | 1 << 40);
        let verdict = examine("cut", &sample.region).unwrap();
        assert!(codes(&verdict).contains(&Code::NAME_LOST), "{variant:?}: {:?}", verdict.issues);
        let tree = tree_of(repaired(&sample.region, &verdict));
        let found = format!("/lost+found/#{}", sample.ino("/dir/lost").0);
        assert!(node(&tree, &found).pieces == node(&sample.tree, "/dir/lost").pieces, "{variant:?}");
    });
}

/// A mount would free what has lost its name: nothing is changed while no name can be given.
#[test]
fn a_repair_that_cannot_name_what_was_lost_changes_nothing() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            file(fs, Ino::ROOT, "lost", b"what was lost");
            file(fs, Ino::ROOT, "flipped", b"text");
            let fill = fs.new_file(Ino::ROOT, "fill");
            let full = std::iter::repeat_with(|| fs.append(&fill, &[9; PAGE])).find_map(Result::err);
            assert_eq!(full, Some(Error::NoSpace));
            fs.release(fill);
        });
        // Blocks that the file system keeps back are taken too.
        let free = take_all_free(&sample);
        remove_name(&sample, "lost");
        flip(&sample.region, Craft::new(&sample).slot(sample.ino("/flipped")).plus(24), 1 << 5);
        let verdict = examine("full", &sample.region).unwrap();
        let found = codes(&verdict);
        assert!(
            found.contains(&Code::NO_SPACE) && found.contains(&Code::SLOT_BIT),
            "{free}: {:?}",
            verdict.issues
        );
        assert_eq!((verdict.left(), verdict.changes().count()), (verdict.found(), 0), "{variant:?}");
    });
}

/// Makes all free blocks pages of "fill", behind its last one; how many they were.
fn take_all_free(sample: &Sample) -> usize {
    let owners = sample.survey().owners;
    let is_free = |block: u64| owners.iter().all(|o| !(o.block.0..o.block.0 + o.count).contains(&block));
    let free: Vec<u64> = (2..1023).filter(|block| is_free(*block)).collect();
    let Some((list, rest)) = free.split_first() else { return 0 };
    let craft = Craft::new(sample);
    let what = format!("the log of inode {}", sample.ino("/fill").0);
    let logs = owners.iter().filter(|o| o.what == what).flat_map(|o| (0..o.count).map(|n| o.block.plus(n)));
    let records = logs.flat_map(|page| craft.records(page).into_iter().map(move |record| (page, record)));
    let end = |record: &Record| match record {
        Record::Write { page, pages, .. } => page.0 + pages,
        _ => 0,
    };
    let (at, (slot, mut record, txn)) = records.max_by_key(|(_, (_, record, _))| end(record)).unwrap();
    let Record::Write { pages, blocks, .. } = &mut record else { panic!("{record:?}") };
    let Blocks::At(block) = *blocks else { panic!("{blocks:?}") };
    let mut extents = vec![Extent { block, count: *pages }];
    let runs = rest.chunk_by(|one, next| one + 1 == *next);
    extents.extend(runs.map(|run| Extent { block: BlockNo(run[0]), count: run.len() as u64 }));
    let id = craft.id(sample.ino("/fill"));
    let words = extent_list::encode(craft.seed, id, BlockNo(*list), &extents, None);
    (0..).step_by(8).zip(words).for_each(|(n, word)| craft.store(BlockNo(*list).pos().plus(n), word));
    *pages += rest.len() as u64;
    *blocks = Blocks::List(BlockNo(*list));
    craft.put(at, slot, &record, txn, true);
    free.len()
}

/// Slots were looked for in a block of data: what stood there is no flipped bit.
#[test]
fn what_stands_behind_a_forged_chunk_pointer_is_not_reported() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            // In each slot, one bit.
            let mut bytes = vec![0; PAGE];
            bytes.iter_mut().step_by(128).for_each(|byte| *byte = 4);
            file(fs, Ino::ROOT, "file", &bytes);
        });
        let craft = Craft::new(&sample);
        let to =
            pointer::encode(craft.seed, DIRECTORY, PointerLocation::InodeChunk(9), data_of(&sample, "/file"));
        craft.store(craft.layout().chunk_pointer(9), to);
        let verdict = examine("forged", &sample.region).unwrap();
        assert_eq!(codes(&verdict), [Code::CHUNK_LOST], "{variant:?}: {:?}", verdict.issues);
        assert_eq!(tree_of(repaired(&sample.region, &verdict)).difference(&sample.tree), None);
        // One that leads to no chunk is not believed for one bit of its check.
        flip(&sample.region, craft.layout().chunk_pointer(9), 1 << 50);
        let verdict = examine("forged", &sample.region).unwrap();
        let lost = verdict.issues.iter().find(|(issue, _)| issue.code == Code::CHUNK_LOST).unwrap();
        assert_eq!(lost.0.what, "no block looks like chunk 9", "{variant:?}");
        repaired(&sample.region, &verdict);
    });
}

#[test]
fn a_chunk_behind_the_first_is_found_without_its_pointer() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            (0..80).for_each(|n| fs.release(fs.new_file(Ino::ROOT, &format!("f{n}"))));
        });
        let layout = Craft::new(&sample).layout();
        assert!(sample.inos.values().any(|ino| ino.0 >= 64));
        for chunk in [1, 2] {
            let at = layout.chunk_pointer(chunk);
            let right = sample.region.load_u64(at);
            flip(&sample.region, at, 0b11 << 20 | 0b11 << 50);
            let verdict = examine("lost", &sample.region).unwrap();
            assert_eq!(codes(&verdict), [Code::CHUNK_POINTER], "{variant:?}: {:?}", verdict.issues);
            assert_eq!(repaired(&sample.region, &verdict).load_u64(at), right, "{variant:?}");
            sample.region.store_u64(at, right);
        }
    });
}

/// The root's chunk is never blank.
#[test]
fn a_pointer_to_the_roots_chunk_that_leads_to_zeros_is_mended() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let craft = Craft::new(&sample);
        let at = craft.layout().chunk_pointer(0);
        let right = sample.region.load_u64(at);
        let survey = sample.survey();
        let taken =
            |block: u64| survey.owners.iter().any(|o| (o.block.0..o.block.0 + o.count).contains(&block));
        let blank = (2..1023).map(BlockNo).find(|block| {
            !taken(block.0) && (0..64).all(|line| sample.region.line(block.pos().plus(line * 64)) == [0; 8])
        });
        let lie = pointer::encode(craft.seed, DIRECTORY, PointerLocation::InodeChunk(0), blank.unwrap());
        craft.store(at, lie);
        let verdict = examine("lie", &sample.region).unwrap();
        assert_eq!(codes(&verdict), [Code::CHUNK_OUTSIDE], "{variant:?}: {:?}", verdict.issues);
        assert_eq!(repaired(&sample.region, &verdict).load_u64(at), right);
    });
}

#[test]
fn a_slot_made_anew_is_for_its_owner_alone() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            fs.new_dir(Ino::ROOT, "dir");
            file(fs, Ino::ROOT, "file", b"text");
        });
        let craft = Craft::new(&sample);
        for path in ["/dir", "/file"] {
            flip(&sample.region, craft.slot(sample.ino(path)).plus(24), 0b11 << 5);
        }
        let verdict = examine("lost", &sample.region).unwrap();
        let tree = tree_of(repaired(&sample.region, &verdict));
        assert_eq!((node(&tree, "/dir").perm, node(&tree, "/file").perm), (0o700, 0o600), "{variant:?}");
        assert!(node(&tree, "/file").pieces == node(&sample.tree, "/file").pieces);
    });
}

/// The walk from the root finds one of them. The other one, in a directory without a name, says nothing new.
#[test]
fn a_lost_slot_with_two_names_is_made_once() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            let dir = fs.new_dir(Ino::ROOT, "dir");
            file(fs, dir, "one", b"text");
            let ino = fs.find(dir, "one").unwrap().ino;
            fs.link(&root(), ino, Ino::ROOT, name("two")).unwrap();
        });
        let craft = Craft::new(&sample);
        flip(&sample.region, craft.slot(sample.ino("/two")).plus(24), 0b11 << 5);
        remove_name(&sample, "dir");
        let verdict = examine("lost", &sample.region).unwrap();
        let lost = codes(&verdict).iter().filter(|code| **code == Code::SLOT_LOST).count();
        assert_eq!(lost, 1, "{variant:?}: {:?}", verdict.issues);
        repaired(&sample.region, &verdict);
    });
}

/// A repair writes both superblocks anyway.
#[test]
fn a_note_that_a_repair_settles_is_not_reported() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| file(fs, Ino::ROOT, "file", b"text"));
        flip(&sample.region, Craft::new(&sample).slot(sample.ino("/file")).plus(24), 1 << 5);
        let last = sample.region.len_bytes() - PAGE as u64;
        let mut bytes = [0; 128];
        sample.region.read(Pos(last), &mut bytes);
        let sequence = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) - 1;
        bytes[32..40].copy_from_slice(&sequence.to_le_bytes());
        bytes[12..16].fill(0);
        let sum = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        sample.region.nt_write(Pos(last), &bytes);
        let verdict = examine("older", &sample.region).unwrap();
        assert_eq!(codes(&verdict), [Code::SLOT_BIT], "{variant:?}: {:?}", verdict.issues);
        repaired(&sample.region, &verdict);
    });
}

/// What a rename left undone in the old directory.
#[test]
fn what_a_rename_owes_its_old_directory_is_read_and_noted() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let craft = Craft::new(&sample);
        let what = format!("the log of inode {}", sample.ino("/dir").0);
        let pages = sample.survey().owners.into_iter().filter(|o| o.what == what).map(|o| o.block);
        let is_it = |record: &Record| match record {
            Record::Name { name, removed, .. } => *removed && name.bytes() == b"other",
            _ => false,
        };
        let page =
            pages.into_iter().find(|page| craft.records(*page).iter().any(|(_, r, _)| is_it(r))).unwrap();
        craft.change(page, |record| {
            let hit = is_it(record);
            if let (true, Record::Name { removed, .. }) = (hit, record) {
                *removed = false;
            }
            hit
        });
        let verdict = examine("owed", &sample.region).unwrap();
        assert_eq!(codes(&verdict), [Code::RENAME_DEBT], "{variant:?}: {:?}", verdict.issues);
        let seen = sample.survey();
        let moved = seen.inodes.iter().find(|inode| inode.ino == sample.ino("/moved")).unwrap();
        assert_eq!(moved.links, 2, "{variant:?}: /moved and /link, not /dir/other");
    });
}

/// A file of a hundred records, of which none is superseded.
fn appended(variant: Variant) -> Sample {
    Sample::of(variant, |fs| {
        let file = fs.new_file(Ino::ROOT, "victim");
        for page in 0..100 {
            fs.write(&file, page * PAGE as u64, &[page as u8 + 1; PAGE]).unwrap();
        }
        fs.release(file);
    })
}

/// Records behind the tail never counted: a flipped bit does not make them count.
#[test]
fn a_flipped_tail_is_turned_back_to_where_it_stood() {
    each_variant(|variant| {
        if variant.log() != LogKind::Tail {
            return;
        }
        let sample = appended(variant);
        mount(sample.region.map_again().unwrap(), &options()).unwrap().abandon();
        let craft = Craft::new(&sample);
        let (ino, page) = (sample.ino("/victim"), sample.log_page("victim"));
        let records = craft.records(page);
        let at = craft.slot(ino).plus(64 + TAIL_WORD * 8);
        let tail = pointer::encode_tail(craft.seed, craft.id(ino), page, records[9].0);
        craft.store(at, tail);
        let counted = |region: &Region| {
            let survey = survey("tail", region).unwrap().unwrap();
            survey.inodes.iter().find(|inode| inode.ino == ino).unwrap().figures.records
        };
        assert_eq!(counted(&sample.region), 9, "of the first page, and none of the second");
        for bits in [1 << 60, 1 << 2, 1 << 43] {
            craft.store(at, tail ^ bits);
            let verdict = examine("flipped", &sample.region).unwrap();
            assert!(codes(&verdict).contains(&Code::TAIL), "{bits:#x}: {:?}", verdict.issues);
            let region = repaired(&sample.region, &verdict);
            assert_eq!((region.load_u64(at), counted(&region)), (tail, 9), "{bits:#x}");
        }
    });
}

#[test]
fn a_lost_tail_is_set_behind_the_last_whole_record() {
    each_variant(|variant| {
        if variant.log() != LogKind::Tail {
            return;
        }
        let sample = appended(variant);
        let craft = Craft::new(&sample);
        let (ino, page) = (sample.ino("/victim"), sample.log_page("victim"));
        let what = format!("the log of inode {}", ino.0);
        let pages: Vec<BlockNo> =
            sample.survey().owners.iter().filter(|o| o.what == what).map(|o| o.block).collect();
        // No record is left in the pages behind the first.
        for later in pages.iter().filter(|later| **later != page) {
            sample.region.nt_zero(later.pos().plus(64), 63 * 64);
        }
        let at = craft.slot(ino).plus(64 + TAIL_WORD * 8);
        flip(&sample.region, at, 0b11 << 60);
        let verdict = examine("lost", &sample.region).unwrap();
        assert_eq!(codes(&verdict), [Code::TAIL], "{:?}", verdict.issues);
        let (slot, record, _) = craft.records(page).pop().unwrap();
        let end = slot + record.slots_in(craft.id(ino));
        let wanted = pointer::encode_tail(craft.seed, craft.id(ino), page, end);
        assert_eq!(repaired(&sample.region, &verdict).load_u64(at), wanted);
    });
}

#[test]
fn a_tail_of_a_log_without_records_says_nothing() {
    each_variant(|variant| {
        if variant.log() != LogKind::Tail {
            return;
        }
        let sample = Sample::new(variant);
        let craft = Craft::new(&sample);
        // A change was cut before its tail was stored, and the next mount has cleared it.
        let page = sample.log_page("symlink");
        sample.region.nt_zero(page.pos().plus(64), 63 * 64);
        craft.store(craft.slot(sample.ino("/symlink")).plus(64 + TAIL_WORD * 8), 0);
        let verdict = examine("blank", &sample.region).unwrap();
        assert!(!codes(&verdict).contains(&Code::TAIL), "{:?}", verdict.issues);
        // Without a page, a tail that leads to none is no lost head.
        let sample = Sample::of(variant, |fs| fs.release(fs.new_file(Ino::ROOT, "bare")));
        let craft = Craft::new(&sample);
        let ino = sample.ino("/bare");
        let at = craft.slot(ino).plus(64 + TAIL_WORD * 8);
        craft.store(at, pointer::encode_tail(craft.seed, craft.id(ino), sample.log_page_of("/"), 5));
        let verdict = examine("bare", &sample.region).unwrap();
        assert_eq!(codes(&verdict), [Code::TAIL], "{:?}", verdict.issues);
        assert_eq!(repaired(&sample.region, &verdict).load_u64(at), 0);
    });
}

#[test]
fn a_survey_tells_the_log_of_a_directory() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            let dir = fs.new_dir(Ino::ROOT, "dir");
            ["a", "b"].iter().for_each(|text| fs.release(fs.new_file(dir, text)));
            fs.remove(dir, "b").unwrap();
        });
        let survey = sample.survey();
        let dir = survey.inodes.iter().find(|inode| inode.ino == sample.ino("/dir")).unwrap();
        let figures = dir.figures;
        assert_eq!((figures.chains, figures.pages, figures.living), (1, 1, 2), "{variant:?}: {figures:?}");
        let records = Craft::new(&sample).records(sample.log_page_of("/dir")).len() as u64;
        assert_eq!(figures.records, records, "{variant:?}: {figures:?}");
        assert_eq!((survey.slots % 32, survey.slots > 0), (0, true), "{variant:?}");
    });
}
