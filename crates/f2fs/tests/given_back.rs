//! What is freed on an image goes back to where the image lies.

mod common;

use common::{Image, fsck_is_clean, listed, read};
use heddle_f2fs::{F2fs, Traffic};
use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const MIB: u64 = 1 << 20;

fn held_bytes(image: &Image) -> u64 {
    image.path.metadata().as_ref().map(Metadata::blocks).unwrap() * 512
}

/// Two files whose pages lie among each other's, then one of 20 MiB that is deleted; bytes the image's file holds before and after that.
fn held_before_and_after(image: &Image, fs: &F2fs) -> (u64, u64) {
    let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    let create =
        |text| fs.create(&Cred::root(), Ino::ROOT, name(text), 0o600, OpenFlags::READ_WRITE).unwrap().1;
    let (kept, gone) = (create("kept"), create("gone"));
    for page in 0..256 {
        fs.write(&kept, page * 4096, &[page as u8 & 0x7f | 1; 4096]).unwrap();
        fs.write(&gone, page * 4096, &[0xff; 4096]).unwrap();
        if page % 32 == 0 {
            fs.fsync(&kept, false).unwrap();
            fs.fsync(&gone, false).unwrap();
        }
    }
    fs.write(&gone, MIB, &vec![0x5a; 20 << 20]).unwrap();
    fs.sync().unwrap();
    let before = held_bytes(image);
    [kept, gone].into_iter().for_each(|file| fs.release(file));
    fs.unlink(&Cred::root(), Ino::ROOT, name("gone")).unwrap();
    fs.sync().unwrap();
    let after = held_bytes(image);
    fs.unmount().unwrap();
    (before, after)
}

fn kept_is_whole(image: &Image) {
    fsck_is_clean(&image.path);
    let back = read(&F2fs::open(&image.path).unwrap(), Path::new("/kept"));
    assert_eq!(back.len(), 256 * 4096);
    assert!(
        back.chunks(4096)
            .enumerate()
            .all(|(page, bytes)| bytes.iter().all(|byte| *byte == page as u8 & 0x7f | 1))
    );
}

#[test]
fn segments_of_a_deleted_file_are_given_back_at_the_next_checkpoint() {
    let image = Image::made(128);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    fs.set_discards(true);
    let (before, after) = held_before_and_after(&image, &fs);
    assert!(before >= 21 * MIB && after + 16 * MIB <= before, "{before} bytes, then {after}");
    drop(fs);
    kept_is_whole(&image);
}

/// The power is cut right after each discard, which has happened.
#[test]
fn what_is_given_back_is_named_by_no_checkpoint_that_counts() {
    let (image, left) = (Image::made(128), Image::made(128));
    std::fs::copy(&image.path, &left.path).unwrap();
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    fs.set_discards(true);
    held_before_and_after(&image, &fs);
    let mut discards = 0;
    for one in fs.traffic() {
        let disk = File::options().write(true).open(&left.path).unwrap();
        match one {
            Traffic::Write(addr, bytes) => disk.write_all_at(&bytes, u64::from(addr.0) * 4096).unwrap(),
            Traffic::Discard(addr, blocks) => {
                let garbage = vec![0xdd; blocks as usize * 4096];
                disk.write_all_at(&garbage, u64::from(addr.0) * 4096).unwrap();
                discards += 1;
                fsck_is_clean(&left.path);
                let fs = F2fs::open(&left.path).unwrap();
                for name in listed(&fs, Path::new("/")) {
                    let path = Path::new("/").join(OsStr::from_bytes(&name));
                    assert!(!read(&fs, &path).contains(&0xdd), "{}", path.display());
                }
            }
            _ => {}
        }
    }
    assert!(discards > 0);
}

#[test]
fn a_file_keeps_its_space_if_it_is_not_told() {
    let image = Image::made(128);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let (before, after) = held_before_and_after(&image, &fs);
    assert!(after >= before, "{before} bytes, then {after}");
    drop(fs);
    kept_is_whole(&image);
}
