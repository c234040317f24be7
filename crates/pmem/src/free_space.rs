//! How much space a file can still get. `backing_file` asks before it touches the first page of a reservation:
//! filling memory that is not available ends not with an error but with killed processes.
//!
//! State       the available space is the minimum of the file system's free blocks and, for files in memory, a share of the
//!             available memory and the rest of each limit of a control group above this process.

use rustix::fs::{FileType, StatVfs, fstat, fstatfs, fstatvfs};
use std::fs::read_to_string;
use std::os::fd::AsFd;
use std::path::Path;

/// Magic numbers of the file systems whose files are memory.
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

/// Bytes that a file can get beside those it has.
pub(crate) fn free_space_bytes(file: impl AsFd) -> u64 {
    let of_files = fstatvfs(&file).map_or(u64::MAX, |free: StatVfs| {
        // ramfs, and the kernel's mount of memory files, have no size limit.
        if free.f_blocks == 0 { u64::MAX } else { free.f_bavail.saturating_mul(free.f_frsize) }
    });
    if !is_in_memory(&file) {
        return of_files;
    }
    // A tenth is left to other programs.
    let memory = memory_available_bytes().map_or(u64::MAX, |bytes| bytes / 10 * 9);
    of_files.min(memory).min(cgroups_left_bytes(Path::new("/sys/fs/cgroup"), &own_cgroups()))
}

/// Returns true if the file's blocks are pages of memory.
pub(crate) fn is_in_memory(file: impl AsFd) -> bool {
    let is_file =
        fstat(&file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    is_file && fstatfs(file).is_ok_and(|fs| [TMPFS, RAMFS].contains(&(fs.f_type as u64)))
}

fn memory_available_bytes() -> Option<u64> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn own_cgroups() -> String {
    read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// The smallest rest of a limit, of the control groups in `/proc/self/cgroup` and those above them. Reads cgroup
/// v1 and v2.
fn cgroups_left_bytes(root: &Path, groups: &str) -> u64 {
    let mut least = u64::MAX;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, limit, usage, cache) = match controllers {
            "" => (root.to_path_buf(), "memory.max", "memory.current", "inactive_file"),
            list if list.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            }
            _ => continue,
        };
        let mut group = root.join(path.trim_start_matches('/'));
        loop {
            least = least.min(cgroup_left_bytes(&group, limit, usage, cache).unwrap_or(u64::MAX));
            if group == root || !group.pop() {
                break;
            }
        }
    }
    least
}

/// The rest of one control group's limit; the kernel can drop unused page cache for it.
fn cgroup_left_bytes(group: &Path, limit: &str, usage: &str, cache: &str) -> Option<u64> {
    let number = |name: &str| read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, usage) = (number(limit)?, number(usage)?);
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache =
        stat.lines().find_map(|line| line.strip_prefix(cache)?.strip_prefix(' ')?.parse::<u64>().ok());
    Some(limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_least_limit_of_all_groups_above_counts() {
        let root = std::env::temp_dir().join(format!("heddle-room-{}", std::process::id()));
        let put = |group: &str, name: &str, text: &str| {
            let dir = root.join(group);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(name), text).unwrap();
        };
        put("a/b", "memory.max", "max\n");
        put("a/b", "memory.current", "5\n");
        put("a", "memory.max", "1000\n");
        put("a", "memory.current", "300\n");
        put("a", "memory.stat", "anon 7\ninactive_file 100\n");
        assert_eq!(cgroups_left_bytes(&root, "0::/a/b\n"), 800);
        assert_eq!(cgroups_left_bytes(&root, "0::/elsewhere\n"), u64::MAX);
        put("memory/c", "memory.limit_in_bytes", "600\n");
        put("memory/c", "memory.usage_in_bytes", "700\n");
        assert_eq!(cgroups_left_bytes(&root, "5:cpu:/c\n4:memory:/c\n"), 0);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_memory_file_has_a_limit() {
        let file = rustix::fs::memfd_create("room", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let room = free_space_bytes(&file);
        assert!(room > 0 && room < 1 << 50, "{room}");
    }
}
