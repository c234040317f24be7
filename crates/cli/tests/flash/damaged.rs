//! Damaged images through a mount: what is damaged costs no more than itself.

use crate::common::{Mounted, Place, Said, alone, command, heddle};
use heddle_f2fs::checksum::{inode_seed, of_inode};
use heddle_f2fs::format::{
    Dentry, DentryBlock, INODE_CHECKSUM_OFFSET_BYTES, InodeBlock, SUPERBLOCK_OFFSET_BYTES, Superblock,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use zerocopy::{FromBytes, IntoBytes};

const BLOCK_BYTES: usize = 4096;

/// Each block of an inode of this name becomes zeros.
fn lose_inodes(bytes: &mut [u8], name: &str) {
    let mut lost = 0;
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        let inode = InodeBlock::ref_from_bytes(block).unwrap();
        let is_inode = inode.footer.nid == inode.footer.ino && inode.footer.nid.get() > 3;
        let own = &inode.name[..(inode.name_bytes.get() as usize).min(inode.name.len())];
        if is_inode && own == name.as_bytes() {
            block.fill(0);
            lost += 1;
        }
    }
    assert!(lost > 0, "no inode is called {name}");
}

/// Changes the block of a directory's first entries, wherever it lies.
pub fn change_entries(bytes: &mut [u8], dir: u64, change: impl Fn(&mut DentryBlock)) {
    let mut changed = 0;
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        let entries = DentryBlock::mut_from_bytes(block).unwrap();
        let dots = entries.names[0] == *b".\0\0\0\0\0\0\0" && entries.names[1] == *b"..\0\0\0\0\0\0";
        if dots && u64::from(entries.entries[0].ino.get()) == dir {
            change(entries);
            changed += 1;
        }
    }
    assert!(changed > 0, "no block of directory {dir}");
}

/// The names of a listing, and how it ends.
pub fn listed(dir: &Path) -> (BTreeSet<String>, io::Result<()>) {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap() {
        match entry {
            Ok(entry) => assert!(names.insert(entry.file_name().into_string().unwrap())),
            Err(error) => return (names, Err(error)),
        }
    }
    (names, Ok(()))
}

/// Is this tool there? Said loudly if not.
pub fn is_there(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("-V").output().is_ok();
    if !is_there {
        eprintln!("SKIPPED, NOT TESTED: there is no {tool}");
    }
    is_there
}

/// One damaged inode ended each listing of its directory, and one above a directory all listings in it.
#[test]
fn a_damaged_inode_costs_its_directory_no_other_name() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    let names: BTreeSet<String> = (0..300).map(|n| format!("n{n:03}")).collect();
    let sub = {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        fs::create_dir_all(mounted.path("dir/sub")).unwrap();
        names.iter().for_each(|name| fs::write(mounted.path("dir").join(name), name).unwrap());
        fs::create_dir(mounted.path("dir/bad")).unwrap();
        fs::write(mounted.path("dir/sub/inside"), "x").unwrap();
        fs::metadata(mounted.path("dir/sub")).unwrap().ino()
    };
    place.edit(|bytes| {
        for name in ["n000", "n150", "n299", "bad"] {
            lose_inodes(bytes, name);
        }
        // What is above `sub` is what cannot be read.
        change_entries(bytes, sub, |block| block.entries[1].ino.set(60_000));
    });
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let dir = mounted.path("dir");
    let mut wanted = names.clone();
    wanted.extend(["sub", "bad"].map(str::to_owned));
    let (found, end) = listed(&dir);
    assert_eq!((found == wanted, end.is_ok()), (true, true), "{} names, {end:?}", found.len());
    for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        assert_eq!(entry.file_type().unwrap().is_dir(), ["sub", "bad"].contains(&&name[..]), "{name}");
        assert!(entry.ino() > 3, "{name}");
        match &name[..] {
            "n000" | "n150" | "n299" | "bad" => {
                let error = fs::symlink_metadata(entry.path()).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EUCLEAN), "{name}: {error}");
            }
            "sub" => _ = fs::metadata(entry.path()).unwrap(),
            _ => assert_eq!(fs::read_to_string(entry.path()).unwrap(), name),
        }
    }
    let (inside, end) = listed(&dir.join("sub"));
    assert!(end.is_ok() && inside.len() == 1, "{inside:?}, {end:?}");
    fs::write(dir.join("new"), "new").unwrap();
    fs::remove_file(dir.join("n001")).unwrap();
    fs::rename(dir.join("n002"), dir.join("moved")).unwrap();
    assert_eq!(fs::remove_file(dir.join("n150")).unwrap_err().raw_os_error(), Some(libc::EUCLEAN));
    wanted.extend(["new", "moved"].map(str::to_owned));
    wanted.retain(|name| !["n001", "n002"].contains(&&name[..]));
    let (found, end) = listed(&dir);
    assert!(found == wanted && end.is_ok(), "{:?}, {end:?}", found.symmetric_difference(&wanted));
}

/// Makes a directory of files with these names, and damages the entry of `n007`.
fn damage_n007(place: &Place, names: &BTreeSet<String>, change: impl Fn(&mut Dentry)) {
    let dir = {
        let mounted = Mounted::new(place, &["-o", "log=/dev/null"]);
        fs::create_dir(mounted.path("dir")).unwrap();
        names.iter().for_each(|name| fs::write(mounted.path("dir").join(name), name).unwrap());
        fs::metadata(mounted.path("dir")).unwrap().ino()
    };
    place.edit(|bytes| {
        change_entries(bytes, dir, |block| {
            let slot = block.names.iter().position(|name| *name == *b"n007\0\0\0\0").unwrap();
            change(&mut block.entries[slot]);
        });
    });
}

/// The kernel gave programs no name of an answer that was an error: the listing was empty.
#[test]
fn a_listing_gives_all_names_that_can_be_read_before_the_error() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    let mut names: BTreeSet<String> = (0..300).map(|n| format!("n{n:03}")).collect();
    damage_n007(&place, &names, |entry| entry.name_bytes.set(0));
    assert!(names.remove("n007"));
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let dir = mounted.path("dir");
    let (found, end) = listed(&dir);
    assert!(found == names, "{} names", found.len());
    assert_eq!(end.unwrap_err().raw_os_error(), Some(libc::EUCLEAN));
    assert_eq!(fs::metadata(dir.join("n007")).unwrap_err().raw_os_error(), Some(libc::EUCLEAN));
    names.iter().for_each(|name| assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), *name));
    names.iter().for_each(|name| fs::remove_file(dir.join(name)).unwrap());
    assert_eq!(fs::remove_dir(&dir).unwrap_err().raw_os_error(), Some(libc::EUCLEAN));
}

/// fsck.f2fs takes such an entry away, counts its inode all the same, and sees that when it is run again.
#[test]
fn one_damaged_entry_is_repaired_by_one_fsck() {
    let Some(_alone) = alone() else { return };
    if !is_there("fsck.f2fs") {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    let mut names: BTreeSet<String> = (0..30).map(|n| format!("n{n:03}")).collect();
    // No kind has this number, and fsck.f2fs lets it pass where it counts.
    damage_n007(&place, &names, |entry| entry.kind = 8);
    let (image, elsewhere) = (place.image(), tempfile::tempdir().unwrap());
    let said = Said::of(command(&["fsck", "-y", &image]).current_dir(elsewhere.path()).output().unwrap());
    assert!(said.code == 1 && said.out.contains("repaired"), "{}{}", said.out, said.err);
    // Its content is beside the image, and nothing where the command ran.
    let lost = format!("{image}.lost/lost_found");
    assert!(said.out.contains(&format!("files that lost their names are in {lost}")), "{}", said.out);
    let saved: Vec<_> = fs::read_dir(&lost).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(saved.len() == 1 && saved[0].to_str().unwrap().ends_with("-n007"), "{saved:?}");
    assert_eq!(fs::read_to_string(&saved[0]).unwrap(), "n007");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    heddle(&["fsck", "-n", &image]).ok();
    assert!(names.remove("n007"));
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let (mut found, end) = listed(&mounted.path("dir"));
    found.remove("n007");
    assert!(found == names && end.is_ok(), "{found:?}, {end:?}");
    names.iter().for_each(|name| {
        assert_eq!(fs::read_to_string(mounted.path("dir").join(name)).unwrap(), *name);
    });
}

/// fsck.f2fs says [FIX] and ends with 0: the image counted as clean, and no call found the name.
#[test]
fn a_name_with_a_wrong_hash_is_found_again_after_fsck() {
    let Some(_alone) = alone() else { return };
    if !is_there("fsck.f2fs") {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    let names: BTreeSet<String> = (0..30).map(|n| format!("n{n:03}")).collect();
    damage_n007(&place, &names, |entry| entry.hash.set(0));
    let image = place.image();
    heddle(&["fsck", "-n", &image]).failed(4, &[]);
    let said = heddle(&["fsck", "-y", &image]);
    assert!(said.code == 1 && said.out.contains("repaired"), "{}{}", said.out, said.err);
    heddle(&["fsck", "-n", &image]).ok();
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    names.iter().for_each(|name| {
        assert_eq!(fs::read_to_string(mounted.path("dir").join(name)).unwrap(), *name);
    });
}

/// Each inode of this name gets another one.
fn rename_inodes(bytes: &mut [u8], name: &str, new: &str) {
    let superblock = Superblock::ref_from_prefix(&bytes[SUPERBLOCK_OFFSET_BYTES..]).unwrap().0;
    let (seed, mut renamed) = (inode_seed(&superblock.uuid), 0);
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        let inode = InodeBlock::mut_from_bytes(block).unwrap();
        let is_inode = inode.footer.nid == inode.footer.ino && inode.footer.nid.get() > 3;
        let own = &inode.name[..(inode.name_bytes.get() as usize).min(inode.name.len())];
        if is_inode && own == name.as_bytes() {
            inode.name[..new.len()].copy_from_slice(new.as_bytes());
            inode.name_bytes.set(new.len() as u32);
            let crc = of_inode(seed, inode);
            inode.as_mut_bytes()[INODE_CHECKSUM_OFFSET_BYTES..][..4].copy_from_slice(&crc.to_le_bytes());
            renamed += 1;
        }
    }
    assert!(renamed > 0, "no inode is called {name}");
}

/// All files below a directory, with what is in them.
fn files_below(dir: &Path) -> BTreeMap<PathBuf, String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files = BTreeMap::new();
    for path in entries {
        match path.is_dir() {
            true => files.append(&mut files_below(&path)),
            false => _ = files.insert(path.clone(), fs::read_to_string(&path).unwrap()),
        }
    }
    files
}

/// fsck.f2fs saves a lost file under the name that its inode has: as root it wrote over files of the system.
#[test]
fn lost_files_with_paths_for_names_stay_below_their_directory() {
    let Some(_alone) = alone() else { return };
    if Command::new("fsck.f2fs").arg("-V").output().is_err() {
        eprintln!("SKIPPED, NOT TESTED: there is no fsck.f2fs");
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    let names: BTreeSet<String> = (0..30).map(|n| format!("n{n:03}")).collect();
    damage_n007(&place, &names, |entry| entry.kind = 8);
    // No name of 255 bytes climbs higher than the last one.
    let climbs = [1, 2, 3, 4, 5, 40, 82];
    place.edit(|bytes| {
        for (n, climbs) in climbs.into_iter().enumerate() {
            rename_inodes(bytes, &format!("n{n:03}"), &format!("{}victim", "../".repeat(climbs)));
        }
        for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
            let block = DentryBlock::mut_from_bytes(block).unwrap();
            let lost = (0..climbs.len()).map(|n| format!("n{n:03}\0\0\0\0"));
            let lost = lost.filter_map(|name| block.names.iter().position(|slot| slot == name.as_bytes()));
            let slots: Vec<usize> = lost.collect();
            if slots.len() == climbs.len() {
                slots.into_iter().for_each(|slot| block.entries[slot].kind = 8);
            }
        }
    });
    let (image, victims) = (place.image(), [place.path("victim"), place.path("mnt/victim")]);
    victims.iter().for_each(|victim| fs::write(victim, "precious").unwrap());
    let said = heddle(&["fsck", "-y", &image]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    victims.iter().for_each(|victim| assert_eq!(fs::read_to_string(victim).unwrap(), "precious"));
    let kept = files_below(Path::new(&format!("{image}.lost")));
    let wanted: Vec<String> = (0..=7).map(|n| format!("n{n:03}")).collect();
    let mut found: Vec<String> = kept.values().cloned().collect();
    found.sort();
    assert_eq!(found, wanted, "{kept:?}");
    let mut beside: Vec<_> = fs::read_dir(place.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    beside.sort();
    beside.retain(|name| !name.to_str().unwrap().starts_with("image.undo-"));
    assert_eq!(beside, ["image", "image.lost", "log", "mnt", "victim"]);
}
