//! Whole pages through a file for direct I/O go past memory, few or many, one writer or several, also where space is short.

mod common;

use common::{Image, fill, fsck_is_clean, open_as};
use heddle_f2fs::{F2fs, Traffic, Variant};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Attr, Cred, FileSystem, Handle, Ino, Name, OpenFlags};

const DIRECT: OpenFlags = OpenFlags { direct: true, ..OpenFlags::READ_WRITE };

fn create(fs: &F2fs, text: &str, flags: OpenFlags) -> (Attr, Handle) {
    fs.create(&Cred::root(), Ino::ROOT, Name::new(text.as_bytes()).unwrap(), 0o644, flags).unwrap()
}

/// Blocks that went to the device and are of these bytes alone.
fn on_device(fs: &F2fs, fill: u8) -> usize {
    let is_full = |block: &&[u8]| block.iter().all(|byte| *byte == fill);
    let blocks = |one: &Traffic| match one {
        Traffic::Write(_, bytes) => bytes.chunks(4096).filter(is_full).count(),
        _ => 0,
    };
    fs.traffic().iter().map(blocks).sum()
}

fn is_in_order(image: &Image, fs: F2fs) {
    let tree = Tree::of(&fs).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    if Image::has_tools() {
        fsck_is_clean(&image.path);
    }
    assert_eq!(Tree::of(&F2fs::open(&image.path).unwrap()).unwrap().difference(&tree), None);
}

/// Whole pages through a file for direct I/O are on the device when the call returns; all else waits in memory. Either is seen at once.
#[test]
fn direct_writes_go_to_the_device_at_once() {
    for variant in Variant::ALL {
        let image = Image::made(64);
        let fs = open_as(&image.path, variant).unwrap();
        let (attr, buffered) = create(&fs, "file", OpenFlags::READ_WRITE);
        let direct = fs.open(&Cred::root(), attr.ino, DIRECT).unwrap();
        let page = |fill: u8| vec![fill; 4096];
        let on_device = |fill| on_device(&fs, fill);
        fs.write(&buffered, 0, &page(1).repeat(3)).unwrap();
        assert_eq!(on_device(1), 0);
        // Over a page in memory, then over the block; the size moves too.
        fs.write(&direct, 4096, &page(2)).unwrap();
        fs.write(&direct, 4096, &page(3)).unwrap();
        fs.write(&direct, 8192, &page(4).repeat(2)).unwrap();
        assert_eq!([1, 2, 3, 4].map(on_device), [0, 1, 1, 2]);
        fs.write(&direct, 4097, b"memory").unwrap();
        fs.append(&direct, &page(5)).unwrap();
        fs.append(&direct, b"end").unwrap();
        fs.append(&direct, &page(6)).unwrap();
        assert_eq!([5, 6].map(on_device), [1, 0]);
        let mut wanted = [page(1), page(3), page(4), page(4), page(5), b"end".to_vec(), page(6)].concat();
        wanted[4097..][..6].copy_from_slice(b"memory");
        let mut found = vec![0; 40_000];
        for file in [&direct, &buffered] {
            let len = fs.read(file, 0, &mut found).unwrap();
            assert!(found[..len] == wanted, "{}", variant.name());
        }
        // An fsync has them flushed before it writes the node that leads to them.
        fs.sync().unwrap();
        fs.write(&direct, 0, &page(7)).unwrap();
        fs.fsync(&direct, false).unwrap();
        let traffic = fs.traffic();
        let wrote = |one: &Traffic| matches!(one, Traffic::Write(_, bytes) if bytes[..] == page(7)[..]);
        let behind = &traffic[traffic.iter().position(wrote).unwrap() + 1..];
        let fits = match behind {
            [Traffic::Flush] => variant.has_node_log(),
            [Traffic::Flush, Traffic::Write(..), Traffic::Flush] => !variant.has_node_log(),
            _ => false,
        };
        assert!(fits, "{}: {}", variant.name(), behind.len());
        fs.release(buffered);
        fs.release(direct);
        is_in_order(&image, fs);
    }
}

#[test]
fn a_direct_write_of_many_pages_goes_to_the_device_at_once() {
    for variant in Variant::ALL {
        let image = Image::made(128);
        let fs = open_as(&image.path, variant).unwrap();
        let (_, file) = create(&fs, "file", DIRECT);
        // More than a segment, and more than the inode has pointers for.
        let pages = 1500;
        fs.write(&file, 4096, &vec![1; pages * 4096]).unwrap();
        assert_eq!(on_device(&fs, 1), pages);
        fs.write(&file, 0, &vec![2; pages * 4096]).unwrap();
        assert_eq!(on_device(&fs, 2), pages);
        let mut found = vec![0; (pages + 2) * 4096];
        let len = fs.read(&file, 0, &mut found).unwrap();
        assert!(found[..len] == [vec![2; pages * 4096], vec![1; 4096]].concat(), "{}", variant.name());
        fs.release(file);
        is_in_order(&image, fs);
    }
}

/// Four times what the image holds is written over two thirds of it: segments come back with checkpoints alone. All writers together need
/// more than is kept, so each counts the others.
#[test]
fn large_direct_writes_side_by_side_fit_where_little_is_free() {
    const WRITERS: u64 = 8;
    const PIECE: u64 = 6 << 20;
    for variant in Variant::ALL {
        let image = Image::made(128);
        let fs = open_as(&image.path, variant).unwrap();
        let pieces = fs.statfs().unwrap().blocks_available * 4096 * 2 / 3 / PIECE;
        let (attr, file) = create(&fs, "file", DIRECT);
        std::thread::scope(|scope| {
            for me in 0..WRITERS {
                let (fs, file) = (&fs, &file);
                scope.spawn(move || {
                    for round in 1..=6 {
                        for piece in (me..pieces).step_by(WRITERS as usize) {
                            let bytes = vec![(round * 40 + piece % 40) as u8; PIECE as usize];
                            fs.write(file, piece * PIECE, &bytes)
                                .unwrap_or_else(|e| panic!("{round} {piece}: {e}"));
                        }
                    }
                });
            }
        });
        assert_eq!(fs.getattr(attr.ino).unwrap().size_bytes, pieces * PIECE);
        let mut found = vec![0; PIECE as usize];
        for piece in 0..pieces {
            fs.read(&file, piece * PIECE, &mut found).unwrap();
            assert!(found.iter().all(|byte| *byte == (240 + piece % 40) as u8), "piece {piece}");
        }
        fs.release(file);
        is_in_order(&image, fs);
    }
}

#[test]
fn direct_appends_are_refused_when_the_image_is_full_and_not_before() {
    let image = Image::made(128);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let (_, file) = create(&fs, "file", DIRECT);
    fill(&fs, &file, 1 << 20);
    fs.release(file);
    is_in_order(&image, fs);
}
