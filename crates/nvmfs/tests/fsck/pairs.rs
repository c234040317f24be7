//! Two damages, or many, whose repairs meet: none destroys what another one keeps.

use super::craft::{Craft, DIRECTORY};
use super::crafted::rename_entry;
use super::sample::{Sample, image_bytes, repaired};
use crate::common::{Short, each_variant, options, root};
use heddle_nvmfs::format::page::slot_pos;
use heddle_nvmfs::format::pointer::{self, PointerLocation};
use heddle_nvmfs::format::record::Record;
use heddle_nvmfs::fsck::{Code, examine, undo};
use heddle_nvmfs::ids::BlockNo;
use heddle_nvmfs::{NvmFs, Variant, mount};
use heddle_pmem::{Pos, Region};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Error, FileKind, FileSystem, Ino, SetAttr};

const PAGE: usize = 4096;

/// Two bits of a line: more than a checksum mends.
fn damage(region: &Region, at: Pos) {
    let word = at.plus(16);
    region.store_u64(word, region.load_u64(word) ^ (1 << 20 | 1 << 40));
}

/// Damages the first record of a log page for which `is_it` is true.
fn damage_record(craft: &Craft<'_>, page: BlockNo, is_it: impl Fn(&Record) -> bool) {
    let records = craft.records(page);
    let (slot, ..) = records.iter().find(|(_, record, _)| is_it(record)).expect("no such record");
    damage(craft.region, slot_pos(page, *slot));
}

fn names(record: &Record, wanted: &[u8]) -> bool {
    matches!(record, Record::Name { name, .. } if name.bytes() == wanted)
}

fn tree_of(region: Region, variant: Variant) -> Tree {
    let volume = mount(region, &options()).unwrap_or_else(|why| panic!("{variant:?}: {why}"));
    let tree = Tree::of(&volume.fs()).unwrap();
    volume.unmount();
    tree
}

fn file(fs: &NvmFs, dir: Ino, name: &str, pages: usize) -> Ino {
    let file = fs.new_file(dir, name);
    fs.write(&file, 0, &vec![name.len() as u8; pages * PAGE]).unwrap();
    let ino = file.ino;
    fs.release(file);
    ino
}

fn chmod(fs: &NvmFs, ino: Ino, perm: u16) {
    fs.setattr(&root(), ino, None, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
}

/// The log of the root, written anew, took the blocks of a file whose slot was lost, below a directory without a name.
#[test]
fn a_lost_slot_below_a_lost_name_keeps_its_content() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            let dir = fs.new_dir(Ino::ROOT, "dir");
            file(fs, dir, "kept", 10);
            file(fs, Ino::ROOT, "other", 1);
        });
        let craft = Craft::new(&sample);
        damage_record(&craft, sample.log_page_of("/"), |record| names(record, b"dir"));
        damage(&sample.region, craft.slot(sample.ino("/dir/kept")));
        let verdict = examine("pair", &sample.region).unwrap();
        let tree = tree_of(repaired(&sample.region, &verdict), variant);
        let found = format!("/lost+found/#{}/kept", sample.ino("/dir").0);
        let was = &sample.tree.nodes[&b"/dir/kept"[..]];
        assert!(
            tree.nodes[found.as_bytes()].pieces == was.pieces,
            "{variant:?}: the content is not the same"
        );
    });
}

/// A log written anew took the blocks of a directory that its name called a file.
#[test]
fn a_directory_that_its_name_calls_a_file_keeps_its_names() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            let dir = fs.new_dir(Ino::ROOT, "dir");
            file(fs, dir, "kept", 2);
            let other = file(fs, Ino::ROOT, "other", 1);
            chmod(fs, other, 0o600);
        });
        let craft = Craft::new(&sample);
        rename_entry(&craft, &sample, "dir", |record| {
            if let Record::Name { kind, .. } = record {
                *kind = FileKind::Regular;
            }
        });
        damage_record(&craft, sample.log_page("other"), |record| matches!(record, Record::Attributes { .. }));
        let verdict = examine("pair", &sample.region).unwrap();
        let mut tree = tree_of(repaired(&sample.region, &verdict), variant);
        tree.nodes.get_mut(&b"/"[..]).unwrap().nlink = sample.tree.nodes[&b"/"[..]].nlink;
        assert_eq!(tree.difference(&sample.tree), None, "{variant:?}");
    });
}

/// A file without a name, of whose log one record was damaged, was thrown away whole.
#[test]
fn a_file_without_a_name_keeps_what_its_damaged_log_says() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            let dir = fs.new_dir(Ino::ROOT, "dir");
            let big = file(fs, dir, "big", 50);
            chmod(fs, big, 0o640);
        });
        let craft = Craft::new(&sample);
        let [dir, big] = ["/dir", "/dir/big"].map(|path| sample.log_page_of(path));
        damage_record(&craft, dir, |record| names(record, b"big"));
        damage_record(&craft, big, |record| matches!(record, Record::Attributes { .. }));
        let verdict = examine("pair", &sample.region).unwrap();
        let tree = tree_of(repaired(&sample.region, &verdict), variant);
        let found = format!("/lost+found/#{}", sample.ino("/dir/big").0);
        let was = &sample.tree.nodes[&b"/dir/big"[..]];
        assert!(
            tree.nodes[found.as_bytes()].pieces == was.pieces,
            "{variant:?}: the content is not the same"
        );
    });
}

/// Each level is read only when the slot above it is made anew.
#[test]
fn lost_slots_of_forty_directories_below_each_other_are_repaired() {
    let mut paths = Vec::new();
    let sample = Sample::of(Variant::Heddle, |fs| {
        let mut dir = Ino::ROOT;
        let mut path = String::new();
        for _ in 0..40 {
            dir = fs.new_dir(dir, "d");
            path += "/d";
            paths.push(path.clone());
        }
        file(fs, dir, "deep", 3);
    });
    let craft = Craft::new(&sample);
    paths.iter().for_each(|path| damage(&sample.region, craft.slot(sample.ino(path))));
    let verdict = examine("deep", &sample.region).unwrap();
    let tree = tree_of(repaired(&sample.region, &verdict), Variant::Heddle);
    let deep = format!("{}/deep", paths[39]);
    assert!(tree.nodes[deep.as_bytes()].pieces == sample.tree.nodes[deep.as_bytes()].pieces);
}

/// What found no room in an early pass was reported as left, though later passes had repaired it.
#[test]
fn logs_that_find_room_in_a_later_pass_are_repaired() {
    const FILES: usize = 150;
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            for n in 0..FILES {
                let ino = file(fs, Ino::ROOT, &format!("f{n}"), 1);
                chmod(fs, ino, 0o640);
            }
            let fill = fs.new_file(Ino::ROOT, "fill");
            let full = std::iter::repeat_with(|| fs.append(&fill, &[9; PAGE])).find_map(Result::err);
            assert_eq!(full, Some(Error::NoSpace));
            fs.release(fill);
        });
        let craft = Craft::new(&sample);
        for n in 0..FILES {
            let page = sample.log_page(&format!("f{n}"));
            damage_record(&craft, page, |record| matches!(record, Record::Attributes { .. }));
        }
        let verdict = examine("full", &sample.region).unwrap();
        let met = verdict.issues.iter().any(|(issue, _)| issue.code == Code::NO_SPACE);
        assert!(!met, "{variant:?}: {:#?}", verdict.issues.last());
        repaired(&sample.region, &verdict);
    });
}

/// Bits of both identities, which leave the rest of the superblocks.
fn damage_superblocks(region: &Region) {
    [0, region.len_bytes() - PAGE as u64].into_iter().for_each(|at| damage(region, Pos(at)));
}

/// Old blocks went over an image that nothing had asked for its identity.
#[test]
fn damaged_superblocks_do_not_let_a_foreign_or_old_undo_file_in() {
    let made = || Sample::of(Variant::Heddle, |fs| _ = file(fs, Ino::ROOT, "file", 3));
    let dir = tempfile::tempdir().unwrap();
    let repair = |sample: &Sample, name: &str| {
        damage(&sample.region, Craft::new(sample).slot(sample.ino("/file")));
        let before = image_bytes(&sample.region);
        let undo = dir.path().join(name);
        examine(name, &sample.region).unwrap().apply(&sample.region, &undo).unwrap();
        (undo, before)
    };
    let refused = |sample: &Sample, undo: &std::path::Path| {
        damage_superblocks(&sample.region);
        let is = image_bytes(&sample.region);
        let why = undo::restore(undo, &sample.region).unwrap_err().to_string();
        assert!(why.contains("superblocks") && why.contains("heddle fsck -n"), "{why}");
        assert!(image_bytes(&sample.region) == is, "refused, and written");
    };
    let (one, other) = (made(), made());
    let (undo, before) = repair(&one, "one");
    refused(&other, &undo);
    // Right behind the repair it is the right one.
    damage_superblocks(&one.region);
    undo::restore(&undo, &one.region).unwrap();
    assert!(image_bytes(&one.region) == before);
    let mounted_since = made();
    let (undo, _) = repair(&mounted_since, "mounted");
    mount(mounted_since.region.map_again().unwrap(), &options()).unwrap().unmount();
    refused(&mounted_since, &undo);
}

/// All inodes are taken: there was none for `lost+found`, and the next mount freed what had lost its name.
#[test]
fn lost_files_get_names_though_no_inode_is_free() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            let dir = fs.new_dir(Ino::ROOT, "dir");
            file(fs, dir, "kept", 2);
            let full = (0..)
                .find_map(|n| fs.try_file(Ino::ROOT, &format!("f{n}")).map(|file| fs.release(file)).err());
            assert!(matches!(full, Some(Error::NoInodes | Error::NoSpace)), "{full:?}");
        });
        let craft = Craft::new(&sample);
        let root = sample.survey();
        let pages = root.owners.iter().filter(|owner| owner.what == "the log of inode 1");
        let page = pages
            .map(|owner| owner.block)
            .find(|page| craft.records(*page).iter().any(|(_, r, _)| names(r, b"dir")));
        damage_record(&craft, page.unwrap(), |record| names(record, b"dir"));
        let verdict = examine("full", &sample.region).unwrap();
        if verdict.left() > 0 {
            // Nothing may be half repaired: the next mount would free what has no name.
            assert_eq!(verdict.changes().count(), 0, "{variant:?}: {:#?}", verdict.issues);
            return;
        }
        let tree = tree_of(repaired(&sample.region, &verdict), variant);
        let id = sample.ino("/dir").0;
        let found = [format!("/#{id}/kept"), format!("/lost+found/#{id}/kept")];
        let kept = found.iter().find_map(|path| tree.nodes.get(path.as_bytes())).expect("it is gone");
        assert!(kept.pieces == sample.tree.nodes[&b"/dir/kept"[..]].pieces);
    });
}

/// A lost chmod opened the file to everybody. A directory keeps its permissions: others must get to what is below it.
#[test]
fn a_lost_record_leaves_permissions_of_a_file_to_its_owner() {
    each_variant(|variant| {
        let sample = Sample::of(variant, |fs| {
            let secret = file(fs, Ino::ROOT, "secret", 1);
            chmod(fs, secret, 0o600);
            file(fs, Ino::ROOT, "lost", 1);
        });
        let craft = Craft::new(&sample);
        let [secret, root] = ["/secret", "/"].map(|path| sample.log_page_of(path));
        damage_record(&craft, secret, |record| matches!(record, Record::Attributes { .. }));
        damage_record(&craft, root, |record| names(record, b"lost"));
        let verdict = examine("secret", &sample.region).unwrap();
        let tree = tree_of(repaired(&sample.region, &verdict), variant);
        for path in ["/secret", "/"] {
            let (is, was) = (&tree.nodes[path.as_bytes()], &sample.tree.nodes[path.as_bytes()]);
            assert_eq!(is.perm, was.perm, "{variant:?}: {path}");
        }
    });
}

/// It overwrote another image's superblock: nothing but superblocks was in the file.
#[test]
fn an_undo_file_of_superblocks_alone_is_of_its_own_image() {
    let [one, other] = [(); 2].map(|()| Sample::of(Variant::Heddle, |fs| _ = file(fs, Ino::ROOT, "file", 3)));
    let last = one.region.len_bytes() - PAGE as u64;
    for region in [&one.region, &other.region] {
        region.nt_write(Pos(last), &[0; PAGE]);
    }
    let dir = tempfile::tempdir().unwrap();
    let undo = dir.path().join("undo");
    examine("one", &one.region).unwrap().apply(&one.region, &undo).unwrap();
    damage(&other.region, Pos(0));
    let is = image_bytes(&other.region);
    undo::restore(&undo, &other.region).unwrap_err();
    assert!(image_bytes(&other.region) == is, "refused, and written");
}

/// One was taken in a pass, and the passes ended before they did.
#[test]
fn forty_forged_chunk_pointers_are_cut_together() {
    let sample = Sample::of(Variant::Heddle, |fs| _ = file(fs, Ino::ROOT, "file", 60));
    let craft = Craft::new(&sample);
    let survey = sample.survey();
    let data = survey.owners.iter().filter(|owner| owner.what.starts_with("page "));
    let blocks: Vec<BlockNo> = data.map(|owner| owner.block).take(40).collect();
    let used = (0..).find(|n| sample.region.load_u64(craft.layout().chunk_pointer(*n)) == 0).unwrap();
    for (chunk, block) in (used..).zip(&blocks) {
        let pointer = pointer::encode(craft.seed, DIRECTORY, PointerLocation::InodeChunk(chunk), *block);
        craft.store(craft.layout().chunk_pointer(chunk), pointer);
    }
    let verdict = examine("forged", &sample.region).unwrap();
    let tree = tree_of(repaired(&sample.region, &verdict), Variant::Heddle);
    assert_eq!(tree.difference(&sample.tree), None);
}
