//! A small file system with every structure the format has.

use crate::common::{Short, name, options, root};
use heddle_nvmfs::fsck::{Survey, Verdict, examine, survey};
use heddle_nvmfs::ids::BlockNo;
use heddle_nvmfs::{NvmFs, Variant, format_region, mount};
use heddle_pmem::{Pos, Region};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{
    Error, FileKind, FileSystem, Ino, NewNode, RangeOp, RenameMode, SetAttr, SetXattr, XattrName,
};
use std::sync::Barrier;

pub const IMAGE_BYTES: u64 = 4 << 20;
const PAGE: usize = 4096;

pub struct Sample {
    pub region: Region,
    /// What it holds.
    pub tree: Tree,
    /// Inode of each path.
    pub inos: std::collections::BTreeMap<Vec<u8>, Ino>,
}

pub fn image_bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len_bytes() as usize];
    region.read(Pos(0), &mut bytes);
    bytes
}

/// Memory with these bytes.
pub fn region_of(bytes: &[u8]) -> Region {
    let region = Region::anonymous(bytes.len() as u64).unwrap();
    region.nt_write(Pos(0), bytes);
    region.fence();
    region
}

/// A copy of the image with the repair done; nothing is left to find on it.
pub fn repaired(region: &Region, verdict: &Verdict) -> Region {
    assert_eq!(verdict.left(), 0, "not all of it is repaired: {:#?}", verdict.issues);
    let copy = region_of(&image_bytes(region));
    for (block, words) in verdict.changes() {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        copy.nt_write(block.pos(), &bytes);
    }
    copy.fence();
    let again = examine("repaired", &copy).unwrap();
    assert_eq!(
        (again.found(), again.changes().count()),
        (0, 0),
        "{:#?} after {:#?}",
        again.issues,
        verdict.issues
    );
    copy
}

impl Sample {
    /// An image with what `work` makes.
    pub fn of(variant: Variant, work: impl FnOnce(&NvmFs)) -> Sample {
        let region = Region::anonymous(IMAGE_BYTES).unwrap();
        format_region(&region, variant).unwrap();
        let volume = mount(region.map_again().unwrap(), &options()).unwrap();
        let fs = volume.fs();
        work(&fs);
        let tree = Tree::of(&fs).unwrap();
        let ino = |path: &Vec<u8>| {
            let path = std::str::from_utf8(path).unwrap();
            if path == "/" {
                return Ino::ROOT;
            }
            let (dir, last) = heddle_vfs::path::resolve_parent(&fs, &root(), path).unwrap();
            fs.lookup(&root(), dir, last).unwrap().ino
        };
        let inos = tree.nodes.keys().map(|path| (path.clone(), ino(path))).collect();
        volume.unmount();
        Sample { region, tree, inos }
    }

    pub fn new(variant: Variant) -> Sample {
        Sample::of(variant, Sample::fill)
    }

    fn fill(fs: &NvmFs) {
        in_pieces(fs);
        let dir = fs.new_dir(Ino::ROOT, "dir");
        let below = fs.new_dir(dir, "below");
        let long = "a name that takes more than one line of the log, so that its records are of several lines, each with a \
                    checksum of its own";
        let file = fs.new_file(dir, long);
        fs.write(&file, 0, &[1; 5 * PAGE]).unwrap();
        fs.append(&file, &[2; 3 * PAGE + 7]).unwrap();
        fs.fallocate(&file, RangeOp::Punch, PAGE as u64, 2 * PAGE as u64).unwrap();
        fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, 8 * PAGE as u64, PAGE as u64).unwrap();
        fs.resize(&file, 7 * PAGE as u64).unwrap();
        fs.release(file);
        let victim = fs.new_file(Ino::ROOT, "victim");
        for round in 0..90u8 {
            fs.write(&victim, u64::from(round % 12) * PAGE as u64, &[round; PAGE]).unwrap();
        }
        let crowd = fs.new_file(below, "crowd");
        let all_wrote = Barrier::new(9);
        std::thread::scope(|scope| {
            for worker in 0..9u8 {
                let (crowd, all_wrote) = (&crowd, &all_wrote);
                scope.spawn(move || {
                    fs.write(crowd, u64::from(worker) * PAGE as u64, &[worker + 1; PAGE]).unwrap();
                    all_wrote.wait();
                });
            }
        });
        let user = XattrName::new(b"user.note").unwrap();
        fs.setxattr(&root(), victim.ino, user, &[5; 6000], SetXattr::Any).unwrap();
        fs.setxattr(&root(), dir, user, b"on a directory", SetXattr::Any).unwrap();
        fs.release(victim);
        fs.release(crowd);
        let set = SetAttr { perm: Some(0o640), uid: Some(12), gid: Some(34), ..SetAttr::default() };
        let other = fs.new_file(dir, "other");
        fs.setattr(&root(), other.ino, None, &set).unwrap();
        fs.link(&root(), other.ino, Ino::ROOT, name("link")).unwrap();
        fs.release(other);
        let link = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"dir/below" };
        fs.make(&root(), Ino::ROOT, name("symlink"), link).unwrap();
        let pipe = NewNode { kind: FileKind::Fifo, perm: 0o600, rdev: 0, target: &[] };
        fs.make(&root(), below, name("pipe"), pipe).unwrap();
        fs.replace((dir, "other"), (Ino::ROOT, "moved")).unwrap();
        fs.release(fs.new_file(Ino::ROOT, "here"));
        fs.release(fs.new_file(dir, "there"));
        let (here, there) = (name("here"), name("there"));
        fs.rename(&root(), Ino::ROOT, here, dir, there, RenameMode::Exchange).unwrap();
        let gone = fs.new_file(dir, "gone");
        fs.release(gone);
        fs.remove(dir, "gone").unwrap();
        shifted(fs);
    }

    pub fn survey(&self) -> Survey {
        survey("sample", &self.region).unwrap().unwrap()
    }

    pub fn ino(&self, path: &str) -> Ino {
        self.inos[path.as_bytes()]
    }

    /// The first page of the log of a file in the root.
    pub fn log_page(&self, file: &str) -> BlockNo {
        self.log_page_of(&format!("/{file}"))
    }

    /// The first page of the log of the inode at a path.
    pub fn log_page_of(&self, path: &str) -> BlockNo {
        let ino = self.ino(path);
        let what = format!("the log of inode {}", ino.0);
        self.survey().owners.iter().find(|o| o.what == what).unwrap().block
    }
}

/// Pages that lie apart from each other in "shifted".
const ODDS: u64 = 260;

/// Files out of which ranges were cut, and into which they were inserted: one with a map of two blocks, one without any.
fn shifted(fs: &NvmFs) {
    let page = |n: u64| n * PAGE as u64;
    let file = fs.new_file(Ino::ROOT, "shifted");
    fs.fallocate(&file, RangeOp::Allocate { keep_size: false }, 0, page(ODDS)).unwrap();
    for n in (0..ODDS).step_by(2) {
        fs.write(&file, page(n), &[n as u8 + 1; PAGE]).unwrap();
    }
    fs.fallocate(&file, RangeOp::Insert, page(2), page(3)).unwrap();
    fs.fallocate(&file, RangeOp::Collapse, page(1), page(1)).unwrap();
    fs.write(&file, page(7) + 5, b"written since").unwrap();
    fs.release(file);
    let file = fs.new_file(Ino::ROOT, "sparse");
    fs.write(&file, 0, b"the only page").unwrap();
    fs.resize(&file, page(9)).unwrap();
    fs.fallocate(&file, RangeOp::Insert, page(4), page(2)).unwrap();
    fs.release(file);
}

/// A file whose one write went to so many pieces that it needed an extent list.
fn in_pieces(fs: &NvmFs) {
    let mut small = Vec::new();
    for number in 0.. {
        let name = format!("small{number}");
        let written = fs.try_file(Ino::ROOT, &name).and_then(|file| {
            let written = fs.write(&file, 0, &[7; PAGE]);
            fs.release(file);
            written
        });
        match written {
            Ok(_) => small.push(name),
            Err(Error::NoSpace | Error::NoInodes) => {
                let _ = fs.remove(Ino::ROOT, &name);
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    for name in small.iter().step_by(2) {
        fs.remove(Ino::ROOT, name).unwrap();
    }
    let file = fs.new_file(Ino::ROOT, "pieces");
    let bytes: Vec<u8> = (0..120 * PAGE).map(|i| (i / PAGE) as u8 + 1).collect();
    assert_eq!(fs.write(&file, 0, &bytes).unwrap(), bytes.len());
    fs.release(file);
    for name in small.iter().skip(1).step_by(2) {
        fs.remove(Ino::ROOT, name).unwrap();
    }
}
