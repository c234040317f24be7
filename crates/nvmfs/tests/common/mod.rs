//! One-line set-ups for the tests of the whole engine.
#![allow(dead_code, unused_imports, reason = "each test file uses some of it")]

#[cfg(not(shuttle))]
use heddle_nvmfs::NvmFs;
use heddle_nvmfs::{MountOptions, Variant, Volume, VolumeError, format_region, mount};
use heddle_pmem::{Durability, OpenOptions, Region};
pub use heddle_vfs::short::{Short, name, root};
#[cfg(not(shuttle))]
use heddle_vfs::testkit::Tree;
#[cfg(not(shuttle))]
use heddle_vfs::{Error, FileKind, FileSystem};
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

/// The durability that `HEDDLE_DURABILITY` names.
pub fn named_durability() -> Option<Durability> {
    let name = std::env::var("HEDDLE_DURABILITY").ok()?;
    Some(name.parse().unwrap_or_else(|why| panic!("HEDDLE_DURABILITY={name}: {why}")))
}

/// Deals the rounds of a rig out to both durabilities, or all of them to the one that is named.
pub fn by_durability(rounds: u64, mut rig: impl FnMut(Durability, u64)) {
    match named_durability() {
        Some(named) => rig(named, rounds),
        None => Durability::ALL.into_iter().for_each(|durability| rig(durability, rounds.div_ceil(2))),
    }
}

/// How to open an image whose writes survive that.
pub fn promising(durability: Durability) -> OpenOptions<'static> {
    OpenOptions { durability: Some(durability), ..OpenOptions::default() }
}

/// Memory with a file system on it, which outlives its mounts.
pub struct Disk(Region);

impl Disk {
    pub fn new(variant: Variant, len_bytes: u64) -> Disk {
        Disk::promising(variant, len_bytes, Durability::Process)
    }

    pub fn promising(variant: Variant, len_bytes: u64, durability: Durability) -> Disk {
        let region = Region::anonymous_as(len_bytes, durability).unwrap();
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
