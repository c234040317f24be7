//! Images that mkfs.f2fs makes with each of its options: served, for reading alone, or refused, and then by the option's name.

mod common;

use common::{Image, Source, fsck_is_clean, listed, read};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags};
use std::path::Path;
use std::process::Command;

/// What becomes of an image.
enum Fate {
    Served,
    /// Refused for writing, with this word.
    Read(&'static str),
    /// Refused, with this word.
    Refused(&'static str),
}
use Fate::{Read, Refused, Served};

/// All options of mkfs.f2fs 1.15 but those that only say how it talks, and what it needs other devices for (`-c`: below; `-m`).
const OPTIONS: &[(&[&str], Fate)] = &[
    (&["-a", "0", "-e", "mp3,gif", "-E", "db", "-l", "a label", "-r", "-R", "7:8"], Served),
    (&["-a", "1", "-t", "0", "-T", "1000000000", "-U", "01234567-89ab-cdef-0123-456789abcdef"], Served),
    (&["-g", "android"], Read("quota")),
    (&["-i", "-o", "25", "-w", "4096"], Served),
    (&["-s", "4", "-w", "512"], Served),
    (&["-s", "2", "-z", "2"], Served),
    // Fewer sections than logs and cleaning need: df told of space that nothing could be written to.
    (&["-s", "8"], Read("14 sections (of 8 segments)")),
    (&["-O", "encrypt,lost_found"], Served),
    (&["-O", "extra_attr,project_quota"], Read("quota")),
    (&["-O", "extra_attr,inode_checksum,inode_crtime"], Served),
    (&["-O", "extra_attr,flexible_inline_xattr,compression"], Served),
    (&["-O", "quota"], Read("quota")),
    (&["-O", "verity,sb_checksum"], Served),
    (&["-O", "casefold", "-C", "utf8:strict"], Served),
    (&["-O", "ro"], Refused("features ro")),
];

#[test]
fn each_option_of_mkfs_is_served_or_refused_by_name() {
    if !Image::has_tools() {
        return;
    }
    let source = Source::of_inline_files();
    for (options, fate) in OPTIONS {
        eprintln!("{options:?}");
        // Sections of many segments leave sload.f2fs no room in a small one.
        let mib = if options.contains(&"-s") { 256 } else { 128 };
        // sload.f2fs takes no image that is made to be read only.
        let made = match fate {
            Refused(_) => Image::empty(mib, options),
            _ => Image::sized_of(&source, mib, options),
        };
        let Some(image) = made else { return };
        match (F2fs::open(&image.path), fate) {
            (Err(error), Refused(word)) => {
                assert!(error.to_string().contains(word), "{options:?}: {error}");
                continue;
            }
            (Err(error), _) => panic!("{options:?}: {error}"),
            (Ok(fs), _) => {
                assert_eq!(fs.survey().problems, Vec::<String>::new(), "{options:?}");
                assert_eq!(read(&fs, Path::new("/inline")), b"the 24 bytes of a file.\n", "{options:?}")
            }
        }
        for variant in Variant::ALL {
            let image = Image::copy_of(&image);
            match (common::open_as(&image.path, variant), fate) {
                (Ok(fs), Served) => goes_round(fs, &image, options),
                (Ok(_), _) => panic!("{options:?}: not refused"),
                (Err(error), Read(word)) => {
                    let text = error.to_string();
                    assert!(text.contains(word) && text.contains("-o ro"), "{options:?}: {text}");
                }
                (Err(error), _) => panic!("{options:?}: {error}"),
            }
        }
    }
}

/// The second device has no superblock: only the first one says that there are two.
#[test]
fn an_image_over_two_devices_is_refused_by_that_name() {
    let second = Image::made(64);
    std::fs::File::create(&second.path).unwrap().set_len(64 << 20).unwrap();
    let Some(first) = Image::empty(128, &["-c", second.path.to_str().unwrap()]) else { return };
    for error in [F2fs::open(&first.path).err(), F2fs::open_for_writing(&first.path).err()] {
        let text = error.unwrap().to_string();
        assert!(text.contains("more than one device") && !text.contains("damaged"), "{text}");
    }
}

/// What is written is there for fsck.f2fs, for sload.f2fs, which adds a tree to it, and for the engine once more.
fn goes_round(fs: F2fs, image: &Image, options: &[&str]) {
    let root = Cred::root();
    let name = Name::new(b"written").unwrap();
    let (attr, file) = fs.create(&root, Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).unwrap();
    let bytes: Vec<u8> = (0..900_000_u32).map(|n| (n / 7) as u8).collect();
    fs.write(&file, 0, &bytes).unwrap();
    fs.release(file);
    let inline = fs.lookup(&root, Ino::ROOT, Name::new(b"inline").unwrap()).unwrap();
    let file = fs.open(&root, inline.ino, OpenFlags::READ_WRITE).unwrap();
    fs.write(&file, 0, b"THE").unwrap();
    fs.append(&file, b"More.\n").unwrap();
    fs.release(file);
    fs.unmount().unwrap();
    drop(fs);
    fsck_is_clean(&image.path);
    let more = tempfile::tempdir().unwrap();
    std::fs::write(more.path().join("added"), &bytes[..70_000]).unwrap();
    let loaded = Command::new("sload.f2fs").arg("-f").arg(more.path()).arg(&image.path).output().unwrap();
    // 1: it has mended the sizes of inline attributes that it left at 0 itself.
    assert!(
        matches!(loaded.status.code(), Some(0 | 1)),
        "{options:?}: {}",
        String::from_utf8_lossy(&loaded.stdout)
    );
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let names = listed(&fs, Path::new("/"));
    assert!(names.contains(&b"added"[..]) && names.contains(&b"inline"[..]), "{options:?}: {names:?}");
    assert!(read(&fs, Path::new("/written")) == bytes, "{options:?}");
    assert_eq!(read(&fs, Path::new("/inline")), b"THE 24 bytes of a file.\nMore.\n", "{options:?}");
    assert!(read(&fs, Path::new("/added")) == bytes[..70_000], "{options:?}");
    fs.unmount().unwrap();
    drop(fs);
    fsck_is_clean(&image.path);
    // What dump.f2fs says of an inode.
    let dumped =
        Command::new("dump.f2fs").args(["-i", &attr.ino.0.to_string()]).arg(&image.path).output().unwrap();
    let text = String::from_utf8_lossy(&dumped.stdout);
    assert!(text.contains("written") && text.contains("900000"), "{options:?}: {text}");
}
