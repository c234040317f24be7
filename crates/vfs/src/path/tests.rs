use super::*;
use crate::model::ModelFs;
use crate::{SetAttr, SetTime};

fn cred() -> Cred {
    Cred::root()
}

fn fs_with(dirs: &[&str], links: &[(&str, &str)]) -> ModelFs {
    let fs = ModelFs::new();
    for dir in dirs {
        create_dir_all(&fs, &cred(), dir, 0o755).unwrap();
    }
    for (link, target) in links {
        let (parent, name) = resolve_parent(&fs, &cred(), *link).unwrap();
        let node = NewNode { kind: FileKind::Symlink, perm: 0, rdev: 0, target: target.as_bytes() };
        fs.make(&cred(), parent, name, node).unwrap();
    }
    fs
}

fn ino(fs: &ModelFs, path: &str) -> Result<Ino> {
    resolve(fs, &cred(), path).map(|attr| attr.ino)
}

#[test]
fn dots_and_doubled_slashes_lead_where_they_do_in_linux() {
    let fs = fs_with(&["a/b/c"], &[]);
    let b = ino(&fs, "/a/b").unwrap();
    for path in ["a/b", "/a//b/", "/a/./b/.", "/a/b/c/..", "/../../a/b", "//a/b/c/../../b"] {
        assert_eq!(ino(&fs, path), Ok(b), "{path}");
    }
    for root in ["/", "//", ".", "..", "/a/.."] {
        assert_eq!(ino(&fs, root), Ok(Ino::ROOT), "{root}");
    }
    assert_eq!(ino(&fs, ""), Err(Error::NotFound));
    assert_eq!(ino(&fs, "/a/x/.."), Err(Error::NotFound));
}

#[test]
fn symbolic_links_are_followed_from_where_they_are() {
    let fs =
        fs_with(&["a/b", "d"], &[("d/rel", "../a/b"), ("d/abs", "/a"), ("d/root", "/"), ("d/two", "abs/b")]);
    let b = ino(&fs, "a/b").unwrap();
    for path in ["d/rel", "d/abs/b", "d/root/a/b", "d/two", "d/two/../b"] {
        assert_eq!(ino(&fs, path), Ok(b), "{path}");
    }
    assert_eq!(resolve_nofollow(&fs, &cred(), "d/rel").unwrap().kind, FileKind::Symlink);
    assert_eq!(resolve_nofollow(&fs, &cred(), "d/rel/").unwrap().ino, b);
}

#[test]
fn forty_links_are_followed_and_the_next_is_a_loop() {
    let names: Vec<String> = (0..42).map(|i| format!("l{i}")).collect();
    let mut links: Vec<(&str, &str)> = names.windows(2).map(|w| (w[1].as_str(), w[0].as_str())).collect();
    links.insert(0, ("l0", "target"));
    links.push(("self", "self"));
    let fs = fs_with(&["target"], &links);
    assert!(ino(&fs, "l39").is_ok());
    assert_eq!(ino(&fs, "l40"), Err(Error::Loop));
    assert_eq!(ino(&fs, "self"), Err(Error::Loop));
}

#[test]
fn a_trailing_slash_asks_for_a_directory() {
    let fs = fs_with(&["dir"], &[("link", "file")]);
    fs.release(open_path(&fs, &cred(), "file", libc::O_CREAT | libc::O_RDWR, 0o644).unwrap());
    assert_eq!(ino(&fs, "file/"), Err(Error::NotDirectory));
    assert_eq!(ino(&fs, "link/"), Err(Error::NotDirectory));
    assert_eq!(ino(&fs, "file/x"), Err(Error::NotDirectory));
    assert_eq!(
        open_path(&fs, &cred(), "new/", libc::O_CREAT | libc::O_RDWR, 0o644).err(),
        Some(Error::IsDirectory)
    );
    assert!(resolve_parent(&fs, &cred(), "dir/new/").is_ok());
}

#[test]
fn opening_obeys_its_flags() {
    let fs = fs_with(&["dir"], &[("dangling", "dir/made"), ("link", "file")]);
    let open = |path: &str, flags| open_path(&fs, &cred(), path, flags, 0o600);
    assert_eq!(open("file", libc::O_RDONLY).err(), Some(Error::NotFound));
    let file = open("file", libc::O_CREAT | libc::O_EXCL | libc::O_RDWR).unwrap();
    fs.write(&file, 0, b"text").unwrap();
    assert_eq!(open("file", libc::O_CREAT | libc::O_EXCL | libc::O_RDWR).err(), Some(Error::Exists));
    assert_eq!(open("link", libc::O_NOFOLLOW).err(), Some(Error::Loop));
    assert_eq!(open("link", libc::O_CREAT | libc::O_NOFOLLOW).err(), Some(Error::Loop));
    assert_eq!(open("file", libc::O_DIRECTORY).err(), Some(Error::NotDirectory));
    assert_eq!(open("dir", libc::O_RDWR).err(), Some(Error::IsDirectory));
    assert_eq!(open("dir", libc::O_CREAT).err(), Some(Error::IsDirectory));
    fs.release(open("link", libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC).unwrap());
    assert_eq!(fs.getattr(file.ino).unwrap().size_bytes, 0);
    fs.release(open("dangling", libc::O_CREAT | libc::O_WRONLY).unwrap());
    assert_eq!(resolve(&fs, &cred(), "dir/made").unwrap().perm, 0o600);
}

#[test]
fn a_directory_without_execute_permission_stops_the_walk() {
    let fs = fs_with(&["open/shut/inner"], &[]);
    let shut = ino(&fs, "open/shut").unwrap();
    let set = SetAttr { perm: Some(0o644), mtime: Some(SetTime::Now), ..SetAttr::default() };
    fs.setattr(&cred(), shut, None, &set).unwrap();
    let user = Cred { uid: 1000, gid: 1000, groups: vec![], umask: 0 };
    for path in ["open/shut/inner", "open/shut/.", "open/shut/.."] {
        assert_eq!(resolve(&fs, &user, path).err(), Some(Error::AccessDenied), "{path}");
    }
    assert!(resolve(&fs, &user, "open/shut").is_ok());
}

#[test]
fn names_and_paths_that_are_too_long_are_refused() {
    let fs = ModelFs::new();
    assert_eq!(ino(&fs, &"n".repeat(256)), Err(Error::NameTooLong));
    assert_eq!(ino(&fs, &"n".repeat(255)), Err(Error::NotFound));
    assert_eq!(ino(&fs, &"/".repeat(4096)), Err(Error::NameTooLong));
    assert_eq!(resolve_parent(&fs, &cred(), "a/..").err(), Some(Error::InvalidName));
}
