//! Images with forged fields, mounted and used.
//!
//! Promises    no panic and no hang, whatever the image says; what cannot be is refused with an error that says so.

use super::Target;
use crate::image::walk::{Walk, kind};
use crate::image::{EDIT_BYTES, Images, edit};
use heddle_crash::judge::options;
use heddle_nvmfs::{NvmFs, fsck, mount};
use heddle_vfs::{
    Cred, FileKind, FileSystem, Ino, Name, OpenFlags, RangeOp, RenameMode, Result, SetAttr, SetXattr,
    XattrName,
};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Files that are changed.
const FILES_MAX: usize = 60;

pub struct Mount {
    images: Images,
}

impl Mount {
    pub fn new(wide: bool) -> Mount {
        Mount { images: Images::new(wide) }
    }
}

impl Target for Mount {
    fn seeds(&self) -> Vec<Vec<u8>> {
        seeds(self.images.count())
    }

    fn unit(&self) -> usize {
        EDIT_BYTES
    }

    fn run(&mut self, input: &[u8]) -> std::result::Result<u64, String> {
        let (head, edits) = input.split_at(input.len().min(EDIT_BYTES));
        let chosen = self.images.choose(number(head))?;
        for bytes in edits.chunks(EDIT_BYTES) {
            edit(chosen.region, &chosen.sites, bytes, true);
        }
        let flags = head.get(2).copied().unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        if flags & 1 == 0 {
            match fsck::examine("image", chosen.region) {
                Ok(verdict) => verdict.issues.iter().for_each(|(issue, mended)| {
                    (format!("{:?}", issue.code), mended).hash(&mut hasher);
                }),
                Err(error) => kind(&error).hash(&mut hasher),
            }
        }
        // Twice: what the first mount and its changes left must be readable too.
        for round in 0..2 {
            let mut options = options();
            options.read_only = flags & 6 == 6;
            let region = chosen.region.map_again().map_err(|e| e.to_string())?;
            match mount(region, &options) {
                Err(error) => kind(&error).hash(&mut hasher),
                Ok(volume) => {
                    let fs = volume.fs();
                    let walk = Walk::of(&fs);
                    walk.errors.hash(&mut hasher);
                    use_it(&fs, &walk, round == 1).hash(&mut hasher);
                    drop(fs);
                    if flags & 8 == 0 { volume.unmount() } else { volume.abandon() }
                }
            }
        }
        Ok(hasher.finish())
    }
}

/// The images as they are, and nothing else.
pub fn seeds(count: usize) -> Vec<Vec<u8>> {
    let head = |n: usize| {
        let mut head = vec![0; EDIT_BYTES];
        head[..2].copy_from_slice(&(n as u16).to_le_bytes());
        head
    };
    (0..count).map(head).collect()
}

/// Which image an input begins with.
pub fn number(head: &[u8]) -> usize {
    head.iter().take(2).rev().fold(0, |n, byte| n << 8 | usize::from(*byte))
}

/// Changes everything in some way; `all`: and removes it. The kinds of errors.
fn use_it(fs: &NvmFs, walk: &Walk, all: bool) -> BTreeSet<String> {
    let mut errors = BTreeSet::new();
    let mut note = |result: Result<()>| {
        if let Err(error) = result {
            errors.insert(kind(&error));
        }
    };
    let cred = Cred::root();
    note(fs.statfs().map(drop));
    for ino in walk.files.keys().take(FILES_MAX) {
        note(change(fs, *ino));
    }
    note((|| {
        let handle = fs.create(&cred, Ino::ROOT, Name::new(b"fresh")?, 0o644, OpenFlags::READ_WRITE)?.1;
        let done = fs.append(&handle, &[7; 9000]).and_then(|_| fs.write(&handle, 5000, &[8; 20_000]));
        fs.release(handle);
        done?;
        fs.rename(
            &cred,
            Ino::ROOT,
            Name::new(b"fresh")?,
            Ino::ROOT,
            Name::new(b"moved")?,
            RenameMode::Replace,
        )
    })());
    for (dir, name, kind) in walk.names.iter().filter(|_| all) {
        note(Name::new(name).and_then(|name| match kind {
            FileKind::Directory => fs.rmdir(&cred, *dir, name),
            _ => fs.unlink(&cred, *dir, name),
        }));
    }
    note(fs.sync());
    errors
}

fn change(fs: &NvmFs, ino: Ino) -> Result<()> {
    let cred = Cred::root();
    fs.setxattr(&cred, ino, XattrName::new(b"user.fuzz")?, &[b'x'; 100], SetXattr::Any).or_else(|error| {
        // Symbolic links have none.
        if matches!(error, heddle_vfs::Error::NotPermitted) { Ok(()) } else { Err(error) }
    })?;
    let handle = fs.open(&cred, ino, OpenFlags::READ_WRITE)?;
    let changed = (|| {
        let size = fs.getattr(ino)?.size_bytes;
        fs.write(&handle, size / 2, &[9; 5000])?;
        fs.append(&handle, &[10; 100])?;
        fs.fallocate(&handle, RangeOp::Punch, 0, 6000)?;
        fs.fallocate(&handle, RangeOp::Allocate { keep_size: true }, size, 10_000)?;
        fs.fallocate(&handle, RangeOp::Insert, 4096, 4096)?;
        fs.fallocate(&handle, RangeOp::Collapse, 0, 4096)?;
        let cut = SetAttr { size_bytes: Some(size / 3), ..SetAttr::default() };
        fs.setattr(&cred, ino, Some(&handle), &cut).map(drop)
    })();
    fs.release(handle);
    changed
}
