//! What is done with an image that was recovered, to see that it can be used: make, change, remove, and remove all.

use heddle_nvmfs::NvmFs;
use heddle_vfs::tree::Tree;
use heddle_vfs::{
    Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RenameMode, SetAttr, path,
};

fn name(text: &str) -> heddle_vfs::Result<Name<'_>> {
    Name::new(text.as_bytes())
}

fn read_all(fs: &NvmFs, handle: &Handle, len: usize) -> heddle_vfs::Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let n = fs.read(handle, 0, &mut bytes)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// New names and data, taken away again; every old file is rewritten in place.
pub fn use_it(fs: &NvmFs, tree: &Tree) -> Result<(), String> {
    let say = |e: heddle_vfs::Error| e.to_string();
    let cred = Cred::root();
    match made_and_removed(fs, &cred) {
        // A full image cannot take new data; what is there must still be removable (pass 3).
        Err(heddle_vfs::Error::NoSpace | heddle_vfs::Error::NoInodes) => tidy_up(fs, &cred).map_err(say),
        Err(other) => Err(say(other)),
        Ok(true) => rewrite_all(fs, &cred, tree),
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

/// Writes the first byte of every file anew, where that changes nothing a tree shows: what recovery left can be written.
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
