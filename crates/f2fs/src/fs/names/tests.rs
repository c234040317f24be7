use super::*;
use crate::checkpoint::write::orphans_max;
use heddle_vfs::{FileSystem, Handle, OpenFlags, SetAttr};

fn with_image(work: impl FnOnce(&F2fs)) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = place.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
    crate::make_image(&path, "", &|_, _| ()).unwrap();
    work(&F2fs::open_for_writing(&path).unwrap());
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: Vec::new(), umask: 0 }
}

fn create(fs: &F2fs, text: &str) -> Handle {
    fs.create(&Cred::root(), Ino::ROOT, name(text), 0o644, OpenFlags::READ_WRITE).unwrap().1
}

fn make(fs: &F2fs, cred: &Cred, dir: Ino, text: &str, kind: FileKind, target: &[u8]) -> Result<Ino> {
    let node = NewNode { kind, perm: 0o755, rdev: 0, target };
    fs.make(cred, dir, name(text), node).map(|attr| attr.ino)
}

fn own(fs: &F2fs, ino: Ino, uid: u32, perm: u16) {
    let set = SetAttr { uid: Some(uid), perm: Some(perm), ..SetAttr::default() };
    fs.setattr(&Cred::root(), ino, None, &set).unwrap();
}

/// symlink(2): the longest path has 4096 bytes with its NUL.
#[test]
fn a_link_has_a_target_of_1_to_4095_bytes() {
    with_image(|fs| {
        let link = |text: &str, len: usize| {
            make(fs, &Cred::root(), Ino::ROOT, text, FileKind::Symlink, &vec![b'x'; len])
        };
        assert_eq!(link("none", 0), Err(Error::NotFound));
        assert_eq!(link("too long", 4096), Err(Error::NameTooLong));
        for len in [1, 4095] {
            let ino = link(&len.to_string(), len).unwrap();
            assert!(fs.readlink(ino).unwrap() == vec![b'x'; len], "{len}");
        }
        let file = make(fs, &Cred::root(), Ino::ROOT, "file", FileKind::Regular, &[]).unwrap();
        assert!(matches!(fs.readlink(file), Err(Error::InvalidArgument(_))));
    });
}

/// mknod(2): EPERM for devices of anybody but root.
#[test]
fn devices_are_made_by_root_alone() {
    use FileKind::{BlockDevice, CharDevice, Fifo, Socket};
    with_image(|fs| {
        own(fs, Ino::ROOT, 0, 0o777);
        for (n, (kind, may)) in
            [(CharDevice, false), (BlockDevice, false), (Fifo, true), (Socket, true)].into_iter().enumerate()
        {
            assert_eq!(make(fs, &user(5), Ino::ROOT, &format!("u{n}"), kind, &[]).is_ok(), may, "{kind:?}");
            assert!(make(fs, &Cred::root(), Ino::ROOT, &format!("r{n}"), kind, &[]).is_ok(), "{kind:?}");
        }
        assert_eq!(make(fs, &user(5), Ino::ROOT, "device", CharDevice, &[]), Err(Error::NotPermitted));
    });
}

/// A checkpoint has room for a number of them, and what it has no room for stays named.
#[test]
fn inodes_without_a_name_are_refused_beyond_what_a_checkpoint_lists() {
    with_image(|fs| {
        let dir = make(fs, &Cred::root(), Ino::ROOT, "dir", FileKind::Directory, &[]).unwrap();
        ["one", "two", "three", "four"].into_iter().for_each(|text| fs.release(create(fs, text)));
        let most = orphans_max(&fs.media.geometry) as u32;
        // As if they were open: numbers that no inode here has.
        let others = || (0..most - 1).map(|n| Nid(u32::MAX - n));
        fs.checkpoint_state().orphans.extend(others());
        fs.unlink(&Cred::root(), Ino::ROOT, name("one")).unwrap();
        fs.checkpoint_state().orphans.insert(Nid(u32::MAX - most));
        let rename =
            |to: &str, mode| fs.rename(&Cred::root(), Ino::ROOT, name("two"), Ino::ROOT, name(to), mode);
        let refused = [
            fs.unlink(&Cred::root(), Ino::ROOT, name("two")),
            fs.rmdir(&Cred::root(), Ino::ROOT, name("dir")),
            rename("three", RenameMode::Replace),
            fs.tmpfile(&Cred::root(), dir, 0o600, OpenFlags::READ_WRITE, true).map(drop),
        ];
        assert_eq!(refused, [const { Err(Error::NoSpace) }; 4]);
        fs.checkpoint_state().orphans.remove(&Nid(u32::MAX));
        fs.unlink(&Cred::root(), Ino::ROOT, name("two")).unwrap();
        let (_, file) = fs.tmpfile(&Cred::root(), dir, 0o600, OpenFlags::READ_WRITE, true).unwrap();
        assert_eq!(
            fs.unlink(&Cred::root(), Ino::ROOT, name("four")),
            Err(Error::NoSpace),
            "the list is full again"
        );
        fs.release(file);
        fs.unlink(&Cred::root(), Ino::ROOT, name("four")).unwrap();
        others().chain([Nid(u32::MAX - most)]).for_each(|nid| _ = fs.checkpoint_state().orphans.remove(&nid));
    });
}

/// Linux looks at the flag before it believes the name in an inode.
#[test]
fn an_inode_with_two_names_marks_its_own_as_one_of_several() {
    with_image(|fs| {
        let is_marked = |ino: Ino| {
            let inode = fs.media.inode(nid_of(ino).unwrap()).unwrap();
            inode.block().advise & advise_flag::LOST_PARENT != 0
        };
        let file = create(fs, "file");
        assert!(!is_marked(file.ino));
        fs.link(&Cred::root(), file.ino, Ino::ROOT, name("again")).unwrap();
        assert!(is_marked(file.ino));
        fs.release(file);
        let (_, nameless) = fs.tmpfile(&Cred::root(), Ino::ROOT, 0o600, OpenFlags::READ_WRITE, true).unwrap();
        fs.link(&Cred::root(), nameless.ino, Ino::ROOT, name("first")).unwrap();
        assert!(!is_marked(nameless.ino));
        fs.release(nameless);
    });
}

/// rename(2): EACCES if `..` of a directory that moves cannot be changed.
#[test]
fn a_directory_moves_elsewhere_if_its_mover_may_write_to_it() {
    use RenameMode::{Exchange, Replace};
    with_image(|fs| {
        let make = |dir, text, kind| make(fs, &Cred::root(), dir, text, kind, &[]).unwrap();
        let [from, to] = ["from", "to"].map(|text| make(Ino::ROOT, text, FileKind::Directory));
        [from, to].into_iter().for_each(|dir| own(fs, dir, 5, 0o755));
        // Those that end in `w` are the user's to write to.
        for (dir, text) in [(from, "a"), (from, "aw"), (to, "b"), (to, "bw")] {
            let ino = make(dir, text, FileKind::Directory);
            own(fs, ino, if text.ends_with('w') { 5 } else { 0 }, 0o755);
        }
        for dir in [from, to] {
            let ino = make(dir, "file", FileKind::Regular);
            own(fs, ino, 0, 0o444);
        }
        let rename =
            |old: &str, dir, new: &str, mode| fs.rename(&user(5), from, name(old), dir, name(new), mode);
        let denied = Err(Error::AccessDenied);
        assert_eq!(rename("a", to, "new", Replace), denied);
        assert_eq!(rename("a", to, "bw", Replace), denied);
        assert_eq!(rename("a", from, "again", Replace), Ok(()), "nothing in it changes");
        assert_eq!(rename("again", from, "a", Replace), Ok(()));
        assert_eq!(rename("a", to, "bw", Exchange), denied);
        assert_eq!(rename("aw", to, "b", Exchange), denied, "the other one moves, too");
        assert_eq!(rename("aw", to, "bw", Exchange), Ok(()));
        assert_eq!(rename("aw", to, "file", Exchange), Ok(()), "a file has no `..`");
        assert_eq!(rename("file", from, "a", Exchange), Ok(()), "both stay in their directory");
        // What is replaced goes, and does not move.
        assert_eq!(fs.rename(&user(5), to, name("bw"), from, name("a"), Replace), Err(Error::NotDirectory));
        assert_eq!(fs.rename(&user(5), to, name("bw"), from, name("file"), Replace), Ok(()), "an empty one");
        assert_eq!(fs.parent(fs.lookup(&user(5), from, name("file")).unwrap().ino), Ok(from));
    });
}
