use super::*;

fn name(text: &str) -> XattrName<'_> {
    XattrName::new(text.as_bytes()).unwrap()
}

#[test]
fn names_are_of_a_known_namespace_and_not_too_long() {
    let longest = format!("user.{}", "n".repeat(250));
    assert!(XattrName::new(longest.as_bytes()).is_ok());
    assert_eq!(XattrName::new(format!("{longest}n").as_bytes()), Err(Error::Range));
    assert_eq!(XattrName::new(b""), Err(Error::Range));
    for odd in ["user", "os2.x", "system.other", "USER.x"] {
        assert!(matches!(XattrName::new(odd.as_bytes()), Err(Error::NotSupported(_))), "{odd}");
    }
    for odd in ["user.", "trusted.", "security.", "user.a\0b"] {
        assert!(matches!(XattrName::new(odd.as_bytes()), Err(Error::InvalidArgument(_))), "{odd}");
    }
}

#[test]
fn a_set_keeps_its_limits() {
    let mut set = Xattrs::default();
    let value = vec![1; XATTR_VALUE_MAX_BYTES];
    assert_eq!(set.put(name("user.a"), vec![1; XATTR_VALUE_MAX_BYTES + 1]), Err(Error::TooBig));
    let names: Vec<String> = (0..20).map(|i| format!("user.{i}")).collect();
    let fitting = names.iter().take_while(|n| set.put(name(n), value.clone()).is_ok()).count();
    assert_eq!(fitting, XATTR_TOTAL_MAX_BYTES / (XATTR_VALUE_MAX_BYTES + 7));
    assert_eq!(set.put(name("user.0"), value), Ok(()), "what is replaced does not count");
    let mut set = Xattrs::default();
    let long = |i: usize| format!("user.{i:0250}");
    let fitting = (0..300).take_while(|i| set.put(name(&long(*i)), vec![]).is_ok()).count();
    assert_eq!((fitting, set.list(&Cred::root()).len()), (256, XATTR_LIST_MAX_BYTES));
}

#[test]
fn trusted_names_are_shown_to_root_alone() {
    let mut set = Xattrs::default();
    set.put(name("trusted.t"), vec![]).unwrap();
    set.put(name("user.u"), vec![]).unwrap();
    let user = Cred { uid: 5, ..Cred::root() };
    assert_eq!(set.list(&Cred::root()), b"trusted.t\0user.u\0");
    assert_eq!(set.list(&user), b"user.u\0");
}
