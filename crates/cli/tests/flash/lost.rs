//! Lost files: what a repair by fsck.f2fs would take out of an image is saved before it, whole, or nothing is repaired.

use super::damaged::change_entries;
use super::half_repaired::change_superblocks;
use crate::common::{Mounted, Place, Said, alone, command, heddle};
use heddle_f2fs::checksum::{inode_seed, of_inode};
use heddle_f2fs::format::{
    BLOCK_BYTES, DentryBlock, InodeBlock, NodeBlock, SUPERBLOCK_OFFSET_BYTES, Superblock, node_flag,
};
use rustix::mount::{MountFlags, UnmountFlags};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Returns false, loudly, where nothing can be tested.
pub fn has_checker() -> bool {
    let is_there = Command::new("fsck.f2fs").arg("-V").output().is_ok();
    if !is_there {
        eprintln!("SKIPPED, NOT TESTED: there is no fsck.f2fs");
    }
    is_there
}

/// Changes each block of an inode, and puts its checksum right.
pub fn change_inode(bytes: &mut [u8], ino: u64, change: impl Fn(&mut InodeBlock)) {
    let (superblock, _) = Superblock::read_from_prefix(&bytes[SUPERBLOCK_OFFSET_BYTES..]).unwrap();
    let mut changed = 0;
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        let inode = InodeBlock::mut_from_bytes(block).unwrap();
        if [&inode.footer.nid, &inode.footer.ino].iter().all(|number| u64::from(number.get()) == ino) {
            change(inode);
            let crc = of_inode(inode_seed(&superblock.uuid), inode);
            inode.addr[2] = U32::new(crc);
            changed += 1;
        }
    }
    assert!(changed > 0, "no inode {ino}");
}

/// The slot in which the entry of this inode begins.
fn slot_of(block: &DentryBlock, ino: u64) -> Option<usize> {
    let is_it = |slot: &usize| {
        let is_used = block.bitmap[slot / 8] >> (slot % 8) & 1 == 1;
        is_used && u64::from(block.entries[*slot].ino.get()) == ino
    };
    (2..block.entries.len()).find(is_it)
}

/// Takes the entry of an inode out of its directory's first block. Its name has at most 8 bytes.
pub fn lose_name(bytes: &mut [u8], dir: u64, ino: u64) {
    change_entry(bytes, dir, ino, |block, slot| block.bitmap[slot / 8] &= !(1 << (slot % 8)));
}

/// Changes the entry of an inode in its directory's first block. Older versions of the block may lie about that lack it.
fn change_entry(bytes: &mut [u8], dir: u64, ino: u64, change: impl Fn(&mut DentryBlock, usize)) {
    let changed = Cell::new(false);
    change_entries(bytes, dir, |block| {
        if let Some(slot) = slot_of(block, ino) {
            change(block, slot);
            changed.set(true);
        }
    });
    assert!(changed.get(), "directory {dir} has no entry of inode {ino}");
}

pub fn ino(path: &Path) -> u64 {
    match fs::symlink_metadata(path).unwrap().ino() {
        1 => 3,
        ino => ino,
    }
}

/// What `heddle fsck -y --json` says.
fn repaired(image: &str) -> serde_json::Value {
    let said = heddle(&["fsck", "-y", "--json", image]);
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    heddle(&["fsck", "-n", image]).ok();
    serde_json::from_str(&said.out).unwrap()
}

/// All below a directory, by path; of a directory nothing.
pub fn tree(top: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut next) = (BTreeMap::new(), vec![PathBuf::new()]);
    while let Some(path) = next.pop() {
        for entry in fs::read_dir(top.join(&path)).unwrap().map(Result::unwrap) {
            let below = path.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                next.push(below.clone());
                found.insert(below, Vec::new());
            } else {
                assert!(entry.file_type().unwrap().is_file(), "{}", below.display());
                found.insert(below, fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

/// So much, all of it different.
pub fn content(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13 ^ seed.wrapping_mul(n >> 12)) as u8)
        .collect()
}

/// fsck.f2fs wrote both to one file, and that was the victim.
#[test]
fn lost_files_of_one_name_are_both_saved_whole() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    if !has_checker() {
        return;
    }
    let contents = [content(3_000_001, 1), content(5, 2)];
    let (dirs, files) = {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        let [one, two] = ["one", "two"].map(|dir| mounted.path(dir));
        for (dir, bytes) in [&one, &two].into_iter().zip(&contents) {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("same"), bytes).unwrap();
        }
        // A hole between, and one at the end.
        let file = File::options().write(true).open(one.join("same")).unwrap();
        file.write_all_at(b"behind a hole", 9 << 20).unwrap();
        file.set_len(10 << 20).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o6750)).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000)).unwrap();
        ([ino(&one), ino(&two)], [ino(&one.join("same")), ino(&two.join("same"))])
    };
    place.edit(|bytes| {
        for (dir, file) in dirs.into_iter().zip(files) {
            lose_name(bytes, dir, file);
            change_inode(bytes, file, |inode| {
                inode.name[..12].copy_from_slice(b"../../victim");
                inode.name_bytes.set(12);
            });
        }
    });
    let victim = place.path("victim");
    fs::write(&victim, "precious").unwrap();
    let said = repaired(&place.image());
    let lost = place.path("image.lost/lost_found");
    assert_eq!((&said["lost_files"], &said["lost_files_saved"]), (&lost.to_str().into(), &2.into()));
    let found = tree(&lost);
    let names = files.map(|file| PathBuf::from(format!("{file}-.._.._victim")));
    assert_eq!(found.keys().cloned().collect::<Vec<_>>(), {
        let mut names = names.to_vec();
        names.sort();
        names
    });
    let mut whole = contents[0].clone();
    whole.resize(10 << 20, 0);
    whole[9 << 20..][..13].copy_from_slice(b"behind a hole");
    assert!(found[&names[0]] == whole && found[&names[1]] == contents[1]);
    let meta = fs::metadata(lost.join(&names[0])).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.mtime()), (0o750, 1_000_000), "no set-id bits");
    assert!(meta.blocks() * 512 < 4 << 20, "holes are kept");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::read_dir(place.path("image.lost")).unwrap().count(), 1, "nothing of fsck.f2fs's");
}

/// fsck.f2fs cut the file short and freed its blocks, and the image counted as repaired.
#[test]
fn a_lost_file_without_space_leaves_the_image_as_it_is() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    if !has_checker() {
        return;
    }
    let bytes = content(6 << 20, 3);
    let (root, file) = {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        fs::write(mounted.path("large"), &bytes).unwrap();
        (ino(&mounted.path("")), ino(&mounted.path("large")))
    };
    place.edit(|bytes| lose_name(bytes, root, file));
    // A small file system, in which there is no room beside the image for more than a part of the file.
    let small = place.path("small");
    fs::create_dir(&small).unwrap();
    rustix::mount::mount("none", &small, "tmpfs", MountFlags::empty(), c"size=80m").unwrap();
    let (image, filler) = (small.join("image"), small.join("filler"));
    fs::copy(place.image(), &image).unwrap();
    let free = |keep: u64| {
        let _none = fs::remove_file(&filler);
        let stat = rustix::fs::statvfs(&small).unwrap();
        File::create(&filler)
            .unwrap()
            .write_all_at(&vec![1; (stat.f_bfree * stat.f_frsize - keep) as usize], 0)
    };
    free(3 << 20).unwrap();
    let before = fs::read(&image).unwrap();
    let image_text = image.to_str().unwrap();
    let said = heddle(&["fsck", "-y", image_text]);
    let (code, out) = (said.code, said.out + &said.err);
    let listed = fs::read_dir(&small).unwrap().count();
    let is_unchanged = fs::read(&image).unwrap() == before;
    free(9 << 20).unwrap();
    let repaired = heddle(&["fsck", "-y", image_text]);
    let lost = fs::read(small.join(format!("image.lost/lost_found/{file}-large")));
    rustix::mount::unmount(&small, UnmountFlags::DETACH).unwrap();
    assert_eq!(code, 4, "{out}");
    let told = ["nothing was changed", "large", "6.0 MiB", small.to_str().unwrap(), "Make room there"];
    told.iter().for_each(|what| assert!(out.contains(what), "'{what}' is not in: {out}"));
    assert!(is_unchanged && listed == 2, "something was left, or changed: {out}");
    assert_eq!(repaired.code, 1, "{}{}", repaired.out, repaired.err);
    assert!(lost.unwrap() == bytes);
}

/// fsck.f2fs drops them without a copy: an inode of no kind, and one whose entry says another kind.
#[test]
fn what_fsck_drops_although_it_has_a_name_is_saved_before() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    if !has_checker() {
        return;
    }
    let names = ["no-kind", "small", "other", "hole", "stays"];
    let bytes = names.map(|name| content(if name == "small" { 100 } else { 50_000 }, name.len() as u64));
    let inodes = {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        names.iter().zip(&bytes).for_each(|(name, bytes)| fs::write(mounted.path(name), bytes).unwrap());
        names.map(|name| ino(&mounted.path(name)))
    };
    place.edit(|bytes| {
        change_inode(bytes, inodes[0], |inode| inode.mode.set(0));
        change_inode(bytes, inodes[1], |inode| inode.mode.set(0));
        change_entry(bytes, 3, inodes[2], |block, slot| block.entries[slot].kind = 2);
        // What a pointer to nowhere led to is gone already; that is told, and holds nothing up.
        change_inode(bytes, inodes[3], |inode| {
            inode.mode.set(0);
            inode.addr[13].set(u32::MAX - 7);
        });
    });
    let said = repaired(&place.image());
    let lost = place.path("image.lost/lost_found");
    let found = tree(&lost);
    assert_eq!(found.len(), 4, "{:?}", found.keys());
    for n in 0..3 {
        assert!(found[Path::new(&format!("{}-{}", inodes[n], names[n]))] == bytes[n], "{}", names[n]);
    }
    let hole = &found[Path::new(&format!("{}-hole", inodes[3]))];
    let missing =
        hole.chunks(BLOCK_BYTES).zip(bytes[3].chunks(BLOCK_BYTES)).filter(|(one, other)| one != other);
    assert_eq!((hole.len(), missing.count()), (50_000, 1));
    assert!(said["issues"].to_string().contains("1 of its pointers lead nowhere"), "{said}");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    assert!(fs::read(mounted.path("stays")).unwrap() == bytes[4]);
    assert!(names[..4].iter().all(|name| !mounted.path(name).exists()));
}

/// fsck.f2fs took the node of their extended attributes away, and nobody said so.
#[test]
fn files_that_lose_attributes_in_a_repair_are_named() {
    let Some(_alone) = alone() else { return };
    if !has_checker() {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let set = |path: &Path, name: &str, bytes: usize| {
        let (value, flags) = (vec![b'v'; bytes], rustix::fs::XattrFlags::empty());
        rustix::fs::setxattr(path, name, &value, flags).unwrap();
    };
    let path = mounted.path("file");
    fs::write(&path, content(9000, 1)).unwrap();
    // The first fills the inode.
    set(&path, "user.a", 171);
    set(&path, "user.b", 3000);
    fs::write(mounted.path("other"), b"other").unwrap();
    let number = ino(&path);
    drop(mounted);
    let mut changed = 0;
    place.edit(|bytes| {
        for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
            let node = NodeBlock::mut_from_bytes(block).unwrap();
            let is_its =
                u64::from(node.footer.ino.get()) == number && u64::from(node.footer.nid.get()) != number;
            if is_its && node.footer.place() == node_flag::XATTR_PLACE {
                node.footer.flag.set(0);
                changed += 1;
            }
        }
    });
    assert!(changed > 0, "no node of attributes");
    let report = repaired(&place.image());
    assert_eq!(report["changed_attributes"], serde_json::json!(["/file"]), "{report}");
    assert!(report["changed_files"].is_null(), "{report}");
}

#[test]
fn lost_directories_are_saved_as_trees_that_lead_nowhere_else() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    if !has_checker() {
        return;
    }
    let (top, circle) = {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        let at = |name: &str| mounted.path("top").join(name);
        fs::create_dir_all(at("sub/deep")).unwrap();
        fs::write(at("file"), "one").unwrap();
        fs::hard_link(at("file"), at("sub/again")).unwrap();
        symlink("/etc/passwd", at("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("zero"),
            rustix::fs::FileType::CharacterDevice,
            0o666.into(),
            0x105,
        )
        .unwrap();
        fs::create_dir_all(mounted.path("a/b")).unwrap();
        fs::write(mounted.path("a/b/in"), "in a circle").unwrap();
        fs::create_dir(mounted.path("a/b/back")).unwrap();
        let names = ["top", "a", "a/b", "a/b/back"];
        (
            ino(&mounted.path("top")),
            names[1..].iter().map(|name| ino(&mounted.path(name))).collect::<Vec<_>>(),
        )
    };
    place.edit(|bytes| {
        lose_name(bytes, 3, top);
        lose_name(bytes, 3, circle[0]);
        change_entry(bytes, circle[1], circle[2], |block, slot| {
            block.entries[slot].ino.set(circle[0] as u32)
        });
    });
    let said = repaired(&place.image());
    let found = tree(&place.path("image.lost/lost_found"));
    let (top, a, back) = (format!("{top}-top"), format!("{}-a", circle[0]), format!("{}-back", circle[2]));
    let wanted: BTreeMap<PathBuf, Vec<u8>> = [
        (top.clone(), ""),
        (format!("{top}/file"), "one"),
        (format!("{top}/link.symlink"), "/etc/passwd"),
        (format!("{top}/sub"), ""),
        (format!("{top}/sub/again"), "one"),
        (format!("{top}/sub/deep"), ""),
        (format!("{top}/zero.special"), "character device 1:5\n"),
        (a.clone(), ""),
        (format!("{a}/b"), ""),
        (format!("{a}/b/in"), "in a circle"),
        (back, ""),
    ]
    .map(|(path, bytes)| (path.into(), bytes.as_bytes().to_vec()))
    .into();
    assert_eq!(found, wanted, "{said}");
    assert_eq!(said["lost_files_saved"], 10);
}

/// A file that its user removed while it was open is no lost file.
#[test]
fn what_was_unlinked_while_it_was_open_is_not_saved() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    if !has_checker() {
        return;
    }
    let mnt = place.mnt();
    let mut served = crate::common::command(&["mount", "--foreground", &place.image(), &mnt]);
    let mut served = served.stderr(std::process::Stdio::null()).spawn().unwrap();
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    while device(Path::new(&mnt)) == device(&place.path("")) {
        assert!(served.try_wait().unwrap().is_none(), "never mounted");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    fs::write(place.path("mnt/gone"), content(10_000, 4)).unwrap();
    fs::write(place.path("mnt/lost"), "lost").unwrap();
    let lost = ino(&place.path("mnt/lost"));
    let held = File::open(place.path("mnt/gone")).unwrap();
    fs::remove_file(place.path("mnt/gone")).unwrap();
    File::open(place.path("mnt")).unwrap().sync_all().unwrap();
    served.kill().unwrap();
    served.wait().unwrap();
    drop(held);
    heddle(&["umount", &mnt]).failed(1, &["had died"]);
    place.edit(|bytes| lose_name(bytes, 3, lost));
    repaired(&place.image());
    let found = tree(&place.path("image.lost/lost_found"));
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [(format!("{lost}-lost").into(), b"lost".to_vec())]);
}

/// What is clean is not searched for lost files, and what is only looked at has none.
#[test]
fn without_a_repair_nothing_is_saved() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    if !has_checker() {
        return;
    }
    let file = {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        fs::write(mounted.path("file"), "x").unwrap();
        ino(&mounted.path("file"))
    };
    let listed = || fs::read_dir(place.path("")).unwrap().count();
    let before = listed();
    let said: Said = heddle(&["fsck", "-y", &place.image()]).ok();
    assert!(!said.out.contains("lost") && listed() == before, "{}", said.out);
    place.edit(|bytes| lose_name(bytes, 3, file));
    heddle(&["fsck", "-n", &place.image()]).failed(4, &[]);
    assert_eq!(listed(), before);
}

/// The checker repaired an image that was mounted meanwhile, for reading or writing.
#[test]
fn no_mount_takes_an_image_while_it_is_repaired() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    if !has_checker() {
        return;
    }
    let (root, file) = {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        fs::write(mounted.path("f"), "x").unwrap();
        (ino(&mounted.path("")), ino(&mounted.path("f")))
    };
    place.edit(|bytes| lose_name(bytes, root, file));
    // It says that it repairs, and begins when it is told to.
    let tools = place.path("tools");
    fs::create_dir(&tools).unwrap();
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let slow = format!(
        "#!/bin/sh\nPATH={path}\ncase \"$*\" in *-y*) touch {0}/begun; while [ ! -e {0}/go ]; do sleep 0.05; done;; esac\n\
         exec fsck.f2fs \"$@\"\n",
        tools.display()
    );
    fs::write(tools.join("fsck.f2fs"), slow).unwrap();
    fs::set_permissions(tools.join("fsck.f2fs"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut fsck = command(&["fsck", "-y", &place.image()])
        .env("PATH", format!("{}:{path}", tools.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !tools.join("begun").exists() {
        assert!(began.elapsed() < Duration::from_secs(60) && fsck.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(10));
    }
    let is_refused = || {
        for how in ["wait=0", "wait=0,ro"] {
            heddle(&["mount", "-o", how, &place.image(), &place.mnt()]).failed(1, &["in use"]);
        }
    };
    is_refused();
    let before = fs::read(place.image()).unwrap();
    fsck.kill().unwrap();
    fsck.wait().unwrap();
    fs::write(tools.join("go"), "").unwrap();
    // The checker is killed too, and its lock is free.
    drop(Mounted::new(&place, &["-o", "log=/dev/null,ro,wait=60"]));
    assert!(fs::read(place.image()).unwrap() == before);
}

/// fsck.f2fs writes quota into the inode that the superblock names, and quota files were taken for no loss.
#[test]
fn a_file_that_a_damaged_superblock_takes_for_quota_is_saved() {
    let place = Place::new();
    if !has_checker() {
        return;
    }
    let (image, bytes, name) = (place.image(), content(300_000, 9), b"big");
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/big"), &bytes).unwrap();
    File::create(&image).unwrap().set_len(100 << 20).unwrap();
    let features = "extra_attr,quota,inode_checksum,sb_checksum";
    let run = |program: &str, args: &[&str]| {
        let said = Command::new(program).args(args).stdin(Stdio::null()).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    };
    run("mkfs.f2fs", &["-q", "-f", "-O", features, &image]);
    run("sload.f2fs", &["-f", &place.text("tree"), &image]);
    place.edit(|image| {
        let is_it = |inode: &&InodeBlock| {
            inode.footer.nid == inode.footer.ino && inode.name[..3] == *name && inode.name_bytes.get() == 3
        };
        let blocks = image.chunks_exact(BLOCK_BYTES).map(|block| InodeBlock::ref_from_bytes(block).unwrap());
        let number = blocks.into_iter().find(is_it).unwrap().footer.nid;
        change_superblocks(image, |found| found.quota_ino[0].set(number.get()));
    });
    let said = heddle(&["fsck", "-y", "--json", &image]);
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let changed = report["changed_files"].as_array().unwrap_or_else(|| panic!("{report}"));
    assert_eq!((changed.len(), changed[0]["path"].as_str()), (1, Some("/big")), "{report}");
    assert!(fs::read(changed[0]["saved"].as_str().unwrap()).unwrap() == bytes, "{report}");
}
