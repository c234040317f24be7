//! Extended attributes, shifts of ranges and files without a name, with many threads and until an image is full.

mod common;

use common::{Disk, Short, each_variant, fresh, name, options, remove_everything, root};
use heddle_nvmfs::mount;
use heddle_vfs::acl::{Acl, Entry, Tag};
use heddle_vfs::testkit::Tree;
use heddle_vfs::testkit::crowd::{
    attributes_are_read_whole, beside, nameless_files_end_or_are_named_once,
    naming_against_the_last_close_leaves_files_whole, shifts_are_read_whole, unnamed,
};
use heddle_vfs::{Error, FileSystem, Ino, RangeOp, SetAttr, SetXattr, XattrName};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn attribute(text: &str) -> XattrName<'_> {
    XattrName::new(text.as_bytes()).unwrap()
}

fn lasting(time: Duration) -> impl Iterator<Item = u64> {
    let end = Instant::now() + time;
    (0..).take_while(move |_| Instant::now() < end)
}

#[test]
fn an_attribute_that_is_replaced_is_read_whole() {
    each_variant(|variant| attributes_are_read_whole(&fresh(variant, 16 << 20).fs(), 30_000));
}

#[test]
fn readers_see_a_shift_whole_or_not_at_all() {
    each_variant(|variant| shifts_are_read_whole(&fresh(variant, 16 << 20).fs()));
}

#[test]
fn writers_beside_shifts_lose_nothing() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        fs.write(&file, 0, &[1; 8 * PAGE]).unwrap();
        // Whole pages of one byte, before and behind what is shifted; the last byte written to page 0 must stay.
        let shift = |round: u64| {
            let op = if round.is_multiple_of(2) { RangeOp::Insert } else { RangeOp::Collapse };
            fs.fallocate(&file, op, 2 * PAGE as u64, 3 * PAGE as u64).unwrap();
        };
        let mut last = 0;
        beside(shift, || {
            for round in lasting(Duration::from_millis(300)) {
                last = round as u8 | 1;
                fs.write(&file, 0, &vec![last; 2 * PAGE]).unwrap();
                fs.write(&file, 6 * PAGE as u64, &vec![last; 3 * PAGE]).unwrap();
                fs.write(&file, 40 * PAGE as u64, &vec![last; PAGE]).unwrap();
                assert_eq!(fs.read_vec(&file, 0, 2 * PAGE), vec![last; 2 * PAGE]);
            }
        });
        let is = fs.read_vec(&file, 0, 200 * PAGE);
        assert!(is.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == page[0])), "a page of two writes");
        let tree = Tree::of(&fs).unwrap();
        fs.release(file);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        assert!(Tree::of(&volume.fs()).unwrap().difference(&tree).is_none());
    });
}

/// Nothing of what is replaced stays behind.
#[test]
fn attributes_and_shifts_made_for_ever_do_not_fill_the_image() {
    each_variant(|variant| {
        let volume = fresh(variant, 4 << 20);
        let fs = volume.fs();
        let free = || fs.statfs().unwrap().blocks_free;
        let file = fs.new_file(Ino::ROOT, "f");
        let dir = fs.new_dir(Ino::ROOT, "d");
        fs.write(&file, 0, &[7; 30 * PAGE]).unwrap();
        let (before, mut least) = (free(), u64::MAX);
        for round in 0..4000_u64 {
            let value = vec![round as u8; (round % 9 * 1000) as usize];
            for ino in [file.ino, dir] {
                fs.setxattr(&root(), ino, attribute("user.a"), &value, SetXattr::Any).unwrap();
            }
            let at = round * 7 % 25 * PAGE as u64;
            fs.fallocate(&file, RangeOp::Insert, at, PAGE as u64).unwrap();
            fs.fallocate(&file, RangeOp::Collapse, (round * 5 % 25) * PAGE as u64, PAGE as u64).unwrap();
            least = least.min(free());
        }
        // Pages that were cut out are free; the rest is log.
        assert!(least + 250 > before, "{before} blocks were free, then {least}");
        fs.release(file);
        remove_everything(&fs).unwrap();
        assert!(free() + 40 > before + 30, "{} of {before} blocks came back", free());
    });
}

#[test]
fn attributes_that_are_removed_give_their_blocks_back() {
    each_variant(|variant| {
        let volume = fresh(variant, 16 << 20);
        let fs = volume.fs();
        let (file, dir) = (fs.new_file(Ino::ROOT, "f"), fs.new_dir(Ino::ROOT, "d"));
        let set =
            |ino| fs.setxattr(&root(), ino, attribute("user.a"), &[7; 2 * PAGE], SetXattr::Any).unwrap();
        let round = || {
            for ino in [file.ino, dir] {
                set(ino);
                fs.removexattr(&root(), ino, attribute("user.a")).unwrap();
            }
            // Others go with their file.
            let other = fs.new_file(Ino::ROOT, "other");
            set(other.ino);
            fs.remove(Ino::ROOT, "other").unwrap();
            fs.release(other);
        };
        let free = || fs.statfs().unwrap().blocks_free;
        (0..30).for_each(|_| round());
        let before = free();
        (0..60).for_each(|_| round());
        let missing = before.saturating_sub(free());
        assert!(missing < 30, "{variant:?}: {missing} blocks are missing");
        fs.release(file);
    });
}

/// The record that an inode has none any more lies in another log page than an older set, and that page lives.
#[test]
fn removed_attributes_stay_gone_when_logs_are_cleaned() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        let (file, dir) = (fs.new_file(Ino::ROOT, "f"), fs.new_dir(Ino::ROOT, "d"));
        // Living records, which keep the first page of either log.
        fs.write(&file, PAGE as u64, &[1; PAGE]).unwrap();
        fs.new_dir(dir, "kept");
        let pages = |pages: u32| {
            for _ in 0..pages * 63 {
                fs.write(&file, 0, &[2; PAGE]).unwrap();
                fs.new_dir(dir, "n");
                fs.rmdir(&root(), dir, name("n")).unwrap();
            }
        };
        let both = |change: &dyn Fn(Ino)| [file.ino, dir].into_iter().for_each(change);
        both(&|ino| fs.setxattr(&root(), ino, attribute("user.a"), &[7; 9000], SetXattr::Any).unwrap());
        pages(1);
        both(&|ino| fs.removexattr(&root(), ino, attribute("user.a")).unwrap());
        pages(1);
        // Later attributes: nothing else in the page of the removal lives.
        let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        both(&|ino| {
            fs.setattr(&root(), ino, None, &set).unwrap();
        });
        pages(4);
        fs.release(file);
        let tree = Tree::of(&fs).unwrap();
        drop(fs);
        volume.abandon();
        common::sound(disk.region()).unwrap();
        assert_eq!(Tree::of(&disk.mount().fs()).unwrap().difference(&tree), None, "{variant:?}");
    });
}

#[test]
fn access_lists_that_are_replaced_give_their_memory_back() {
    let list = |perm| {
        let entries =
            [(Tag::Owner, 0), (Tag::User, 1000), (Tag::OwningGroup, 0), (Tag::Mask, 0), (Tag::Others, 0)];
        Acl::new(entries.map(|(tag, id)| Entry { tag, perm, id }).to_vec()).unwrap().to_xattr()
    };
    each_variant(|variant| {
        let volume = fresh(variant, 4 << 20);
        let fs = volume.fs();
        let dir = fs.new_dir(Ino::ROOT, "d");
        let replace = |times: u32| {
            for n in 0..times {
                for which in [XattrName::ACL_ACCESS, XattrName::ACL_DEFAULT] {
                    fs.setxattr(&root(), dir, which, &list((n % 8) as u8), SetXattr::Any).unwrap();
                }
            }
            volume.memory_bytes()
        };
        let (before, after) = (replace(1000), replace(10_000));
        assert_eq!(before, after, "{variant:?}");
    });
}

#[test]
fn files_that_are_removed_give_their_memory_back() {
    const FILES: u64 = 600;
    let entries = [(Tag::Owner, 0), (Tag::User, 7), (Tag::OwningGroup, 0), (Tag::Mask, 0), (Tag::Others, 0)];
    let list = Acl::new(entries.map(|(tag, id)| Entry { tag, perm: 6, id }).to_vec()).unwrap().to_xattr();
    each_variant(|variant| {
        let volume = fresh(variant, 8 << 20);
        let fs = volume.fs();
        let come_and_go = || {
            for _ in 0..FILES {
                let file = fs.new_file(Ino::ROOT, "f");
                fs.write(&file, 0, &[1; PAGE]).unwrap();
                fs.setxattr(&root(), file.ino, XattrName::ACL_ACCESS, &list, SetXattr::Any).unwrap();
                fs.release(file);
                fs.remove(Ino::ROOT, "f").unwrap();
            }
            volume.memory_bytes()
        };
        let (before, after) = (come_and_go(), come_and_go());
        // The set of each has 64 bytes, its list 48, and the locks of a file in the papers' variants 320.
        assert!(after < before + 32 * FILES, "{variant:?}: {before} bytes, then {after}");
    });
}

#[test]
fn a_full_image_refuses_attributes_and_loses_none() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 4 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        fs.setxattr(&root(), file.ino, attribute("user.kept"), &[1; 5000], SetXattr::Any).unwrap();
        let ballast = fs.new_file(Ino::ROOT, "ballast");
        while fs.append(&ballast, &[3; PAGE]).is_ok() {}
        let full = fs.setxattr(&root(), file.ino, attribute("user.more"), &[2; 60_000], SetXattr::Any);
        assert_eq!(full, Err(Error::NoSpace));
        // What takes no more room than there is taken may be changed.
        fs.setxattr(&root(), file.ino, attribute("user.kept"), &[4; 5000], SetXattr::Replace).unwrap();
        let tree = Tree::of(&fs).unwrap();
        fs.release(ballast);
        fs.release(file);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let fs = volume.fs();
        assert_eq!(Tree::of(&fs).unwrap().difference(&tree), None);
        remove_everything(&fs).unwrap();
    });
}

#[test]
fn a_tmpfile_ends_with_its_handle_or_is_linked_once() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        nameless_files_end_or_are_named_once(&fs);
        let named = unnamed(&fs, true);
        fs.write(&named, 0, b"content").unwrap();
        fs.link(&root(), named.ino, Ino::ROOT, name("named")).unwrap();
        fs.release(named);
        let lost = unnamed(&fs, true);
        fs.write(&lost, 0, b"lost").unwrap();
        drop(fs);
        volume.abandon();
        let volume = mount(disk.region().map_again().unwrap(), &options()).unwrap();
        assert_eq!(volume.report.orphans, 1);
        let fs = volume.fs();
        assert_eq!(fs.read_vec(&fs.open_file(Ino::ROOT, "named"), 0, 99), b"content");
    });
}

#[test]
fn naming_a_file_against_its_last_close_leaves_it_whole() {
    each_variant(|variant| naming_against_the_last_close_leaves_files_whole(&fresh(variant, 16 << 20).fs()));
}

/// Fifteen of 64 KiB, and one of the rest; no byte more.
#[test]
fn an_inode_holds_a_mebibyte_of_attributes() {
    const EACH_BYTES: usize = 64 << 10;
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        let set =
            |ino, text: &str, value: &[u8]| fs.setxattr(&root(), ino, attribute(text), value, SetXattr::Any);
        let names: Vec<String> = (10..26).map(|n| format!("user.{n}")).collect();
        let value = |n: usize| {
            let rest = (1 << 20) - 15 * EACH_BYTES - names.iter().map(String::len).sum::<usize>();
            vec![n as u8 + 1; if n < 15 { EACH_BYTES } else { rest }]
        };
        let file = fs.new_file(Ino::ROOT, "f");
        let dir = fs.new_dir(Ino::ROOT, "d");
        for ino in [file.ino, dir] {
            assert_eq!(set(ino, "user.10", &[1; EACH_BYTES + 1]), Err(Error::TooBig));
            for (n, text) in names.iter().enumerate() {
                set(ino, text, &value(n)).unwrap();
            }
            let more = [&value(15)[..], &[16]].concat();
            assert_eq!(set(ino, &names[15], &more), Err(Error::NoSpace), "a byte more");
            assert_eq!(set(ino, "user.x", b""), Err(Error::NoSpace), "a name more");
        }
        fs.release(file);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let fs = volume.fs();
        for text in ["f", "d"] {
            let ino = fs.find(Ino::ROOT, text).unwrap().ino;
            for (n, text) in names.iter().enumerate() {
                assert!(fs.getxattr(&root(), ino, attribute(text)).unwrap() == value(n), "{text}");
            }
        }
    });
}
