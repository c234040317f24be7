//! Reads a mounted file system, with bounds: a forged image may claim more of everything than anybody can read.

use heddle_vfs::{
    Cookie, Cred, Error, FileKind, FileSystem, Handle, Ino, Name, OpenFlags, Result, SeekTarget, XattrName,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};

/// Names at most.
const NAMES_MAX: usize = 3000;
/// Bytes that are read of a file, at its begin and behind each of its first holes.
const PIECE_BYTES: usize = 64 << 10;
/// Runs of data that are read of a file.
const RUNS_MAX: usize = 40;

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content {
    /// Size in bytes.
    pub size: u64,
    /// Hash of what was read.
    pub hash: u64,
}

/// What was found.
#[derive(Default)]
pub struct Walk {
    /// Directories and names in them, the deepest first.
    pub names: Vec<(Ino, Vec<u8>, FileKind)>,
    /// Regular files and symbolic links.
    pub files: BTreeMap<Ino, Content>,
    /// Errors, by the first word of their form.
    pub errors: BTreeSet<String>,
}

impl Walk {
    /// Walks all of it.
    pub fn of(fs: &dyn FileSystem) -> Walk {
        let mut walk = Walk::default();
        let mut met = BTreeSet::from([Ino::ROOT]);
        let mut dirs = vec![Ino::ROOT];
        while let Some(dir) = dirs.pop() {
            let listed = walk.note(names(fs, dir)).unwrap_or_default();
            for (name, kind) in listed {
                if walk.names.len() >= NAMES_MAX {
                    return walk;
                }
                let found = Name::new(&name).and_then(|name| fs.lookup(&Cred::root(), dir, name));
                walk.names.push((dir, name, kind));
                let Some(attr) = walk.note(found) else { continue };
                if met.insert(attr.ino) {
                    walk.note(attributes(fs, attr.ino));
                    match attr.kind {
                        FileKind::Directory => dirs.push(attr.ino),
                        FileKind::Regular | FileKind::Symlink => {
                            if let Some(content) = walk.note(content(fs, attr.ino, attr.kind)) {
                                walk.files.insert(attr.ino, content);
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        walk.names.reverse();
        walk
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        if let Err(error) = &result {
            self.errors.insert(kind(error));
        }
        result.ok()
    }
}

/// What sort of error it is.
pub fn kind(error: &impl std::fmt::Debug) -> String {
    format!("{error:?}").chars().take_while(char::is_ascii_alphabetic).collect()
}

fn names(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<(Vec<u8>, FileKind)>> {
    let handle = fs.open(&Cred::root(), dir, OpenFlags::READ)?;
    let mut names = Vec::new();
    let done = fs.each_entry(&handle, Cookie::default(), &mut |entry| {
        names.push((entry.name.bytes().to_vec(), entry.kind));
        names.len() < NAMES_MAX
    });
    fs.release(handle);
    done.map(|()| names)
}

fn attributes(fs: &dyn FileSystem, ino: Ino) -> Result<()> {
    let list = fs.listxattr(&Cred::root(), ino)?;
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        fs.getxattr(&Cred::root(), ino, XattrName::new(name)?)?;
    }
    Ok(())
}

/// What an inode holds.
///
/// # Errors
/// Those of the file system.
fn content(fs: &dyn FileSystem, ino: Ino, kind: FileKind) -> Result<Content> {
    let mut hasher = DefaultHasher::new();
    if kind == FileKind::Symlink {
        let target = fs.readlink(ino)?;
        hasher.write(&target);
        return Ok(Content { size: target.len() as u64, hash: hasher.finish() });
    }
    let handle = fs.open(&Cred::root(), ino, OpenFlags::READ)?;
    let done = runs(fs, &handle, &mut hasher);
    fs.release(handle);
    Ok(Content { size: done?, hash: hasher.finish() })
}

fn runs(fs: &dyn FileSystem, handle: &Handle, hasher: &mut DefaultHasher) -> Result<u64> {
    let size = fs.getattr(handle.ino)?.size_bytes;
    let mut bytes = vec![0; PIECE_BYTES];
    let mut from = 0;
    for _ in 0..RUNS_MAX {
        from = match fs.seek(handle, SeekTarget::Data, from) {
            Ok(from) => from,
            // No data behind it.
            Err(Error::NoSuchOffset) => break,
            Err(error) => return Err(error),
        };
        let hole = fs.seek(handle, SeekTarget::Hole, from)?;
        let want = PIECE_BYTES.min(hole.saturating_sub(from) as usize);
        let read = fs.read(handle, from, &mut bytes[..want])?;
        // Pages of zeros and holes are the same to a reader.
        for (n, page) in
            bytes[..read].chunks(4096).enumerate().filter(|(_, page)| page.iter().any(|b| *b != 0))
        {
            hasher.write_u64(from / 4096 + n as u64);
            hasher.write(page);
        }
        from = hole;
    }
    Ok(size)
}
