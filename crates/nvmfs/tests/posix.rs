//! What POSIX and Linux say of names, modes, times and counts, one rule a test, on every variant and through remounts.

mod common;

use common::{Disk, Short, each_variant, fresh, name, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{
    Attr, Cookie, Cred, Error, FileKind, FileSystem, Ino, Name, NewNode, OpenFlags, Permission, RenameMode,
    Result, SeekTarget, SetAttr, SetTime, Time, path,
};
use std::collections::BTreeSet;

const IMAGE_BYTES: u64 = 16 << 20;
const PAGE: u64 = 4096;

fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: vec![], umask: 0 }
}

fn make(fs: &NvmFs, cred: &Cred, dir: Ino, text: &str, kind: FileKind, perm: u16) -> Result<Attr> {
    fs.make(cred, dir, name(text), NewNode { kind, perm, rdev: 0, target: &[] })
}

fn chmod(fs: &NvmFs, cred: &Cred, ino: Ino, perm: u16) -> Result<u16> {
    fs.setattr(cred, ino, None, &SetAttr { perm: Some(perm), ..SetAttr::default() }).map(|attr| attr.perm)
}

fn chown(fs: &NvmFs, cred: &Cred, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<u16> {
    fs.setattr(cred, ino, None, &SetAttr { uid, gid, ..SetAttr::default() }).map(|attr| attr.perm)
}

fn rename(fs: &NvmFs, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Result<()> {
    fs.rename(&root(), from.0, name(from.1), to.0, name(to.1), mode)
}

/// Runs `check` on a fresh image, and again after the image was mounted anew.
fn before_and_after_a_remount(set_up: impl Fn(&NvmFs), check: impl Fn(&NvmFs)) {
    each_variant(|variant| {
        let disk = Disk::new(variant, IMAGE_BYTES);
        let volume = disk.mount();
        set_up(&volume.fs());
        check(&volume.fs());
        volume.abandon();
        check(&disk.mount().fs());
    });
}

#[test]
fn in_a_sticky_directory_owners_alone_remove_and_rename() {
    each_variant(|variant| {
        let volume = fresh(variant, IMAGE_BYTES);
        let fs = volume.fs();
        let dir = fs.new_dir(Ino::ROOT, "d");
        chmod(&fs, &root(), dir, 0o1777).unwrap();
        make(&fs, &user(5), dir, "of 5", FileKind::Regular, 0o666).unwrap();
        assert_eq!(fs.unlink(&user(6), dir, name("of 5")), Err(Error::NotPermitted));
        let moved = fs.rename(&user(6), dir, name("of 5"), dir, name("mine"), RenameMode::Replace);
        assert_eq!(moved, Err(Error::NotPermitted));
        make(&fs, &user(6), dir, "of 6", FileKind::Regular, 0o666).unwrap();
        let over = fs.rename(&user(6), dir, name("of 6"), dir, name("of 5"), RenameMode::Replace);
        assert_eq!(over, Err(Error::NotPermitted), "replacing removes");
        chown(&fs, &root(), dir, Some(6), None).unwrap();
        assert_eq!(fs.unlink(&user(6), dir, name("of 5")), Ok(()), "the directory's owner may");
    });
}

#[test]
fn set_id_bits_go_with_a_truncation_or_a_new_owner() {
    each_variant(|variant| {
        let volume = fresh(variant, IMAGE_BYTES);
        let fs = volume.fs();
        let truncate = |cred: &Cred, ino, handle| {
            let set = SetAttr { size_bytes: Some(1), ..SetAttr::default() };
            fs.setattr(cred, ino, handle, &set).unwrap().perm
        };
        let ino = make(&fs, &user(5), Ino::ROOT, "f", FileKind::Regular, 0o777).map(|attr| attr.ino);
        assert_eq!(ino, Err(Error::AccessDenied), "the root directory is root's");
        let ino = make(&fs, &root(), Ino::ROOT, "f", FileKind::Regular, 0o777).unwrap().ino;
        chown(&fs, &root(), ino, Some(5), Some(5)).unwrap();
        assert_eq!(chmod(&fs, &user(5), ino, 0o6777), Ok(0o6777));
        assert_eq!(truncate(&root(), ino, None), 0o6777, "root keeps them");
        assert_eq!(truncate(&user(5), ino, None), 0o777);
        // Set-group-id without execution by the group means something else, and stays.
        chmod(&fs, &user(5), ino, 0o2767).unwrap();
        assert_eq!(truncate(&user(5), ino, None), 0o2767);
        chmod(&fs, &user(5), ino, 0o6777).unwrap();
        assert_eq!(chown(&fs, &root(), ino, Some(7), None), Ok(0o777), "also when root gives it away");
        chmod(&fs, &root(), ino, 0o6777).unwrap();
        fs.release(fs.open(&user(7), ino, OpenFlags { truncate: true, ..OpenFlags::READ_WRITE }).unwrap());
        assert_eq!(fs.getattr(ino).unwrap().perm, 0o777, "an open that truncates");
        let stranger = Cred { gid: 99, ..user(7) };
        assert_eq!(chmod(&fs, &stranger, ino, 0o2755), Ok(0o755), "he is not in the file's group");
        let dir = fs.new_dir(Ino::ROOT, "d");
        chmod(&fs, &root(), dir, 0o2755).unwrap();
        assert_eq!(chown(&fs, &root(), dir, Some(7), Some(8)), Ok(0o2755), "directories keep them");
    });
}

#[test]
fn supplementary_groups_count_and_directories_hand_their_group_down() {
    each_variant(|variant| {
        let volume = fresh(variant, IMAGE_BYTES);
        let fs = volume.fs();
        let dir = fs.new_dir(Ino::ROOT, "team");
        chown(&fs, &root(), dir, None, Some(42)).unwrap();
        chmod(&fs, &root(), dir, 0o2770).unwrap();
        let member = Cred { groups: vec![41, 42], ..user(5) };
        assert_eq!(
            make(&fs, &user(5), dir, "f", FileKind::Regular, 0o666).map(|_| ()),
            Err(Error::AccessDenied)
        );
        let made = make(&fs, &member, dir, "f", FileKind::Regular, 0o2775).unwrap();
        assert_eq!((made.uid, made.gid, made.perm), (5, 42, 0o2775));
        let below = make(&fs, &member, dir, "d", FileKind::Directory, 0o755).unwrap();
        assert_eq!((below.gid, below.perm), (42, 0o2755));
        assert_eq!(fs.access(&Cred { gid: 42, ..user(6) }, made.ino, Permission::WRITE), Ok(()));
        assert_eq!(chown(&fs, &member, made.ino, None, Some(41)), Ok(0o775), "to a group of his");
        assert_eq!(chown(&fs, &member, made.ino, None, Some(40)), Err(Error::NotPermitted));
        assert_eq!(chown(&fs, &member, made.ino, Some(6), None), Err(Error::NotPermitted));
    });
}

#[test]
fn the_umask_takes_bits_from_what_is_made_and_from_nothing_else() {
    each_variant(|variant| {
        let volume = fresh(variant, IMAGE_BYTES);
        let fs = volume.fs();
        let careful = Cred { umask: 0o027, ..root() };
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Fifo, FileKind::Socket];
        for (kind, text) in kinds.into_iter().zip(["f", "d", "p", "s"]) {
            assert_eq!(make(&fs, &careful, Ino::ROOT, text, kind, 0o1777).unwrap().perm, 0o1750, "{kind:?}");
        }
        let ino = fs.find(Ino::ROOT, "f").unwrap().ino;
        assert_eq!(chmod(&fs, &careful, ino, 0o777), Ok(0o777));
        let made = fs.create(&careful, Ino::ROOT, name("c"), 0o666, OpenFlags::READ_WRITE).unwrap();
        assert_eq!(made.0.perm, 0o640);
        fs.release(made.1);
        let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"f" };
        assert_eq!(fs.make(&careful, Ino::ROOT, name("l"), node).unwrap().perm, 0o777);
    });
}

#[test]
fn times_are_kept_to_the_nanosecond_before_1970_too() {
    let given = |time| Some(SetTime::At(time));
    let (early, late) = (Time::from_parts(-300_000_000, 123_456_789), Time::from_parts(3_900_000_000, 1));
    before_and_after_a_remount(
        |fs| {
            let ino = make(fs, &root(), Ino::ROOT, "f", FileKind::Regular, 0o666).unwrap().ino;
            let both = SetAttr { atime: given(late), mtime: given(early), ..SetAttr::default() };
            fs.setattr(&root(), ino, None, &both).unwrap();
            let one = SetAttr { atime: given(early), ..SetAttr::default() };
            assert_eq!(
                fs.setattr(&root(), ino, None, &one).unwrap().mtime,
                early,
                "the other is left as it is"
            );
            fs.setattr(&root(), ino, None, &both).unwrap();
            let far = make(fs, &root(), Ino::ROOT, "far", FileKind::Regular, 0o666).unwrap().ino;
            let beyond =
                SetAttr { atime: given(Time(i64::MIN)), mtime: given(Time(i64::MAX)), ..SetAttr::default() };
            fs.setattr(&root(), far, None, &beyond).unwrap();
            let now = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
            assert_eq!(fs.setattr(&user(5), ino, None, &one).map(|_| ()), Err(Error::NotPermitted));
            let touched = make(fs, &root(), Ino::ROOT, "g", FileKind::Regular, 0o666).unwrap();
            let after = fs.setattr(&user(5), touched.ino, None, &now).unwrap();
            assert!(after.mtime > touched.mtime && after.ctime > touched.ctime, "who may write may touch");
        },
        |fs| {
            let attr = fs.find(Ino::ROOT, "f").unwrap();
            assert_eq!((attr.atime, attr.mtime), (late, early));
            let far = fs.find(Ino::ROOT, "far").unwrap();
            assert_eq!((far.atime.secs(), far.mtime.secs()), (-315_360_000, 4_296_326_018), "1960 to 2106");
            assert_eq!((attr.mtime.secs(), attr.mtime.nanos()), (-300_000_000, 123_456_789));
        },
    );
}

#[test]
fn renames_refuse_to_replace_exchange_and_never_make_loops() {
    before_and_after_a_remount(
        |fs| {
            let (a, b) = (fs.new_dir(Ino::ROOT, "a"), fs.new_dir(Ino::ROOT, "b"));
            fs.new_dir(a, "deep");
            fs.release(fs.new_file(b, "f"));
            let mode = RenameMode::NoReplace;
            assert_eq!(rename(fs, (b, "f"), (a, "deep"), mode), Err(Error::Exists));
            assert_eq!(rename(fs, (b, "f"), (b, "f"), mode), Err(Error::Exists));
            let mode = RenameMode::Exchange;
            assert_eq!(rename(fs, (b, "f"), (a, "none"), mode), Err(Error::NotFound));
            rename(fs, (b, "f"), (a, "deep"), mode).unwrap();
            let deep = fs.find(b, "f").unwrap().ino;
            for mode in [RenameMode::Replace, RenameMode::NoReplace] {
                assert!(matches!(
                    rename(fs, (Ino::ROOT, "b"), (deep, "x"), mode),
                    Err(Error::InvalidArgument(_))
                ));
            }
            let loops = rename(fs, (Ino::ROOT, "b"), (b, "f"), RenameMode::Exchange);
            assert!(matches!(loops, Err(Error::InvalidArgument(_))));
            assert_eq!(rename(fs, (b, "f"), (Ino::ROOT, "b"), RenameMode::Replace), Err(Error::NotEmpty));
        },
        |fs| {
            let dir = |text| fs.find(Ino::ROOT, text).unwrap();
            assert_eq!(fs.find(dir("a").ino, "deep").unwrap().kind, FileKind::Regular);
            let deep = fs.find(dir("b").ino, "f").unwrap();
            assert_eq!(
                (deep.kind, deep.nlink, dir("a").nlink, dir("b").nlink),
                (FileKind::Directory, 2, 2, 3)
            );
            assert_eq!(fs.parent(deep.ino), Ok(dir("b").ino));
        },
    );
}

#[test]
fn pipes_sockets_and_devices_are_made_named_and_linked() {
    let device = (7 << 8) | 3;
    before_and_after_a_remount(
        |fs| {
            for (text, kind) in [("p", FileKind::Fifo), ("s", FileKind::Socket)] {
                assert_eq!(make(fs, &root(), Ino::ROOT, text, kind, 0o620).unwrap().kind, kind);
            }
            for (text, kind) in [("c", FileKind::CharDevice), ("b", FileKind::BlockDevice)] {
                let node = NewNode { kind, perm: 0o600, rdev: device, target: &[] };
                assert_eq!(fs.make(&root(), Ino::ROOT, name(text), node).unwrap().rdev, device);
            }
            chmod(fs, &root(), Ino::ROOT, 0o777).unwrap();
            let refused = make(fs, &user(5), Ino::ROOT, "mine", FileKind::CharDevice, 0o666);
            assert_eq!(refused.map(|_| ()), Err(Error::NotPermitted));
            make(fs, &user(5), Ino::ROOT, "mine", FileKind::Fifo, 0o666).unwrap();
            let ino = fs.find(Ino::ROOT, "p").unwrap().ino;
            fs.link(&root(), ino, Ino::ROOT, name("also p")).unwrap();
            assert!(matches!(fs.open(&root(), ino, OpenFlags::READ), Err(Error::InvalidArgument(_))));
        },
        |fs| {
            let find = |text| fs.find(Ino::ROOT, text).unwrap();
            assert_eq!((find("also p").ino, find("p").nlink, find("p").perm), (find("p").ino, 2, 0o620));
            assert_eq!((find("c").rdev, find("b").rdev, find("s").rdev), (device, device, 0));
            assert_eq!(find("b").kind, FileKind::BlockDevice);
        },
    );
}

#[test]
fn names_are_any_255_bytes_but_nul_and_slash() {
    let names = || -> Vec<Vec<u8>> {
        let bytes = |from: u8| {
            (0..255).map(move |i: u8| from.wrapping_add(i)).map(|b| if b == 0 || b == b'/' { 1 } else { b })
        };
        (0..40)
            .map(|i: u8| bytes(i * 6).collect())
            .chain([vec![0xff; 255], b"...".to_vec(), b" ".to_vec()])
            .collect()
    };
    before_and_after_a_remount(
        |fs| {
            for bytes in names() {
                let node = NewNode { kind: FileKind::Fifo, perm: 0o600, rdev: 0, target: &[] };
                fs.make(&root(), Ino::ROOT, Name::new(&bytes).unwrap(), node).unwrap();
            }
        },
        |fs| {
            let dir = fs.open(&root(), Ino::ROOT, OpenFlags::READ).unwrap();
            let mut listed = BTreeSet::new();
            fs.each_entry(&dir, Cookie(0), &mut |entry| listed.insert(entry.name.bytes().to_vec())).unwrap();
            fs.release(dir);
            assert_eq!(listed, names().into_iter().collect());
        },
    );
    assert_eq!(Name::new(&[b'x'; 256]).err(), Some(Error::NameTooLong));
}

#[test]
fn an_inode_has_65000_links_at_most() {
    let volume = fresh(heddle_nvmfs::Variant::Heddle, 64 << 20);
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
fn chown_to_nobody_changes_ctime() {
    each_variant(|variant| {
        let volume = fresh(variant, IMAGE_BYTES);
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        let before = fs.getattr(file.ino).unwrap();
        let user = Cred { uid: 1000, gid: 1000, groups: vec![], umask: 0 };
        for cred in [root(), user] {
            let now = fs.getattr(file.ino).unwrap().ctime;
            let after = fs.setattr(&cred, file.ino, None, &SetAttr::default()).unwrap();
            assert!(after.ctime > now, "{variant:?}: {cred:?}");
            assert_eq!((after.mtime, after.perm, after.uid), (before.mtime, before.perm, before.uid));
        }
        fs.release(file);
    });
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
fn a_number_that_is_used_again_has_another_generation_also_after_a_remount() {
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

#[test]
fn a_path_goes_through_40_links_and_not_through_41_nor_round_in_circles() {
    before_and_after_a_remount(
        |fs| {
            let link = |text: &str, target: &str| {
                let node =
                    NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: target.as_bytes() };
                fs.make(&root(), Ino::ROOT, name(text), node).unwrap();
            };
            fs.release(fs.new_file(Ino::ROOT, "0"));
            (1..=41).for_each(|i| link(&format!("{i}"), &format!("{}", i - 1)));
            link("round", "round");
            link("long", &"x/../".repeat(818));
        },
        |fs| {
            let wanted = fs.find(Ino::ROOT, "0").unwrap().ino;
            assert_eq!(path::resolve(fs, &root(), "/40").map(|attr| attr.ino), Ok(wanted));
            assert_eq!(path::resolve(fs, &root(), "/41").map(|attr| attr.ino), Err(Error::Loop));
            assert_eq!(path::resolve(fs, &root(), "/round").map(|attr| attr.ino), Err(Error::Loop));
            assert_eq!(path::resolve_nofollow(fs, &root(), "/41").unwrap().kind, FileKind::Symlink);
            let open = |text: &str, flags| path::open_path(fs, &root(), text, flags, 0o600);
            assert!(matches!(open("/1", libc::O_RDONLY | libc::O_NOFOLLOW), Err(Error::Loop)));
            assert!(matches!(open("/41", libc::O_RDONLY), Err(Error::Loop)));
            let handle = open("/3", libc::O_RDONLY).unwrap();
            assert_eq!(handle.ino, wanted);
            fs.release(handle);
            assert_eq!(fs.readlink(fs.find(Ino::ROOT, "long").unwrap().ino).unwrap().len(), 4090);
            let too_long = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: &[b'x'; 4096] };
            assert_eq!(fs.make(&root(), Ino::ROOT, name("l"), too_long).map(|_| ()), Err(Error::NameTooLong));
        },
    );
}

#[test]
fn holes_are_found_behind_every_kind_of_range_call() {
    use heddle_vfs::RangeOp::{Allocate, Collapse, Insert, Punch, Zero};
    each_variant(|variant| {
        let volume = fresh(variant, IMAGE_BYTES);
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        let map = || -> String {
            let pages = fs.size(&file) / PAGE;
            let is_data = |page| fs.seek(&file, SeekTarget::Data, page * PAGE) == Ok(page * PAGE);
            let kind = |page: u64| {
                let hole = fs.seek(&file, SeekTarget::Hole, page * PAGE) == Ok(page * PAGE);
                assert_ne!(is_data(page), hole, "page {page} is one of both");
                if hole { '.' } else { '#' }
            };
            (0..pages).map(kind).collect()
        };
        let range = |op, from: u64, pages: u64| fs.fallocate(&file, op, from * PAGE, pages * PAGE).unwrap();
        fs.write(&file, 0, &[1; 6 * PAGE as usize]).unwrap();
        range(Punch, 1, 2);
        assert_eq!(map(), "#..###");
        range(Insert, 4, 3);
        assert_eq!(map(), "#..#...##");
        range(Collapse, 2, 3);
        assert_eq!(map(), "#...##");
        range(Zero { keep_size: true }, 0, 1);
        range(Allocate { keep_size: false }, 4, 6);
        assert_eq!(map(), "....##....", "what was allocated and never written is a hole");
        assert_eq!(fs.seek(&file, SeekTarget::Data, 1 << 40), Err(Error::NoSuchOffset));
        fs.release(file);
    });
}
