//! What is in an image, counted: against what was written, and against the counts of the checkpoint.

mod common;

use common::Image;
use heddle_f2fs::{F2fs, Surveyed};
use heddle_vfs::{Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags};

const PAGE: u64 = 4096;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn create(fs: &F2fs, text: &str) -> Handle {
    let flags = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };
    fs.create(&Cred::root(), Ino::ROOT, name(text), 0o644, flags).unwrap().1
}

#[test]
fn a_survey_counts_names_blocks_and_pieces() {
    let image = Image::made(128);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let files =
        ["whole", "one by turns", "other by turns", "holes", "small", "beyond"].map(|n| create(&fs, n));
    let [whole, one, other, holes, small, beyond] = &files;
    fs.write(whole, 0, &vec![1; 900 * PAGE as usize]).unwrap();
    for page in 0..5 {
        fs.write(one, page * PAGE, &[2; PAGE as usize]).unwrap();
        fs.write(other, page * PAGE, &[3; PAGE as usize]).unwrap();
    }
    // The second piece follows the first on the device, and does not in the file.
    fs.write(holes, 0, &[4; PAGE as usize]).unwrap();
    fs.write(holes, 7 * PAGE, &[4; 2 * PAGE as usize]).unwrap();
    fs.write(small, 0, b"few bytes").unwrap();
    fs.write(beyond, 5_000_000 * PAGE, &[5; PAGE as usize]).unwrap();
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    let dir = fs.make(&Cred::root(), Ino::ROOT, name("dir"), node).unwrap().ino;
    fs.link(&Cred::root(), whole.ino, dir, name("again")).unwrap();
    let nids = [whole, one, other, holes, small, beyond].map(|file| file.ino.0);
    files.into_iter().for_each(|file| fs.release(file));
    fs.unmount().unwrap();
    drop(fs);

    let fs = F2fs::open(&image.path).unwrap();
    let (survey, info) = (fs.survey(), fs.info());
    assert_eq!(survey.problems, Vec::<String>::new());
    assert_eq!(survey.inodes.len() as u32, info.inodes);
    let blocks: u64 = survey.inodes.iter().map(|inode| inode.blocks).sum();
    assert_eq!(blocks + u64::from(info.nodes), info.blocks_valid);
    let found = |nid: u64| *survey.inodes.iter().find(|inode| u64::from(inode.nid.0) == nid).unwrap();
    let counts = |inode: Surveyed| (inode.links, inode.blocks, inode.extents);
    // A segment's end may part it; pieces go to the device a segment at a time.
    let (links, pages, pieces) = counts(found(nids[0]));
    assert!((links, pages) == (2, 900) && (2..=4).contains(&pieces), "{pieces}");
    assert_eq!(nids.map(found).map(counts)[1..], [(1, 5, 5), (1, 5, 5), (1, 3, 2), (1, 1, 1), (1, 1, 1)]);
    assert_eq!(found(nids[5]).size_bytes, 5_000_001 * PAGE);
    assert_eq!((found(dir.0).kind, found(dir.0).links), (FileKind::Directory, 2));
    assert_eq!(found(3).kind, FileKind::Directory);
}

#[test]
fn an_examination_tells_how_far_it_is() {
    let image = Image::made(64);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    ["one", "two", "three"].into_iter().for_each(|text| fs.release(create(&fs, text)));
    fs.unmount().unwrap();
    drop(fs);
    let fs = F2fs::open(&image.path).unwrap();
    let mut told = Vec::new();
    let found = fs.examine(&mut |seen, all| told.push((seen, all)));
    assert_eq!(told, [(1, 4), (2, 4), (3, 4), (4, 4)]);
    assert!(found.problems.is_empty() && found.inodes.is_empty() && found.unread == 0);
}
