//! One file system shared by many processes.
//!
//! The daemon (the process that mounted the image and started a [`server::Server`]) hands region and arena to
//! other processes as descriptors. From then on these processes work as the daemon's own threads do, through
//! the same code, and do not need the daemon. The argument about death and delay is in docs/processes.md.
//!
//! State       [`attach_ioctl`]: how a mount announces its attach socket, and the attach socket knows which process has asked; [`wire`]:
//!             the messages; [`server`], [`attach_socket`], [`client`]: the two ends; [`rounds`]: what the daemon does by itself;
//!             [`attach_address`]: the users whom a client trusts; [`notes`]: what a daemon leaves for its successor; [`adopt`]: after a
//!             daemon's death; [`fork`]: forked children, which inherit the descriptors.
//! Invariants  I1  nothing from the socket is trusted: lengths and numbers are checked, descriptors are inspected.
//!             I2  an arena is accepted only if boot, image and mount epoch match the daemon's answer (docs/protocol.md L6).
//! Source      docs/protocol.md L1, L6.

pub mod adopt;
pub mod attach_address;
pub mod attach_ioctl;
mod attach_socket;
pub mod client;
pub mod fork;
pub mod notes;
mod rounds;
pub mod server;
pub mod wire;

use rustix::fs::{FileType, fstat};
use std::os::fd::AsFd;

/// Identifies an image's file: device and inode, or `u64::MAX` and the number of a device.
pub(crate) fn image_id(file: impl AsFd) -> rustix::io::Result<[u64; 2]> {
    let stat = fstat(file)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice | FileType::CharacterDevice => [u64::MAX, stat.st_rdev],
        _ => [stat.st_dev, stat.st_ino],
    })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{client, image_id};
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_device_is_told_by_number_and_a_file_by_inode() {
        let file = tempfile::tempfile().unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!(image_id(&file), Ok([meta.dev(), meta.ino()]));
        // Linux gives this device the numbers 1 and 3.
        let null = File::open("/dev/null").unwrap();
        assert_eq!(client::identity_of(&null).unwrap(), [u64::MAX, 0x103]);
    }
}
