//! User and group numbers that may stand for several.
//!
//! Where a user namespace does not map all users, the kernel shows each of the others by one number, the overflow number (65534 unless
//! `/proc/sys/kernel/overflowuid` says otherwise). So two equal numbers need not be one user: a process that is itself not mapped has
//! this number, and so has every stranger. The same holds for groups. Source: user_namespaces(7), "Unmapped user and group IDs".

use std::fs::read_to_string;

/// How many numbers there are: all but -1.
const ALL: u64 = u32::MAX as u64;
const USUAL: u32 = 65534;

/// Returns true if this user number, as the kernel shows it to this process, stands for one user.
pub fn is_one_user(uid: u32) -> bool {
    stands_for_one(uid, "/proc/sys/kernel/overflowuid", "/proc/self/uid_map")
}

/// Returns true if this group number, as the kernel shows it to this process, stands for one group.
pub fn is_one_group(gid: u32) -> bool {
    stands_for_one(gid, "/proc/sys/kernel/overflowgid", "/proc/self/gid_map")
}

fn stands_for_one(id: u32, overflow: &str, map: &str) -> bool {
    let overflow = read_to_string(overflow).ok().and_then(|text| text.trim().parse().ok());
    id != overflow.unwrap_or(USUAL) || read_to_string(map).is_ok_and(|map| maps_all(&map))
}

/// Lines of first number inside, first number outside, and count.
fn maps_all(map: &str) -> bool {
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() >= ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overflow_number_stands_for_one_where_all_are_mapped() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(maps_all("0 0 4294967294\n4294967294 4294967294 1\n"));
        for map in ["", "0 1000 1\n", "0 100000 65536\n", "0 0\n", "x y z\n"] {
            assert!(!maps_all(map), "{map}");
        }
        let dir = std::env::temp_dir().join(format!("heddle-unmapped-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (overflow, map) = (dir.join("overflow"), dir.join("map"));
        std::fs::write(&overflow, "77\n").unwrap();
        std::fs::write(&map, "0 1000 1\n").unwrap();
        let is_one = |id| stands_for_one(id, overflow.to_str().unwrap(), map.to_str().unwrap());
        assert!(is_one(0) && is_one(USUAL) && !is_one(77));
        std::fs::remove_file(&overflow).unwrap();
        assert!(is_one(77) && !is_one(USUAL));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
