//! What a repair by another program has changed: the files whose content it was are told.

use super::{ROOT, create, mounted};
use crate::common::Image;
use crate::forge::Forge;
use heddle_f2fs::format::InodeBlock;
use heddle_f2fs::{Earlier, Identity, Repair};
use heddle_vfs::FileSystem;

const BLOCK: u64 = 4096;
/// The slot of the first page's pointer.
const FIRST_POINTER: usize = 9;

/// Same blocks, same size: only the place is another one.
#[test]
fn a_file_counts_as_changed_when_a_page_of_it_has_moved() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let [moved, kept] = ["moved", "kept"].map(|text| {
        let file = create(&fs, ROOT, text);
        fs.write(&file, 0, &[5; BLOCK as usize]).unwrap();
        fs.write(&file, 9 * BLOCK, &[6; BLOCK as usize]).unwrap();
        let ino = file.ino.0 as u32;
        fs.release(file);
        ino
    });
    fs.unmount().unwrap();
    drop(fs);
    let looked_at = Identity::of(&image.path.metadata().unwrap());
    let begun = Repair::begin(&image.path, &image.path.with_extension("undo"), looked_at, Earlier::Counts);
    let mut repair = begun.unwrap().unwrap();
    for ino in [moved, kept] {
        for (addr, _) in Forge::of(&image.path).nodes_of(ino) {
            repair.keep(u64::from(addr) * BLOCK, BLOCK).unwrap();
        }
    }
    Forge::of(&image.path).inode(moved, |inode: &mut InodeBlock| {
        inode.addr.swap(FIRST_POINTER, FIRST_POINTER + 1);
        crate::believed::seal(&image, inode);
    });
    let losses = repair.losses().unwrap();
    assert_eq!(losses.inodes().map(|inode| inode.ino).collect::<Vec<_>>(), [moved]);
    repair.go_back().unwrap();
}
