//! Mounts, and gets the connection to the kernel: by mount(2) if this process may, else by the setuid helper
//! `fusermount3`.
//!
//! The protocol library could mount, too. But when the connection ends it unmounts by path, and another mount
//! may be there by then.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::mounts::{FS_SUBTYPE, FS_TYPE};
use crate::options::MountOptions;

/// What the kernel calls the type; the subtype is an option.
const KERNEL_TYPE: &str = "fuse";
const HELPER: &str = "fusermount3";
/// Variable by which the helper learns the number of the socket to send the connection over.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// Mounts at `dir` and returns the connection.
pub(crate) fn connect(dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    match by_ourselves(dir, options) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => by_helper(dir, options),
        done => done,
    }
}

/// What the kernel's file system is told, whichever call makes the mount: words, most with a value.
fn words(device: &File, root_mode: u32, options: &MountOptions) -> Vec<(&'static str, Option<String>)> {
    let mut words = vec![
        ("fd", Some(device.as_raw_fd().to_string())),
        ("rootmode", Some(format!("{root_mode:o}"))),
        ("user_id", Some(rustix::process::getuid().as_raw().to_string())),
        ("group_id", Some(rustix::process::getgid().as_raw().to_string())),
        ("default_permissions", None),
    ];
    words.extend(options.allow_other.then_some(("allow_other", None)));
    words
}

/// What the mount does not allow, as flags of either kind of call.
fn flags(options: &MountOptions) -> (MountFlags, MountAttrFlags) {
    let all = [
        (options.read_only, MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (!options.exec, MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (!options.suid, MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (!options.dev, MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
    ];
    let given = || all.iter().filter(|(is, ..)| *is);
    (given().map(|(_, flag, _)| *flag).collect(), given().map(|(_, _, flag)| *flag).collect())
}

fn by_ourselves(dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let words = words(&device, dir.metadata()?.mode(), options).into_iter();
    let words: Vec<String> = words
        .map(|(word, value)| value.map_or_else(|| word.to_owned(), |value| format!("{word}={value}")))
        .collect();
    let source = CString::new(options.source.as_os_str().as_bytes())?;
    let data = CString::new(words.join(","))?;
    rustix::mount::mount(&source, dir, FS_TYPE, flags(options).0, &*data)?;
    Ok(device.into())
}

/// Mounts beneath the mount at `dir`, which stays on top. As [`by_ourselves`], by the calls that can do so.
///
/// # Errors
/// Those of the system; before Linux 6.5 always.
pub(crate) fn connect_beneath(dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let fs = fsopen(KERNEL_TYPE, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&fs, "source", options.source.as_os_str())?;
    fsconfig_set_string(&fs, "subtype", FS_SUBTYPE)?;
    // The directory on top may not be asked for its mode. The kernel gets it from us later.
    for (word, value) in words(&device, libc::S_IFDIR, options) {
        match value {
            Some(value) => fsconfig_set_string(&fs, word, value)?,
            None => fsconfig_set_flag(&fs, word)?,
        }
    }
    if options.read_only {
        fsconfig_set_flag(&fs, "ro")?;
    }
    fsconfig_create(&fs)?;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, flags(options).1)?;
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    move_mount(&mount, "", rustix::fs::CWD, dir, how)?;
    Ok(device.into())
}

fn by_helper(dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (theirs, ours) = UnixStream::pair()?;
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut words = b"default_permissions,subtype=".to_vec();
    words.extend(FS_SUBTYPE.bytes());
    let given = [
        (options.allow_other, "allow_other"),
        (options.read_only, "ro"),
        (!options.exec, "noexec"),
        (options.suid, "suid"),
        (options.dev, "dev"),
    ];
    for (_, word) in given.iter().filter(|(is, _)| *is) {
        words.push(b',');
        words.extend(word.bytes());
    }
    words.extend(b",fsname=");
    for byte in options.source.as_os_str().as_bytes() {
        // A comma would end the option.
        words.extend((b",\\".contains(byte)).then_some(b'\\'));
        words.push(*byte);
    }
    let mut helper = Command::new(HELPER)
        .arg("-o")
        .arg(std::ffi::OsStr::from_bytes(&words))
        .arg("--")
        .arg(dir)
        .env(HELPER_SOCKET, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{HELPER}: {error}")))?;
    drop(theirs);
    let connection = receive(&ours);
    let mut said = String::new();
    if let Some(stderr) = &mut helper.stderr {
        // If it printed nothing, its exit code must do.
        let _ = stderr.read_to_string(&mut said);
    }
    let status = helper.wait()?;
    match connection {
        Some(connection) if status.success() => Ok(connection),
        _ if said.trim().is_empty() => Err(io::Error::other(format!("{HELPER}: {status}"))),
        _ => Err(io::Error::other(said.trim().to_owned())),
    }
}

/// Receives a descriptor. Returns `None` if the sender has ended without sending one.
fn receive(socket: &UnixStream) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut sent = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let mut into = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut into, &mut sent, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(_) => return None,
            Ok(_) => break,
        }
    }
    sent.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}
