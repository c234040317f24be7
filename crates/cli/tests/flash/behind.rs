//! What a mount refuses of an F2FS image is called neither clean nor repaired, whatever fsck.f2fs says; and an image that is only read is
//! served although its counts contradict each other.

use crate::common::{Mounted, Place, alone, heddle};
use crate::damaged::{change_entries, is_there, listed};
use heddle_f2fs::checksum::{SEED, checksum, inode_seed, of_inode};
use heddle_f2fs::format::{CheckpointHead, DentryBlock, INODE_CHECKSUM_OFFSET_BYTES, InodeBlock, Superblock};
use std::fs;
use std::os::unix::fs::MetadataExt;
use zerocopy::{FromBytes, IntoBytes};

const BLOCK: usize = 4096;

/// An image with `/dir`, and in it twelve files that hold their names.
fn image() -> (Place, u64) {
    let place = Place::with_image_of("f2fs", "64M");
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    fs::create_dir(mounted.path("dir")).unwrap();
    names().iter().for_each(|name| fs::write(mounted.path("dir").join(name), name).unwrap());
    let dir = fs::metadata(mounted.path("dir")).unwrap().ino();
    drop(mounted);
    (place, dir)
}

fn names() -> Vec<String> {
    (0..12).map(|n| format!("n{n:03}")).collect()
}

/// Changes all copies of the inode of this name, and makes their checksums right again.
fn inode(bytes: &mut [u8], name: &str, change: impl Fn(&mut InodeBlock)) {
    let uuid = Superblock::read_from_prefix(&bytes[1024..]).unwrap().0.uuid;
    let mut changed = 0;
    for block in bytes.chunks_exact_mut(BLOCK) {
        let inode = InodeBlock::mut_from_bytes(block).unwrap();
        let is_inode = inode.footer.nid == inode.footer.ino && inode.footer.nid.get() > 3;
        let own = &inode.name[..(inode.name_bytes.get() as usize).min(inode.name.len())];
        if is_inode && own == name.as_bytes() {
            change(inode);
            let crc = of_inode(inode_seed(&uuid), inode);
            inode.as_mut_bytes()[INODE_CHECKSUM_OFFSET_BYTES..][..4].copy_from_slice(&crc.to_le_bytes());
            changed += 1;
        }
    }
    assert!(changed > 0, "no inode is called {name}");
}

/// Changes the entry of `n007` of this directory.
fn entry(bytes: &mut [u8], dir: u64, change: fn(&mut DentryBlock, usize)) {
    change_entries(bytes, dir, |block| {
        let slot = block.names.iter().position(|name| *name == *b"n007\0\0\0\0").unwrap();
        change(block, slot);
    });
}

fn own_name(inode: &mut InodeBlock, text: &str) {
    inode.name[..text.len()].copy_from_slice(text.as_bytes());
    inode.name_bytes.set(text.len() as u32);
}

type Damage = (&'static str, fn(&mut [u8], u64));

const DAMAGES: [Damage; 16] = [
    ("a name of 20 bytes", |b, dir| entry(b, dir, |block, slot| block.entries[slot].name_bytes.set(20))),
    ("a name of 255 bytes", |b, dir| entry(b, dir, |block, slot| block.entries[slot].name_bytes.set(255))),
    ("a slash", |b, dir| entry(b, dir, |block, slot| block.names[slot][2] = b'/')),
    ("a NUL", |b, dir| entry(b, dir, |block, slot| block.names[slot][2] = 0)),
    ("kind 9", |b, dir| entry(b, dir, |block, slot| block.entries[slot].kind = 9)),
    ("the root", |b, dir| entry(b, dir, |block, slot| block.entries[slot].ino.set(3))),
    ("a hash", |b, dir| entry(b, dir, |block, slot| block.entries[slot].hash.set(7))),
    ("a size", |b, _| inode(b, "n007", |inode| inode.size_bytes.set(1 << 62))),
    ("a depth", |b, _| inode(b, "dir", |inode| inode.depth.set(200))),
    ("extra attributes", |b, _| inode(b, "n007", |inode| inode.addr[0].set(999))),
    ("inline flags", |b, _| inode(b, "n007", |inode| inode.inline = 255)),
    ("mode 0", |b, _| inode(b, "n007", |inode| inode.mode.set(0))),
    ("a name with a slash", |b, _| inode(b, "n007", |inode| own_name(inode, "a/b"))),
    ("a name of one dot", |b, _| inode(b, "n007", |inode| own_name(inode, "."))),
    ("a name of two dots", |b, _| inode(b, "n007", |inode| own_name(inode, ".."))),
    ("an own name of 300 bytes", |b, _| inode(b, "n007", |inode| inode.name_bytes.set(300))),
];

/// Each call on what is there does what it should.
fn is_served(place: &Place) -> bool {
    let mounted = Mounted::new(place, &["-o", "log=/dev/null"]);
    let dir = mounted.path("dir");
    let (found, end) = listed(&dir);
    let is_read = |name: &String| fs::read(dir.join(name)).is_ok_and(|bytes| bytes == name.as_bytes());
    end.is_ok()
        && found.iter().all(is_read)
        && found.iter().all(|name| fs::remove_file(dir.join(name)).is_ok())
        && fs::remove_dir(&dir).is_ok()
}

/// fsck.f2fs alone called such images clean, or repaired; and a mount refused part of them.
#[test]
fn what_a_mount_refuses_is_called_neither_clean_nor_repaired() {
    let Some(_alone) = alone() else { return };
    if !is_there("fsck.f2fs") {
        return;
    }
    let (place, dir) = image();
    let (whole, image) = (fs::read(place.image()).unwrap(), place.image());
    heddle(&["fsck", "-n", &image]).ok();
    for (what, damage) in DAMAGES {
        fs::write(&image, &whole).unwrap();
        place.edit(|bytes| damage(bytes, dir));
        let said = heddle(&["fsck", "-n", "--json", &image]);
        let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        assert!(said.code == 4 && report["checked_by"] == "fsck.f2fs and heddle", "{what}: {}", said.out);
        let first = report["issues"][0].as_str().unwrap();
        assert!(first.contains("/dir") && first.contains("inode "), "{what}: {first}");
        let mended = heddle(&["fsck", "-y", &image]);
        let again = heddle(&["fsck", "-n", &image]);
        match mended.code {
            1 => {
                again.ok();
                assert!(is_served(&place), "{what}: {}", mended.out);
            }
            4 => {
                assert_eq!(again.code, 4, "{what}: {}{}", mended.out, again.out);
                let ways = ["copy what can be read", "not all could be repaired"];
                assert!(ways.iter().any(|way| mended.out.contains(way)), "{what}: {}", mended.out);
            }
            code => panic!("{what}: {code}: {}{}", mended.out, mended.err),
        }
    }
}

/// Files of such an image could not be rescued: no mount took it.
#[test]
fn an_image_of_wrong_counts_is_read_and_not_written() {
    let Some(_alone) = alone() else { return };
    let (place, _) = image();
    let image = place.image();
    let wrong = |bytes: &mut Vec<u8>| {
        for pack in [512, 1024] {
            let head = CheckpointHead::read_from_prefix(&bytes[pack * BLOCK..]).unwrap().0;
            let (blocks, at) = (head.pack_blocks.get() as usize, head.checksum_offset.get() as usize);
            if !(3..=512).contains(&blocks) {
                continue;
            }
            for half in [pack, pack + blocks - 1] {
                let block = &mut bytes[half * BLOCK..][..BLOCK];
                CheckpointHead::mut_from_prefix(block).unwrap().0.blocks_valid.set(1 << 40);
                let crc = checksum(SEED, &block[..at]);
                let crc = if at < BLOCK - 4 { checksum(crc, &block[at + 4..]) } else { crc };
                block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            }
        }
    };
    place.edit(wrong);
    place.mount().failed(1, &["its checkpoint counts", "-o ro", "heddle fsck -y"]);
    {
        let mounted = Mounted::new(&place, &["-o", "ro"]);
        let told = fs::read_to_string(place.path("log")).unwrap();
        assert!(
            told.contains("served to copy files from") && told.contains("its checkpoint counts"),
            "{told}"
        );
        for name in names() {
            assert_eq!(fs::read_to_string(mounted.path("dir").join(&name)).unwrap(), name);
        }
        let space = rustix::fs::statvfs(mounted.path("")).unwrap();
        assert!(space.f_bfree <= space.f_blocks && space.f_blocks <= (64 << 20) / space.f_frsize);
        let refused = fs::write(mounted.path("new"), "").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    }
    let said = heddle(&["fsck", "-n", &image]);
    assert!(said.code == 4 && said.out.contains("its checkpoint counts"), "{}", said.out);
    if is_there("fsck.f2fs") {
        let said = heddle(&["fsck", "-y", &image]);
        assert!(said.code == 1, "{}{}", said.out, said.err);
        assert!(is_served(&place));
    }
}
