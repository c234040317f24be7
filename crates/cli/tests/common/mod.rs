//! Running the binary, and images to run it on.
#![allow(dead_code)] // each test program uses a part of this

pub mod loop_device;
pub mod roles;
pub mod traps;
pub mod tree;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// What the command said.
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(output: Output) -> Said {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let code = output.status.code().expect("ended by a signal");
        Said { code, out: text(output.stdout), err: text(output.stderr) }
    }

    /// It went well.
    #[track_caller]
    pub fn ok(self) -> Said {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }

    /// It failed with this exit code, and its message names all of these.
    #[track_caller]
    pub fn failed(self, code: i32, names: &[&str]) {
        assert_eq!(self.code, code, "{}{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        for name in names {
            assert!(self.err.contains(name), "'{name}' is not in: {}", self.err);
        }
    }
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heddle"));
    command.args(args).stdin(Stdio::null());
    command
}

/// `heddle ARGS…`
pub fn heddle(args: &[&str]) -> Said {
    Said::of(command(args).output().unwrap())
}

/// A directory in memory, with an image of 8 MiB in it and a place to mount it.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        let base = Path::new("/dev/shm");
        let dir = if base.is_dir() { tempfile::tempdir_in(base) } else { tempfile::tempdir() }.unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        Place { dir }
    }

    pub fn with_image(variant: &str) -> Place {
        Place::with_image_of(variant, "8M")
    }

    pub fn with_image_of(variant: &str, size: &str) -> Place {
        let place = Place::new();
        heddle(&["mkfs", "--size", size, "--variant", variant, &place.image()]).ok();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn image(&self) -> String {
        self.text("image")
    }

    pub fn mnt(&self) -> String {
        self.text("mnt")
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Changes the image's bytes.
    pub fn edit(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(self.image()).unwrap();
        change(&mut bytes);
        std::fs::write(self.image(), bytes).unwrap();
    }

    /// `heddle mount --foreground` that must not get as far as mounting.
    pub fn mount(&self) -> Said {
        heddle(&["mount", "--foreground", &self.image(), &self.mnt()])
    }
}

/// Builds the libraries that programs preload or link, once; where they are.
pub fn build_preload() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_heddle")).parent().unwrap().to_path_buf();
        // `cargo xtask test` has built it, with the features that all tests together have.
        if std::env::var_os("HEDDLE_ALL_BUILT").is_some() && folder.join("libheddle_preload.so").exists() {
            return folder;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "-p", "heddle-preload", "-p", "heddle-c", "--target-dir"]);
        cargo.arg(folder.parent().unwrap()).args((!cfg!(debug_assertions)).then_some("--release"));
        if cfg!(feature = "planted") {
            cargo.args(["--features", "heddle-preload/planted"]);
        }
        let said = cargo.output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        folder
    })
}

/// Gives the calling thread mounts of its own, or says loudly that nothing is tested.
pub fn own_namespace() -> bool {
    let fuse = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    // SAFETY: unshare takes no pointers; new namespaces concern this thread alone.
    let done = fuse
        && rustix::process::geteuid().is_root()
        && unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) } == 0;
    if !done {
        eprintln!("SKIPPED, NOT TESTED: mounting needs root and /dev/fuse");
        return false;
    }
    use rustix::mount::{MountPropagationFlags, mount_change};
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    true
}

/// An image mounted in the background, unmounted whatever the test does.
pub struct Mounted<'a>(pub &'a Place);

impl<'a> Mounted<'a> {
    #[track_caller]
    pub fn new(place: &'a Place, options: &[&str]) -> Mounted<'a> {
        let (image, mnt) = (place.image(), place.mnt());
        // A pipe would be held open by the process that stays: talk goes to a file.
        let log = std::fs::File::create(place.path("log")).unwrap();
        let mut args = vec!["mount"];
        args.extend(options);
        args.extend([image.as_str(), mnt.as_str()]);
        let status = command(&args).stderr(log).status().unwrap();
        assert!(status.success(), "{}", std::fs::read_to_string(place.path("log")).unwrap());
        Mounted(place)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path("mnt").join(name)
    }
}

/// What mounts of rigs are to survive: what `HEDDLE_DURABILITY` names, or first the one and then the other.
pub fn durabilities() -> Vec<String> {
    let named = std::env::var("HEDDLE_DURABILITY").ok();
    named.map_or_else(|| ["process", "power"].map(String::from).into(), |named| vec![named])
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let said = heddle(&["umount", &self.0.mnt()]);
        if !std::thread::panicking() {
            said.ok();
        }
    }
}

/// One test at a time: what another one forks holds this one's open files until it executes.
pub fn alone() -> Option<std::sync::MutexGuard<'static, ()>> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    own_namespace().then_some(guard)
}
