//! Random steps: few names, so that they meet; offsets and lengths around page borders.

use proptest::prelude::*;
use proptest::strategy::Union;

use super::steps::{Act, Calls, Step, Who};
use super::xattrs;
use crate::{FileKind, OpenFlags, RangeOp, RenameMode, SeekTarget, SetTime, Time};

pub(super) type Choice = (u32, BoxedStrategy<Act>);

/// Up to `count_max` random steps of the given calls; `remounts` lets [`Act::Remount`] be among them.
pub fn random_steps(calls: Calls, count_max: usize, remounts: bool) -> impl Strategy<Value = Vec<Step>> {
    let mut choices = names(calls);
    choices.extend(data(calls));
    choices.extend(attributes(calls));
    choices.extend(xattrs::choices(calls));
    if remounts {
        choices.push((2, Just(Act::Remount).boxed()));
    }
    let who = if calls.has(Calls::USERS) {
        prop_oneof![6 => Just(Who::Root), 2 => Just(Who::User), 1 => Just(Who::Friend)].boxed()
    } else {
        Just(Who::Root).boxed()
    };
    let step = (who, Union::new_weighted(choices)).prop_map(|(who, act)| Step { who, act });
    let first = prelude(calls);
    prop::collection::vec(step, 1..=count_max).prop_map(move |steps| [first.clone(), steps].concat())
}

/// What every sequence starts with, so that the random steps have something to work on.
fn prelude(calls: Calls) -> Vec<Step> {
    let mut acts = Vec::new();
    if calls.has(Calls::ATTRIBUTES) {
        acts.push(Act::SetMode { path: "/".into(), perm: 0o777 });
    }
    let mut files = vec!["c"];
    if calls.has(Calls::DIRECTORIES) {
        for path in ["a", "a/b"] {
            acts.push(Act::Make { path: path.into(), kind: FileKind::Directory, perm: 0o777 });
        }
        files.push("a/c");
    }
    for path in files {
        acts.push(Act::Create { path: path.into(), perm: 0o666, flags: OpenFlags::READ_WRITE });
    }
    acts.into_iter().map(|act| Step { who: Who::Root, act }).collect()
}

pub(super) fn path(calls: Calls) -> BoxedStrategy<String> {
    let name = prop_oneof![
        30 => prop::sample::select(vec!["a", "b", "c"]).prop_map(String::from),
        1 => Just("n".repeat(255)),
        1 => Just("n".repeat(256)),
        1 => Just("naïve name".to_string()),
    ];
    let shallow = prop::collection::vec(name.clone(), 1..=1);
    let names = if calls.has(Calls::DIRECTORIES) {
        prop_oneof![5 => shallow, 3 => prop::collection::vec(name, 2..=3)].boxed()
    } else {
        shallow.boxed()
    };
    names.prop_map(|names| names.join("/")).boxed()
}

fn perm(calls: Calls) -> impl Strategy<Value = u16> {
    let kept = if calls.has(Calls::SET_ID) { 0o7777 } else { 0o1777 };
    let odd = vec![0o755, 0o700, 0o644, 0o666, 0o070, 0o000, 0o1777, 0o2775, 0o2755, 0o4755, 0o6777];
    prop_oneof![2 => Just(0o777), 1 => prop::sample::select(odd)].prop_map(move |perm: u16| perm & kept)
}

fn flags() -> impl Strategy<Value = OpenFlags> {
    prop_oneof![
        8 => Just(OpenFlags::READ_WRITE),
        2 => Just(OpenFlags::READ),
        1 => Just(OpenFlags::WRITE),
        1 => Just(OpenFlags { truncate: true, ..OpenFlags::READ_WRITE }),
        1 => Just(OpenFlags { direct: true, ..OpenFlags::READ_WRITE }),
        1 => Just(OpenFlags { truncate: true, ..OpenFlags::READ }),
    ]
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 0_u64..64,
        6 => (0_u64..6, 0_u64..8).prop_map(|(page, near)| (page * 4096 + near).saturating_sub(4)),
        2 => 0_u64..24_000,
        1 => 1_000_000_u64..3_000_000,
    ]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0_usize..20, 3 => 4090_usize..4102, 2 => 0_usize..14_000, 1 => Just(8192)]
}

/// For calls that want whole pages: mostly aligned.
fn page_offset() -> impl Strategy<Value = u64> {
    prop_oneof![8 => (0_u64..6).prop_map(|page| page * 4096), 1 => offset()]
}

fn names(calls: Calls) -> Vec<Choice> {
    let path = || path(calls);
    let create =
        (path(), perm(calls), flags()).prop_map(|(path, perm, flags)| Act::Create { path, perm, flags });
    let mut choices: Vec<Choice> = vec![
        (8, create.boxed()),
        (4, (path(), flags()).prop_map(|(path, flags)| Act::Open { path, flags }).boxed()),
        (3, any::<usize>().prop_map(|file| Act::Release { file }).boxed()),
        (4, path().prop_map(|path| Act::Unlink { path }).boxed()),
        (2, path().prop_map(|path| Act::Stat { path }).boxed()),
        (2, path().prop_map(|path| Act::ReadDir { path }).boxed()),
    ];
    // The kernel takes the set-id bits from a new directory's mode before an engine sees it.
    let kept = |kind| if kind == FileKind::Directory { 0o1777 } else { 0o7777 };
    let make = |kind| {
        (path(), perm(calls))
            .prop_map(move |(path, perm)| Act::Make { path, kind, perm: perm & kept(kind) })
            .boxed()
    };
    if calls.has(Calls::DIRECTORIES) {
        choices.push((6, make(FileKind::Directory)));
        choices.push((3, path().prop_map(|path| Act::Rmdir { path }).boxed()));
    }
    if calls.has(Calls::SPECIAL) {
        choices.push((1, make(FileKind::Fifo)));
        choices.push((1, make(FileKind::Regular)));
    }
    if calls.has(Calls::LINK) {
        choices.push((3, (path(), path()).prop_map(|(from, to)| Act::Link { from, to }).boxed()));
    }
    if calls.has(Calls::SYMLINK) {
        let target = prop_oneof![4 => path(), 1 => path().prop_map(|path| format!("/{path}")), 1 => Just(String::new())];
        choices.push((2, (path(), target).prop_map(|(path, target)| Act::Symlink { path, target }).boxed()));
        choices.push((1, path().prop_map(|path| Act::ReadLink { path }).boxed()));
    }
    if calls.has(Calls::TMPFILE) {
        let tmpfile = (prop_oneof![Just("/".to_string()), path()], perm(calls), flags(), any::<bool>());
        let make = |(path, perm, flags, linkable)| Act::TmpFile { path, perm, flags, linkable };
        choices.push((2, tmpfile.prop_map(make).boxed()));
    }
    if calls.has(Calls::TMPFILE) && calls.has(Calls::LINK) {
        choices.push((3, (any::<usize>(), path()).prop_map(|(file, to)| Act::LinkOpen { file, to }).boxed()));
    }
    let rename = |mode| (path(), path()).prop_map(move |(from, to)| Act::Rename { from, to, mode }).boxed();
    if calls.has(Calls::RENAME) {
        choices.push((6, rename(RenameMode::Replace)));
        choices.push((1, rename(RenameMode::NoReplace)));
    }
    if calls.has(Calls::EXCHANGE) {
        choices.push((2, rename(RenameMode::Exchange)));
    }
    choices
}

fn data(calls: Calls) -> Vec<Choice> {
    let file = any::<usize>;
    let write = (file(), offset(), len(), any::<u8>());
    let mut choices: Vec<Choice> = vec![
        (12, write.prop_map(|(file, offset, len, fill)| Act::Write { file, offset, len, fill }).boxed()),
        (
            6,
            (file(), offset(), len()).prop_map(|(file, offset, len)| Act::Read { file, offset, len }).boxed(),
        ),
        (1, file().prop_map(|file| Act::Fsync { file }).boxed()),
    ];
    if calls.has(Calls::APPEND) {
        let append =
            (file(), len(), any::<u8>()).prop_map(|(file, len, fill)| Act::Append { file, len, fill });
        choices.push((4, append.boxed()));
    }
    if calls.has(Calls::TRUNCATE) {
        let by_path =
            (path(calls), offset()).prop_map(|(path, size_bytes)| Act::Truncate { path, size_bytes });
        let open = (file(), offset()).prop_map(|(file, size_bytes)| Act::TruncateOpen { file, size_bytes });
        let beyond = (file(), prop::sample::select(vec![(1 << 48) + 1, u64::MAX]));
        choices.push((2, by_path.boxed()));
        choices.push((4, open.boxed()));
        choices
            .push((1, beyond.prop_map(|(file, size_bytes)| Act::TruncateOpen { file, size_bytes }).boxed()));
    }
    if calls.has(Calls::COPY) {
        let copy = (file(), offset(), file(), offset(), len());
        let act = |(file, offset, to, offset_to, len)| Act::CopyRange {
            file,
            offset,
            to,
            offset_to,
            len_bytes: len as u64,
        };
        choices.push((3, copy.prop_map(act).boxed()));
    }
    if calls.has(Calls::SEEK) {
        let target = prop::sample::select(vec![SeekTarget::Data, SeekTarget::Hole]);
        let seek =
            (file(), target, offset()).prop_map(|(file, target, offset)| Act::Seek { file, target, offset });
        choices.push((2, seek.boxed()));
    }
    let range = |op: BoxedStrategy<RangeOp>| {
        (
            file(),
            op,
            page_offset(),
            prop_oneof![1 => Just(4096), 1 => Just(8192), 2 => len().prop_map(|l| l as u64)],
        )
            .prop_map(|(file, op, offset, len_bytes)| Act::Fallocate { file, op, offset, len_bytes })
            .boxed()
    };
    if calls.has(Calls::ALLOCATE) {
        choices.push((2, range(any::<bool>().prop_map(|keep_size| RangeOp::Allocate { keep_size }).boxed())));
    }
    if calls.has(Calls::PUNCH) {
        choices.push((3, range(Just(RangeOp::Punch).boxed())));
    }
    if calls.has(Calls::ZERO) {
        choices.push((2, range(any::<bool>().prop_map(|keep_size| RangeOp::Zero { keep_size }).boxed())));
    }
    if calls.has(Calls::SHIFT) {
        choices.push((2, range(prop::sample::select(vec![RangeOp::Collapse, RangeOp::Insert]).boxed())));
    }
    choices
}

fn attributes(calls: Calls) -> Vec<Choice> {
    if !calls.has(Calls::ATTRIBUTES) {
        return Vec::new();
    }
    let path = || path(calls);
    let id = || prop::option::of(prop::sample::select(vec![0_u32, 1000, 1001]));
    let given = (0_i64..8).prop_map(|secs| SetTime::At(Time::from_parts(secs, 5)));
    let time = prop::option::of(prop_oneof![1 => Just(SetTime::Now), 3 => given]);
    vec![
        (3, (path(), perm(calls)).prop_map(|(path, perm)| Act::SetMode { path, perm }).boxed()),
        (2, (path(), id(), id()).prop_map(|(path, uid, gid)| Act::SetOwner { path, uid, gid }).boxed()),
        (
            2,
            (path(), time.clone(), time)
                .prop_map(|(path, atime, mtime)| Act::SetTimes { path, atime, mtime })
                .boxed(),
        ),
    ]
}
