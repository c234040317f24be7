//! What runs while the power is cut.

use heddle_vfs::acl::{Acl, Entry, Tag};
use heddle_vfs::testkit::Act;
use heddle_vfs::{FileKind, OpenFlags, RangeOp, RenameMode, SetTime, SetXattr, Time};

/// Calls that are made first, and calls during which the power is cut. Files are numbered in the order of their creation.
pub struct Workload {
    pub name: &'static str,
    pub prefix: Vec<Act>,
    pub watched: Vec<Act>,
}

const PAGE: usize = 4096;

fn create(path: &str) -> Act {
    Act::Create { path: path.into(), perm: 0o644, flags: OpenFlags::READ_WRITE }
}

fn mkdir(path: &str) -> Act {
    Act::Make { path: path.into(), kind: FileKind::Directory, perm: 0o755 }
}

fn write(file: usize, offset: usize, len: usize, fill: u8) -> Act {
    Act::Write { file, offset: offset as u64, len, fill }
}

fn append(len: usize, fill: u8) -> Act {
    Act::Append { file: 0, len, fill }
}

fn truncate(size_bytes: usize) -> Act {
    Act::TruncateOpen { file: 0, size_bytes: size_bytes as u64 }
}

fn range(op: RangeOp, offset: usize, len: usize) -> Act {
    Act::Fallocate { file: 0, op, offset: offset as u64, len_bytes: len as u64 }
}

fn unlink(path: &str) -> Act {
    Act::Unlink { path: path.into() }
}

fn rename(from: &str, to: &str) -> Act {
    Act::Rename { from: from.into(), to: to.into(), mode: RenameMode::Replace }
}

fn exchange(from: &str, to: &str) -> Act {
    Act::Rename { from: from.into(), to: to.into(), mode: RenameMode::Exchange }
}

fn link(from: &str, to: &str) -> Act {
    Act::Link { from: from.into(), to: to.into() }
}

fn times(path: &str, secs: i64) -> Act {
    let at = Some(SetTime::At(Time::from_parts(secs, 7)));
    Act::SetTimes { path: path.into(), atime: at, mtime: at }
}

/// A file of five pages and a bit.
fn file() -> Vec<Act> {
    vec![create("/f"), write(0, 0, 5 * PAGE + 700, 3)]
}

fn after(mut first: Vec<Act>, then: Vec<Act>) -> Vec<Act> {
    first.extend(then);
    first
}

/// Free space in single blocks, but for a few.
fn fragmented() -> Vec<Act> {
    let mut acts = vec![create("/f"), write(0, 0, 2 * PAGE, 9), create("/ballast")];
    acts.extend((0..9).map(|i| write(1, i * 100 * PAGE, 100 * PAGE, i as u8)));
    for page in (0..900).step_by(2) {
        let (offset, len_bytes) = ((page * PAGE) as u64, PAGE as u64);
        acts.push(Act::Fallocate { file: 1, op: RangeOp::Punch, offset, len_bytes });
    }
    acts
}

/// A log whose last page has few free slots, and old pages with nothing alive but the newest write of each page.
fn long_log(writes: usize) -> Vec<Act> {
    after(file(), (0..writes).map(|i| write(0, i % 4 * PAGE, PAGE, i as u8)).collect())
}

fn tree() -> Vec<Act> {
    vec![
        mkdir("/a"),
        mkdir("/b"),
        create("/a/f"),
        write(0, 10, 5000, 1),
        create("/b/g"),
        write(1, 0, 9000, 2),
    ]
}

/// Each call is made by a thread of its own, which stays and keeps its chains of the logs: more than an inode's slot has heads for.
pub fn workloads_of_threads() -> Vec<Workload> {
    vec![
        Workload {
            name: "write, each by another thread",
            prefix: vec![create("/f")],
            watched: (0..9).map(|i| write(0, i * 3000, 5000, 40 + i as u8)).collect(),
        },
        Workload {
            name: "change names, each by another thread",
            prefix: vec![mkdir("/d")],
            watched: vec![
                create("/a"),
                create("/b"),
                rename("/a", "/c"),
                unlink("/b"),
                create("/b"),
                rename("/c", "/d/c"),
                link("/d/c", "/e"),
                unlink("/d/c"),
                rename("/e", "/b"),
            ],
        },
    ]
}

pub fn workloads() -> Vec<Workload> {
    let all = [data(), sizes(), ranges(), names(), renames(), logs(), xattrs(), unnamed(), shifts()];
    all.into_iter().flatten().collect()
}

fn data() -> Vec<Workload> {
    vec![
        Workload { name: "first write", prefix: vec![create("/f")], watched: vec![write(0, 0, PAGE, 5)] },
        Workload { name: "aligned write", prefix: file(), watched: vec![write(0, PAGE, 2 * PAGE, 90)] },
        Workload { name: "write inside a page", prefix: file(), watched: vec![write(0, PAGE + 13, 99, 90)] },
        Workload { name: "write across pages", prefix: file(), watched: vec![write(0, 1000, 2 * PAGE, 90)] },
        Workload {
            name: "write across a hole",
            prefix: after(file(), vec![range(RangeOp::Punch, PAGE, 2 * PAGE)]),
            watched: vec![write(0, 100, 4 * PAGE, 90)],
        },
        Workload {
            name: "write far beyond the end",
            prefix: file(),
            watched: vec![write(0, 20 * PAGE + 5, 5000, 90), write(0, 10 * PAGE, 100, 91)],
        },
        Workload {
            name: "append",
            prefix: file(),
            watched: vec![append(100, 90), append(PAGE, 91), append(3 * PAGE - 800, 92)],
        },
        Workload {
            name: "overwrite twice",
            prefix: file(),
            watched: vec![write(0, 0, PAGE, 90), write(0, 0, PAGE, 91)],
        },
        Workload {
            name: "write in many pieces",
            prefix: fragmented(),
            watched: vec![write(0, PAGE, 80 * PAGE, 90)],
        },
        Workload {
            name: "write in some pieces",
            prefix: fragmented(),
            watched: vec![write(0, PAGE + 7, 12 * PAGE, 90)],
        },
    ]
}

fn sizes() -> Vec<Workload> {
    let open_truncated =
        Act::Open { path: "/f".into(), flags: OpenFlags { truncate: true, ..OpenFlags::READ_WRITE } };
    vec![
        Workload {
            name: "truncate up",
            prefix: file(),
            watched: vec![truncate(9 * PAGE + 1), write(0, 9 * PAGE, 9, 1)],
        },
        Workload { name: "truncate to a page", prefix: file(), watched: vec![truncate(2 * PAGE)] },
        Workload {
            name: "truncate into a page and back",
            prefix: file(),
            watched: vec![truncate(2 * PAGE + 100), truncate(5 * PAGE), write(0, 4 * PAGE, 10, 99)],
        },
        Workload { name: "truncate to nothing", prefix: file(), watched: vec![truncate(0), append(50, 77)] },
        Workload {
            name: "open that truncates",
            prefix: file(),
            watched: vec![open_truncated, append(50, 77)],
        },
        Workload {
            name: "truncate, write, truncate",
            prefix: file(),
            watched: vec![
                truncate(100),
                write(0, 3 * PAGE, 100, 8),
                truncate(3 * PAGE + 50),
                truncate(6 * PAGE),
            ],
        },
    ]
}

fn ranges() -> Vec<Workload> {
    let (allocate, keep) = (RangeOp::Allocate { keep_size: false }, RangeOp::Allocate { keep_size: true });
    vec![
        Workload {
            name: "punch pages",
            prefix: file(),
            watched: vec![range(RangeOp::Punch, PAGE, 2 * PAGE)],
        },
        Workload {
            name: "punch within a page",
            prefix: file(),
            watched: vec![range(RangeOp::Punch, PAGE + 9, 500)],
        },
        Workload {
            name: "punch with ragged edges",
            prefix: file(),
            watched: vec![range(RangeOp::Punch, 77, 3 * PAGE)],
        },
        Workload {
            name: "punch the end, then write before it",
            prefix: file(),
            watched: vec![
                range(RangeOp::Punch, 4 * PAGE, 2 * PAGE),
                write(0, 0, PAGE, 1),
                truncate(8 * PAGE),
            ],
        },
        Workload {
            name: "zero",
            prefix: file(),
            watched: vec![
                range(RangeOp::Zero { keep_size: true }, 50, PAGE),
                range(RangeOp::Zero { keep_size: false }, 4 * PAGE, 4 * PAGE),
            ],
        },
        Workload {
            name: "allocate",
            prefix: file(),
            watched: vec![
                range(keep, 3 * PAGE, 6 * PAGE),
                range(allocate, 7 * PAGE, 4 * PAGE),
                write(0, 8 * PAGE + 5, 100, 4),
            ],
        },
        Workload {
            name: "allocate between pages",
            prefix: vec![
                create("/f"),
                write(0, 0, PAGE, 1),
                write(0, 2 * PAGE, PAGE, 2),
                write(0, 4 * PAGE, PAGE, 3),
            ],
            watched: vec![range(keep, 0, 6 * PAGE), write(0, PAGE, 2 * PAGE, 9)],
        },
    ]
}

fn names() -> Vec<Workload> {
    let symlink = |path: &str, target: &str| Act::Symlink { path: path.into(), target: target.into() };
    let long = format!("/{}", "n".repeat(255));
    vec![
        Workload { name: "create", prefix: vec![], watched: vec![create("/a"), create("/b")] },
        Workload {
            name: "create with the longest name",
            prefix: tree(),
            watched: vec![create(&long), unlink(&long)],
        },
        Workload {
            name: "create in a directory",
            prefix: tree(),
            watched: vec![create("/a/new"), write(2, 5, 10, 1)],
        },
        Workload {
            name: "mkdir",
            prefix: tree(),
            watched: vec![mkdir("/d"), mkdir("/d/e"), create("/d/e/f")],
        },
        Workload {
            name: "rmdir",
            prefix: after(tree(), vec![mkdir("/d")]),
            watched: vec![Act::Rmdir { path: "/d".into() }],
        },
        Workload {
            name: "unlink",
            prefix: after(tree(), vec![Act::Release { file: 0 }]),
            watched: vec![unlink("/a/f"), create("/a/f")],
        },
        Workload {
            name: "unlink an open file",
            prefix: tree(),
            watched: vec![unlink("/a/f"), write(0, 0, PAGE, 1)],
        },
        Workload {
            name: "unlink, then use its space",
            prefix: vec![create("/x"), write(0, 0, 9000, 1), create("/y"), Act::Release { file: 0 }],
            watched: vec![unlink("/x"), write(0, 0, 20_000, 2), create("/x"), write(1, 0, 5000, 3)],
        },
        Workload {
            name: "links",
            prefix: tree(),
            watched: vec![link("/a/f", "/b/l"), unlink("/a/f"), unlink("/b/l")],
        },
        Workload {
            name: "symlink",
            prefix: tree(),
            watched: vec![symlink("/s", "a/f"), symlink("/a/t", &"../b/g/".repeat(90))],
        },
        Workload {
            name: "attributes",
            prefix: tree(),
            watched: vec![
                Act::SetMode { path: "/a/f".into(), perm: 0o4711 },
                Act::SetOwner { path: "/a/f".into(), uid: Some(7), gid: Some(8) },
                times("/a/f", 4),
                Act::SetMode { path: "/a".into(), perm: 0o700 },
                times("/a", 5),
                write(0, 0, 10, 1),
            ],
        },
    ]
}

fn renames() -> Vec<Workload> {
    vec![
        Workload { name: "rename in a directory", prefix: tree(), watched: vec![rename("/a/f", "/a/h")] },
        Workload {
            name: "rename over a file",
            prefix: after(tree(), vec![create("/a/h"), write(2, 0, 6000, 5), Act::Release { file: 2 }]),
            watched: vec![rename("/a/f", "/a/h")],
        },
        Workload {
            name: "rename over an open file",
            prefix: tree(),
            watched: vec![rename("/a/f", "/b/g"), create("/a/f")],
        },
        Workload {
            name: "rename across directories",
            prefix: tree(),
            watched: vec![rename("/a/f", "/b/f"), create("/a/f"), rename("/b/f", "/a/f")],
        },
        Workload {
            name: "rename a directory",
            prefix: after(tree(), vec![mkdir("/a/d"), create("/a/d/x")]),
            watched: vec![
                rename("/a/d", "/a/e"),
                rename("/a/e", "/b/d"),
                rename("/b", "/a/b"),
                create("/a/b/d/y"),
            ],
        },
        Workload {
            name: "rename over an empty directory",
            prefix: after(tree(), vec![mkdir("/b/d"), mkdir("/e")]),
            watched: vec![rename("/e", "/b/d"), mkdir("/e"), rename("/a", "/e")],
        },
        Workload {
            name: "exchange",
            prefix: after(tree(), vec![create("/a/h")]),
            watched: vec![exchange("/a/f", "/a/h"), exchange("/a/f", "/b/g"), exchange("/a", "/b/g")],
        },
        Workload {
            name: "rename, then remove the old directory",
            prefix: vec![mkdir("/a"), mkdir("/b"), create("/a/f"), Act::Release { file: 0 }],
            watched: vec![
                rename("/a/f", "/b/f"),
                Act::Rmdir { path: "/a".into() },
                unlink("/b/f"),
                mkdir("/a"),
            ],
        },
    ]
}

fn logs() -> Vec<Workload> {
    let many_names = |count: usize| -> Vec<Act> {
        (0..count)
            .flat_map(|i| [Act::Make { path: format!("/n{i}"), kind: FileKind::Fifo, perm: 0o600 }])
            .collect()
    };
    vec![
        Workload {
            name: "write that crosses a log page",
            prefix: long_log(60),
            watched: (0..4).map(|i| write(0, i * 1000, PAGE, 100 + i as u8)).collect(),
        },
        Workload {
            name: "write that cleans the log",
            prefix: long_log(4 * 63 - 4),
            watched: (0..6).map(|i| write(0, i % 3 * PAGE, PAGE, 100 + i as u8)).collect(),
        },
        Workload {
            name: "truncate that cleans the log",
            prefix: long_log(4 * 63 - 3),
            watched: vec![truncate(PAGE), truncate(0), truncate(PAGE + 1), truncate(100), append(10, 1)],
        },
        Workload {
            name: "names that cross a log page",
            prefix: many_names(62),
            watched: vec![create("/x"), unlink("/n1"), rename("/n2", "/n3"), create("/y")],
        },
        Workload {
            name: "names that clean the log",
            prefix: after(
                many_names(3),
                (0..62).flat_map(|_| [create("/t"), unlink("/t"), Act::Release { file: 0 }]).collect(),
            ),
            watched: vec![create("/x"), unlink("/n1"), rename("/n2", "/x"), create("/y"), mkdir("/z")],
        },
        Workload {
            name: "attributes that clean the log",
            prefix: after(
                file(),
                (0..186).map(|i| Act::SetMode { path: "/f".into(), perm: 0o600 + i % 8 }).collect(),
            ),
            watched: vec![
                Act::SetMode { path: "/f".into(), perm: 0o755 },
                times("/f", 6),
                append(10, 1),
                Act::SetMode { path: "/f".into(), perm: 0o711 },
            ],
        },
    ]
}

fn set_xattr(path: &str, name: &str, len: usize, fill: u8) -> Act {
    Act::SetXattr { path: path.into(), name: name.into(), value: vec![fill; len], how: SetXattr::Any }
}

fn remove_xattr(path: &str, name: &str) -> Act {
    Act::RemoveXattr { path: path.into(), name: name.into() }
}

/// A list that gives user 1000 what `mask` allows.
fn set_list(path: &str, name: &str, mask: u8) -> Act {
    let entry = |tag, perm, id| Entry { tag, perm, id };
    let acl = Acl::new(vec![
        entry(Tag::Owner, 7, 0),
        entry(Tag::User, 7, 1000),
        entry(Tag::OwningGroup, 5, 0),
        entry(Tag::Mask, mask, 0),
        entry(Tag::Others, 1, 0),
    ]);
    let value = acl.unwrap().to_xattr();
    Act::SetXattr { path: path.into(), name: name.into(), value, how: SetXattr::Any }
}

fn xattrs() -> Vec<Workload> {
    vec![
        Workload {
            name: "set an attribute",
            prefix: file(),
            watched: vec![set_xattr("/f", "user.a", 30, 1), set_xattr("/f", "trusted.b", 0, 0)],
        },
        Workload {
            name: "replace an attribute of many blocks",
            prefix: after(file(), vec![set_xattr("/f", "user.a", 65_000, 1)]),
            watched: vec![set_xattr("/f", "user.a", 20_000, 2), set_xattr("/f", "user.a", 60_000, 3)],
        },
        Workload {
            name: "remove attributes",
            prefix: after(
                file(),
                vec![set_xattr("/f", "user.a", 9000, 1), set_xattr("/f", "security.b", 10, 2)],
            ),
            watched: vec![
                remove_xattr("/f", "user.a"),
                remove_xattr("/f", "security.b"),
                write(0, 0, 3 * PAGE, 9),
            ],
        },
        Workload {
            name: "attributes of a directory",
            prefix: tree(),
            watched: vec![
                set_xattr("/a", "user.a", 5000, 1),
                create("/a/g"),
                set_xattr("/a", "user.a", 50, 2),
                remove_xattr("/a", "user.a"),
            ],
        },
        Workload {
            name: "access lists and modes",
            prefix: file(),
            watched: vec![
                set_list("/f", "system.posix_acl_access", 6),
                Act::SetMode { path: "/f".into(), perm: 0o640 },
                set_list("/f", "system.posix_acl_access", 7),
                truncate(PAGE),
                remove_xattr("/f", "system.posix_acl_access"),
            ],
        },
        Workload {
            name: "create below a default list",
            prefix: vec![mkdir("/d"), set_list("/d", "system.posix_acl_default", 7)],
            watched: vec![create("/d/f"), mkdir("/d/e"), create("/d/e/f")],
        },
        Workload {
            name: "attributes, then the end of the file",
            prefix: vec![
                create("/x"),
                set_xattr("/x", "user.a", 9000, 1),
                create("/y"),
                Act::Release { file: 0 },
            ],
            watched: vec![
                unlink("/x"),
                write(0, 0, 20_000, 2),
                create("/x"),
                set_xattr("/x", "user.b", 9, 2),
            ],
        },
        Workload {
            name: "attributes that clean the log, with a list among them",
            prefix: after(file(), (0..100).map(|i| set_xattr("/f", "user.a", 10, i)).collect()),
            watched: vec![
                set_xattr("/f", "user.a", 10, 200),
                Act::SetMode { path: "/f".into(), perm: 0o755 },
                set_list("/f", "system.posix_acl_access", 4),
                append(10, 1),
            ],
        },
        Workload {
            name: "attributes in a log that is cleaned",
            prefix: after(
                vec![create("/f"), set_xattr("/f", "user.a", 700, 1)],
                (0..4 * 63 - 6).map(|i| write(0, i % 4 * PAGE, PAGE, i as u8)).collect(),
            ),
            watched: (0..8).map(|i| write(0, i % 3 * PAGE, PAGE, 100 + i as u8)).collect(),
        },
    ]
}

fn unnamed() -> Vec<Workload> {
    let tmpfile =
        || Act::TmpFile { path: "/".into(), perm: 0o600, flags: OpenFlags::READ_WRITE, linkable: true };
    let link_open = |file, to: &str| Act::LinkOpen { file, to: to.into() };
    vec![
        Workload {
            name: "name a file made without a name",
            prefix: vec![tmpfile()],
            watched: vec![
                write(0, 0, 2 * PAGE + 5, 1),
                link_open(0, "/named"),
                append(10, 2),
                link_open(0, "/again"),
            ],
        },
        Workload {
            name: "make a file without a name and name it",
            prefix: tree(),
            watched: vec![
                tmpfile(),
                write(2, 0, 50, 1),
                link_open(2, "/a/n"),
                unlink("/a/n"),
                create("/a/n"),
            ],
        },
        Workload {
            name: "forget a file made without a name",
            prefix: vec![tmpfile(), write(0, 0, 9 * PAGE, 1), create("/f")],
            watched: vec![Act::Release { file: 0 }, write(0, 0, 9 * PAGE, 2)],
        },
    ]
}

fn shifts() -> Vec<Workload> {
    let (cut, insert) = (RangeOp::Collapse, RangeOp::Insert);
    vec![
        Workload {
            name: "cut a range out",
            prefix: file(),
            watched: vec![range(cut, PAGE, 2 * PAGE), append(9, 1)],
        },
        Workload {
            name: "cut the start out",
            prefix: file(),
            watched: vec![range(cut, 0, 4 * PAGE), truncate(PAGE)],
        },
        Workload {
            name: "insert a range",
            prefix: file(),
            watched: vec![range(insert, 2 * PAGE, 3 * PAGE), write(0, 3 * PAGE, PAGE, 7)],
        },
        Workload {
            name: "insert, cut out, insert",
            prefix: file(),
            watched: vec![
                range(insert, 0, PAGE),
                range(cut, 2 * PAGE, PAGE),
                range(insert, 4 * PAGE, 70 * PAGE),
                write(0, 0, 3 * PAGE, 8),
                range(cut, PAGE, 60 * PAGE),
            ],
        },
        Workload {
            name: "shift holes and allocated pages",
            prefix: after(
                file(),
                vec![
                    range(RangeOp::Punch, 2 * PAGE, PAGE),
                    range(RangeOp::Allocate { keep_size: true }, 6 * PAGE, 3 * PAGE),
                    write(0, 12 * PAGE, 100, 5),
                ],
            ),
            watched: vec![range(cut, PAGE, PAGE), range(insert, PAGE, 2 * PAGE), range(cut, 0, 11 * PAGE)],
        },
        Workload {
            name: "shift a file in many pieces",
            prefix: after(fragmented(), vec![write(0, PAGE, 80 * PAGE, 90)]),
            watched: vec![range(cut, 2 * PAGE, 3 * PAGE), range(insert, 5 * PAGE, PAGE)],
        },
        Workload {
            name: "shifts that clean the log",
            prefix: after(
                file(),
                (0..70)
                    .flat_map(|i| [range(insert, i % 4 * PAGE, PAGE), range(cut, i % 3 * PAGE, PAGE)])
                    .collect(),
            ),
            watched: vec![
                range(insert, PAGE, PAGE),
                range(cut, 2 * PAGE, PAGE),
                write(0, 0, 4 * PAGE, 50),
                range(insert, 0, PAGE),
            ],
        },
    ]
}
