//! A whole file system as a value.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::{
    Attr, Cookie, Cred, Error, FileKind, FileSystem, Handle, Ino, OpenFlags, Result, Time, XattrName,
};

/// A file is read in pieces of this many bytes; pieces of zeros alone are left out.
const PIECE_BYTES: usize = 4096;
const ZEROS: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

/// The time, if a test has set it: tests set only times within 1970-01-01. `None` for a time from a clock, which is later.
pub fn time_if_set_by_test(time: Time) -> Option<Time> {
    (0..86_400).contains(&time.secs()).then_some(time)
}

/// All names of a file system, from the root down, and what they name.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Tree {
    /// By path (`/a/b`; the root is `/`).
    pub nodes: BTreeMap<Vec<u8>, Node>,
}

/// What a name names. Times that come from a clock, allocated space and sizes of directories are not part of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// Its kind.
    pub kind: FileKind,
    /// Mode bits without the kind.
    pub perm: u16,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Size; 0 for a directory.
    pub size_bytes: u64,
    /// Modification time if it was set, `None` if a clock gave it.
    pub mtime: Option<Time>,
    /// The first path that names the same inode.
    pub first_name: Vec<u8>,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content in pieces by number (offset / 4096); those of zeros alone are left out.
    pub pieces: BTreeMap<u64, Vec<u8>>,
}

impl Tree {
    /// Reads everything, as root.
    ///
    /// # Errors
    /// Those of the engine: a tree that cannot be read whole is a finding, so none is passed over.
    pub fn of(fs: &dyn FileSystem) -> Result<Tree> {
        let mut tree = Tree::default();
        let mut first_names = BTreeMap::new();
        tree.add(fs, b"/".to_vec(), fs.getattr(Ino::ROOT)?, &mut first_names)?;
        Ok(tree)
    }

    fn add(
        &mut self,
        fs: &dyn FileSystem,
        path: Vec<u8>,
        attr: Attr,
        first_names: &mut BTreeMap<Ino, Vec<u8>>,
    ) -> Result<()> {
        let first_name = first_names.entry(attr.ino).or_insert_with(|| path.clone()).clone();
        let mut node = Node {
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size_bytes: if attr.kind == FileKind::Directory { 0 } else { attr.size_bytes },
            mtime: time_if_set_by_test(attr.mtime),
            first_name,
            target: Vec::new(),
            xattrs: xattrs(fs, attr.ino)?,
            pieces: BTreeMap::new(),
        };
        match attr.kind {
            FileKind::Regular => node.pieces = content(fs, &attr)?,
            FileKind::Symlink => node.target = fs.readlink(attr.ino)?,
            _ => {}
        }
        self.nodes.insert(path.clone(), node);
        if attr.kind == FileKind::Directory {
            for name in names(fs, attr.ino)? {
                let child = fs.lookup(&Cred::root(), attr.ino, crate::Name::new(&name)?)?;
                let slash: &[u8] = if path == b"/" { b"" } else { b"/" };
                self.add(fs, [&path[..], slash, &name].concat(), child, first_names)?;
            }
        }
        Ok(())
    }

    /// The first difference in words, if there is one.
    pub fn difference(&self, wanted: &Tree) -> Option<String> {
        let paths = self.nodes.keys().chain(wanted.nodes.keys());
        let mut paths: Vec<_> = paths.collect();
        paths.sort();
        paths.into_iter().find_map(|path| {
            let shown = String::from_utf8_lossy(path);
            match (self.nodes.get(path), wanted.nodes.get(path)) {
                (Some(_), None) => Some(format!("{shown} exists and should not")),
                (None, Some(_)) => Some(format!("{shown} is missing")),
                (Some(is), Some(wanted)) => is.difference(wanted).map(|text| format!("{shown}: {text}")),
                (None, None) => None,
            }
        })
    }
}

impl Node {
    fn facts(&self) -> [(&'static str, String); 10] {
        [
            ("kind", format!("{:?}", self.kind)),
            ("mode", format!("{:o}", self.perm)),
            ("links", self.nlink.to_string()),
            ("owner", format!("{}:{}", self.uid, self.gid)),
            ("device", self.rdev.to_string()),
            ("size", self.size_bytes.to_string()),
            ("mtime", format!("{:?}", self.mtime)),
            ("first name", String::from_utf8_lossy(&self.first_name).into_owned()),
            ("target", String::from_utf8_lossy(&self.target).into_owned()),
            ("attributes", shown(&self.xattrs)),
        ]
    }

    fn difference(&self, wanted: &Node) -> Option<String> {
        let mut text = String::new();
        for ((what, is), (_, should)) in self.facts().iter().zip(wanted.facts()) {
            if *is != should {
                let _ = write!(text, "{what} is {is}, should be {should}; ");
            }
        }
        if let Some(offset) = first_different_byte(&self.pieces, &wanted.pieces) {
            let _ = write!(text, "content differs from byte {offset} on; ");
        }
        (!text.is_empty()).then_some(text)
    }
}

fn first_different_byte(a: &BTreeMap<u64, Vec<u8>>, b: &BTreeMap<u64, Vec<u8>>) -> Option<u64> {
    let byte = |pieces: &BTreeMap<u64, Vec<u8>>, piece, at: usize| {
        pieces.get(&piece).and_then(|bytes| bytes.get(at)).copied().unwrap_or(0)
    };
    let piece = *a.keys().chain(b.keys()).filter(|piece| a.get(piece) != b.get(piece)).min()?;
    let at = (0..PIECE_BYTES).find(|at| byte(a, piece, *at) != byte(b, piece, *at)).unwrap_or(0);
    Some(piece * PIECE_BYTES as u64 + at as u64)
}

/// Opens, uses, gives back.
fn with_open<T>(fs: &dyn FileSystem, ino: Ino, work: impl FnOnce(&Handle) -> Result<T>) -> Result<T> {
    let handle = fs.open(&Cred::root(), ino, OpenFlags::READ)?;
    let result = work(&handle);
    fs.release(handle);
    result
}

/// Extended attributes; none if the engine has none.
fn xattrs(fs: &dyn FileSystem, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let list = match fs.listxattr(&Cred::root(), ino) {
        Err(Error::NotSupported(_)) => return Ok(BTreeMap::new()),
        list => list?,
    };
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name| fs.getxattr(&Cred::root(), ino, XattrName::new(name)?);
    names.map(|name| Ok((name.to_vec(), value(name)?))).collect()
}

fn shown(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> String {
    let one = |(name, value): (&Vec<u8>, &Vec<u8>)| {
        let start = value.iter().take(64).map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{}={start} ({} bytes)", String::from_utf8_lossy(name), value.len())
    };
    xattrs.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn names(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<Vec<u8>>> {
    with_open(fs, dir, |handle| {
        let mut names = Vec::new();
        fs.each_entry(handle, Cookie::default(), &mut |entry| {
            names.push(entry.name.bytes().to_vec());
            true
        })?;
        names.sort();
        Ok(names)
    })
}

fn content(fs: &dyn FileSystem, attr: &Attr) -> Result<BTreeMap<u64, Vec<u8>>> {
    with_open(fs, attr.ino, |handle| {
        let mut pieces = BTreeMap::new();
        let mut piece = vec![0; PIECE_BYTES];
        for number in 0..attr.size_bytes.div_ceil(PIECE_BYTES as u64) {
            let len = fs.read(handle, number * PIECE_BYTES as u64, &mut piece)?;
            // As a whole: byte by byte takes most of the time of a rig.
            if piece[..len] != ZEROS[..len] {
                pieces.insert(number, piece[..len].to_vec());
            }
        }
        Ok(pieces)
    })
}
