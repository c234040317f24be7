//! Zeroing pages whose blocks lie side by side, while the pages do not.

mod common;

use common::{Disk, Short, each_variant};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{FileSystem, Handle, Ino, RangeOp};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const PAGES: u64 = 6;

#[test]
fn zeroed_pages_with_allocated_ones_between_them_stay_zero() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 8 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        // One extent; then its blocks' neighbours stay, and its pages' do not.
        fs.write(&file, 0, &[7; 4 * PAGE as usize]).unwrap();
        for page in [1, 4] {
            fs.fallocate(&file, RangeOp::Insert, page * PAGE, PAGE).unwrap();
        }
        fs.fallocate(&file, RangeOp::Allocate { keep_size: false }, 0, PAGES * PAGE).unwrap();
        fs.fallocate(&file, RangeOp::Zero { keep_size: false }, 0, PAGES * PAGE).unwrap();
        let good = |fs: &NvmFs, file: &Handle, when: &str| {
            let attr = fs.getattr(file.ino).unwrap();
            assert_eq!((attr.size_bytes, attr.blocks_512), (PAGES * PAGE, PAGES * 8), "{variant:?}, {when}");
            let bytes = fs.read_vec(file, 0, (PAGES * PAGE) as usize);
            assert!(bytes.iter().all(|byte| *byte == 0), "{variant:?}, {when}: a page is not zero");
        };
        good(&fs, &file, "at once");
        fs.release(file);
        drop(fs);
        volume.abandon();
        common::sound(disk.region()).unwrap();
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.open_file(Ino::ROOT, "f");
        good(&fs, &file, "after a remount");
        fs.release(file);
    });
}
