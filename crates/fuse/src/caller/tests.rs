use super::*;

#[test]
fn groups_are_read_from_a_status_file() {
    assert_eq!(parse_groups("Name:\tcat\nGroups:\t4 24 1000 \nUid:\t1\n"), [4, 24, 1000]);
    assert_eq!(parse_groups("Name:\tcat\nGroups:\t \n"), []);
    assert_eq!(parse_groups(""), []);
}
