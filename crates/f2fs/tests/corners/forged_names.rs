//! Entries of directories that name what is not theirs, by damage.

use super::{ROOT, create, make_dir, mounted, name, size};
use crate::common::{Image, read};
use crate::forge::Forge;
use heddle_f2fs::F2fs;
use heddle_f2fs::format::{DentryBlock, InodeBlock, bit_lsb};
use heddle_vfs::{Cred, Error, FileSystem, OpenFlags, RenameMode};
use std::path::Path;
use zerocopy::FromBytes;

/// Changes the entry of a name in blocks of the root.
fn forge_entry(image: &Image, text: &str, ino: Option<u32>, kind: Option<u8>) {
    let forge = Forge::of(&image.path);
    let superblock = forge.superblock();
    let main = superblock.main.get()..superblock.main.get() + 512 * superblock.segments_main.get();
    let mut forged = 0;
    for (_, root) in forge.nodes_of(3) {
        let root: &InodeBlock = zerocopy::transmute_ref!(&root);
        for pointer in root.addr.iter().map(|pointer| pointer.get()).filter(|addr| main.contains(addr)) {
            forge.change(pointer, |block| {
                let block = DentryBlock::mut_from_bytes(block).unwrap();
                for slot in (0..block.entries.len()).filter(|slot| bit_lsb(&block.bitmap, *slot)) {
                    let entry = &mut block.entries[slot];
                    if block.names[slot].starts_with(text.as_bytes())
                        && usize::from(entry.name_bytes.get()) == text.len()
                    {
                        entry.ino.set(ino.unwrap_or(entry.ino.get()));
                        entry.kind = kind.unwrap_or(entry.kind);
                        forged += 1;
                    }
                }
            });
        }
    }
    assert!(forged > 0);
}

/// An image with `wrong`, `good`, an empty directory `dir`, and `in/other`, whose bytes are fives.
fn image() -> (Image, [u32; 3]) {
    let image = Image::made(64);
    let fs = mounted(&image);
    let inside = make_dir(&fs, "in");
    let inos = [("wrong", ROOT), ("good", ROOT), ("other", inside)].map(|(text, dir)| {
        let file = create(&fs, dir, text);
        fs.write(&file, 0, &[5; 5000]).unwrap();
        let ino = file.ino.0 as u32;
        fs.release(file);
        ino
    });
    make_dir(&fs, "dir");
    fs.unmount().unwrap();
    (image, inos)
}

/// The file's only link went with a name that was never its own.
#[test]
fn crash_a_forged_entry_took_the_file_that_it_named() {
    for how in ["unlink", "rename over it"] {
        for theirs in ["in/other", "good"] {
            let (image, [_, good, other]) = image();
            forge_entry(&image, "wrong", Some(if theirs == "good" { good } else { other }), None);
            let (fs, root) = (mounted(&image), Cred::root());
            match how {
                "unlink" => fs.unlink(&root, ROOT, name("wrong")).unwrap(),
                _ => {
                    fs.release(create(&fs, ROOT, "new"));
                    fs.rename(&root, ROOT, name("new"), ROOT, name("wrong"), RenameMode::Replace).unwrap();
                }
            }
            fs.unmount().unwrap();
            drop(fs);
            let fs = mounted(&image);
            assert!(read(&fs, &Path::new("/").join(theirs)) == [5; 5000], "{how}, {theirs}");
            assert_eq!(fs.lookup(&root, ROOT, name("wrong")).is_ok(), how != "unlink");
            // Its own name takes it.
            let dir = if theirs == "good" { ROOT } else { fs.lookup(&root, ROOT, name("in")).unwrap().ino };
            let ino = fs.lookup(&root, dir, name(theirs.rsplit('/').next().unwrap())).unwrap().ino;
            fs.unlink(&root, dir, name(theirs.rsplit('/').next().unwrap())).unwrap();
            assert_eq!(fs.getattr(ino).unwrap_err(), Error::Stale);
            assert!(!fs.has_failed());
        }
    }
}

/// Nobody can say whether the inode has that other name: so it stays.
#[test]
fn a_forged_entry_takes_no_file_whose_own_directory_is_damaged() {
    let (image, [_, _, other]) = image();
    forge_entry(&image, "wrong", Some(other), None);
    let inside = {
        let fs = mounted(&image);
        fs.lookup(&Cred::root(), ROOT, name("in")).unwrap().ino
    };
    Forge::of(&image.path).inode(inside.0 as u32, |inode| {
        inode.addr[9].set(u32::MAX - 9);
        crate::believed::seal(&image, inode);
    });
    let (fs, root) = (mounted(&image), Cred::root());
    fs.unlink(&root, ROOT, name("wrong")).unwrap();
    assert_eq!(fs.lookup(&root, ROOT, name("wrong")).map(drop), Err(Error::NotFound));
    fs.unmount().unwrap();
    drop(fs);
    let fs = mounted(&image);
    let file = fs.open(&root, heddle_vfs::Ino(other.into()), OpenFlags::READ).unwrap();
    let mut bytes = [0; 5000];
    assert_eq!(fs.read(&file, 0, &mut bytes), Ok(5000));
    assert!(bytes == [5; 5000] && !fs.has_failed());
    fs.release(file);
}

/// What Linux leaves in inodes is no other name: old ones after a rename.
#[test]
fn an_inode_that_says_an_old_name_goes_with_the_new_one() {
    let (image, [wrong, ..]) = image();
    for said in ["gone", "good", ""] {
        let image = Image::copy_of(&image);
        Forge::of(&image.path).inode(wrong, |inode| {
            inode.name.fill(0);
            inode.name[..said.len()].copy_from_slice(said.as_bytes());
            inode.name_bytes.set(said.len() as u32);
            crate::believed::seal(&image, inode);
        });
        let fs = mounted(&image);
        let ino = fs.lookup(&Cred::root(), ROOT, name("wrong")).unwrap().ino;
        fs.unlink(&Cred::root(), ROOT, name("wrong")).unwrap();
        assert_eq!(fs.getattr(ino).unwrap_err(), Error::Stale, "{said}");
        assert!(read(&fs, Path::new("/good")) == [5; 5000]);
    }
}

/// The kernel made EIO of a child that was the root.
#[test]
fn a_name_that_leads_to_the_root_is_damage_to_each_call() {
    let (image, _) = image();
    for ino in [0, 1, 2, 3] {
        let image = Image::copy_of(&image);
        forge_entry(&image, "wrong", Some(ino), None);
        forge_entry(&image, "dir", Some(ino), None);
        let (fs, root) = (mounted(&image), Cred::root());
        fs.release(create(&fs, ROOT, "new"));
        for text in ["wrong", "dir"] {
            let text = name(text);
            let calls = [
                fs.lookup(&root, ROOT, text).map(drop),
                fs.step(&root, ROOT, text).map(drop),
                fs.unlink(&root, ROOT, text),
                fs.rmdir(&root, ROOT, text),
                fs.rename(&root, ROOT, name("new"), ROOT, text, RenameMode::Replace),
                fs.rename(&root, ROOT, text, ROOT, name("moved"), RenameMode::Replace),
                fs.create(&root, ROOT, text, 0o600, OpenFlags::WRITE).map(drop),
            ];
            assert!(calls.iter().all(|done| matches!(done, Err(Error::Corrupt(_)))), "{ino}: {calls:?}");
        }
        assert!(!fs.has_failed());
        fs.unmount().unwrap();
        drop(fs);
        let problems = F2fs::open(&image.path).unwrap().survey().problems;
        for wrong in ["/wrong", "/dir"] {
            let told = |problem: &String| problem.contains(wrong) && problem.contains("a name leads to");
            assert!(problems.iter().any(told), "{ino}: {problems:?}");
        }
    }
}

#[test]
fn an_entry_of_another_kind_than_its_inode_is_removed_by_nobody() {
    let (image, [wrong, ..]) = image();
    forge_entry(&image, "wrong", None, Some(2));
    forge_entry(&image, "dir", None, Some(1));
    let (fs, root) = (mounted(&image), Cred::root());
    let dir = fs.lookup(&root, ROOT, name("dir")).unwrap().ino;
    fs.release(create(&fs, ROOT, "new"));
    let rename = |to: &str| fs.rename(&root, ROOT, name("new"), ROOT, name(to), RenameMode::Replace);
    for done in [
        fs.unlink(&root, ROOT, name("dir")),
        fs.rmdir(&root, ROOT, name("wrong")),
        rename("dir"),
        rename("wrong"),
    ] {
        assert!(matches!(done, Err(Error::Corrupt(_))), "{done:?}");
    }
    assert!(read(&fs, Path::new("/wrong")) == [5; 5000] && fs.getattr(dir).is_ok());
    assert!(!fs.has_failed());
    let problems = fs.survey().problems.join("\n");
    assert!(problems.contains("/wrong") && problems.contains("/dir"), "{problems}");
    let file = fs.open(&root, heddle_vfs::Ino(wrong.into()), OpenFlags::READ_WRITE).unwrap();
    fs.setattr(&root, file.ino, Some(&file), &size(7)).unwrap();
    fs.release(file);
}
