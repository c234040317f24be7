//! The place where forked workers run: a fresh file system on a RAM disk, or a fresh directory.
//!
//! State      `tmpfs`: a mount. Others: a memory file, a loop device over it, a mount of that. `LABEL=PATH`: a new
//!            directory, made and removed by the leader.
//! Invariants I1  nothing of a RAM disk has a name: the memory file is anonymous, the loop device detaches itself when
//!                the last descriptor goes, the mount is a detached one that no directory shows and no other mount
//!                namespace can copy. The kernel takes all of it down with the last process that holds it, whether that
//!                ends well, panics or is killed.
//!            I2  the memory file is written full before it is used and never discarded: a first touch costs more than
//!                most operations measured on it.

use crate::machine;
use crate::target::{Kernel, Need};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

/// The place where a run's processes work.
pub(crate) enum Environment {
    /// The mount keeps its loop device, which keeps its memory file.
    Mounted { mount: OwnedFd, _device: Option<OwnedFd> },
    /// A new directory is made in this one.
    Inside { path: PathBuf },
}

/// The state of the leader while it is inside.
pub(crate) struct Entered {
    remove: Option<PathBuf>,
}

impl Environment {
    /// A fresh file system with room for `need`.
    pub fn ram_disk(kernel: Kernel, need: &Need) -> Result<Environment, String> {
        let name = kernel.name();
        if !rustix::process::geteuid().is_root() {
            return Err(format!(
                "target {name} is a RAM disk made for each run, which needs root: run with sudo, \
                 or name a directory with LABEL=PATH"
            ));
        }
        let size_bytes = size_bytes(kernel, need);
        let free_bytes = machine::memory_available_bytes();
        if size_bytes > free_bytes / 10 * 9 {
            return Err(format!(
                "target {name} needs a RAM disk of {} MiB, but only {} MiB of memory are available: \
                 fewer --cores, or a smaller --file-size",
                size_bytes >> 20,
                free_bytes >> 20
            ));
        }
        if kernel == Kernel::Tmpfs {
            let mount = mount("tmpfs", &[("size", &size_bytes.to_string())]);
            return Ok(Environment::Mounted { mount: mount.map_err(|e| refused(name, e))?, _device: None });
        }
        let maker = Maker::of(kernel);
        let mkfs = maker.find().ok_or_else(|| {
            format!(
                "target {name} needs {}, which is not installed: apt-get install {}",
                maker.mkfs, maker.package
            )
        })?;
        let memory = memory_file(size_bytes)
            .map_err(|e| format!("cannot fill {} MiB of memory: {e}", size_bytes >> 20))?;
        let (device, path) =
            attach(&memory).map_err(|e| format!("target {name} needs a loop device: {e}"))?;
        maker.run(&mkfs, &path, need)?;
        let options = [vec![("source", path.as_str())], maker.options].concat();
        let mount = mount(maker.kind, &options).map_err(|e| refused(name, e))?;
        Ok(Environment::Mounted { mount, _device: Some(device) })
    }

    /// Makes it the working directory of this process.
    pub fn enter(&self) -> Result<Entered, String> {
        match self {
            Environment::Mounted { mount, .. } => {
                rustix::process::fchdir(mount).map_err(|e| format!("cannot enter the RAM disk: {e}"))?;
                Ok(Entered { remove: None })
            }
            Environment::Inside { path } => {
                let dir = path.join(format!("heddle-fxmark-{}", std::process::id()));
                let entered = fs::create_dir(&dir).and_then(|()| std::env::set_current_dir(&dir));
                entered.map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
                Ok(Entered { remove: Some(dir) })
            }
        }
    }
}

impl Entered {
    /// Leaves it, and removes the files of the run.
    pub fn leave(self) -> Result<(), String> {
        std::env::set_current_dir("/").map_err(|e| format!("cannot leave: {e}"))?;
        match self.remove {
            None => Ok(()),
            Some(dir) => {
                fs::remove_dir_all(&dir).map_err(|e| format!("cannot remove {}: {e}", dir.display()))
            }
        }
    }
}

/// Twice the data, for copies and late frees; metadata per file; and the file system's own needs.
fn size_bytes(kernel: Kernel, need: &Need) -> u64 {
    let own: u64 = if kernel == Kernel::Tmpfs { 64 << 20 } else { 512 << 20 };
    (own + 2 * need.bytes + 4096 * need.files).next_multiple_of(1 << 20)
}

fn refused(name: &str, error: rustix::io::Errno) -> String {
    match error {
        rustix::io::Errno::NODEV => {
            format!("target {name}: this kernel has no such file system, built in or as a module")
        }
        error => format!("target {name}: mounting was refused: {error}"),
    }
}

/// Mounts detached, with noatime as the paper does.
fn mount(kind: &str, options: &[(&str, &str)]) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value.is_empty() {
            true => rustix::mount::fsconfig_set_flag(&context, *key)?,
            false => rustix::mount::fsconfig_set_string(&context, *key, *value)?,
        }
    }
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOATIME)
}

/// An anonymous memory file, completely allocated: the base of RAM disks.
///
/// # Errors
/// The system's.
pub fn memory_file(size_bytes: u64) -> io::Result<fs::File> {
    let file = fs::File::from(rustix::fs::memfd_create("heddle-fxmark", MemfdFlags::CLOEXEC)?);
    let zeros = vec![0; 1 << 20];
    for offset in (0..size_bytes).step_by(zeros.len()) {
        file.write_all_at(&zeros, offset)?;
    }
    Ok(file)
}

/// `struct loop_config` of <linux/loop.h>.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// `struct loop_info64`: sizes and places first, then `lo_flags` at 52, then names.
    info: [u8; 232],
    reserved: [u64; 8],
}

const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_AT: usize = 52;

/// A loop device that disappears with its last descriptor.
fn attach(memory: &fs::File) -> io::Result<(OwnedFd, String)> {
    let open = |path: &str| {
        let opened = rustix::fs::openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("cannot open {path}: {e}")))
    };
    let control = open("/dev/loop-control")?;
    loop {
        // SAFETY: this request takes no pointer.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/dev/loop{number}");
        let device = open(&path)?;
        let mut config =
            LoopConfig { fd: memory.as_raw_fd() as u32, block_size: 0, info: [0; 232], reserved: [0; 8] };
        config.info[LO_FLAGS_AT..LO_FLAGS_AT + 4].copy_from_slice(&LO_FLAGS_AUTOCLEAR.to_ne_bytes());
        // SAFETY: the structure this request reads, alive for the call.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &config) } == 0 {
            return Ok((device, path));
        }
        let error = io::Error::last_os_error();
        // Another program took this device first: take the next one.
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
    }
}

/// How a file system is made. It may not discard (I2), nor leave work to a later kernel thread.
struct Maker {
    kind: &'static str,
    mkfs: &'static str,
    package: &'static str,
    args: &'static [&'static str],
    options: Vec<(&'static str, &'static str)>,
}

impl Maker {
    fn of(kernel: Kernel) -> Maker {
        let (kind, mkfs, package, args, options): (_, _, _, &'static [&'static str], _) = match kernel {
            Kernel::Tmpfs => unreachable!("tmpfs is not made"),
            Kernel::Ext4 => {
                let args = &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
                ("ext4", "mkfs.ext4", "e2fsprogs", args, vec![])
            }
            Kernel::Ext4NoJournal => {
                let args = &["-q", "-F", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=0"];
                ("ext4", "mkfs.ext4", "e2fsprogs", args, vec![])
            }
            Kernel::Xfs => ("xfs", "mkfs.xfs", "xfsprogs", &["-q", "-f", "-K"], vec![]),
            Kernel::Btrfs => {
                ("btrfs", "mkfs.btrfs", "btrfs-progs", &["-q", "-f", "-K"], vec![("nodiscard", "")])
            }
            Kernel::F2fs => {
                ("f2fs", "mkfs.f2fs", "f2fs-tools", &["-q", "-f", "-t", "0"], vec![("nodiscard", "")])
            }
        };
        Maker { kind, mkfs, package, args, options }
    }

    fn find(&self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let beyond = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
        std::env::split_paths(&path).chain(beyond).map(|dir| dir.join(self.mkfs)).find(|p| Path::is_file(p))
    }

    fn run(&self, mkfs: &Path, device: &str, need: &Need) -> Result<(), String> {
        let mut command = Command::new(mkfs);
        command.args(self.args);
        if self.kind == "ext4" {
            command.args(["-N", &(2 * need.files + 1024).to_string()]);
        }
        let output =
            command.arg(device).output().map_err(|e| format!("{} cannot be run: {e}", mkfs.display()))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                Err(format!("{} failed: {}", mkfs.display(), String::from_utf8_lossy(&output.stderr).trim()))
            }
        }
    }
}
