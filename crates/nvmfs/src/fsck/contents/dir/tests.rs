use super::super::super::tests::{codes, id, on_empty};
use super::*;
use crate::format::record::NameBuf;
use crate::fsck::log::Entry;
use crate::ids::BlockNo;

/// What is said of "name" at a version: removed or not, inode, kind.
type Said = (u64, bool, u64, FileKind);

const FILE: FileKind = FileKind::Regular;

fn record((version, removed, child, kind): Said) -> Record {
    Record::Name {
        dir: id(5),
        removed,
        child: id(child),
        kind,
        name: NameBuf::new(b"name"),
        version: Version(version),
        mtime: Time(1),
        change_count: 4,
    }
}

fn attributes(change_count: u64, perm: u16) -> Record {
    Record::Attributes(Attributes {
        size: 0,
        perm,
        uid: 0,
        gid: 0,
        mtime: Time(1),
        ctime: Time(1),
        atime: Time(1),
        change_count,
    })
}

fn entry(record: Record) -> Entry {
    Entry { block: BlockNo(500), slot: 1, record }
}

#[test]
fn of_two_records_of_a_name_the_later_one_counts() {
    let old = (7, false, 12, FILE);
    let removed = (7, true, 12, FILE);
    // What stands there, what comes, whether it is new, what stands there then, whether they disagree.
    for (first, second, is_new, then, clash) in [
        (old, (8, false, 13, FILE), true, (8, false, 13, FILE), false),
        (old, (8, true, 12, FILE), true, (8, true, 12, FILE), false),
        (removed, (8, false, 12, FILE), true, (8, false, 12, FILE), false),
        (old, (6, false, 13, FILE), false, old, false),
        (old, (6, true, 12, FILE), false, old, false),
        (old, old, false, old, false),
        (removed, removed, false, removed, false),
        // The removal took the place of the name.
        (old, removed, true, removed, false),
        (removed, old, false, removed, false),
        (old, (7, false, 13, FILE), false, old, true),
        (old, (7, false, 12, FileKind::Fifo), false, old, true),
        (old, (7, true, 13, FILE), false, old, true),
        (removed, (7, false, 12, FileKind::Fifo), false, removed, true),
    ] {
        on_empty(|_, pass| {
            let mut dir = Dir::empty(id(5));
            assert!(dir.enter(pass, &record(first)));
            assert_eq!(dir.enter(pass, &record(second)), is_new, "{first:?}, {second:?}");
            let is = dir.names[&b"name"[..]];
            assert_eq!((is.version.0, is.removed, is.child.ino.0, is.kind), then, "{first:?}, {second:?}");
            assert_eq!(
                (dir.damaged, codes(pass).len()),
                (clash, usize::from(clash)),
                "{first:?}, {second:?}"
            );
            assert_eq!(dir.living().count(), usize::from(!then.1));
        });
    }
}

#[test]
fn a_directory_keeps_its_last_attributes_and_its_own_names() {
    on_empty(|_, pass| {
        let other = id(6);
        let Record::Name { version, mtime, change_count, .. } = record((9, false, 12, FILE)) else {
            panic!()
        };
        let foreign = Record::Name {
            dir: other,
            removed: true,
            child: id(12),
            kind: FILE,
            name: NameBuf::new(b"elsewhere"),
            version,
            mtime,
            change_count,
        };
        let records = [
            attributes(3, 0o700),
            attributes(5, 0o750),
            attributes(4, 0o711),
            attributes(5, 0o777),
            record((9, false, 12, FILE)),
            foreign.clone(),
        ];
        let log = Log { records: records.map(entry).to_vec(), ..Log::default() };
        let dir = Dir::of(pass, id(5), &log);
        assert_eq!((dir.names.len(), dir.damaged), (1, false));
        assert_eq!(dir.foreign, std::slice::from_ref(&foreign));
        let wanted = [record((9, false, 12, FILE)), attributes(5, 0o750), foreign];
        assert_eq!(dir.records(), wanted, "a new log says the same");
        let new = dir.new_name(id(20), FileKind::Fifo, Time(3));
        assert_eq!((new.version, new.removed, new.child, new.change_count), (Version(10), false, id(20), 5));
        // A record that saw older attributes has been copied.
        let seen = |count: u64| {
            let Record::Name { dir, removed, child, kind, name, version, mtime, .. } =
                record((9, false, 12, FILE))
            else {
                panic!()
            };
            Record::Name { dir, removed, child, kind, name, version, mtime, change_count: count }
        };
        assert_eq!([4, 5, 6].map(|count| dir.believes(&seen(count))), [false, true, true]);
        assert!(!dir.believes(&attributes(9, 0)));
        assert!(Dir::empty(id(5)).believes(&seen(0)));
        assert!(Dir::of(pass, id(5), &Log { damaged: true, ..Log::default() }).damaged);
    });
}

#[test]
fn data_among_names_is_reported_where_it_stands() {
    on_empty(|_, pass| {
        let punch = Record::Punch {
            page: crate::ids::PageNo(0),
            pages: 1,
            version: Version(1),
            mtime: Time(1),
            change_count: 9,
        };
        let log = Log { records: vec![entry(punch)], ..Log::default() };
        assert!(Dir::of(pass, id(5), &log).damaged);
        assert_eq!(codes(pass), [Code::RECORD_MISPLACED.0]);
        assert_eq!(pass.issues[0].location, Location::of(heddle_vfs::Ino(5), BlockNo(500)).slot(1));
    });
}

#[test]
fn a_new_name_is_newer_than_all_that_the_directory_knows() {
    on_empty(|_, pass| {
        let mut dir = Dir::empty(id(5));
        let new = |dir: &Dir| {
            let named = dir.new_name(id(20), FILE, Time(3));
            (named.version.0, named.change_count)
        };
        assert_eq!(new(&dir), (1, 0));
        dir.enter(pass, &record((7, true, 12, FILE)));
        assert_eq!(new(&dir), (8, 4), "as the record of the name");
        dir.attached = Some((9, None, Time(1), Location::default()));
        assert_eq!(new(&dir), (8, 9), "as the attributes");
    });
}
