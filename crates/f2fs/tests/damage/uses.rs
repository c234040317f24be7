//! What a damaged image is used for: all of it is read, and all calls are made on some of its files.

use heddle_f2fs::F2fs;
use heddle_vfs::{
    Attr, Cookie, Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RangeOp, RenameMode,
    Result, SeekTarget, SetAttr, SetXattr, XattrName,
};
use std::collections::BTreeMap;

/// Names at most: a forged directory may have more than anybody can read.
const NAMES_MAX: usize = 1200;
/// Bytes that are read of a file.
const BYTES_MAX: usize = 4 << 20;
/// Runs of data that are read of a file.
const RUNS_MAX: usize = 200;

/// What is under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub ino: Ino,
    pub kind: FileKind,
    pub size_bytes: u64,
    /// Of all bytes.
    pub sum: u32,
}

/// All names that can be read, by path.
pub type View = BTreeMap<Vec<u8>, Seen>;

pub fn view(fs: &F2fs) -> View {
    let mut view = View::new();
    let mut dirs = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        for entry in names(fs, dir) {
            let Ok(found) = Name::new(&entry).and_then(|name| fs.lookup(&Cred::root(), dir, name)) else {
                continue;
            };
            let path = [&path[..], b"/", &entry[..]].concat();
            if view.len() >= NAMES_MAX || path.len() > 2000 {
                return view;
            }
            if found.kind == FileKind::Directory {
                dirs.push((path.clone(), found.ino));
            }
            if let Ok(sum) = sum_of(fs, &found) {
                view.insert(
                    path,
                    Seen { ino: found.ino, kind: found.kind, size_bytes: found.size_bytes, sum },
                );
            }
        }
    }
    view
}

fn names(fs: &F2fs, dir: Ino) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let Ok(handle) = fs.open(&Cred::root(), dir, OpenFlags::READ) else { return names };
    let _ = fs.each_entry(&handle, Cookie::default(), &mut |entry| {
        names.push(entry.name.bytes().to_vec());
        names.len() < NAMES_MAX
    });
    fs.release(handle);
    names
}

fn sum_of(fs: &F2fs, found: &Attr) -> Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let list = fs.listxattr(&Cred::root(), found.ino)?;
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        hasher.update(name);
        hasher.update(&fs.getxattr(&Cred::root(), found.ino, XattrName::new(name)?)?);
    }
    match found.kind {
        FileKind::Symlink => hasher.update(&fs.readlink(found.ino)?),
        FileKind::Regular => {
            let handle = fs.open(&Cred::root(), found.ino, OpenFlags::READ)?;
            let done = add_bytes(fs, &handle, &mut hasher);
            fs.release(handle);
            done?;
        }
        _ => {}
    }
    Ok(hasher.finalize())
}

fn add_bytes(fs: &F2fs, handle: &Handle, hasher: &mut crc32fast::Hasher) -> Result<()> {
    let mut bytes = vec![0; 64 << 10];
    let (mut at, mut left) = (0, BYTES_MAX);
    for _ in 0..RUNS_MAX {
        let data = match fs.seek(handle, SeekTarget::Data, at) {
            Err(heddle_vfs::Error::NoSuchOffset) => break,
            data => data?,
        };
        at = data;
        let end = fs.seek(handle, SeekTarget::Hole, data)?;
        while at < end && left > 0 {
            let want = bytes.len().min((end - at) as usize).min(left);
            let read = fs.read(handle, at, &mut bytes[..want])?;
            if read == 0 {
                break;
            }
            hasher.update(&at.to_le_bytes());
            hasher.update(&bytes[..read]);
            (at, left) = (at + read as u64, left - read);
        }
    }
    Ok(())
}

/// Makes all calls on the files below these names of the root. Errors are as good as anything.
pub fn use_all(fs: &F2fs, targets: &[Vec<u8>], turn: u64) {
    let root = Cred::root();
    let mut before: Option<(Vec<u8>, Ino)> = None;
    for (n, target) in (turn..).zip(targets) {
        let Ok(name) = Name::new(target) else { continue };
        let Ok(attr) = fs.lookup(&root, Ino::ROOT, name) else { continue };
        match attr.kind {
            FileKind::Directory => use_dir(fs, attr.ino, n),
            FileKind::Regular => use_file(fs, attr.ino, before.as_ref().map(|(_, ino)| *ino), n),
            _ => _ = fs.readlink(attr.ino),
        }
        use_attributes(fs, attr.ino, n);
        let text = format!("made {n} {}", "m".repeat(n as usize * 37 % 200));
        let new = Name::new(text.as_bytes()).unwrap();
        match n % 5 {
            0 => _ = fs.rename(&root, Ino::ROOT, name, Ino::ROOT, new, RenameMode::Replace),
            1 => _ = fs.link(&root, attr.ino, Ino::ROOT, new),
            2 => {
                if let Some((other, _)) = &before {
                    let other = Name::new(other).unwrap();
                    let _ = fs.rename(&root, Ino::ROOT, name, Ino::ROOT, other, RenameMode::Exchange);
                    let _ = fs.rename(&root, Ino::ROOT, name, Ino::ROOT, other, RenameMode::Replace);
                }
            }
            _ => _ = fs.unlink(&root, Ino::ROOT, name).or_else(|_| fs.rmdir(&root, Ino::ROOT, name)),
        }
        before = Some((target.clone(), attr.ino));
        if n.is_multiple_of(4) {
            let _ = fs.sync();
        }
    }
    let _ = fs.sync();
    fill_segments(fs);
    let _ = fs.unmount();
}

/// What has become free is used again.
fn fill_segments(fs: &F2fs) {
    let name = Name::new(b"filler").unwrap();
    let Ok((_, file)) = fs.create(&Cred::root(), Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE) else {
        return;
    };
    for n in 0..8 {
        let _ = fs.write(&file, n << 20, &[0x77; 1 << 20]);
        let _ = fs.sync();
    }
    let _ = fs.fallocate(&file, RangeOp::Punch, 0, 6 << 20);
    fs.release(file);
}

fn use_file(fs: &F2fs, ino: Ino, other: Option<Ino>, n: u64) {
    let root = Cred::root();
    let flags = OpenFlags { direct: n % 3 == 1, ..OpenFlags::READ_WRITE };
    let Ok(file) = fs.open(&root, ino, flags) else { return };
    let mut bytes = vec![0; 9000];
    let _ = fs.read(&file, 100, &mut bytes);
    for target in [SeekTarget::Data, SeekTarget::Hole] {
        let _ = fs.seek(&file, target, n * 1000);
    }
    let _ = fs.write(&file, 4096 * (n % 5), &[8; 3 * 4096]);
    let _ = fs.write(&file, 923 * 4096 - 10, &[7; 5000]);
    let _ = fs.fsync(&file, n.is_multiple_of(2));
    let _ = fs.append(&file, &[6; 5000]);
    let ops = [
        RangeOp::Punch,
        RangeOp::Allocate { keep_size: n.is_multiple_of(2) },
        RangeOp::Zero { keep_size: n % 2 == 1 },
        RangeOp::Collapse,
        RangeOp::Insert,
    ];
    for (k, op) in ops.into_iter().enumerate().skip(n as usize % 3) {
        let _ = fs.fallocate(&file, op, 4096 * (1 + k as u64), 4096 * (1 + n % 7));
    }
    if let Some(other) = other
        && let Ok(from) = fs.open(&root, other, OpenFlags::READ)
    {
        let _ = fs.copy_range(&from, 0, &file, 1 << 20, 20_000);
        fs.release(from);
    }
    let _ = fs.fsync(&file, false);
    if n.is_multiple_of(2) {
        let size =
            SetAttr { size_bytes: Some([0, 5000, 4096 * 3000][n as usize / 2 % 3]), ..SetAttr::default() };
        let _ = fs.setattr(&root, ino, Some(&file), &size);
    }
    let _ = fs.getattr(ino);
    fs.release(file);
}

fn use_attributes(fs: &F2fs, ino: Ino, n: u64) {
    let (root, name) = (Cred::root(), XattrName::new(b"user.other").unwrap());
    let _ = fs.setxattr(&root, ino, name, &vec![5; 300 * (n as usize % 5)], SetXattr::Any);
    let _ = fs.getxattr(&root, ino, name);
    let _ = fs.listxattr(&root, ino);
    if n % 2 == 1 {
        let _ = fs.removexattr(&root, ino, XattrName::new(b"user.note").unwrap());
    }
    let mode = SetAttr { perm: Some(0o600), uid: Some(7), ..SetAttr::default() };
    let _ = fs.setattr(&root, ino, None, &mode);
}

fn use_dir(fs: &F2fs, dir: Ino, n: u64) {
    let root = Cred::root();
    for k in 0..6_usize {
        let text = format!("in {k} {}", "i".repeat(k * 40));
        let name = Name::new(text.as_bytes()).unwrap();
        let kind = [FileKind::Directory, FileKind::Symlink, FileKind::Fifo][k % 3];
        let _ = fs.make(&root, dir, name, NewNode { kind, perm: 0o700, rdev: 0, target: b"to" });
    }
    if let Ok((_, file)) = fs.create(&root, dir, Name::new(b"file").unwrap(), 0o600, OpenFlags::READ_WRITE) {
        let _ = fs.write(&file, 0, &[1; 10_000]);
        let _ = fs.fsync(&file, false);
        fs.release(file);
    }
    for (k, entry) in (n..).zip(names(fs, dir).into_iter().take(40)) {
        let Ok(name) = Name::new(&entry) else { continue };
        match k % 4 {
            0 => _ = fs.rename(&root, dir, name, Ino::ROOT, name, RenameMode::NoReplace),
            1 => _ = fs.unlink(&root, dir, name).or_else(|_| fs.rmdir(&root, dir, name)),
            _ => {
                if let Ok(attr) = fs.lookup(&root, dir, name)
                    && attr.kind == FileKind::Regular
                {
                    use_file(fs, attr.ino, None, k);
                }
            }
        }
    }
}
