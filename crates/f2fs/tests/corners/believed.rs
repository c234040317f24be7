//! What a damaged image says of other files is not believed where they would pay for it.

use super::{ROOT, create, mounted, name, refusal, size};
use crate::common::{Image, read};
use crate::forge::Forge;
use heddle_f2fs::checksum::{inode_seed, of_inode};
use heddle_f2fs::format::{INODE_CHECKSUM_OFFSET_BYTES, InodeBlock, SitBlock};
use heddle_vfs::{Cred, Error, FileSystem, OpenFlags, RangeOp, SeekTarget};
use std::path::Path;
use zerocopy::{FromBytes, FromZeros, IntoBytes, little_endian::U32};

/// The first pointer of a file, changed; what it was.
fn set_pointer(image: &Image, ino: u64, addr: Option<U32>) -> U32 {
    let forge = Forge::of(&image.path);
    let (superblock, was) = (forge.superblock(), std::cell::Cell::new(U32::new(0)));
    forge.inode(ino as u32, |block: &mut InodeBlock| {
        // Behind the extra attributes.
        let pointer = &mut block.addr[9];
        assert!(pointer.get() >= superblock.main.get());
        was.set(*pointer);
        *pointer = addr.unwrap_or(*pointer);
        block.extent = FromZeros::new_zeroed();
        seal(image, block);
    });
    was.get()
}

/// Puts the checksum of an inode right.
pub fn seal(image: &Image, block: &mut InodeBlock) {
    let uuid = Forge::of(&image.path).superblock().uuid;
    let crc = of_inode(inode_seed(&uuid), block);
    block.as_mut_bytes()[INODE_CHECKSUM_OFFSET_BYTES..][..4].copy_from_slice(&crc.to_le_bytes());
}

/// An image that has checksums of inodes has them to be looked at.
#[test]
fn an_inode_of_a_wrong_checksum_is_not_believed() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let file = create(&fs, ROOT, "file");
    let ino = file.ino;
    fs.release(file);
    fs.unmount().unwrap();
    drop(fs);
    let change = |seals: bool| {
        Forge::of(&image.path).inode(ino.0 as u32, |block: &mut InodeBlock| {
            block.uid.set(4242);
            if seals {
                seal(&image, block);
            }
        });
        let fs = mounted(&image);
        let found = fs.getattr(ino).map(|attr| attr.uid);
        fs.unmount().unwrap();
        found
    };
    let found = change(false);
    assert!(matches!(&found, Err(Error::Corrupt(why)) if why.contains("checksum")), "{found:?}");
    assert_eq!(change(true), Ok(4242));
}

/// A pointer was believed: the other file's block was freed, and written over when its segment was used again.
#[test]
fn crash_a_pointer_led_to_anothers_block_which_was_freed() {
    for how in ["unlink", "truncate", "punch", "overwrite"] {
        let image = Image::made(64);
        let fs = mounted(&image);
        // Far from each other, so that nothing else is in use around the one that is to stay.
        let inos = ["wrong", "before", "other", "behind"].map(|text| {
            let file = create(&fs, ROOT, text);
            let pages = if text.starts_with('b') { 1024 } else { 1 };
            fs.write(&file, 0, &vec![5; pages * 4096]).unwrap();
            fs.sync().unwrap();
            fs.release(file);
            fs.lookup(&Cred::root(), ROOT, name(text)).unwrap().ino
        });
        let [wrong_ino, _, other_ino, _] = inos;
        fs.unmount().unwrap();
        drop(fs);
        let addr = set_pointer(&image, other_ino.0, None);
        set_pointer(&image, wrong_ino.0, Some(addr));
        let fs = mounted(&image);
        let root = Cred::root();
        let file = fs.open(&root, wrong_ino, OpenFlags::READ_WRITE).unwrap();
        match how {
            "unlink" => fs.unlink(&root, ROOT, name("wrong")).unwrap(),
            "truncate" => _ = fs.setattr(&root, wrong_ino, None, &size(0)).unwrap(),
            "punch" => fs.fallocate(&file, RangeOp::Punch, 0, 4096).unwrap(),
            _ => _ = fs.write(&file, 0, &[7; 4096]).unwrap(),
        }
        fs.release(file);
        ["before", "behind"].iter().for_each(|text| fs.unlink(&root, ROOT, name(text)).unwrap());
        fs.sync().unwrap();
        let filler = create(&fs, ROOT, "filler");
        while fs.append(&filler, &[9; 1 << 18]) != Err(Error::NoSpace) {}
        fs.sync().unwrap();
        assert!(read(&fs, Path::new("/other")) == [5; 4096], "{how}");
        fs.release(filler);
        fs.unmount().unwrap();
        drop(fs);
        assert!(read(&mounted(&image), Path::new("/other")) == [5; 4096], "{how}");
    }
}

/// Each page of the holes was looked at: days for the largest file, which everybody waited for.
#[test]
fn collapse_and_insert_pass_over_holes_however_long() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let file = create(&fs, ROOT, "sparse");
    let at = 3 << 40;
    fs.write(&file, at, &[5; 4096]).unwrap();
    fs.fallocate(&file, RangeOp::Insert, 8192, 4096).unwrap();
    assert_eq!(fs.seek(&file, SeekTarget::Data, 0), Ok(at + 4096));
    fs.fallocate(&file, RangeOp::Collapse, 4096, 8192).unwrap();
    assert_eq!(fs.seek(&file, SeekTarget::Data, 0), Ok(at - 4096));
    fs.release(file);
}

/// What is said to be free would be written over.
#[test]
fn a_table_that_lacks_nodes_of_the_checkpoint_is_refused() {
    let image = Image::made(64);
    let forge = Forge::of(&image.path);
    let superblock = forge.superblock();
    for addr in superblock.sit.get()..superblock.nat.get() {
        forge.change(addr, |block| {
            let entries = &mut SitBlock::mut_from_bytes(block).unwrap().entries;
            for entry in entries.iter_mut().filter(|entry| entry.blocks.get() >> 10 >= 3) {
                let count = entry.blocks.get() & 0x3ff;
                entry.blocks.set(entry.blocks.get() - count);
                entry.valid.fill(0);
            }
        });
    }
    let why = refusal(&image);
    assert!(why.contains("its segments have 0 nodes"), "{why}");
}

/// Linux fills gaps where no segment is free; here a log needs one. That is no damage.
#[test]
fn a_full_image_whose_logs_fill_gaps_is_said_to_be_full() {
    let image = Image::made(64);
    let forge = Forge::of(&image.path);
    let superblock = forge.superblock();
    let (_, head) = forge.pack();
    let nodes: Vec<u32> = head.node_segment[..3].iter().map(|segno| segno.get()).collect();
    for addr in superblock.sit.get()..superblock.nat.get() {
        forge.change(addr, |block| {
            let entries = &mut SitBlock::mut_from_bytes(block).unwrap().entries;
            for (n, entry) in entries.iter_mut().enumerate().filter(|(n, _)| !nodes.contains(&(*n as u32))) {
                // The last block of each segment.
                if n < superblock.segments_main.get() as usize && entry.valid[63] & 1 == 0 {
                    entry.valid[63] |= 1;
                    entry.blocks.set(entry.blocks.get() + 1);
                }
            }
        });
    }
    let why = refusal(&image);
    assert!(why.contains("into gaps") && why.contains("-o ro") && !why.contains("damaged"), "{why}");
    heddle_f2fs::F2fs::open(&image.path).unwrap();
}
