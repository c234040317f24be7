//! One-line set-ups for the tests of the whole engine.
#![allow(dead_code, reason = "each test file uses some of it")]

#[cfg(not(shuttle))]
use heddle_nvmfs::NvmFs;
use heddle_nvmfs::{MountOptions, Variant, Volume, VolumeError, format_region, mount};
use heddle_pmem::Region;
#[cfg(not(shuttle))]
use heddle_vfs::testkit::Tree;
use heddle_vfs::{
    Attr, Cred, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RenameMode, SetAttr,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Address space for the volatile state of a test's mount.
const ARENA_BYTES: usize = 256 << 20;

/// Options that fit a test.
pub fn options() -> MountOptions<'static> {
    MountOptions { arena_bytes: ARENA_BYTES, ..MountOptions::default() }
}

/// A number from the environment, or else the default.
pub fn env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Memory with a file system on it, which outlives its mounts.
pub struct Disk(Region);

impl Disk {
    pub fn new(variant: Variant, len_bytes: u64) -> Disk {
        let region = Region::anonymous(len_bytes).unwrap();
        format_region(&region, variant).unwrap();
        Disk(region)
    }

    pub fn region(&self) -> &Region {
        &self.0
    }

    pub fn try_mount(&self) -> Result<Volume, VolumeError> {
        mount(self.0.map_again().unwrap(), &options())
    }

    pub fn mount(&self) -> Volume {
        self.try_mount().unwrap()
    }
}

/// Runs `work` on every variant, those after a failure too: which ones fail tells much.
///
/// # Panics
/// With the names of the variants that failed; why stands above.
pub fn each_variant(work: impl Fn(Variant)) {
    let fails = |variant: &Variant| {
        println!("{}", variant.name());
        catch_unwind(AssertUnwindSafe(|| work(*variant))).is_err()
    };
    let failed: Vec<_> = Variant::ALL.into_iter().filter(fails).map(Variant::name).collect();
    assert!(failed.is_empty(), "these variants failed: {failed:?}");
}

/// A volume on new memory.
pub fn fresh(variant: Variant, len_bytes: u64) -> Volume {
    Disk::new(variant, len_bytes).mount()
}

pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

pub fn root() -> Cred {
    Cred::root()
}

/// Calls with the root user and names as text.
pub trait Short: FileSystem {
    fn new_file(&self, dir: Ino, text: &str) -> Handle {
        self.try_file(dir, text).unwrap()
    }

    fn try_file(&self, dir: Ino, text: &str) -> Result<Handle, Error> {
        self.create(&root(), dir, name(text), 0o644, OpenFlags::READ_WRITE).map(|made| made.1)
    }

    fn new_dir(&self, dir: Ino, text: &str) -> Ino {
        self.try_dir(dir, text).unwrap()
    }

    fn try_dir(&self, dir: Ino, text: &str) -> Result<Ino, Error> {
        let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
        self.make(&root(), dir, name(text), node).map(|attr| attr.ino)
    }

    fn find(&self, dir: Ino, text: &str) -> Result<Attr, Error> {
        self.lookup(&root(), dir, name(text))
    }

    fn open_file(&self, dir: Ino, text: &str) -> Handle {
        let ino = self.find(dir, text).unwrap().ino;
        self.open(&root(), ino, OpenFlags::READ_WRITE).unwrap()
    }

    fn remove(&self, dir: Ino, text: &str) -> Result<(), Error> {
        self.unlink(&root(), dir, name(text))
    }

    fn resize(&self, handle: &Handle, size_bytes: u64) -> Result<(), Error> {
        let set = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        self.setattr(&root(), handle.ino, Some(handle), &set).map(|_| ())
    }

    fn size(&self, handle: &Handle) -> u64 {
        self.getattr(handle.ino).unwrap().size_bytes
    }

    fn read_vec(&self, handle: &Handle, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        let read = self.read(handle, offset, &mut bytes).unwrap();
        bytes.truncate(read);
        bytes
    }

    fn replace(&self, from: (Ino, &str), to: (Ino, &str)) -> Result<(), Error> {
        self.rename(&root(), from.0, name(from.1), to.0, name(to.1), RenameMode::Replace)
    }
}

impl<F: FileSystem> Short for F {}

/// fsck has nothing to say against an image that nobody has damaged: after a power cut notes at most.
///
/// # Errors
/// What it has to say.
pub fn sound(region: &Region) -> Result<(), String> {
    let verdict = heddle_nvmfs::fsck::examine("test", region).map_err(|e| e.to_string())?;
    match (verdict.found(), verdict.changes().count()) {
        (0, 0) => Ok(()),
        _ => Err(format!("fsck finds {:#?}", verdict.issues)),
    }
}

/// Removes every name below the root.
#[cfg(not(shuttle))]
pub fn remove_everything(fs: &NvmFs) -> Result<(), Error> {
    let tree = Tree::of(fs)?;
    for (path, node) in tree.nodes.iter().rev() {
        let path = std::str::from_utf8(path).unwrap();
        if path == "/" {
            continue;
        }
        let (dir, last) = heddle_vfs::path::resolve_parent(fs, &root(), path)?;
        match node.kind {
            FileKind::Directory => fs.rmdir(&root(), dir, last)?,
            _ => fs.unlink(&root(), dir, last)?,
        }
    }
    Ok(())
}
