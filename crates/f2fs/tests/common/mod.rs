//! A tree of all sorts of files, and images that f2fs-tools have loaded it into.
#![allow(dead_code, reason = "not every suite uses all of it")]

use heddle_f2fs::{F2fs, LogRegion, LogState, OpenError, Variant, make_image};
use heddle_pmem::Region;
use heddle_vfs::path::resolve_nofollow;
use heddle_vfs::{Cred, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Sizes at which something changes: inline, one block, the inode's pointers, direct and indirect nodes.
const SIZES: [usize; 11] =
    [0, 1, 3488, 3489, 4095, 4096, 4097, 873 * 4096, 874 * 4096, 1891 * 4096 + 5, 2950 * 4096 + 77];

/// What is loaded.
pub struct Source {
    dir: TempDir,
}

impl Source {
    pub fn new() -> Source {
        Source::with(&SIZES)
    }

    /// Without files that need more nodes than their inode: where inodes have extra attributes sload.f2fs 1.15 leaves out what lies behind
    /// their own pointers.
    pub fn of_small_files() -> Source {
        let small: Vec<usize> = SIZES.into_iter().filter(|size| *size < 100 * 4096).collect();
        Source::with(&small)
    }

    fn with(sizes: &[usize]) -> Source {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b/c")).unwrap();
        fs::write(at("a/b/c/file"), "deep down").unwrap();
        for size in sizes {
            fs::write(at(&format!("of {size} bytes")), bytes(*size)).unwrap();
        }
        fs::write(at("large"), bytes(3 << 20)).unwrap();
        fs::create_dir(at("empty")).unwrap();
        fs::create_dir(at("closed")).unwrap();
        fs::write(at("closed/inside"), "x").unwrap();
        fs::write(at("secret"), "s").unwrap();
        fs::create_dir(at("many")).unwrap();
        for n in 0..1500 {
            // Names of all lengths, from 1 to 255 bytes.
            let digits = n.to_string();
            let name = digits.clone() + &"n".repeat(n % (256 - digits.len()));
            fs::write(at("many").join(name), n.to_string()).unwrap();
        }
        fs::write(at("ünïcödé ☃"), "snow").unwrap();
        symlink("a/b/c/file", at("link")).unwrap();
        symlink("x".repeat(4000), at("long link")).unwrap();
        for (name, mode) in [("secret", 0o600), ("closed", 0o700), ("large", 0o4755)] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let when = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 123_456_789);
        File::options().write(true).open(at("secret")).unwrap().set_modified(when).unwrap();
        Source { dir }
    }

    /// Every file, directory and link is in the image, as it is here.
    pub fn compare(&self, fs: &F2fs, kind: &[&str]) {
        eprintln!("made with {kind:?}");
        let mut names = 0;
        self.compare_dir(fs, Path::new("/"), self.dir.path(), &mut names);
        assert!(names > 1500, "{kind:?}: {names} names");
    }

    fn compare_dir(&self, fs: &F2fs, path: &Path, here: &Path, names: &mut usize) {
        let mut wanted = BTreeSet::new();
        for entry in fs::read_dir(here).unwrap() {
            let entry = entry.unwrap();
            wanted.insert(entry.file_name().as_bytes().to_vec());
            self.compare_file(fs, &path.join(entry.file_name()), &entry.path(), names);
        }
        let mut found = listed(fs, path);
        // mkfs makes this one where the feature is on.
        found.remove(&b"lost+found"[..]);
        assert_eq!(found, wanted, "{}", path.display());
    }

    fn compare_file(&self, fs: &F2fs, path: &Path, here: &Path, names: &mut usize) {
        *names += 1;
        let shown = path.display();
        let attr = resolve_nofollow(fs, &Cred::root(), path).unwrap_or_else(|e| panic!("{shown}: {e}"));
        let meta = here.symlink_metadata().unwrap();
        assert_eq!(attr.kind.mode_bits() | u32::from(attr.perm), meta.mode(), "{shown}: mode");
        assert_eq!(attr.mtime.secs(), meta.mtime(), "{shown}: mtime");
        match attr.kind {
            FileKind::Directory => self.compare_dir(fs, path, here, names),
            FileKind::Symlink => {
                assert_eq!(
                    fs.readlink(attr.ino).unwrap(),
                    fs::read_link(here).unwrap().as_os_str().as_bytes()
                );
            }
            _ => {
                assert_eq!(attr.size_bytes, meta.len(), "{shown}: size");
                let (is, should) = (read(fs, path), fs::read(here).unwrap());
                let differs = is.iter().zip(&should).position(|(is, should)| is != should);
                assert_eq!(
                    (is.len(), differs),
                    (should.len(), None),
                    "{shown}: length, first byte that differs"
                );
            }
        }
    }
}

impl Source {
    /// Files so small that they stand in their inodes, in directories that do, where mkfs and sload were told nothing else.
    pub fn of_inline_files() -> Source {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("inline"), "the 24 bytes of a file.\n").unwrap();
        fs::write(at("inline2"), bytes(3000)).unwrap();
        fs::write(at("dir/inline"), "x".repeat(100)).unwrap();
        for n in 0..40 {
            fs::write(at("dir").join(format!("{n} {}", "n".repeat(20))), "").unwrap();
        }
        Source { dir }
    }

    /// Makes the same files in another file system.
    pub fn make_in(&self, fs: &dyn FileSystem) {
        make_in(fs, Ino::ROOT, self.dir.path());
    }
}

fn make_in(fs: &dyn FileSystem, dir: Ino, from: &Path) {
    let root = Cred::root();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (name, meta) = (entry.file_name(), entry.metadata().unwrap());
        let (name, perm) = (Name::new(name.as_bytes()).unwrap(), meta.mode() as u16 & 0o7777);
        if meta.is_dir() {
            let node = NewNode { kind: FileKind::Directory, perm, rdev: 0, target: &[] };
            make_in(fs, fs.make(&root, dir, name, node).unwrap().ino, &entry.path());
        } else {
            let (_, handle) = fs.create(&root, dir, name, perm, OpenFlags::READ_WRITE).unwrap();
            fs.write(&handle, 0, &fs::read(entry.path()).unwrap()).unwrap();
            fs.release(handle);
        }
    }
}

/// Opens an image as one of the systems; its node log, if that has one, is a file beside it.
pub fn open_as(path: &Path, variant: Variant) -> Result<F2fs, OpenError> {
    open_with_log_of(path, variant, 4 << 20)
}

/// The same, with a log of so many bytes, if it is a new one.
pub fn open_with_log_of(path: &Path, variant: Variant, len_bytes: u64) -> Result<F2fs, OpenError> {
    if !variant.has_node_log() {
        return F2fs::open_as(path, variant);
    }
    let (at, how) = (path.with_extension("nvm"), heddle_pmem::OpenOptions::default());
    let (region, state) = match at.exists() {
        true => (reopened(&at, &how), LogState::HoldsLog),
        false => (Region::create(&at, len_bytes, &how), LogState::Free),
    };
    F2fs::open_with_log(path, variant, LogRegion { region: region.unwrap(), state, discard: false })
}

/// Opens a log that this process has just closed. A child that another test starts inherits the lock, until it has executed its program.
fn reopened(log: &Path, how: &heddle_pmem::OpenOptions<'_>) -> heddle_pmem::Result<Region> {
    let began = Instant::now();
    loop {
        match Region::open(log, how) {
            Err(heddle_pmem::Error::InUse { .. }) if began.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// Appends pieces to an empty file of a nearly empty image until there is no space: nearly all that was available is in it then, in
/// whole pieces.
pub fn fill(fs: &F2fs, file: &Handle, piece_bytes: usize) {
    let (mut written, available) = (0, fs.statfs().unwrap().blocks_available * 4096);
    let full = loop {
        match fs.append(file, &vec![9; piece_bytes]) {
            Ok(_) => written += piece_bytes as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(full, Error::NoSpace);
    assert_eq!(fs.getattr(file.ino).unwrap().size_bytes, written, "all of a write or nothing");
    assert!(written > available / 20 * 19, "{written} bytes of {available}");
}

/// Bytes that differ from page to page.
fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|n| (n / 4096 * 31 + n % 251) as u8 | 1).collect()
}

/// The names in a directory.
pub fn listed(fs: &F2fs, path: &Path) -> BTreeSet<Vec<u8>> {
    let attr = resolve_nofollow(fs, &Cred::root(), path).unwrap();
    let handle = fs.open(&Cred::root(), attr.ino, OpenFlags::READ).unwrap();
    let mut names = BTreeSet::new();
    fs.each_entry(&handle, Default::default(), &mut |entry| {
        assert!(names.insert(entry.name.bytes().to_vec()), "{}: twice", path.display());
        true
    })
    .unwrap();
    fs.release(handle);
    names
}

/// All bytes of a file, in pieces that fit nothing.
pub fn read(fs: &F2fs, path: &Path) -> Vec<u8> {
    let attr = resolve_nofollow(fs, &Cred::root(), path).unwrap();
    let handle = fs.open(&Cred::root(), attr.ino, OpenFlags::READ).unwrap();
    let (mut all, mut piece) = (Vec::new(), vec![0xee; 100_003]);
    loop {
        let n = fs.read(&handle, all.len() as u64, &mut piece).unwrap();
        all.extend(&piece[..n]);
        if n < piece.len() {
            break;
        }
    }
    let (mut beyond, end) = ([0; 9], all.len() as u64);
    assert_eq!(
        (fs.read(&handle, end, &mut beyond), fs.read(&handle, end + (1 << 40), &mut beyond)),
        (Ok(0), Ok(0))
    );
    fs.release(handle);
    all
}

/// An image, gone with this.
pub struct Image {
    _dir: TempDir,
    pub path: PathBuf,
}

impl Image {
    /// An image made with these options of mkfs.f2fs; `None`, said loudly, where f2fs-tools are missing.
    pub fn of(source: &Source, options: &[&str]) -> Option<Image> {
        Image::sized_of(source, 512, options)
    }

    /// The same, of so many MiB.
    pub fn sized_of(source: &Source, mib: u64, options: &[&str]) -> Option<Image> {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        if !run(Command::new("mkfs.f2fs").arg("-q").args(options).arg(&path)) {
            return None;
        }
        run(Command::new("sload.f2fs").arg("-f").arg(source.dir.path()).arg(&path))
            .then_some(Image { _dir: dir, path })
    }
}

impl Image {
    /// An image without files.
    pub fn empty(mib: u64, options: &[&str]) -> Option<Image> {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(mib << 20).unwrap();
        run(Command::new("mkfs.f2fs").arg("-q").args(options).arg(&path)).then_some(Image { _dir: dir, path })
    }
}

impl Image {
    /// An empty image that this engine made.
    pub fn made(mib: u64) -> Image {
        Image::made_of_bytes(mib << 20)
    }

    /// The same of any size; what is not written takes no memory.
    pub fn made_of_bytes(bytes: u64) -> Image {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        make_image(&path, "ours ☃", &|_, _| ()).unwrap();
        Image { _dir: dir, path }
    }

    /// The same bytes again.
    pub fn copy_of(image: &Image) -> Image {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("image");
        fs::copy(&image.path, &path).unwrap();
        Image { _dir: dir, path }
    }

    /// Is fsck.f2fs there? Said loudly if not.
    pub fn has_tools() -> bool {
        run(Command::new("fsck.f2fs").arg("-V"))
    }
}

/// An image that Linux wrote, unpacked in memory.
pub fn unpacked(name: &str) -> File {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/images/{name}.gz"));
    let from = File::open(packed).unwrap();
    let file = File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    let done = Command::new("gzip").arg("-dc").stdin(from).stdout(file.try_clone().unwrap()).status();
    assert!(done.unwrap().success());
    file
}

/// fsck.f2fs has nothing to say against an image. Its status alone does not tell: what it would mend it calls FIX and returns 0.
#[track_caller]
pub fn fsck_is_clean(path: &Path) {
    let done = Command::new("fsck.f2fs").arg("--dry-run").arg(path).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    let bad: Vec<&str> = text
        .lines()
        .filter(|line| ["[ASSERT]", "[FIX]", "[Fail]"].iter().any(|mark| line.contains(mark)))
        .collect();
    assert!(done.status.success() && bad.is_empty(), "{:?}: {}", done.status, bad.join("\n"));
    survey_is_clean(path);
}

/// Neither has our own reader, if nobody has the image.
#[track_caller]
pub fn survey_is_clean(path: &Path) {
    let problems = match F2fs::open(path) {
        Err(OpenError::InUse { .. }) => return,
        opened => opened.unwrap_or_else(|error| panic!("{error}")).survey().problems,
    };
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn run(command: &mut Command) -> bool {
    let done = command.stdin(Stdio::null()).output();
    match done {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("SKIPPED, NOT TESTED: f2fs-tools are not installed; as root: cargo xtask setup");
            false
        }
        Err(error) => panic!("{command:?}: {error}"),
        Ok(output) => {
            // 1: done, after something small was put right.
            let fine = matches!(output.status.code(), Some(0 | 1));
            assert!(fine, "{command:?}: {}", String::from_utf8_lossy(&output.stdout));
            true
        }
    }
}
