//! Version bitmaps that have no room in the head of a checkpoint: they stand behind it, in the payload.

use super::{ROOT, create, mounted, refusal};
use crate::common::{Image, fsck_is_clean, listed, read};
use crate::forge::Forge;
use heddle_f2fs::F2fs;
use heddle_f2fs::format::checkpoint_flag;
use heddle_vfs::FileSystem;
use std::path::Path;

const MIB_A_GIB: u64 = 1 << 10;

/// Files come, in several checkpoints of each pack.
fn is_used(image: &Image) {
    for round in 0..4 {
        let fs = mounted(image);
        for n in 0..100 {
            let file = create(&fs, ROOT, &format!("{round} {n}"));
            fs.write(&file, 0, &[round + 1; 5000]).unwrap();
            fs.release(file);
            if n == 50 {
                fs.sync().unwrap();
            }
        }
        fs.unmount().unwrap();
    }
    let fs = F2fs::open(&image.path).unwrap();
    assert_eq!(listed(&fs, Path::new("/")).len(), 400);
    for (round, n) in (0..4).flat_map(|round| (0..100).map(move |n| (round, n))) {
        assert!(read(&fs, &Path::new("/").join(format!("{round} {n}"))) == [round + 1; 5000]);
    }
}

/// Images made with `mkfs.f2fs -i` were refused from some 280 GiB on.
#[test]
fn images_with_bitmaps_behind_the_checkpoints_head_are_used() {
    for (gib, options) in [(16, &["-i"][..]), (16, &[]), (290, &["-i"]), (4 << 10, &[])] {
        let Some(image) = Image::empty(gib * MIB_A_GIB, options) else { return };
        let (forge, large) = (Forge::of(&image.path), !options.is_empty());
        assert_eq!(forge.superblock().checkpoint_payload.get() > 0, gib >= 290, "{gib} GiB, {options:?}");
        assert_eq!(forge.pack().1.flags.get() & checkpoint_flag::LARGE_NAT_BITMAP != 0, large);
        is_used(&image);
        fsck_is_clean(&image.path);
    }
}

/// So f2fs-tools 1.12 made them; Linux refuses them too.
#[test]
fn a_checkpoint_with_its_checksum_behind_large_bitmaps_is_refused() {
    let Some(image) = Image::empty(128, &["-i"]) else { return };
    let forge = Forge::of(&image.path);
    let (start, head) = forge.pack();
    for half in [start, start + head.pack_blocks.get() - 1] {
        forge.change(half, |block| {
            block[164..168].copy_from_slice(&4092_u32.to_le_bytes());
            let crc = heddle_f2fs::checksum::checksum(heddle_f2fs::checksum::SEED, &block[..4092]);
            block[4092..].copy_from_slice(&crc.to_le_bytes());
        });
    }
    forge.change(if start == 512 { 1024 } else { 512 }, |block| block.fill(0));
    let why = refusal(&image);
    assert!(why.contains("its checksum is at byte 4092"), "{why}");
}
