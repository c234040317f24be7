//! What is shown of an image is what it holds.

use super::craft::Craft;
use super::crafted::rename_entry;
use super::sample::Sample;
use crate::common::each_variant;
use heddle_nvmfs::Variant;
use heddle_nvmfs::format::page::slot_pos;
use heddle_nvmfs::format::record::Record;
use heddle_nvmfs::fsck::dump::{DumpError, Value, What, dump};
use heddle_nvmfs::ids::BlockNo;
use heddle_pmem::Region;
use heddle_vfs::{FileKind, Ino};
use std::collections::BTreeMap;

fn shown(region: &Region, what: &What) -> Value {
    dump("sample", region, what).unwrap()
}

fn refused(region: &Region, what: &What) -> String {
    match dump("sample", region, what) {
        Err(DumpError::Absent(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn get<'v>(value: &'v Value, key: &str) -> &'v Value {
    let Value::Fields(fields) = value else { panic!("{value:?} has no fields") };
    &fields.iter().find(|(name, _)| *name == key).unwrap_or_else(|| panic!("no {key} in {value:?}")).1
}

fn list(value: &Value) -> &[Value] {
    let Value::List(values) = value else { panic!("{value:?} is no list") };
    values
}

fn number(value: &Value, key: &str) -> u64 {
    let Value::Number(number) = get(value, key) else { panic!("{key} is no number") };
    *number
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    let Value::Text(text) = get(value, key) else { panic!("{key} is no text") };
    text
}

#[test]
fn both_superblocks_are_shown_whole_or_damaged() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let all = shown(&sample.region, &What::Superblock);
        let [first, second] = list(&all) else { panic!("{all:?}") };
        assert_eq!((number(first, "block"), number(second, "block")), (0, 1023));
        for copy in [first, second] {
            assert_eq!((text(copy, "state"), text(copy, "variant")), ("whole", variant.name()));
            assert_eq!((number(copy, "blocks"), number(copy, "data_block")), (1024, 2));
            assert_eq!(
                (number(copy, "inode_directory_pointers"), get(copy, "clean")),
                (256, &Value::Flag(true))
            );
            assert_eq!(text(copy, "uuid").len(), 32);
        }
        sample.region.store_u64(BlockNo(0).pos().plus(80), 1);
        assert_eq!(text(&list(&shown(&sample.region, &What::Superblock))[0], "state"), "damaged");
    });
}

#[test]
fn the_tree_shows_inode_kind_and_size_of_each_path() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let tree = shown(&sample.region, &What::Tree);
        let found: BTreeMap<Vec<u8>, (u64, String, u64)> = list(&tree)
            .iter()
            .map(|it| {
                let (inode, size) = (number(it, "inode"), number(it, "size_bytes"));
                (text(it, "path").as_bytes().to_vec(), (inode, text(it, "kind").to_owned(), size))
            })
            .collect();
        assert_eq!(found.len(), list(&tree).len(), "each path once");
        let kind = |kind: heddle_vfs::FileKind| format!("{kind:?}").to_lowercase();
        let size = |node: &heddle_vfs::testkit::Node| match node.kind {
            heddle_vfs::FileKind::Directory => 0,
            _ => node.size_bytes,
        };
        let wanted: BTreeMap<_, _> = (sample.tree.nodes.iter())
            .map(|(path, node)| (path.clone(), (sample.inos[path].0, kind(node.kind), size(node))))
            .collect();
        assert_eq!(found, wanted, "{variant:?}");
    });
}

#[test]
fn an_inode_is_shown_by_its_number_and_by_its_path() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let ino = sample.ino("/moved");
        let moved = shown(&sample.region, &What::Inode(ino));
        for path in ["/moved", "moved", "//link/"] {
            assert_eq!(shown(&sample.region, &What::Path(path.into())), moved, "{path}");
        }
        assert_eq!((number(&moved, "inode"), number(&moved, "names")), (ino.0, 2));
        assert_eq!(
            (text(&moved, "state"), text(&moved, "kind"), text(&moved, "born_perm")),
            ("whole", "regular", "644")
        );
        assert!(
            number(&moved, "block") >= 2 && number(&moved, "records") >= number(&moved, "records_living")
        );
        assert_eq!(
            (list(get(&moved, "heads")).len(), get(&moved, "head_block")),
            (6, &Value::Text("none".into()))
        );
        let victim = shown(&sample.region, &What::Path(b"/victim".to_vec()));
        assert_eq!((number(&victim, "size_bytes"), number(&victim, "blocks")), (12 * 4096, 12));
        let head = Value::Number(sample.log_page("victim").0);
        assert_eq!(list(get(&victim, "heads"))[0], head, "{variant:?}");
        let root = shown(&sample.region, &What::Path(b"/".to_vec()));
        assert_eq!((number(&root, "inode"), text(&root, "kind")), (1, "directory"));
        match variant {
            Variant::Nova => assert!(number(get(&victim, "tail"), "block") > 0),
            _ => assert_eq!(text(&victim, "tail"), "none"),
        }
        let gone = refused(&sample.region, &What::Path(b"/dir/gone".to_vec()));
        assert!(gone.contains("/dir/gone: there is no gone in directory"), "{gone}");
        let below = refused(&sample.region, &What::Path(b"/victim/x".to_vec()));
        assert!(below.contains("there is no x"), "{below}");
        for ino in [0, 1 << 20] {
            assert!(refused(&sample.region, &What::Inode(Ino(ino))).contains("there is no inode"), "{ino}");
        }
        let craft = Craft::new(&sample);
        craft.store(craft.slot(ino).plus(64), 1 << 50 | 7);
        assert_eq!(
            list(get(&shown(&sample.region, &What::Inode(ino)), "heads"))[0],
            Value::Text("damaged".into())
        );
        craft.store(craft.slot(ino).plus(8), 0);
        assert_eq!(text(&shown(&sample.region, &What::Inode(ino)), "state"), "torn");
        let free = (2..).find(|n| !sample.inos.values().any(|ino| ino.0 == *n)).unwrap();
        assert!(refused(&sample.region, &What::Log(Ino(free))).contains("its slot is free"));
    });
}

#[test]
fn a_log_is_shown_record_by_record_and_page_by_page() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let (region, ino) = (&sample.region, sample.ino("/victim"));
        let log = shown(region, &What::Log(ino));
        let records = list(get(&log, "records"));
        assert_eq!((number(&log, "inode"), get(&log, "damaged")), (ino.0, &Value::Flag(false)));
        let pages = list(get(&log, "pages"));
        assert!(pages.contains(&Value::Number(sample.log_page("victim").0)), "{pages:?}");
        let of_page_11 = |it: &&Value| text(it, "kind") == "write" && number(it, "page") == 11;
        let last = records.iter().filter(of_page_11).max_by_key(|it| number(it, "version")).unwrap();
        assert_eq!(
            (number(last, "pages"), text(last, "at"), number(last, "end_in_last_page")),
            (1, "data", 4096)
        );
        assert!(pages.contains(get(last, "block")));
        let (page, slot) = (BlockNo(number(last, "block")), number(last, "slot") as u32);
        let one = shown(region, &What::Record(page, slot));
        assert_eq!(
            (number(&one, "slot"), text(&one, "state"), number(&one, "slots")),
            (slot.into(), "whole", 1)
        );
        let same = |key| assert_eq!(get(&one, key), get(last, key), "{key}");
        ["kind", "page", "pages", "at", "at_block", "version", "mtime_ns", "change_count"]
            .into_iter()
            .for_each(same);
        assert_eq!(number(get(&one, "transaction"), "slots"), 1);
        let whole = shown(region, &What::Page(page));
        assert_eq!((text(&whole, "what"), number(&whole, "inode")), ("log page", ino.0));
        assert!(list(get(&whole, "slots")).contains(&one));
        let numbers: Vec<u64> = list(get(&whole, "slots")).iter().map(|it| number(it, "slot")).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b) && numbers[0] == 1, "{numbers:?}");
        let data = shown(region, &What::Page(BlockNo(number(last, "at_block"))));
        assert!(text(&data, "what").starts_with("no log page"));
        assert!(
            refused(region, &What::Record(BlockNo(number(last, "at_block")), 1)).contains("is no log page")
        );
        for block in [0, 1, 1023, 1 << 40] {
            assert!(refused(region, &What::Page(BlockNo(block))).contains("blocks 2 to 1022"), "{block}");
            assert!(refused(region, &What::Record(BlockNo(block), 1)).contains("data area"), "{block}");
        }
        for slot in [0, 64] {
            assert!(refused(region, &What::Record(page, slot)).contains("slots 1 to 63"), "{slot}");
        }
        region.store_u64(slot_pos(page, slot).plus(8), !0);
        assert_eq!(text(&shown(region, &What::Record(page, slot)), "state"), "damaged");
        region.store_u64(slot_pos(page, slot).plus(8), 0);
        assert_eq!(text(&shown(region, &What::Record(page, slot)), "state"), "torn");
        (0..8).for_each(|word| region.store_u64(slot_pos(page, slot).plus(8 * word), 0));
        assert_eq!(text(&shown(region, &What::Record(page, slot)), "state"), "blank");
    });
}

#[test]
fn every_kind_of_record_is_shown_with_what_it_says() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let of = |path: &str| shown(&sample.region, &What::Log(sample.ino(path)));
        let find = |path: &str, kind: &str| -> Value {
            let log = of(path);
            let found = list(get(&log, "records")).iter().find(|it| text(it, "kind") == kind).cloned();
            found.unwrap_or_else(|| panic!("{variant:?}: no {kind} in {path}: {log:?}"))
        };
        let long = sample.inos.keys().find(|path| path.len() > 100).unwrap();
        let punch = find(std::str::from_utf8(long).unwrap(), "punch");
        assert!(number(&punch, "pages") > 0 && number(&punch, "version") > 0);
        let state = find("/moved", "attributes");
        assert_eq!((text(&state, "perm"), number(&state, "uid"), number(&state, "gid")), ("640", 12, 34));
        assert!(number(&find("/victim", "xattrs"), "at_block") > 1);
        assert!(number(&find("/shifted", "remap"), "at_block") > 1);
        assert_eq!(number(&find("/sparse", "remap"), "at_block"), 0, "it gives no page a block");
        let records = |path| list(get(&of(path), "records")).to_vec();
        let named = |name: &str, kind: &str| {
            let all: Vec<Value> = ["/", "/dir", "/dir/below"].into_iter().flat_map(records).collect();
            let is_it = |it: &&Value| text(it, "kind") == kind && text(it, "name") == name;
            all.iter().rfind(is_it).cloned().unwrap_or_else(|| panic!("{variant:?}: no {kind} of {name}"))
        };
        let entry = named("crowd", "entry");
        assert_eq!(
            (number(&entry, "child"), text(&entry, "child_kind")),
            (sample.ino("/dir/below/crowd").0, "regular")
        );
        assert_eq!(text(&named("gone", "removal"), "child_kind"), "regular");
        let pieces = find("/pieces", "write");
        let hows: Vec<String> = (["/pieces", std::str::from_utf8(long).unwrap()].into_iter())
            .flat_map(records)
            .filter(|it| text(it, "kind") == "write")
            .map(|it| text(&it, "at").to_owned())
            .collect();
        assert!(
            ["data", "list"].iter().all(|how| hows.contains(&(*how).to_owned())),
            "{variant:?}: {hows:?}"
        );
        assert_eq!(number(&pieces, "pages"), 120);
    });
}

#[test]
fn a_record_about_another_directory_names_it() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let log = shown(&sample.region, &What::Log(Ino::ROOT));
        let records = list(get(&log, "records"));
        let of = |record: &Value| match record {
            Value::Fields(fields) => fields.iter().find(|(name, _)| *name == "of_directory").cloned(),
            other => panic!("{other:?}"),
        };
        let dir = ("of_directory", Value::Number(sample.ino("/dir").0));
        let named: Vec<&Value> = records.iter().filter(|it| text(it, "kind") != "attributes").collect();
        let other = named.iter().find(|it| text(it, "name") == "other").unwrap();
        assert_eq!((text(other, "kind"), of(other)), ("removal", Some(dir)), "{variant:?}");
        let victim = named.iter().find(|it| text(it, "name") == "victim").unwrap();
        assert_eq!((text(victim, "kind"), of(victim)), ("entry", None), "{variant:?}");
    });
}

#[test]
fn a_directory_with_two_names_is_in_the_tree_once() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let craft = Craft::new(&sample);
        let below = craft.id(sample.ino("/dir/below"));
        rename_entry(&craft, &sample, "symlink", |record| {
            if let Record::Name { kind, child, .. } = record {
                (*kind, *child) = (FileKind::Directory, below);
            }
        });
        let tree = shown(&sample.region, &What::Tree);
        let paths: Vec<&str> = list(&tree).iter().map(|it| text(it, "path")).collect();
        let crowds: Vec<_> = paths.iter().filter(|path| path.ends_with("/crowd")).collect();
        assert_eq!(crowds, [&"/symlink/crowd"], "{variant:?}: met first from the root");
    });
}
