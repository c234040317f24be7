use super::*;
use crate::{Error, umount};

#[test]
fn the_mount_table_is_understood() {
    let table = b"22 1 0:20 / / rw shared:1 - ext4 /dev/vda rw\n\
        40 22 0:33 / /mnt/a\\040b rw,nosuid shared:2 master:1 - fuse.heddle img\\134x rw,user_id=0\n\
        broken line\n";
    let mounts = parse(table);
    assert_eq!(mounts.len(), 2);
    assert_eq!(mounts[1].dir, Path::new("/mnt/a b"));
    assert_eq!(
        (mounts[1].id, mounts[1].source.to_str().unwrap(), mounts[1].is_heddle()),
        (40, "img\\x", true)
    );
    assert!(!mounts[0].is_heddle());
    assert_eq!((mounts[0].user, mounts[1].user), (None, Some(0)));
}

#[test]
fn unmounting_what_is_not_ours_is_refused_with_words() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(umount(dir.path()), Err(Error::NotMounted { .. })));
    let Err(error) = umount(Path::new("/proc")) else { panic!("proc was unmounted") };
    assert!(error.to_string().starts_with("/proc is not a heddle mount but proc of "), "{error}");
}
