//! Who counts as root.

use super::*;

#[test]
fn only_the_effective_user_counts() {
    assert!(is_root("Name:\tx\nUid:\t1000\t0\t0\t0\n"));
    assert!(!is_root("Name:\tx\nUid:\t0\t1000\t0\t0\n"));
    assert!(!is_root(""));
}
