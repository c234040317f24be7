//! What POSIX and Linux say of names, modes, times and counts, one rule a test, on every variant and through remounts.

mod common;

use common::{Disk, Short, each_variant, fresh, name, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::testkit::posix::Mounts;
use heddle_vfs::{
    Attr, Cookie, Cred, Error, FileKind, FileSystem, Ino, NewNode, OpenFlags, RenameMode, Result, SetAttr,
    SetTime, Time,
};
use std::collections::BTreeSet;

const IMAGE_BYTES: u64 = 16 << 20;
const PAGE: u64 = 4096;

impl Mounts for Disk {
    fn on(&self, work: &dyn Fn(&dyn FileSystem)) {
        let volume = self.mount();
        work(&volume.fs());
        volume.abandon();
    }
}

fn on_each_variant(rule: fn(&dyn Mounts)) {
    each_variant(|variant| rule(&Disk::new(variant, IMAGE_BYTES)));
}

heddle_vfs::posix_rules!(on_each_variant);

fn make(fs: &NvmFs, cred: &Cred, dir: Ino, text: &str, kind: FileKind, perm: u16) -> Result<Attr> {
    fs.make(cred, dir, name(text), NewNode { kind, perm, rdev: 0, target: &[] })
}

/// A time takes eight bytes of nanoseconds less 1960 on the media.
#[test]
fn times_outside_1960_to_2106_become_the_nearest_that_is_kept() {
    each_variant(|variant| {
        let disk = Disk::new(variant, IMAGE_BYTES);
        disk.on(&|fs| {
            let ino = fs.new_file(Ino::ROOT, "far").ino;
            let given = |nanos| Some(SetTime::At(Time(nanos)));
            let far = SetAttr { atime: given(i64::MIN), mtime: given(i64::MAX), ..SetAttr::default() };
            fs.setattr(&root(), ino, None, &far).unwrap();
        });
        disk.on(&|fs| {
            let far = fs.find(Ino::ROOT, "far").unwrap();
            assert_eq!((far.atime.secs(), far.mtime.secs()), (-315_360_000, 4_296_326_018));
        });
    });
}

#[test]
fn an_inode_has_65000_links_at_most() {
    common::each_variant(|variant| {
        let volume = fresh(variant, 64 << 20);
        let fs = volume.fs();
        let ino = make(&fs, &root(), Ino::ROOT, "f", FileKind::Regular, 0o666).unwrap().ino;
        let link = |i: u32| fs.link(&root(), ino, Ino::ROOT, name(&format!("{i}"))).map(|attr| attr.nlink);
        let last = (1..).find(|i| link(*i).is_err()).unwrap();
        assert_eq!(
            (last, link(last), fs.getattr(ino).unwrap().nlink),
            (65_000, Err(Error::TooManyLinks), 65_000)
        );
        fs.remove(Ino::ROOT, "7").unwrap();
        assert_eq!(link(last), Ok(65_000));
    });
}

#[test]
fn a_directory_has_65000_links_at_most_also_by_renames() {
    let volume = fresh(heddle_nvmfs::Variant::Heddle, 64 << 20);
    let fs = volume.fs();
    let (full, other) = (fs.new_dir(Ino::ROOT, "full"), fs.new_dir(Ino::ROOT, "other"));
    let last = (0..).find(|n| fs.try_dir(full, &format!("{n}")).is_err()).unwrap();
    let links = |dir: Ino| fs.getattr(dir).unwrap().nlink;
    assert_eq!((last, links(full)), (64_998, 65_000));
    fs.new_dir(other, "dir");
    fs.release(fs.new_file(other, "file"));
    fs.release(fs.new_file(full, "file"));
    let exchange = |a: (Ino, &str), b: (Ino, &str)| {
        fs.rename(&root(), a.0, name(a.1), b.0, name(b.1), RenameMode::Exchange)
    };
    assert_eq!(fs.replace((other, "dir"), (full, "one more")), Err(Error::TooManyLinks));
    assert_eq!(exchange((other, "dir"), (full, "file")), Err(Error::TooManyLinks));
    assert_eq!(exchange((full, "file"), (other, "dir")), Err(Error::TooManyLinks));
    assert_eq!((links(full), links(other)), (65_000, 3), "refused, nothing has changed");
    exchange((other, "dir"), (full, "7")).unwrap();
    fs.replace((other, "dir"), (full, "8")).unwrap();
    assert_eq!((links(full), links(other)), (65_000, 2), "a directory for a directory");
    fs.replace((full, "9"), (other, "dir")).unwrap();
    fs.replace((other, "dir"), (full, "one more")).unwrap();
    exchange((full, "file"), (full, "10")).unwrap();
    assert_eq!((links(full), links(other)), (65_000, 2));
}

#[test]
fn statfs_tells_what_can_be_written_and_made() {
    each_variant(|variant| {
        let volume = fresh(variant, IMAGE_BYTES);
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        fs.write(&file, 0, &[1; PAGE as usize]).unwrap();
        let before = fs.statfs().unwrap();
        assert_eq!(
            (before.block_size_bytes, before.blocks_total, before.name_max_bytes),
            (4096, IMAGE_BYTES / PAGE, 255)
        );
        fs.write(&file, 0, &vec![1; 200 * PAGE as usize]).unwrap();
        let after = fs.statfs().unwrap();
        assert_eq!(before.blocks_free - after.blocks_free, 199);
        assert_eq!(fs.getattr(file.ino).unwrap().blocks_512, 200 * 8);
        let mut written = 200;
        while fs.write(&file, written * PAGE, &[1; PAGE as usize]).is_ok() {
            written += 1;
        }
        let promised = 200 + after.blocks_available;
        // The log of so many writes takes a block for 63 of them, and cleaning gives some back.
        assert!(written <= promised && written + promised / 60 + 8 >= promised, "{written} of {promised}");
        assert!(fs.statfs().unwrap().blocks_available < 8);
        let inodes = fs.statfs().unwrap();
        fs.resize(&file, 0).unwrap();
        for i in 0..300 {
            make(&fs, &root(), Ino::ROOT, &format!("n{i}"), FileKind::Fifo, 0o600).unwrap();
        }
        let fewer = fs.statfs().unwrap();
        assert!(
            inodes.inodes_free - fewer.inodes_free >= 300 - 128 && fewer.inodes_total == inodes.inodes_total
        );
        fs.release(file);
    });
}

#[test]
fn a_reused_inode_number_has_a_new_generation_also_after_remounts() {
    each_variant(|variant| {
        let disk = Disk::new(variant, IMAGE_BYTES);
        let (mut seen, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..4 {
            let volume = disk.mount();
            let fs = volume.fs();
            for round in 0..40 {
                let made = make(&fs, &root(), Ino::ROOT, "f", FileKind::Regular, 0o600).unwrap();
                assert!(seen.insert((made.ino, made.generation)), "{made:?} in round {round}");
                numbers.insert(made.ino);
                fs.remove(Ino::ROOT, "f").unwrap();
                assert_eq!(fs.getattr(made.ino).map(|_| ()), Err(Error::Stale));
            }
            volume.abandon();
        }
        assert!(numbers.len() * 2 < seen.len(), "numbers were used again");
    });
}

/// Names that are there all the time are given once each, whatever comes and goes meanwhile, and across a remount.
#[test]
fn a_listing_goes_on_at_its_place_while_names_come_and_go() {
    each_variant(|variant| {
        let disk = Disk::new(variant, IMAGE_BYTES);
        let mut volume = disk.mount();
        let dir = volume.fs().new_dir(Ino::ROOT, "d");
        let steady: BTreeSet<String> = (0..300).map(|i| format!("steady {i}")).collect();
        for text in &steady {
            make(&volume.fs(), &root(), dir, text, FileKind::Fifo, 0o600).unwrap();
        }
        let (mut at, mut listed, mut batch) = (Cookie(0), Vec::new(), 0);
        loop {
            let fs = volume.fs();
            let handle = fs.open(&root(), dir, OpenFlags::READ).unwrap();
            let mut more = 0;
            fs.each_entry(&handle, at, &mut |entry| {
                listed.push(String::from_utf8_lossy(entry.name.bytes()).into_owned());
                at = entry.next;
                more += 1;
                more < 7
            })
            .unwrap();
            fs.release(handle);
            if more < 7 {
                break;
            }
            batch += 1;
            for i in 0..10 {
                make(&fs, &root(), dir, &format!("passing {batch} {i}"), FileKind::Fifo, 0o600).unwrap();
                if batch > 1 {
                    fs.remove(dir, &format!("passing {} {i}", batch - 1)).unwrap();
                }
            }
            drop(fs);
            if batch % 20 == 0 {
                volume.abandon();
                volume = disk.mount();
            }
        }
        let given: Vec<&String> = listed.iter().filter(|text| text.starts_with("steady")).collect();
        assert_eq!(given.len(), steady.len(), "each once");
        assert_eq!(given.into_iter().cloned().collect::<BTreeSet<String>>(), steady);
    });
}
