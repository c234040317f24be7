//! The kind of memory below a region: volatile memory, persistent memory, or a file that the kernel writes
//! back.
//!
//! Invariants  I1  an unknown kind is taken for the one that needs more: a file before memory, a flush before none.
//!             I2  a device is classified by what it is, not by the file system of its node: nodes lie on devtmpfs, which reports itself as
//!                 tmpfs.
//! Source      statfs(2) for the file systems' numbers; the kernel's Documentation/ABI/testing/sysfs-bus-nvdimm for `persistence_domain`.

use crate::durability::Durability;
use crate::{Error, Result};
#[cfg(feature = "planted")]
use rustix::fs::statfs;
use rustix::fs::{FileType, Stat, fstat, fstatfs, major, minor};
use rustix::io::Errno;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// The mechanism that makes a store durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A file of tmpfs, ramfs or hugetlbfs, or anonymous memory: gone when the machine restarts. With
    /// [`Durability::Power`] it stands in for persistent memory in measurements: a flush and a store fence.
    Memory,
    /// Persistent memory, mapped so that a flush and a store fence are enough.
    Dax,
    /// As `Dax`, with caches inside the power-fail domain: a store fence.
    DaxCached,
    /// Any other file: a fence is an `msync` of the pages this thread has stored to since its last one.
    File,
    /// Memory with a recorder, which knows the possible states after a power cut.
    Simulated,
}

const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;
const HUGETLBFS: i64 = 0x9584_58f6;

/// The backend of a file or device that cannot be mapped with `MAP_SYNC`.
pub(crate) fn of_file(file: BorrowedFd<'_>) -> std::result::Result<Backend, Errno> {
    let stat = fstat(file)?;
    #[cfg(feature = "planted")]
    if crate::planted::breaks(crate::planted::NODES_BELIEVED)
        && let Some(name) = node_of(file)
        && statfs(&*name).is_ok_and(|found| matches!(found.f_type, TMPFS | RAMFS | HUGETLBFS))
    {
        return Ok(Backend::Memory);
    }
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        // Device-DAX: the only character device that can be mapped as a region.
        FileType::CharacterDevice => of_persistent_memory(&stat),
        FileType::RegularFile if matches!(fstatfs(file)?.f_type, TMPFS | RAMFS | HUGETLBFS) => {
            Backend::Memory
        }
        _ => Backend::File,
    })
}

/// The path of a node.
#[cfg(feature = "planted")]
fn node_of(file: BorrowedFd<'_>) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// The backend of persistent memory, which depends on whether caches are inside the power-fail domain.
pub(crate) fn of_persistent_memory(stat: &Stat) -> Backend {
    let (kind, number) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => ("char", stat.st_rdev),
        FileType::BlockDevice => ("block", stat.st_rdev),
        _ => ("block", stat.st_dev),
    };
    let device = format!("/sys/dev/{kind}/{}:{}", major(number), minor(number));
    if keeps_caches(Path::new(&device)) { Backend::DaxCached } else { Backend::Dax }
}

/// Returns true if all memory below a device reports that its domain includes the caches. `device`: its
/// folder in sysfs.
fn keeps_caches(device: &Path) -> bool {
    // A device-mapper device consists of others.
    let parts: Vec<PathBuf> = fs::read_dir(device.join("slaves"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    if !parts.is_empty() {
        return parts.iter().all(|part| keeps_caches(part));
    }
    // The region is the folder above the namespace that the device belongs to; a partition lies one level
    // deeper.
    let Ok(real) = device.canonicalize() else { return false };
    let says = real.ancestors().find_map(|folder| fs::read_to_string(folder.join("persistence_domain")).ok());
    says.is_some_and(|says| says.trim() == "cpu_cache")
}

/// The durability of a region on this backend, if it is possible there.
pub(crate) fn promise(backend: Backend, asked: Option<Durability>, path: &Path) -> Result<Durability> {
    match (backend, asked) {
        (Backend::Memory, asked) => Ok(asked.unwrap_or(Durability::Process)),
        // After a power cut, pages that the kernel wrote in its own order would be in no consistent state.
        (_, Some(Durability::Process)) => Err(Error::Lasting { path: path.into() }),
        (_, _) => Ok(Durability::Power),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs tree in a folder: a region with a disk, and a mapped device over such disks.
    fn disk(root: &Path, region: &str, domain: Option<&str>) -> PathBuf {
        let folder = root.join(region);
        let disk = folder.join("namespace0.0/block/pmem0");
        fs::create_dir_all(&disk).unwrap();
        if let Some(domain) = domain {
            fs::write(folder.join("persistence_domain"), format!("{domain}\n")).unwrap();
        }
        disk
    }

    #[test]
    fn caches_count_only_where_every_part_says_so() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let cached = disk(root, "region0", Some("cpu_cache"));
        let controller = disk(root, "region1", Some("memory_controller"));
        let silent = disk(root, "region2", None);
        assert!(keeps_caches(&cached));
        assert!(!keeps_caches(&controller) && !keeps_caches(&silent) && !keeps_caches(&root.join("none")));
        for (name, parts, expected) in [
            ("all", [&cached, &cached], true),
            ("some", [&cached, &controller], false),
            ("few", [&silent, &cached], false),
        ] {
            let slaves = root.join(name).join("slaves");
            fs::create_dir_all(&slaves).unwrap();
            for (n, part) in parts.into_iter().enumerate() {
                symlink(part, slaves.join(n.to_string())).unwrap();
            }
            assert_eq!(keeps_caches(&root.join(name)), expected, "{name}");
        }
    }

    #[test]
    fn a_promise_is_made_only_where_it_can_be_kept() {
        let promise = |backend, asked: Option<Durability>| promise(backend, asked, Path::new("x")).ok();
        assert_eq!(promise(Backend::Memory, None), Some(Durability::Process));
        assert_eq!(promise(Backend::Memory, Some(Durability::Power)), Some(Durability::Power));
        for backend in [Backend::Dax, Backend::DaxCached, Backend::File] {
            assert_eq!(promise(backend, None), Some(Durability::Power));
            assert_eq!(promise(backend, Some(Durability::Process)), None);
        }
    }
}
