//! Private mounts: a mount namespace for the calling thread, if the user may have one.

use rustix::mount::{MountPropagationFlags, mount_change};
use std::fs::File;
use std::io::ErrorKind;

/// Makes mounts of this thread, and of processes that it starts, private if the user is root. Otherwise
/// checks whether fusermount3 can mount for all to see. The error is the reason why nothing can be mounted.
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
        return Err(format!("cannot get a mount namespace of its own: {}", std::io::Error::last_os_error()));
    }
    let private = mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC);
    private.map_err(|errno| format!("cannot get a mount namespace of its own: {errno}"))
}
