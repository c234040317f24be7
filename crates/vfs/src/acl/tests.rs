use super::*;

fn entry(tag: Tag, perm: u8, id: u32) -> Entry {
    Entry { tag, perm, id }
}

/// rw for the owner and user 1000, r for group 2000 and the owning group, at most what the mask says, nothing for others.
fn acl(mask: u8) -> Acl {
    Acl::new(vec![
        entry(Tag::Owner, 6, 0),
        entry(Tag::User, 6, 1000),
        entry(Tag::OwningGroup, 4, 0),
        entry(Tag::Group, 4, 2000),
        entry(Tag::Mask, mask, 0),
        entry(Tag::Others, 0, 0),
    ])
    .unwrap()
}

fn user(uid: u32, groups: &[u32]) -> Cred {
    Cred { uid, gid: 9999, groups: groups.to_vec(), umask: 0 }
}

fn allowed(cred: &Cred, mask: u8, want: Permission) -> bool {
    let perm = acl(mask).mode_bits().0;
    cred.check_acl(FileKind::Regular, perm, (7, 8), Some(&acl(mask)), want).is_ok()
}

#[test]
fn named_users_and_groups_get_what_their_entry_and_the_mask_grant() {
    let (read, write) = (Permission::READ, Permission::WRITE);
    assert!(allowed(&user(1000, &[]), 6, write) && !allowed(&user(1000, &[]), 4, write));
    assert!(allowed(&user(1001, &[2000]), 6, read) && !allowed(&user(1001, &[2000]), 6, write));
    assert!(allowed(&user(1001, &[8]), 6, read), "the owning group");
    assert!(!allowed(&user(1001, &[]), 6, read), "a stranger");
    assert!(allowed(&user(7, &[]), 4, write), "the owner is not under the mask");
    assert!(allowed(&Cred::root(), 0, write));
}

#[test]
fn a_member_of_a_group_gets_nothing_from_the_entry_of_others() {
    let acl = Acl::new(vec![
        entry(Tag::Owner, 7, 0),
        entry(Tag::OwningGroup, 0, 0),
        entry(Tag::Group, 1, 2000),
        entry(Tag::Mask, 7, 0),
        entry(Tag::Others, 4, 0),
    ])
    .unwrap();
    let check = |cred: &Cred| cred.check_acl(FileKind::Regular, 0o774, (7, 8), Some(&acl), Permission::READ);
    assert_eq!(check(&user(1, &[2000])), Err(Error::AccessDenied));
    assert_eq!(check(&user(1, &[])), Ok(()));
}

#[test]
fn the_form_is_that_of_linux() {
    let bytes = acl(6).to_xattr();
    assert_eq!(&bytes[..12], &[2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
    assert_eq!(&bytes[12..20], &[2, 0, 6, 0, 0xe8, 3, 0, 0]);
    assert_eq!(Acl::from_xattr(&bytes), Ok(Some(acl(6))).map(|a: Option<Acl>| a.map(with_ids)));
    assert_eq!(Acl::from_xattr(&bytes[..4]), Ok(None));
    assert_eq!(Acl::from_xattr(&[]), Ok(None));
}

fn with_ids(acl: Acl) -> Acl {
    Acl(acl.0.into_iter().map(|e| Entry::from_word(e.word()).unwrap()).collect())
}

#[test]
fn what_is_no_list_is_refused() {
    let good = acl(6).to_xattr();
    let mut other_version = good.clone();
    other_version[0] = 3;
    assert!(matches!(Acl::from_xattr(&other_version), Err(Error::NotSupported(_))));
    for cut in [1, 3, 5, 11, good.len() - 1, good.len() - 8] {
        assert!(
            matches!(Acl::from_xattr(&good[..cut]), Err(Error::InvalidArgument(_) | Error::NotSupported(_))),
            "{cut}"
        );
    }
    let mut no_tag = good.clone();
    no_tag[4] = 3;
    assert!(matches!(Acl::from_xattr(&no_tag), Err(Error::InvalidArgument(_))));
    let mut permission = good;
    permission[6] = 8;
    assert!(matches!(Acl::from_xattr(&permission), Err(Error::InvalidArgument(_))));
    let without_mask = acl(6).0.into_iter().filter(|e| e.tag != Tag::Mask).collect();
    assert!(matches!(Acl::new(without_mask), Err(Error::InvalidArgument(_))));
}

#[test]
fn mode_and_list_follow_each_other() {
    assert_eq!(acl(6).mode_bits(), (0o660, false));
    let mut changed = acl(6);
    changed.set_mode_bits(0o4751);
    assert_eq!(changed.mode_bits(), (0o751, false));
    assert_eq!(changed.0[2].perm, 4, "the owning group keeps its entry: the mask has the bits");
    let (access, mode) = acl(6).for_new(0o2640);
    assert_eq!((access.mode_bits().0, mode), (0o640, 0o2640));
}

#[test]
fn an_id_where_nobody_is_named_means_nothing() {
    let bytes = acl(6).to_xattr();
    let mut odd = bytes.clone();
    odd[8..12].copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(Acl::from_xattr(&odd), Acl::from_xattr(&bytes));
}
