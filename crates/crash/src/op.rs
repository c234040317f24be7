//! Operations of a workload: what a program does to a file system.

use heddle_vfs::acl::{Acl, Entry, Tag};
use heddle_vfs::{FileKind, RangeOp};
use std::fmt;

/// A file by its path, or by the name of a descriptor from an `open`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum File {
    /// Opened only for this operation.
    Path(String),
    /// Open since an earlier [`Op::Open`].
    Descriptor(String),
}

/// One operation. Its text is a line of the workload language (docs/crash.md).
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the fields are the words of the line")]
pub enum Op {
    Create { path: String },
    Mkdir { path: String },
    Mknod { path: String, kind: FileKind },
    Tmpfile { dir: String, name: String },
    Name { descriptor: String, path: String },
    Symlink { target: String, path: String },
    Link { from: String, to: String },
    Unlink { path: String },
    Rmdir { path: String },
    Rename { from: String, to: String },
    Exchange { from: String, to: String },
    Write { file: File, offset: u64, len: u64 },
    Append { file: File, len: u64 },
    Truncate { file: File, size: u64 },
    Fallocate { file: File, mode: RangeOp, offset: u64, len: u64 },
    SetXattr { path: String, name: String, value: String },
    RemoveXattr { path: String, name: String },
    List { path: String, kind: ListKind, list: Acl },
    Mode { path: String, perm: u16 },
    Owner { path: String, uid: u32, gid: u32 },
    Times { path: String, secs: u32 },
    Fsync { file: File },
    Sync,
    Open { path: String, name: String },
    Close { name: String },
    Remount,
}

/// An operation with its thread and line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The operation.
    pub op: Op,
    /// The thread: 0 is the rig's own.
    pub thread: u32,
    /// Line of the workload file, from 1; 0 if it comes from no file.
    pub line: usize,
}

/// How long logs may grow before their live records are logged again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Logs {
    /// As in any mount: several times the live records.
    #[default]
    Usual,
    /// Only to the size of the live records.
    Short,
}

/// The kind of an access list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListKind {
    /// The list of the file itself.
    Access,
    /// The default list: new files in the directory get it.
    Default,
}

/// A workload: first run without power cuts, then with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workload {
    /// Its name in reports.
    pub name: String,
    /// Steps before the first power cut.
    pub setup: Vec<Step>,
    /// Steps in which, and after which, the power is cut.
    pub watched: Vec<Step>,
    /// Size of the image in bytes; 0 for the smallest.
    pub image_bytes: u64,
    /// How long logs may grow.
    pub logs: Logs,
}

/// The kinds for `mknod`, by their words.
pub const KINDS: [(FileKind, &str); 4] = [
    (FileKind::Fifo, "fifo"),
    (FileKind::Socket, "socket"),
    (FileKind::CharDevice, "char"),
    (FileKind::BlockDevice, "block"),
];

/// The words of an access list's entries.
const TAGS: [(Tag, &str); 6] = [
    (Tag::Owner, "owner"),
    (Tag::User, "user"),
    (Tag::OwningGroup, "owning"),
    (Tag::Group, "group"),
    (Tag::Mask, "mask"),
    (Tag::Others, "others"),
];

/// Reads a list: `owner:6,user:7:4,owning:4,mask:4,others:0`.
pub fn read_list(text: &str) -> Option<Acl> {
    let entry = |word: &str| {
        let parts: Vec<&str> = word.split(':').collect();
        let (tag, id, perm) = match parts[..] {
            [tag, perm] => (tag, u32::MAX, perm),
            [tag, id, perm] => (tag, id.parse().ok()?, perm),
            _ => return None,
        };
        let (tag, _) = TAGS.iter().find(|(_, name)| *name == tag)?;
        Some(Entry { tag: *tag, perm: perm.parse().ok()?, id })
    };
    Acl::new(text.split(',').map(entry).collect::<Option<Vec<Entry>>>()?).ok()
}

/// The text that [`read_list`] reads.
fn list_text(list: &Acl) -> String {
    let entry = |entry: &Entry| {
        let name = TAGS.iter().find(|(tag, _)| *tag == entry.tag).map_or("", |(_, name)| name);
        let names_someone = matches!(entry.tag, Tag::User | Tag::Group);
        let id = if names_someone { format!(":{}", entry.id) } else { String::new() };
        format!("{name}{id}:{}", entry.perm)
    };
    list.entries().iter().map(entry).collect::<Vec<_>>().join(",")
}

/// The words of a range mode; the first one is printed.
pub const MODES: [(RangeOp, &[&str]); 7] = [
    (RangeOp::Allocate { keep_size: false }, &["allocate", "default", "0"]),
    (RangeOp::Allocate { keep_size: true }, &["keep", "keep-size"]),
    (RangeOp::Punch, &["punch", "punch-hole"]),
    (RangeOp::Zero { keep_size: false }, &["zero", "zero-range"]),
    (RangeOp::Zero { keep_size: true }, &["zero-keep", "zero-range-keep-size"]),
    (RangeOp::Collapse, &["collapse", "collapse-range"]),
    (RangeOp::Insert, &["insert", "insert-range"]),
];

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            File::Path(path) => f.write_str(&word(path)),
            File::Descriptor(name) => f.write_str(name),
        }
    }
}

/// A word as text: bytes that would end or change it are escaped.
fn word(text: &str) -> String {
    if text.is_empty() {
        return "{x*0}".into();
    }
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '#' | '\\' | '{' | '}' | '@' => out += &format!("\\x{:02x}", c as u32),
            c if c.is_whitespace() && (c as u32) < 256 => out += &format!("\\x{:02x}", c as u32),
            c => out.push(c),
        }
    }
    out
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create { path } => write!(f, "create {}", word(path)),
            Op::Mkdir { path } => write!(f, "mkdir {}", word(path)),
            Op::Mknod { path, kind } => {
                let name = KINDS.iter().find(|(known, _)| known == kind).map_or("fifo", |(_, name)| name);
                write!(f, "mknod {} {name}", word(path))
            }
            Op::Tmpfile { dir, name } => write!(f, "tmpfile {} {name}", word(dir)),
            Op::Name { descriptor, path } => write!(f, "name {descriptor} {}", word(path)),
            Op::Symlink { target, path } => write!(f, "symlink {} {}", word(target), word(path)),
            Op::Link { from, to } => write!(f, "link {} {}", word(from), word(to)),
            Op::Unlink { path } => write!(f, "unlink {}", word(path)),
            Op::Rmdir { path } => write!(f, "rmdir {}", word(path)),
            Op::Rename { from, to } => write!(f, "rename {} {}", word(from), word(to)),
            Op::Exchange { from, to } => write!(f, "exchange {} {}", word(from), word(to)),
            Op::Write { file, offset, len } => write!(f, "write {file} {offset} {len}"),
            Op::Append { file, len } => write!(f, "append {file} {len}"),
            Op::Truncate { file, size } => write!(f, "truncate {file} {size}"),
            Op::Fallocate { file, mode, offset, len } => {
                let name = MODES.iter().find(|(op, _)| op == mode).map_or("allocate", |(_, names)| names[0]);
                write!(f, "fallocate {file} {name} {offset} {len}")
            }
            Op::SetXattr { path, name, value } => {
                write!(f, "setxattr {} {} {}", word(path), word(name), word(value))
            }
            Op::RemoveXattr { path, name } => write!(f, "removexattr {} {}", word(path), word(name)),
            Op::List { path, kind, list } => {
                let kind = if *kind == ListKind::Access { "access" } else { "default" };
                write!(f, "list {} {kind} {}", word(path), list_text(list))
            }
            Op::Mode { path, perm } => write!(f, "mode {} {perm:04o}", word(path)),
            Op::Owner { path, uid, gid } => write!(f, "owner {} {uid} {gid}", word(path)),
            Op::Times { path, secs } => write!(f, "times {} {secs}", word(path)),
            Op::Fsync { file } => write!(f, "fsync {file}"),
            Op::Sync => f.write_str("sync"),
            Op::Open { path, name } => write!(f, "open {} {name}", word(path)),
            Op::Close { name } => write!(f, "close {name}"),
            Op::Remount => f.write_str("remount"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.thread != 0 {
            write!(f, "@{} ", self.thread)?;
        }
        self.op.fmt(f)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.image_bytes != 0 {
            writeln!(f, "image {}", self.image_bytes)?;
        }
        if self.logs == Logs::Short {
            writeln!(f, "logs short")?;
        }
        for step in &self.setup {
            writeln!(f, "{step}")?;
        }
        if !self.setup.is_empty() {
            writeln!(f, "watch")?;
        }
        for step in &self.watched {
            writeln!(f, "{step}")?;
        }
        Ok(())
    }
}
