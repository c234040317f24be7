//! Extended attributes, shifts of ranges and files without a name, with many threads and until an image is full.

mod common;

use common::{Disk, Short, each_variant, fresh, name, options, remove_everything, root};
use heddle_nvmfs::mount;
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Error, FileSystem, Handle, Ino, OpenFlags, RangeOp, SetAttr, SetXattr, XattrName};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn attribute(text: &str) -> XattrName<'_> {
    XattrName::new(text.as_bytes()).unwrap()
}

/// Runs `disturb` in a thread of its own until `work` has returned.
fn beside(disturb: impl Fn(u64) + Sync, work: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..).take_while(|_| !stop.load(SeqCst)).for_each(&disturb));
        let _stops_also_after_a_panic = Stop(&stop);
        work();
    });
}

fn lasting(time: Duration) -> impl Iterator<Item = u64> {
    let end = Instant::now() + time;
    (0..).take_while(move |_| Instant::now() < end)
}

#[test]
fn an_attribute_that_is_replaced_is_read_whole() {
    each_variant(|variant| {
        let volume = fresh(variant, 16 << 20);
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        let set = |round: u64| {
            let len = 1 + (round as usize * 3001) % 30_000;
            fs.setxattr(&root(), file.ino, attribute("user.a"), &vec![round as u8; len], SetXattr::Any)
                .unwrap();
        };
        set(0);
        let mut seen = 0;
        beside(set, || {
            for _ in lasting(Duration::from_millis(400)) {
                let value = fs.getxattr(&root(), file.ino, attribute("user.a")).unwrap();
                assert!(value.iter().all(|byte| *byte == value[0]), "parts of two values");
                seen += 1;
            }
        });
        assert!(seen > 100, "{seen}");
        fs.release(file);
    });
}

/// Pages carry their number; a page is inserted in front and cut out again. A read of the whole finds it done or not.
#[test]
fn readers_see_a_shift_whole_or_not_at_all() {
    each_variant(|variant| {
        let volume = fresh(variant, 16 << 20);
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        for page in 0..20 {
            fs.write(&file, page * PAGE as u64, &[page as u8 + 1; PAGE]).unwrap();
        }
        let (first, at) = (PAGE as u64, 7 * PAGE as u64);
        let shift = |round: u64| {
            let op = if round.is_multiple_of(2) { RangeOp::Insert } else { RangeOp::Collapse };
            fs.fallocate(&file, op, if round % 4 < 2 { first } else { at }, PAGE as u64).unwrap();
        };
        let mut seen = [0; 2];
        beside(shift, || {
            // Longer where the one who shifts hardly gets in between.
            let (start, least, most) = (Instant::now(), Duration::from_millis(400), Duration::from_secs(20));
            while start.elapsed() < least || (seen.contains(&0) && start.elapsed() < most) {
                let bytes = fs.read_vec(&file, 0, 40 * PAGE);
                let pages: Vec<u8> = bytes.chunks(PAGE).map(|page| page[0]).collect();
                assert!(bytes.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == page[0])), "{pages:?}");
                let numbers: Vec<u8> = pages.iter().copied().filter(|page| *page != 0).collect();
                assert_eq!(numbers, (1..=20).collect::<Vec<u8>>(), "{pages:?}");
                seen[pages.len() - 20] += 1;
            }
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
        fs.release(file);
    });
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

fn unnamed(fs: &impl FileSystem, linkable: bool) -> Handle {
    fs.tmpfile(&root(), Ino::ROOT, 0o600, OpenFlags::READ_WRITE, linkable).unwrap().1
}

#[test]
fn a_tmpfile_ends_with_its_handle_or_is_linked_once() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        let free = || fs.statfs().unwrap().blocks_free;
        let warm = unnamed(&fs, true);
        fs.write(&warm, 0, &[1; PAGE]).unwrap();
        fs.release(warm);
        let before = free();
        for _ in 0..50 {
            let gone = unnamed(&fs, true);
            fs.write(&gone, 0, &[1; 9 * PAGE]).unwrap();
            assert_eq!(fs.getattr(gone.ino).unwrap().nlink, 0);
            fs.release(gone);
        }
        assert!(free() + 8 > before, "{before} then {}", free());
        let exclusive = unnamed(&fs, false);
        assert_eq!(fs.link(&root(), exclusive.ino, Ino::ROOT, name("never")), Err(Error::NotFound));
        fs.release(exclusive);
        let named = unnamed(&fs, true);
        fs.write(&named, 0, b"content").unwrap();
        assert_eq!(fs.link(&root(), named.ino, Ino::ROOT, name("named")).unwrap().nlink, 1);
        fs.remove(Ino::ROOT, "named").unwrap();
        let again = fs.link(&root(), named.ino, Ino::ROOT, name("again"));
        assert_eq!(again, Err(Error::NotFound), "it had its name");
        fs.release(named);
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

/// Of naming a file and closing it last one comes first; either way it is whole or gone.
#[test]
fn naming_a_file_against_its_last_close_leaves_it_whole() {
    each_variant(|variant| {
        let volume = fresh(variant, 16 << 20);
        let fs = volume.fs();
        for round in 0..500 {
            let file = unnamed(&fs, true);
            let (ino, text) = (file.ino, format!("n{round}"));
            fs.write(&file, 0, b"content").unwrap();
            let linked = std::thread::scope(|scope| {
                let close = scope.spawn(|| fs.release(file));
                let linked = fs.link(&root(), ino, Ino::ROOT, name(&text));
                close.join().unwrap();
                linked
            });
            match linked {
                Ok(_) => assert_eq!(fs.read_vec(&fs.open_file(Ino::ROOT, &text), 0, 99), b"content"),
                Err(Error::NotFound | Error::Stale) => {
                    assert_eq!(fs.find(Ino::ROOT, &text).map(|attr| attr.ino), Err(Error::NotFound));
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn an_access_list_follows_the_mode_and_survives_a_remount() {
    use heddle_vfs::acl::{Acl, Entry, Tag};
    use heddle_vfs::{Cred, Permission};
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        let entry = |tag, perm, id| Entry { tag, perm, id };
        let list = Acl::new(vec![
            entry(Tag::Owner, 6, 0),
            entry(Tag::User, 6, 1000),
            entry(Tag::OwningGroup, 0, 0),
            entry(Tag::Mask, 6, 0),
            entry(Tag::Others, 0, 0),
        ]);
        let list = list.unwrap().to_xattr();
        let file = fs.new_file(Ino::ROOT, "f");
        let user = Cred { uid: 1000, gid: 1000, groups: vec![], umask: 0 };
        let stranger = Cred { uid: 1001, ..user.clone() };
        fs.setxattr(&root(), file.ino, XattrName::ACL_ACCESS, &list, SetXattr::Any).unwrap();
        assert_eq!(fs.getattr(file.ino).unwrap().perm, 0o660);
        assert_eq!(fs.access(&user, file.ino, Permission::WRITE), Ok(()));
        assert_eq!(fs.access(&stranger, file.ino, Permission::READ), Err(Error::AccessDenied));
        let set = SetAttr { perm: Some(0o640), ..SetAttr::default() };
        fs.setattr(&root(), file.ino, None, &set).unwrap();
        fs.release(file);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let fs = volume.fs();
        let ino = fs.find(Ino::ROOT, "f").unwrap().ino;
        assert_eq!(fs.access(&user, ino, Permission::READ), Ok(()));
        assert_eq!(fs.access(&user, ino, Permission::WRITE), Err(Error::AccessDenied));
        assert!(matches!(fs.open(&user, ino, OpenFlags::READ_WRITE), Err(Error::AccessDenied)));
        fs.removexattr(&root(), ino, XattrName::ACL_ACCESS).unwrap();
        assert_eq!(fs.access(&user, ino, Permission::READ), Err(Error::AccessDenied));
    });
}
