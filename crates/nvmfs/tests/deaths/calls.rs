//! What the processes do that die.

use super::{Case, PAGE};
use crate::common::{Short, name, root};
use heddle_nvmfs::deaths::read_pinned;
use heddle_vfs::acl::{Acl, Entry, Tag};
use heddle_vfs::{
    FileKind, FileSystem, Ino, NewNode, OpenFlags, RangeOp, RenameMode, SetAttr, SetXattr, XattrName,
};

/// One bucket's names: six in its line, and two beside it. With a third one beside it a table grows (`names::table::grow`).
pub const CROWD: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
pub const GROWS: &str = "i";
/// The only names of a directory.
const PAIR: [&str; 2] = ["one", "two"];
pub const NAMES_A_NAMELESS: &str = "makes a nameless file and names it";
const CLEANS_FILE: &str = "cleans a file's log";
const CLEANS_DIRECTORY: &str = "cleans a directory's log";
/// Records of a log page.
const LOG_SLOTS: u32 = heddle_nvmfs::format::page::SLOTS;

pub type Call = (&'static str, fn(&Case));

/// What a process does before its call: those that clean close the second page of a log of its own, and the first one is cleaned away.
pub fn prepare(what: &str, case: &Case) {
    match what {
        CLEANS_FILE => overwrite(case, 2 * LOG_SLOTS - 7),
        CLEANS_DIRECTORY => {
            PAIR.iter().for_each(|text| case.fs().release(case.fs().new_file(case.dir, text)));
            exchange(case, LOG_SLOTS - 6);
        }
        _ => {}
    }
}

fn overwrite(case: &Case, times: u32) {
    (0..times).for_each(|_| _ = case.fs().write(&case.file, 0, &[0xdd; PAGE]).unwrap());
}

/// Two empty files: nobody sees it.
fn exchange(case: &Case, times: u32) {
    let [one, other] = PAIR.map(name);
    let exchange = |_| case.fs().rename(&root(), case.dir, one, case.dir, other, RenameMode::Exchange);
    (0..times).for_each(|n| exchange(n).unwrap());
}

pub const CALLS: &[Call] = &[
    ("overwrites a page", |case| _ = case.fs().write(&case.file, PAGE as u64, &[0xaa; PAGE]).unwrap()),
    ("writes across pages", |case| _ = case.fs().write(&case.file, 100, &[0xbb; 2 * PAGE]).unwrap()),
    ("appends", |case| _ = case.fs().append(&case.file, &[0xcc; 5000]).unwrap()),
    ("cuts in a page", |case| case.fs().resize(&case.file, 5000).unwrap()),
    ("punches", |case| case.fs().fallocate(&case.file, RangeOp::Punch, 50, 2 * PAGE as u64).unwrap()),
    ("reads with a pin", |case| {
        _ = read_pinned(case.fs(), &case.file, &mut [0; 3 * PAGE]).unwrap();
    }),
    ("creates", |case| drop(case.fs().new_file(Ino::ROOT, "new"))),
    ("unlinks", |case| case.fs().remove(Ino::ROOT, "old").unwrap()),
    ("renames in a directory", |case| {
        case.fs().replace((Ino::ROOT, "old"), (Ino::ROOT, "other")).unwrap();
    }),
    ("renames across directories", |case| {
        case.fs().replace((Ino::ROOT, "old"), (case.dir, "other")).unwrap();
    }),
    ("makes a directory", |case| {
        _ = case.fs().new_dir(Ino::ROOT, "new");
    }),
    ("removes a directory", |case| case.fs().rmdir(&root(), Ino::ROOT, name("empty")).unwrap()),
    ("replaces a file by a rename", |case| {
        case.fs().replace((Ino::ROOT, "old"), (case.crowd, CROWD[0])).unwrap();
    }),
    ("exchanges two names", |case| {
        let (to, mode) = (name(CROWD[0]), RenameMode::Exchange);
        case.fs().rename(&root(), Ino::ROOT, name("old"), case.crowd, to, mode).unwrap();
    }),
    ("links", |case| _ = case.fs().link(&root(), case.file.ino, Ino::ROOT, name("new")).unwrap()),
    ("makes a table grow", |case| case.fs().release(case.fs().new_file(case.crowd, GROWS))),
    ("allocates", |case| {
        let op = RangeOp::Allocate { keep_size: false };
        case.fs().fallocate(&case.file, op, 3 * PAGE as u64, 2 * PAGE as u64).unwrap();
    }),
    ("cuts a range out", |case| case.fs().fallocate(&case.file, RangeOp::Collapse, 0, PAGE as u64).unwrap()),
    ("inserts a range", |case| {
        case.fs().fallocate(&case.file, RangeOp::Insert, PAGE as u64, PAGE as u64).unwrap();
    }),
    ("changes the mode", |case| {
        let mode = SetAttr { perm: Some(0o604), ..SetAttr::default() };
        _ = case.fs().setattr(&root(), case.file.ino, None, &mode).unwrap();
    }),
    ("changes a directory's mode", |case| {
        let mode = SetAttr { perm: Some(0o705), ..SetAttr::default() };
        _ = case.fs().setattr(&root(), case.dir, None, &mode).unwrap();
    }),
    ("sets a directory's attribute", |case| {
        case.fs().setxattr(&root(), case.dir, attribute(), &[6; 5000], SetXattr::Any).unwrap();
    }),
    ("replaces an attribute", |case| {
        case.fs().setxattr(&root(), case.file.ino, attribute(), &[6; 5000], SetXattr::Any).unwrap();
    }),
    ("removes an attribute", |case| {
        case.fs().removexattr(&root(), case.file.ino, attribute()).unwrap();
    }),
    ("makes a symbolic link", |case| {
        let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"where" };
        _ = case.fs().make(&root(), Ino::ROOT, name("new"), node).unwrap();
    }),
    ("moves a directory", |case| {
        case.fs().replace((Ino::ROOT, "empty"), (case.crowd, GROWS)).unwrap();
    }),
    (NAMES_A_NAMELESS, |case| {
        let flags = OpenFlags::READ_WRITE;
        let file = case.fs().tmpfile(&root(), Ino::ROOT, 0o600, flags, true).unwrap().1;
        case.fs().link(&root(), file.ino, Ino::ROOT, name("new")).unwrap();
        case.fs().release(file);
    }),
    ("sets an access list", |case| {
        let list =
            [(Tag::Owner, 0), (Tag::User, 1000), (Tag::OwningGroup, 0), (Tag::Mask, 0), (Tag::Others, 0)];
        let list = Acl::new(list.map(|(tag, id)| Entry { tag, perm: 6, id }).to_vec()).unwrap().to_xattr();
        case.fs().setxattr(&root(), case.file.ino, XattrName::ACL_ACCESS, &list, SetXattr::Any).unwrap();
    }),
    ("zeroes a range", |case| {
        let op = RangeOp::Zero { keep_size: true };
        case.fs().fallocate(&case.file, op, 100, 2 * PAGE as u64).unwrap();
    }),
    ("cuts all", |case| case.fs().resize(&case.file, 0).unwrap()),
    (CLEANS_FILE, |case| overwrite(case, 4)),
    (CLEANS_DIRECTORY, |case| exchange(case, 4)),
    ("opens, unlinks and closes", |case| {
        let file = case.fs().open_file(Ino::ROOT, "old");
        case.fs().remove(Ino::ROOT, "old").unwrap();
        case.fs().release(file);
    }),
];

pub fn attribute() -> XattrName<'static> {
    XattrName::new(b"user.a").unwrap()
}
