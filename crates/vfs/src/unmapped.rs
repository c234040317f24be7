//! User and group numbers that may stand for several.
//!
//! Where a user namespace does not map all users, the kernel shows each of the others by one number, the overflow number (65534 unless
//! `/proc/sys/kernel/overflowuid` says otherwise). So two equal numbers need not be one user: a process that is itself not mapped has
//! this number, and so has every stranger. The same holds for groups. Source: user_namespaces(7), "Unmapped user and group IDs".

use crate::known_number::KnownNumber;
use std::fs::read_to_string;

/// How many numbers there are: all but -1.
const ALL: u64 = u32::MAX as u64;
const USUAL: u32 = 65534;

/// Returns true if this is the effective user of this process, and no other.
pub fn is_own_user(uid: u32) -> bool {
    // SAFETY: takes no pointers.
    uid == unsafe { libc::geteuid() } && is_one_user(uid)
}

/// Returns true if this user number, as the kernel shows it to this process, stands for one user.
pub fn is_one_user(uid: u32) -> bool {
    // The machine's, for good. The map may come later, or be another one after setns(2).
    static OVERFLOW: KnownNumber = KnownNumber::new();
    let overflow = OVERFLOW.get_or_find(|| number_in("/proc/sys/kernel/overflowuid"));
    stands_for_one(uid, overflow, "/proc/self/uid_map")
}

/// Returns true if this group number, as the kernel shows it to this process, stands for one group.
pub fn is_one_group(gid: u32) -> bool {
    // As above.
    static OVERFLOW: KnownNumber = KnownNumber::new();
    let overflow = OVERFLOW.get_or_find(|| number_in("/proc/sys/kernel/overflowgid"));
    stands_for_one(gid, overflow, "/proc/self/gid_map")
}

fn number_in(file: &str) -> u32 {
    read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL)
}

/// Reads no file for any other number than the overflow number: each request of a mount asks for each group of its caller.
fn stands_for_one(id: u32, overflow: u32, map: &str) -> bool {
    id != overflow || read_to_string(map).is_ok_and(|map| maps_all(&map))
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
        let dir = tempfile::tempdir().unwrap();
        let (overflow, map) = (dir.path().join("overflow"), dir.path().join("map"));
        std::fs::write(&overflow, "77\n").unwrap();
        std::fs::write(&map, "0 1000 1\n").unwrap();
        let [overflow, map] = [overflow, map].map(|path| path.to_str().unwrap().to_owned());
        assert_eq!((number_in(&overflow), number_in(&map)), (77, USUAL));
        assert!(stands_for_one(0, 77, &map) && !stands_for_one(77, 77, &map));
        std::fs::write(&map, "0 0 4294967295\n").unwrap();
        assert!(stands_for_one(77, 77, &map));
        assert!(!stands_for_one(77, 77, "/no such file"));
    }
}
