use super::super::tests::{codes, id, on_empty};
use super::*;
use crate::format::record::{Attributes, NameBuf};
use crate::fsck::log::{Entry, Log};
use crate::ids::{BlockNo, Version};
use heddle_vfs::Time;

/// A directory at change count 5, with the name "old".
fn dir(pass: &mut Pass<'_>, of: InodeId) -> Dir {
    let attributes = Attributes {
        size: 0,
        perm: 0o755,
        uid: 0,
        gid: 0,
        mtime: Time(1),
        ctime: Time(1),
        atime: Time(1),
        change_count: 5,
    };
    let records = [Record::Attributes(attributes), name(of, "old", false, 7, 5)];
    let entry = |record| Entry { block: BlockNo(500), slot: 1, record };
    Dir::of(pass, of, &Log { records: records.map(entry).to_vec(), ..Log::default() })
}

fn name(dir: InodeId, text: &str, removed: bool, version: u64, change_count: u64) -> Record {
    Record::Name {
        dir,
        removed,
        child: id(12),
        kind: FileKind::Directory,
        name: NameBuf::new(text.as_bytes()),
        version: Version(version),
        mtime: Time(1),
        change_count,
    }
}

#[test]
fn what_another_log_says_of_a_directory_counts_if_it_is_new() {
    let earlier = InodeId { generation: 3, ..id(5) };
    for (record, counts) in [
        (name(id(5), "new", false, 8, 5), true),
        (name(id(5), "new", false, 8, 6), true),
        (name(id(5), "old", true, 8, 5), true),
        (name(id(5), "old", true, 7, 5), true),
        (name(id(5), "new", false, 8, 4), false),
        (name(id(5), "old", true, 6, 5), false),
        (name(id(5), "old", false, 7, 5), false),
        (name(earlier, "new", false, 8, 5), false),
        (name(earlier, "old", true, 8, 9), false),
    ] {
        on_empty(|_, pass| {
            let of = dir(pass, id(5));
            let before = of.names.clone();
            pass.tree.dirs.insert(id(5).ino, of);
            let mut foreign = vec![record.clone()];
            let news = apply_foreign(pass, &mut foreign);
            assert!(foreign.is_empty());
            let wanted = if counts { vec![record.clone()] } else { vec![] };
            assert_eq!(news, wanted, "{record:?}");
            assert_eq!(codes(pass), vec![Code::RENAME_DEBT.0; usize::from(counts)], "{record:?}");
            assert_eq!(pass.tree.dirs[&id(5).ino].names == before, !counts, "{record:?}");
        });
    }
}

/// It may be met later.
#[test]
fn what_is_said_of_an_unknown_directory_waits() {
    on_empty(|_, pass| {
        let record = name(id(5), "new", false, 8, 5);
        let mut foreign = vec![record.clone()];
        assert!(apply_foreign(pass, &mut foreign).is_empty());
        assert_eq!(foreign, [record]);
        assert!(codes(pass).is_empty());
    });
}
