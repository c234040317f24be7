//! A mounted model file system for a test, in a mount namespace of the test's own thread: nothing of it is seen outside,
//! and nothing stays when the test fails.
#![allow(dead_code)] // each test program uses a part of this

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use heddle_fuse::{FileSystem, MountOptions, Mounted};
use heddle_vfs::model::ModelFs;
use rustix::mount::{MountPropagationFlags, mount_change};

/// Field order: unmounted before the directory is removed.
pub struct Mount {
    pub mounted: Mounted,
    _dir: tempfile::TempDir,
}

impl Mount {
    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted.dir().join(name)
    }
}

/// A mounted [`ModelFs`]; `None`, said loudly, where mounting is not possible.
pub fn model() -> Option<Mount> {
    mount(Arc::new(ModelFs::new()), &MountOptions::default())
}

/// No names or attributes kept by the kernel.
pub fn uncached() -> MountOptions {
    MountOptions { ttl: Duration::ZERO, ..MountOptions::default() }
}

pub fn mount(fs: Arc<dyn FileSystem>, options: &MountOptions) -> Option<Mount> {
    if !own_namespace() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = heddle_fuse::mount(fs, dir.path(), options).unwrap();
    Some(Mount { mounted, _dir: dir })
}

/// A mount that a process of its own serves: while the kernel waits for the daemon of a mapping it may hold the lock on the memory of who
/// stores to it, and a daemon in that process would wait for this lock.
pub struct Apart {
    dir: tempfile::TempDir,
    pid: libc::pid_t,
    ends: std::io::PipeWriter,
}

impl Apart {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // It may have failed and be gone.
        let _ = self.ends.write_all(b"e");
        let mut status = 0;
        // SAFETY: a child of this process, and a status of ours.
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        if !std::thread::panicking() {
            assert_eq!(status, 0, "the daemon failed");
        }
    }
}

/// As [`model`], by [`Apart`].
pub fn apart(fs: impl FnOnce() -> ModelFs) -> Option<Apart> {
    if !own_namespace() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let ((mut is_mounted, mut mounted), (mut end, ends)) =
        (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let serve = || {
        // SAFETY: takes no pointers. Other tests may have the pipe open: its end alone would not tell.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let served = heddle_fuse::mount(Arc::new(fs()), dir.path(), &MountOptions::default()).unwrap();
        mounted.write_all(b"m").unwrap();
        end.read_exact(&mut [0]).unwrap();
        drop(served);
    };
    // SAFETY: the child serves and leaves by `_exit`; it touches no lock that another thread of this program may have held at the fork, but
    // the allocator's, which glibc keeps usable.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(serve)).map_or(101, |()| 0);
        // SAFETY: ends this process.
        unsafe { libc::_exit(status) };
    }
    drop(mounted);
    is_mounted.read_exact(&mut [0]).unwrap();
    Some(Apart { dir, pid, ends })
}

/// Gives the calling thread (and what it starts) mounts of its own.
pub fn own_namespace() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root || std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("SKIPPED, NOT TESTED: mounting needs root and /dev/fuse");
        return false;
    }
    // SAFETY: unshare takes no pointers; new namespaces and file-system attributes concern this thread alone.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) };
    if done != 0 {
        eprintln!("SKIPPED, NOT TESTED: no mount namespace: {}", std::io::Error::last_os_error());
        return false;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    true
}

pub fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a shell script in `dir`; it must succeed. Its standard output.
pub fn sh(dir: &Path, script: &str) -> String {
    let output = try_sh(dir, script);
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn try_sh(dir: &Path, script: &str) -> Output {
    Command::new("sh").args(["-euc", script]).current_dir(dir).output().unwrap()
}

/// `script` as user and group 1000, also in group 4242.
pub fn sh_as_user(dir: &Path, script: &str) -> Output {
    Command::new("setpriv")
        .args(["--reuid=1000", "--regid=1000", "--groups=4242", "sh", "-euc", script])
        .current_dir(dir)
        .output()
        .unwrap()
}
