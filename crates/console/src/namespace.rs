//! Mounts that nobody else sees: a mount namespace of the calling thread's own, where the user may have one.

use rustix::mount::{MountPropagationFlags, mount_change};
use std::fs::File;
use std::io::ErrorKind;

/// Makes what this thread (and what it starts) mounts its own affair, where the user is root; else finds out whether
/// fusermount3 can mount for all to see. An error is a reason why nothing can be mounted.
pub fn enter() -> Result<(), String> {
    let device = "/dev/fuse";
    match File::options().read(true).write(true).open(device) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(format!("this user may not open {device} (try: chmod 666 {device}, as root)"));
        }
        Err(error) => return Err(format!("no {device}: {error} (try: modprobe fuse, as root)")),
    }
    if !rustix::process::geteuid().is_root() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let there = std::env::split_paths(&path).any(|dir| dir.join("fusermount3").is_file());
        let lacks = || "mounting without root needs fusermount3 (package fuse3)".to_owned();
        return there.then_some(()).ok_or_else(lacks);
    }
    // SAFETY: unshare takes no pointers; the new namespace concerns this thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) } != 0 {
        return Err(format!("no mount namespace of its own: {}", std::io::Error::last_os_error()));
    }
    let private = mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC);
    private.map_err(|errno| format!("no mount namespace of its own: {errno}"))
}
