use super::*;
use crate::checksum::of_inode;
use crate::format::InodeBlock;
use heddle_vfs::{Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, SetAttr};
use std::path::PathBuf;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

fn image() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = place.path().join("image");
    File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
    crate::make_image(&path, "", &|_, _| ()).unwrap();
    (place, path)
}

fn create(fs: &F2fs, text: &str) -> Handle {
    let name = Name::new(text.as_bytes()).unwrap();
    fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap().1
}

fn chmod(fs: &F2fs, ino: Ino, perm: u16) {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    fs.setattr(&Cred::root(), ino, None, &set).unwrap();
}

fn version(fs: &F2fs) -> u64 {
    fs.info().checkpoint_version
}

/// Changes an inode where it is, and puts its checksum right if that is asked for.
fn change_inode(path: &Path, nid: Nid, seals: bool, change: impl FnOnce(&mut InodeBlock)) {
    let (addr, uuid) = {
        let fs = F2fs::open(path).unwrap();
        (fs.media.nodes.nat.find(&fs.media.device, nid).unwrap().addr.get(), fs.info().uuid)
    };
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (mut block, at) = ([0; BLOCK_BYTES], u64::from(addr) * BLOCK_BYTES as u64);
    file.read_exact_at(&mut block, at).unwrap();
    let inode = InodeBlock::mut_from_bytes(&mut block).unwrap();
    change(inode);
    if seals {
        inode.addr[2] = U32::new(of_inode(inode_seed(&uuid), inode));
    }
    file.write_all_at(&block, at).unwrap();
}

#[test]
fn a_new_image_has_nothing_to_tell_of() {
    let (_place, path) = image();
    let fs = F2fs::open_for_writing(&path).unwrap();
    assert!(fs.left_uncleaned().is_empty() && fs.orphans_left().is_empty() && !fs.has_failed());
    assert!(!fs.is_changed() && !fs.is_logged());
    let (space, info) = (fs.statfs().unwrap(), fs.info());
    assert_eq!((info.inodes, space.inodes_total), (1, 1 + space.inodes_free));
}

#[test]
fn each_kind_of_change_makes_the_next_checkpoint() {
    let (_place, path) = image();
    let fs = F2fs::open_for_writing(&path).unwrap();
    let file = create(&fs, "file");
    let is_made = |what: &str, is_wanted: bool| {
        let before = version(&fs);
        assert_eq!(fs.is_changed(), is_wanted, "{what}");
        fs.checkpoint_if_changed().unwrap();
        assert_eq!(version(&fs) > before, is_wanted, "{what}");
    };
    is_made("a name", true);
    is_made("nothing", false);
    chmod(&fs, file.ino, 0o600);
    is_made("an attribute", true);
    fs.write(&file, 0, &[5; 8 * BLOCK_BYTES]).unwrap();
    is_made("many pages", true);
    fs.write(&file, 0, b"x").unwrap();
    let before = version(&fs);
    fs.fsync(&file, false).unwrap();
    assert_eq!(version(&fs), before, "its node is enough");
    is_made("what an fsync wrote", true);
    is_made("nothing more", false);
    fs.release(file);
}

#[test]
fn an_unmount_notes_itself_once_and_giving_up_does_not() {
    let (_place, path) = image();
    let fs = F2fs::open_for_writing(&path).unwrap();
    // Returns true if that has written a checkpoint.
    let writes = |done: &dyn Fn() -> heddle_vfs::Result<()>| {
        let before = version(&fs);
        done().unwrap();
        version(&fs) > before
    };
    let (unmount, give_up) = (|| fs.unmount(), || fs.give_up());
    assert!(!writes(&unmount) && !writes(&give_up), "the image was clean");
    let file = create(&fs, "file");
    fs.sync().unwrap();
    assert!(!writes(&give_up) && !fs.info().clean, "all had been written");
    assert!(writes(&unmount) && fs.info().clean && !writes(&unmount));
    chmod(&fs, file.ino, 0o600);
    assert!(writes(&give_up) && !writes(&give_up));
    fs.release(file);
    drop(fs);
    let fs = F2fs::open(&path).unwrap();
    assert_eq!(fs.lookup(&Cred::root(), Ino::ROOT, Name::new(b"file").unwrap()).unwrap().perm, 0o600);
    assert_eq!((fs.unmount(), fs.give_up()), (Ok(()), Ok(())), "a reader writes nothing");
}

#[test]
fn variants_with_a_node_log_are_not_opened_without_one() {
    let (_place, path) = image();
    for variant in Variant::ALL.into_iter().filter(|variant| variant.has_node_log()) {
        for opened in [F2fs::open_as(&path, variant), F2fs::open_without_log(&path, variant)] {
            let Err(OpenError::NodeLog { what, .. }) = opened else { panic!("{}", variant.name()) };
            assert_eq!(what, format!("{} needs one, in NVM", variant.name()));
        }
    }
    drop(F2fs::open_without_log(&path, Variant::RangeLock).unwrap());
}

#[test]
fn a_root_that_is_no_directory_is_refused() {
    let (_place, path) = image();
    change_inode(&path, ROOT, true, |inode| inode.mode.set(0o100_755));
    for opened in [F2fs::open(&path), F2fs::open_for_writing(&path)] {
        let Err(OpenError::Damaged { what, .. }) = opened else { panic!("it is served") };
        assert_eq!(what, "the root is no directory");
    }
}

/// An image may have inodes with room for a checksum, and not use it.
#[test]
fn checksums_of_inodes_count_only_with_their_feature() {
    let (_place, path) = image();
    let fs = F2fs::open_for_writing(&path).unwrap();
    let file = create(&fs, "file");
    fs.release(file);
    fs.unmount().unwrap();
    let ino = fs.lookup(&Cred::root(), Ino::ROOT, Name::new(b"file").unwrap()).unwrap().ino;
    drop(fs);
    change_inode(&path, Nid(ino.0 as u32), false, |inode| inode.uid.set(4242));
    for open in [F2fs::open, F2fs::open_for_writing] {
        assert!(matches!(open(&path).unwrap().getattr(ino), Err(Error::Corrupt(_))));
    }
    let device = Device::open(&path, Access::Write).unwrap();
    superblock::rewrite(&device, [0, 1], |superblock| {
        superblock.feature.set(superblock.feature.get() & !feature::INODE_CHECKSUM);
    })
    .unwrap();
    drop(device);
    for open in [F2fs::open, F2fs::open_for_writing] {
        assert_eq!(open(&path).unwrap().getattr(ino).unwrap().uid, 4242);
    }
}

#[test]
fn either_superblock_tells_that_it_is_f2fs() {
    let (_place, path) = image();
    let file = File::options().write(true).open(&path).unwrap();
    assert!(is_f2fs(&path));
    file.write_all_at(&[0; BLOCK_BYTES], 0).unwrap();
    assert!(is_f2fs(&path));
    file.write_all_at(&[0; BLOCK_BYTES], BLOCK_BYTES as u64).unwrap();
    assert!(!is_f2fs(&path));
    file.set_len(100).unwrap();
    assert!(!is_f2fs(&path));
}

/// Handles of a file that is gone are told from those of the next one of its number.
#[test]
fn inodes_made_one_after_the_other_have_different_generations() {
    let (_place, path) = image();
    let fs = F2fs::open_for_writing(&path).unwrap();
    let pipe = NewNode { kind: FileKind::Fifo, perm: 0o600, rdev: 0, target: &[] };
    let mut generations: Vec<u64> = (0..4)
        .map(|n| {
            let text = format!("{n}");
            let name = Name::new(text.as_bytes()).unwrap();
            fs.make(&Cred::root(), Ino::ROOT, name, pipe).unwrap().generation
        })
        .collect();
    generations.sort_unstable();
    generations.dedup();
    assert_eq!(generations.len(), 4);
}
