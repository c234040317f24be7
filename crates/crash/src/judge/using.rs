//! Operations on a recovered image, to test that it can be used: make, change, remove, and remove everything.
//!
//! In every directory a name is made, moved and removed. Names that existed once are made again, and stay until
//! the next mount has found them. Every file is rewritten, and written beyond its end. None of this changes the
//! tree in the end.

use heddle_nvmfs::NvmFs;
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::tree::{Node, Tree};
use heddle_vfs::{
    Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RenameMode, SetAttr, path,
};
use std::collections::HashSet;

fn name(text: &str) -> heddle_vfs::Result<Name<'_>> {
    Name::new(text.as_bytes())
}

fn read_all(fs: &NvmFs, handle: &Handle, len: usize) -> heddle_vfs::Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let n = fs.read(handle, 0, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// Most directories, files and former names that are used per image.
const EACH_MAX: usize = 8;

/// Makes new names and data and removes them again; rewrites every old file in place. `dead`: paths that
/// existed once. Returns those that are there again, for [`remove_again`] after the next mount.
pub fn use_it<'t>(
    fs: &NvmFs,
    tree: &Tree,
    dead: impl Iterator<Item = &'t Vec<u8>>,
) -> Result<Vec<String>, String> {
    let say = |e: heddle_vfs::Error| e.to_string();
    let cred = Cred::root();
    // First, while a name's new version may still be too small.
    let again = make_again(fs, &cred, tree, dead)?;
    match made_and_removed(fs, &cred) {
        // A full image cannot take new data; its content must still be removable (pass 3).
        Err(heddle_vfs::Error::NoSpace | heddle_vfs::Error::NoInodes) => {
            tidy_up(fs, &cred).map(|()| again).map_err(say)
        }
        Err(other) => Err(say(other)),
        Ok(true) => {
            use_directories(fs, &cred, tree)?;
            rewrite_all(fs, &cred, tree)?;
            write_beyond(fs, &cred, tree)?;
            Ok(again)
        }
        Ok(false) => Err("a file that was written after recovery reads as something else".into()),
    }
}

fn made_and_removed(fs: &NvmFs, cred: &Cred) -> heddle_vfs::Result<bool> {
    let (_, handle) = fs.create(cred, Ino::ROOT, name("used")?, 0o644, OpenFlags::READ_WRITE)?;
    let data: Vec<u8> = (0..9000u32).map(|i| (i % 251) as u8 | 1).collect();
    let written = (|| {
        fs.write(&handle, 3000, &data)?;
        fs.append(&handle, &data)?;
        let size = SetAttr { size_bytes: Some(12_500), ..SetAttr::default() };
        fs.setattr(cred, handle.ino, Some(&handle), &size)?;
        let wanted = [vec![0; 3000], data.clone(), data[..500].to_vec()].concat();
        Ok(read_all(fs, &handle, 20_000)? == wanted)
    })();
    fs.release(handle);
    let right = written?;
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    let dir = fs.make(cred, Ino::ROOT, name("used dir")?, node)?.ino;
    fs.rename(cred, Ino::ROOT, name("used")?, dir, name("moved")?, RenameMode::Replace)?;
    fs.unlink(cred, dir, name("moved")?)?;
    fs.rmdir(cred, Ino::ROOT, name("used dir")?)?;
    Ok(right)
}

fn tidy_up(fs: &NvmFs, cred: &Cred) -> heddle_vfs::Result<()> {
    if let Ok(dir) = fs.lookup(cred, Ino::ROOT, name("used dir")?) {
        let _absent = fs.unlink(cred, dir.ino, name("moved")?);
        fs.rmdir(cred, Ino::ROOT, name("used dir")?)?;
    }
    match fs.unlink(cred, Ino::ROOT, name("used")?) {
        Err(heddle_vfs::Error::NotFound) => Ok(()),
        other => other,
    }
}

/// Rewrites the first byte of every file, where the tree does not show it: files left by recovery must be
/// writable.
fn rewrite_all(fs: &NvmFs, cred: &Cred, tree: &Tree) -> Result<(), String> {
    for (path, node) in &tree.nodes {
        let plain = node.kind == FileKind::Regular && node.size_bytes > 0;
        if !plain || node.mtime.is_some() || node.perm & 0o6000 != 0 {
            continue;
        }
        let path = String::from_utf8_lossy(path);
        let rewritten = (|| {
            let handle = fs.open(cred, path::resolve(fs, cred, &*path)?.ino, OpenFlags::READ_WRITE)?;
            let done = read_all(fs, &handle, 1).and_then(|first| fs.write(&handle, 0, &first));
            fs.release(handle);
            done
        })();
        match rewritten {
            Ok(_) | Err(heddle_vfs::Error::NoSpace) => {}
            Err(error) => return Err(format!("{path} cannot be written: {error}")),
        }
    }
    Ok(())
}

/// Returns true if the node has no explicitly set time, which a change would alter.
fn timeless(node: &Node) -> bool {
    node.mtime.is_none()
}

fn is_dir(node: &Node) -> bool {
    node.kind == FileKind::Directory
}

/// An error that a full image may return is no finding.
fn unless_full<T>(done: heddle_vfs::Result<T>, what: &str) -> Result<(), String> {
    match done {
        Ok(_) | Err(heddle_vfs::Error::NoSpace | heddle_vfs::Error::NoInodes) => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

/// Makes, moves and removes a name in every directory.
fn use_directories(fs: &NvmFs, cred: &Cred, tree: &Tree) -> Result<(), String> {
    let dirs = tree.nodes.iter().filter(|(_, node)| is_dir(node) && timeless(node));
    for (path, _) in dirs.take(EACH_MAX) {
        let path = String::from_utf8_lossy(path);
        let used = (|| {
            let dir = path::resolve(fs, cred, &*path)?.ino;
            let (_, handle) = fs.create(cred, dir, name("used here")?, 0o600, OpenFlags::READ_WRITE)?;
            fs.release(handle);
            let moved =
                fs.rename(cred, dir, name("used here")?, dir, name("used there")?, RenameMode::Replace);
            fs.unlink(cred, dir, name(if moved.is_ok() { "used there" } else { "used here" })?)?;
            moved
        })();
        unless_full(used, &format!("a name in {path}"))?;
    }
    Ok(())
}

/// The content of files that are made again.
fn content_again() -> Vec<u8> {
    [vec![0; 5000], vec![7; 100]].concat()
}

/// Makes former names again, as files that are empty first. Returns their paths.
fn make_again<'t>(
    fs: &NvmFs,
    cred: &Cred,
    tree: &Tree,
    dead: impl Iterator<Item = &'t Vec<u8>>,
) -> Result<Vec<String>, String> {
    let parent = |path: &[u8]| {
        let slash = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        tree.nodes.get(&path[..slash.max(1)]).is_some_and(|node| is_dir(node) && timeless(node))
    };
    let (mut again, mut seen) = (Vec::new(), HashSet::new());
    let is_free = |path: &&'t Vec<u8>| !tree.nodes.contains_key(*path) && parent(path) && seen.insert(*path);
    for path in dead.filter(is_free).take(EACH_MAX) {
        let path = String::from_utf8_lossy(path).into_owned();
        let made = (|| {
            let (dir, last) = path::resolve_parent(fs, cred, &*path)?;
            let (_, handle) = fs.create(cred, dir, last, 0o600, OpenFlags::READ_WRITE)?;
            let read = (|| {
                let empty = read_all(fs, &handle, 9000)?.is_empty();
                fs.write(&handle, 5000, &[7; 100])?;
                Ok(empty && read_all(fs, &handle, 9000)? == content_again())
            })();
            fs.release(handle);
            if read != Ok(true) {
                fs.unlink(cred, dir, last)?;
            }
            read
        })();
        match made {
            Ok(true) => again.push(path),
            Ok(false) => return Err(format!("{path}, made again, reads as something else")),
            full => unless_full(full, &format!("{path} made again"))?,
        }
    }
    Ok(again)
}

/// Checks that the names which [`use_it`] made again are there, and removes them.
pub fn remove_again(fs: &NvmFs, again: &[String]) -> Result<(), String> {
    let cred = Cred::root();
    for path in again {
        let read = (|| {
            let handle = fs.open(&cred, path::resolve(fs, &cred, path)?.ino, OpenFlags::READ_WRITE)?;
            let bytes = read_all(fs, &handle, 9000);
            fs.release(handle);
            let (dir, last) = path::resolve_parent(fs, &cred, path)?;
            fs.unlink(&cred, dir, last)?;
            bytes
        })();
        match read.map_err(|e| format!("{path}, made again before: {e}"))? {
            bytes if bytes == content_again() => {}
            bytes => {
                return Err(format!(
                    "{path}, made again before, has {} bytes of something else",
                    bytes.len()
                ));
            }
        }
    }
    Ok(())
}

/// Writes beyond the mapped pages of every file, and truncates it again: the gap reads as zeros.
fn write_beyond(fs: &NvmFs, cred: &Cred, tree: &Tree) -> Result<(), String> {
    let plain = |node: &Node| node.kind == FileKind::Regular && timeless(node) && node.perm & 0o6000 == 0;
    for (path, node) in tree.nodes.iter().filter(|(_, node)| plain(node)).take(EACH_MAX) {
        let path = String::from_utf8_lossy(path);
        let size = node.size_bytes;
        let at = size.next_multiple_of(BLOCK_BYTES as u64) + 2 * BLOCK_BYTES as u64;
        let written = (|| {
            let handle = fs.open(cred, path::resolve(fs, cred, &*path)?.ino, OpenFlags::READ_WRITE)?;
            let between = fs.write(&handle, at, &[9]).and_then(|_| {
                let mut bytes = vec![0xee; (at - size) as usize];
                let n = fs.read(&handle, size, &mut bytes)?;
                Ok(n == bytes.len() && bytes.iter().all(|byte| *byte == 0))
            });
            let cut = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
            let cut = fs.setattr(cred, handle.ino, Some(&handle), &cut);
            fs.release(handle);
            cut.and(between)
        })();
        match written {
            Ok(false) => return Err(format!("{path}: what lies behind its end does not read as zeros")),
            Err(heddle_vfs::Error::FileTooBig) => {}
            written => unless_full(written, &format!("{path} written behind its end"))?,
        }
    }
    Ok(())
}

/// Removes every name below the root.
pub fn remove_everything(fs: &NvmFs, tree: &Tree) -> Result<(), String> {
    for (path, node) in tree.nodes.iter().rev().filter(|(path, _)| path.as_slice() != b"/") {
        let path = String::from_utf8_lossy(path);
        let removed =
            path::resolve_parent(fs, &Cred::root(), &*path).and_then(|(dir, last)| match node.kind {
                FileKind::Directory => fs.rmdir(&Cred::root(), dir, last),
                _ => fs.unlink(&Cred::root(), dir, last),
            });
        removed.map_err(|e| format!("{path}: {e}"))?;
    }
    Ok(())
}
