//! Frozen control groups (`docker pause`): their processes are stopped, though their own state does not show
//! it.

use std::path::{Path, PathBuf};

/// Moves a process out of its frozen control group. In version 1 a frozen process dies only outside the
/// frozen group, so it goes to the top group.
pub fn take_out_of_freezer(pid: u32) {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let frozen = groups.lines().any(|line| line.contains(":freezer:") && !line.ends_with(":/"));
    for dir in dirs_of_group("cgroup", Some("freezer"), "/").into_iter().filter(|_| frozen) {
        // Without the permission to do that, the process dies when its group is thawed.
        let _moved = std::fs::write(dir.join("cgroup.procs"), pid.to_string());
    }
}

/// Returns true if the process's control groups are frozen. Tasks of a frozen group show no state of their
/// own (D or S).
pub fn is_frozen(pid: u32) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().any(|line| {
        // `number:controllers:path`
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            return false;
        };
        if number == "0" {
            let events = read_in_group("cgroup2", None, path, "cgroup.events");
            return events.lines().any(|line| line == "frozen 1");
        }
        controllers.split(',').any(|controller| controller == "freezer")
            && read_in_group("cgroup", Some("freezer"), path, "freezer.state").trim() == "FROZEN"
    })
}

/// Reads a file of a control group, where its hierarchy is mounted here; empty if it is not.
fn read_in_group(kind: &str, controller: Option<&str>, path: &str, name: &str) -> String {
    let files = dirs_of_group(kind, controller, path).into_iter().map(|dir| dir.join(name));
    files.filter_map(|file| std::fs::read_to_string(file).ok()).next().unwrap_or_default()
}

/// The directories of a control group, one for each place where its hierarchy is mounted here.
fn dirs_of_group(kind: &str, controller: Option<&str>, path: &str) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let dirs = table.lines().filter_map(|line| {
        // `id parent device root dir options [optional fields] - type source options`
        let (mount, rest) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, dir) = (fields.next()?, fields.next()?);
        let mut rest = rest.split(' ');
        let ours = rest.next()? == kind
            && controller
                .is_none_or(|c| rest.nth(1).is_some_and(|options| options.split(',').any(|o| o == c)));
        let below = Path::new(path).strip_prefix(root).ok().filter(|_| ours)?;
        Some(PathBuf::from(dir).join(below))
    });
    dirs.collect()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Another file system stands for that of control groups: `/proc`, which each process has.
    #[test]
    fn a_groups_directory_is_below_each_mount_of_its_kind() {
        let has = |kind, controller, path, dir: &str| {
            dirs_of_group(kind, controller, path).contains(&PathBuf::from(dir))
        };
        assert!(has("proc", None, "/", "/proc") && has("proc", None, "/a/b", "/proc/a/b"));
        assert!(has("proc", Some("rw"), "/a", "/proc/a"));
        assert!(!has("proc", Some("w"), "/a", "/proc/a"), "another controller");
        assert!(!has("no-such", None, "/a", "/proc/a") && !has("no-such", Some("rw"), "/a", "/proc/a"));
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(read_in_group("proc", None, "/self", "comm"), own);
        assert_eq!(read_in_group("proc", None, "/self", "no-such"), "");
        assert!(!is_frozen(std::process::id()));
    }
}
